# SPDX-License-Identifier: Apache-2.0
"""What the options of `deadstop run --effect once` declare, as the ledger takes it: a definition and an intent."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..errors import UsageError
from ..executor.prepare import Prepared
from ..ledger.canonical import digest, fingerprint
from ..ledger.definition import Definition, Effect
from ..ledger.queries import FunctionQuery, HttpQuery, Query, SqlQuery, SshQuery
from ..ledger.records import Intent
from ..ledger.states import Retry
from .common import pairs
from .effect import RECOVERY_S
from .operations import login_name

MOST_KEY = 1 << 20


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
    definition = effect.define(arguments.tool or command)
    if arguments.tool or (definition.retry is Retry.NEVER and definition.query is None):
        return definition
    return effect.define(f"{command}+{definition.digest[:6]}")


def _query(arguments: argparse.Namespace) -> Query | None:
    if arguments.reconcile_http is not None:
        headers = pairs(arguments.reconcile_header, "--reconcile-header")
        return HttpQuery(url=arguments.reconcile_http, state=arguments.reconcile_state, headers=headers)
    if arguments.reconcile_sql is not None:
        database, statement = arguments.reconcile_sql
        return SqlQuery(database=database, statement=statement)
    if arguments.reconcile_ssh is not None:
        return SshQuery(host=arguments.reconcile_ssh)
    return None if arguments.reconcile_function is None else FunctionQuery(name=arguments.reconcile_function)


def intent_of(arguments: argparse.Namespace, prepared: Prepared, definition: Definition) -> Intent:
    command = prepared.command
    folder = command.cwd or os.path.realpath(prepared.cwd or ".")
    same = _material(arguments, command.argv, folder)
    shown = {"argv": [_text(word) for word in command.argv], "cwd": _text(folder)}
    return Intent(
        scope=f"run/{arguments.scope or 'default'}", binding=_binding(arguments.key_from, command.argv, same),
        fingerprint=fingerprint("run", same), tool=definition.tool, definition=0, target=arguments.target,
        digest=fingerprint("run", _material_of_command(command.argv, folder)), sealed={"command": shown},
        asked_by=login_name(), recovery_s=definition.recovery_s,
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
    material = _material_of_command(argv, folder)
    return material if what == "argv+cwd" else {"argv": material["argv"]}


def _material_of_command(argv: tuple[str, ...], folder: str) -> dict[str, Any]:
    return {"argv": [digest(os.fsencode(word)) for word in argv], "cwd": digest(os.fsencode(folder))}


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
    return digest(b"deadstop.run.key.v1\0" + found.strip())


def _read(path: str, option: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_KEY + 1)
    except OSError as problem:
        raise UsageError(f"{option}: {path!r:.80} cannot be read: {problem.strerror}") from None
    if len(data) > MOST_KEY:
        raise UsageError(f"{option}: {path!r:.80} is larger than {MOST_KEY >> 20} MiB: name a file with its digest")
    return data


def _text(word: str) -> str:
    return os.fsencode(word).decode("utf-8", "backslashreplace")
