# SPDX-License-Identifier: Apache-2.0
"""A token that ends calls: set it from any thread or signal handler."""

from __future__ import annotations

import os


class CancelToken:
    """Once set, every call that holds it is cancelled: running ones are killed, later ones never start.

    `set` may be called from any thread and from a signal handler, more than once; it cannot be unset. It returns at
    once: the call's result says when all was gone.
    """

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._set = False

    def set(self) -> None:
        """Cancel."""
        if not self._set:
            self._set = True
            os.eventfd_write(self._event, 1)

    def is_set(self) -> bool:
        return self._set

    def fileno(self) -> int:
        """Readable from the moment the token is set on, for loops that poll."""
        return self._event

    def __del__(self) -> None:
        try:
            os.close(self._event)
        except (AttributeError, OSError):
            pass
