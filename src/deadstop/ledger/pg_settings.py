# SPDX-License-Identifier: Apache-2.0
"""What a connection to PostgreSQL is given, what is set and asked on it, and what would mend one that is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import MissingExtra, UsageError

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError:
    raise MissingExtra("a PostgreSQL ledger", "postgresql") from None

__all__ = ["ASK", "CONNECT_S", "OWNER", "SETTINGS", "STARTED", "asked", "fix", "read_url", "setting"]

CONNECT_S = 5

# Keepalives and a limit on unacknowledged data: what a dead host costs, on top of the bounds above.
_NETWORK: dict[str, Any] = {
    "connect_timeout": CONNECT_S, "keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2,
    "keepalives_count": 3, "tcp_user_timeout": 12_000, "target_session_attrs": "read-write",
    "application_name": "deadstop", "client_encoding": "utf8",
}  # fmt: skip
# A lock is never kept by a process that has been stopped in the middle. Plans are made once, and never for the size
# that a table had at the time: every statement has its index.
SETTINGS = {
    "statement_timeout": "10s", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "30s",
    "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "jit": "off",
}  # fmt: skip
# A recovery after the death of one backend is no new start, but names transactions anew: it resets these statistics.
STARTED = (
    "concat(extract(epoch FROM pg_postmaster_start_time()), ' ', "
    "(SELECT extract(epoch FROM stats_reset) FROM pg_stat_bgwriter))"
)
ASK = (
    f"pg_backend_pid(), current_setting('search_path'), {STARTED}, current_schema(), "
    "current_setting('server_encoding'), current_setting('fsync'), current_setting('session_replication_role')"
)
OWNER = "owner"  # for a state: 42501, where tables are made or changed
_FIXES = {
    "42501": "grant the rights that the files in ledger/sql/postgresql name", "53100": "make room on its disk",
    OWNER: "open it once as the user who owns its tables, or may make them",
    "53300": "allow more connections", "55P03": "see who holds the lock (pg_locks)",
    "57014": "see what keeps the server busy", "25006": "name the server that can be written to",
    "26000": (direct := "go past the pooler to the server"), "42P05": direct,
}  # fmt: skip
_WORDS = {  # of a connection that was not made, which has no code: the first that fits
    "unsupported startup parameter": "tell the pooler: ignore_startup_parameters = options",
    "statement pooling": "set its pool_mode to transaction",
    "authentication failed": "check the user and the password", "no password supplied": "name one: PGPASSWORD, .pgpass",
    "pg_hba.conf": "let this host in there", "not permitted to log in": "ALTER ROLE ... LOGIN",
    "too many": "allow more connections", "connection slots": "allow more connections",
    "no more connections": "allow more connections",
    "no answer within": "see what the server, or a pooler before it, waits for",
    "hot standby": (other := "name the server that can be written to"), "during recovery": other,
    "session is read-only": f"{other}, or set default_transaction_read_only off for this user",
    "starting up": (later := "wait until it is up"), "shutting down": later, "recovery mode": later,
    "not currently accepting": "ALTER DATABASE ... ALLOW_CONNECTIONS true",
    'database "': "create the database", 'role "': "create the role", "refused": "start the server, or name another",
    "No such file": "start the server, or name another", "timeout": "see whether the server can be reached",
}  # fmt: skip


def fix(state: str, text: str) -> str:
    """What would mend that refusal; "" if nobody knows."""
    return _FIXES.get(state) or _FIXES.get(state[:2]) or next((_WORDS[word] for word in _WORDS if word in text), "")


def setting(settings: Mapping[str, str], local: str) -> str:
    """The part of a SELECT that sets them, and what is confirmed to be on the server's disk, whatever the role says."""
    words = [f"set_config({_quoted(name)}, {_quoted(value)}, {local})" for name, value in settings.items()]
    now = "current_setting('synchronous_commit')"
    words.append(f"set_config('synchronous_commit', CASE {now} WHEN 'off' THEN 'on' ELSE {now} END, {local})")
    return ", ".join(words)


def _quoted(text: str) -> str:
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def asked(options: str) -> dict[str, str]:
    """The settings in libpq's `options`: -c name=value, -cname=value, --name=value; a backslash keeps a space."""
    words = [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:[^\s\\]|\\.)+", options)]
    found = {}
    for at, word in enumerate(words):
        if at and words[at - 1] == "-c":
            word = f"-c{word}"
        if word.startswith(("-c", "--")) and "=" in word:
            name, _, value = word[2:].partition("=")
            found[name.replace("-", "_")] = value
    return found


def read_url(url: str) -> tuple[str, tuple[str, ...], str]:
    """What people are shown of it, what they are not, and what libpq is given. An error does not show it either."""
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except psycopg.Error:
        raise UsageError(
            "ledger: libpq cannot read this postgresql:// URL (not shown: it may hold a password)"
        ) from None
    host, port = given.get("host", ""), given.get("port", "")
    on_socket = host.startswith("/")
    place = f"{given['user']}@" if "user" in given else ""
    if not on_socket:
        place += host + (f":{port}" if port else "")
    more = {"host": host, "port": port} if on_socket else {}
    more["options"] = given.get("options", "")
    words = "&".join(f"{name}={value}" for name, value in more.items() if value)
    shown = f"postgresql://{place}/{given.get('dbname', '')}" + (f"?{words}" if words else "")
    secrets = tuple(given[name] for name in ("password", "sslpassword") if given.get(name))
    return shown, secrets, make_conninfo("", **{**_NETWORK, **given, "client_encoding": "utf8"})
