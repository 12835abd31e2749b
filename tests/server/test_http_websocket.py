# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401, F811 -- fixtures are imported, and used by their names
"""A command over a WebSocket, by a client of another make than the server's own frames."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from http_front import Front, alive, front, root_host, sandbox
from test_http_execs import execs, running

from hosts import within

aiohttp = pytest.importorskip("aiohttp")

Talk = Callable[[Any], Coroutine[Any, Any, list[dict[str, Any]]]]


def converse(front: Front, sandbox: str, talk: Talk) -> list[dict[str, Any]]:
    async def run() -> list[dict[str, Any]]:
        connector = aiohttp.UnixConnector(path=front.socket)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.ws_connect(f"http://localhost/v1/sandboxes/{sandbox}/exec/ws") as wire,
        ):
            return await asyncio.wait_for(talk(wire), 20)

    return asyncio.run(run())


async def rest(wire: Any) -> list[dict[str, Any]]:
    return [message.json() async for message in wire if message.type is aiohttp.WSMsgType.TEXT]


def text(messages: list[dict[str, Any]], kind: str) -> str:
    return "".join(message["chunk"] for message in messages if message["type"] == kind)


def test_start_stdin_and_exit(front: Front, sandbox: str) -> None:
    async def talk(wire: Any) -> list[dict[str, Any]]:
        await wire.send_json({"type": "start", "cmd": "cat; echo e >&2; exit 5"})
        started = await wire.receive_json()
        await wire.send_json({"type": "stdin", "data": "a"})
        await wire.send_json({"type": "stdin", "data_base64": base64.b64encode(b"b\n").decode()})
        await wire.send_json({"type": "stdin_close"})
        return [started, *await rest(wire)]

    messages = converse(front, sandbox, talk)
    assert messages[0]["type"] == "started" and messages[0]["exec_id"]
    assert text(messages, "stdout") == "ab\n" and text(messages, "stderr") == "e\n"
    assert messages[-1]["type"] == "exit" and messages[-1]["exit_code"] == 5 and messages[-1]["result"]


@pytest.mark.parametrize(
    ("order", "status"), [({"type": "signal", "signal": "SIGTERM"}, "signaled"), ({"type": "cancel"}, "cancelled")]
)
def test_signal_and_cancel(front: Front, sandbox: str, order: dict[str, str], status: str) -> None:
    async def talk(wire: Any) -> list[dict[str, Any]]:
        await wire.send_json({"type": "start", "cmd": ["sleep", "97531"]})
        await wire.receive_json()
        await wire.send_json(order)
        return await rest(wire)

    last = converse(front, sandbox, talk)[-1]
    assert last["result"]["status"] == status and last["type"] == ("exit" if status == "signaled" else "error")


def test_a_timeout(front: Front, sandbox: str) -> None:
    async def talk(wire: Any) -> list[dict[str, Any]]:
        await wire.send_json({"type": "start", "cmd": "echo x; sleep 9", "timeout_seconds": 0.3})
        return await rest(wire)

    last = converse(front, sandbox, talk)[-1]
    assert last["type"] == "error" and "timeout" in last["error"]


def test_closing_ends_the_command(front: Front, sandbox: str) -> None:
    async def talk(wire: Any) -> list[dict[str, Any]]:
        await wire.send_json({"type": "start", "cmd": ["sleep", "97532"]})
        await wire.receive_json()
        return []

    converse(front, sandbox, talk)
    within(5, lambda: not running(front, sandbox))
    assert execs(front, sandbox)[-1]["outcome"] == "cancelled" and not alive("97532")


@pytest.mark.parametrize(
    "first",
    [
        "{",
        "[]",
        '{"type":"stdin","data":"x"}',
        '{"type":"start"}',
        '{"type":"start","cmd":"x","bad":1}',
        '{"type":"no"}',
    ],
)
def test_nonsense_at_first_is_an_error_and_starts_nothing(front: Front, sandbox: str, first: str) -> None:
    before = len(execs(front, sandbox))

    async def talk(wire: Any) -> list[dict[str, Any]]:
        await wire.send_str(first)
        return await rest(wire)

    (message,) = converse(front, sandbox, talk)
    assert message["type"] == "error" and message["status"] in (400, 422)
    assert len(execs(front, sandbox)) == before


def test_no_upgrade_is_426(front: Front, sandbox: str) -> None:
    front.ask("GET", f"/v1/sandboxes/{sandbox}/exec/ws").problem(426)
    front.ask("GET", "/v1/sandboxes/none/exec/ws").problem(404)
