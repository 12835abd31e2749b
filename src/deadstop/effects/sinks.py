# SPDX-License-Identifier: Apache-2.0
"""The ways by which a person is told of an alert. Each keeps a time limit of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from .. import clock
from ..errors import UsageError
from ..ledger.canonical import digest

__all__ = ["AppriseSink", "CommandSink", "LogSink", "NotTold", "Sink", "WebhookSink"]

LOG = logging.getLogger("deadstop.attention")
LIMIT_S = 30.0


class NotTold(Exception):
    """The alert did not arrive there; one line says why."""


class Sink(Protocol):
    @property
    def name(self) -> str:
        """For the log: holds no secret."""

    def tell(self, document: dict[str, Any]) -> None:
        """Raises NotTold."""


class LogSink:
    """A warning in the log, or whatever is to be called with (event, **facts)."""

    name = "the log"

    def __init__(self, write: Callable[..., object] | None = None) -> None:
        self._write = write

    def tell(self, document: dict[str, Any]) -> None:
        facts = {name: document[name] for name in ("kind", "op_id", "detail", "count")}
        if self._write is not None:
            self._write("alert", **facts)
        else:
            LOG.warning("alert %(kind)s of %(op_id)s: %(detail)s", facts)


class WebhookSink:
    """A POST of a CloudEvents envelope of type `deadstop.alert`, signed like the events of the outbox."""

    def __init__(self, url: str, secret: str | None = None, timeout: float = 15.0) -> None:
        from ..ledger.outbox import check_url
        from .posting import key_of

        self.url, self._secret, self._timeout = check_url(url), secret, timeout
        key_of(secret)
        self.name = f"the webhook at {urlsplit(url).hostname}"

    def tell(self, document: dict[str, Any]) -> None:
        from .posting import NotPosted, post_once

        # The same alert has the same id however often it is sent; when its cause begins anew it has another.
        text = f"{document['kind']} {document['op_id']} {document['first_at']}"
        event_id = f"alert_{digest(text.encode())[:32]}"
        event = {
            "specversion": "1.0", "id": event_id, "source": f"deadstop/{document['ledger']}", "type": "deadstop.alert",
            "subject": document["op_id"], "time": document["first_at"], "datacontenttype": "application/json",
            "data": document,
        }  # fmt: skip
        try:
            posted = post_once(self.url, event_id, json.dumps(event), self._secret, self._timeout)
        except NotPosted as problem:
            raise NotTold(str(problem)) from None
        if not posted.taken:
            raise NotTold(f"it answered {posted.status}")


class CommandSink:
    """A command that is started, with the alert as JSON on its stdin and in DEADSTOP_ALERT; exit code 0 is taken.

    It always ends: at `timeout` seconds it is killed, and all that it has started.
    """

    def __init__(self, argv: Sequence[str], timeout: float = LIMIT_S) -> None:
        if isinstance(argv, str) or not argv or not all(isinstance(word, str) and word for word in argv):
            raise UsageError(f"alerts: {argv!r:.80} is no command: give its words")
        self.argv, self._timeout = tuple(argv), clock.check_limit("timeout", timeout)
        self.name = f"the command {self.argv[0]}"

    def tell(self, document: dict[str, Any]) -> None:
        from ..executor.run import run

        text = json.dumps(document)
        result = run(self.argv, timeout=self._timeout, stdin=text, env={"DEADSTOP_ALERT": text}, tool="alert")
        if result.exit_code != 0:
            raise NotTold(result.error["message"] if result.error else f"exit code {result.exit_code}")


class AppriseSink:
    """Any of the services that apprise knows, in a worker that is killed at `timeout` seconds.

    Raises UsageError for a URL that apprise does not know, MissingExtra without deadstop[alerts].
    """

    def __init__(self, url: str, timeout: float = LIMIT_S) -> None:
        from .apprise_face import check

        check(url)
        self.url, self._timeout = url, timeout
        self.name = f"apprise {url.partition('://')[0]}"

    def tell(self, document: dict[str, Any]) -> None:
        from ..executor.function import call
        from ..executor.tool import Call
        from .apprise_face import notify

        asked = Call(notify, self.url, f"deadstop: {document['kind']}", _text(document))
        result = call(asked.options(timeout=self._timeout))
        if not result.ok or not result.value:
            raise NotTold(result.error["message"] if result.error else "it was not sent")


def _text(document: dict[str, Any]) -> str:
    lines = [document["meaning"], document["detail"], f"operation: {document['op_id']}"]
    operation = document["operation"] or {}
    lines += [f"{name}: {operation[name]}" for name in ("tool", "target", "state", "reference") if operation.get(name)]
    lines += [f"since: {document['first_at']}", document.get("look", "")]
    return "\n".join(line for line in lines if line)
