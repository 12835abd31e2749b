# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's own ways to fail: lost connections, a server that is down or silent, and what it was told to forget."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pg_proxy
import pg_server
import pytest
import stores
from stores import Databases, Ground, intent
from test_stores import begun, child, done

from deadstop.errors import LedgerError, LedgerUnavailable, UsageError
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Outcome
from deadstop.ledger.states import State
from deadstop.ledger.store import open_store

if (why := pg_server.why_not()) is not None:
    pytest.skip(why, allow_module_level=True)

from deadstop.ledger import pg_session, postgresql

# Another name for each test: how its own sessions are told from all others.
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE application_name = ? AND pid <> pg_backend_pid()"


@pytest.fixture
def named(databases: Databases) -> Any:
    name = f"a{secrets.token_hex(4)}"
    made = Ground("postgresql", databases.fresh(application_name=name))
    made.name = name  # type: ignore[attr-defined]
    yield made
    made.release()


def end_sessions(ground: Any) -> int:
    found = ground.raw(BACKENDS.replace("pid FROM", "pg_terminate_backend(pid, 2000) FROM"), ground.name)
    return len(found)


def put(name: str) -> Any:
    return lambda tx: tx.run("set_meta", name=name, value="v")


def has(opened: Any, name: str) -> bool:
    return opened.read(lambda tx: tx.one("meta", name=name)) is not None


# -- lost connections --------------------------------------------------------------------------------------------------


def test_a_session_ended_between_transactions_is_replaced(named: Any) -> None:
    opened = named.open()
    opened.write(put("a")).result(5)
    assert end_sessions(named) == 1
    assert opened.write(put("b")).result(5) == 1
    assert has(opened, "a") and has(opened, "b")


def test_a_session_ended_in_a_transaction_means_that_it_is_done_again_and_once(named: Any) -> None:
    opened, runs = named.open(), []

    def work(tx: Any) -> int:
        runs.append(tx.now)
        assert tx.run("set_meta", name="a", value=str(len(runs))) == 1
        if len(runs) == 1:
            assert end_sessions(named) == 1
        return int(tx.run("set_meta", name="b", value="v"))

    assert opened.write(work).result(10) == 1
    assert len(runs) == 2
    assert opened.read(lambda tx: tx.one("meta", name="a")) == ("2",)


def test_sessions_that_are_always_ended_are_given_up(named: Any) -> None:
    opened, runs = named.open(), []

    def work(tx: Any) -> None:
        runs.append(tx.now)
        end_sessions(named)
        tx.one("meta", name="a")

    with pytest.raises(LedgerUnavailable) as caught:
        opened.write(work).result(10)
    assert not caught.value.uncertain  # COMMIT was never sent
    assert len(runs) == postgresql.TRIES
    assert opened.write(put("b")).result(5) == 1


@pytest.mark.parametrize(("fault", "commits"), [("lose_request", 2), ("lose_reply", 1), ("stall", 1)])
def test_what_became_of_a_commit_whose_answer_is_lost_is_asked(
    databases: Databases, monkeypatch: pytest.MonkeyPatch, fault: str, commits: int
) -> None:
    monkeypatch.setattr(pg_session, "ANSWER_S", 0.4)
    with pg_proxy.proxy(databases.server.port) as between:
        opened = postgresql.PostgresStore(databases.fresh(port=between.port))
        opened.write(put("before")).result(5)
        between.fault, between.commits = fault, 0
        assert opened.write(put("a")).result(5) == 1
        assert between.commits == commits  # what was done is not done again
        assert has(opened, "a")
        opened.close()


@pytest.mark.parametrize(("fault", "there"), [("lose_request", False), ("lose_reply", True)])
@pytest.mark.parametrize("other", [True, False])
def test_a_commit_of_which_nobody_can_say_what_became_is_uncertain(
    databases: Databases, monkeypatch: pytest.MonkeyPatch, fault: str, there: bool, other: bool
) -> None:
    monkeypatch.setattr(postgresql, "FATE_S", 0.2)
    with pg_proxy.proxy(databases.server.port) as between:
        opened = postgresql.PostgresStore(databases.fresh(port=between.port))
        opened.write(put("before")).result(5)
        if other:  # one that was started at another time: its transactions are not ours, whatever their names
            opened._idle[0].server = "yesterday"
        between.refusing = not other
        between.fault, between.commits = fault, 0
        with pytest.raises(LedgerUnavailable) as caught:
            opened.write(put("a")).result(5)
        assert caught.value.uncertain
        assert between.commits == 1  # it was not tried again: it may have been done
        between.refusing = False
        assert has(opened, "a") is there  # reading it again says which
        opened.close()


