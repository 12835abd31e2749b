# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest

import deadstop
from serving import Served, served


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """One real server for all these tests."""
    pytest.importorskip("aiohttp")
    pytest.importorskip("httpx2")
    with served() as made:
        yield made


@pytest.fixture
def own_server() -> Iterator[Served]:
    """One to be frozen or killed."""
    pytest.importorskip("aiohttp")
    pytest.importorskip("httpx2")
    with served() as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(server: Served) -> Iterator[deadstop.Sandbox]:
    """One sandbox for the tests of a module that leave it as it was."""
    with deadstop.Sandbox.create(ttl=300, server=server.url) as made:
        yield made
