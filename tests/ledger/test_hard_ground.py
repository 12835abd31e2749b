# SPDX-License-Identifier: Apache-2.0
"""Where ledgers are put in practice: behind a pooler, under a role with its own settings, on a disk that fills up."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pg_server
import pytest
from stores import Databases, Ground, intent
from test_stores import child

from deadstop.errors import LedgerUnavailable
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Outcome
from deadstop.ledger.sequence import sequence
from deadstop.ledger.states import State
from deadstop.ledger.store import open_store

if (why := pg_server.why_not()) is not None:
    pytest.skip(why, allow_module_level=True)

from deadstop.ledger import pg_session, pg_settings, postgresql

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
SETTINGS = (
    "SELECT current_setting('search_path'), current_setting('statement_timeout'), current_setting('enable_seqscan')"
)


def put(store: Any, name: str) -> int:
    return int(store.write(lambda tx: tx.run("set_meta", name=name, value="v")).result(20))


def has(store: Any, name: str) -> bool:
    return store.read(lambda tx: tx.one("meta", name=name)) is not None


def effect(ledger: Ledger, binding: str) -> bool:
    """Whether this call was the one to do it."""
    claim = ledger.begin(intent(ledger, binding=binding)).claim
    if claim is not None:
        ledger.finish(claim, Outcome(State.SUCCEEDED))
    return claim is not None


# -- behind a pooler -------------------------------------------------------------------------------------------------


@contextmanager
def pooler(server: pg_server.PgServer, folder: Path, mode: str, *lines: str, size: int = 4) -> Iterator[int]:
    """PgBouncer before that server; its port."""
    assert PGBOUNCER is not None
    account = pg_server._account()
    place = Path(server.folder, f"b{secrets.token_hex(4)}")  # where that account can come
    place.mkdir(mode=0o755)
    port = pg_server._free_port()
    (place / "users").write_text(f'"{pg_server.ROLE}" "{server.password}"\n')
    words = [
        "[databases]", f"* = host=127.0.0.1 port={server.port}", "[pgbouncer]", "listen_addr = 127.0.0.1",
        f"listen_port = {port}", "unix_socket_dir =", "auth_type = scram-sha-256", f"auth_file = {place}/users",
        f"pool_mode = {mode}", f"default_pool_size = {size}", *lines,
    ]  # fmt: skip
    (place / "ini").write_text("\n".join(words) + "\n")
    for each in (place / "users", place / "ini"):
        os.chown(each, account.pw_uid, account.pw_gid)
        each.chmod(0o600)
    with open(folder / "pgbouncer.log", "wb") as log:
        running = subprocess.Popen(
            [PGBOUNCER, str(place / "ini")], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            **pg_server._identity(account),
        )  # fmt: skip
    try:
        until_answered(port, running, folder / "pgbouncer.log")
        yield port
    finally:
        running.terminate()
        running.wait(10)
        shutil.rmtree(place)


def until_answered(port: int, running: Any, log: Path) -> None:
    end = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert running.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.01)


@pytest.fixture(params=["transaction", "session"])
def pooled(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> Iterator[Ground]:
    """A ledger in a schema of its own, through PgBouncer, which knows nothing of that schema."""
    if PGBOUNCER is None:
        pytest.skip("there is no pgbouncer on this machine")
    known = "ignore_startup_parameters = options,extra_float_digits"
    with pooler(
        databases.server, tmp_path, request.param, known, size=4 if request.param == "transaction" else 24
    ) as at:
        made = Ground("postgresql", databases.fresh(port=at))
        yield made
        made.release()


def test_a_ledger_behind_a_pooler_does_each_thing_once_and_in_its_own_schema(pooled: Ground) -> None:
    one, other = pooled.ledger(notary=True), pooled.ledger(notary=True)
    with ThreadPoolExecutor(12) as threads:
        ways = [(each, f"b{number}") for number in range(30) for each in (one, other)]
        done = list(threads.map(lambda way: effect(*way), ways))
    assert sum(done) == 30
    assert one.notary is not None
    assert one.notary.checkpoint() is not None
    schema = pooled.where.rpartition("search_path%3D")[2].split("&")[0]
    assert one.store.read(lambda tx: tx.one("log_count_operations")) == (30,)
    look = pooled.raw(
        "SELECT schemaname FROM pg_tables WHERE tablename = 'unplaced' AND schemaname IN ('public', ?)", schema
    )
    assert look == [(schema,)]
    one.close()
    other.close()


def test_a_pooler_is_left_as_it_was_and_what_others_left_there_does_not_matter(pooled: Ground) -> None:
    import psycopg

    opened = pooled.open()
    put(opened, "a")
    with psycopg.connect(pooled.where, autocommit=True, prepare_threshold=None) as other:
        assert other.execute(SETTINGS).fetchone() == ('"$user", public', "0", "on")
        other.execute("SET search_path = nowhere; SET synchronous_commit = off; SET statement_timeout = '1ms'")
        for number in range(6):
            put(opened, f"b{number}")
            assert has(opened, f"b{number}")
        other.execute("RESET ALL")


def test_a_pooler_that_refuses_options_is_told_apart(databases: Databases, tmp_path: Path) -> None:
    if PGBOUNCER is None:
        pytest.skip("there is no pgbouncer on this machine")
    with pooler(databases.server, tmp_path, "statement") as port:
        with pytest.raises(LedgerUnavailable, match=r"startup parameter.*ignore_startup_parameters = options"):
            open_store(databases.fresh(port=port))
        with pytest.raises(LedgerUnavailable, match="pool_mode to transaction"):
            open_store(databases.server.url(tcp=port))


def test_without_a_session_of_its_own_nothing_is_kept_in_it(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, where there is no PgBouncer: the server's name for the session is not the one we were given."""
    ground = Ground("postgresql", databases.fresh())
    monkeypatch.setattr(pg_session.Session, "pid", property(lambda self: -1))
    opened = postgresql.PostgresStore(ground.where.replace("options=", "options=-c%20synchronous_commit%3Doff%20"))
    assert put(opened, "a") == 1 and has(opened, "a")
    with pytest.raises(LedgerUnavailable):
        opened.write(lambda tx: tx.run("log_add_node", level=None, place=1, hash="")).result(5)
    assert put(opened, "b") == 1
    session = opened._idle[0]
    inside = session.transaction(pg_session.BEGIN_WRITE, lambda tx: settings(session))
    assert inside[0] == ("on", "10s", "5s")
    session._pg.exit_pipeline_mode()
    assert session.plain("SELECT count(*) FROM pg_prepared_statements") == [(0,)]
    assert session.plain("SHOW statement_timeout") == [("0",)]
    opened.close()
    ground.release()


