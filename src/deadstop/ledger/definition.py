# SPDX-License-Identifier: Apache-2.0
"""What a tool with effects declares about itself: `Effect`, and its versioned form in the ledger, `Definition`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .. import clock
from ..errors import UsageError
from .canonical import canonical, digest
from .queries import Query, open_questions, query_from_dict, query_of, query_to_dict
from .states import Retry

__all__ = ["Definition", "Effect"]

_STRICTNESS = (Retry.NEVER, Retry.IF_NOT_ACCEPTED, Retry.SAME_KEY_SAFE)  # strictest first


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What deadstop has to know about a tool that changes the world.

    Three questions: what binds retries to one operation (`fingerprint`), where can it be looked up (`reconcile`), what
    proves it when the connection dies (`consistent` or `settle` for absence; a look-up's answer for presence). What is
    not answered makes an operation that loses its answer `unknown` until a person decides; `unanswered()` says so.

    retry: "never", "if_not_accepted" (after the authority has shown no trace) or "same_key_safe" (also when nobody can
        say, for `key_ttl` seconds after the first attempt: the provider itself sends nothing twice under one key).
    fingerprint: names of the arguments that make two requests the same one (dots reach into mappings).
    reconcile: an HttpQuery, SqlQuery, SshQuery, or an importable function `f(op) -> Finding`, run in a worker.
    recovery_deadline: seconds from the loss of an answer to a person being asked.
    reconcile_timeout: seconds that one query may take.
    consistent: a look-up sees what was accepted before it; only then does absence count at once.
    settle: seconds after the last attempt from which absence counts, where it is not consistent.
    max_attempts: how often it may be sent in all.
    key_ttl: seconds for which the provider keeps a key.
    redact: names of arguments that are never written down, not even sealed.
    target: what it acts on, for people, as a format of the arguments: "{environment}".
    scope: keys are unique within a scope; the tool's name is always part of it.
    """

    retry: str = Retry.NEVER.value
    fingerprint: Sequence[str] | None = None
    reconcile: Query | Callable[..., Any] | None = None
    recovery_deadline: float = 300.0
    reconcile_timeout: float = 10.0
    consistent: bool = False
    settle: float | None = None
    max_attempts: int = 3
    key_ttl: float | None = None
    redact: Sequence[str] = ()
    target: str | None = None
    scope: str = "default"

    def __post_init__(self) -> None:
        if self.retry not in set(Retry):
            raise UsageError(f"retry={self.retry!r} is not one of {', '.join(Retry)}")
        for name in ("recovery_deadline", "reconcile_timeout"):
            if clock.check_limit(name, getattr(self, name)) is None:
                raise UsageError(f"{name}=None is not allowed: an open operation always has a deadline")
        clock.check_limit("settle", self.settle)
        clock.check_limit("key_ttl", self.key_ttl)
        if clock.check_count("max_attempts", self.max_attempts) is None:
            raise UsageError("max_attempts=None is not allowed: give a whole number above zero")
        for name in ("fingerprint", "redact"):
            names = getattr(self, name)
            if isinstance(names, str) or not all(isinstance(each, str) for each in names or ()):
                raise UsageError(f"{name}: give a list of argument names, not {names!r:.60}")
        if dotted := [name for name in self.redact if "." in name]:
            raise UsageError(f"redact: {dotted[0]!r} is no argument; whole arguments are left out, not parts of them")
        if both := {name.partition(".")[0] for name in self.fingerprint or ()} & set(self.redact):
            raise UsageError(f"redact: the digest of {sorted(both)[0]!r} would be in the fingerprint, to be guessed at")
        if self.retry == Retry.SAME_KEY_SAFE and self.key_ttl is None:
            raise UsageError("retry='same_key_safe' needs key_ttl: how long the provider keeps a key, in seconds")
        if self.reconcile is not None:
            query_of(self.reconcile)  # raises UsageError for what could never be asked

    def unanswered(self, *, whole: bool = False) -> tuple[str, ...]:
        """The questions that have no answer, one line each. `whole`: what is sent, all of it, is itself the answer to
        what makes two requests the same one."""
        lines = []
        if self.fingerprint is None and not whole:
            lines.append("fingerprint: nothing says which arguments make two requests the same one, so all of them do")
        if self.reconcile is None:
            lines.append(
                "reconcile: it can be looked up nowhere, so a lost answer stays unknown until a person decides"
            )
        elif not self.consistent and self.settle is None:
            lines.append("consistent, settle: not finding it proves nothing, so a person decides when it is not found")
        if self.reconcile is not None:
            lines += open_questions(query_of(self.reconcile))
        return tuple(lines)

    def define_named(self, tool: str | None, otherwise: str) -> Definition:
        """`define` under the given name. Without one it is `otherwise` and, where more than nothing is declared, what
        is declared: so that two declarations for one host or program do not tighten each other's."""
        definition = self.define(tool or otherwise)
        if tool or (definition.retry is Retry.NEVER and definition.query is None):
            return definition
        return self.define(f"{otherwise}+{definition.digest[:6]}")

    def define(self, tool: str) -> Definition:
        query = None if self.reconcile is None else query_of(self.reconcile)
        return Definition(
            tool=tool, retry=Retry(self.retry), query=query, recovery_s=float(self.recovery_deadline),
            fingerprint=None if self.fingerprint is None else tuple(self.fingerprint),
            reconcile_s=float(self.reconcile_timeout), consistent=bool(self.consistent),
            settle_s=None if self.settle is None else float(self.settle), max_attempts=self.max_attempts,
            key_ttl_s=None if self.key_ttl is None else float(self.key_ttl), redact=tuple(self.redact),
            target=self.target, scope=self.scope,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Definition:
    """One version of what a tool declares. Operations name the version that they were made under."""

    tool: str
    retry: Retry = Retry.NEVER
    fingerprint: tuple[str, ...] | None = None
    query: Query | None = None
    recovery_s: float = 300.0
    reconcile_s: float = 10.0
    consistent: bool = False
    settle_s: float | None = None
    max_attempts: int = 3
    key_ttl_s: float | None = None
    redact: tuple[str, ...] = ()
    target: str | None = None
    scope: str = "default"
    version: int = field(default=0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        document = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("query", "version")
        }
        document["retry"] = self.retry.value
        for name in ("fingerprint", "redact"):
            if document[name] is not None:
                document[name] = list(document[name])
        document["query"] = None if self.query is None else query_to_dict(self.query)
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], version: int = 0) -> Definition:
        values = {each.name: document[each.name] for each in fields(cls) if each.name in document}
        values["retry"] = Retry(values["retry"])
        for name in ("fingerprint", "redact"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        values["query"] = None if values.get("query") is None else query_from_dict(values["query"])
        return cls(**{**values, "version": version})

    @property
    def digest(self) -> str:
        return digest(canonical(self.to_dict()))

    def tightened(self, current: Definition | None) -> Definition:
        """As this version says, but never laxer than the current one: what was stored can only be vetoed."""
        if current is None or current == self:
            return self
        return replace(
            self,
            retry=min(self.retry, current.retry, key=_STRICTNESS.index),
            consistent=self.consistent and current.consistent,
            settle_s=_longest(self.settle_s, current.settle_s),
            max_attempts=min(self.max_attempts, current.max_attempts),
            key_ttl_s=_shortest(self.key_ttl_s, current.key_ttl_s),
        )


def _longest(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else max(a, b)  # None: absence never counts


def _shortest(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else min(a, b)
