# SPDX-License-Identifier: Apache-2.0
"""The count and the order of interim responses, without a network."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from deadstop.server.interim import MOST, with_interim


class Wire:
    """What a request's transport is to the timer."""

    def __init__(self, version: tuple[int, int] = (1, 1)) -> None:
        self.version, self.transport, self.written, self.waiting = version, self, [], 0

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: bytes) -> None:
        self.written.append(data)


def sent(wire: Any, until: int, version: tuple[int, int] = (1, 1)) -> list[bytes]:
    """What is on the wire when `until` interims were due, and some time later."""

    async def work() -> str:
        for _ in range(until * 3):
            await asyncio.sleep(0.001)
        return "done"

    async def run() -> None:
        assert await with_interim(wire, work(), 0.001) == "done"
        after = len(wire.written)
        await asyncio.sleep(0.01)
        assert len(wire.written) == after

    asyncio.run(run())
    return list(wire.written)


def test_python_clients_raise_after_a_hundred_so_there_are_fewer() -> None:
    assert sent(Wire(), 150) == [b"HTTP/1.1 100 Continue\r\n\r\n"] * MOST
    assert MOST < 100


def test_none_for_http_1_0_and_none_while_the_client_reads_nothing() -> None:
    assert sent(Wire((1, 0)), 10) == []
    stuck = Wire()
    stuck.waiting = 10
    assert sent(stuck, 10) == []


def test_what_goes_wrong_ends_them_too() -> None:
    wire: Any = Wire()

    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise ValueError

    async def run() -> None:
        with pytest.raises(ValueError):
            await with_interim(wire, fail(), 0.002)
        after = len(wire.written)
        await asyncio.sleep(0.01)
        assert len(wire.written) == after > 0

    asyncio.run(run())
