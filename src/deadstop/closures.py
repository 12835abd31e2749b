# SPDX-License-Identifier: Apache-2.0
"""Objects on their way into another process: pickle where it can, cloudpickle for what has no importable name.

The only file that imports cloudpickle. It is loaded when it is first needed: commands never need it, and functions
that can be imported by name do not either.
"""

from __future__ import annotations

import importlib
import sys
import threading
import types
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache
from io import BytesIO
from opcode import opmap
from pickle import PicklingError, dumps

from .errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Snapshot = tuple[Any, ...]

_MAIN = b"__main__"
_ATOMS = (int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented))
_MISSING = object()
_DEREF = {opmap["STORE_DEREF"], opmap["DELETE_DEREF"]}
_STORES = {opmap["STORE_GLOBAL"], opmap["DELETE_GLOBAL"], *_DEREF}
_stores_of_code: dict[types.CodeType, bool] = {}
_names_of_code: dict[types.CodeType, tuple[str, ...]] = {}


def pack(value: object) -> bytes:
    """Pickled so that a process without our `__main__` can load it. Raises PicklingError or what an object raises."""
    try:
        packed = dumps(value, 5)
    except Exception as problem:
        return _by_value(value, problem)
    # pickle names what is in __main__ instead of taking it along: nobody else has our __main__.
    return packed if _MAIN not in packed else _by_value(value, None)


def _by_value(value: object, problem: Exception | None) -> bytes:
    try:
        pickler = _pickler()
    except ImportError:
        if problem is not None:
            raise problem from None
        raise UsageError("what is defined in the main script needs cloudpickle to be sent: install it") from None
    try:
        return _dump(pickler, value)
    except (PicklingError, TypeError, AttributeError, ValueError, RecursionError) as refused:
        raise PicklingError(f"{type(value).__name__} cannot be sent to another process: {refused}") from refused


def pack_function(function: Callable[..., object], *, whole_module: bool = False) -> bytes:
    """A function by value: its code, defaults, closure and the globals it names.

    `whole_module` takes along what it uses of its own module, too, for a place where that cannot be imported.
    Raises UsageError for one that cannot be sent.
    """
    name = getattr(function, "__qualname__", repr(function))
    try:
        pickler = _pickler()
    except ImportError:
        raise UsageError(f"{name} cannot be imported by name, and to send it by value needs cloudpickle") from None
    try:
        if whole_module and getattr(function, "__module__", "__main__") in sys.modules.keys() - {"__main__"}:
            with _one_at_a_time, _module_by_value(sys.modules[function.__module__]):
                return _dump(pickler, function)
        return _dump(pickler, function)
    except Exception as problem:
        raise UsageError(f"{name} cannot be sent to another process: {problem}") from problem


_one_at_a_time = threading.Lock()


@contextmanager
def _module_by_value(module: types.ModuleType) -> Iterator[None]:
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _dump(pickler: Any, value: object) -> bytes:
    file = BytesIO()
    pickler(file, 5).dump(value)
    return file.getvalue()


@cache
def _pickler() -> Any:
    """cloudpickle's, and context variables, which have no pickled form: found again by their name in a module."""
    import cloudpickle

    table = {"dispatch_table": cloudpickle.CloudPickler.dispatch_table.new_child({ContextVar: _reduce_variable})}
    return type("Pickler", (cloudpickle.CloudPickler,), table)


def _reduce_variable(variable: ContextVar[Any]) -> tuple[object, ...]:
    return variable_at, _place_of(variable) or ("__main__", variable.name)


_places: dict[ContextVar[Any], tuple[str, str] | None] = {}
_of_main: dict[str, ContextVar[Any]] = {}


def variable_at(module: str, name: str) -> ContextVar[Any]:
    """The context variable that a module has by this name. Of the caller's main script only the names are known."""
    if module == "__main__":
        return _of_main.setdefault(name, ContextVar(name))
    found: ContextVar[Any] = getattr(importlib.import_module(module), name)
    return found


def _place_of(variable: ContextVar[Any]) -> tuple[str, str] | None:
    """Module and name by which it can be found again; None if no module has it."""
    if variable not in _places:
        _places[variable] = next(
            (
                (name, attribute if name != "__main__" else variable.name)
                for name, module in list(sys.modules.items())
                for attribute, value in list(getattr(module, "__dict__", {}).items())
                if value is variable
            ),
            None,
        )
    return _places[variable]


def carried_variables() -> list[tuple[str, str, bytes]]:
    """Module, name and packed value of the context variables set here. One that nobody could find or load is left out.

    This package's own stay: what they hold is carried in other ways.
    """
    context = copy_context()
    if not context:
        return []
    found = []
    for variable, value in context.items():
        place = None if variable.name.startswith("deadstop_") else _place_of(variable)
        if place is not None:
            try:
                found.append((*place, pack(value)))
            except Exception:
                continue
    return found


