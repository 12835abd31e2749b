# SPDX-License-Identifier: Apache-2.0
"""What a payload, a stranger on the network and a damaged folder could do to a server, and to who else is on it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from keeper import Bench, refused

from deadstop.errors import NotAllowed
from deadstop.sandbox.layers.removing import unhurried

try:  # in the keeper's process there are none of these, and none is needed
    import pytest

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "server"))
    from server_process import Serving, serving

    import hosts
except ImportError:
    pass

KINDS = ("root", "user")
REMOVALS = 12  # more than a small machine's event loop has threads
IDLE, MOST, FEW = 330, 300, 256  # connections of a stranger, those that there may be, descriptors to begin with


# -- in the process that keeps sandboxes -----------------------------------------------------------------------------


async def test_removing_what_a_payload_left_holds_up_nobody(keeper: Bench) -> None:
    bench, release = keeper, threading.Event()
    async with bench.another_host() as host:
        slow = [asyncio.create_task(host.store._remove(lambda: bool(release.wait(30)))) for _ in range(REMOVALS)]  # type: ignore[arg-type,return-value]
        try:
            async with asyncio.timeout(10):
                sandbox = await bench.create(host=host)
                assert await bench.said(sandbox, "echo on") == "on"
                snapshot = await host.snapshots.take(sandbox, None)
                assert snapshot.id
                end = await sandbox.kill()
            assert end is not None and end["survivors"] == 0
            assert not any(task.done() for task in slow)
        finally:
            release.set()
            await asyncio.gather(*slow)


async def test_a_removal_says_what_went_wrong(keeper: Bench) -> None:
    def fail() -> None:
        raise PermissionError(1, "no")

    with refused(PermissionError):
        await unhurried(fail)
    await unhurried(lambda: None)


async def test_a_damaged_state_folder_keeps_no_server_from_its_start(keeper: Bench) -> None:
    bench, state = keeper, Path(keeper.folder, f"damaged-{keeper.mark}")
    texts = ("", "{", "[]", "1", "{}", "[" * 100_000, '{"id": 1}', "\0", '{"wish": {}}')
    for folder in ("sandboxes", "snapshots", "templates", "outputs"):
        (state / folder).mkdir(parents=True, mode=0o700)
        for number, text in enumerate(texts):
            (state / folder / f"{number}.json").write_text(text)
            (state / folder / f"{number}.json.new").write_text(text)
        (state / folder / "folder.json").mkdir()
        (state / folder / "folder.json.new").mkdir()
    async with bench.another_host(state.name) as host:
        sandbox = await bench.create(host=host)
        assert await bench.said(sandbox, "echo on") == "on"


async def test_a_state_folder_that_others_may_write_to_is_refused(keeper: Bench) -> None:
    bench, state = keeper, Path(keeper.folder, f"open-{keeper.mark}")
    state.mkdir()
    state.chmod(0o777)
    with refused(NotAllowed):
        async with bench.another_host(state.name):
            pass
    assert os.listdir(state) == []  # nothing was made for whoever may be waiting there
    if os.geteuid() == 0:
        state.chmod(0o700)
        os.chown(state, 41_731, 41_731)
        with refused(NotAllowed):
            async with bench.another_host(state.name):
                pass


# -- against a real server -------------------------------------------------------------------------------------------


@contextmanager
def served(kind: str, *words: str, **patience: float) -> Iterator[Serving]:
    """A server as this user, if that one has what it needs."""
    if kind not in hosts.available():
        pytest.skip(f"no host {kind} for this user")
    host = hosts.make(kind)
    if isinstance(host, str):
        pytest.skip(host)
    try:
        host.source += os.pathsep + sysconfig.get_path("purelib")  # another interpreter of the same version, at times
        check = host.popen([host.python, "-c", "import aiohttp, msgspec, prometheus_client"], stderr=subprocess.DEVNULL)
        if check.wait(20):
            pytest.skip(f"deadstop[server] is not installed for {host.python}")
        with serving(host, *words, clean=False, patience=patience) as server:
            yield server
    finally:
        shutil.rmtree(host.folder.parent, ignore_errors=True)


@contextmanager
def few_descriptors() -> Iterator[None]:
    """What is started in it has the usual soft limit of a small host."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 4 * IDLE:
        pytest.skip("this host gives too few descriptors for it")
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", KINDS)


def test_a_stranger_who_takes_every_connection_does_not_lock_the_owner_out(kind: str) -> None:
    with ExitStack() as stack:
        with few_descriptors():
            server = stack.enter_context(served(kind, connections=MOST))
        idle: list[socket.socket] = [stack.enter_context(server.raw()) for _ in range(IDLE)]  # without a token
        answer = server.ask("GET", "/v1/sandboxes")
        assert (answer.status, answer.document["kind"], answer.headers["Retry-After"]) == (503, "capacity", "1")
        answer = server.ask("POST", "/v1/sandboxes", {}, unix=True)
        assert answer.status == 201, answer.body
        path = f"/v1/sandboxes/{answer.document['id']}"
        answer = server.ask("POST", f"{path}/exec", {"cmd": "echo on", "timeout_seconds": 10}, unix=True)
        assert answer.document["stdout"] == "on\n"
        assert server.ask("DELETE", path, unix=True).document["end"]["receipt"]["survivors"] == 0
        for connection in idle:
            connection.close()
        answer = server.ask("GET", "/healthz", unix=True)
        assert answer.status == 200
        assert len(server.log()) < 1 << 20


def test_nobody_writes_lines_of_their_own_into_the_log() -> None:
    forged = "%0a2026-01-01 INFO sandbox_ended%1b[31m".replace(" ", "%20")
    with served(next(iter(hosts.available())), "--log-format", "text") as server:
        assert server.ask("GET", f"/v1/sandboxes/{forged}").status == 404
        answer = server.ask("GET", f"/v1/sandboxes/{forged}", Authorization="Bearer wrong")
        assert answer.status == 401
        lines = server.log().splitlines()
    assert sum("sandbox_ended" in line for line in lines) == 2
    assert not any(line.startswith("2026-01-01") or "\x1b" in line for line in lines)
    assert json.dumps(answer.document).isascii()
