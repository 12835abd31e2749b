# SPDX-License-Identifier: Apache-2.0
"""Tests written as coroutines run inside a process that keeps sandboxes (keeper.py), as each kind of host."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import keeping
import pytest
from layerbox import LayerBox, kinds, layer_box

import hosts

_keepers: dict[tuple[str, str], keeping.Keeper] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that names its kinds runs as these alone."""
    items[:] = [item for item in items if _is_wanted(item)]


def _is_wanted(item: pytest.Item) -> bool:
    called_with = getattr(item, "callspec", None)
    if called_with is None or "keeper" not in called_with.params:
        return True
    wanted = getattr(item.function, "kinds", None) or getattr(item.module, "KINDS", None)  # type: ignore[attr-defined]
    return wanted is None or called_with.params["keeper"] in wanted


@pytest.fixture(params=keeping.KINDS)
def keeper(request: pytest.FixtureRequest, _made_hosts: dict[str, hosts.Host | str]) -> keeping.Keeper:
    """The process that this module's tests of one kind run in. The first to ask starts it, and all of them."""
    module, kind = request.module.__name__, request.param
    if (module, kind) not in _keepers:
        for other in [each for each in _keepers if each[0] != module]:
            _keepers.pop(other).close()
        for each in keeping.KINDS:  # all kinds of the module at once: most of what they do is waiting
            tests = _tests_of(request.session, module, each)
            host = keeping.host_of(each, _made_hosts)
            if tests and isinstance(host, hosts.Host):
                _keepers[module, each] = keeping.Keeper(host, each)
                _keepers[module, each].begin(module, tests)
    if (module, kind) not in _keepers:
        pytest.skip(f"{keeping.host_of(kind, _made_hosts)}")
    return _keepers[module, kind]


def _tests_of(session: pytest.Session, module: str, kind: str) -> list[str]:
    chosen = []
    for item in session.items:
        called_with = getattr(item, "callspec", None)
        if (
            isinstance(item, pytest.Function)
            and item.module.__name__ == module
            and inspect.iscoroutinefunction(item.function)
            and called_with is not None
            and called_with.params.get("keeper") == kind
        ):
            chosen.append(item.function.__name__)
    return chosen


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    if not inspect.iscoroutinefunction(pyfuncitem.function) or "keeper" not in pyfuncitem.funcargs:
        return None
    pyfuncitem.funcargs["keeper"].outcome_of(pyfuncitem.function.__name__)
    return True


@pytest.fixture(scope="session", autouse=True)
def _no_keepers_left(_made_hosts: dict[str, hosts.Host | str]) -> Iterator[None]:
    yield
    for key in list(_keepers):
        _keepers.pop(key).close()


@pytest.fixture(params=kinds())
def box(request: pytest.FixtureRequest) -> Iterator[LayerBox]:
    with layer_box(request.param) as made:
        yield made


@pytest.fixture(params=kinds())
def swift_box(request: pytest.FixtureRequest) -> Iterator[LayerBox]:
    """In memory, where 5000 directories are made in no time."""
    with layer_box(request.param, swift=True) as made:
        yield made
