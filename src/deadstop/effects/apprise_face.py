# SPDX-License-Identifier: Apache-2.0
"""Alerts to wherever apprise can send: the one file that imports it. It runs in a worker that can be killed."""

from __future__ import annotations

from typing import Any

from ..errors import MissingExtra, UsageError

__all__ = ["check", "notify"]


def check(url: str) -> None:
    """Raises UsageError for what apprise does not know, MissingExtra where it is not installed."""
    if not _apprise().Apprise().add(url):
        raise UsageError(f"alerts: apprise does not know {url.partition('://')[0][:30]}:// in this form")


def notify(url: str, title: str, body: str) -> bool:
    """Whether it was sent. Called in a worker: it may take as long as it likes."""
    apprise = _apprise()
    target = apprise.Apprise()
    return bool(target.add(url)) and bool(
        target.notify(title=title, body=body, notify_type=apprise.NotifyType.WARNING, body_format="text")
    )


def _apprise() -> Any:
    try:
        import apprise
    except ImportError:
        raise MissingExtra("alerts through apprise", "alerts") from None
    return apprise
