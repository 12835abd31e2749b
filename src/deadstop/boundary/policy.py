# SPDX-License-Identifier: Apache-2.0
"""What a sandbox may see: the argument list for bubblewrap, and the few generated files of its /etc.

Nothing here starts anything. Every writable place is either bounded by a size or lies in the caller's own
staging folder: bubblewrap's own tmpfs for `/` and `/dev` have no limit, so both are remounted read-only.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["BASE_ENVIRONMENT", "ETC_NAMES", "Bind", "bwrap_arguments", "etc_content"]

HOME = "/home/agent"

BASE_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LOGNAME": "agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": "/tmp",
    "SHELL": "/bin/bash",
}
"""The whole environment of a command in a sandbox, before what the caller adds. Nothing of the host's."""

ETC_NAMES = ("passwd", "group", "hosts", "nsswitch.conf", "resolv.conf")
"""The files of /etc that `etc_content` makes."""

_RUN_BYTES = 1 << 20

# These say too much about the host or its kernel. Only those that exist can be covered.
_PROC_FILES = """
allocinfo cmdline config.gz interrupts iomem ioports kallsyms kcore key-users keys kmsg kpagecgroup kpagecount
kpageflags latency_stats modules sched_debug slabinfo sysrq-trigger timer_list vmallocinfo
"""
_PROC_FOLDERS = "acpi asound bus driver fs irq scsi sysvipc"

# What programs below /usr cannot start without. Never a whole folder that may hold secrets (/etc, /etc/ssl,
# /etc/pki), and nothing in which people keep tokens or passwords (/etc/apt, gitconfig, npmrc, pip.conf).
_ETC_PATTERNS = """
ld.so.cache ld.so.conf ld.so.conf.d alternatives localtime timezone mime.types protocols services rpc gai.conf
host.conf debian_version os-release inputrc bash.bashrc terminfo magic magic.mime
ssl/certs ssl/cert.pem ssl/openssl.cnf ca-certificates crypto-policies
pki/tls/certs pki/tls/cert.pem pki/tls/openssl.cnf pki/ca-trust/extracted
python3* perl perl5 java java-* fonts chromium.d
"""

_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_CLOSED_TARGETS = ("/proc", "/sys", "/dev")


@dataclass(frozen=True)
class Bind:
    """A folder or file shown inside: `source` is what bubblewrap opens, `target` the path in the sandbox."""

    source: str
    target: str
    writable: bool

    def __post_init__(self) -> None:
        """Refuse with ValueError a target that is no plain absolute path, is `/`, or lies in kernel files."""
        target = self.target
        plain = target.startswith("/") and os.path.normpath(target) == target and "\0" not in target
        if not plain or target == "/" or target.startswith("//"):
            raise ValueError(f"a bind needs a plain absolute target other than /, not {target!r}")
        if any(target == closed or target.startswith(closed + "/") for closed in _CLOSED_TARGETS):
            raise ValueError(f"nothing can be bound at {target!r}: it belongs to the kernel")


