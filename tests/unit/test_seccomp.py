# SPDX-License-Identifier: Apache-2.0
"""The shipped filters: the same bytes as their source, and what they do to real children."""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib.machinery
import importlib.util
import json
import mmap
import os
import pwd
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deadstop.boundary import seccomp

sc = pytest.importorskip("pyseccomp", reason="the developer's binding for libseccomp names the calls here")

SCRIPT = Path(__file__).parents[2] / "scripts/build-seccomp"
MACHINE = os.uname().machine
libc = ctypes.CDLL(None, use_errno=True)

pytestmark = pytest.mark.skipif(MACHINE not in ("x86_64", "aarch64"), reason=f"no filter for {MACHINE}")


def builder() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("build_seccomp", str(SCRIPT))
    spec = importlib.util.spec_from_loader("build_seccomp", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_shipped_bytes_are_what_the_script_builds(machine: str) -> None:
    if not SCRIPT.exists():
        pytest.skip("the build script is not shipped with the tests")
    script = builder()
    if script.libseccomp_version() != script.LIBSECCOMP_VERSION:
        pytest.skip(f"built with libseccomp {script.LIBSECCOMP_VERSION}, here is {script.libseccomp_version()}")
    folder = Path(seccomp.__file__).parent / "filters"
    for name, content in script.build(machine).items():
        assert (folder / name).read_bytes() == content, f"run {SCRIPT.name}: {name} is stale"


def test_filters_are_two_programs_of_whole_instructions() -> None:
    programs = seccomp.filters()
    assert len(programs) == 2
    assert all(len(program) >= 8 and len(program) % 8 == 0 for program in programs)


def test_an_unknown_architecture_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*name[:4], "sparc64")))
    with pytest.raises(LookupError, match="sparc64"):
        seccomp.filters()


def test_a_program_the_kernel_does_not_take_raises() -> None:
    assert in_child(None, lambda: errno_of(lambda: seccomp.apply([b"\xff" * 16]))) == "EINVAL"


# Everything below happens in forked children: a filter cannot be taken off again.

KINDS = ["root", "user"]


def drop(kind: str) -> None:
    if kind == "root" or os.getuid() != 0:
        return
    try:
        user = pwd.getpwnam("dstest")
    except KeyError:
        user = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)


