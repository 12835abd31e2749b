# SPDX-License-Identifier: Apache-2.0
"""`deadstop run --effect once`: the options that declare what a command does to the world.

Nothing of the ledger is loaded here: most runs have no use for it.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from ..errors import UsageError
from .common import pairs, say, seconds

EFFECTS = ("none", "once", "undeclared")
ONCE = "--effect once"
RECOVERY_S = 300.0
NOBODY = "nothing says where it could be looked up (--reconcile-...)"
_MOST_CODES = 256


def add_options(group: Any) -> None:
    add = group.add_argument
    add("--effect", choices=EFFECTS, default="undeclared",
        help="what it does to the world. once: on record before it starts, and never done twice under one key "
        "(default: undeclared)")  # fmt: skip
    add("--key-from", metavar="SOURCE", help="once: what binds retries to one operation: env:NAME, file:PATH, "
        "text:VALUE, or argv (the command itself and its folder)")  # fmt: skip
    add("--fingerprint", metavar="WHAT", help="once: what has to be the same under one key: argv+cwd (default), argv, "
        "or file:PATH (what is in it)")  # fmt: skip
    add("--scope", metavar="NAME", help="once: keys are told apart by it (default: default)")
    add("--retry", choices=("never", "if_not_accepted"), help="once: whether the same key may run it again when it is "
        "shown that nothing had happened (default: never)")  # fmt: skip
    add("--failed-exit", metavar="CODES", type=_codes, help="once: exit codes that mean that nothing has happened, "
        "such as 2,64-78; any other but 0 is unknown")  # fmt: skip
    add("--target", metavar="TEXT", help="once: what it acts on, for people")
    add("--tool", metavar="NAME", help="once: what the declaration is called in the ledger")
    add_place(group)
    _query_options(add)


def add_place(group: Any) -> None:
    group.add_argument("--ledger", metavar="PLACE", help="a file or a postgresql:// URL (default: DEADSTOP_LEDGER, "
                       "else ledger.db in your state folder); its password is best kept in PGPASSWORD or "
                       "~/.pgpass")  # fmt: skip


def _query_options(add: Any) -> None:
    add("--recovery-deadline", type=seconds, metavar="TIME",
        help="once: from the loss of its outcome to a person being asked (default: 5m)")  # fmt: skip
    add("--reconcile-http", metavar="URL", help="once: where to look it up; {key}, {op_id}, {target} and the like are "
        "filled in. 2xx: it is there, 404: it is not")  # fmt: skip
    add("--reconcile-state", metavar="FIELD", help="the field of that answer that says how it stands, such as state")
    add("--reconcile-header", metavar="NAME=VALUE", action="append", default=[],
        help="for that request; VALUE may be env:NAME (repeatable)")  # fmt: skip
    add("--reconcile-sql", metavar=("DATABASE", "SELECT"), nargs=2,
        help="once: ask its database; :key, :op_id and the like are parameters. No row: it is not there")  # fmt: skip
    add("--reconcile-ssh", metavar="HOST", help="once: ask deadstop's helper on that host")
    add("--reconcile-function", metavar="MODULE:NAME", help="once: ask a Python function")
    add("--reconcile-consistent", action="store_true", default=None,
        help="what was accepted is found at once: not being there means that nothing has happened")  # fmt: skip
    add("--reconcile-settle", type=seconds, metavar="TIME", help="the same, this long after the last attempt")


def is_recorded(arguments: argparse.Namespace) -> bool:
    """Whether the ledger has a part in this run. Raises UsageError for what would be ignored, or is missing."""
    if arguments.effect != "once":
        _check_nothing_is_ignored(arguments)
        return False
    if arguments.key_from is None:
        raise UsageError(
            f"{ONCE} needs --key-from: what binds retries to one operation? env:NAME, file:PATH, text:VALUE or argv"
        )
    asked = [name for name in ("http", "sql", "ssh", "function") if getattr(arguments, f"reconcile_{name}") is not None]
    if len(asked) > 1:
        raise UsageError(f"--reconcile-{asked[0]} and --reconcile-{asked[1]}: give one place to look it up")
    http = arguments.reconcile_state is not None or arguments.reconcile_header
    if http and asked != ["http"]:
        raise UsageError("--reconcile-state and --reconcile-header have a meaning only with --reconcile-http")
    if not asked and (arguments.reconcile_consistent or arguments.reconcile_settle):
        raise UsageError("--reconcile-consistent and --reconcile-settle: say where to look it up: --reconcile-http, "
                         "--reconcile-sql, --reconcile-ssh or --reconcile-function")  # fmt: skip
    pairs(arguments.reconcile_header, "--reconcile-header")
    _check_that_it_lasts(arguments)
    if not (asked or arguments.check or arguments.json or arguments.quiet) and sys.stderr.isatty():
        say(
            f"a lost outcome waits for a person: {NOBODY}"
        )  # to whoever types it, while there is time; scripts have --check
    return True


def _check_that_it_lasts(arguments: argparse.Namespace) -> None:
    """A ledger that is gone with this process holds no key: the next run would do it again."""
    from ..ledger.store import LEDGER_VARIABLE, MEMORY

    where = LEDGER_VARIABLE if arguments.ledger is None else "--ledger"
    if (os.environ.get(LEDGER_VARIABLE) if arguments.ledger is None else arguments.ledger) == MEMORY:
        raise UsageError(
            f"{ONCE}: {where} is {MEMORY}, which is gone when this process ends: name a file or a postgresql:// URL"
        )


def _check_nothing_is_ignored(arguments: argparse.Namespace) -> None:
    for name in ("key_from", "fingerprint", "scope", "retry", "failed_exit", "target", "tool", "ledger",
                 "recovery_deadline", "reconcile_http", "reconcile_state", "reconcile_header", "reconcile_sql",
                 "reconcile_ssh", "reconcile_function", "reconcile_consistent", "reconcile_settle"):  # fmt: skip
        if getattr(arguments, name) not in (None, []):
            raise UsageError(f"--{name.replace('_', '-')} has a meaning only with {ONCE}")


def _codes(text: str) -> frozenset[int]:
    found: set[int] = set()
    for word in text.split(","):
        first, separator, last = word.strip().partition("-")
        low, high = _code(first, text), _code(last if separator else first, text)
        found |= set(range(low, high + 1))
    return frozenset(found)


def _code(word: str, text: str) -> int:
    if not (word.isascii() and word.isdigit() and 0 < int(word) < _MOST_CODES):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a list of exit codes from 1 to 255, such as 2,64-78")
    return int(word)
