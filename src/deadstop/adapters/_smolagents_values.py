# SPDX-License-Identifier: Apache-2.0
"""What passes between a smolagents executor and its worker, and what stands for the things that cannot pass."""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable, Generator, Iterator
from io import BytesIO
from types import CodeType, FunctionType, GeneratorType
from typing import Any, NoReturn

from smolagents import local_python_executor as upstream  # type: ignore[import-untyped,import-not-found,unused-ignore]

from ..closures import _pickler
from ..worker.answers import PlainData, type_of

TEXT_CHARS = 50_000  # of the text of a value that stays in the worker
_ATOMS = (str, int, float, bool, type(None))


class Unavailable:
    """Stands in the worker for a tool or variable of the caller's that could not be sent. Any use says so."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            f"'{self.name}' cannot be used here: the code runs in a process of its own, and it cannot be sent there "
            f"({self.reason})"
        )

    __call__ = __getitem__ = __iter__ = __len__ = __bool__ = __contains__ = _refuse

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        self._refuse()

    def __repr__(self) -> str:
        return f"<'{self.name}', which could not be sent to this process>"


class StayedInWorker:
    """Stands for a value that did not leave the worker: its text (`str()`), its type's name, and why it stayed."""

    def __init__(self, text: str, type_name: str, reason: str) -> None:
        self.text, self.type_name, self.reason = text, type_name, reason

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.type_name} that stayed in the worker: {self.reason}>"


class FunctionOfTheModel:
    """Stands for a function that the model wrote: its `__name__` and `__source__`, without its code."""

    def __init__(self, name: str, source: str) -> None:
        self.__name__, self.__source__ = name, source

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self.__name__} was written by a model: call it in a step, where a limit is kept")

    def __repr__(self) -> str:
        return f"<function {self.__name__}, written by a model>"


# -- whose code it is --------------------------------------------------------------------------------------------------


def written_by_a_model(value: object) -> bool:
    """Whether it is a function that smolagents' interpreter made of code it was given."""
    return (
        type(value) is FunctionType and value.__globals__ is vars(upstream) and "<locals>" in value.__code__.co_qualname
    )


def _class_written_by_a_model(value: object) -> bool:
    if not isinstance(value, type):
        return False
    made_there = value.__module__ == upstream.__name__ and getattr(upstream, value.__name__, None) is not value
    return made_there or any(map(written_by_a_model, vars(value).values()))


# -- pickling ----------------------------------------------------------------------------------------------------------


def dump(value: object) -> bytes:
    """By value what has no importable name, and generators as far as that is possible. Raises what pickling raises."""
    if type(value) in _ATOMS:
        return pickle.dumps(value, 5)
    file = BytesIO()
    _Picklers.everything()(file, 5).dump(value)
    return file.getvalue()


def dump_data(value: object) -> bytes:
    """As `dump`, but no code that a model wrote goes along: loading it, and using it, runs none."""
    if type(value) in _ATOMS:
        return pickle.dumps(value, 5)
    file = BytesIO()
    _Picklers.data()(file, 5).dump(value)
    return file.getvalue()