def in_child(kind: str | None, work: Callable[[], Any]) -> Any:
    """What `work` gives in a filtered child (None: unfiltered), or the name of the signal that ended it."""
    if kind == "root" and os.getuid() != 0:
        pytest.skip("not root")
    programs = seccomp.filters()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.closerange(3, writing)
            if kind is not None:
                drop(kind)
                seccomp.apply(programs)
            os.write(writing, json.dumps(work()).encode())
        except BaseException as error:
            os.write(writing, json.dumps(f"raised {error!r}").encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        answer = file.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return json.loads(answer)


def errno_of(work: Callable[[], object]) -> str:
    try:
        work()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def call(name: str, *arguments: Any) -> str:
    ctypes.set_errno(0)
    number = sc.resolve_syscall(sc.Arch.NATIVE, name)
    words = [ctypes.c_ulong(a & (1 << 64) - 1) if isinstance(a, int) else a for a in arguments]
    return "done" if libc.syscall(ctypes.c_long(number), *words) >= 0 else errno.errorcode[ctypes.get_errno()]


NEWUSER, NEWNS, CLONE_FS = 0x10000000, 0x20000, 0x200
TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS = 0x5412, 0x541C, 0x5423, 0x541D
# Arguments that do no harm: asked as root without a filter, the kernel refuses them for another reason.
REFUSED = [
    ("mount", (0, 0, 0, 0, 0), "EPERM"),
    ("umount2", (0, 0), "EPERM"),
    ("pivot_root", (0, 0), "EPERM"),
    ("chroot", (0,), "EPERM"),
    ("fsopen", (0, 0), "EPERM"),
    ("move_mount", (-1, 0, -1, 0, -1), "EPERM"),
    ("open_tree", (-1, 0, -1), "EPERM"),
    ("mount_setattr", (-1, 0, -1, 0, 0), "EPERM"),
    ("unshare", (0x1,), "EPERM"),
    ("setns", (-1, 0), "EPERM"),
    ("clone", (NEWUSER | CLONE_FS, 0, 0, 0, 0), "EPERM"),
    ("clone", (NEWNS | CLONE_FS, 0, 0, 0, 0), "EPERM"),
    ("clone3", (0, 0), "ENOSYS"),
    ("bpf", (9999, 0, 0), "EPERM"),
    ("perf_event_open", (0, 0, -1, -1, 0), "EPERM"),
    ("userfaultfd", (-1,), "EPERM"),
    ("io_uring_setup", (0, 0), "EPERM"),
    ("add_key", (0, 0, 0, 0, 0), "EPERM"),
    ("request_key", (0, 0, 0, 0), "EPERM"),
    ("keyctl", (9999, 0, 0, 0, 0), "EPERM"),
    ("ptrace", (9999, 0, 0, 0), "EPERM"),
    ("process_vm_readv", (0, 0, 0, 0, 0, 1), "EPERM"),
    ("process_vm_writev", (0, 0, 0, 0, 0, 1), "EPERM"),
    ("pidfd_getfd", (-1, 0, 0), "EPERM"),
    ("open_by_handle_at", (-1, 0, 0), "EPERM"),
    ("name_to_handle_at", (-1, 0, 0, 0, -1), "EPERM"),
    ("fanotify_init", (-1, -1), "EPERM"),
    ("syslog", (9999, 0, 0), "EPERM"),
    ("reboot", (0, 0, 0, 0), "EPERM"),
    ("personality", (0x0040000,), "ENOSYS"),
    ("openat2", (-1, 0, 0, 0), "ENOSYS"),
    ("fchmodat2", (-1, 0, 0, -1), "ENOSYS"),
    ("socket", (40, 1, 0), "EAFNOSUPPORT"),
    ("socket", (17, 3, 0), "EAFNOSUPPORT"),
    ("socket", (16, 3, 15), "EPROTONOSUPPORT"),
    ("ioctl", (0, TIOCSTI, 0), "EPERM"),
    ("ioctl", (0, TIOCSTI | 1 << 32, 0), "EPERM"),
    ("ioctl", (0, TIOCLINUX, 0), "EPERM"),
    ("ioctl", (0, TIOCSETD | 1 << 63, 0), "EPERM"),
    ("ioctl", (0, TIOCCONS, 0), "EPERM"),
]


def nulled(name: str, arguments: tuple[int, ...]) -> str:
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)  # a terminal call on /dev/null is ENOTTY unless the filter answers
    return call(name, *arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "arguments", "expected"), REFUSED)
def test_a_refused_call(kind: str, name: str, arguments: tuple[int, ...], expected: str) -> None:
    assert in_child(kind, lambda: nulled(name, arguments)) == expected


@pytest.mark.parametrize(("name", "arguments", "expected"), REFUSED)
def test_it_is_the_filter_that_refuses(name: str, arguments: tuple[int, ...], expected: str) -> None:
    if os.getuid() != 0:
        pytest.skip("an ordinary user is refused much of this anyway")
    without = in_child(None, lambda: nulled(name, arguments))
    if without == "ENOSYS" or (name == "socket" and without == "EAFNOSUPPORT"):
        pytest.skip("this kernel lacks the call")
    assert without != expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_nobody_knows_does_not_exist(kind: str) -> None:
    assert in_child(kind, lambda: errno_or_done(700)) == "ENOSYS"


