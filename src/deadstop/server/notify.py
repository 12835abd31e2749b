# SPDX-License-Identifier: Apache-2.0
"""Tells systemd that the server is ready, or stops, where it was started by that (sd_notify(3))."""

from __future__ import annotations

import os
import socket

__all__ = ["notify"]


def notify(state: str) -> bool:
    """Send `state` (READY=1, STOPPING=1) to NOTIFY_SOCKET. False where there is none, or nobody takes it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    if address[0] == "@":
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), address)
    except OSError:
        return False
    return True