def dump_each(named: dict[str, Any]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Each by itself, and why the others cannot be sent."""
    sent, refused = {}, {}
    for name, value in named.items():
        try:
            sent[name] = dump(value)
        except Exception as problem:
            refused[name] = _why(problem)
    return sent, refused


def load_each(packed: dict[str, bytes], refused: dict[str, str]) -> dict[str, Any]:
    """The other side: what was refused there, or cannot be loaded here, is there by name and says why it is not."""
    found: dict[str, Any] = {name: Unavailable(name, reason) for name, reason in refused.items()}
    for name, body in packed.items():
        try:
            found[name] = pickle.loads(body)
        except Exception as problem:
            found[name] = Unavailable(name, _why(problem))
    return found


def _why(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"[:300]


class _Picklers:
    """Made when first needed: cloudpickle takes its time to load."""

    made: dict[str, Any] = {}  # noqa: RUF012

    @classmethod
    def everything(cls) -> Any:
        if "everything" not in cls.made:
            base = _pickler()
            table = base.dispatch_table.new_child({GeneratorType: _reduce_generator})
            cls.made["everything"] = type("Pickler", (base,), {"dispatch_table": table})
        return cls.made["everything"]

    @classmethod
    def data(cls) -> Any:
        if "data" not in cls.made:
            base = _pickler()

            def reducer_override(self: Any, value: object) -> Any:
                if written_by_a_model(value):
                    name, source = value.__name__, getattr(value, "__source__", "")  # type: ignore[attr-defined]
                    return FunctionOfTheModel, (name, source)
                if _class_written_by_a_model(value):
                    raise pickle.PicklingError(
                        "a model wrote its class, and what a model wrote is only used in the worker"
                    )
                return base.reducer_override(self, value)

            cls.made["data"] = type("DataPickler", (base,), {"reducer_override": reducer_override})
        return cls.made["data"]


# -- generators --------------------------------------------------------------------------------------------------------


def _generator_code() -> CodeType | None:
    """The code of the generators that the interpreter makes of generator expressions."""
    constants = upstream.evaluate_generatorexp.__code__.co_consts
    codes = [constant for constant in constants if isinstance(constant, CodeType)]
    return codes[0] if len(codes) == 1 else None


_GENERATOR_CODE = _generator_code()
_GENERATOR_PARTS = ("genexp", "state", "static_tools", "custom_tools", "authorized_imports")


def _reduce_generator(generator: GeneratorType[Any, Any, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """One that has not begun is what it is made of; one that has begun has a frame, which cannot be taken along."""
    created = inspect.getgeneratorstate(generator) == inspect.GEN_CREATED
    if created and generator.gi_code is _GENERATOR_CODE and generator.gi_frame is not None:
        found = generator.gi_frame.f_locals
        if all(name in found for name in _GENERATOR_PARTS):
            return upstream.evaluate_generatorexp, tuple(found[name] for name in _GENERATOR_PARTS)
    return begun_generator, (generator.__name__,)


def begun_generator(name: str) -> Generator[Any, None, None]:
    """A generator that only says what became of the one it stands for."""
    yield from _refused(f"the generator {name} had begun in another process, and cannot go on here")


def _refused(why: str) -> Iterator[Any]:
    raise TypeError(why)


# -- what a step gives -------------------------------------------------------------------------------------------------


def give(value: object, *, plain: bool) -> tuple[str, Any, str, str]:
    """(form, body, name of the type, reason): the value as data, or else its text, made here, where a limit is kept."""
    if plain:
        try:
            PlainData().value(value)
            return "plain", value, "", ""
        except Exception as problem:
            reason = str(problem)
    else:
        try:
            return "pickle", dump_data(value), "", ""
        except Exception as problem:
            reason = str(problem)
    return "text", str(value)[:TEXT_CHARS], type_of(value), reason


def take(given: tuple[str, Any, str, str]) -> Any:
    """The value, or what stands for it."""
    form, body, type_name, reason = given
    if form == "plain":
        return body
    if form == "text":
        return StayedInWorker(body, type_name, reason)
    try:
        return pickle.loads(body)
    except Exception as problem:
        return StayedInWorker(f"<a value that cannot be loaded here: {problem}>", "object", _why(problem))


class Told(upstream.PrintContainer):  # type: ignore[misc,unused-ignore]
    """What the code prints, and at once to stdout, too, which the supervisor keeps when this process is killed."""

    def append(self, text: Any) -> Told:
        return self.__iadd__(text)

    def __iadd__(self, other: Any) -> Told:
        text = str(other)
        try:
            sys.stdout.write(text)
        except (OSError, ValueError, AttributeError):
            pass
        self.value += text
        return self

    def __reduce__(self) -> Any:
        return _printed, (self.value,)


def _printed(value: str) -> Any:
    container = upstream.PrintContainer()
    container.value = value
    return container
