# SPDX-License-Identifier: Apache-2.0
"""`deadstop run`: put it in front of a command that may hang.

This process is the supervisor; it runs no payload in itself.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .. import clock
from ..errors import BoundaryUnavailable, UsageError
from ..executor.prepare import (
    DEFAULT,
    DEFAULT_TIMEOUT_S,
    Options,
    Prepared,
    over_before_start,
    prepare,
    refused,
)
from ..results import Status, ToolResult
from ..supervisor.call import Call
from ..supervisor.engine import Engine
from .effect import add_options, is_recorded
from .stdio import StandardStreams

FLUSH_S = 2.0  # how long a slow reader of our output may take after the end
JSON_S = 30.0  # the same for a result in one piece, which is of no use when cut


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "deadstop run [options] -- command [argument ...]"
    parser.epilog = (
        "Times: 500ms, 30s, 5m, 2h, none. Sizes: 64K, 512M, 2G, none. Exit status: the command's own; 124 timeout; "
        "125 deadstop refused or failed; 126/127 cannot be run / not found; 128+N ended by signal N; 130 cancelled; "
        "122 a resource limit; 123 unknown or crashed. With --effect once nothing is run twice under one key: 0 if it "
        "was done before, 123 if it is being run or nobody knows, 125 if it failed, or if the key is another command's."
    )
    _time_options(parser.add_argument_group("time"))
    _place_options(parser.add_argument_group("place"))
    _limit_options(parser.add_argument_group("ceilings"))
    _output_options(parser.add_argument_group("input and output"))
    add_options(parser.add_argument_group("effect"))
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command, after --")


def _time_options(group: Any) -> None:
    add = group.add_argument
    add("--timeout", type=_duration, default=DEFAULT, metavar="TIME",
        help=f"end it after this long (default: {DEFAULT_TIMEOUT_S:g}s; none: no limit)")  # fmt: skip
    add(
        "--idle-timeout",
        type=_duration,
        metavar="TIME",
        help="end it after this long without output (default: none)",
    )
    add(
        "--grace",
        type=_grace,
        default=0.5,
        metavar="TIME",
        help="from SIGTERM to SIGKILL (default: 0.5s; 0: kill at once)",
    )
    add("--on-input-wait", choices=("wait", "kill"), default="wait",
        help="what to do when it waits for input that cannot come (default: wait, until the limit)")  # fmt: skip


def _place_options(group: Any) -> None:
    add = group.add_argument
    add("--isolation", default="process", metavar="LEVEL",
        help="process: killed as a whole, with your files and network (default). sandbox: confined, too")  # fmt: skip
    add("--cwd", metavar="DIR", help="working folder; in a sandbox a path inside")
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable, or pass yours on (repeatable)",
    )
    add("--clear-env", action="store_true", help="do not inherit the environment (a sandbox never does)")
    add("--no-env-defaults", dest="env_defaults", action="store_false",
        help="do not set PYTHONUNBUFFERED, CI, GIT_TERMINAL_PROMPT and the like")  # fmt: skip
    add(
        "--net",
        action="store_true",
        help="sandbox: share this host's network, loopback included (default: no network)",
    )
    add(
        "--bind",
        action="append",
        default=[],
        metavar="SRC[:DST]",
        help="sandbox: show a path, writable (repeatable)",
    )
    add(
        "--ro-bind",
        action="append",
        default=[],
        metavar="SRC[:DST]",
        help="sandbox: show a path read-only (repeatable)",
    )
    add("--no-bind-cwd", dest="bind_cwd", action="store_false", help="sandbox: do not show the current folder")
    add(
        "--check",
        action="store_true",
        help="check the options and this host, say what would hold, and start nothing",
    )


def _limit_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--memory",
        type=_size,
        default=DEFAULT,
        metavar="SIZE",
        help="memory of all its processes (sandbox default: 2G)",
    )
    add(
        "--pids",
        type=_count,
        default=DEFAULT,
        metavar="N",
        help="number of processes (default: 4096; sandbox: 512)",
    )
    add("--cpus", type=_number, metavar="N", help="processors it may use, such as 0.5 (default: all)")
    add("--disk", type=_size, default=DEFAULT, metavar="SIZE",
        help="sandbox: its private files (default: 1G); process: each single file")  # fmt: skip
    add(
        "--output-limit",
        type=_size,
        metavar="SIZE",
        help="end it when it printed more than this (default: no limit)",
    )


def _output_options(group: Any) -> None:
    add = group.add_argument
    add("--stdin", action="store_true", help="give it this command's stdin (default: closed)")
    add("--tty", action="store_true", help="give it a terminal of its own")
    add(
        "--tail",
        type=_size,
        default=65536,
        metavar="SIZE",
        help="how much of the end of each stream to keep (default: 64K)",
    )
    add("--json", action="store_true", help="print the result as one JSON object instead of the output")
    add("--quiet", action="store_true", help="print nothing but deadstop's own errors")
    add("--evidence-path", action="append", default=[], metavar="FILE",
        help="add the end of this file to the evidence (repeatable)")  # fmt: skip


def execute(arguments: argparse.Namespace) -> int:
    prepared, once = _prepared(arguments), is_recorded(arguments)
    if arguments.check:
        from .check import check

        if once:
            from .foreseen import foreseen

            return check(prepared, *foreseen(arguments, prepared))
        return check(prepared)
    if once:
        return _recorded(arguments, prepared)
    session = Session(arguments, prepared)
    result = over_before_start(prepared.command) or session.run()
    if arguments.effect == "none":
        result = replace(result, effect="none")
    _show(session, arguments, result)
    return result.exit_status()


def _recorded(arguments: argparse.Namespace, prepared: Prepared) -> int:
    """The same for a command whose effect is on record. Only here is the ledger loaded."""
    from .recorded import Recorded

    recorded = Recorded(arguments, prepared)
    if recorded.refusal is None:
        prepared = recorded.given_to(_prepared(arguments))  # anew: what the ledger took is not the command's time
    session = Session(arguments, prepared)
    result = recorded.refusal
    if result is None:
        late = recorded.lapsed(prepared.command) or over_before_start(prepared.command)
        result = recorded.ended(late or session.run())
    _show(session, arguments, result)
    return result.exit_status()


def _prepared(arguments: argparse.Namespace) -> Prepared:
    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    return prepare(words, _options(arguments), stdin=_stdin_kind(arguments), size=_terminal_size())


def _options(arguments: argparse.Namespace) -> Options:
    env: dict[str, str | None] = {}
    for text in arguments.env:
        name, separator, value = text.partition("=")
        env[name] = value if separator else None
    return Options(
        timeout=arguments.timeout, idle_timeout=arguments.idle_timeout, grace=arguments.grace,
        isolation=arguments.isolation, memory=arguments.memory, pids=arguments.pids, cpus=arguments.cpus,
        disk=arguments.disk, output_limit=arguments.output_limit, net=arguments.net, cwd=arguments.cwd, env=env,
        clear_env=arguments.clear_env, env_defaults=arguments.env_defaults, bind=arguments.bind,
        ro_bind=arguments.ro_bind, bind_cwd=arguments.bind_cwd, tail=arguments.tail, tty=arguments.tty,
        on_input_wait=arguments.on_input_wait, evidence_paths=arguments.evidence_path,
    )  # fmt: skip


class Session:
    """One run: the engine, the signals that cancel it, the streams it prints to."""

    def __init__(self, arguments: argparse.Namespace, prepared: Prepared) -> None:
        self.arguments, self.prepared = arguments, prepared
        self.engine = Engine()
        self.result: ToolResult | None = None
        self.call: Call | None = None
        self.streams: StandardStreams | None = None
        if not (arguments.json or arguments.quiet):
            self.streams = StandardStreams(self.engine.loop, self._resume)

    def run(self) -> ToolResult:
        engine, prepared = self.engine, self.prepared
        self._catch_signals()
        engine.protect()
        try:
            room = engine.open(prepared.place)
        except BoundaryUnavailable as problem:
            return refused(prepared.command, "policy", str(problem))
        cwd = os.open(prepared.cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if prepared.cwd else None
        stdin = 0 if self.arguments.stdin and not prepared.command.tty else None
        self.call = engine.start(room, prepared.command, stdin, cwd, self._done, owns_room=True, sink=self.streams)
        relay = self._relay_terminal()
        try:
            engine.run(lambda: self.result is not None)
        finally:
            relay()
        engine.clear(room)
        assert self.result is not None
        return self.result

    def say(self, text: str, stream: str, seconds: float) -> None:
        """Print without blocking for longer than this, whoever reads."""
        streams = self.streams or StandardStreams(self.engine.loop, lambda: None)
        streams.write(stream, text.encode("utf-8", "backslashreplace"))
        streams.finish(seconds)

    def _done(self, result: ToolResult) -> None:
        self.result = result

    def _resume(self) -> None:
        if self.call:
            self.call.resume_output()

    def _relay_terminal(self) -> Callable[[], None]:
        if not (self.prepared.command.tty and self.call):
            return lambda: None
        from .terminal import relay

        return relay(self.engine.loop, self.call, with_input=self.arguments.stdin)

    def _catch_signals(self) -> None:
        """SIGINT, SIGTERM and SIGHUP cancel; a second one skips evidence and grace."""
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
                signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.engine.loop.watch(read, lambda: self._cancel(os.read(read, 64)))

    def _cancel(self, numbers: bytes) -> None:
        wanted = sum(number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for number in numbers)
        if not self.call or not wanted:
            return
        again = self.call.record.status is not None or wanted > 1
        self.call.stop(Status.CANCELLED, reason="caller")
        if again:
            self.call.hurry()


def _show(session: Session, arguments: argparse.Namespace, result: ToolResult) -> None:
    """The rest of the output, then the result as asked for."""
    if arguments.json:
        session.say(result.to_json() + "\n", "stdout", JSON_S)
        return
    if arguments.quiet:
        failed = result.status in (Status.REFUSED, Status.ERROR)
        lines = f"deadstop: {(result.error or {}).get('message')}" if failed else ""
    else:
        from .verdict import verdict

        lost = session.streams.finish(FLUSH_S) if session.streams else 0
        lines = verdict(result, stdin_ignored=_stdin_ignored(arguments), not_taken=lost)
    if lines:
        session.say(lines + "\n", "stderr", FLUSH_S)


def _stdin_kind(arguments: argparse.Namespace) -> str:
    if arguments.tty:
        return "tty"
    return "open" if arguments.stdin else "null"


def _stdin_ignored(arguments: argparse.Namespace) -> bool:
    """Whether something was piped in that the command never saw."""
    if arguments.stdin:
        return False
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    import select
    import stat

    if stat.S_ISREG(mode):
        return os.fstat(0).st_size > os.lseek(0, 0, os.SEEK_CUR)
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def _terminal_size() -> tuple[int, int] | None:
    for fd in (1, 2, 0):
        try:
            columns, rows = os.get_terminal_size(fd)
        except OSError:
            continue
        return rows, columns
    return None


def _argument(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except UsageError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _duration(text: str) -> float | None:
    value: float | None = _argument(clock.parse_duration, text)
    return value


def _grace(text: str) -> float:
    if text in ("0", "0s", "none"):
        return 0.0
    return float(_argument(clock.parse_duration, text))


def _size(text: str) -> int | None:
    value: int | None = _argument(clock.parse_size, text)
    return value


def _count(text: str) -> int | None:
    if text == "none":
        return None
    try:
        number: Any = int(text)
    except ValueError:
        number = text
    value: int | None = _argument(lambda _: clock.check_count("pids", number), text)
    return value


def _number(text: str) -> float | None:
    if text == "none":
        return None
    try:
        number: Any = float(text)
    except ValueError:
        number = text
    value: float | None = _argument(lambda _: clock.check_limit("cpus", number), text)
    return value
