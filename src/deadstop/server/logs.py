# SPDX-License-Identifier: Apache-2.0
"""The server's log: one JSON object a line. No query, body, header or token ever goes into it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

__all__ = ["LOG", "log_to"]

LOG = logging.getLogger("deadstop.server")


class JsonLines(logging.Formatter):
    """`extra={"facts": {...}}` of a record become keys of its line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"at": at, "level": record.levelname.lower(), "event": record.getMessage()}
        line.update(getattr(record, "facts", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to(stream: TextIO = sys.stderr, level: int = logging.INFO) -> None:
    """Write the log, and the warnings of what is beneath it, to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    LOG.handlers, LOG.propagate = [handler], False
    LOG.setLevel(level)
    for name in ("aiohttp", "asyncio", "deadstop"):
        beneath = logging.getLogger(name)
        beneath.handlers, beneath.propagate = [handler], False
        beneath.setLevel(logging.WARNING)
