# SPDX-License-Identifier: Apache-2.0
"""Who may ask: a token over TCP, the server's own user on its socket; and never a web page that a browser has open."""

from __future__ import annotations

import hmac
import os
import socket
import struct
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .problems import Problem

if TYPE_CHECKING:
    from asyncio import BaseTransport
    from collections.abc import Mapping

    from .front import Front

__all__ = ["admit", "check_source", "is_same_user", "peer_uid"]

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERY_ADDRESS = frozenset({"0.0.0.0", "::", ""})


def peer_uid(transport: BaseTransport | None) -> int | None:
    """The user at the other end of a unix socket; None for any other kind."""
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    _pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def is_same_user(transport: BaseTransport | None) -> bool:
    """Whether the other end is the server's own user, or root, by the kernel's word."""
    return peer_uid(transport) in (0, os.geteuid())


def admit(front: Front, transport: BaseTransport | None, headers: Mapping[str, str]) -> None:
    """Raises Problem 401 for whoever has no right to ask."""
    if is_same_user(transport):
        return
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    wanted = front.token
    right = wanted is not None and hmac.compare_digest(given.strip().encode("utf-8", "replace"), wanted.encode())
    if not right or scheme.lower() != "bearer":
        raise Problem(
            401, "unauthorized", "a valid token is needed: Authorization: Bearer TOKEN",
            headers={"WWW-Authenticate": 'Bearer realm="deadstop"'},
        )  # fmt: skip


def check_source(front: Front, transport: BaseTransport | None, headers: Mapping[str, str]) -> None:
    """Raises Problem 403 for another site's page (Origin), and for a name that was made to lead here (Host)."""
    host = headers.get("Host", "")
    origin = headers.get("Origin")
    if origin is not None and (not host or urlsplit(origin).netloc.lower() != host.lower()):
        raise Problem(403, "origin", "requests of other sites' pages are refused")
    if peer_uid(transport) is None and host and not _is_ours(front, host):
        raise Problem(403, "host", "the Host header names another machine: use the address that the server listens on")


def _is_ours(front: Front, host: str) -> bool:
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    own = front.settings.listen[0] if front.settings.listen else ""
    if name in _LOCAL or name in front.settings.allowed_hosts or (own and name == own.lower()):
        return True
    # Listening everywhere: any address leads here, and a rebound name is still a name.
    return own in _EVERY_ADDRESS and (_is_address(name) or name == socket.gethostname().lower())


def _is_address(name: str) -> bool:
    from ipaddress import ip_address

    try:
        ip_address(name)
    except ValueError:
        return False
    return True
