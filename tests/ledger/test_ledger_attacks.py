# SPDX-License-Identifier: Apache-2.0
"""What tries to send twice, to lose an operation, to stop the ledger for others, or to have it say what is not so."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_operations import LOOK_UP, LOST, asked, begun, intent, kinds, lost

import deadstop
from deadstop import Effect, clock
from deadstop.errors import LedgerUnavailable
from deadstop.ledger import owners
from deadstop.ledger.canonical import is_small
from deadstop.ledger.filelock import FileLock
from deadstop.ledger.handle import effect_of
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Finding, Outcome
from deadstop.ledger.states import State, Verdict

KEPT = Effect(retry="same_key_safe", key_ttl=3600, reconcile=LOOK_UP, consistent=True, max_attempts=9)


@pytest.mark.parametrize("end", [State.FAILED, State.PREPARED])
def test_that_an_earlier_attempt_was_absent_says_nothing_of_a_later_one(ledger, end) -> None:
    record = asked(ledger, lost(ledger, effect=KEPT), Verdict.DEFINITELY_ABSENT)
    assert (record.state, effect_of(record)) == (State.PREPARED, "not_applied")
    lost(ledger, effect=KEPT)
    record = ledger.finish(begun(ledger, effect=KEPT), Outcome(end, observation="403"))
    assert (record.state, effect_of(record)) == (State.UNKNOWN, "unknown")


def test_a_person_who_has_it_sent_again_does_not_make_it_absent(ledger) -> None:
    asked(ledger, lost(ledger, effect=KEPT), Verdict.DEFINITELY_ABSENT)
    record = lost(ledger, effect=KEPT)
    record = ledger.resolve(record.op_id, State.PREPARED, "anna", "send it again")
    assert effect_of(record) == "unknown"


def test_settle_time_counts_from_the_end_of_an_attempt_which_may_have_sent_until_then(ledger) -> None:
    effect = Effect(retry="if_not_accepted", reconcile=LOOK_UP, settle=0.15)
    claim = begun(ledger, effect=effect)
    until = claim.record.last_sent_ms + 200
    while ledger.store.read(lambda tx: tx.now) < until:
        pass
    record = ledger.finish(claim, LOST)
    assert asked(ledger, record, Verdict.DEFINITELY_ABSENT).state is State.UNKNOWN


def test_a_look_that_began_before_the_settle_time_was_over_shows_nothing(ledger) -> None:
    record = lost(ledger, effect=Effect(retry="if_not_accepted", reconcile=LOOK_UP, settle=0.1))
    query = ledger.take(record.op_id, force=True)
    while ledger.store.read(lambda tx: tx.now) < record.last_sent_ms + 120:
        pass
    found = ledger.settle(query, Finding(Verdict.DEFINITELY_ABSENT))  # an answer that was long on its way
    assert (found.state, found.verdict) == (State.UNKNOWN, Verdict.INCONCLUSIVE)


@pytest.mark.parametrize("holds", ["open", "success"])
@pytest.mark.parametrize("ended", [State.SUCCEEDED, State.ABANDONED])
def test_an_end_found_behind_the_callers_back_is_told_before_the_same_call_is_a_new_one(ledger, holds, ended) -> None:
    """Its caller heard that nobody knows. When it is settled meanwhile, his next try must not be a second effect."""
    record = ledger.finish(begun(ledger, holds=holds), LOST)
    if ended is State.SUCCEEDED:
        asked(ledger, record, Verdict.APPLIED)
    else:
        ledger.resolve(record.op_id, State.ABANDONED, "anna", "let it be")
    again = ledger.begin(intent(ledger, holds=holds))
    assert (again.why, again.claim, again.record.op_id) == ("settled", None, record.op_id)
    assert kinds(ledger, record.op_id)[-1] == "answer.told"
    later = ledger.begin(intent(ledger, holds=holds))
    assert (later.record.op_id == record.op_id) is (holds == "success" and ended is State.SUCCEEDED)


@pytest.mark.parametrize(
    "bad",
    [
        {"reference": 5}, {"phase": "\ud800"}, {"observation": 7}, {"certain": None}, {"retry_after_s": float("nan")},
        {"retry_after_s": 1e30}, {"retry_after_s": "soon"}, {"retry_after_s": -1},
    ],
)  # fmt: skip
def test_whatever_a_tool_raises_its_end_is_written_down(ledger, bad) -> None:
    record = ledger.finish(begun(ledger), Outcome(State.UNKNOWN, **bad))
    assert record.state is State.UNKNOWN
    assert record.next_ms <= record.recovery_ms


@pytest.mark.parametrize(
    "bad",
    [
        {"verdict": "inconclusive"}, {"reference": 5}, {"detail": b"x"}, {"raw": "text"}, {"source": None},
        {"retry_after_s": float("inf")}, {"retry_after_s": -5},
    ],
)  # fmt: skip
def test_whatever_a_query_gives_is_settled(ledger, bad) -> None:
    claim = ledger.take(lost(ledger).op_id, force=True)
    record = ledger.settle(claim, Finding(**{"verdict": Verdict.INCONCLUSIVE, **bad}))
    assert record.state is State.UNKNOWN
    assert record.next_ms > record.updated_ms


def test_a_value_is_not_made_into_text_to_find_out_that_it_is_too_large() -> None:
    class Rows(list):
        def __iter__(self):
            raise AssertionError("it was walked through")

    assert not is_small({"rows": Rows([0] * 1000)}, 1000)
    assert not is_small(["x" * 1000], 1000)
    assert is_small({"a": [1, 2.5, None, "text", (1,)], "b": {}}, 1000)


def test_ends_of_the_dead_are_swept_in_parts(ledger, monkeypatch) -> None:
    """Other writers wait for the sweep of what a dead process held."""
    child = subprocess.Popen(["true"])
    child.wait()
    ledger.owner = "/".join((*ledger.owner.split("/")[:-2], str(child.pid), "1"))
    for n in range(5):
        begun(ledger, binding=str(n))
    assert len(ledger.sweep(limit=2)) == 2
    assert len(ledger.sweep()) == 3


def test_absence_counts_only_when_what_the_dead_had_started_is_dead_too(ledger) -> None:
    """Its worker takes a moment to end, and may send in that moment."""
    child = subprocess.Popen(["true"])
    child.wait()
    ledger.owner = "/".join((*ledger.owner.split("/")[:-2], str(child.pid), "1"))
    record = begun(ledger).record
    (record,) = ledger.sweep()
    found = asked(ledger, record, Verdict.DEFINITELY_ABSENT)
    assert found.state is State.UNKNOWN
    while ledger.store.read(lambda tx: tx.now) <= record.last_sent_ms:
        pass
    assert asked(ledger, record, Verdict.DEFINITELY_ABSENT).state is State.PREPARED


def test_a_machine_of_the_same_name_is_not_this_one_restarted() -> None:
    """Copies of an image, on a database that both use: what the other has begun since we run is not gone."""
    host, _, *rest = owners.of_this_process().split("/")
    other = "/".join((host, "another-start", *rest))
    assert not owners.is_gone(other, round(time.time() * 1000))
    assert owners.is_gone(other, round((time.time() - clock.boottime() - 60) * 1000))
    assert not owners.is_gone(owners.of_this_process())


def test_a_process_that_may_not_be_seen_is_not_gone(monkeypatch) -> None:
    def forbidden(pid, number):
        raise PermissionError

    mine = owners.of_this_process().split("/")
    hidden = "/".join((*mine[:-2], "4194305", "1"))  # no process has it: so it looks with hidepid
    assert owners.is_gone(hidden)
    monkeypatch.setattr(os, "kill", forbidden)
    assert not owners.is_gone(hidden)


# -- one file, many processes --------------------------------------------------------------------------------------

INTERRUPTED = """
import random, signal, sys, threading, time
from deadstop import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Intent, Outcome
from deadstop.ledger.states import State