def test_a_name_that_a_recovery_gave_anew_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """One backend dies: the server recovers without a new start, and names that left no trace are given anew."""
    monkeypatch.setattr(postgresql, "FATE_S", 0.2)
    with pg_server.running() as server:
        opened = postgresql.PostgresStore(server.url())
        server.sql("CHECKPOINT")
        session = opened._take()
        with pytest.raises(pg_session.Lost):
            session.transaction(pg_session.BEGIN_WRITE, lambda tx: (put("a")(tx), die(server)))
        again = until_up(lambda: server.sql("SELECT pg_current_xact_id()::text")[0][0])
        assert again == session.xid  # else this test shows nothing
        assert opened._fate(session) == ""
        opened._give_back(session)
        assert not has(opened, "a")
        opened.close()


def die(server: pg_server.PgServer) -> None:
    ours = "SELECT pid FROM pg_stat_activity WHERE application_name = 'deadstop'"
    for (pid,) in server.sql(ours):
        os.kill(pid, signal.SIGKILL)
    until_up(lambda: server.sql("SELECT 1"))


def until_up(ask: Any) -> Any:
    end = time.monotonic() + 20
    while True:
        try:
            return ask()
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def test_a_server_that_has_stopped_answering_is_not_waited_for(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pg_session, "ANSWER_S", 0.4)
    monkeypatch.setattr(postgresql, "TRIES", 1)
    with pg_proxy.proxy(databases.server.port) as between:
        opened = postgresql.PostgresStore(databases.fresh(port=between.port))
        opened.write(put("before")).result(5)
        between.silent = True
        started = time.monotonic()
        with pytest.raises(LedgerUnavailable, match=r"no answer within 0\.4 s") as caught:
            opened.read(lambda tx: tx.one("meta", name="a"))
        assert 0.3 < time.monotonic() - started < 2
        assert not caught.value.uncertain
        between.silent = False
        assert opened.write(put("b")).result(5) == 1
        opened.close()


def test_a_server_that_never_answers_at_all_is_not_waited_for(databases: Databases) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        with pytest.raises(LedgerUnavailable, match="timeout"):
            open_store(f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=2")
        assert time.monotonic() - started < 4


def test_a_server_that_is_down_is_said_at_once(databases: Databases) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        where = f"postgresql://me:{'s3cret'}@127.0.0.1:{nobody.getsockname()[1]}/x"
        started = time.monotonic()
        with pytest.raises(LedgerUnavailable, match="refused") as caught:
            open_store(where)
        assert time.monotonic() - started < 2
        assert not caught.value.uncertain


def test_a_server_that_goes_down_and_comes_back(databases: Databases) -> None:
    with pg_proxy.proxy(databases.server.port) as between:
        opened = postgresql.PostgresStore(databases.fresh(port=between.port))
        opened.write(put("a")).result(5)
        port = between.port
    started = time.monotonic()
    with pytest.raises(LedgerUnavailable, match="refused") as caught:
        opened.write(put("b")).result(5)
    assert time.monotonic() - started < 2 and not caught.value.uncertain
    with pg_proxy.proxy(databases.server.port, listen=port):
        assert opened.write(put("b")).result(5) == 1
        opened.close()


# -- at once -----------------------------------------------------------------------------------------------------------


def test_a_deadlock_is_resolved_by_doing_one_of_them_again(databases: Databases) -> None:
    where = databases.fresh()
    ground = Ground("postgresql", where.replace("options=", "options=-cdeadlock_timeout%3D50ms%20"))
    ledger = ground.ledger()
    both = [begun(ledger, binding=name) for name in "ab"]
    first = threading.Barrier(2, timeout=5)
    met = threading.local()

    def lock(order: list[str]) -> None:
        def work(tx: Any) -> None:
            tx.one("lock_operation", op_id=order[0])
            if not getattr(met, "once", False):
                met.once = True
                first.wait()
            tx.one("lock_operation", op_id=order[1])

        ledger.write(work)

    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(lock, both), threads.submit(lock, both[::-1])]:
            each.result(10)
    ground.release()


