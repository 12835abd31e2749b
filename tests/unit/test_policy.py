# SPDX-License-Identifier: Apache-2.0
"""The argument list for bubblewrap: read as text, then given to the real bubblewrap."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

from deadstop.boundary.policy import BASE_ENVIRONMENT, ETC_NAMES, Bind, _system, bwrap_arguments, etc_content

TAKES = {
    "--ro-bind": 2, "--ro-bind-try": 2, "--bind": 2, "--ro-bind-data": 2, "--symlink": 2, "--tmpfs": 1,
    "--proc": 1, "--dev": 1, "--dir": 1, "--remount-ro": 1, "--size": 1, "--perms": 1, "--hostname": 1,
    "--uid": 1, "--gid": 1, "--cap-drop": 1, "--chdir": 1, "--add-seccomp-fd": 1,
}  # fmt: skip


MOUNTING = ("--bind", "--ro-bind", "--tmpfs", "--symlink", "--ro-bind-data")


def arguments(**changes: object) -> list[str]:
    given: dict[str, object] = {
        "home": "/mnt/home", "tmp": "/mnt/tmp", "binds": [], "net": False,
        "etc_files": {"passwd": 7, "hosts": 8}, "filter_fds": [5, 6], "shm_bytes": 1 << 20,
    }  # fmt: skip
    return bwrap_arguments(**{**given, **changes})  # type: ignore[arg-type]


def operations(flat: list[str]) -> list[tuple[str, ...]]:
    result, position = [], 0
    while position < len(flat):
        width = 1 + TAKES.get(flat[position], 0)
        result.append(tuple(flat[position : position + width]))
        position += width
    return result


def mounts(flat: list[str]) -> list[tuple[str, ...]]:
    return [o for o in operations(flat) if o[0] in ("--bind", "--ro-bind", "--ro-bind-try")]


def test_every_word_is_an_option_or_an_operand() -> None:
    assert all(operation[0].startswith("--") for operation in operations(arguments()))


def test_every_tmpfs_has_a_size() -> None:
    done = operations(arguments())
    for before, operation in itertools.pairwise(done):
        if operation[0] == "--tmpfs":
            assert before[0] == "--size", operation
            assert int(before[1]) > 0, operation


def test_what_bubblewrap_leaves_unbounded_is_remounted_read_only_after_the_last_mount() -> None:
    done = operations(arguments(binds=[Bind("/mnt/b0", "/project", True)]))
    last_mount = max(n for n, o in enumerate(done) if o[0] in MOUNTING)
    assert done.index(("--remount-ro", "/")) > last_mount
    assert done.index(("--remount-ro", "/dev")) > done.index(("--tmpfs", "/dev/shm"))


def test_no_host_root_home_run_var_or_whole_etc() -> None:
    sources = {operation[1] for operation in mounts(arguments())}
    closed = {"/", "/etc", "/home", "/root", "/run", "/var", "/sys", "/dev", "/proc"}
    secret = (
        "shadow",
        "gshadow",
        "sudoers",
        "passwd",
        "hosts",
        "ssh",
        "apt",
        "ssl",
        "ssl/private",
        "machine-id",
    )
    assert not sources & (closed | {f"/etc/{name}" for name in secret})
    assert not [
        source for source in sources if source.startswith(("/home/", "/root/", "/run/", "/var/", "/sys/"))
    ]


def test_only_home_tmp_and_what_was_asked_for_is_writable() -> None:
    binds = [Bind("/mnt/b0", "/project", True), Bind("/mnt/b1", "/data", False)]
    writable = [o[1:] for o in operations(arguments(binds=binds)) if o[0] == "--bind"]
    assert writable == [("/mnt/tmp", "/tmp"), ("/mnt/home", "/home/agent"), ("/mnt/b0", "/project")]


def test_binds_keep_their_order() -> None:
    binds = [Bind("/mnt/b0", "/a", False), Bind("/mnt/b1", "/a/b", True), Bind("/mnt/b2", "/a/b/c", False)]
    found = [o for o in mounts(arguments(binds=binds)) if o[1].startswith("/mnt/b")]
    assert [o[2] for o in found] == ["/a", "/a/b", "/a/b/c"]
    assert [o[0] for o in found] == ["--ro-bind", "--bind", "--ro-bind"]


def test_network_is_closed_unless_asked() -> None:
    assert "--unshare-net" in arguments()
    assert "--unshare-net" not in arguments(net=True)


BAD_TARGETS = ["/", "relative", "/a/../b", "/a/", "//a", "/a\0b", "", "/proc/sys", "/dev", "/sys/x"]


@pytest.mark.parametrize("target", BAD_TARGETS)
def test_bind_refuses_targets_that_open_the_sandbox(target: str) -> None:
    with pytest.raises(ValueError):
        Bind("/mnt/b0", target, False)


def test_a_host_without_merged_usr_gets_binds_and_a_merged_one_links(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").symlink_to("usr/lib")
    done = operations(_system(str(tmp_path)))
    assert ("--ro-bind", f"{tmp_path}/bin", "/bin") in done
    assert ("--symlink", "usr/lib", "/lib") in done
    assert not any(o[-1] == "/sbin" for o in done)


def test_generated_etc_has_one_user_and_resolvers_only_with_net() -> None:
    closed, opened = etc_content(1000, False), etc_content(4242, True)
    assert set(closed) == set(ETC_NAMES)
    assert closed["resolv.conf"] == b""
    assert b"dns" not in closed["nsswitch.conf"]
    assert opened["resolv.conf"] == Path("/etc/resolv.conf").read_bytes()
    assert b"dns" in opened["nsswitch.conf"]
    assert b"agent:x:4242:4242:" in opened["passwd"]
    assert closed["passwd"].count(b"\n") == 3


# The real bubblewrap. Root drops to an unused uid first, an ordinary user stages inside a user namespace.

STAGE = """
set -e
mount -t tmpfs -o size=16m,nr_inodes=2k,mode=0755 staging /mnt
mkdir -m 0755 /mnt/home /mnt/b0 /mnt/run
mkdir -m 1777 /mnt/tmp /mnt/shm
echo shown >/mnt/b0/file
if [ "$1" != 0 ]; then chown -R "$1:$1" /mnt; fi
cd /
shift
exec "$@"
"""
ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="starts as root to play both kinds of user")
KINDS = ["root", "user"]


def other_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("dstest")
    except KeyError:
        return pwd.getpwnam("nobody")


def starters(kind: str) -> list[str]:
    if kind == "root":
        inner = ["setpriv", "--reuid", "61001", "--regid", "61001", "--clear-groups", "--no-new-privs"]
        inner += ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
        return ["unshare", "--mount", "sh", "-c", STAGE, "stage", "61001", *inner]
    user = other_user()
    outer = ["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
    return [*outer, "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", STAGE, "stage", "0"]


def content_fd(content: bytes) -> int:
    fd = os.memfd_create("content", 0)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def run_inside(kind: str, *command: str, **changes: object) -> subprocess.CompletedProcess[str]:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    etc = {name: content_fd(content) for name, content in etc_content(1000, False).items()}
    binds = [Bind("/mnt/b0", "/deep/down/project", True)]
    flat = arguments(etc_files=etc, filter_fds=[], binds=binds, **changes)
    args = content_fd("\0".join(flat).encode() + b"\0")
    start = [*starters(kind), "bwrap", "--die-with-parent", "--args", str(args), "--", *command]
    try:
        inherited, path = [args, *etc.values()], {"PATH": os.environ["PATH"]}
        return subprocess.run(start, capture_output=True, text=True, timeout=30, pass_fds=inherited, env=path)
    finally:
        for fd in (args, *etc.values()):
            os.close(fd)


def python_inside(kind: str, code: str, **changes: object) -> str:
    done = run_inside(kind, "/usr/bin/python3", "-I", "-c", code, **changes)
    assert done.returncode == 0, done.stderr
    return done.stdout


FILL = """
import errno, os
def fill(folder):
    path, written = os.path.join(folder, "fill"), 0
    try:
        fd = os.open(path, os.O_CREAT | os.O_WRONLY)
        while written < 64 << 20: written += os.write(fd, bytes(1 << 20))
    except OSError as error: stopped = errno.errorcode[error.errno]
    else: stopped = "never"
    if os.path.exists(path): os.close(fd), os.unlink(path)
    print(folder, stopped, written >> 20)
