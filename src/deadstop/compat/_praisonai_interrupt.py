# SPDX-License-Identifier: Apache-2.0
"""PraisonAI's cancel token for agent runs: a request reaches the turns that run, or else the next, and no more."""

from __future__ import annotations

import threading


class InterruptController:
    """Cancel token with a reason. Safe from any thread. The first request's reason stands until `clear`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._reason: str | None = None
        self._last_turn = 0
        self._turns: dict[int, bool] = {}  # those that run: whether a request has reached them
        self._for_next_turn = False

    def request(self, reason: str = "user") -> None:
        """Cancel."""
        with self._lock:
            if not self._set:
                self._set, self._reason = True, reason
            self._for_next_turn = self._for_next_turn or not self._turns
            self._turns = dict.fromkeys(self._turns, True)

    def clear(self) -> None:
        """As if nothing had been requested."""
        with self._lock:
            self._set, self._reason, self._for_next_turn = False, None, False
            self._turns = dict.fromkeys(self._turns, False)

    def is_set(self) -> bool:
        return self._set

    @property
    def reason(self) -> str | None:
        return self._reason

    def check(self) -> None:
        """Raise InterruptedError if it is set."""
        with self._lock:
            if self._set:
                raise InterruptedError(f"Operation cancelled: {self._reason or 'unknown'}")

    # What PraisonAI's Agent calls around each turn.

    def _begin_turn(self) -> int:
        with self._lock:
            self._last_turn += 1
            self._turns[self._last_turn] = self._for_next_turn
            self._for_next_turn = False
            return self._last_turn

    def _turn_is_cancelled(self, turn_id: int) -> bool:
        return self._turns.get(turn_id, False)

    def _end_turn(self, turn_id: int) -> None:
        with self._lock:
            self._turns.pop(turn_id, None)

    def __repr__(self) -> str:
        return f"<InterruptController {f'set: {self._reason}' if self._set else 'not set'}>"
