# SPDX-License-Identifier: Apache-2.0
"""`deadstop ops`, as a person or a script uses it, on a ledger with operations of each kind."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rfc8785")
pytest.importorskip("cryptography")

from deadstop.cli import main
from deadstop.ledger import outbox
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import HttpQuery, SqlQuery
from deadstop.ledger.records import Intent, Message, Outcome, Record
from deadstop.ledger.states import State
from deadstop.ledger.store import open_store

RECEIPT = {"boundary": "process", "method": ["cgroup.kill"], "proof": "pid_namespace_reaped", "survivors": 0,
           "processes": 2, "kill_ms": 1.5, "deadline_to_dead_ms": 2.0, "escalated": False,
           "unkillable": []}  # fmt: skip


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Kept:
    """A ledger that is filled with the library, and read with the command line."""

    def __init__(self, path: Path, call: Callable[..., Done]) -> None:
        self.path, self.ops = path, call
        self.ledger = Ledger(open_store(str(path)), notary=False)

    def begin(self, key: str, tool: str = "deploy", effect: Effect | None = None, lease_s: float = 30) -> Any:
        definition = self.ledger.define((effect or Effect(fingerprint=["a"])).define(tool))
        intent = Intent("default", key, "fp", tool, definition.version, target="production",
                        sealed={"request": {"a": 1}}, recovery_s=definition.recovery_s)  # fmt: skip
        return self.ledger.begin(intent, lease_s)

    def ended(self, key: str, to: State, **more: Any) -> Record:
        begun = self.begin(key, **{name: more.pop(name) for name in ("tool", "effect") if name in more})
        return self.ledger.finish(begun.claim, Outcome(to, **more))


@pytest.fixture
def kept(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.setenv("DEADSTOP_LEDGER", str(tmp_path / "ledger.db"))

    def call(*words: str) -> Done:
        capsys.readouterr()
        try:
            status: Any = main(["ops", *words])
        except SystemExit as end:
            status = end.code
        return Done(status, *capsys.readouterr())

    made = Kept(tmp_path / "ledger.db", call)
    yield made
    made.ledger.close()


def authority(folder: Path, *states: tuple[str, str]) -> SqlQuery:
    """A database that may know something of an operation, by its key."""
    path = folder / "authority.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE IF NOT EXISTS deployment (key TEXT, state TEXT)")
        database.executemany("INSERT INTO deployment VALUES (?, ?)", states)
    database.close()
    statement = "SELECT state FROM deployment WHERE key = :key"
    return SqlQuery(database=str(path), statement=statement, applied=("succeeded",))


# -- list ----------------------------------------------------------------------------------------------------------


def test_open_ones_stand_first_and_filters_hold(kept: Kept, tmp_path: Path) -> None:
    unknown = kept.ended("1", State.UNKNOWN, tool="asked", effect=Effect(reconcile=authority(tmp_path)))
    person = kept.ended("2", State.UNKNOWN)
    sending = kept.begin("3").record
    done = kept.ended("4", State.SUCCEEDED)
    every = kept.ops("list", "--json")
    assert [each["id"] for each in every.json] == [each.op_id for each in (person, unknown, sending, done)]
    assert [each["state"] for each in every.json] == ["NEEDS_HUMAN", "UNKNOWN", "DISPATCHING", "SUCCEEDED"]

    def ids(*words: str) -> list[str]:
        return [each["id"] for each in kept.ops("list", "--json", *words).json]

    assert ids("--unknown") == [person.op_id, unknown.op_id]
    assert ids("--needs-human") == [person.op_id]
    assert ids("--state", "succeeded", "--state", "DISPATCHING") == [sending.op_id, done.op_id]
    assert ids("--tool", "asked") == [unknown.op_id]
    assert ids("--limit", "2") == [person.op_id, unknown.op_id]
    assert len(ids("--all", "--limit", "1")) == 4
    wrong = kept.ops("list", "--state", "lost")
    assert wrong.status == 125
    assert "'LOST'" in wrong.err
    assert "NEEDS_HUMAN" in wrong.err


def test_a_table_says_what_each_waits_for(kept: Kept) -> None:
    record = kept.ended("1", State.UNKNOWN)
    kept.begin("2", lease_s=90)
    lines = kept.ops("list").out.splitlines()
    assert lines[0].split() == ["ID", "STATE", "TOOL", "TARGET", "ATTEMPTS", "CREATED", "WAITS", "FOR"]
    assert re.fullmatch(rf"{record.op_id} +NEEDS_HUMAN +deploy +production +1 +\S.* +a person", lines[1])
    assert re.search(r"DISPATCHING .* its answer, 1m left$", lines[2])


def test_a_listing_first_does_what_deadlines_ask_for(kept: Kept) -> None:
    begun = kept.begin("1", lease_s=0.001)
    done = kept.ops("list", "--json")
    assert done.json[0]["state"] == "NEEDS_HUMAN"
    assert f"{begun.record.op_id} is NEEDS_HUMAN now: its lease ran out" in done.err
    assert kept.ops("list").err == ""


def test_looking_makes_no_ledger(kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "missing.db"
    named = kept.ops("list", "--ledger", str(missing))
    assert named.status == 125
    assert "--ledger" in named.err
    monkeypatch.setenv("DEADSTOP_LEDGER", str(missing))
    default = kept.ops("list")
    assert (default.status, default.out.splitlines()[0].startswith("no operations")) == (0, True)
    assert kept.ops("show", "op_1").status == 125
    assert not missing.exists()


def test_without_a_home_there_is_no_ledger_that_depends_on_the_folder(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "DEADSTOP_STATE", "DEADSTOP_LEDGER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    for name in ("getuid", "geteuid"):
        monkeypatch.setattr(os, name, lambda: 987_654)
    found = kept.ops("list")
    assert (found.status, "DEADSTOP_STATE" in found.err) == (125, True)


# -- show ----------------------------------------------------------------------------------------------------------


def test_everything_that_is_known_is_shown(kept: Kept) -> None:
    query = HttpQuery(
        url="http://me:open-sesame@authority/deployments/{key}", headers={"Authorization": "Bearer open-sesame"}
    )
    seen = {"phase": "await_response", "certain": False, "observation": "connection reset", "receipt": RECEIPT}
    record = kept.ended("1", State.UNKNOWN, effect=Effect(reconcile=query, recovery_deadline=120), **seen)
    beginning = record.op_id[:-1]
    done = kept.ops("show", beginning)
    wanted = (
        f"{record.op_id} UNKNOWN", "target          production", record.key, "phase await_response (not certain)",
        "seen: connection reset", "killed 2 processes in 1.5 ms, none left (proof: pid_namespace_reaped)",
        "attempt.started PREPARED -> DISPATCHING", "last confirmed  PREPARED", "nothing had been sent",
        "its authority, 1m left", f"http://authority/deployments/{record.key}",
        f"deadstop ops reconcile {record.op_id}",
    )  # fmt: skip
    assert [text for text in wanted if text not in done.out] == [], done.out
    document = kept.ops("show", record.op_id, "--json")
    assert "open-sesame" not in done.out + document.out
    seen = document.json
    assert seen["settle"]["query"] == {"method": "GET", "url": f"http://authority/deployments/{record.key}"}
    assert [each["kind"] for each in seen["trail"]] == ["intent", "attempt.started", "attempt.ended"]
    assert seen["attempts_made"][0]["receipt"] == RECEIPT
    assert seen["last_confirmed"]["state"] == "PREPARED"
    assert seen["kept"] == {"request": {"a": 1}}


def test_an_id_that_is_none_or_not_enough_is_refused(kept: Kept) -> None:
    kept.ended("1", State.SUCCEEDED)
    kept.ended("2", State.SUCCEEDED)
    for word, text in (("op_zzz", "no such operation"), ("op_", "more than one"), ("nothing", "no such operation")):
        done = kept.ops("show", word)
        assert (done.status, done.out) == (125, "")
        assert text in done.err


# -- settle --------------------------------------------------------------------------------------------------------


def test_the_authority_settles_what_it_knows(kept: Kept, tmp_path: Path) -> None:
    effect = Effect(retry="if_not_accepted", reconcile=authority(tmp_path), consistent=True, fingerprint=["a"])
    there, absent = (kept.ended(key, State.UNKNOWN, effect=effect) for key in ("1", "2"))
    nobody = kept.ended("3", State.UNKNOWN, tool="other")
    authority(tmp_path, (there.key, "succeeded"))
    done = kept.ops("reconcile", there.op_id, absent.op_id, "--operator", "ada")
    assert done.status == 0, done.err
    assert f"{there.op_id} SUCCEEDED" in done.out
    assert f"{absent.op_id} PREPARED" in done.out
    assert '"asked_by":"ada"' in "".join(each.body for each in kept.ledger.trail(there.op_id))
    left = kept.ops("reconcile", "--all")
    assert left.status == 1
    assert f"{nobody.op_id} can be looked up nowhere" in left.err
    assert kept.ops("reconcile", "op_zzz").status == 125
    assert kept.ops("reconcile").status == 125


DECISIONS = [("succeeded", "SUCCEEDED"), ("failed", "FAILED"), ("abandoned", "ABANDONED"), ("retry", "PREPARED")]


@pytest.mark.parametrize(("word", "state"), DECISIONS)
def test_a_person_decides_once(kept: Kept, word: str, state: str) -> None:
    record = kept.ended("1", State.UNKNOWN)
    decide = ("resolve", record.op_id, f"--{word}", "--reason", "seen in the log", "--ver", str(record.ver))
    assert kept.ops(*decide, "--operator", "ada", "--authorised-by", "T-1").out.startswith(f"{record.op_id} {state}")
    bodies = [json.loads(each.body) for each in kept.ledger.trail(record.op_id)]
    decision = next(each for each in bodies if each["kind"] == "human.decision")
    assert (decision["operator"], decision["reason"], decision["to"]) == ("ada", "seen in the log", state)
    assert next(each for each in bodies if each["kind"] == "authz.decision")["authorised_by"] == "T-1"
    again = kept.ops(*decide)
    assert again.status == 125
    assert f"it is {state}, version {kept.ledger.get(record.op_id).ver}" in again.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--succeeded", "--reason", "  "], "--reason"),
        (["--succeeded"], "--reason"),
        (["--reason", "x"], "--succeeded"),
        (["--succeeded", "--failed", "--reason", "x"], "--failed"),
        (["--succeeded", "--reason", "x", "--operator", " "], "--operator"),
    ],
)
def test_a_decision_without_a_reason_or_two_of_them_is_refused(kept: Kept, words: list[str], named: str) -> None:
    record = kept.ended("1", State.UNKNOWN)
    done = kept.ops("resolve", record.op_id, *words)
    assert (done.status, len(done.err.splitlines())) == (125, 1)
    assert named in done.err
    assert kept.ledger.get(record.op_id).ver == record.ver


def test_only_what_was_never_sent_is_cancelled(kept: Kept) -> None:
    sending = kept.begin("1").record
    assert kept.ops("cancel", sending.op_id).status == 125
    definition = kept.ledger.define(Effect().define("deploy"))
    waiting = kept.ledger.submit(Intent("default", "2", "fp", "deploy", definition.version)).record
    assert kept.ops("cancel", waiting.op_id, "--json").json["state"] == "ABANDONED"
    assert kept.ops("resolve", sending.op_id, "--failed", "--reason", "x").status == 125


def test_what_is_sealed_can_be_shredded(kept: Kept) -> None:
    record = kept.ended("1", State.SUCCEEDED, value={"token": 1}, has_value=True)
    assert kept.ops("shred", record.op_id, "--name", "moon").status == 1
    assert kept.ops("shred", record.op_id, "--name", "result").out == f"{record.op_id} shredded: result\n"
    assert kept.ops("show", record.op_id, "--json").json["kept"] == {"request": {"a": 1}}
    assert kept.ops("shred", record.op_id, "--json").json["shredded"] == ["request"]
    assert kept.ledger.value(record.op_id) == (False, None)


# -- alerts and events ---------------------------------------------------------------------------------------------


def test_alerts_are_seen_once(kept: Kept) -> None:
    one, two = (kept.ended(key, State.UNKNOWN) for key in ("1", "2"))
    assert {each["op_id"] for each in kept.ops("alerts", "--json").json} == {one.op_id, two.op_id}
    seen = kept.ops("alerts", "--ack", "no_authority", one.op_id[:-1], "--operator", "ada")
    assert (seen.status, seen.out) == (0, f"no_authority {one.op_id}: seen by ada\n")
    assert kept.ops("alerts", "--ack", "no_authority", one.op_id).status == 1
    assert [each["op_id"] for each in kept.ops("alerts", "--json").json] == [two.op_id]
    assert kept.ops("alerts", "--ack-all").status == 0
    assert kept.ops("alerts").out == "no alerts\n"
    assert {each["acknowledged_by"] for each in kept.ops("alerts", "--all", "--json").json} >= {"ada"}


def test_events_that_were_given_up_are_listed_and_tried_again(kept: Kept) -> None:
    url = "https://hooks.example.org/secret-path"
    kept.ledger.write(partial(outbox.publish, message=Message("deployed", "d1", {"a": 1}, url=url)))
    [due] = kept.ledger.write(partial(outbox.take, url=url, limit=1, lease_ms=1000))
    kept.ledger.write(partial(outbox.failed, name=due.id, fence=due.fence, problem="gone", final=True))
    done = kept.ops("outbox")
    assert done.out.splitlines()[0] == "waiting 0, being sent 0, given up 1"
    assert due.id in done.out
    assert "secret-path" not in done.out + kept.ops("outbox", "--json").out
    assert kept.ops("outbox", "--retry", "evt_moon").status == 1
    assert kept.ops("outbox", "--retry", due.id, "--json").json == {
        "waiting": 1,
        "sending": 0,
        "dead": 0,
        "given_up": [],
    }


def test_no_password_of_a_ledger_is_ever_printed(kept: Kept) -> None:
    pytest.importorskip("psycopg")
    done = kept.ops("list", "--ledger", "postgresql://ada:open-sesame@127.0.0.1:1/ledger")
    assert done.status == 125
    assert "open-sesame" not in done.out + done.err


def test_completion_knows_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert [word for word in ("--needs-human", "--authorised-by", "--key-from") if word not in script] == []
