# SPDX-License-Identifier: Apache-2.0
"""A Python executor for smolagents whose steps always end: `CodeAgent(..., executor=DeadstopPythonExecutor([...]))`.

smolagents' own interpreter runs in a worker process of the executor's own, where variables and imports stay from step
to step. The limit of a step is kept by killing that worker, which no code can delay; what was kept in it is then gone,
and the model is told so. Needs smolagents and cloudpickle: `pip install deadstop[smolagents]`.
"""

from __future__ import annotations

import threading
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib.util import find_spec
from typing import Any

from smolagents import local_python_executor as upstream  # type: ignore[import-untyped,import-not-found,unused-ignore]

from .. import clock
from ..executor.kept import KeptWorker
from ..executor.tool import Call, Tool
from ..narrate import diagnosed
from ..results import Status, ToolResult
from ._smolagents_errors import InterpreterLost, InterpreterTimeout, ended, error_of
from ._smolagents_once import DEFAULT_S, MEMORY, evaluate_python_code
from ._smolagents_values import FunctionOfTheModel, StayedInWorker, dump_each, take
from ._smolagents_worker import constants, serve

__all__ = [
    "DeadstopPythonExecutor",
    "FunctionOfTheModel",
    "InterpreterLost",
    "InterpreterTimeout",
    "StayedInWorker",
    "evaluate_python_code",
]

PREPARE_S = 60.0  # sending tools and variables: what they need is imported then
LOOK_S = 5.0
NAMES_SHOWN = 40
TAIL_SHOWN = 200  # characters of what was printed last that the error repeats; the rest is in the logs


