# SPDX-License-Identifier: Apache-2.0
"""One entry of the table that both the server and the OpenAPI document are made from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .bodies import NoQuery, Query
from .front import Handler
from .replies import EVENTS, JSON

__all__ = ["Answer", "Route"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer as documented: its schema (a msgspec type), or None where it has no JSON.

    `also` is the media type it has instead if that is asked for.
    """

    schema: Any
    summary: str
    media: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    also: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A method on a path, and the handler for it.

    `body` is the Struct of a JSON body, `upload` the media type of a raw one. `errors` are the statuses beside those
    that every route can give. `keyed`: takes an Idempotency-Key. `follows_client`: it is cancelled when its client
    goes; otherwise what changes something is brought to its end. `waits`: sends 100 Continue while it runs.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    answers: Mapping[int, Answer]
    tag: str
    body: type[msgspec.Struct] | None = None
    upload: str | None = None
    query: type[Query] = NoQuery
    errors: tuple[int, ...] = ()
    keyed: bool = False
    public: bool = False
    follows_client: bool = False
    waits: bool = False
    while_stopping: bool = False
    example: Mapping[str, Any] | None = None

    @property
    def parameters(self) -> list[str]:
        """The names in the path."""
        return re.findall(r"{(\w+)}", self.path)

    @property
    def name(self) -> str:
        """The operation's id: the handler's own name, which is unique in the table."""
        return getattr(self.handler, "__name__", "?").strip("_")

    @property
    def body_needed(self) -> bool:
        return self.body is not None and any(part.required for part in msgspec.structs.fields(self.body))

    @property
    def streams(self) -> bool:
        return any(answer.media == EVENTS or status == 101 for status, answer in self.answers.items())
