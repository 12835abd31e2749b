# SPDX-License-Identifier: Apache-2.0
"""The last steps of a forked child before the payload's own program runs. Nothing here returns."""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import resource
import signal
import termios
from collections.abc import Callable
from typing import Any, NoReturn

from . import syscalls

# What travels from the supervisor to init: plain data, written by marshal, between two forks of one process.
Request = dict[str, Any]


def request(
    argv: list[str],
    env: dict[str, str],
    *,
    cwd: str | None,
    umask: int,
    nice: int,
    oom_score_adj: int,
    open_files: tuple[int, int],
    rlimits: list[tuple[int, int]],
    affinity: list[int] | None,
    tty: bool,
    joins: bool = False,
) -> Request:
    """One command as plain data. `cwd` is a path inside; None means the folder descriptor sent along.

    With `joins` the last descriptor is the list of members of a cgroup that the command is to be in.
    """
    return {
        "argv": [os.fsencode(word) for word in argv],
        "env": {os.fsencode(key): os.fsencode(value) for key, value in env.items()},
        "cwd": None if cwd is None else os.fsencode(cwd),
        "umask": umask, "nice": nice, "oom_score_adj": oom_score_adj, "rlimits": rlimits, "affinity": affinity,
        "open_files": open_files, "tty": tty, "joins": joins,
    }  # fmt: skip


def _nothing() -> None:
    pass


def start(
    spec: int,
    stdio: list[int],
    error_fd: int,
    *,
    enter: Callable[[], None] = _nothing,
) -> NoReturn:
    """Become the command that `spec` holds. `stdio` is stdin, stdout, stderr and, if it names no path, its folder.

    `enter` is the first step. What fails before the new program runs is reported through `error_fd`
    as marshal data (errno, step).
    """
    step = "start"
    try:
        command: Request = marshal.loads(os.pread(spec, os.fstat(spec).st_size, 0))
        for name, action in [("enter", enter), *_steps(command, stdio, error_fd)]:
            step = name
            action()
        step = "exec"
        _execute(command["argv"], command["env"])
    except OSError as problem:
        os.write(error_fd, marshal.dumps((problem.errno or 0, step)))
    except BaseException as problem:
        os.write(error_fd, marshal.dumps((errno.EINVAL, f"{step}: {problem!r}")))
    finally:
        os._exit(127)


def _steps(command: Request, stdio: list[int], error_fd: int) -> list[tuple[str, Callable[[], object]]]:
    steps: list[tuple[str, Callable[[], object]]] = [
        ("cgroup", lambda: os.write(stdio[-1], b"0") if command["joins"] else None),
        ("setsid", os.setsid),
        ("signals", reset_signals),
        ("cwd", lambda: os.fchdir(stdio[3]) if command["cwd"] is None else os.chdir(command["cwd"])),
        ("stdio", lambda: _place(stdio[:3], error_fd)),
        ("umask", lambda: os.umask(command["umask"])),
        ("priority", lambda: restore_priority(command["nice"], command["oom_score_adj"])),
        ("rlimits", lambda: limit(command)),
    ]
    if command["tty"]:
        steps.insert(5, ("terminal", lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)))
    return steps


def reset_signals() -> None:
    """Default actions and an empty mask: Python ignores SIGPIPE and SIGXFSZ, and ignored signals survive an exec."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _place(stdio: list[int], error_fd: int) -> None:
    for target, fd in enumerate(stdio):
        os.dup2(fd, target, inheritable=True)
    syscalls.close_all_except({0, 1, 2, error_fd})


def restore_priority(nice: int, oom_score_adj: int) -> None:
    """The supervisor runs with a better priority than its caller; what it starts must not."""
    if os.getpriority(os.PRIO_PROCESS, 0) < nice:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    set_oom_score_adj(oom_score_adj)


def set_oom_score_adj(value: int) -> None:
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            if int(file.read()) != value:
                file.write(str(value))
    except OSError:
        pass  # lowering it needs a privilege; never worth failing a call for


def limit(command: Request) -> None:
    """Put on this process what keeps its ceilings from within."""
    if command["affinity"]:
        os.sched_setaffinity(0, command["affinity"])
    soft, hard = command["open_files"]
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # it may have been lower when the supervisor started
    if highest != resource.RLIM_INFINITY:
        hard = highest if hard == resource.RLIM_INFINITY else min(hard, highest)
        soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for which, value in command["rlimits"]:
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        more = int(which == resource.RLIMIT_CPU and value != hard)  # else it is SIGKILL, which does not say for what
        resource.setrlimit(which, (value, value + more))


def _execute(argv: list[bytes], env: dict[bytes, bytes]) -> NoReturn:
    """As execvp(3): the first program found along PATH; a script without a #! line is run with sh."""
    problem: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for path in _candidates(argv[0], env):
        try:
            os.execve(path, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as refused:
            if b"/" in argv[0] or os.path.lexists(
                path
            ):  # a folder that may not be searched is not a program that may not be run
                problem = refused
        except OSError as other:
            if other.errno != errno.ENOEXEC:
                raise
            os.execve(b"/bin/sh", [b"/bin/sh", path, *argv[1:]], env)
    raise problem


def _candidates(name: bytes, env: dict[bytes, bytes]) -> list[bytes]:
    if b"/" in name:
        return [name]
    return [os.path.join(folder, name) for folder in env.get(b"PATH", os.fsencode(os.defpath)).split(b":")]
