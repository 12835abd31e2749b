# SPDX-License-Identifier: Apache-2.0
"""What the verbs about sandboxes share: where the server is, how a time is read, how an answer is printed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .. import clock
from ..errors import UsageError


def add_server(parser: argparse.ArgumentParser, *, as_json: bool = True) -> None:
    parser.add_argument("--server", metavar="URL", help="unix:///path or http://host:port (default: DEADSTOP_SERVER, "
                        "or your own server's socket); its token comes from DEADSTOP_TOKEN")  # fmt: skip
    if as_json:
        parser.add_argument("--json", action="store_true", help="print JSON")


def add_sandbox(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sandbox", help="its id or name")


def print_json(document: object) -> None:
    print(json.dumps(document, allow_nan=False))


def say(text: str) -> None:
    print(f"deadstop: {text}", file=sys.stderr)


def pairs(words: list[str], option: str) -> dict[str, str]:
    """KEY=VALUE, each."""
    found = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise UsageError(f"{option}: {word!r:.80} is not KEY=VALUE")
        found[name] = value
    return found


def variables(words: list[str]) -> dict[str, str]:
    """NAME=VALUE, or NAME to pass on ours."""
    return {**pairs([word for word in words if "=" in word], "--env"),
            **{word: os.environ[word] for word in words if "=" not in word and word in os.environ}}  # fmt: skip


# -- types of options ----------------------------------------------------------------------------------------------


def duration(text: str) -> float | None:
    value: float | None = _argument(clock.parse_duration, text)
    return value


def seconds(text: str) -> float:
    """A duration that is not none."""
    value = duration(text)
    if value is None:
        raise argparse.ArgumentTypeError("none is not allowed here: give a time such as 30s, 5m or 2h")
    return value


def limit(text: str) -> float | None:
    """A duration, or 0 for a time that is over already."""
    return 0.0 if text in ("0", "0s") else duration(text)


def size(text: str) -> int | None:
    value: int | None = _argument(clock.parse_size, text)
    return value


def count(text: str) -> int:
    value: int = _argument(lambda word: clock.check_count("N", _number(int, word)), text)
    return value


def number(text: str) -> float:
    value: float = _argument(lambda word: clock.check_limit("N", _number(float, word)), text)
    return value


def _number(kind: Callable[[str], Any], text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        return text


def _argument(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except UsageError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


# -- people --------------------------------------------------------------------------------------------------------


def left(document: Mapping[str, Any]) -> str:
    """How long it has: `12m`, `1h 4m`; empty when it has ended."""
    if document.get("status") == "ended":
        return ""
    whole = int(float(document.get("time_left_s") or 0))
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {rest:02}s" if minutes else f"{rest}s"


def bytes_shown(amount: float | None) -> str:
    if amount is None:
        return ""
    value, unit = float(amount), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def receipt_line(document: Mapping[str, Any]) -> str:
    """One line about an end, from the document of the sandbox."""
    end = document.get("end") or {}
    receipt = end.get("receipt")
    if not receipt:
        return f"{document.get('id')}: ended ({end.get('reason', '?')})"
    gone = "none left" if receipt.get("survivors") == 0 else f"survivors: {receipt.get('survivors')}"
    return (
        f"{document.get('id')}: ended ({end.get('reason')}); killed {receipt.get('processes')} processes in "
        f"{receipt.get('kill_ms', 0):.1f} ms, {gone} (proof: {receipt.get('proof')})"
    )