def reference(function: Callable[..., object]) -> tuple[str, str, str | None] | None:
    """(module, qualified name, file) if another process can import this very function; None otherwise."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or "<locals>" in name or "<lambda>" in name:
        return None
    found: Any = sys.modules.get(module)
    spec = getattr(found, "__spec__", None)
    if spec is None or not (spec.origin or spec.submodule_search_locations):
        return None
    for part in name.split("."):
        found = getattr(found, part, _MISSING)
    if getattr(found, "function", found) is not function and found is not function:
        return None
    return module, name, spec.origin if spec.has_location else None


class Held:
    """What a function by value holds, apart from what in it cannot change: `fixed` is compared by identity.

    `cells` and `globals` may change between two calls; so may `defaults`, if it is not None.
    """

    __slots__ = ("cells", "defaults", "fixed", "globals")

    def __init__(self, function: types.FunctionType) -> None:
        """Raises ValueError for a cell that is still empty."""
        fixed: list[Any] = [function.__code__]
        self.cells: dict[int, Any] = {}
        self.globals: dict[str, Any] = {}
        for number, cell in enumerate(function.__closure__ or ()):
            part = cell.cell_contents
            if _fixed(part):
                fixed.append(part)
            else:
                self.cells[number] = part
                fixed.append(number)
        space = function.__globals__
        for name in _names(function.__code__):
            part = space.get(name, _MISSING)
            if _fixed(part):
                fixed.append(part)
            else:
                self.globals[name] = part
                fixed.append(name)
        defaults = function.__defaults__
        self.defaults = None if _fixed(defaults) else defaults
        fixed.append(defaults if self.defaults is None else True)
        self.fixed = tuple(fixed)

    def packed(self, number: int) -> bytes | None:
        """None if it holds more than data: code that belongs to the function's own must travel with it."""
        try:
            packed = dumps((number, self.cells, self.globals, self.defaults), 5)
        except Exception:
            return None
        return None if _MAIN in packed else packed

    def without(self, function: types.FunctionType) -> types.FunctionType:
        """The function with nothing in it that may change."""
        cells = tuple(
            types.CellType(None if number in self.cells else cell.cell_contents)
            for number, cell in enumerate(function.__closure__ or ())
        )
        space = {name: value for name, value in function.__globals__.items() if name not in self.globals}
        bare = types.FunctionType(function.__code__, space, function.__name__, function.__defaults__, cells or None)
        if self.defaults is not None:
            bare.__defaults__ = None
        bare.__qualname__, bare.__module__, bare.__doc__ = function.__qualname__, function.__module__, function.__doc__
        bare.__annotations__ = function.__annotations__
        return bare


def filled(
    bare: Any, cells: dict[int, Any], space: dict[str, Any], defaults: tuple[Any, ...] | None
) -> types.FunctionType:
    """In the worker: a new function of one that was sent without what may change. It shares nothing with the last."""
    closure = bare.__closure__
    if closure:
        closure = tuple(types.CellType(cells.get(number, cell.cell_contents)) for number, cell in enumerate(closure))
    function = types.FunctionType(
        bare.__code__, {**bare.__globals__, **space}, bare.__name__,
        bare.__defaults__ if defaults is None else defaults, closure,
    )  # fmt: skip
    function.__qualname__, function.__module__ = bare.__qualname__, bare.__module__
    return function


def snapshot(function: types.FunctionType) -> Snapshot | None:
    """The objects that a function by value consists of, if none of them can change from within; else None.

    Two equal snapshots (`same`) of one function are proof that its pickled form is unchanged.
    """
    cells = function.__closure__ or ()
    try:
        parts = [cell.cell_contents for cell in cells]
    except ValueError:  # a cell that is still empty
        return None
    space = function.__globals__
    parts += [space.get(name, _MISSING) for name in _names(function.__code__)]
    parts += function.__defaults__ or ()
    if function.__kwdefaults__ or function.__dict__ or _stores(function.__code__):
        return None
    if not all(_fixed(part) for part in parts):
        return None
    return (function.__code__, *parts)


def _stores(code: types.CodeType) -> bool:
    """Whether it rebinds a global or a captured name: then it leaves something behind in itself."""
    found = _stores_of_code.get(code)
    if found is None:
        own = any(
            operation in _STORES and (operation not in _DEREF or bool(code.co_freevars))
            for operation in code.co_code[::2]
        )
        inner = any(_stores(const) for const in code.co_consts if isinstance(const, types.CodeType))
        found = _stores_of_code[code] = own or inner
    return found


def same(before: Snapshot, now: Snapshot) -> bool:
    return len(before) == len(now) and all(one is other for one, other in zip(before, now, strict=True))


def _fixed(part: object) -> bool:
    kind = type(part)
    if kind in _ATOMS or part is _MISSING or kind is types.ModuleType or kind is types.BuiltinFunctionType:
        return True
    if kind is tuple:
        return all(map(_fixed, part))  # type: ignore[call-overload]
    return (kind is types.FunctionType or isinstance(part, type)) and reference(part) is not None  # type: ignore[arg-type]


def _names(code: types.CodeType) -> tuple[str, ...]:
    """Every name that the code, and code inside it, may look up in its globals."""
    found = _names_of_code.get(code)
    if found is None:
        if len(_names_of_code) > 10_000:
            _names_of_code.clear()
        inner = (name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const))
        found = _names_of_code[code] = tuple(dict.fromkeys((*_looked_up(code), *inner)))
    return found


def _looked_up(code: types.CodeType) -> list[str]:
    """Not every name in `co_names`: most are attributes, and a large global may have the name of one."""
    import dis

    return [each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
