# SPDX-License-Identifier: Apache-2.0
"""What a running tool says about itself, and how it asks whether it may go on.

Inside a call worker these reach the caller through the worker's socket; inline they reach it directly; anywhere else
they do nothing.
"""

from __future__ import annotations

from contextvars import ContextVar

from . import deadlines
from .errors import ToolCancelledError, ToolTimeoutError
from .results import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# Set by whoever runs a tool: where its messages go, and whether its caller has cancelled it.
sink: ContextVar[Callable[[Progress], None] | None] = ContextVar("deadstop_sink", default=None)
cancelled: ContextVar[Callable[[], bool] | None] = ContextVar("deadstopcancelled", default=None)


KEPT = 1000  # messages of one call; the oldest are forgotten first


def add(messages: list[Progress], message: Progress) -> None:
    """As a result lists them: one with an id takes the place of an earlier one."""
    if message.replace and message.id is not None:
        messages[:] = [each for each in messages if each.id != message.id]
    if len(messages) >= KEPT:
        del messages[0]
    messages.append(message)


def progress(text: str, *, id: str | None = None, replace: bool = True, data: Any = None) -> None:  # noqa: A002
    """Tell whoever called this tool how far it is. `data` must be picklable. Does nothing outside a call."""
    tell = sink.get()
    if tell is not None:
        tell(Progress(str(text), id, replace, data))


def check() -> None:
    """Raise ToolTimeoutError if the call's deadline is over, ToolCancelledError if its caller has cancelled it.

    For loops of a tool that runs inline, where nothing else can end it; in a killable tool it merely ends it politely.
    """
    asked = cancelled.get()
    if asked is not None and asked():
        raise ToolCancelledError("cancelled by the caller")
    if deadlines.remaining() == 0:
        raise ToolTimeoutError("the deadline of this call is over")
