# SPDX-License-Identifier: Apache-2.0
"""Forks through the client: twins, races over them, attempts that do not inherit a broken machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

import deadstop
from deadstop.client.race import ForkRace, race_forks
from serving import Served


@pytest.fixture
def parent(server: Served) -> Iterator[deadstop.Sandbox]:
    with deadstop.Sandbox.create(ttl=60, server=server.url) as made:
        made.files.write("/home/agent/base", "base")
        yield made


def test_a_fork_has_the_files_and_no_more_time(parent: deadstop.Sandbox) -> None:
    with parent.fork(metadata={"twin": "yes"}) as twin:
        assert twin.files.read_text("/home/agent/base") == "base"
        ends = [datetime.fromisoformat(each.expires_at) for each in (twin, parent)]
        assert (ends[0] - ends[1]).total_seconds() < 0.1
        twin.files.write("/home/agent/base", "changed")
        assert parent.files.read_text("/home/agent/base") == "base"
    assert twin.status == "ended" and parent.refresh().status == "running"


def test_promote_keeps_one_of_a_tree(parent: deadstop.Sandbox) -> None:
    children = parent.fork_tree(3)
    answer = children[1].promote(cleanup_siblings=True)
    assert answer["winner"] == children[1].id
    assert sorted(answer["deleted"]) == sorted([children[0].id, children[2].id])
    assert [child.refresh().status for child in children] == ["ended", "running", "ended"]
    children[1].kill()


def test_the_first_that_is_ok_wins_and_the_others_forks_are_gone(parent: deadstop.Sandbox) -> None:
    def by_hand(fork: deadstop.Sandbox) -> deadstop.ToolResult:
        return fork.exec("sleep 60")

    begin = time.monotonic()
    entries = ["echo slow > won; sleep 60", "exit 1", "sleep 0.3; echo fast | tee won", by_hand]
    raced = deadstop.race(entries, timeout=20, sandbox=parent)  # type: ignore[arg-type]
    assert isinstance(raced, ForkRace)
    assert time.monotonic() - begin < 10
    assert raced.winner is not None and raced.winner.stdout.tail == "fast\n"
    assert raced.sandbox is not None and raced.sandbox.exec("cat won").unwrap() == "fast\n"
    assert [result.status for result in raced.results] == ["cancelled", "completed", "completed", "cancelled"]
    assert {raced.results[0].reason, raced.results[3].reason} == {"race_lost"}
    assert [receipt is None for receipt in raced.receipts] == [False, False, True, False]
    assert all(receipt.survivors == 0 for receipt in raced.receipts if receipt is not None)
    assert not parent.files.exists("/home/agent/won")
    raced.sandbox.kill()


def test_a_race_that_nobody_wins_leaves_no_fork(parent: deadstop.Sandbox, server: Served) -> None:
    def broken(_: deadstop.Sandbox) -> deadstop.ToolResult:
        raise ZeroDivisionError("no")

    raced = race_forks(parent, ["exit 1", broken, "sleep 60"], timeout=0.6)
    assert raced.winner is None and raced.sandbox is None
    assert [result.status for result in raced.results] == ["completed", "error", "timeout"]
    assert [each.id for each in deadstop.Sandbox.list("live", server=server.url) if each.document["parent"]] == []

    def pay(amount: int) -> None: ...

    with pytest.warns(UserWarning, match="looked up nowhere"):
        paid = deadstop.tool(pay, name="race_pay", timeout=5, effect=deadstop.Effect())
    for entries in ([], [5], [["true", 5]], [deadstop.Call(paid, 1)]):
        with pytest.raises(deadstop.UsageError):
            race_forks(parent, entries)  # type: ignore[arg-type]


def test_calls_race_in_forks_as_commands_do(parent: deadstop.Sandbox) -> None:
    slow, quick = deadstop.Call(time.sleep, 60), deadstop.Call(abs, -7).options(timeout=10)
    raced = deadstop.race([slow, quick], timeout=20, sandbox=parent)
    assert raced.winner is not None and raced.winner.value == 7
    assert isinstance(raced, ForkRace) and raced.sandbox is not None
    assert raced.results[0].reason == "race_lost"
    raced.sandbox.kill()


def test_each_attempt_has_a_new_machine_from_the_last_snapshot(parent: deadstop.Sandbox) -> None:
    parent.snapshot()
    parent.files.write("/home/agent/base", "broken")
    seen: list[str] = []

    def attempt(fresh: deadstop.Sandbox) -> deadstop.ToolResult:
        seen.append(fresh.id)
        assert fresh.files.read_text("/home/agent/base") == "base"
        fresh.files.write("/home/agent/base", "spoiled")
        return fresh.exec("sleep 60", timeout=0.2) if len(seen) == 1 else fresh.exec("echo fine")

    done = parent.retry_fresh(attempt)
    assert done.unwrap().stdout.tail == "fine\n" and done.sandbox is not None
    assert len(set(seen)) == 2 and done.sandbox.id == seen[1] and done.sandbox.time_left <= parent.time_left
    assert [failed.sandbox_id for failed in done.failed] == seen[:1]
    assert done.failed[0].receipt is not None and done.failed[0].receipt.survivors == 0
    done.sandbox.kill()


def test_when_all_attempts_fail_the_last_reason_is_raised(parent: deadstop.Sandbox) -> None:
    def attempt(_: deadstop.Sandbox) -> None:
        raise KeyError("this")

    done = parent.retry_fresh(attempt, attempts=2)
    assert not done.ok and len(done.failed) == 2 and done.sandbox is None
    with pytest.raises(KeyError, match="this"):
        done.unwrap()


def test_a_token_ends_a_race_and_all_its_forks(parent: deadstop.Sandbox, server: Served) -> None:
    token = deadstop.CancelToken()
    threading.Timer(0.3, token.set).start()
    begin = time.monotonic()
    raced = parent.race(["sleep 60", "sleep 60"], cancel=token)
    assert time.monotonic() - begin < 5
    assert raced.winner is None and {result.status for result in raced.results} == {deadstop.Status.CANCELLED}
    assert [each.id for each in deadstop.Sandbox.list("live", server=server.url) if each.document["parent"]] == []