def settings(session: pg_session.Session) -> list[Any]:
    session.exchange()
    names = ("synchronous_commit", "statement_timeout", "lock_timeout")
    text = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
    session._queue.append((pg_session._local(text), [], ()))
    return session.rows("settings", session.exchange())


def test_the_settings_of_a_url_are_read_as_libpq_reads_them() -> None:
    text = r"-c search_path=a,b -cjit=on  --work-mem=4MB -c x.y=a\ b\\c -d 3"
    assert pg_settings.asked(text) == {"search_path": "a,b", "jit": "on", "work_mem": "4MB", "x.y": "a b\\c"}
    assert pg_settings.setting({"a": "it's \\"}, "true").startswith(r"set_config(E'a', E'it''s \\', true), ")


# -- a role with settings of its own -----------------------------------------------------------------------------------


@contextmanager
def role(databases: Databases, *changes: str) -> Iterator[str]:
    """The URL of a user with these settings and a schema."""
    name, server = f"r{secrets.token_hex(4)}", databases.server
    at = databases.fresh().split("?")[0].rpartition("/")[2]
    server.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'; CREATE SCHEMA {name} AUTHORIZATION {name}", database=at)
    for each in changes:
        server.sql(f"ALTER ROLE {name} {each}", database=at)
    try:
        yield server.url(at).replace(f"{pg_server.ROLE}:{server.password}", f"{name}:pw")
    finally:
        server.sql(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}", database=at)