class DeadstopPythonExecutor:
    """Takes the place of smolagents' LocalPythonExecutor; the first four arguments are its own.

    Promised: a step ends at `timeout_seconds` (None for no limit) whatever the code does, and uses at most `memory`
    bytes; what is printed until then is kept; no code that the model wrote runs in this process, not even `__str__`
    of its result (see `StayedInWorker`). After a kill the next step has a new interpreter with the tools and variables
    that were sent, and nothing else.

    Not promised: that tools act on this process's objects. They run in the worker, as copies. A tool that cannot be
    sent (one that holds a lock or a connection, a managed agent) is named in a RuntimeWarning, and says so to the model
    when it is called. With isolation="process" the code may do what this user may do, as with LocalPythonExecutor;
    "sandbox" confines it, and then only plain data comes back.

    `guard` refuses what is certain to be too large before it costs the interpreter its state. `place` are further
    options of `deadstop.tool` on where the worker lives. Calls from several threads are run one after another.
    """

    def __init__(
        self, additional_authorized_imports: list[str], max_print_outputs_length: int | None = None,
        additional_functions: Mapping[str, Callable[..., Any]] | None = None,
        timeout_seconds: float | None = DEFAULT_S, *, memory: int | None = MEMORY, isolation: str = "process",
        guard: bool = True, **place: Any,
    ) -> None:  # fmt: skip
        """Raises InterpreterError for an import that is not installed, UsageError for a limit that is none."""
        self.additional_authorized_imports = additional_authorized_imports
        self.authorized_imports = sorted({*upstream.BASE_BUILTIN_MODULES, *additional_authorized_imports})
        _check_installed(self.authorized_imports)
        self.max_print_outputs_length = max_print_outputs_length or upstream.DEFAULT_MAX_LEN_OUTPUT
        self.additional_functions = dict(additional_functions or {})
        self.timeout_seconds = clock.check_limit("timeout_seconds", timeout_seconds)
        if isolation == "sandbox":
            place.setdefault("bind_cwd", False)
        self.guard, self._plain, self._memory = guard, isolation == "sandbox", memory
        self._tool = Tool(serve, {"isolation": isolation, "memory": memory, "name": "python", "timeout": None, **place})
        self._limited: dict[float | None, Tool[..., Any]] = {}
        self._lock = threading.RLock()
        self._kept: KeptWorker | None = None
        self._epoch: str | None = None
        self._sent: dict[str, tuple[dict[str, bytes], dict[str, str]]] = {}
        self._pending: set[str] = set()
        self._note = ""
        self.names: list[str] = []
        self.state = State(self)

    # -- as smolagents calls it --------------------------------------------------------------------------------------

    def send_tools(self, tools: Mapping[str, Any]) -> None:
        """Have these called by their names. Each is sent by value; one that cannot be is named in a RuntimeWarning."""
        with self._lock:
            self._send("tools", {name: tool for name, tool in tools.items() if name not in upstream.BASE_PYTHON_TOOLS})
            self._send("functions", self.additional_functions)

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Have these in the state, now and after a kill. Sent by value, as tools are."""
        with self._lock:
            self._send("variables", dict(variables))

    def __call__(self, code_action: str) -> Any:
        """Run one step and give smolagents' CodeOutput.

        Raises InterpreterError with the text the model is to see; InterpreterTimeout and InterpreterLost where the
        interpreter is gone with what it held.
        """
        with self._lock:
            self.state.printed("")
            self._refuse_hopeless(code_action)
            answer = self._operate("step", code_action, self._settings(), limit=self.timeout_seconds)
            self.names = answer["names"]
            self.state.printed(self._take_note() + answer["logs"])
            if "error" in answer:
                raise upstream.InterpreterError(answer["error"])
            return upstream.CodeOutput(
                output=take(answer["value"]), logs=str(self.state["_print_outputs"]), is_final_answer=answer["final"]
            )

    def cleanup(self) -> None:
        """End the worker. A later step would begin in a new one."""
        kept = self._kept
        if kept is not None:
            kept.close()  # also under a step that another thread runs, which then says so
        with self._lock:
            if self._kept is kept:
                self._kept = self._epoch = None
                self.names = []

    # -- the worker --------------------------------------------------------------------------------------------------

    def _send(self, kind: str, named: dict[str, Any]) -> None:
        sent, refused = dump_each(named)
        if kind == "variables" and kind in self._sent:  # these add up; tools replace what was sent before
            known, known_refused = self._sent[kind]
            kept = {name: body for name, body in known.items() if name not in named}
            sent, refused = {**kept, **sent}, {**known_refused, **refused}
        self._sent[kind] = sent, refused
        self._pending.add(kind)
        self._warn(named.keys() & refused.keys(), refused)

    def _warn(self, names: set[str], reasons: dict[str, str]) -> None:
        for name in sorted(names):
            text = f"{name!r} cannot be used in the worker, and will say so where it is: {reasons[name]}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)

    def _settings(self) -> dict[str, Any]:
        return {
            "imports": self.authorized_imports, "max_prints": self.max_print_outputs_length, "plain": self._plain,
            "constants": constants(),
        }  # fmt: skip

    def _operate(self, operation: str, *arguments: Any, limit: float | None) -> Any:
        """One operation on the interpreter, with everything sent before it. Raises what there is to be told."""
        for attempt in (1, 2):
            answer = self._prepare()
            if answer is not None:
                answer = self._run(limit, operation, self._epoch, *arguments)
            if answer is not None:
                return answer
            lost, self._epoch = self.names, None  # nothing was run: it ended between two steps
            if lost and attempt == 1:
                raise self._lost("The interpreter ended between two steps, and nothing of this code was run", None)
        raise upstream.InterpreterError(
            "no interpreter could be kept: two workers in a row ended before they were used"
        )

    def _prepare(self) -> dict[str, str] | None:
        """Have the interpreter know everything that was sent; None if it is not there any more."""
        fresh = self._epoch is None
        if fresh:
            self._epoch, self._pending = uuid.uuid4().hex, set(self._sent)
        if not fresh and not self._pending:
            return {}
        kinds = self._pending | ({"tools", "functions"} & self._sent.keys() if self._pending - {"variables"} else set())
        parts = {kind: self._sent[kind] for kind in kinds}
        found: dict[str, str] | None = self._run(PREPARE_S, "prepare", self._epoch, fresh, parts)
        if found is not None:
            self._pending = set()
            self._warn(found.keys() - {name for _, refused in parts.values() for name in refused}, found)
        return found

    def _run(self, limit: float | None, operation: str, *arguments: Any) -> Any:
        if self._kept is None:
            self._kept = KeptWorker(self._tool)
        if limit not in self._limited:  # kept: a tool is loaded once in a worker, and each of these is one
            self._limited[limit] = self._tool.limited(limit)
        result = self._kept.run(Call(self._limited[limit], operation, *arguments))
        return result.value if result.ok else self._fail(result, limit)

    # -- what went wrong ---------------------------------------------------------------------------------------------

    def _refuse_hopeless(self, code: str) -> None:
        if not self.guard:
            return
        from .. import guard

        try:
            refusals = guard.check(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return  # for the interpreter to say
        if refusals:
            listed = "\n".join(map(str, refusals))
            raise upstream.InterpreterError(f"Nothing was run, and everything is as it was before. {listed}")

    def _fail(self, result: ToolResult, limit: float | None) -> Any:
        message = result.error["message"] if result.error else "it gave no answer"
        if result.status is Status.REFUSED:
            raise upstream.InterpreterError(f"The code was not run: {message}")
        if result.status is Status.ERROR:  # the worker lives
            raise upstream.InterpreterError(f"The code could not be run in its worker: {result.error_type}: {message}")
        printed = result.stdout.tail
        self.state.printed(upstream.truncate_content(printed, max_length=self.max_print_outputs_length))
        what = ended(result, limit, self._memory)
        raise self._lost(f"{what}, and the interpreter was ended", result, printed)

    def _lost(self, what: str, result: ToolResult | None, printed: str = "") -> Exception:
        names, self.names, self._epoch = self.names, [], None
        listed = ", ".join(names[:NAMES_SHOWN])
        if names[NAMES_SHOWN:]:
            listed += f" and {len(names) - NAMES_SHOWN} more"
        gone = (
            "variables and imports of earlier steps are gone: " + listed
            if names
            else "it held nothing of earlier steps"
        )
        self._note = f"(This is a new interpreter; {gone}.)\n" if names else ""
        text = f"{what}; {gone}. Tools, and variables you were given, are there again in the next step."
        hint = diagnosed(result) if result is not None else ""
        if hint:
            text += f" What it was doing: {hint}."
        if printed.strip():
            text += f" It printed last: {printed.strip()[-TAIL_SHOWN:]}"
        return error_of(result, text)

    def _take_note(self) -> str:
        note, self._note = self._note, ""
        return note


class State(MutableMapping[str, Any]):
    """The interpreter's variables, seen from here: `executor.state["x"]` asks the worker for a copy, within 5 seconds.

    `_print_outputs` is what the last step printed. Setting a variable sends it.
    """

    def __init__(self, executor: DeadstopPythonExecutor) -> None:
        self._executor = weakref.proxy(executor)  # no cycle: an executor that is dropped ends its worker at once
        self._own: dict[str, Any] = {"__name__": "__main__", "_print_outputs": upstream.PrintContainer()}

    def printed(self, text: str) -> None:
        """Replace what the last step printed."""
        container = self._own["_print_outputs"] = upstream.PrintContainer()
        container.value = text

    def __getitem__(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        executor = self._executor
        if name not in self:
            raise KeyError(name)
        with executor._lock:
            found = executor._operate("look", name, executor._plain, limit=LOOK_S)
        if not found:
            raise KeyError(name)
        return take(found)

    def __setitem__(self, name: str, value: Any) -> None:
        self._executor.send_variables({name: value})

    def __delitem__(self, name: str) -> None:
        raise TypeError("a variable is deleted by the code of a step")

    def _names(self) -> list[str]:
        sent, _ = self._executor._sent.get("variables", ({}, {}))
        return list(dict.fromkeys((*self._own, *sent, *self._executor.names)))

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())


def _check_installed(imports: list[str]) -> None:
    missing = [name for name in imports if name != "*" and find_spec(name.split(".")[0]) is None]
    if missing:
        listed = ", ".join(name.split(".")[0] for name in missing)
        raise upstream.InterpreterError(
            f"Non-installed authorized modules: {listed}. Install them, or do not list them."
        )
