# SPDX-License-Identifier: Apache-2.0
"""Asks the supervisor for a sign of life. One that gives none keeps no deadline, so it is ended, and all it holds.

Every boundary ends with its supervisor; their records then say `host_lost`, and a new one starts with the next sandbox.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .. import wire
from ..errors import InternalError
from ..executor.private import supervisor
from .link import Link, SupervisorLost, connected

if TYPE_CHECKING:
    from .host import Host

PING_EVERY_S = 5.0
SILENCE_S = 20.0
SECOND_S = 2.0  # a server that was stopped itself finds the first answer late, though it is there


async def watch(host: Host) -> None:
    """Until the host closes."""
    while not host.closing:
        try:
            link = await connected()
        except (InternalError, OSError) as problem:
            host.log("supervisor_unavailable", problem=str(problem))
            await asyncio.sleep(PING_EVERY_S)
            continue
        try:
            await _until_silent(host, link)
        except SupervisorLost:
            pass  # its sandboxes find out by themselves
        finally:
            link.close()


async def _until_silent(host: Host, link: Link) -> None:
    while not host.closing:
        await asyncio.sleep(PING_EVERY_S)
        if not await _answers(link, SILENCE_S) and not await _answers(link, SECOND_S):
            host.log("supervisor_silent", seconds=SILENCE_S)
            await asyncio.to_thread(supervisor.kill, link.channel.process)
            return


async def _answers(link: Link, seconds: float) -> bool:
    try:
        await link.answer(wire.PONG, lambda: link.channel.order(wire.PING), seconds)
        return True
    except SupervisorLost:
        raise
    except InternalError:
        return False
