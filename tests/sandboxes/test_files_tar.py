# SPDX-License-Identifier: Apache-2.0
"""Trees of a sandbox as tar streams, out and in."""

from __future__ import annotations

import io
import os
import random
import socket
import tarfile
from typing import Any

import pytest
from layerbox import LayerBox, kind_of

from deadstop.errors import FileProblem, UsageError


def tree(box: LayerBox) -> bytes:
    return b"".join(box.files.tar_out("t"))


def unpack(box: LayerBox, data: bytes, path: str = "t", piece: int = 0, **options: Any) -> None:
    untar = box.files.tar_in(path, **options)
    try:
        for start in range(0, len(data), piece or len(data) or 1):
            untar.feed(data[start : start + (piece or len(data))])
        untar.close()
    finally:
        untar.abort()


def archive(*members: tuple[str, dict[str, Any]], format: int = tarfile.PAX_FORMAT) -> bytes:  # noqa: A002
    """A tar stream of members given by name and attributes of TarInfo (`data` is the content)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format) as tar:
        for name, attributes in members:
            info = tarfile.TarInfo(name)
            data = attributes.pop("data", b"")
            info.size = len(data)
            for key, value in attributes.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def make_tree(box: LayerBox) -> None:
    box.write("t/f", b"content", 0o640)
    box.write("t/a/b/tool", b"x" * 3000, 0o755)
    box.write("t/a/" + "long" * 60 + "/" + "n" * 200, b"long")
    box.write(b"/home/agent/t/a/\xff\n".decode("utf-8", "surrogateescape"), b"odd")
    box.files.mkdir("t/empty")
    box.inside(lambda: os.symlink("/etc/passwd", "t/link"))
    box.inside(lambda: os.link("t/f", "t/a/same"))
    box.inside(lambda: os.mkfifo("t/fifo"))
    box.inside(lambda: socket.socket(socket.AF_UNIX).bind("t/socket"))


def facts(folder: str) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for above, folders, names in os.walk(os.fsencode(folder)):
        for name in sorted([*folders, *names]):
            path = os.path.join(above, name)
            state = os.lstat(path)
            content: object = None
            if os.path.islink(path):
                content = os.readlink(path)
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    content = file.read(), state.st_nlink, int(state.st_mtime)
            found.append((os.path.relpath(path, os.fsencode(folder)), state.st_mode, state.st_uid, content))
    return sorted(found, key=repr)


def test_a_tree_goes_out_and_in_again(box: LayerBox) -> None:
    make_tree(box)
    sent = tree(box)
    unpack(box, sent, "/tmp/copy")
    box.inside(lambda: [os.unlink("t/fifo"), os.unlink("t/socket")])
    assert facts(f"{box.tmp}/copy") == facts(f"{box.home}/t")
    assert b"".join(box.files.tar_out("/tmp/copy/f"))[:2] == b"f\0"


def test_other_tools_read_what_is_sent(box: LayerBox) -> None:
    make_tree(box)
    with tarfile.open(fileobj=io.BytesIO(tree(box))) as tar:
        members = {member.name: member for member in tar}
        assert tar.extractfile(members["a/b/tool"]).read() == b"x" * 3000  # type: ignore[union-attr]
    assert {member.uid for member in members.values()} == {1000}
    assert members["link"].linkname == "/etc/passwd"
    assert {members["f"].type, members["a/same"].type} == {tarfile.REGTYPE, tarfile.LNKTYPE}
    assert not {"fifo", "socket"} & set(members)
    assert "a/\udcff\n" in members


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_what_other_tools_send_is_read(box: LayerBox, form: int) -> None:
    directory = {"type": tarfile.DIRTYPE, "mode": 0o555}
    long = "d" * 90 + "/" + ("e" * 90 if form == tarfile.USTAR_FORMAT else "e" * 150)
    data = archive(
        ("./", dict(directory)),
        ("./x", dict(directory)),
        ("./x/f", {"data": b"1" * 1000, "mode": 0o6755, "mtime": 1_000_000}),
        ("x/s", {"type": tarfile.SYMTYPE, "linkname": "/" + "t" * 90}),
        ("x/h", {"type": tarfile.LNKTYPE, "linkname": "x/f"}),
        (long, {"data": b"2" * 512}),
        ("x/f", {"data": b"again"}),
        format=form,
    )
    for piece in (0, 1, 511, 513):
        unpack(box, data, f"t{piece}", piece)
        assert box.read(f"t{piece}/x/f") == b"again"
        assert box.read(f"t{piece}/x/h") == b"1" * 1000
        assert box.read(f"t{piece}/{long}") == b"2" * 512
        found = {entry["name"]: entry for entry in box.files.listdir(f"t{piece}/x").entries}
        assert (found["h"]["mode"], found["h"]["mtime"], found["s"]["target"]) == ("0755", 1_000_000, "/" + "t" * 90)
        assert box.files.stat(f"t{piece}/x")["mode"] == "0755"


@pytest.mark.parametrize(
    ("name", "attributes", "kind"),
    [
        ("/abs", {}, "outside"),
        ("a/../../x", {}, "outside"),
        ("..", {"type": tarfile.DIRTYPE}, "outside"),
        ("link/x", {"data": b"x"}, "outside"),
        ("link", {"type": tarfile.DIRTYPE}, "outside"),
        ("h", {"type": tarfile.LNKTYPE, "linkname": "../x"}, "outside"),
        ("h", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}, "outside"),
        ("h", {"type": tarfile.LNKTYPE, "linkname": "link/f"}, "outside"),
        ("h", {"type": tarfile.LNKTYPE, "linkname": "link"}, "denied"),
        ("h", {"type": tarfile.LNKTYPE, "linkname": "none"}, "not_found"),
        ("null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}, "denied"),
        ("disk", {"type": tarfile.BLKTYPE}, "denied"),
        ("fifo", {"type": tarfile.FIFOTYPE}, "denied"),
        ("old/x", {"data": b"x"}, "not_a_directory"),
        (".", {"data": b"x"}, "is_a_directory"),
        ("n" * 256, {"data": b"x"}, "too_large"),
        ("sparse", {"pax_headers": {"GNU.sparse.major": "1"}}, "denied"),
    ],
)
def test_a_member_that_is_refused(box: LayerBox, name: str, attributes: dict[str, Any], kind: str) -> None:
    first = ("link", {"type": tarfile.SYMTYPE, "linkname": str(box.outside)})
    data = archive(first, ("old", {}), (name, dict(attributes)))
    assert kind_of(unpack, box, data) == kind
    assert sorted(os.listdir(box.home / "t")) == ["link", "old"]


def test_a_link_is_replaced_and_not_written_through(box: LayerBox) -> None:
    link = ("f", {"type": tarfile.SYMTYPE, "linkname": "../../../outside/f"})
    unpack(box, archive(link, ("f", {"data": b"new"})))
    assert not (box.home / "t/f").is_symlink()
    assert box.read("t/f") == b"new"
    unpack(box, archive(dict_link := ("f", dict(link[1])), dict_link))
    assert (box.home / "t/f").is_symlink()


def test_limits_of_bytes_members_and_names(box: LayerBox) -> None:
    data = archive(("a", {"data": b"x" * 600}), ("b", {"data": b"x" * 600}))
    assert kind_of(unpack, box, data, limit=1000) == "too_large"
    assert kind_of(unpack, box, data, members=1) == "too_large"
    assert os.listdir(box.home / "t") == ["a"]
    bomb = tarfile.TarInfo("x")
    bomb.type, bomb.size = tarfile.XHDTYPE, 1 << 40
    assert kind_of(unpack, box, bomb.tobuf(tarfile.GNU_FORMAT)) == "too_large"
    box.write("t/big", b"")
    os.truncate(box.home / "t/big", 1 << 30)
    stream = box.files.tar_out("t", limit=10 << 20)
    sizes: list[int] = []
    with pytest.raises(FileProblem, match="more than may be sent"):
        sizes.extend(map(len, stream))
    assert sum(sizes) <= 10 << 20
    assert max(sizes) <= 1 << 20


def test_what_is_no_tar_stream(box: LayerBox) -> None:
    good = archive(("a", {"data": b"x" * 600}))
    negative = bytearray(good)
    negative[124:136] = b"\xff" * 12
    negative[148:156] = b"%06o\0 " % (256 + sum(negative[:148]) + sum(negative[156:512]))
    pax = archive(("ü", {"data": b"x"}))
    broken = [
        b"",
        b"x" * 512,
        b"PK" * 600,
        bytes(negative),
        pax.replace(b"path=", b"path:"),
        pax.replace(b"11 ", b"99 "),
    ]
    broken += [pax.replace(b"11 ", b"-1 "), pax.replace(b"11 ", b"0  "), good[:100], good[:700]]
    for data in broken:
        with pytest.raises(UsageError):
            unpack(box, data)
    unpack(box, good[:1536])  # without the two blocks at the end, as some tools send it
    untar = box.files.tar_in("t")
    with pytest.raises(UsageError):
        untar.feed(b"x" * 512)
    with pytest.raises(UsageError):
        untar.feed(good)
    assert os.listdir(box.home / "t") == ["a"]


def test_damaged_streams_end_with_an_error_of_ours_or_well(box: LayerBox) -> None:
    make_tree(box)
    sent = tree(box)
    chance = random.Random(4)
    failed = 0
    for _ in range(150):
        data = bytearray(sent)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(1, 4)] = chance.randbytes(chance.randrange(0, 4))
        try:
            unpack(box, bytes(data), "/tmp/damaged", limit=1 << 20)
        except (FileProblem, UsageError):
            failed += 1
    assert failed > 10


def test_a_stream_given_up_leaves_nothing_half(box: LayerBox) -> None:
    data = archive(("a", {"data": b"x" * 5000}))
    untar = box.files.tar_in("t")
    untar.feed(data[:2000])
    untar.abort()
    assert os.listdir(box.home / "t") == []
    box.write("t/f", b"x" * 5000)
    box.files.tar_out("t").close()
    stream = box.files.tar_out("t")
    next(stream)
    stream.close()
    forgotten = [box.files.tar_out("t"), box.files.tar_out("t"), box.files.pieces(*box.files.read("t/f"))]
    next(forgotten[0])
    forgotten.clear()  # the fixture counts descriptors


@pytest.mark.parametrize("size", [0, 700, 3000])
def test_a_file_that_changes_while_it_is_sent_keeps_its_first_size(box: LayerBox, size: int) -> None:
    box.write("t/f", b"x" * 1000)
    stream = box.files.tar_out("t")
    sent = next(stream) + next(stream)  # the headers of the directory and of the file
    os.truncate(box.home / "t/f", size)
    sent += b"".join(stream)
    with tarfile.open(fileobj=io.BytesIO(sent)) as tar:
        content = tar.extractfile("f").read()  # type: ignore[union-attr]
        assert (len(content), len(tar.getmembers())) == (1000, 2)
    assert content == (b"x" * size + bytes(1000))[:1000]


def test_a_deep_tree_goes_out_and_in(swift_box: LayerBox) -> None:
    depth = 600
    path = "/".join(["d" * 20] * depth)
    swift_box.write(f"t/{path}/f", b"deep")
    unpack(swift_box, tree(swift_box), "/tmp/t", 1 << 20)
    assert swift_box.read(f"/tmp/t/{path}/f") == b"deep"
