# SPDX-License-Identifier: Apache-2.0
"""`deadstop.call(..., sandbox=sbx)`: a Python function, run by the Python of a sandbox that a server keeps.

It goes by its name where the sandbox has the same module; otherwise by value (cloudpickle, which goes along) where
both have the same Python, and as source where not. What comes back is data that a sandbox wrote: it is read as plain
data and never unpickled.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import json
import secrets
import sys
import zlib
from collections.abc import Generator
from contextvars import Context
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from pickle import dumps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from .. import clock
from ..closures import pack, pack_function, reference
from ..errors import UsageError
from ..executor import answers
from ..executor.in_thread import in_thread
from ..executor.refusals import cannot_be_sent, lease_is_over, never_ran, over_before_start
from ..results import FiredLimit, Late, Output, Status, ToolResult
from ..sandbox import drivers
from ..sandbox.drivers import BOOT
from ..sandbox.session_answers import Damaged, taken_out
from .source import Source

if TYPE_CHECKING:
    from ..executor.tool import Call

PRINTED_BYTES = 65536  # of what it prints, as for every call
TAIL_BYTES = 6 << 20  # asked of the exec: the largest answer in its frames, and what was printed before
VERSION = (sys.version_info.major, sys.version_info.minor)
TRIES = 3  # by name, by value, as source

Order = dict[str, Any]


@dataclass(slots=True)
class _Known:
    """What is known of a sandbox by the calls before."""

    version: tuple[int, int] = field(default_factory=lambda: VERSION)
    elsewhere: set[str] = field(default_factory=set)


_known: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


def run_in(sandbox: Any, asked: Call) -> ToolResult:
    """Run a call in a sandbox, and wait for its end.

    `sandbox` has `exec` as `Sandbox` does. The call's own limit counts from now, the start of an interpreter inside
    it. Raises what `exec` raises, before anything ran: SandboxEnded, SandboxPaused, ServerUnreachable.
    """
    if _is_async(sandbox):
        raise UsageError("an AsyncSandbox is for call_async: give a Sandbox here")
    steps = _steps(asked, sandbox)
    try:
        order = next(steps)
        while True:
            # An empty context: the task around it and its limits were asked already, for the function.
            order = steps.send(Context().run(partial(sandbox.exec, cancel=asked.cancel, **order)))
    except StopIteration as ended:
        return _result(ended.value)


async def run_in_async(sandbox: Any, asked: Call) -> ToolResult:
    """The async twin, for a Sandbox (in a thread) or an AsyncSandbox. Cancelling it ends the call."""
    if not _is_async(sandbox):
        return _result(
            await in_thread(
                lambda token: run_in(sandbox, asked.options(cancel=token, call_id=asked.call_id)), asked.cancel
            )
        )
    steps = _steps(asked, sandbox)
    try:
        order = next(steps)
        while True:
            work = sandbox.exec(cancel=asked.cancel, **order)
            order = steps.send(await asyncio.get_running_loop().create_task(work, context=Context()))
    except StopIteration as ended:
        return _result(ended.value)


def _result(value: Any) -> ToolResult:
    assert isinstance(value, ToolResult)
    return value


def _is_async(sandbox: Any) -> bool:
    return inspect.iscoroutinefunction(sandbox.exec)


def _known_of(sandbox: Any) -> _Known:
    try:
        return _known.setdefault(sandbox, _Known())
    except TypeError:  # one that cannot be remembered
        return _Known()


def _steps(asked: Call, sandbox: Any) -> Generator[Order, ToolResult, ToolResult]:
    """Orders for `exec`, until one was run by a Python that took it. Nothing of the function runs before that."""
    tool = asked.tool
    if tool.inline or tool.soft_timeout is not None:
        raise UsageError("a call in a sandbox of a server has neither isolation='inline' nor a soft limit")
    end, limit = asked.resolve()
    known = _known_of(sandbox)
    for _ in range(TRIES):
        left = end - clock.monotonic()
        if left <= 0:
            return over_before_start(asked, limit)
        if (refused := lease_is_over(asked)) is not None:
            return refused
        mark = secrets.token_hex(16)
        try:
            request = _request(asked, known)
        except Exception as problem:
            return cannot_be_sent(asked, problem)
        program = _program()
        stdin = program + json.dumps({"mark": mark, **request}).encode("ascii")
        told = yield {
            "cmd": ["python3", "-u", "-c", BOOT, str(len(program))], "stdin": stdin, "tail": TAIL_BYTES,
            "timeout": None if left == float("inf") else left,
        }  # fmt: skip
        kind, body, told = _answer(told, mark)
        if kind == "elsewhere" and request["how"] == "name":
            known.elsewhere.add(request["module"])
        elif kind == "version" and (version := _version(body)) is not None and known.version != version:
            known.version = version
        else:
            return _outcome(asked, told, kind, body, limit)
    return never_ran(
        asked, Status.REFUSED, "policy", "the sandbox's Python answered that it cannot take it in any form"
    )


# -- there -----------------------------------------------------------------------------------------------------------


@cache
def _program() -> bytes:
    return (Path(drivers.__file__).parent / "call.py").read_bytes()


def _request(asked: Call, known: _Known) -> dict[str, Any]:
    """Raises what pickling raises, and UsageError."""
    function, arguments = asked.tool.function, (asked.args, asked.kwargs)
    same = known.version == VERSION
    place = reference(function)
    if place is not None and place[0] not in known.elsewhere:
        module, name, file = place
        packed = pack(arguments) if same else dumps(arguments, 5)
        if b"cloudpickle" not in packed:
            return {
                "how": "name", "module": module, "name": name, "packed": _text(packed),
                "digest": None if module.split(".")[0] in sys.stdlib_module_names else _digest(file),
            }  # fmt: skip
    if not same:
        source = Source(function)
        return {
            "how": "source", "source": source.text, "name": source.name, "modules": source.modules,
            "data": _text(source.packed_data()), "packed": _text(dumps(arguments, 5)),
        }  # fmt: skip
    whole = partial(function, *asked.args, **asked.kwargs)
    whole.__module__ = getattr(function, "__module__", "__main__")  # so that what it uses of it goes along
    whole.__qualname__ = getattr(function, "__qualname__", repr(function))  # type: ignore[attr-defined]
    packed = pack_function(whole, whole_module=True)
    more = {"cloudpickle": _cloudpickle()} if b"cloudpickle" in packed else {}
    return {"how": "value", "version": list(VERSION), "packed": _text(packed), **more}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _digest(file: str | None) -> str:
    """Of the module as it is on disk; of none where there is no file: then nothing has the same."""
    try:
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()
    except OSError:
        return "none"


@cache
def _cloudpickle() -> dict[str, str]:
    """Ours, for where it is missing or another."""
    found: Any = sys.modules["cloudpickle"]  # packing has loaded it
    folder = Path(found.__file__).parent
    sources = {f"cloudpickle.{file.stem}": file.read_text("utf-8") for file in folder.glob("*.py")}
    sources["cloudpickle"] = sources.pop("cloudpickle.__init__")
    return {"version": found.__version__, "sources": _text(zlib.compress(json.dumps(sources).encode()))}


# -- and back --------------------------------------------------------------------------------------------------------


def _answer(told: ToolResult, mark: str) -> tuple[str, bytes, ToolResult]:
    """Kind and body of its answer ("" for none), and the result without that in its output."""
    out = told.stdout
    try:
        printed, text = taken_out(out.raw, mark.encode("ascii"))
    except Damaged:
        return "", b"", told
    total = out.bytes_total - (len(out.raw) - len(printed))
    kept = printed[-PRINTED_BYTES:]
    told = ToolResult.made(
        {**vars(told), "stdout": Output(kept, total, total - len(kept)), "stderr": _cut(told.stderr)}
    )
    if text is None:
        return "", b"", told
    kind, _, body = text.partition(b" ")
    return kind.decode("ascii", "replace"), body, told


def _cut(output: Output) -> Output:
    raw = output.raw[-PRINTED_BYTES:]
    return Output(raw, output.bytes_total, output.bytes_total - len(raw))


def _version(body: bytes) -> tuple[int, int] | None:
    words = body.split()
    if len(words) == 2 and all(word.isdigit() and len(word) < 4 for word in words):
        return int(words[0]), int(words[1])
    return None


def _outcome(asked: Call, told: ToolResult, kind: str, body: bytes, limit: FiredLimit | None) -> ToolResult:
    fields = {
        **vars(told), "tool": asked.tool.name, "call_id": asked.call_id, "effect": asked.tool.effect, "exit_code": None,
    }  # fmt: skip
    answered = kind in ("value", "raised")
    if told.status is Status.COMPLETED and answered:
        fields.update(_read(kind, body))
    elif told.start_errno is not None:
        return never_ran(asked, Status.REFUSED, "policy", "there is no python3 in the sandbox")
    elif told.status in (Status.COMPLETED, Status.SIGNALED):
        how = f"signal {told.signal}" if told.signal else f"exit code {told.exit_code}"
        fields.update(status=Status.CRASHED, error_message=f"its process ended ({how}) without an answer")
    else:
        if told.limit is not None and told.limit.which == "call":
            fields["limit"] = limit
        if answered:
            fields["late"] = _late(kind, body)
    if told.status is not Status.REFUSED:
        fields["environment"] = told.environment or "its sandbox goes on, with the files it wrote"
    return ToolResult.made(fields)


def _read(kind: str, body: bytes) -> dict[str, Any]:
    try:
        if kind == "value":
            return {"value": answers.load("sandbox", body)}
        return {"status": Status.ERROR, **answers.error_fields("sandbox", body)}
    except Exception as problem:
        text = f"its result cannot be loaded here: {problem}"
        return {"status": Status.ERROR, "error_type": type(problem).__name__, "error_message": text}


def _late(kind: str, body: bytes) -> Late:
    found = _read(kind, body)
    if "value" in found:
        return Late("value", repr(found["value"])[:1000], 0.0, found["value"])
    return Late("error", f"{found['error_type']}: {found['error_message']}"[:1000], 0.0)