def test_a_role_that_is_told_otherwise_changes_nothing(databases: Databases) -> None:
    told = (
        "default_transaction_isolation = serializable", "statement_timeout = '7s'", "lock_timeout = '7s'",
        "idle_in_transaction_session_timeout = '7s'", "synchronous_commit = off", "standard_conforming_strings = off",
        "datestyle = 'German'", "client_encoding = latin1", "idle_session_timeout = '100ms'",
    )  # fmt: skip
    with role(databases, *(f"SET {each}" for each in told)) as where, Ledger(open_store(where), notary=False) as ledger:
        assert effect(ledger, "a\u00e9") and not effect(ledger, "a\u00e9")
        session = ledger.store._idle[0]  # type: ignore[attr-defined]
        assert session._poll.poll(5000)  # the server has ended it, unasked
        assert effect(ledger, "b")
        ours = ledger.store._connect()  # type: ignore[attr-defined]
        names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit")
        assert [ours.plain(f"SHOW {name}")[0][0] for name in names] == ["10s", "5s", "30s", "on"]
        ours.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("SET default_transaction_read_only = on", "read-only; name the server that can be written to, or set"),
        ("SET session_replication_role = replica", "triggers do not fire.*session_replication_role = origin"),
        ("SET search_path = nowhere", "no schema of its search_path exists.*CREATE SCHEMA"),
        ("SET search_path = information_schema", "permission denied.*open it once as the user who owns"),
        ("CONNECTION LIMIT 0", "too many connections.*allow more connections"),
        ("NOLOGIN", "not permitted to log in.*LOGIN"),
    ],
)
def test_a_role_that_cannot_keep_a_ledger_is_told_why(databases: Databases, change: str, said: str) -> None:
    with role(databases, change) as where, pytest.raises(LedgerUnavailable, match=said):
        open_store(where)


def test_a_role_that_is_shut_out_for_a_while_goes_on_afterwards(databases: Databases) -> None:
    with role(databases) as where:
        opened, name = open_store(where), where.split("//")[1].split(":")[0]
        put(opened, "before")
        for number, (out, back, said) in enumerate(
            [
                (
                    "PASSWORD 'other'",
                    "PASSWORD 'pw'",
                    "password authentication failed.*check the user and the password",
                ),
                ("CONNECTION LIMIT 0", "CONNECTION LIMIT -1", "too many connections.*allow more connections"),
            ]
        ):
            databases.server.sql(f"ALTER ROLE {name} {out}")
            put(opened, f"kept{number}")  # what is connected stays so
            databases.server.sql(
                "SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity WHERE usename = %s", name
            )
            with pytest.raises(LedgerUnavailable, match=said) as caught:
                put(opened, f"lost{number}")
            assert not caught.value.uncertain
            databases.server.sql(f"ALTER ROLE {name} {back}")
            assert put(opened, f"again{number}") == 1 and not has(opened, f"lost{number}")
        opened.close()


