# SPDX-License-Identifier: Apache-2.0
"""Commands in a sandbox: the request, what its answer means, and the time and budget of the task it is made in."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import clock, deadlines
from ..budget import current, key_of, refused_result
from ..contract import result_from_dict
from ..errors import DeadstopError, InvalidLimit, UsageError
from ..executor.prepare import Default
from ..results import FiredLimit, Status, ToolResult
from .asks import Ask, Reply, given, new_key, problem_of, sandbox_path

DEFAULT_S = 300.0
MARGIN_S = 15.0  # the server's answer may come this long after the command's limit
STDIN_BYTES = 640 << 10  # what fits into the request; more is written while the command runs

Command = str | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A command as asked for; its `limit` is the nearest of all that hold where it is made."""

    cmd: Command
    tool: str
    end: float | None
    limit: FiredLimit | None
    options: Mapping[str, Any]
    stdin: bytes | None
    key: str

    @property
    def seconds(self) -> float:
        """How long it may take from now on."""
        return DEFAULT_S if self.end is None else max(0.0, self.end - clock.monotonic())

    def body(self, **more: Any) -> dict[str, Any]:
        cmd = self.cmd if isinstance(self.cmd, str) else list(self.cmd)
        body: dict[str, Any] = {"cmd": cmd, "timeout_seconds": round(self.seconds, 3), **self.options, **more}
        if self.stdin is not None:
            body["stdin_base64"] = base64.b64encode(self.stdin).decode("ascii")
        return body

    def ask(self, ref: str) -> Ask:
        seconds = self.seconds + MARGIN_S
        return Ask("POST", sandbox_path(ref, "exec"), body=self.body(), key=self.key, seconds=seconds)

    def ask_stream(self, ref: str) -> Ask:
        return Ask("POST", sandbox_path(ref, "exec", "stream"), body=self.body(), key=self.key)

    def compared(self) -> bytes:
        """What makes a command the same call again."""
        return key_of(repr(self.cmd), repr(sorted(self.options.items(), key=lambda item: item[0])), repr(self.stdin))


def wish_of(
    cmd: Command, timeout: float | Default, *, stdin: bytes | str | None = None, cwd: str | None = None,
    env: Mapping[str, str] | None = None, user: str | None = None, on_timeout: str | None = None,
    rlimits: Mapping[str, float] | None = None, tail: int | None = None,
) -> Wish:  # fmt: skip
    """Checked here as far as it can be, so that a mistake costs no request."""
    words = _checked(cmd)
    end, limit = _limit(timeout)
    data = stdin.encode() if isinstance(stdin, str) else stdin
    if not isinstance(data, bytes | None):
        raise UsageError(f"stdin: {stdin!r:.60} is neither bytes, text nor None")
    options = given(
        cwd=cwd, env=dict(env) if env else None, user=user, on_timeout=on_timeout,
        rlimits=dict(rlimits) if rlimits else None, tail_bytes=tail,
    )  # fmt: skip
    return Wish(cmd=words, tool=_tool(words), end=end, limit=limit, options=options, stdin=data, key=new_key())


def _limit(timeout: float | Default) -> tuple[float | None, FiredLimit | None]:
    """The nearest end of all that hold here."""
    if timeout == 0 and not isinstance(timeout, bool):
        return clock.monotonic(), FiredLimit("call", 0.0)
    given_one = not isinstance(timeout, Default)
    seconds = clock.check_limit("timeout", timeout) if given_one else DEFAULT_S
    end, _, limit = deadlines.resolve(seconds, "given" if given_one else "default")
    return end, limit


def _checked(cmd: Command) -> Command:
    if isinstance(cmd, str):
        words = [cmd]
    elif isinstance(cmd, Sequence) and all(isinstance(word, str | os.PathLike) for word in cmd):
        words = [os.fspath(word) for word in cmd]
    else:
        raise UsageError(f"the command must be text for a shell or a list of words, not {cmd!r:.60}")
    if not words or not words[0].strip() or any("\0" in word for word in words):
        raise UsageError("the command is empty or has a NUL byte in it: give a program and its arguments")
    return cmd if isinstance(cmd, str) else words


def _tool(cmd: Command) -> str:
    first = cmd.split(None, 1)[0] if isinstance(cmd, str) else cmd[0]
    return os.path.basename(first) or first


def with_stdin(wish: Wish, stdin: bytes | None) -> Wish:
    return replace(wish, stdin=stdin)


# -- what came back ----------------------------------------------------------------------------------------------


def result_of(reply: Reply, wish: Wish) -> ToolResult:
    """The result in an answer, whatever its HTTP status. Raises what an answer without one stands for."""
    document = reply.document()
    if isinstance(document.get("result"), dict):
        return _read(document["result"], wish)
    if reply.ok:
        raise DeadstopError("the server's answer to exec has no result in it: is it another program's?")
    raise problem_of(reply)


def result_in(document: Mapping[str, Any], wish: Wish | None = None) -> ToolResult | None:
    """The result in the document of an exec, or in the last event of its stream; None while it runs."""
    found = document.get("result")
    return _read(found, wish) if isinstance(found, dict) else None


def _read(document: Mapping[str, Any], wish: Wish | None) -> ToolResult:
    result = result_from_dict(document)
    if wish is None:
        return result
    if result.limit is not None and result.limit.which == "call" and wish.limit is not None:
        # The server knows only the seconds it was given; the limit may be that of a task or block around it.
        result = replace(result, limit=wish.limit)
    return result


def unknown(wish: Wish, why: str) -> ToolResult:
    """The command may have started, and nobody can say here how it ended."""
    return ToolResult(
        tool=wish.tool, status=Status.UNKNOWN, started_at=clock.now_iso(), effect="unknown",
        environment="the command may still run in its sandbox, at most until its limit",
        hint="look at sbx.processes() and sbx.logs() before it is run again", error_message=why,
    )  # fmt: skip


def over_before_start(wish: Wish) -> ToolResult | None:
    """A refusal if a limit around the call is over already. One of its own that is 0 is for the server to refuse."""
    if wish.end is None or wish.end > clock.monotonic() or (wish.limit and wish.limit.which == "call"):
        return None
    task = current()
    refusal = task.used_up() if task and wish.limit and wish.limit.which == "task" else None
    if refusal is not None:
        return refused_result(refusal, wish.tool)
    return _never(wish, Status.REFUSED, "deadline_over", "its deadline was over before it could start")


def cancelled_before(wish: Wish) -> ToolResult:
    return _never(wish, Status.CANCELLED, "caller", None)


def _never(wish: Wish, status: Status, reason: str, message: str | None) -> ToolResult:
    limit = wish.limit if reason == "deadline_over" else None
    return ToolResult(
        tool=wish.tool, status=status, reason=reason, limit=limit, started_at=clock.now_iso(),
        environment="nothing was started", error_message=message,
    )  # fmt: skip


def check_seconds(name: str, value: float) -> float:
    seconds = clock.check_limit(name, value)
    if seconds is None:
        raise InvalidLimit(f"{name}: None is not a time")
    return seconds
