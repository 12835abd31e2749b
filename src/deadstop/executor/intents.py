# SPDX-License-Identifier: Apache-2.0
"""What an intent is made from: what binds retries to one operation, and what is written down of a request."""

from __future__ import annotations

from typing import Any

from .. import deadlines
from ..errors import UsageError
from ..ledger.canonical import canonical, digest

__all__ = ["binding_of", "digest_of", "target_of", "task_id"]


def binding_of(key: str | None, correlation: str | None, print_of: str) -> tuple[str, str]:
    """What binds retries to one operation, and for how long (`Intent.holds`)."""
    if key is not None:
        if not isinstance(key, str) or not key:
            raise UsageError(f"key: {key!r:.60} is not a text")
        return digest(f"key\0{key}".encode("utf-8", "surrogatepass")), "always"
    if correlation is not None:
        return digest(f"run\0{correlation}\0{print_of}".encode("utf-8", "surrogatepass")), "success"
    return digest(f"open\0{print_of}".encode()), "open"


def digest_of(arguments: dict[str, Any]) -> str | None:
    """Of the whole request; None for arguments that are no JSON (only the fingerprint's have to be)."""
    try:
        return digest(canonical(arguments))
    except UsageError:
        return None


def target_of(effect: Any, arguments: dict[str, Any]) -> str | None:
    if effect.target is None:
        return None
    try:
        return str(effect.target.format(**arguments))[:200]
    except Exception as problem:  # a format and any values: it names things for people, and must stop nothing
        return f"{effect.target} ({type(problem).__name__})"


def task_id() -> str | None:
    """Of the innermost task around the caller that has one."""
    tasks = deadlines.entered.get()
    return tasks[-1].task_id if tasks else None
