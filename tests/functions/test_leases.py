# SPDX-License-Identifier: Apache-2.0
"""The lease of what is being sent: kept as long as the call runs, by whatever is running it, and not a moment longer.

The hearts beat every few seconds; here every few hundredths of one.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import effect_tools as tools
import pytest

import deadstop
from deadstop import Call, Status
from deadstop.executor import effects, heartbeat
from deadstop.executor.heartbeat import beating
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Claim, Intent, Outcome
from deadstop.ledger.states import State

LEASE_S, LONGER_S = 2.0, 2.4


@pytest.fixture(autouse=True)
def ledger(own_ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.05)
    monkeypatch.setattr(heartbeat, "_heart", type(heartbeat._heart)())  # that of other tests is in its five seconds
    return own_ledger


def begun(ledger: Ledger, binding: str, lease_s: float) -> Claim:
    version = ledger.define(tools.BLIND.define("pay")).version
    claim = ledger.begin(Intent("pay", binding, "f", "pay", version), lease_s).claim
    assert claim is not None
    return claim


def eventually(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + 15
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)
    return found


def python(code: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    path = {**os.environ, "PYTHONPATH": str(Path(deadstop.__file__).parent.parent)}
    return subprocess.run([sys.executable, "-c", code, *words], env=path, capture_output=True, text=True, timeout=30,
                          stdin=subprocess.DEVNULL, **options)  # fmt: skip


# -- of calls ------------------------------------------------------------------------------------------------------


def outlive(op: deadstop.Operation, amount: int) -> int:
    time.sleep(LONGER_S)
    with tools.record().open("a") as file:
        file.write(f"{op.key}\n")
    return amount


def test_a_call_that_takes_longer_than_its_lease_keeps_it(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is run; and whoever sweeps meanwhile, again and again, finds nothing to do."""
    monkeypatch.setattr(effects, "MARGIN_S", LEASE_S - 10.0)  # of a limit of 10 seconds
    inline = deadstop.tool(outlive, timeout=10, effect=tools.SAFE, isolation="inline")
    worker = deadstop.tool(outlive, timeout=10, effect=tools.SAFE)
    calls = [
        lambda: deadstop.call(Call(inline, 1)),
        lambda: asyncio.run(deadstop.call_async(Call(inline, 2))),
        lambda: deadstop.call(Call(worker, 3)),
    ]
    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(each) for each in calls]
        while not all(each.done() for each in running):
            assert ledger.sweep() == []
            time.sleep(0.05)
        results = [each.result() for each in running]
    assert [(each.status, each.effect, each.value) for each in results] == [
        (Status.COMPLETED, "applied", number) for number in (1, 2, 3)
    ]
    assert len(tools.lines()) == 3


def test_a_lease_that_is_not_held_any_more_runs_out_and_one_ledger_does_not_keep_up_another(
    ledger: Ledger, tmp_path: Path
) -> None:
    gone = Ledger.open(str(tmp_path / "gone.db"))
    lost, kept = begun(gone, "lost", 600.0), begun(ledger, "kept", 1.0)
    with beating(gone, lost), beating(ledger, kept):
        gone.close()  # each of its beats fails from here on
        first = ledger.get(kept.op_id).lease_ms
        assert first is not None
        eventually(lambda: (ledger.get(kept.op_id).lease_ms or 0) > first + 300)
    assert [each.state for each in eventually(ledger.sweep)] == [State.NEEDS_HUMAN]
    assert ledger.attempts(kept.op_id)[-1].outcome == "UNKNOWN"


def test_who_lost_it_to_somebody_else_is_told_and_asks_no_more(ledger: Ledger) -> None:
    claim = begun(ledger, "taken", 600.0)
    with beating(ledger, claim) as lease:
        assert lease is not None
        assert not lease.is_over()
        ledger.finish(claim, Outcome(State.UNKNOWN, certain=False))
        eventually(lease.is_over)
        assert not lease.is_due()


