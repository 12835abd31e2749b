# SPDX-License-Identifier: Apache-2.0
"""Templates: what sandboxes are made from."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from ..errors import SandboxError
from .asks import Ask, given
from .connection import Server
from .portal import portal


def list_templates(*, server: str | None = None, token: str | None = None) -> Sequence[dict[str, Any]]:
    """name, description, size_bytes, created_at, builtin."""
    return portal.run(_list(server, token))


def delete_template(name: str, *, server: str | None = None, token: str | None = None) -> None:
    """Forget a template. Sandboxes that were made from it are not touched."""
    portal.run(_delete(name, server, token))


def build_template(
    name: str, *, base: str | None = None, folder: str | os.PathLike[str] | None = None, pypi: Sequence[str] = (),
    debian: Sequence[str] = (), server: str | None = None, token: str | None = None,
) -> Iterator[str | dict[str, Any]]:  # fmt: skip
    """What the build prints, line by line, then the template. Raises SandboxError if it fails.

    `folder` is one of the server's machine, and for its own user alone.
    """
    body = given(
        name=name, base=base, folder=None if folder is None else os.path.abspath(folder),
        pypi=list(pypi) or None, debian=list(debian) or None,
    )  # fmt: skip
    return portal.iterate(_build(body, server, token))


async def _list(server: str | None, token: str | None) -> Sequence[dict[str, Any]]:
    found: Sequence[dict[str, Any]] = (await Server(server, token).document(Ask("GET", "/templates")))["items"]
    return found


async def _delete(name: str, server: str | None, token: str | None) -> None:
    await Server(server, token).ask(Ask("DELETE", f"/templates/{quote(name, safe='')}"))


async def _build(
    body: dict[str, Any], server: str | None, token: str | None
) -> AsyncGenerator[str | dict[str, Any], None]:
    ask = Ask("POST", "/templates/build", body=body)
    async with aclosing(Server(server, token).events(ask)) as events:
        async for name, document in events:
            if name == "error":
                raise SandboxError(f"the template was not built: {document.get('error') or document}")
            if name == "done":
                made: dict[str, Any] = document.get("template") or document
                yield made
                return
            yield str(document.get("line", ""))
    raise SandboxError("the template was not built: the server ended the stream")
