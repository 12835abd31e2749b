# SPDX-License-Identifier: Apache-2.0
"""What a sandbox may see: the argument list for bubblewrap.

Nothing here starts anything. Every writable place is either bounded by a size or lies in the caller's own
staging folder: bubblewrap's own tmpfs for `/` and `/dev` have no limit, so both are remounted read-only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BASE_ENVIRONMENT", "Bind", "Rooms", "bwrap_arguments"]

HOME = "/home/agent"

BASE_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME,
    "DEADSTOP_SANDBOX": "1",  # a served one's id takes its place
    "USER": "agent",
    "LOGNAME": "agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": "/tmp",
    "SHELL": "/bin/bash",
}
"""The whole environment of a command in a sandbox, before what the caller adds. Nothing of the host's."""

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


@dataclass(frozen=True)
class Rooms:
    """Folders the caller made for one sandbox. Those that are writable inside (all but `etc`) the caller bounds.

    `tmp` and `shm` have mode 1777. `etc` is what `etc.build` makes.
    """

    home: str
    tmp: str
    shm: str
    run: str
    etc: str


def bwrap_arguments(
    *, rooms: Rooms, binds: Sequence[Bind], net: bool, filter_fds: Sequence[int], uid: int = 1000, usr: str = "/usr"
) -> list[str]:
    """Return bubblewrap's arguments for one sandbox, without the program and without the command.

    `filter_fds` are descriptors with seccomp programs, which bubblewrap must inherit. Binds are mounted in the order
    given, so a later one may lie inside an earlier one. With `net` the sandbox keeps the caller's network namespace.
    The command bubblewrap starts has an empty environment; bubblewrap itself needs one too: /proc/1/environ shows it.
    """
    arguments = _namespaces(net, uid)
    arguments += _system("/", usr)
    arguments += ["--proc", "/proc"]  # for bubblewrap; the payload gets one of its own
    arguments += ["--dev", "/dev", "--bind", rooms.shm, "/dev/shm", "--remount-ro", "/dev"]
    arguments += ["--ro-bind", rooms.etc, "/etc", "--bind", rooms.run, "/run"]
    arguments += ["--perms", "0755", "--dir", "/home", "--perms", "0755", "--dir", "/var"]
    arguments += ["--symlink", "../tmp", "/var/tmp", "--symlink", "../run", "/var/run"]
    arguments += ["--bind", rooms.tmp, "/tmp", "--bind", rooms.home, HOME]
    for bind in binds:
        arguments += ["--bind" if bind.writable else "--ro-bind", bind.source, bind.target]
    arguments += ["--remount-ro", "/", "--chdir", HOME]
    for fd in filter_fds:
        arguments += ["--add-seccomp-fd", str(fd)]
    return arguments


def _namespaces(net: bool, uid: int) -> list[str]:
    arguments = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    if not net:
        arguments.append("--unshare-net")
    arguments += ["--disable-userns", "--uid", str(uid), "--gid", str(uid), "--cap-drop", "ALL"]
    return [*arguments, "--new-session", "--clearenv", "--hostname", "sandbox"]


def _system(root: str, usr: str | None = None) -> list[str]:
    """/usr, and beside it the links or, where /usr was never merged, the folders that `root` has.

    `usr` is shown in the place of the one that `root` has.
    """
    arguments = ["--ro-bind", usr or os.path.join(root, "usr"), "/usr"]
    for name in _SYSTEM_FOLDERS:
        path = os.path.join(root, name)
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), f"/{name}"]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, f"/{name}"]
    return arguments
