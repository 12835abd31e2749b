# SPDX-License-Identifier: Apache-2.0
"""The environment a command gets: the caller's or a listed few, and defaults that keep programs from asking."""

from __future__ import annotations

import os

from ..boundary.policy import BASE_ENVIRONMENT
from ..errors import UsageError

# Set only where the caller has not. Each one stops a program from waiting for a person or holding back its output.
NON_INTERACTIVE = {
    "PYTHONUNBUFFERED": "1",  # a killed Python loses what it has not flushed
    "CI": "1",
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_PAGER": "cat",
    "GCM_INTERACTIVE": "never",
    "EDITOR": "true",
    "VISUAL": "true",
    "PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "PIP_NO_INPUT": "1",
    "NPM_CONFIG_YES": "true",
}

KEPT_BY_CLEAR = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TERM", "TMPDIR", "TZ")


def environment(
    isolation: str, extra: dict[str, str | None], *, clear: bool, defaults: bool, python: dict[str, str]
) -> dict[str, str]:
    """Compose it.

    `extra` wins over all; a None value takes the caller's, if it has one. `python`: a virtual environment.
    """
    if isolation == "sandbox":
        env = {**BASE_ENVIRONMENT, **python}
    elif clear:
        env = {name: os.environ[name] for name in KEPT_BY_CLEAR if name in os.environ}
    else:
        env = dict(os.environ)
    for name, preset in NON_INTERACTIVE.items() if defaults else ():
        env.setdefault(name, preset)
    for name, given in extra.items():
        _check_name(name)
        value = os.environ.get(name) if given is None else given
        if value is not None:
            if not _is_plain(value):
                raise UsageError(f"env: the value of {name} must be text without NUL bytes, not {value!r:.60}")
            env[name] = value
    return env


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or "=" in name or not _is_plain(name):
        raise UsageError(f"env: {name!r} is not a variable name")


def _is_plain(value: object) -> bool:
    """Text that the kernel takes."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True
