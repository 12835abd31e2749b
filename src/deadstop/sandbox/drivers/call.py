# SPDX-License-Identifier: Apache-2.0
"""One call of a Python function in a sandbox. Sent there, and run by the python3 (3.9 or later) that is there.

The rest of stdin is a JSON object that says what to call. The answer is written behind what the function printed, in
frames as in python.py: `value` or `raised` and JSON, or what keeps it from being called at all: `elsewhere` (the
module is not here, or another one by this name) or `version` (by value, from another Python) and the version here.

It imports what it needs when it needs it: all this is part of the time of a call.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import json
import os
import pickle
import sys
from binascii import a2b_base64, b2a_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 3500
PRIVATE_FD = 200
TEXT_CHARS = 20_000
ANSWER_BYTES = 4 << 20  # what the caller reads of a sandbox
SOURCE = "<function>"


class Elsewhere(Exception):
    """It cannot be had by its name here."""


class OtherVersion(Exception):
    """Code from another Python cannot be run by this one."""


class Sent:
    """Modules that came with the call."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in self.sources:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package="." not in fullname)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        """As usual."""

    def exec_module(self, module: Any) -> None:
        exec(compile(self.sources[module.__name__], f"<{module.__name__}>", "exec"), module.__dict__)


def main() -> None:
    request = json.loads(read_all(0))
    out = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, PRIVATE_FD)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    sys.argv = [""]
    pid = os.getpid()
    answer = answer_to(request).encode("ascii")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue
    if os.getpid() == pid:  # not a child that the function forked
        frames(out, request["mark"].encode("ascii"), answer)
    os._exit(0)


def read_all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def frames(fd: int, mark: bytes, text: bytes) -> None:
    parts = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
    for number, part in enumerate(parts):
        data = b"\x1e" + mark + b" " + (b"." if number == len(parts) - 1 else b"+") + part + b"\n"
        while data:
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:  # somebody who shares the pipe made it so
                import select

                select.select([], [fd], [])


def answer_to(request: dict[str, Any]) -> str:
    try:
        function, args, kwargs = loaded(request)
    except Elsewhere:
        return "elsewhere"
    except OtherVersion:
        return "version {} {}".format(*sys.version_info[:2])
    except BaseException as problem:
        where = RuntimeError(f"the function could not be loaded in the sandbox: {text_of(problem)}")
        return "raised " + raised(where.with_traceback(problem.__traceback__))
    try:
        value = function(*args, **kwargs)
        if type(value).__name__ == "coroutine":
            import asyncio

            value = asyncio.run(value)
    except BaseException as problem:
        return "raised " + raised(problem)
    try:
        text = json.dumps(plain(value, 0))
        if len(text) > ANSWER_BYTES:
            raise ValueError(f"{len(text)} bytes; a sandbox may return {ANSWER_BYTES}: write a file instead")
        return "value " + text
    except BaseException as problem:
        kind = type(value).__name__
        return "raised " + raised(TypeError(f"the result, a {kind}, cannot be sent back: {text_of(problem)}"))


# -- the function ----------------------------------------------------------------------------------------------------


def loaded(request: dict[str, Any]) -> tuple[Any, Any, Any]:
    if request["how"] == "name":
        function = by_name(request["module"], request["name"], request["digest"])
    elif request["how"] == "source":
        function = by_source(request)
    else:
        if list(sys.version_info[:2]) != request["version"]:
            raise OtherVersion
        give_cloudpickle(request.get("cloudpickle"))
        function = pickle.loads(a2b_base64(request["packed"]))
        return function, (), {}
    args, kwargs = pickle.loads(a2b_base64(request["packed"]))
    return function, args, kwargs


def by_name(module: str, name: str, digest: str | None) -> Any:
    """The function, if its module is here. With a digest, only if its file has the same content."""
    try:
        spec = importlib.util.find_spec(module)
        if digest is not None:
            import hashlib

            with open(spec.origin or "", "rb") as file:  # type: ignore[union-attr]
                if hashlib.sha256(file.read()).hexdigest() != digest:
                    raise Elsewhere
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception:
        raise Elsewhere from None
    return found.function if type(found).__module__ == "deadstop.executor.tool" else found


def by_source(request: dict[str, Any]) -> Any:
    space: dict[str, Any] = {"__name__": "__main__"}
    for name, module in request["modules"].items():
        space[name] = importlib.import_module(module)
    space.update(pickle.loads(a2b_base64(request["data"])))
    import linecache

    text = request["source"]
    linecache.cache[SOURCE] = len(text), None, text.splitlines(True), SOURCE
    exec(compile(text, SOURCE, "exec"), space)
    return space[request["name"]]


def give_cloudpickle(sent: dict[str, str] | None) -> None:
    """What is here, if it is the caller's version; otherwise the caller's own."""
    if sent is None:
        return
    try:
        import cloudpickle

        if cloudpickle.__version__ == sent["version"]:
            return
    except Exception:
        pass
    for name in [name for name in sys.modules if name.split(".")[0] == "cloudpickle"]:
        del sys.modules[name]
    import zlib

    sys.meta_path.insert(0, Sent(json.loads(zlib.decompress(a2b_base64(sent["sources"])))))


# -- its answer ------------------------------------------------------------------------------------------------------


def plain(value: Any, depth: int) -> Any:
    """JSON with a tag for what JSON does not have, as a sandbox's worker makes it (worker/answers.py)."""
    if depth > 100:
        raise TypeError("a value nested this deeply cannot leave a sandbox")
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 64 else {"int": format(value, "x")}
    if kind in (bytes, bytearray):
        return {kind.__name__: b2a_base64(value, newline=False).decode("ascii")}
    if kind in (list, tuple, set, frozenset):
        return {kind.__name__: [plain(part, depth + 1) for part in value]}
    if kind is dict:
        return {"dict": [[plain(key, depth + 1), plain(part, depth + 1)] for key, part in value.items()]}
    raise TypeError(f"a {kind.__name__} cannot leave a sandbox: return plain data (numbers, text, bytes, lists, dicts)")


def raised(problem: BaseException) -> str:
    return json.dumps([type(problem).__name__, text_of(problem), trace_of(problem)])


def text_of(problem: BaseException) -> str:
    try:
        return str(problem)[:TEXT_CHARS]
    except Exception as worse:
        return f"<its text cannot be had: {type(worse).__name__}>"


def trace_of(problem: BaseException) -> str:
    """The traceback from the function's first frame on."""
    try:
        import traceback

        found = traceback.TracebackException(type(problem), problem, problem.__traceback__)
        own = trace_of.__code__.co_filename
        found.stack = traceback.StackSummary.from_list([line for line in found.stack if line.filename != own])
        return "".join(found.format())[-TEXT_CHARS:]
    except BaseException as worse:
        return f"<its traceback cannot be had: {type(worse).__name__}>"
