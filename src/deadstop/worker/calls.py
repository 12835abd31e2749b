# SPDX-License-Identifier: Apache-2.0
"""The loop of a call worker: one call at a time, each in a context of its own.

Nothing here keeps a limit: this process is what is killed. It runs the caller's functions, says how they ended, and
says what they left behind as far as it can see it (the supervisor sees the rest).
"""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import importlib
import importlib.util
import os
import signal
import sys
import types
from collections.abc import Callable, Coroutine
from pickle import loads
from typing import Any, NoReturn

from .. import deadlines, messages
from ..boundary.reaper import descendants, state_of
from ..closures import filled, variable_at
from ..packing import (
    BY_VALUE,
    LEFT_PROCESSES,
    LEFT_THREADS,
    LOAD,
    LOADED,
    PROGRESS,
    RAISED,
    RUN,
    VALUE,
    WROTE,
    Port,
)
from ..results import Progress
from . import streams
from .answers import Pickled, PlainData, unloadable

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_HANDLED = [int(signal.Signals[f"SIG{name}"]) for name in ("ALRM", "TERM", "INT", "USR1", "USR2", "CHLD", "HUP")]
# Below what the signal module makes of them: it turns numbers into enums and back, which costs more than the calls.
_getsignal: Callable[[int], Any] = importlib.import_module("_signal").getsignal
_sigmask: Callable[[int, tuple[()]], Any] = importlib.import_module("_signal").pthread_sigmask
FUNCTIONS_KEPT = 1024