ledger = Ledger.open(sys.argv[1])
version = ledger.define(Effect().define("pay")).version
over, counted, problems = threading.Event(), [0] * 4, []

def once(binding):
    wanted = Intent(scope="s/pay", binding=binding, fingerprint="f", tool="pay", definition=version)
    ledger.finish(ledger.begin(wanted).claim, Outcome(State.SUCCEEDED))

def work(k):
    while not over.is_set():
        try:
            once(f"{k}/{counted[k]}")
            counted[k] += 1
        except Exception as problem:
            problems.append(repr(problem))
            return

def interrupt():
    while not over.is_set():
        time.sleep(random.random() * 0.004)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

armed = False

def strike(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, strike)
threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(4)]
for each in threads: each.start()
end, interrupts, n = time.monotonic() + 0.7, 0, 0
shooter = threading.Thread(target=interrupt, daemon=True)
shooter.start()
while time.monotonic() < end:
    try:
        armed = True
        while time.monotonic() < end:
            n += 1
            once(f"main/{n}")
        armed = False
    except KeyboardInterrupt:
        interrupts += 1
    except Exception as problem:
        problems.append(f"main: {problem!r}")
        break
signal.signal(signal.SIGINT, signal.SIG_IGN)
before = list(counted)
until = time.monotonic() + 5
while any(a == b for a, b in zip(before, counted)) and time.monotonic() < until and not problems:
    time.sleep(0.01)