def errno_or_done(number: int) -> str:
    ctypes.set_errno(0)
    return "done" if libc.syscall(ctypes.c_long(number)) >= 0 else errno.errorcode[ctypes.get_errno()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.skipif(MACHINE != "x86_64", reason="x86 has more than one system call table")
def test_foreign_tables_kill(kind: str) -> None:
    def compatible() -> int:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
        return int(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())

    assert in_child(kind, compatible) == "SIGSYS"
    assert in_child(kind, lambda: errno_or_done(0x40000000 | 39)) == "SIGSYS"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bit", [0o4000, 0o2000, 0o6000])
def test_set_id_bits_cannot_be_given(kind: str, bit: int) -> None:
    folder = Path("/tmp") / f"deadstop-set-id-{os.getpid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o1777)
    try:
        answers = in_child(kind, lambda: give(str(folder), bit))
    finally:
        shutil.rmtree(folder)
    fixed = ["made", "chmod", "fchmod", "fchmodat", "open", "creating", "tmpfile", "mkdir", "mknod"]
    assert answers == {name: "done" if name == "made" else "EPERM" for name in fixed}


def give(folder: str, bit: int) -> dict[str, str]:
    path, mode = f"{folder}/made".encode(), 0o755 | bit
    answers = {"made": errno_of(lambda: os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o1755)))}
    fd = os.open(path, os.O_RDONLY)
    answers["chmod"] = errno_of(lambda: os.chmod(path, mode))
    answers["fchmod"] = errno_of(lambda: os.fchmod(fd, mode))
    answers["fchmodat"] = call("fchmodat", -100, path, mode)
    answers["open"] = errno_of(lambda: os.open(f"{folder}/a", os.O_CREAT | os.O_WRONLY, mode))
    answers["creating"] = call("openat", -100, path, os.O_CREAT | os.O_RDONLY | 1 << 40, mode | 1 << 33)
    answers["tmpfile"] = errno_of(lambda: os.open(folder, os.O_TMPFILE | os.O_WRONLY, mode))
    answers["mkdir"] = errno_of(lambda: os.mkdir(f"{folder}/b", mode))
    answers["mknod"] = errno_of(lambda: os.mknod(f"{folder}/c", 0o100000 | mode))
    assert os.stat(path).st_mode & 0o6000 == 0
    return answers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.skipif(MACHINE != "x86_64", reason="these calls have no twin on newer architectures")
def test_the_old_calls_cannot_give_set_id_bits_either(kind: str) -> None:
    path = f"/tmp/deadstop-old-{os.getpid()}".encode()
    calls = [("open", (path, 0o101, 0o4755)), ("creat", (path, 0o2755)), ("chmod", (b"/tmp", 0o4755))]
    for name, arguments in calls:
        assert in_child(kind, functools.partial(call, name, *arguments)) == "EPERM", name


@pytest.mark.parametrize("kind", KINDS)
def test_a_mode_that_open_does_not_read_is_no_reason(kind: str) -> None:
    assert in_child(kind, lambda: call("openat", -100, b"/etc/passwd", os.O_RDONLY, 0o6755)) == "done"


@pytest.mark.parametrize("kind", KINDS)
def test_a_set_id_bit_can_be_taken_away(kind: str) -> None:
    path = f"/tmp/deadstop-taken-{os.getpid()}-{kind}"

    def work() -> int:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o700))
        os.chmod(path, 0o1644)
        return os.stat(path).st_mode & 0o7777

    try:
        assert in_child(kind, work) == 0o1644
    finally:
        os.unlink(path)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_forks_still_work(kind: str) -> None:
    def work() -> list[object]:
        seen: list[object] = []
        thread = threading.Thread(target=seen.append, args=("thread",))
        thread.start()
        thread.join(10)
        child = os.fork()
        if child == 0:
            os._exit(call("unshare", NEWUSER) == "EPERM")
        seen.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return seen

    assert in_child(kind, work) == ["thread", 1]


def interpreters() -> list[list[str]]:
    ways = [("python3", "-c", "print(6*7)"), ("node", "-e", "console.log(6*7)")]
    return [[f"/usr/bin/{name}", *rest] for name, *rest in ways if os.access(f"/usr/bin/{name}", os.X_OK)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", interpreters(), ids=lambda command: Path(command[0]).name)
def test_programs_start_and_keep_the_filter(kind: str, command: list[str]) -> None:
    answer = in_child(kind, lambda: subprocess.run(command, capture_output=True, text=True, timeout=30).stdout)
    assert answer == "42\n"
    show = ["cat", "/proc/self/status"]
    status = in_child(kind, lambda: subprocess.run(show, capture_output=True, text=True, timeout=30).stdout)
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    assert int(fields.get("Seccomp_filters", 2)) >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_setuid_program_gives_nothing(kind: str) -> None:
    found = next((p for p in ("/usr/bin/su", "/usr/bin/passwd", "/usr/bin/mount") if os.access(p, os.X_OK)), None)
    if found is None or os.getuid() != 0:
        pytest.skip("no setuid program, or not root")
    assert in_child(kind, lambda: status_field("NoNewPrivs")) == "1"
    assert in_child("user", lambda: call("setuid", 0)) == "EPERM"


def status_field(name: str) -> str:
    with open("/proc/self/status") as file:
        return next(line.split(":\t")[1].strip() for line in file if line.startswith(name + ":"))
