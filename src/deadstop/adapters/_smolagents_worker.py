# SPDX-License-Identifier: Apache-2.0
"""The half of the smolagents executor that lives in the worker: smolagents' own interpreter and its state.

No limit is kept here. Everything that may take long (the code, and making its result into something that can be sent)
happens inside the call, so that the kill covers it.
"""

from __future__ import annotations

import pickle
from typing import Any

from smolagents import local_python_executor as upstream  # type: ignore[import-untyped,import-not-found,unused-ignore]

from ._smolagents_values import StayedInWorker, Told, Unavailable, dump, dump_each, give, load_each

# The interpreter's own limits: whoever has changed them in the caller's process means the code that is run here.
CONSTANTS = ("MAX_OPERATIONS", "MAX_WHILE_ITERATIONS", "ALLOWED_DUNDER_METHODS", "DANGEROUS_FUNCTIONS")

Parts = dict[str, tuple[dict[str, bytes], dict[str, str]]]


class Interpreter:
    """What one executor has in its worker. `epoch` names it: another worker's interpreter has another."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.state: dict[str, Any] = {"__name__": "__main__"}
        self.custom_tools: dict[str, Any] = {}
        self.static_tools: dict[str, Any] | None = None
        self.given: set[str] = {"__name__"}

    def receive(self, parts: Parts) -> dict[str, str]:
        """Tools, functions and variables from the caller. Returns which of them cannot be used here, and why."""
        loaded = {kind: load_each(*packed) for kind, packed in parts.items()}
        variables = loaded.pop("variables", {})
        self.given |= variables.keys()
        self.state.update(variables)
        if loaded:
            self.static_tools = {**loaded["tools"], **upstream.BASE_PYTHON_TOOLS, **loaded["functions"]}
        everything = {**variables, **(self.static_tools or {})}
        return {name: value.reason for name, value in everything.items() if type(value) is Unavailable}

    def run(self, code: str, settings: dict[str, Any]) -> dict[str, Any]:
        use_constants(settings["constants"])
        answer: dict[str, Any] = {}
        try:
            value, answer["final"] = upstream.evaluate_python_code(
                code, static_tools=self.static_tools, custom_tools=self.custom_tools, state=self.state,
                authorized_imports=settings["imports"], max_print_outputs_length=settings["max_prints"],
                timeout_seconds=None,
            )  # fmt: skip
            answer["value"] = give(value, plain=settings["plain"])
        except BaseException as problem:  # `raise SystemExit` is a way to fail like any other here
            answer["error"] = failure(problem)
        answer["logs"] = str(self.state.get("_print_outputs", ""))
        answer["names"] = self.names()
        return answer

    def names(self) -> list[str]:
        """What the code has made: variables, imports, functions, classes."""
        made = [name for name in self.state if not name.startswith("_") and name not in self.given]
        return [*made, *(name for name in self.custom_tools if name not in made)]


def failure(problem: BaseException) -> str:
    return str(problem) if isinstance(problem, upstream.InterpreterError) else f"{type(problem).__name__}: {problem}"


def constants() -> dict[str, Any]:
    """The interpreter's own limits, as they are in this process."""
    return {name: getattr(upstream, name) for name in CONSTANTS if hasattr(upstream, name)}


def use_constants(constants: dict[str, Any]) -> None:
    for name, value in constants.items():
        setattr(upstream, name, value)
    upstream.PrintContainer = Told


_interpreter: Interpreter | None = None


def serve(operation: str, *arguments: Any) -> Any:
    """The one function that is called in the worker. By its name here, so that all calls find the same state."""
    from deadstop.adapters import _smolagents_worker as here  # in a sandbox this function itself came by value

    return getattr(here, operation)(*arguments)


def prepare(epoch: str, fresh: bool, parts: Parts) -> dict[str, str] | None:
    """Begin anew (`fresh`), or add to what there is; None if that is not there any more."""
    global _interpreter
    if fresh:
        _interpreter = Interpreter(epoch)
    if _interpreter is None or _interpreter.epoch != epoch:
        return None
    return _interpreter.receive(parts)


def step(epoch: str, code: str, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Run the code of one step; None, and nothing was run, if the interpreter of earlier steps is not here."""
    if _interpreter is None or _interpreter.epoch != epoch:
        return None
    return _interpreter.run(code, settings)


def look(epoch: str, name: str, plain: bool) -> tuple[Any, ...] | None:
    """The value of a variable, as `give` gives it; () if there is none, None if its interpreter is gone."""
    if _interpreter is None or _interpreter.epoch != epoch:
        return None
    for space in (_interpreter.state, _interpreter.custom_tools):
        if name in space:
            return give(space[name], plain=plain)
    return ()


def evaluate(packed: bytes, settings: dict[str, Any]) -> tuple[str | None, bytes]:
    """As smolagents' evaluate_python_code, without a state that stays: (error, value and everything changed)."""
    asked = pickle.loads(packed)
    state = {**load_each(*asked["state"]), **asked["shared"]["state"]}
    tools = {**load_each(*asked["tools"]), **asked["shared"]["tools"]}
    custom = {**load_each(*asked["custom"]), **asked["shared"]["custom"]}
    use_constants(settings["constants"])
    value, final, error = None, False, None
    try:
        value, final = upstream.evaluate_python_code(
            asked["code"], tools, custom, state, settings["imports"], settings["max_prints"], timeout_seconds=None
        )
    except BaseException as problem:
        error = failure(problem)
    state = {name: each for name, each in state.items() if type(each) is not Unavailable}
    return error, _all_of({"state": state, "custom": custom, "value": value, "final": final})


def _all_of(changed: dict[str, Any]) -> bytes:
    """Together, so that what is one object stays one; where that fails each by itself, with stand-ins."""
    try:
        return dump(changed)
    except Exception:
        for space in (changed["state"], changed["custom"], changed):
            for name, reason in dump_each(space)[1].items():
                held = space[name]
                space[name] = StayedInWorker(repr(held)[:1000], type(held).__name__, reason)
        return dump(changed)
