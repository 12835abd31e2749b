# SPDX-License-Identifier: Apache-2.0
"""Where the server keeps its state and listens, unless told otherwise: the same answer for server and clients."""

from __future__ import annotations

import os

from .errors import UsageError

STATE_VARIABLE = "DEADSTOP_STATE"
SERVER_VARIABLE = "DEADSTOP_SERVER"
TOKEN_VARIABLE = "DEADSTOP_TOKEN"
LEDGER_VARIABLE = "DEADSTOP_LEDGER"
SECRET_VARIABLE = "DEADSTOP_WEBHOOK_SECRET"
SOCKET = "deadstop.sock"


def state_folder() -> str:
    """DEADSTOP_STATE; else /var/lib/deadstop for root, and for others `deadstop` in XDG_STATE_HOME.

    Raises UsageError for a user who has no home: a folder that depends on the current one is another one each time.
    """
    if given := os.environ.get(STATE_VARIABLE):
        return os.path.abspath(given)
    if os.geteuid() == 0:
        return "/var/lib/deadstop"
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # which the standard wants to be passed over
        base = os.path.expanduser("~/.local/state")
    if not os.path.isabs(base):
        raise UsageError(f"this user has no home folder: name a folder in {STATE_VARIABLE}")
    return os.path.join(base, "deadstop")


def socket_path(state: str | None = None) -> str:
    """/run/deadstop for root, XDG_RUNTIME_DIR for others; inside the state folder if that was named, or without one.

    A socket's path holds at most 107 bytes.
    """
    named = state or os.environ.get(STATE_VARIABLE)
    if named:
        return os.path.join(os.path.abspath(named), SOCKET)
    if os.geteuid() == 0:
        return f"/run/deadstop/{SOCKET}"
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(runtime, "deadstop", SOCKET)
    return os.path.join(state_folder(), SOCKET)


def server_url() -> str:
    """DEADSTOP_SERVER (`unix:///path` or `http://host:port`), else the socket of this user's own server."""
    return os.environ.get(SERVER_VARIABLE) or f"unix://{socket_path()}"