class Calls:
    """The functions a worker has loaded, and the running of them."""

    def __init__(self, port: Port, answers: Pickled | PlainData, *, own_pids: bool) -> None:
        self.port, self.answers = port, answers
        self.functions: dict[int, Callable[..., Any]] = {}
        self.context = contextvars.copy_context()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.number = 0
        self.environ, self.cwd, self.path = dict(os.environb), os.getcwd(), list(sys.path)
        self.umask = os.umask(0o077)
        os.umask(self.umask)
        self.handlers = [(number, _getsignal(number)) for number in _HANDLED]
        self.threads = _thread._count()  # those of imports
        self.own_pids = own_pids  # a pid namespace of its own, and its own /proc
        self.last_pid_file = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        self.last_pid = self._last_pid()
        self.context.run(messages.sink.set, self.tell)

    def serve(self) -> NoReturn:
        port = self.port
        while (packet := port.receive()) is not None:
            kind, flags, self.number, body = packet
            if kind == RUN:
                self.run(body, flags)
            elif kind == LOAD:
                self.load(body)
        os._exit(0)

    # -- functions ---------------------------------------------------------------------------------------------------

    def load(self, body: Any) -> None:
        """(number, where to find it, or the pickled function), after what surrounds it. Answers what that imported."""
        before = set(sys.modules)
        try:
            start = 4 + int.from_bytes(body[:4], "little")
            if start > 4:
                self.adapt(loads(body[4:start]), self.context)
            number, where, packed = loads(body[start:])
            function = find(*where) if where else loads(packed)
            if len(self.functions) >= FUNCTIONS_KEPT:
                self.functions.clear()
            self.functions[number] = function
        except BaseException as problem:
            self.port.send(RAISED, self.left(), self.number, self.answers.raised(unloadable("the function", problem)))
            return
        self.threads = max(self.threads, _thread._count())
        new = [name for name in sys.modules.keys() - before if not name.startswith("deadstop.")]
        flags = self.left()
        self.port.send(LOADED, flags, self.number, "\n".join(new).encode())

    def resolve(self, number: int, place: tuple[str, str, str | None]) -> Callable[..., Any]:
        """A function to be looked up in a module that is loaded, and called by its number from then on."""
        function = self.functions[number] = find(*place)
        return function

    # -- calls -------------------------------------------------------------------------------------------------------

    def run(self, body: Any, flags: int) -> None:
        """(what to call, args, kwargs, end, surroundings)."""
        try:
            if flags:
                start = 4 + int.from_bytes(body[:4], "little")
                if flags & BY_VALUE:
                    function = loads(body[4:start])
                else:
                    number, *held = loads(body[4:start])
                    function = filled(self.functions[number], *held)
                _, args, kwargs, end, surroundings = loads(body[start:])
            else:
                target, args, kwargs, end, surroundings = loads(body)
                function = self.functions[target] if type(target) is int else self.resolve(*target)
            context = self.context.copy()
            if surroundings is not None:
                self.adapt(surroundings, context)
        except BaseException as problem:
            self.answer(RAISED, self.answers.raised(unloadable("the call", problem)))
            return
        deadlines.enter_call(end)
        try:
            value = context.run(function, *args, **kwargs)
            if type(value) is types.CoroutineType:
                value = self.complete(value, context)
        except BaseException as problem:
            self.answer(RAISED, self.answers.raised(problem))
            return
        try:
            packed = self.answers.value(value)
        except BaseException as problem:
            kind = type(value).__name__
            self.answer(RAISED, self.answers.raised(TypeError(f"the result, a {kind}, cannot be sent back: {problem}")))
            return
        self.answer(VALUE, packed)

    def answer(self, kind: int, body: bytes) -> None:
        deadlines.enter_call(None)
        self.port.send(kind, self.left(), self.number, body)
        self.restore()

    def tell(self, message: Progress) -> None:
        parts = (message.text, message.id, message.replace, message.data)
        self.port.send(PROGRESS, 0, self.number, self.answers.progress(parts))

    def complete(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> Any:
        """On the worker's own loop, which later calls find again. What the call leaves on it is cancelled."""
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
        loop = self.loop
        try:
            return loop.run_until_complete(loop.create_task(coroutine, context=context))
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            if getattr(loop, "_default_executor", None) is not None:  # its threads would count as left behind
                loop.run_until_complete(loop.shutdown_default_executor())
                loop.close()
                self.loop = None

    # -- what surrounds a call ---------------------------------------------------------------------------------------

    def adapt(self, surroundings: dict[str, Any], context: contextvars.Context) -> None:
        """Make this process look as the caller does: only what differs from before is sent."""
        if (environment := surroundings.get("environ")) is not None:
            self.environ = environment
        if (folder := surroundings.get("cwd")) is not None:
            self.cwd = folder
        if (path := surroundings.get("sys_path")) is not None:
            self.path = path
            importlib.invalidate_caches()
        self.restore()
        for module, name, packed in surroundings.get("variables", ()):
            try:
                context.run(variable_at(module, name).set, loads(packed))
            except Exception:
                continue  # of a module that only the caller has

    def restore(self) -> None:
        """Undo what a call changed of it, and of signals and timers. After its answer: this is on nobody's time."""
        for timer in _TIMERS:
            if signal.getitimer(timer)[0]:
                signal.setitimer(timer, 0)
        if _sigmask(0, ()):
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number, handler in self.handlers:
            if _getsignal(number) is not handler:
                signal.signal(number, handler)
        os.umask(self.umask)
        if os.environ._data != self.environ:  # type: ignore[attr-defined]
            for name in os.environb.keys() - self.environ.keys():
                del os.environb[name]
            os.environb.update(self.environ)
        if sys.path != self.path:
            sys.path[:] = self.path
        try:
            if os.getcwd() != self.cwd:
                os.chdir(self.cwd)
        except OSError:
            pass  # a folder that is gone for the caller, too

    # -- what is left ------------------------------------------------------------------------------------------------

    def left(self) -> int:
        flags = WROTE if streams.wrote() else 0
        if _thread._count() > self.threads:
            flags |= LEFT_THREADS
        last = self._last_pid()
        if last != self.last_pid:
            self.last_pid = last
            flags |= WROTE  # a child may have printed
            if self._processes():
                flags |= LEFT_PROCESSES
        return flags

    def _last_pid(self) -> bytes:
        """The last pid given in this pid namespace: unchanged means that nothing was forked."""
        return os.pread(self.last_pid_file, 128, 0).rpartition(b" ")[2]

    def _processes(self) -> bool:
        """Whether anything that the call started is still running; a dead child that nobody waited for is not."""
        own = os.getpid()
        kept = _nested_supervisor()
        if self.own_pids:
            others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, own}
        else:
            others = {*descendants(os.getppid(), without=frozenset({own})), *descendants(own)}
        others -= {kept, *descendants(kept)} if kept else set()
        return any(state_of(pid) not in "ZX" for pid in others)


def _nested_supervisor() -> int:
    """The one that calls made inside a tool are kept by, which later calls will need again; 0 if there is none."""
    private = sys.modules.get("deadstop.executor.private")
    process = private.supervisor._process if private else None
    return process.pid if process else 0


def find(module: str, name: str, file: str | None) -> Callable[..., Any]:
    """Import a function by its name; from its file where the module cannot be imported by name."""
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{module}.".startswith(f"{problem.name}.") or file is None:
            raise
        spec = importlib.util.spec_from_file_location(module, file)
        if spec is None or spec.loader is None:
            raise
        found = sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    for part in name.split("."):
        found = getattr(found, part)
    if type(found).__module__ == "deadstop.executor.tool":
        found = found.function  # decorated: it is run here, not handed on to a worker again
    return found  # type: ignore[no-any-return]