for folder in %r: fill(folder)
"""


@ROOT_ONLY
@pytest.mark.parametrize("kind", KINDS)
def test_system_folders_cannot_be_written(kind: str) -> None:
    closed = ["/", "/dev", "/etc", "/usr", "/home", "/var", "/deep", "/deep/down", "/proc", "/proc/sys"]
    said = python_inside(kind, FILL % (closed,)).splitlines()
    assert len(said) == len(closed)
    for line in said:
        assert line.split()[1:] in (["EROFS", "0"], ["EACCES", "0"], ["ENOENT", "0"], ["EPERM", "0"]), line


@ROOT_ONLY
@pytest.mark.parametrize("kind", KINDS)
def test_writable_folders_end_at_their_size(kind: str) -> None:
    open_folders = ["/dev/shm", "/run", "/tmp", "/var/tmp", "/home/agent", "/deep/down/project"]
    said = [line.split() for line in python_inside(kind, FILL % (open_folders,)).splitlines()]
    assert [line[1] for line in said] == ["ENOSPC"] * 6
    assert [int(line[2]) for line in said[:2]] == [1, 1]
    assert all(8 <= int(line[2]) <= 16 for line in said[2:])


@ROOT_ONLY
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("folder", ["/dev/shm", "/run", "/tmp"])
def test_a_staged_folder_is_bounded_in_files_too(kind: str, folder: str) -> None:
    code = f"""
