# SPDX-License-Identifier: Apache-2.0
"""What a client knows of a sandbox: the server's last word, and the time that has passed since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..clock import boottime
from ..contract import receipt_from_dict
from ..results import Receipt


class View:
    """The last document of a sandbox. The time left only grows when the server has extended its life."""

    def __init__(self) -> None:
        self.document: Mapping[str, Any] = {}
        self._end: float | None = None  # on CLOCK_BOOTTIME, never later than it is

    def take(self, document: Mapping[str, Any], asked_at: float) -> None:
        """A newer document. The time it states is counted from before it was asked for, so never too long."""
        end = asked_at + float(document.get("time_left_s") or 0.0)
        changed = document.get("ttl_seconds") != self.document.get("ttl_seconds")
        if self._end is None or changed or document.get("id") != self.document.get("id"):
            self._end = end
        else:
            self._end = min(self._end, end)
        self.document = document

    def take_life(self, life: Mapping[str, Any], asked_at: float) -> None:
        """What an extension or a new TTL answered."""
        names = ("expires_at", "time_left_s", "ttl_seconds", "status", "persistent")
        known = {name: life[name] for name in names if life.get(name) is not None}
        self.document = {**self.document, **known}
        if "time_left_s" in known:
            self._end = asked_at + float(known["time_left_s"])

    def extended(self, added_s: float, left_s: float) -> None:
        """An extension heard of, perhaps late: no more than it added, and no more than it left."""
        if self._end is not None:
            self._end = min(self._end + max(0.0, added_s), boottime() + left_s)

    def changed(self, **facts: Any) -> None:
        self.document = {**self.document, **facts}

    @property
    def time_left(self) -> float:
        """Seconds; 0 for one that has ended."""
        if self._end is None or self.document.get("status") == "ended":
            return 0.0
        return max(0.0, self._end - boottime())

    def receipt(self) -> Receipt | None:
        end = self.document.get("end") or {}
        return receipt_from_dict(end.get("receipt"))


class Known:
    """The properties that both faces have. They ask nobody: `refresh()` does."""

    _view: View

    @property
    def id(self) -> str:
        return str(self._view.document["id"])

    @property
    def name(self) -> str | None:
        name = self._view.document.get("name")
        return None if name is None else str(name)

    @property
    def template(self) -> str:
        return str(self._view.document.get("template", ""))

    @property
    def status(self) -> str:
        """creating, running, paused, expiring or ended, as last heard."""
        return str(self._view.document.get("status", "unknown"))

    @property
    def expires_at(self) -> str:
        """The end of its life in UTC, for people to read; `time_left` is for reckoning."""
        return str(self._view.document.get("expires_at", ""))

    @property
    def time_left(self) -> float:
        """Seconds until its end. It passes with CLOCK_BOOTTIME and grows by nothing but an extension."""
        return self._view.time_left

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self._view.document.get("metadata") or {})

    @property
    def end(self) -> dict[str, Any] | None:
        """How it ended (reason, detail, at, receipt); None while it lives, as far as is known here."""
        found = self._view.document.get("end")
        return None if found is None else dict(found)

    @property
    def receipt(self) -> Receipt | None:
        """The statement after its end; None before."""
        return self._view.receipt()

    @property
    def last_snapshot(self) -> str | None:
        found = self._view.document.get("last_snapshot")
        return None if found is None else str(found)

    @property
    def document(self) -> dict[str, Any]:
        """The server's last word, as it came."""
        return dict(self._view.document)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.status}, {self.time_left:.0f} s left>"
