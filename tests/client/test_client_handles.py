# SPDX-License-Identifier: Apache-2.0
"""Background commands, sessions and files through the client."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import deadstop
from deadstop.client import trees
from deadstop.errors import FileProblem


def test_a_background_command_and_its_handle(sandbox: deadstop.Sandbox) -> None:
    process = sandbox.start("echo begun; sleep 60")
    assert process.wait(0.2) is None
    assert process.tail() == "begun\n"
    assert process.id in [each.id for each in sandbox.processes() if each.status == "running"]
    result = process.kill()
    assert result is not None and result.status is deadstop.Status.CANCELLED and result.receipt is not None
    assert process.kill() == result and process.status == "ended"
    assert list(process.output()) == [("both", "begun\n")]


def test_a_background_command_ends_at_its_limit(sandbox: deadstop.Sandbox) -> None:
    result = sandbox.start("sleep 60", timeout=0.3).wait(5)
    assert result is not None and result.status is deadstop.Status.TIMEOUT


def test_output_is_followed_until_the_end(sandbox: deadstop.Sandbox) -> None:
    process = sandbox.start("echo one; sleep 0.3; echo two >&2")
    assert list(process.output(follow=True)) == [("stdout", "one\n"), ("stderr", "two\n")]


def test_a_signal_reaches_it(sandbox: deadstop.Sandbox) -> None:
    process = sandbox.start("trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.05; done")
    next(process.output(follow=True))
    process.signal("SIGUSR1")
    result = process.wait(5)
    assert result is not None and result.exit_code == 7 and "caught" in result.stdout.tail
    with pytest.raises(deadstop.UsageError):
        process.signal("SIGNOTHING")


def test_input_is_written_while_it_runs(sandbox: deadstop.Sandbox) -> None:
    process = sandbox.start("while read line; do echo got $line; done", keep_stdin=True)
    process.write("one\n")
    assert next(process.output(follow=True)) == ("stdout", "got one\n")
    process.write("two\n")
    process.close_stdin()
    result = process.wait(5)
    assert result is not None and result.stdout.tail == "got one\ngot two\n"


def test_more_input_than_fits_into_a_request(sandbox: deadstop.Sandbox) -> None:
    assert sandbox.exec("wc -c", stdin=b"x" * 3_000_000).unwrap().strip() == "3000000"


def test_a_session_keeps_its_state(sandbox: deadstop.Sandbox) -> None:
    with sandbox.session() as python:
        assert python.run("x = 20").ok
        assert python.run("x + 1").value == "21"
        raised = python.run("1 / 0")
        assert not raised.ok and "ZeroDivisionError" in (raised.error or "")
        assert python.run("x").value == "20"


def test_a_session_that_hangs_is_ended_at_its_limit(sandbox: deadstop.Sandbox) -> None:
    with sandbox.session("bash") as shell:
        shell.run("x=1")
        begin = time.monotonic()
        late = shell.run("sleep 60", timeout=0.4)
        assert time.monotonic() - begin < 3
        assert late.session_ended and not late.ok
        assert late.result is not None and late.result.status is deadstop.Status.TIMEOUT


def test_a_session_draws_on_the_task_and_ends_with_the_block_around_it(sandbox: deadstop.Sandbox) -> None:
    with sandbox.session() as python:
        with deadstop.Task(steps=1):
            assert python.run("1").ok
            refused = python.run("open('/tmp/second', 'w')")
        assert refused.result is not None and refused.result.reason == "budget" and not refused.ok
        assert not sandbox.files.exists("/tmp/second")
        begin = time.monotonic()
        with deadstop.deadline(0.4):
            late = python.run("import time; time.sleep(60)", timeout=60)
        assert time.monotonic() - begin < 3
        assert late.result is not None and late.result.limit is not None and late.result.limit.which == "parent"


# -- files ---------------------------------------------------------------------------------------------------------


def test_files_are_written_read_listed_moved_and_removed(sandbox: deadstop.Sandbox) -> None:
    files = sandbox.files
    data = os.urandom(3_000_000)
    files.write("/home/agent/one/two/data", data, mode=0o700)
    assert files.read("/home/agent/one/two/data") == data
    assert files.stat("/home/agent/one/two/data")["size"] == len(data)
    assert [entry["name"] for entry in files.list("/home/agent/one")] == ["two"]
    files.mkdir("/home/agent/three")
    files.move("/home/agent/one/two/data", "/home/agent/three/moved")
    assert not files.exists("/home/agent/one/two/data")
    assert sandbox.exec("test -x three/moved", cwd="/home/agent").ok
    with pytest.raises(FileProblem) as full:
        files.remove("/home/agent/three")
    assert full.value.kind == "not_empty"
    files.remove("/home/agent/three", recursive=True)
    assert not files.exists("/home/agent/three")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/agent/none", "not_found"), ("/home/agent", "is_a_directory"), ("/etc/shadow", "outside"),
     ("/home/agent/../../etc/passwd", "outside")],
)  # fmt: skip
def test_a_path_that_cannot_be_had_is_named(sandbox: deadstop.Sandbox, path: str, kind: str) -> None:
    with pytest.raises(FileProblem) as caught:
        sandbox.files.read(path)
    assert caught.value.kind == kind and caught.value.path == path


def test_trees_go_in_and_out(sandbox: deadstop.Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "file").write_text("text")
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("deep/er/file")
    sandbox.files.upload(source, "/home/agent/tree")
    assert sandbox.exec("./run.sh; cat link", cwd="/home/agent/tree").unwrap() == "ran\ntext"
    sandbox.exec("ln -s /etc/passwd out; ln -s ../.. up; mkfifo pipe; chmod 4755 run.sh", cwd="/home/agent/tree")
    left_out = sandbox.files.download("/home/agent/tree", tmp_path / "copy")
    assert (tmp_path / "copy/deep/er/file").read_text() == "text"
    assert (tmp_path / "copy/link").read_text() == "text"
    assert os.stat(tmp_path / "copy/run.sh").st_mode & 0o7777 == 0o755 & ~trees.umask()
    assert sorted(os.listdir(tmp_path / "copy")) == ["deep", "link", "run.sh"]
    assert {os.path.basename(name.rstrip("/")) for name in left_out} >= {"out", "up"}


def test_a_file_goes_in_and_out(sandbox: deadstop.Sandbox, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\0" * 5_000_000)
    sandbox.files.upload(tmp_path / "in", "/tmp/in")
    sandbox.files.download("/tmp/in", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"\0" * 5_000_000
    with pytest.raises(FileProblem, match="max_bytes"):
        sandbox.files.download("/tmp/in", tmp_path / "less", max_bytes=1000)
    assert not (tmp_path / "less").exists()
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


Change = Callable[[tarfile.TarInfo], None]


def _archive(*members: tuple[str, Change]) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, change in members:
            member = tarfile.TarInfo(name)
            change(member)
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    made.seek(0)
    return made


def _file(member: tarfile.TarInfo) -> None:
    member.size = 3


def _link(target: str, kind: bytes = tarfile.SYMTYPE) -> Change:
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.linkname = kind, target

    return change


def _kind(kind: bytes) -> Change:
    def change(member: tarfile.TarInfo) -> None:
        member.type = kind

    return change


@pytest.mark.parametrize(
    "members",
    [
        [("../out", _file)],
        [("/out", _file)],
        [("a/../../out", _file)],
        [("link", _link("..")), ("link/out", _file)],
        [("link", _link("/")), ("link/out", _file)],
        [("here", _link(".")), ("here/out", _file)],
        [("a/up", _link("../..")), ("a/up/out", _file)],
        [("l1", _link(".")), ("l2", _link("l1/..")), ("l2/out", _file)],
        [("hard", _link("../out", tarfile.LNKTYPE))],
        [("fifo", _kind(tarfile.FIFOTYPE))],
        [("device", _kind(tarfile.CHRTYPE))],
        [("file", _file), ("file/out", _file)],
    ],
)
def test_nothing_of_a_hostile_archive_gets_out(members: list[tuple[str, Change]], tmp_path: Path) -> None:
    target = tmp_path / "target"
    left_out = trees.unpack(_archive(*members), str(target), 1000)
    assert left_out
    assert os.listdir(tmp_path) == ["target"]
    found = [os.path.join(folder, name) for folder, _, names in os.walk(target) for name in names]
    for path in found:
        assert os.path.realpath(path).startswith(str(target))


def test_a_link_that_was_there_is_not_written_through(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    (outside / "file").write_text("mine")
    (target / "folder").symlink_to(outside)
    (target / "file").symlink_to(outside / "file")
    assert trees.unpack(_archive(("folder/file", _file), ("file", _file)), str(target), 1000) == ["folder/file"]
    assert (outside / "file").read_text() == "mine" and (target / "file").read_text() == "xxx"


def test_an_archive_that_is_too_large_or_broken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="more than 2"):
        trees.unpack(_archive(("file", _file)), str(tmp_path / "a"), 2)
    with pytest.raises(FileProblem, match="broken"):
        trees.unpack(io.BytesIO(b"not a tar" * 200), str(tmp_path / "b"), 2)