def test_more_threads_than_connections_wait_and_not_for_ever(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "ROOM_S", 0.3)
    opened = postgresql.PostgresStore(databases.fresh(), connections=1)
    held, go_on = threading.Event(), threading.Event()

    def work(tx: Any) -> None:
        held.set()
        assert go_on.wait(5)

    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(opened.read, work)
        assert held.wait(5)
        with pytest.raises(LedgerUnavailable, match=r"all 1 of its connections were in use for 0\.3 s"):
            opened.read(lambda tx: tx.one("meta", name="a"))
        go_on.set()
        holding.result(5)
    assert opened.write(put("a")).result(5) == 1
    opened.close()


def test_a_change_of_what_has_been_changed_meanwhile_is_not_committed(pg_ground: Ground) -> None:
    """What counts as having changed one row without waiting for the answer must not be able to change none."""
    ledger = pg_ground.ledger()
    record = ledger.get(begun(ledger))

    def work(tx: Any) -> None:
        tx.run("set_meta", name="half", value="v")
        tx.run("set_head", op_id=record.op_id, evidence=record.evidence, head="0" * 64)  # not beyond what is there

    with pytest.raises(LedgerError):
        ledger.write(work)
    assert not has(ledger.store, "half")
    assert ledger.get(record.op_id) == record


def test_a_batch_larger_than_any_buffer_goes_through(pg_ground: Ground) -> None:
    """Neither side may wait for the other to read."""
    opened = pg_ground.open()
    rows = [{"op_id": "op", "name": f"n{number}", "salt": "s", "value": "v" * 1000} for number in range(3000)]
    opened.write(lambda tx: tx.many("add_payload", rows)).result(10)
    assert len(opened.read(lambda tx: tx.all("payload_names", op_id="op"))) == 3000
    assert len(opened.read(lambda tx: [tx.one("payload", op_id="op", name=row["name"]) for row in rows[:20]])) == 20


def test_a_batch_keeps_every_character(pg_ground: Ground) -> None:
    opened = pg_ground.open()
    texts = ["plain", 'quo"ted', "back\\slash", "{braces},", "NULL", "", " ", "\u00e9\n\u4e2d"]
    rows = [{"seq": number, "op_id": text, "n": 1, "hash": text} for number, text in enumerate(texts)]
    opened.write(lambda tx: tx.many("log_add", rows)).result(5)
    assert pg_ground.raw("SELECT op_id, hash FROM leaf ORDER BY seq") == [(text, text) for text in texts]


class Interruption(BaseException):
    pass


