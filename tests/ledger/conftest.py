# SPDX-License-Identifier: Apache-2.0
"""Ledgers in each kind of store. Nothing of them is kept, and no PostgreSQL server outlives the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pg_server
import stores

from deadstop.ledger.ledger import Ledger
from deadstop.ledger.store import Store


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stores.Databases]:
    """Fresh schemas of PostgreSQL: `databases.fresh()` is a URL. The server starts when the first is wanted."""
    if (why := pg_server.why_not()) is not None:
        pytest.skip(why)
    folder = tmp_path_factory.getbasetemp()
    made = stores.Databases(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
    yield made
    made.release()


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and checkpoints of these ledgers stay here."""
    for name in ("DEADSTOP_LEDGER", "DEADSTOP_LEDGER_KEY", "DEADSTOP_CHECKPOINTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DEADSTOP_STATE", str(tmp_path / "state"))


def _ground(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[stores.Ground]:
    databases = request.getfixturevalue("databases") if kind == "postgresql" else None
    made = stores.Ground(kind, stores.place(kind, folder, databases))
    yield made
    made.release()


@pytest.fixture(params=stores.KINDS)
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[stores.Ground]:
    """A place for a ledger, of each kind in turn."""
    yield from _ground(request.param, request, tmp_path)


@pytest.fixture(params=stores.LASTING)
def lasting_ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[stores.Ground]:
    """Those that outlive their process."""
    yield from _ground(request.param, request, tmp_path)


@pytest.fixture
def pg_ground(databases: stores.Databases) -> Iterator[stores.Ground]:
    made = stores.Ground("postgresql", databases.fresh())
    yield made
    made.release()


@pytest.fixture
def store(ground: stores.Ground) -> Store:
    return ground.open()


@pytest.fixture
def ledger(ground: stores.Ground) -> Iterator[Ledger]:
    made = ground.ledger()
    yield made
    made.close()