def bwrap_arguments(
    *,
    home: str,
    tmp: str,
    binds: Sequence[Bind],
    net: bool,
    etc_files: Mapping[str, int],
    filter_fds: Sequence[int],
    shm_bytes: int,
    uid: int = 1000,
    shm: str | None = None,
    run: str | None = None,
) -> list[str]:
    """Return bubblewrap's arguments for one sandbox, without the program and without the command.

    `home` and `tmp` are writable folders the caller has bounded. `etc_files` maps a name in /etc to a
    descriptor with its content, `filter_fds` are descriptors with seccomp programs; bubblewrap must inherit
    all of them. Binds are mounted in the order given, so a later one may lie inside an earlier one. With
    `net` the sandbox keeps the network namespace bubblewrap is started in. The command bubblewrap starts
    has an empty environment; bubblewrap itself needs one too, because /proc/1/environ shows it inside.

    `shm` (mode 1777) and `run` are folders for /dev/shm and /run, bounded by the caller like `home`. Without
    them both are mounts of their own, bounded in bytes but not in files: bubblewrap has no option for that.
    """
    arguments = _namespaces(net, uid)
    arguments += _system("/")
    arguments += _proc("/proc")
    arguments += _dev(shm_bytes, shm)
    arguments += _etc("/etc", etc_files)
    arguments += ["--bind", run, "/run"] if run else ["--perms", "0755", "--size", str(_RUN_BYTES), "--tmpfs", "/run"]
    arguments += ["--perms", "0755", "--dir", "/home", "--perms", "0755", "--dir", "/var"]
    arguments += ["--symlink", "../tmp", "/var/tmp", "--symlink", "../run", "/var/run"]
    arguments += ["--bind", tmp, "/tmp", "--bind", home, HOME]
    for bind in binds:
        arguments += ["--bind" if bind.writable else "--ro-bind", bind.source, bind.target]
    arguments += ["--remount-ro", "/", "--chdir", HOME]
    for fd in filter_fds:
        arguments += ["--add-seccomp-fd", str(fd)]
    return arguments


def etc_content(uid: int, net: bool) -> dict[str, bytes]:
    """Return the generated files of /etc by name: one user, one host name, the resolvers only with `net`."""
    return {
        "passwd": (
            f"root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nagent:x:{uid}:{uid}:agent:{HOME}:/bin/bash\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ).encode(),
        "group": f"root:x:0:\ntty:x:5:\nagent:x:{uid}:\nnogroup:x:65534:\n".encode(),
        "hosts": b"127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost sandbox\n",
        "nsswitch.conf": f"passwd: files\ngroup: files\nhosts: files{' dns' if net else ''}\n".encode(),
        "resolv.conf": _host_resolvers() if net else b"",
    }


def _host_resolvers() -> bytes:
    try:
        with open("/etc/resolv.conf", "rb") as file:
            return file.read(65536)
    except OSError:
        return b""


def _namespaces(net: bool, uid: int) -> list[str]:
    arguments = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    if not net:
        arguments.append("--unshare-net")
    arguments += ["--disable-userns", "--uid", str(uid), "--gid", str(uid), "--cap-drop", "ALL"]
    return [*arguments, "--new-session", "--clearenv", "--hostname", "sandbox"]


def _system(root: str) -> list[str]:
    """/usr, and beside it the links or, where /usr was never merged, the folders that `root` has."""
    arguments = ["--ro-bind", os.path.join(root, "usr"), "/usr"]
    for name in _SYSTEM_FOLDERS:
        path = os.path.join(root, name)
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), f"/{name}"]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, f"/{name}"]
    return arguments


def _proc(host_proc: str) -> list[str]:
    arguments = ["--proc", "/proc"]
    for name in _PROC_FILES.split():
        if os.path.exists(os.path.join(host_proc, name)):
            arguments += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for name in _PROC_FOLDERS.split():
        if os.path.isdir(os.path.join(host_proc, name)):
            arguments += ["--size", "4096", "--tmpfs", f"/proc/{name}", "--remount-ro", f"/proc/{name}"]
    return [*arguments, "--ro-bind", "/proc/sys", "/proc/sys"]


def _dev(shm_bytes: int, shm: str | None) -> list[str]:
    own = ["--perms", "1777", "--size", str(shm_bytes), "--tmpfs", "/dev/shm"]
    return ["--dev", "/dev", *(["--bind", shm, "/dev/shm"] if shm else own), "--remount-ro", "/dev"]


def _etc(host_etc: str, etc_files: Mapping[str, int]) -> list[str]:
    arguments = ["--perms", "0755", "--dir", "/etc"]
    for pattern in _ETC_PATTERNS.split():
        for path in sorted(glob.glob(os.path.join(host_etc, pattern))):
            arguments += ["--ro-bind-try", path, "/etc/" + os.path.relpath(path, host_etc)]
    for name, fd in sorted(etc_files.items()):
        arguments += ["--perms", "0644", "--ro-bind-data", str(fd), f"/etc/{name}"]
    return arguments
