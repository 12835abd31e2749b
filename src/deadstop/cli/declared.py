# SPDX-License-Identifier: Apache-2.0
"""What the options of `deadstop run --effect once` declare, as the ledger takes it: a definition and an intent."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..errors import UsageError
from ..executor import command_effect
from ..executor.prepare import Prepared
from ..ledger.canonical import digest, fingerprint
from ..ledger.definition import Definition, Effect
from ..ledger.queries import FunctionQuery, HttpQuery, Query, SqlQuery, SshQuery, open_questions, query_of
from ..ledger.records import Intent
from ..ledger.states import Retry
from .common import pairs, say
from .effect import NOBODY, RECOVERY_S
from .operations import login_name, own_folder_too

MOST_KEY = 1 << 20
ABSENCE = "--reconcile-consistent, --reconcile-settle"


def declared(arguments: argparse.Namespace, command: str) -> Definition:
    """The definition. Without a name of its own one that declares more than nothing is told apart by what it declares,
    so that two scripts which are both run by `bash` do not tighten each other's."""
    settle = arguments.reconcile_settle
    recovery = RECOVERY_S if arguments.recovery_deadline is None else arguments.recovery_deadline
    names = _what_counts(arguments)
    effect = Effect(
        retry=arguments.retry or Retry.NEVER.value, fingerprint=["file"] if names.startswith("file:") else
        names.split("+"), reconcile=_query(arguments), recovery_deadline=recovery,
        consistent=bool(arguments.reconcile_consistent), settle=settle,
    )  # fmt: skip
    for line in () if effect.reconcile is None else open_questions(query_of(effect.reconcile)):
        say(line)  # the query is there, and will not do what it is there for
    return effect.define_named(arguments.tool, command)


def lost_outcome(definition: Definition) -> str:
    """What becomes of one that nobody sees, for people."""
    from ..effects.asking import source_of  # only --check has a use for it

    if definition.query is None:
        return f"waits for a person: {NOBODY}"
    absence = "" if definition.consistent or definition.settle_s else f"; not finding it proves nothing ({ABSENCE})"
    return f"looked up: {source_of(definition.query)}{absence}"


def _query(arguments: argparse.Namespace) -> Query | None:
    if arguments.reconcile_http is not None:
        headers = pairs(arguments.reconcile_header, "--reconcile-header")
        return HttpQuery(url=arguments.reconcile_http, state=arguments.reconcile_state, headers=headers)
    if arguments.reconcile_sql is not None:
        database, statement = arguments.reconcile_sql
        return SqlQuery(database=database, statement=statement)
    if arguments.reconcile_ssh is not None:
        return SshQuery(host=arguments.reconcile_ssh)
    if arguments.reconcile_function is None:
        return None
    own_folder_too()
    return FunctionQuery(name=arguments.reconcile_function)


def intent_of(arguments: argparse.Namespace, prepared: Prepared, definition: Definition) -> Intent:
    command = prepared.command
    folder = command.cwd or os.path.realpath(prepared.cwd or ".")
    same = _material(arguments, command.argv, folder)
    whole = command_effect.material_of(command.argv, folder)
    return command_effect.intent_of(
        arguments.scope or "default", _binding(arguments.key_from, command.argv, same), same, tool=definition.tool,
        definition=0, target=arguments.target, digest=command_effect.print_of(whole),
        sealed={"command": command_effect.shown(command.argv, folder)}, asked_by=login_name(),
        recovery_s=definition.recovery_s,
    )  # fmt: skip


def _what_counts(arguments: argparse.Namespace) -> str:
    what: str = arguments.fingerprint or "argv+cwd"
    if what in ("argv", "argv+cwd") or what.startswith("file:"):
        return what
    raise UsageError(f"--fingerprint: {what!r:.80} is not argv, argv+cwd or file:PATH")


def _material(arguments: argparse.Namespace, argv: tuple[str, ...], folder: str) -> dict[str, Any]:
    what = _what_counts(arguments)
    if what.startswith("file:"):
        return {"file": digest(_read(what[5:], "--fingerprint"))}
    material = command_effect.material_of(argv, folder)
    return material if what == "argv+cwd" else {"argv": material["argv"]}


def _binding(source: str, argv: tuple[str, ...], same: dict[str, Any]) -> str:
    """What the key is made from: a digest, because whoever gives a key may take it for a secret."""
    if source == "argv":
        words = same if "argv" in same else {"argv": [digest(os.fsencode(word)) for word in argv]}
        return fingerprint("run.argv", words)
    kind, separator, value = source.partition(":")
    if not separator or kind not in ("env", "file", "text") or not value:
        raise UsageError(f"--key-from: {source!r:.80} is not env:NAME, file:PATH, text:VALUE or argv")
    if kind == "env":
        found = os.fsencode(os.environ.get(value, ""))
    else:
        found = _read(value, "--key-from") if kind == "file" else os.fsencode(value)
    if not found.strip():
        raise UsageError(f"--key-from: {kind}:{value if kind != 'text' else ''} is empty: it binds nothing to anything")
    return command_effect.key_digest(found)


def _read(path: str, option: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_KEY + 1)
    except OSError as problem:
        raise UsageError(f"{option}: {path!r:.80} cannot be read: {problem.strerror}") from None
    if len(data) > MOST_KEY:
        raise UsageError(f"{option}: {path!r:.80} is larger than {MOST_KEY >> 20} MiB: name a file with its digest")
    return data