over.set()
assert all(a < b for a, b in zip(before, counted)), (before, counted, problems)
assert not problems and interrupts > 5, (problems, interrupts)
ledger.write(lambda tx: None)
"""


def test_interrupting_one_thread_costs_no_other_its_turn_or_its_answer(tmp_path: Path) -> None:
    path = {**os.environ, "PYTHONPATH": str(Path(deadstop.__file__).parent.parent)}
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "ledger.db")],
        env=path, timeout=30, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


class Interrupted(BaseException):
    pass


def test_who_is_interrupted_while_he_waits_for_the_lock_does_not_get_it_later(tmp_path: Path) -> None:
    mine, holder = FileLock(str(tmp_path / "l")), FileLock(str(tmp_path / "l"))

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with holder.held(1):
            timer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
            timer.start()
            with pytest.raises(Interrupted), mine.held(10):
                pass
        for lock in (holder, mine, FileLock(str(tmp_path / "l"))):
            with lock.held(2):
                pass
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_child_forked_by_one_who_waits_does_not_keep_the_lock(tmp_path: Path) -> None:
    mine, holder = FileLock(str(tmp_path / "l")), FileLock(str(tmp_path / "l"))
    got = threading.Event()

    def take() -> None:
        with mine.held(10):
            got.set()

    with holder.held(1):
        thread = threading.Thread(target=take)
        thread.start()
        until = time.monotonic() + 5
        while _is_free(f"{mine.path}.gate") and time.monotonic() < until:  # until he waits in the kernel
            pass
        stay, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.read(stay, 1)
            os._exit(0)
    try:
        assert got.wait(5)
        thread.join(5)
        with FileLock(str(tmp_path / "l")).held(2):
            pass
        assert _is_free(f"{mine.path}.gate")
    finally:
        os.close(go), os.close(stay)
        os.waitpid(pid, 0)


def _is_free(path: str) -> bool:
    import fcntl

    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_lock_file_that_was_removed_locks_out_nobody_and_lets_nobody_by(tmp_path: Path) -> None:
    one = FileLock(str(tmp_path / "l"))
    os.unlink(tmp_path / "l")
    other = FileLock(str(tmp_path / "l"))
    with other.held(1), pytest.raises(LedgerUnavailable), one.held(0.1):
        pass
    with one.held(1), pytest.raises(LedgerUnavailable), other.held(0.1):
        pass


@pytest.mark.parametrize("contended", [False, True])
def test_a_ledger_whose_folder_is_gone_says_so_and_closes_quietly(tmp_path: Path, contended: bool) -> None:
    """As at the exit of a program that kept its ledger in a temporary folder."""
    folder = tmp_path / "temporary"
    made = Ledger.open(str(folder / "ledger.db"))
    begun(made)
    holder = FileLock(str(folder / "ledger.db.lock"))
    with holder.held(1) if contended else contextlib.nullcontext():
        shutil.rmtree(folder)
        with pytest.raises(LedgerUnavailable) as raised:
            begun(made, binding="two")
    assert not raised.value.uncertain
    made.close()
    assert not folder.exists()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_ledger_whose_file_is_gone_sends_nothing_more(tmp_path: Path, replaced: bool) -> None:
    """What it wrote would be in no file, while others began the same operations anew in another."""
    place = tmp_path / "ledger.db"
    with Ledger.open(str(place)) as made:
        begun(made)
        place.rename(tmp_path / "elsewhere.db")
        other = Ledger.open(str(place)) if replaced else None
        with pytest.raises(LedgerUnavailable, match="removed or replaced"):
            begun(made, binding="two")
        with pytest.raises(LedgerUnavailable, match="removed or replaced"):
            made.counts()  # so that no server calls it well
        if other is not None:
            begun(other, binding="two")
            other.close()
