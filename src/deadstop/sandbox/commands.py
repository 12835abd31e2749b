# SPDX-License-Identifier: Apache-2.0
"""From what is asked for to a command at the supervisor."""

from __future__ import annotations

import dataclasses
import os
import resource
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..executor.prepare import Options, over_before_start, prepare_command
from ..model import Command, Place
from ..results import FiredLimit
from .execs import Exec
from .link import Link, start_command
from .wishes import DEFAULT_EXEC_S, ExecWish

if TYPE_CHECKING:
    from .sandbox import Sandbox

OPEN_FILES = (1024, 65536)
RLIMITS = {"cpu_s": resource.RLIMIT_CPU, "file_bytes": resource.RLIMIT_FSIZE, "open_files": resource.RLIMIT_NOFILE}
# Bytes of output that the supervisor keeps, for its evidence. All of it comes here; to write megabytes of it into a
# result once more would keep the supervisor from its deadlines for as long.
SUPERVISED_TAIL = 4096
RESULT_MARGIN_S = 1.0  # after its last possible end, who reads along slowly no longer holds up the result
NO_LAYER = Place("sandbox")


def start(sandbox: Sandbox, link: Link, wish: ExecWish) -> Exec:
    """Start it. A command that is refused comes back ended, with the result that says why. Raises UsageError."""
    command = compose(wish, {**sandbox.env, **sandbox.wish.env}, sandbox.id)
    started = Exec(
        f"exec_{command.call_id[5:]}", sandbox.id, command,
        shown=wish.shown or " ".join(wish.argv), background=wish.background, tail=wish.tail,
    )  # fmt: skip
    started.wish_on_timeout = wish.on_timeout
    if refusal := over_before_start(command):
        started.end(refusal)
        return started
    stdin, write = _stdin(wish)
    try:
        started.follow(start_command(link, command, stdin), write)
    except BaseException:
        if write >= 0:
            os.close(write)
        raise
    finally:
        if stdin is not None:
            os.close(stdin)
    if wish.keep_stdin and wish.stdin:
        sandbox.host.spawn(started.write(wish.stdin))
    if command.deadline is not None:
        loop = sandbox.host.loop
        seconds = wish_seconds(wish) + command.grace + RESULT_MARGIN_S
        started.letting_go = loop.call_later(seconds, started.let_go)
    return started


def wish_seconds(wish: ExecWish) -> float:
    return DEFAULT_EXEC_S if wish.timeout_s is None else wish.timeout_s


def compose(wish: ExecWish, env: Mapping[str, str], sandbox_id: str) -> Command:
    """The command, with nothing left open. `env` is the sandbox's own. Raises UsageError."""
    given = wish.timeout_s is not None
    options = Options(
        timeout=max(wish_seconds(wish), 1e-9), isolation="sandbox", bind_cwd=False, cwd=wish.cwd,
        tail=min(wish.tail, SUPERVISED_TAIL), env={**env, **wish.env},
    )  # fmt: skip
    command = prepare_command(
        wish.argv, options, NO_LAYER, {}, stdin="open" if _has_input(wish) else "null", size=None, stream=True
    )
    limit = command.limit
    if limit and limit.which == "call":
        limit = FiredLimit("call", wish_seconds(wish), "given" if given else "default")
    return dataclasses.replace(
        command, limit=limit, own_part=wish.on_timeout != "destroy", open_files=OPEN_FILES, nice=0, oom_score_adj=0,
        umask=0o022, env={**command.env, "DEADSTOP_CALL": command.call_id, "DEADSTOP_SANDBOX": sandbox_id},
        rlimits=tuple((RLIMITS[name], int(value)) for name, value in wish.rlimits.items()),
    )  # fmt: skip


def _has_input(wish: ExecWish) -> bool:
    return wish.keep_stdin or wish.stdin is not None


def _stdin(wish: ExecWish) -> tuple[int | None, int]:
    """The command's end and ours. What is all there goes as a file in memory: nobody has to feed it."""
    if wish.keep_stdin:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write, False)
        return read, write
    if wish.stdin is None:
        return None, -1
    held = os.memfd_create("deadstop-stdin", os.MFD_CLOEXEC)
    view = memoryview(wish.stdin)
    while view:
        view = view[os.write(held, view) :]
    os.lseek(held, 0, os.SEEK_SET)
    read_only = os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(held)
    return read_only, -1