import errno, os
try:
    for made in range(5000): os.close(os.open("{folder}/%d" % made, os.O_CREAT | os.O_WRONLY))
except OSError as error: print(made, errno.errorcode[error.errno])
"""
    made, why = python_inside(kind, code, shm="/mnt/shm", run="/mnt/run").split()
    assert (why, 1000 < int(made) <= 2048) == ("ENOSPC", True)


@ROOT_ONLY
@pytest.mark.parametrize("kind", KINDS)
def test_no_writable_mount_is_without_a_size(kind: str) -> None:
    code = """
for line in open("/proc/self/mountinfo"):
    fields = line.split(); dash = fields.index("-")
    print(fields[4], fields[5].split(",")[0], fields[dash + 1], fields[dash + 3])
"""
    for line in python_inside(kind, code).splitlines():
        target, mode, kind_of_fs, options = line.split(" ", 3)
        if mode == "rw" and kind_of_fs == "tmpfs" and not target.startswith("/dev/"):
            assert "size=" in options, line
        if mode == "rw":
            assert kind_of_fs in ("tmpfs", "proc", "devpts", "devtmpfs") or target.startswith("/dev/"), line


@ROOT_ONLY
@pytest.mark.parametrize("kind", KINDS)
def test_the_identity_inside(kind: str) -> None:
    code = """
import os, pwd, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
groups = os.getgroups() in ([], [65534], [1000])
print(os.getuid(), os.getgid(), groups, socket.gethostname(), pwd.getpwuid(os.getuid()).pw_name)
capabilities = [int(status["Cap" + kind], 16) for kind in ("Eff", "Prm", "Bnd", "Amb", "Inh")]
print(*capabilities, status["NoNewPrivs"].strip())
print(sorted(os.environ), os.getcwd(), os.stat("/etc/passwd").st_mode & 0o777)
print(open("/deep/down/project/file").read().strip(), *os.listdir("/"))
"""
    lines = python_inside(kind, code).splitlines()
    assert lines[0] == "1000 1000 True sandbox agent"
    assert lines[1] == "0 0 0 0 0 1"
    assert lines[2] == "['LC_CTYPE', 'PWD'] /home/agent 420"
    assert lines[3].startswith("shown ")
    expected = "bin sbin lib lib32 lib64 libx32 usr etc dev proc run var tmp home deep"
    assert set(lines[3].removeprefix("shown ").split()) <= set(expected.split())


@ROOT_ONLY
@pytest.mark.parametrize("kind", KINDS)
def test_masked_kernel_files_tell_nothing(kind: str) -> None:
    code = """
import os
for name in ("kallsyms", "cmdline", "config.gz", "keys", "kcore", "kmsg", "iomem", "timer_list"):
    path = "/proc/" + name
    try: content = open(path, "rb").read(64)
    except (PermissionError, FileNotFoundError): content = b""
    assert content == b"", name
assert not os.path.exists("/sys/kernel")
"""
    python_inside(kind, code)


def test_the_environment_names_only_the_sandbox() -> None:
    assert BASE_ENVIRONMENT["HOME"] == "/home/agent"
    assert not any("/root" in value for value in BASE_ENVIRONMENT.values())
