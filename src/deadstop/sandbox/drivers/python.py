# SPDX-License-Identifier: Apache-2.0
"""A Python interpreter that keeps its state between runs. Sent into a sandbox, and run by the python3 (3.9 or later)
that is there: nothing of this package can be imported where it runs.

Runs come over stdin, each as `<begin> <size of the code, ten digits>\n`, the code, and `<end>\n`, where both marks are
32 hexadecimal digits. On stdout and stderr each run lies between a frame with its first mark and one with its second;
the last on stdout carries the answer. A frame is one write that a pipe does not tear: \\x1e, the mark, a blank, `+`
where more of the same follows or `.`, text, and a newline. The second mark is not read before the code has ended.
"""

from __future__ import annotations

import ast
import base64
import builtins
import fcntl
import json
import linecache
import os
import select
import signal
import sys
import traceback
import types
from typing import Any

CHUNK = 3500  # of a frame: below what a pipe takes in one piece
MARK = 32
HEADER = MARK + 1 + 10 + 1
TEXT_CHARS = 1_000_000  # of one result
RESULT_CHARS = 8_000_000  # of all of a run
ERROR_CHARS = 40_000
PRIVATE_FD = 200
COROUTINE = 0x80  # inspect.CO_COROUTINE
AWAITING = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class Interpreter:
    """The user's `__main__`, and the descriptors that the user's code is not meant to find."""

    def __init__(self, control: int, out: int, err: int) -> None:
        self.control, self.out, self.err = control, out, err
        self.pid = os.getpid()
        self.runs = 0
        self.running = False
        self.results: list[dict[str, str]] = []
        self.room = RESULT_CHARS
        self.loop: Any = None
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        self.space = main.__dict__

    # -- the channel -------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Until stdin ends."""
        while (header := self.read(HEADER)) is not None:
            begin, size = header[:MARK], int(header[MARK:])
            code = self.read(size)
            if code is None:
                return
            self.frame(self.out, begin)
            self.frame(self.err, begin)
            answer = json.dumps(self.run(code.decode("utf-8", "surrogateescape"))).encode("ascii")
            if os.getpid() != self.pid:  # the code forked, and this is the child: it has no session to go on with
                os._exit(0)
            end = self.read(MARK + 1)
            if end is None:
                return
            self.frame(self.err, end[:MARK])
            self.frame(self.out, end[:MARK], answer)

    def read(self, size: int) -> bytes | None:
        """Exactly so much, and nothing of what comes after it."""
        parts = []
        while size:
            part = os.read(self.control, min(size, 1 << 20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def frame(self, fd: int, mark: bytes, text: bytes = b"") -> None:
        parts = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)] or [b""]
        for number, part in enumerate(parts):
            sign = b"." if number == len(parts) - 1 else b"+"
            write(fd, b"\x1e" + mark + b" " + sign + part + b"\n")

    # -- a run -------------------------------------------------------------------------------------------------------

    def run(self, text: str) -> dict[str, Any]:
        self.runs += 1 if text else 0  # an empty one asks whether anybody is there
        self.results, self.room = [], RESULT_CHARS
        status, error = 0, None
        signal.signal(signal.SIGINT, self.interrupted)
        try:
            try:
                self.running = True
                value = self.execute(text, f"<run {self.runs}>")
                if value is not None:
                    builtins._ = value  # type: ignore[attr-defined]
                    self.show(value)
                self.show_figures()
            finally:
                self.running = False
        except SystemExit as problem:
            status, error = self.exited(problem)
        except BaseException as problem:
            self.running = False
            status, error = (130 if isinstance(problem, KeyboardInterrupt) else 1), described(problem)
        signal.signal(signal.SIGINT, self.interrupted)  # the code may have set its own
        settle()
        return {"exit": status, "error": error, "results": self.results}

    def interrupted(self, number: int, frame: object) -> None:
        if self.running:
            raise KeyboardInterrupt

    def exited(self, problem: SystemExit) -> tuple[int, str | None]:
        """sys.exit ends the run, as in a notebook; the session goes on."""
        code = problem.code
        if code is None:
            return 0, None
        if isinstance(code, int):
            return code & 0xFF, f"SystemExit: {code}" if code else None
        return 1, f"SystemExit: {code}"[:ERROR_CHARS]

    def execute(self, text: str, name: str) -> Any:
        """Run it, and give the value of the expression it ends with."""
        linecache.cache[name] = len(text), None, text.splitlines(True), name  # tracebacks show its lines
        tree = compile(text, name, "exec", ast.PyCF_ONLY_AST | AWAITING, dont_inherit=True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self.evaluate(compile(tree, name, "exec", AWAITING, dont_inherit=True))
        if last is None:
            return None
        return self.evaluate(compile(ast.Expression(last.value), name, "eval", AWAITING, dont_inherit=True))

    def evaluate(self, code: types.CodeType) -> Any:
        value = eval(code, self.space)
        return self.complete(value) if code.co_flags & COROUTINE else value

    def complete(self, coroutine: Any) -> Any:
        """Tasks that it leaves behind go on when the next run awaits something."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                self.loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise

    # -- results -----------------------------------------------------------------------------------------------------

    def show(self, value: object) -> None:
        """What it looks like, in every form it knows."""
        self.add("text/plain", shortened(repr(value)))
        for name, kind in (("_repr_html_", "text/html"), ("_repr_png_", "image/png")):
            method = getattr(type(value), name, None)
            if method is None:
                continue
            try:
                form = method(value)
            except Exception:
                traceback.print_exc()
                continue
            if isinstance(form, (bytes, bytearray)):
                self.add(kind, base64.b64encode(form).decode("ascii"))
            elif isinstance(form, str):
                self.add(kind, form)

    def add(self, kind: str, data: str) -> None:
        self.room -= len(data)
        if self.room < 0 or len(self.results) >= 200:
            data, kind = f"<left out: a run may show {RESULT_CHARS} characters in 200 results>", "text/plain"
            if self.results and self.results[-1]["data"] == data:
                return
        self.results.append({"type": kind, "data": data})

    def show_figures(self) -> None:
        """The open figures of matplotlib's pyplot, which are closed."""
        plot = sys.modules.get("matplotlib.pyplot")
        if plot is None:
            return
        import io

        for number in plot.get_fignums():
            file = io.BytesIO()
            plot.figure(number).savefig(file, format="png", bbox_inches="tight")
            self.add("image/png", base64.b64encode(file.getvalue()).decode("ascii"))
        plot.close("all")

    def display(self, *values: object) -> None:
        for value in values:
            self.show(value)


def write(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # somebody who shares the pipe made it so
            select.select([], [fd], [])


def shortened(text: str) -> str:
    left_out = len(text) - TEXT_CHARS
    return text if left_out <= 0 else f"{text[:TEXT_CHARS]}... ({left_out} more characters)"


def described(problem: BaseException) -> str:
    """Its traceback, from the user's first line on and without our own lines."""
    try:
        found = traceback.TracebackException(type(problem), problem, problem.__traceback__)
        own = described.__code__.co_filename
        lines = [line for line in found.stack if line.filename != own]
        first = next((number for number, line in enumerate(lines) if line.filename.startswith("<run ")), 0)
        found.stack = traceback.StackSummary.from_list(lines[first:])
        return "".join(found.format())[-ERROR_CHARS:]
    except BaseException as worse:
        return f"{type(problem).__name__}: <its traceback cannot be had: {type(worse).__name__}>"


def settle() -> None:
    """What was printed is written, and stdin can be read from (to its end at once) again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue  # the code put something else in its place, or closed it
    try:
        import ctypes

        ctypes.CDLL(None).fflush(None)
    except Exception:
        pass  # an interpreter without it: only what native code printed waits for more
    if sys.stdin is None or sys.stdin.closed:  # exit() does that
        sys.stdin = open(os.devnull)  # noqa: SIM115


def prepared() -> Interpreter:
    """The channel put out of the way, and streams as a program would have them."""
    control, out, err = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, PRIVATE_FD) for fd in (0, 1, 2))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    sys.argv = [""]
    os.environ.setdefault("MPLBACKEND", "agg")
    found = Interpreter(control, out, err)
    builtins.display = found.display  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=lambda: os.close(control))
    return found


def main() -> None:
    prepared().serve()
