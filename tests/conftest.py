# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import hosts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A module that names HOSTS is run on these alone: what it shows is the same for every boundary of their kind."""
    items[:] = [item for item in items if _is_wanted(item)]


def _is_wanted(item: pytest.Item) -> bool:
    wanted = getattr(getattr(item, "module", None), "HOSTS", None)
    called_with = getattr(item, "callspec", None)
    return wanted is None or called_with is None or called_with.params.get("host", wanted[0]) in wanted


@pytest.fixture(scope="session")
def _made_hosts() -> Iterator[dict[str, hosts.Host | str]]:
    made: dict[str, hosts.Host | str] = {}
    yield made
    for host in made.values():
        if isinstance(host, hosts.Host):
            shutil.rmtree(host.folder.parent, ignore_errors=True)


def _get(made: dict[str, hosts.Host | str], name: str) -> Iterator[hosts.Host]:
    host = made.setdefault(name, hosts.make(name)) if name not in made else made[name]
    if isinstance(host, str):
        pytest.skip(host)
    yield host
    host.no_survivors(within=2)


@pytest.fixture(params=[name for name in hosts.available() if name != "no-userns"])
def host(request: pytest.FixtureRequest, _made_hosts: dict[str, hosts.Host | str]) -> Iterator[hosts.Host]:
    """Each host in turn. After the test nothing that was started through it may be left.

    Without namespaces the one that also has no cgroup stands for both: for an ordinary user they differ only where
    somebody has delegated a cgroup. tests/cases, the conformance suite, names all four.
    """
    yield from _get(_made_hosts, request.param)


@pytest.fixture(params=[name for name in hosts.available() if "no-userns" not in name])
def namespace_host(request: pytest.FixtureRequest, _made_hosts: dict[str, hosts.Host | str]) -> Iterator[hosts.Host]:
    """The hosts that give namespaces: root and an ordinary user. For the sandbox level."""
    yield from _get(_made_hosts, request.param)


@pytest.fixture
def one_host(_made_hosts: dict[str, hosts.Host | str]) -> Iterator[hosts.Host]:
    """Whoever runs the tests: for what does not depend on the host."""
    yield from _get(_made_hosts, next(iter(hosts.available())))


@pytest.fixture
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The ledger that tools with effects use, in a file of this test's; EFFECTS names one for what they do."""
    from deadstop.ledger.ledger import default

    monkeypatch.setenv("DEADSTOP_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.setenv("EFFECTS", str(tmp_path / "effects"))
    made = default()
    yield made
    made.close()
