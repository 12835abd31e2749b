# SPDX-License-Identifier: Apache-2.0
"""`deadstop exec`: a command in a sandbox, its output as it comes, its exit status as ours."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from ..cancel import CancelToken
from . import common

if TYPE_CHECKING:
    from ..client.synchronous import Sandbox
    from ..results import ToolResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "deadstop exec [options] SANDBOX -- command [argument ...]"
    parser.epilog = (
        "A single word with blanks in it is run by a shell. Exit status: that of `deadstop run`. Ctrl-C cancels the "
        "command and says how it ended; a second one does not wait for that."
    )
    add: Any = parser.add_argument
    add("--timeout", type=common.limit, metavar="TIME", default=300.0,
        help="end it after this long (default: 300s; none: as long as the sandbox has left)")  # fmt: skip
    add("--cwd", metavar="DIR", help="working folder, a path inside")
    add("--env", action="append", default=[], metavar="NAME[=VALUE]", help="set a variable, or pass yours on")
    add("--on-timeout", choices=("kill", "destroy", "snapshot_destroy"), help="what goes then (default: kill)")
    add("-i", "--stdin", action="store_true", help="give it this command's stdin, unless that is a terminal")
    add("-d", "--background", action="store_true", help="start it, print its id, and leave it running")
    add("--tail", type=common.size, metavar="SIZE", help="how much of the end of each stream the result keeps")
    add("--quiet", action="store_true", help="print nothing but deadstop's own errors")
    common.add_server(parser)
    common.add_sandbox(parser)
    add("command", nargs=argparse.REMAINDER, help="the command, after --")


def execute(arguments: argparse.Namespace) -> int:
    from ..client.synchronous import Sandbox
    from ..errors import UsageError

    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if arguments.command[:1] != ["--"] and words and words[0].startswith("-"):
        raise UsageError(f"exec: {words[0]} after the sandbox would be the command: put options before the sandbox")
    if not words:
        raise UsageError("exec: the command is missing: deadstop exec SANDBOX -- command ...")
    cmd = words[0] if len(words) == 1 and len(words[0].split()) > 1 else words
    sandbox = Sandbox.connect(arguments.sandbox, server=arguments.server)
    options = {"cwd": arguments.cwd, "env": common.variables(arguments.env), "on_timeout": arguments.on_timeout,
               "tail": arguments.tail}  # fmt: skip
    if arguments.background:
        return _in_background(sandbox, cmd, arguments, options)
    token = _cancelled_by_signals()
    given = arguments.stdin and not os.isatty(0)
    run = _with_input if given else _without_input
    result = run(sandbox, cmd, arguments, options, token)
    _show(result, arguments)
    return result.exit_status()


def _in_background(sandbox: Sandbox, cmd: Any, arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    process = sandbox.start(cmd, arguments.timeout, **options)
    if arguments.json:
        common.print_json(process.document)
    else:
        print(process.id)
    return 0


def _without_input(
    sandbox: Sandbox, cmd: Any, arguments: argparse.Namespace, options: dict[str, Any], token: CancelToken
) -> ToolResult:
    silent = arguments.json or arguments.quiet
    return sandbox.exec(cmd, arguments.timeout, on_output=None if silent else _write, cancel=token, **options)


def _with_input(
    sandbox: Sandbox, cmd: Any, arguments: argparse.Namespace, options: dict[str, Any], token: CancelToken
) -> ToolResult:
    """Our stdin as it comes. The command runs in the background of the server, and ends with us."""
    process = sandbox.start(cmd, arguments.timeout, keep_stdin=True, **options)
    for work in (lambda: _pump(process), lambda: _kill_when_set(process, token)):
        threading.Thread(target=work, name="deadstop-exec", daemon=True).start()
    try:
        for stream, text in process.output(follow=True):
            if not (arguments.json or arguments.quiet):
                _write(stream, text.encode("utf-8", "replace"))
        result = process.wait()
    except BaseException:
        process.kill()
        raise
    assert result is not None
    return result


def _pump(process: Any) -> None:
    from ..errors import DeadstopError

    try:
        while data := os.read(0, 65536):
            process.write(data)
        process.close_stdin()
    except (DeadstopError, OSError):
        pass  # it has ended, or reads no more


def _kill_when_set(process: Any, token: CancelToken) -> None:
    import select

    from ..errors import DeadstopError

    select.select([token.fileno()], [], [])
    try:
        process.kill()
    except DeadstopError:
        pass


def _cancelled_by_signals() -> CancelToken:
    """Set by the first SIGINT, SIGTERM or SIGHUP; the second ends us, which ends the command as well."""
    token = CancelToken()

    def caught(number: int, _: object) -> None:
        if token.is_set():
            raise KeyboardInterrupt
        token.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, caught)
    return token


def _write(stream: str, data: bytes) -> None:
    out = sys.stderr.buffer if stream == "stderr" else sys.stdout.buffer
    out.write(data)
    out.flush()


def _show(result: ToolResult, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(result.to_json())
        return
    from dataclasses import replace

    from .verdict import verdict

    # The ceilings are the sandbox's: how they are kept is no news about this command, unless it ended badly.
    result = replace(result, limits={})
    ignored = not arguments.stdin and _something_was_piped_in()
    lines = verdict(result, stdin_ignored=ignored, not_taken=0)
    if lines and not arguments.quiet:
        print(lines.replace("(use --stdin)", "(use -i)"), file=sys.stderr)


def _something_was_piped_in() -> bool:
    from .run import _stdin_ignored

    return _stdin_ignored(argparse.Namespace(stdin=False))