FORKED = """
import os, sys, time
from deadstop.executor import heartbeat
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Intent
heartbeat.EVERY_S = 0.05

def kept(where):
    ledger = Ledger.open(where)
    version = ledger.define(Effect().define("pay")).version
    claim = ledger.begin(Intent("pay", where, "f", "pay", version), 600.0).claim
    first, end = ledger.get(claim.op_id).lease_ms, time.monotonic() + 15
    with heartbeat.beating(ledger, claim):
        while ledger.get(claim.op_id).lease_ms == first and time.monotonic() < end:
            time.sleep(0.01)
        return ledger.get(claim.op_id).lease_ms > first

assert kept(sys.argv[1])
pid = os.fork()
if pid == 0:
    os._exit(0 if kept(sys.argv[2]) else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_has_a_heart_of_its_own(tmp_path: Path) -> None:
    done = python(FORKED, str(tmp_path / "parent.db"), str(tmp_path / "child.db"))
    assert done.returncode == 0, done.stderr


# -- of commands ---------------------------------------------------------------------------------------------------


ASLEEP = """
import sys
from deadstop import clock
from deadstop.cli import main
from deadstop.ledger.ledger import Ledger
now, begin, asleep = clock.boottime, Ledger.begin, 0.0

def begun(*given):
    global asleep
    found = begin(*given)
    asleep = 3600.0
    return found

Ledger.begin, clock.boottime = begun, lambda: now() + asleep
sys.exit(main(sys.argv[1:]))
"""


def test_a_command_whose_machine_slept_after_the_claim_is_not_started(ledger: Ledger, tmp_path: Path) -> None:
    """Its own limit has not even begun to run out: that clock stands still meanwhile. The lease has."""
    words = ("run", "--effect", "once", "--key-from", "text:k", "--timeout", "20", "--json", "--", "touch", "effect")
    done = python(ASLEEP, *words, cwd=tmp_path)
    result = json.loads(done.stdout)
    assert (done.returncode, result["status"], result["reason"]) == (125, "refused", "deadline_over")
    assert "lease" in result["error"]["message"]
    assert result["effect"] != "applied"
    assert not (tmp_path / "effect").exists()
    assert [each.outcome for each in ledger.attempts(ledger.list()[0].op_id)] != ["SUCCEEDED"]


SIGNALLED = """
import os, signal, sys, time
from deadstop.cli import recorded
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Intent
from deadstop.ledger.store import open_store
recorded.BEAT_S = 0.05
where, signals = sys.argv[1], (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

def renewed_after(lease_ms):
    end = time.monotonic() + 15
    while time.monotonic() < end:
        ledger = Ledger(open_store(where), notary=False)
        found = ledger.list()[0].lease_ms
        ledger.close()
        if found > lease_ms:
            return found
        time.sleep(0.02)
    sys.exit("the lease was not renewed")

ledger = Ledger(open_store(where), notary=False)
version = ledger.define(Effect().define("pay")).version
claim = ledger.begin(Intent("pay", "b", "f", "pay", version), 5.0).claim
ledger.close()
heart = recorded.Heart(where, claim)
for each in signals:
    signal.signal(each, lambda *_: None)  # as a run does, after it has begun
lease_ms = renewed_after(claim.record.lease_ms)
assert {os.readlink(f"/proc/{heart.pid}/fd/{fd}") for fd in (0, 1, 2)} == {os.devnull}
for each in signals:
    os.killpg(0, each)
    lease_ms = renewed_after(lease_ms)
heart.stop()
assert not os.path.exists(f"/proc/{heart.pid}")
"""


def test_what_keeps_a_commands_lease_outlives_the_signals_that_are_meant_for_the_command(tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches the whole process group, and the command may take a while to end after it."""
    done = python(SIGNALLED, str(tmp_path / "beaten.db"), start_new_session=True)
    assert done.returncode == 0, done.stderr
