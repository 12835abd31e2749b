# SPDX-License-Identifier: Apache-2.0
"""Files of a sandbox from outside: what they do, as root and as an ordinary user."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable

import pytest
from layerbox import LayerBox, kind_of

from deadstop.errors import FileProblem, UsageError
from deadstop.sandbox.files import Files, decode_path
from hosts import Host

# -- one file --------------------------------------------------------------------------------------------------------


def test_a_written_file_is_read_back_and_belongs_to_the_owner(box: LayerBox) -> None:
    box.write("a/b/c.txt", b"hello")
    assert box.read("/home/agent/a/b/c.txt") == box.read("~/a//./b/c.txt") == b"hello"
    for path in ("a", "a/b", "a/b/c.txt"):
        facts = (box.home / path).stat()
        assert (facts.st_uid, facts.st_gid) == (box.owner, box.owner)
        assert stat.S_IMODE(facts.st_mode) == (0o755 if path != "a/b/c.txt" else 0o644)


def test_a_file_of_32_mib_goes_through_in_pieces(box: LayerBox) -> None:
    data = os.urandom(1 << 20) * 32
    with box.files.writer("/tmp/big") as writer:
        for start in range(0, len(data), 1 << 20):
            writer.write(memoryview(data)[start : start + (1 << 20)])
    fd, size = box.files.read("/var/tmp/big")
    pieces = list(box.files.pieces(fd, size))
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= 1 << 20


def test_the_mode_is_the_old_one_or_as_asked_without_setuid(box: LayerBox) -> None:
    box.write("asked", b"", 0o6751)
    assert box.files.stat("asked")["mode"] == "0751"
    box.inside(lambda: os.close(os.open("old", os.O_CREAT, 0o600)))
    box.inside(lambda: os.chmod("old", 0o4711))
    box.write("old", b"new")
    assert box.files.stat("old")["mode"] == "0711"


def test_an_aborted_write_leaves_the_old_file_and_nothing_else(box: LayerBox) -> None:
    box.write("f", b"old")
    writer = box.files.writer("f")
    writer.write(b"new")
    assert os.listdir(box.home) == ["f"]
    writer.abort()
    with pytest.raises(TypeError), box.files.writer("f") as writer:
        writer.write("text")  # type: ignore[arg-type]
    assert box.read("f") == b"old"
    assert os.listdir(box.home) == ["f"]


def test_a_file_system_without_nameless_files_does_as_well(box: LayerBox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # EISDIR, as from a file system that does not know it
    writer = box.files.writer("f")
    assert os.listdir(box.home) != []
    writer.abort()
    assert os.listdir(box.home) == []
    box.write("f", b"one")
    box.write("f", b"two")
    assert (box.read("f"), os.listdir(box.home)) == (b"two", ["f"])


def test_more_than_the_limit_is_too_large(box: LayerBox) -> None:
    writer = box.files.writer("f", limit=10)
    writer.write(b"x" * 8)
    with pytest.raises(FileProblem, match="more than 10 bytes"), writer:
        writer.write(b"x" * 8)
    assert os.listdir(box.home) == []
    box.write("f", b"x" * 11)
    assert kind_of(box.files.read, "f", limit=10) == "too_large"
    os.truncate(box.home / "f", 1 << 40)  # sparse
    assert kind_of(box.files.read, "f", limit=32 << 20) == "too_large"
    pieces = box.files.pieces(*box.files.read("f"))
    assert next(pieces) == b"x" * 11 + bytes((1 << 20) - 11)
    pieces.close()


def test_a_hard_link_keeps_the_old_content(box: LayerBox) -> None:
    box.write("f", b"old")
    box.inside(lambda: os.link("f", "other"))
    box.write("f", b"new")
    assert (box.read("f"), box.read("other")) == (b"new", b"old")


def test_a_file_that_grows_is_read_to_its_first_size(box: LayerBox) -> None:
    box.write("log", b"x" * 1000)
    pieces = box.files.pieces(*box.files.read("log"))
    with open(box.home / "log", "ab") as log:
        log.write(b"y" * 5000)
    assert b"".join(pieces) == b"x" * 1000

    def grow() -> None:
        with open("log", "ab") as file:
            file.write(b"y" * 65536)
            if file.tell() > 8 << 20:
                file.truncate(1000)

    with box.attack(grow):
        for _ in range(50):
            fd, size = box.files.read("log")
            sizes: list[int] = []
            said = kind_of(lambda: sizes.extend(map(len, box.files.pieces(fd, size))))  # noqa: B023
            assert (sum(sizes) == size) if not said else (said == "changed")  # it was cut meanwhile


def test_a_file_that_shrinks_is_said_to_have_changed(box: LayerBox) -> None:
    box.write("f", b"x" * 1000)
    pieces = box.files.pieces(*box.files.read("f"))
    os.truncate(box.home / "f", 10)
    assert kind_of(list, pieces) == "changed"


def test_only_regular_files_are_read_and_nothing_is_waited_for(box: LayerBox) -> None:
    box.inside(lambda: os.mkfifo("fifo"))
    box.inside(lambda: socket.socket(socket.AF_UNIX).bind("socket"))
    for name in ("fifo", "socket"):
        assert kind_of(box.files.read, name) == "not_a_file"
        assert kind_of(box.files.tar_out, name) == "not_a_file"
    assert kind_of(box.files.read, "/tmp") == "is_a_directory"
    assert [entry["type"] for entry in box.files.listdir("~").entries] == ["fifo", "other"]
    if box.as_root:
        os.mknod(box.home / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        assert kind_of(box.files.read, "null") == "not_a_file"
    for name in ("fifo", "socket"):
        box.write(name, b"now a file")
        assert box.read(name) == b"now a file"


def test_a_lease_inside_does_not_hold_up_a_reader(box: LayerBox) -> None:
    box.write("leased", b"x")
    held, hold = os.pipe()

    def take() -> None:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fd = os.open("leased", os.O_RDWR)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        os.write(hold, b"h")
        signal.pause()

    with box.attack(take):
        assert os.read(held, 1) == b"h"
        assert kind_of(box.files.read, "leased") == "denied"
        box.write("leased", b"replaced")
        assert box.read("leased") == b"replaced"
    os.close(held)
    os.close(hold)


# -- paths -----------------------------------------------------------------------------------------------------------


def test_links_lead_where_they_lead_inside(box: LayerBox) -> None:
    box.write("/tmp/x", b"in tmp")
    box.write("d/f", b"in d")
    links = {
        "relative": "d/f",
        "absolute": "/home/agent/d/f",
        "other": "/tmp/x",
        "around": "../../var/tmp/../tmp/x",
        "folder": "/home/agent/d",
        "chain": "folder",
        "new": "/tmp/made/by/writing",
    }
    box.inside(lambda: [os.symlink(target, name) for name, target in links.items()])
    assert [box.read(name) for name in ("relative", "absolute", "folder/f", "chain/f", "chain/../d/f")] == [b"in d"] * 5
    assert [box.read(name) for name in ("other", "around", "/var/tmp/x", "../../tmp/x")] == [b"in tmp"] * 4
    box.write("other", b"written")
    assert (box.tmp / "x").read_bytes() == b"written"
    assert (box.home / "other").is_symlink()
    box.write("new", b"1")
    assert (box.tmp / "made/by/writing").read_bytes() == b"1"
    box.files.mkdir("chain/more/and/more")
    assert (box.home / "d/more/and/more").is_dir()
    assert box.files.stat("chain")["type"] == "directory"
    assert box.files.stat("chain", follow=False)["target"] == "folder"
    assert [entry["path"] for entry in box.files.listdir("chain").entries] == [
        "/home/agent/chain/f",
        "/home/agent/chain/more",
    ]


@pytest.mark.parametrize(
    "target",
    ["/etc/passwd", "/proc/self/environ", "/proc/1/root/etc/passwd", "/dev/zero", "../../outside/f", "../outside/f",
     "../../../../../../../../etc/passwd", "/home/other", "/root/x", "loop"],
)  # fmt: skip
def test_what_leads_outside_is_refused(box: LayerBox, target: str) -> None:
    box.inside(lambda: os.symlink(target, "loop"))
    for path in ("loop", "loop/x", target):
        for call in (box.files.read, box.files.writer, box.files.mkdir, box.files.tar_in, box.files.tar_out):
            assert kind_of(call, path) == "outside", (call, path)


def test_a_path_of_the_host_is_one_inside(box: LayerBox) -> None:
    box.inside(lambda: os.symlink(str(box.outside), "host"))
    assert kind_of(box.files.read, "host/f") == "not_found"
    box.write("host/f", b"inside")
    assert (box.tmp / box.outside.relative_to("/tmp") / "f").read_bytes() == b"inside"


def test_a_link_is_removed_and_moved_itself(box: LayerBox) -> None:
    box.write("d/f", b"")
    box.inside(lambda: [os.symlink("/home/agent/d", "one"), os.symlink("/etc/passwd", "two")])
    box.files.move("one", "/tmp/three")
    box.files.remove("/tmp/three", recursive=True)
    box.files.remove("two")
    assert (os.listdir(box.home), os.listdir(box.tmp), os.listdir(box.home / "d")) == (["d"], [], ["f"])


def test_names_of_any_bytes_come_back_as_they_went(box: LayerBox) -> None:
    names = [b"new\nline", b"\xff\xfe bytes", "grün".encode(), b"back\\xff", b" ", b"-rf", b"\x01\x7f", b"a" * 255]
    for name in names:
        with box.files.writer(b"/home/agent/" + name) as writer:
            writer.write(name)
    listing = box.files.listdir("~")
    json.dumps(listing.entries, ensure_ascii=False).encode()
    assert sorted(os.listdir(os.fsencode(box.home))) == sorted(names)
    paths = [decode_path(entry["encoded"]) if "encoded" in entry else entry["path"] for entry in listing.entries]
    assert sorted(box.read(path) for path in paths) == sorted(names)
    assert [entry["name"] for entry in listing.entries if "encoded" in entry] == ["\\xff\\xfe bytes"]
    assert box.read("/home/agent/\udcff\udcfe bytes") == b"\xff\xfe bytes"


def test_what_is_no_path(box: LayerBox) -> None:
    for path in ("", "a\0b", b"\0", "\ud800"):
        for call in (box.files.read, box.files.writer, box.files.stat, box.files.remove, box.files.listdir):
            with pytest.raises(UsageError):
                call(path)
    for path in ("a" * 256, "a/" * 40_000):
        for call in (box.files.read, box.files.mkdir):
            assert kind_of(call, path) == "too_large"


def test_what_is_wrong_is_named(box: LayerBox) -> None:
    box.write("f", b"")
    box.write("d/f", b"")
    files = box.files
    assert (
        kind_of(files.read, "none") == kind_of(files.remove, "none") == kind_of(files.move, "none", "x") == "not_found"
    )
    assert (
        kind_of(files.move, "f", "none/f")
        == kind_of(files.listdir, "none")
        == kind_of(files.stat, "none")
        == "not_found"
    )
    assert (
        kind_of(files.read, "f/x") == kind_of(files.writer, "f/x") == kind_of(files.mkdir, "f/x") == "not_a_directory"
    )
    assert kind_of(files.listdir, "f") == kind_of(files.tar_in, "f") == "not_a_directory"
    assert kind_of(files.writer, "d") == kind_of(files.writer, "/tmp") == kind_of(files.read, "d") == "is_a_directory"
    assert kind_of(files.remove, "d") == "not_empty"
    assert kind_of(files.mkdir, "f") == "exists"
    assert kind_of(files.move, "d", "d/below") == kind_of(files.remove, "/tmp", recursive=True) == "denied"
    assert kind_of(files.move, "f", "/usr/f") == kind_of(files.remove, "/usr/bin/env") == "outside"
    assert kind_of(files.move, "/usr/bin/env", "f") == kind_of(files.remove, "/", recursive=True) == "outside"
    files.mkdir("d")
    files.move("f", "g")
    files.move("d", "e")
    files.mkdir("h")
    files.move("e", "h")
    files.move("g", "/tmp/g")
    assert (os.listdir(box.home), os.listdir(box.tmp), os.listdir(box.home / "h")) == (["h"], ["g"], ["f"])


def test_a_path_longer_than_the_kernel_takes(box: LayerBox) -> None:
    path = "/".join(["d" * 100] * 200)
    box.write(f"{path}/f", b"deep")
    assert box.read(f"{path}/f") == b"deep"
    assert box.files.stat(path)["is_dir"]
    assert [entry["name"] for entry in box.files.listdir(path).entries] == ["f"]
    box.files.move(f"{path}/f", f"{path}/g")
    box.files.remove("d" * 100, recursive=True)
    assert os.listdir(box.home) == []


# -- the view --------------------------------------------------------------------------------------------------------


def test_the_top_of_the_view(box: LayerBox) -> None:
    names = {entry["name"]: entry["type"] for entry in box.files.listdir("/").entries}
    assert names.keys() >= {"home", "tmp", "var", "usr"}
    assert not names.keys() & {"etc", "proc", "dev", "root", "run"}
    assert [entry["path"] for entry in box.files.listdir("/home").entries] == ["/home/agent"]
    assert box.files.stat("/")["is_dir"]
    assert box.files.stat("/")["name"] == "/"
    assert box.files.stat("/var/tmp")["is_dir"]
    assert kind_of(box.files.listdir, "/etc") == kind_of(box.files.stat, "/proc") == "outside"


def test_system_folders_are_shown_read_only(box: LayerBox) -> None:
    assert box.read("/bin/sh")[:4] == b"\x7fELF"
    assert box.files.listdir("/usr", recursive=True, limit=50).truncated
    for call in (box.files.writer, box.files.mkdir, box.files.tar_in):
        assert kind_of(call, "/usr/local/deadstop-test") == "outside"
    assert kind_of(box.files.remove, "/usr/bin") == "outside"


def test_of_the_system_only_what_everybody_may_read(box: LayerBox) -> None:
    system = box.home / "system"  # any folder
    (system / "usr/closed").mkdir(parents=True)
    (system / "bin").mkdir()
    for name in ("usr/open", "usr/secret", "usr/closed/f", "bin/tool"):
        (system / name).write_bytes(b"x")
    os.symlink("/etc/passwd", system / "usr/evil")
    os.symlink("closed/f", system / "usr/around")
    (system / "usr/secret").chmod(0)
    (system / "usr/closed").chmod(0)
    files = Files.for_layer(str(box.top / "layer"), (box.owner, box.owner), system=str(system))
    for path in ("/usr/open", "/bin/tool"):
        os.close(files.read(path)[0])
    for path in ("/usr/secret", "/usr/closed/f", "/usr/around"):
        assert kind_of(files.read, path) == "denied"
    assert kind_of(files.listdir, "/usr/closed") == "denied"
    assert kind_of(files.read, "/usr/evil") == "outside"
    (system / "usr/closed").chmod(0o755)


# -- trees -----------------------------------------------------------------------------------------------------------


def make_deep(box: LayerBox, depth: int, name: str = "d") -> None:
    box.files.mkdir("deep")
    at = os.open(box.home / "deep", os.O_PATH)
    for _ in range(depth):
        os.mkdir(name, 0o755, dir_fd=at)
        below = os.open(name, os.O_PATH, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=at))
    os.close(at)


def test_a_tree_of_5000_levels_is_listed_and_removed(swift_box: LayerBox) -> None:
    make_deep(swift_box, 5000)
    listing = swift_box.files.listdir("deep", recursive=True)
    assert listing.truncated  # by the bytes of its paths
    assert len(listing.entries) > 1000
    assert swift_box.files.stat("deep/" + "d/" * 5000 + "bottom")["type"] == "file"
    assert sum(map(len, swift_box.files.tar_out("deep"))) > 5000 * 1024
    swift_box.files.remove("deep", recursive=True)
    assert os.listdir(swift_box.home) == []


def test_a_wide_directory(swift_box: LayerBox) -> None:
    swift_box.files.mkdir("wide")
    for number in range(3000):
        if number % 2:
            os.mkdir(swift_box.home / f"wide/{number}")
        else:
            os.close(os.open(swift_box.home / f"wide/{number}", os.O_CREAT, 0o644))
    assert (len(swift_box.files.listdir("wide").entries), swift_box.files.listdir("wide").truncated) == (3000, False)
    few = swift_box.files.listdir("wide", limit=100)
    assert (len(few.entries), few.truncated) == (100, True)
    swift_box.files.remove("wide", recursive=True)
    assert os.listdir(swift_box.home) == []


def test_directories_that_their_owner_closed_are_removed(box: LayerBox) -> None:
    box.write("a/b/c/f", b"")
    box.inside(lambda: [os.chmod(path, 0) for path in ("a/b/c", "a/b", "a")])
    box.files.remove("a", recursive=True)
    assert os.listdir(box.home) == []


SMALL_DISK = """
import os, subprocess, sys
top = sys.argv[1]
from deadstop.errors import FileProblem
from deadstop.sandbox.files import Files
for name in ("home", "tmp"):
    os.makedirs(f"{top}/{name}", exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=64", "small", f"{top}/{name}"], check=True)
files = Files.for_layer(top, (os.getuid(), os.getgid()))
def kind(act):
    try:
        act()
    except FileProblem as problem:
        return problem.kind
def fill():
    with files.writer("big") as writer:
        for _ in range(20):
            writer.write(bytes(100_000))
def many():
    for number in range(100):
        files.mkdir(f"many/{number}")
assert kind(fill) == "no_space", kind(fill)
assert files.listdir("~").entries == []
assert kind(many) == "no_space"
files.remove("many", recursive=True)
with files.writer("d/f", 0o750) as writer:
    writer.write(b"moved")
os.symlink("f", f"{top}/home/d/link")
files.move("d", "/tmp/e")
files.move("/tmp/e/f", "g")
assert files.stat("g")["mode"] == "0750"
assert [entry["name"] for entry in files.listdir("/tmp/e").entries] == ["link"]
assert [entry["name"] for entry in files.listdir("~").entries] == ["g"]
assert kind(lambda: files.move("g", "/tmp/e")) == "exists"
print("ok")
"""


def test_a_full_disk_and_a_move_between_two(namespace_host: Host) -> None:
    unshare = ["unshare", "-Urm" if namespace_host.uid else "-m"]
    words = [*unshare, namespace_host.python, "-B", "-c", SMALL_DISK, str(namespace_host.folder / "disks")]
    process = namespace_host.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=30)
    assert out == b"ok\n", err.decode()


def test_speed_is_that_of_the_disk_cache(box: LayerBox) -> None:
    """Generous bounds: a path that is walked by hand, or a file read by lines, is far beyond them."""
    box.write("a/b/small", b"x")

    def best(act: Callable[[], object], times: int) -> float:
        spent = []
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(times):
                act()
            spent.append((time.perf_counter() - begin) / times)
        return min(spent)

    assert best(lambda: box.files.stat("a/b/small"), 200) < 0.0005
    assert best(lambda: box.read("a/b/small"), 200) < 0.0005