def test_two_that_make_the_tables_at_once_see_each_other_under_any_default(databases: Databases) -> None:
    where = databases.fresh().replace("options=", "options=-cdefault_transaction_isolation%3Dserializable%20")
    ground = Ground("postgresql", where)
    waiting = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    with ThreadPoolExecutor(2) as threads:
        with ground.undone():
            ground.raw("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            ground.raw(postgresql._LOCK)
            making = [threads.submit(open_store, where) for _ in range(2)]
            end = time.monotonic() + 4
            while ground.raw(waiting) != [(2,)]:
                assert time.monotonic() < end
                time.sleep(0.01)
        for each in making:
            each.result(10).close()
    ground.release()


def test_a_server_that_does_not_flush_is_said_once(databases: Databases, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "deadstop.ledger")
    opened = open_store(databases.fresh())
    put(opened, "a")
    opened.close()
    durable = databases.server.sql("SHOW fsync") == [("on",)]
    said = [each.getMessage() for each in caplog.records if "fsync off" in each.getMessage()]
    assert len(said) == (0 if durable else 1)
    assert databases.server.password not in "".join(said)


# -- many that wait for their places -----------------------------------------------------------------------------------


def test_a_long_queue_for_places_is_taken_in_bounded_parts_each_operation_in_its_order(pg_ground: Ground) -> None:
    opened = pg_ground.open()
    pg_ground.raw(
        "INSERT INTO evidence SELECT 'op_' || lpad(mod(o * 7, 900)::text, 4, '0'), n, 'note', 1000 - o, '{}', '',"
        " encode(sha256((o || '.' || n)::text::bytea), 'hex')"
        " FROM generate_series(1, 900) AS o, generate_series(1, 10) AS n"
    )
    with pg_ground.undone():
        pg_ground.raw(f"PREPARE take AS {pg_session._statements()['log_take'].text.decode()}")
        plan = pg_ground.raw("EXPLAIN (ANALYZE, TIMING OFF) EXECUTE take(4096)")
    rows = [int(each) for (line,) in plan for each in re.findall(r"\(actual rows=(\d+)", line)]
    assert max(rows) == 4096, plan  # however many wait
    parts = [opened.write(sequence).result(10) for _ in range(4)]
    assert parts == [4096, 4096, 808, 0]
    order = "SELECT n - lag(n, 1, 0::bigint) OVER (PARTITION BY op_id ORDER BY seq) FROM leaf"
    assert {step for (step,) in pg_ground.raw(order)} == {1}
    assert pg_ground.raw("SELECT count(*), min(seq), max(seq) FROM leaf") == [(9000, 0, 8999)]


# -- a disk that fills up ----------------------------------------------------------------------------------------------

FILLED = """
import os, resource, signal, subprocess, sys
sys.path[:0] = sys.argv[2:]
from stores import intent
from deadstop.errors import LedgerUnavailable
from deadstop.ledger.ledger import Ledger
where = sys.argv[1]
if os.environ.get("SMALL"):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", os.environ["SMALL"]], check=True)
ledger = Ledger.open(where)
ledger.begin(intent(ledger, binding="first"))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
if not os.environ.get("SMALL"):
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(where + "-wal") + 20000, hard))
claimed, problems = 1, []
for number in range(2000):
    try:
        claimed += ledger.begin(intent(ledger, binding=f"b{number}", correlation="c" * 1000)).claim is not None
    except LedgerUnavailable as problem:
        problems.append(str(problem))
        if len(problems) == 3:
            break
assert len(problems) == 3, claimed
assert ledger.get(ledger.list()[0].op_id)
if os.environ.get("SMALL"):
    assert "make room on its disk" in problems[0], problems
    subprocess.run(["mount", "-o", "remount,size=8m", os.environ["SMALL"]], check=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
claimed += ledger.begin(intent(ledger, binding=f"b{number}", correlation="c" * 1000)).claim is not None
known = ledger.list(limit=5000)
assert len(known) == claimed == sum(each.attempts for each in known), (len(known), claimed)
assert ledger.notary.checkpoint().size == 2 * claimed
ledger.close()
print("done")
"""


def test_a_file_that_can_grow_no_more_refuses_and_goes_on_when_it_can(tmp_path: Path) -> None:
    """As a quota would have it."""
    out, problems = child(str(tmp_path / "ledger.db"), FILLED).communicate(timeout=30)
    assert out.split() == [b"done"], problems.decode()


@pytest.mark.root
def test_a_full_disk_refuses_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("needs root, for a small disk of its own")
    words = [sys.executable, "-c", FILLED, str(tmp_path / "ledger.db"), *sys.path]
    ran = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", *words], env={**os.environ, "SMALL": str(tmp_path)},
        stdin=subprocess.DEVNULL, capture_output=True, timeout=30,
    )  # fmt: skip
    if b"unshare:" in ran.stderr or b"mount:" in ran.stderr:
        pytest.skip("mounts are not allowed here")
    assert ran.stdout.split() == [b"done"], ran.stderr.decode()
