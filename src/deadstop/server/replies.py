# SPDX-License-Identifier: Apache-2.0
"""What a handler gives back, without a word about how it goes over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["EVENTS", "JSON", "PROBLEM", "Download", "Event", "Events", "Reply", "Text"]

JSON = "application/json"
PROBLEM = "application/problem+json"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Reply:
    """One document. None with status 204 is no body at all."""

    document: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    media: str = JSON


@dataclass(frozen=True, slots=True)
class Text:
    """Text as it is."""

    text: str
    media: str = "text/plain"


class Event(NamedTuple):
    """One server-sent event. Without a name only its data is sent."""

    name: str | None
    data: Any


@dataclass(frozen=True, slots=True)
class Events:
    """A stream of events. `source` is closed when the client goes; one that `ends_on_stop` ends with the server."""

    source: AsyncIterator[Event]
    headers: Mapping[str, str] = field(default_factory=dict)
    ends_on_stop: bool = True


@dataclass(frozen=True, slots=True)
class Download:
    """Bytes, of which there are exactly `length` where that is known. `source` is closed when the client goes."""

    source: AsyncIterator[bytes]
    length: int | None = None
    media: str = "application/octet-stream"