def test_an_interrupted_wait_leaves_nothing_half_read(pg_ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C: the connection has an answer coming that is for nobody."""
    ledger = pg_ground.ledger()
    op_id = begun(ledger)

    def interrupt(*_: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pg_ground.undone():
            pg_ground.raw("SELECT 1 FROM operation WHERE op_id = ? FOR UPDATE", op_id)
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            threading.Thread(target=_when, args=(lambda: pg_ground.raw(waiting) != [],), daemon=True).start()
            with pytest.raises(Interruption):
                ledger.cancel(op_id)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ledger.get(op_id).state is State.PREPARED
    assert ledger.cancel(op_id).state is State.ABANDONED


def _when(condition: Any) -> None:
    until = time.monotonic() + 5
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGUSR1)


def test_its_clock_is_the_databases(pg_ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = pg_ground.open()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    before, after = pg_ground.raw("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")[0][0], None
    now = opened.write(lambda tx: tx.now).result(5)
    after = pg_ground.raw("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")[0][0]
    assert before <= now <= after


FORKED = """
import os, sys
sys.path[:0] = sys.argv[2:]
from deadstop.errors import LedgerUnavailable
from deadstop.ledger.store import open_store
store = open_store(sys.argv[1])
put = lambda name: store.write(lambda tx: tx.run("set_meta", name=name, value="v")).result(5)
put("parent")
child = os.fork()
if child == 0:
    try:
        put("child")
    except LedgerUnavailable as problem:
        assert "forked" in str(problem), problem
        store.close()
        del store
        again = open_store(sys.argv[1])
        again.write(lambda tx: tx.run("set_meta", name="again", value="v")).result(5)
        again.close()
        sys.exit(7)  # through every finalizer, which must not touch the parent's connection
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
session = store._idle[0]
put("later")
assert store._idle == [session] and not session.dead, "the parent's connection was ended"
names = [store.read(lambda tx: tx.one("meta", name=name)) is not None for name in ("parent", "child", "again", "later")]
print(names)
"""


def test_a_forked_child_leaves_its_parents_connection_alone(pg_ground: Ground) -> None:
    parent = child(pg_ground.where, FORKED)
    out, problems = parent.communicate(timeout=20)
    assert out.split() == b"[True, False, True, True]".split(), problems.decode()


# -- what is asked of the server ---------------------------------------------------------------------------------------


def test_a_user_whose_commits_are_confirmed_before_they_are_written_waits_for_ours(databases: Databases) -> None:
    where = databases.fresh().replace("options=", "options=-csynchronous_commit%3Doff%20")
    opened = postgresql.PostgresStore(where)
    session = opened._connect()
    assert session.plain("SHOW synchronous_commit") == [("on",)]
    session.close()
    opened.close()


def test_a_database_that_is_not_there_is_said_with_what_would_mend_it(databases: Databases) -> None:
    with pytest.raises(LedgerUnavailable, match='database "nowhere" does not exist; create the database'):
        open_store(databases.server.url("nowhere"))


def test_a_schema_that_is_not_there_is_said(databases: Databases) -> None:
    where = databases.fresh()
    schema = where.rpartition("search_path%3D")[2].split("&")[0]
    with pytest.raises(LedgerUnavailable, match="no schema of its search_path exists"):
        open_store(where.replace(schema, "nowhere"))


def test_a_password_is_shown_nowhere(databases: Databases) -> None:
    where = databases.fresh()
    password = databases.server.password
    assert password in where
    opened = open_store(where)
    shown = [opened.where, repr(opened), str(opened), repr(Ledger(opened, notary=False))]
    opened.close()
    wrong = f"x{password}"
    for bad in (where.replace(password, wrong), where.replace("?", "%%%?")):
        with pytest.raises((LedgerUnavailable, UsageError)) as caught:
            open_store(bad)
        shown += [str(caught.value), repr(caught.value)]
        shown += [line for line in traceback.format_exception(caught.value) if "open_store(" not in line]
    assert [each for each in shown if password in each] == []
    assert "password authentication failed" in "".join(shown)


def test_a_role_with_the_rights_that_the_files_name_is_enough(databases: Databases) -> None:
    from deadstop.ledger.statements import migrations

    owner = Ground("postgresql", databases.fresh())
    owner.open().close()
    role, schema = f"r{secrets.token_hex(4)}", owner.where.rpartition("search_path%3D")[2].split("&")[0]
    owner.raw(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    owner.raw(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    lines = [line for each in migrations("postgresql") for line in each.text.splitlines()]
    grants = [line[3:].strip(" ;") for line in lines if line.startswith("--   GRANT ")]
    for each in grants:
        owner.raw(each.replace(" TO agents", f" TO {role}"))
    user = f"{pg_server.ROLE}:{databases.server.password}"
    theirs = Ground("postgresql", owner.where.replace(user, f"{role}:pw"))
    with theirs.ledger(notary=True) as ledger:
        op_id = done(ledger)
        claim = ledger.begin(intent(ledger, binding="b2")).claim
        assert claim is not None
        ledger.finish(claim, Outcome(State.UNKNOWN))
        ledger.resolve(claim.op_id, State.FAILED, "me", "it never came")
        assert ledger.shred(op_id) == ["result"]
    with pytest.raises(stores.psycopg_error(), match="permission denied"):
        theirs.raw("DELETE FROM evidence")
    with pytest.raises(stores.psycopg_error(), match="must be owner"):
        theirs.raw("ALTER TABLE evidence DISABLE TRIGGER USER")
    theirs.release()
    owner.raw(f"DROP OWNED BY {role}")
    owner.raw(f"DROP ROLE {role}")
    owner.release()


def test_text_that_postgresql_cannot_hold_is_refused_before_it_is_cut_off(pg_ground: Ground) -> None:
    opened = pg_ground.open()
    for text in ("a\0b", "\ud800"):
        with pytest.raises(UsageError, match="cannot be written"):
            opened.write(put(text)).result(5)
    assert opened.write(put("a")).result(5) == 1
