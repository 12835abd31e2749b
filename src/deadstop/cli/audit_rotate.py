# SPDX-License-Identifier: Apache-2.0
"""`deadstop audit rotate`: another signing key, and what verifying says of the keys."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from . import common
from .operations import login_name
from .tables import shown

if TYPE_CHECKING:
    from ..ledger.report import Report

__all__ = ["add_arguments", "execute", "key_lines"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "The new key takes the old one's file, and the old one vouches for it. With --lost it cannot: whoever verifies "
        "the ledger elsewhere must be given the new public key by you."
    )
    parser.add_argument("--reason", metavar="TEXT", required=True, help="why, for the record")
    parser.add_argument("--operator", metavar="NAME", help="who does it (default: your login name)")
    parser.add_argument("--lost", action="store_true", help="the old key is gone for good")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")


def execute(arguments: argparse.Namespace, place: str) -> int:
    from ..ledger.ledger import Ledger
    from ..ledger.notary import Notary
    from ..ledger.reader import opened
    from ..ledger.rotation import MOST_TEXT
    from ..ledger.store import open_store

    by, reason = (arguments.operator or login_name()).strip(), arguments.reason.strip()
    for option, text in (("--reason", reason), ("--operator", by)):
        if not text or len(text) > MOST_TEXT:
            raise UsageError(f"{option}: it is empty, or longer than {MOST_TEXT} characters")
    with opened(place):
        pass  # it is there: none is made here
    ledger = Ledger(open_store(place), notary=False)
    try:
        notary = Notary(ledger, checkpoints=arguments.checkpoints)
        try:
            rotation, kept = notary.rotate(by, reason, lost=arguments.lost)
        finally:
            notary.close()
    finally:
        ledger.close()
    told = {**rotation.to_dict(), "key": notary.key_path, "kept": kept or None}
    if arguments.json:
        common.print_json(told)
    else:
        print("\n".join([_rotation_line(told), f"the new public key, for those who verify elsewhere: {rotation.new}"]))
        if kept:
            print(f"the old key is of no use for this log any more; it was kept as {shown(kept)}")
    return 0


def key_lines(report: Report) -> list[str]:
    """Nothing for a ledger with one key that has never changed."""
    if not report.rotations:
        return []
    return [*(_rotation_line(each) for each in report.rotations), *(f"signed by {shown(each)}" for each in report.keys)]


def _rotation_line(each: dict[str, Any]) -> str:
    old, new = (_short(each[name]) for name in ("old", "new"))
    word = (
        "the old key vouches for it" if each["vouched"] else "UNVOUCHED by the old key, but the new one is known here"
    )
    said = f"by {each['by']}: {each['reason']}"
    return f"rotation: key {old} was replaced by {new} at leaf {each['leaf']}, {shown(said)} ({word})"


def _short(key: str | None) -> str:
    return "?" if key is None else shown(key.split("+")[1])
