# SPDX-License-Identifier: Apache-2.0
"""Promises of commands on other hosts at their edges: what is not known to have ended keeps its lock, and "not sent" is
said of one attempt alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sshd
from test_ssh_helper import Remote
from test_ssh_helper import remote as remote  # the fixture

from deadstop.effects.ssh import SshEffects
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Finding, Outcome
from deadstop.ledger.states import State, Verdict

helper = pytest.mark.skipif(
    sshd.folder_that_lasts() is None or not Path("/etc/machine-id").is_file(),
    reason="no folder on a disk that outlives a restart, or no machine id",
)


@helper
def test_a_lock_of_what_nobody_saw_end_is_taken_by_no_other(remote: Remote) -> None:
    """Also where the host has restarted since: it may have stopped in the middle. Only whoever looks may say more."""
    assert remote.run("one", 1, "--lock", "db", "--lock-ttl", "0.001", crash="remote.exited").returncode == 70
    assert remote.status("one", seal=2)["state"] == "unknown"
    refused = remote.run("two", 1, "--lock", "db")
    assert (refused.returncode, "held by operation one (unknown)" in refused.stderr) == (75, True)
    phases = remote.marker("one", "phases")
    phases.write_text(json.dumps({**json.loads(phases.read_text()), "boot_id": "another"}) + "\n")
    assert remote.status("one", seal=2)["state"] == "interrupted"
    refused = remote.run("two", 1, "--lock", "db")
    assert (refused.returncode, "held by operation one (interrupted)" in refused.stderr) == (75, True)
    assert remote.ask("lock", "db")["op"] == "one"
    assert remote.effects() == ["one"]


@pytest.fixture
def nowhere() -> Iterator[SshEffects]:
    """A host that refuses every connection, which shows that nothing was sent."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh (package openssh-client)")
    effect = Effect(retry="if_not_accepted", fingerprint=("argv",), max_attempts=9, consistent=True)
    options = ("-F", "none", "-p", str(sshd.free_port()), "-o", "BatchMode=yes")
    with Ledger.in_memory() as ledger:
        yield SshEffects("nobody@127.0.0.1", ledger=ledger, effect=effect, options=options, timeout=10.0)


def state_of(effects: SshEffects) -> str:
    result = effects.run(["true"], key="once")
    assert result.operation is not None
    return str(result.operation["state"])


@pytest.mark.filterwarnings("ignore::deadstop.executor.declared.UnansweredEffect")
def test_not_sent_says_nothing_of_an_attempt_before_it(nowhere: SshEffects) -> None:
    """Not even of one that was shown absent: what was seen there was what the host knew then."""
    ledger = nowhere.ledger
    assert [state_of(nowhere), state_of(nowhere)] == ["PREPARED", "PREPARED"]
    (record,) = ledger.list()
    lost = ledger.claim(record.op_id)
    ledger.finish(lost, Outcome(State.UNKNOWN, certain=False, followed=True))
    taken = ledger.take(record.op_id, force=True)
    assert taken is not None
    assert ledger.settle(taken, Finding(Verdict.DEFINITELY_ABSENT)).state is State.PREPARED
    assert state_of(nowhere) in ("UNKNOWN", "NEEDS_HUMAN")
    last = ledger.attempts(record.op_id)[-1]
    assert (last.n, last.outcome, last.certain) == (4, "UNKNOWN", False)
    assert "an earlier attempt may have arrived" in str(last.observation)
