# SPDX-License-Identifier: Apache-2.0
"""A server for each module, ended after it; and nothing of a test's sandboxes may outlive the test."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from server_process import Serving, serving

import hosts


@pytest.fixture(scope="session")
def server_host() -> Iterator[hosts.Host]:
    """Whoever runs the tests."""
    pytest.importorskip("aiohttp", reason="deadstop[server] is not installed")
    made = hosts.make(next(iter(hosts.available())))
    if isinstance(made, str):
        pytest.skip(made)
    yield made
    shutil.rmtree(made.folder.parent, ignore_errors=True)


@pytest.fixture(scope="module")
def start_server(server_host: hosts.Host) -> Iterator[Callable[..., Serving]]:
    """Start a server with these words (and `patience=`); it is stopped, and looked at, when the module is through."""
    with ExitStack() as servers:

        def start(*words: str, **options: Any) -> Serving:
            return servers.enter_context(serving(server_host, *words, **options))

        yield start


@pytest.fixture(scope="module")
def module_server(start_server: Callable[..., Serving], request: pytest.FixtureRequest) -> Serving:
    """The module's server. What it names PATIENCE is the server's."""
    return start_server(patience=getattr(request.module, "PATIENCE", None))


@pytest.fixture
def server(module_server: Serving) -> Iterator[Serving]:
    """The module's server. Sandboxes that the test left are ended after it."""
    yield module_server
    for sandbox in module_server.live():
        module_server.delete(sandbox["id"])
