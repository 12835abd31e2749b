# SPDX-License-Identifier: Apache-2.0
"""Calls that end by a crash, a limit or with something left running, and the state of everything after them."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from calling import at_most, facts, measured, measured_once

import hosts
from hosts import Host

# Of one kind with namespaces and one without; tests/cases and tests/library/test_supervisor_life.py have them all.
HOSTS = ("user", "no-userns-no-cgroup")

TAIL = 65_536
SIGNALS = {
    "segfault": signal.SIGSEGV, "killed": signal.SIGKILL, "term": signal.SIGTERM, "abort": signal.SIGABRT,
    "user": signal.SIGUSR1,
}  # fmt: skip
STARTERS = ("thread", "subprocess", "daemon", "multiprocessing")
STUBBORN = ("native", "blocks", "ignores")
LEFT = {"thread": "threads", "subprocess": "sleep", "daemon": "deadstop-worker", "multiprocessing": "deadstop-worker"}


def killed(host: Host, result: dict[str, Any]) -> None:
    receipt = result["receipt"]
    assert receipt["proof"] == host.proof and receipt["survivors"] == 0 and receipt["unkillable"] == []


def test_a_worker_that_dies_is_a_crash_and_never_a_success(host: Host) -> None:
    told = facts(host, "ends", "crashes")["crashed"]
    assert {how: (result["status"], result["exit_code"], result["signal"]) for how, result in told.items()} == {
        "exit_0": ("crashed", 0, None), "exit_3": ("crashed", 3, None),
        **{how: ("crashed", None, number) for how, number in SIGNALS.items()},
    }  # fmt: skip
    for how, result in told.items():
        assert not result["ok"] and result["error"]["type"] == "ToolCrashedError"
        killed(host, result)
        assert result["elapsed"] < 2
        assert result["stdout"]["tail"] == ("half done\n" if how.startswith("exit") else "")


def test_a_native_crash_leaves_its_python_stack_in_the_tail(host: Host) -> None:
    result = facts(host, "ends", "crashes")["crashed"]["segfault"]
    assert "Segmentation fault" in result["stderr"]["tail"] and "in segfault" in result["stderr"]["tail"]


def test_siblings_of_a_crash_notice_nothing_and_the_pool_fills_again(host: Host) -> None:
    told = facts(host, "ends", "crashes")
    assert told["siblings"] == [0, 1, 2, 3]
    assert told["free"] >= 1
    assert told["next"] == list(range(1, 21))


def test_more_memory_than_allowed(host: Host) -> None:
    told = facts(host, "ends", "memory")
    if told["filled"]["limits"]["memory"]["enforced_by"] == "cgroup":
        for result in (told["filled"], told["allocated"]):
            assert (result["status"], result["limit"]["which"]) == ("resource_limit", "memory")
            killed(host, result)
    else:
        assert told["allocated"]["status"] == "error"
        assert told["allocated"]["exception"] == ["MemoryError", ""]
        assert told["filled"]["exception"] == ["OSError", "[Errno 12] Cannot allocate memory"]
        assert any("memory" in line for line in told["allocated"]["degraded"])
    assert told["small"] == [4 << 20, 5 << 20] and told["sibling"] == "sibling"


def test_memory_is_kept_by_a_cgroup_for_root(host: Host) -> None:
    if host.uid == 0:
        assert facts(host, "ends", "memory")["filled"]["limits"]["memory"]["enforced_by"] == "cgroup"


def test_stdin_is_empty(host: Host) -> None:
    assert facts(host, "ends", "streams")["input"] == ["", "b''"]


def test_what_a_tool_prints_is_kept_from_its_end_and_counted(host: Host) -> None:
    large = facts(host, "ends", "streams")["large"]
    stdout = large["stdout"]
    assert (large["status"], large["value"]) == ("completed", "done")
    assert stdout["bytes_total"] == 10_000_000 + len("at the end\n")
    assert len(stdout["tail"]) <= TAIL and stdout["bytes_dropped"] == stdout["bytes_total"] - len(stdout["tail"])
    assert stdout["tail"].endswith("y\nat the end\n") and large["stderr"]["tail"] == "and this\n"


def test_a_flood_stays_bounded_and_ends_on_time(host: Host) -> None:
    told = facts(host, "ends", "streams")
    assert told["flood"]["status"] == "timeout" and told["flood_s"] < 1.5
    assert told["flood"]["stdout"]["bytes_total"] > 1_000_000
    assert len(told["flood"]["stdout"]["tail"]) <= TAIL
    assert told["grown"] < 20 << 20


def test_what_was_printed_before_a_timeout_is_kept(host: Host) -> None:
    hung = facts(host, "ends", "streams")["hung"]
    assert hung["status"] == "timeout"
    assert hung["stdout"]["tail"].endswith("step 1\n") and hung["stderr"]["tail"] == "step 2\n"


def test_what_is_printed_belongs_to_its_own_call(host: Host) -> None:
    told = facts(host, "ends", "streams")
    assert told["many"] == [f"<{number}>\n" for number in range(12)]
    for name in ("quiet", "after_raw"):
        assert told[name]["stdout"]["bytes_total"] == told[name]["stderr"]["bytes_total"] == 0
    assert told["raised"]["stdout"]["tail"] == "before it failed\n" and told["raised"]["status"] == "error"
    assert told["no_newline"]["stdout"]["tail"] == "no newline"
    assert told["child"]["stdout"]["tail"] == "from a child\n"
    assert told["not_ascii"]["stdout"]["tail"] == "\u00e4\\ud800\n"


def test_output_that_passes_python_by_belongs_to_its_own_call(host: Host) -> None:
    """What native code writes to the descriptor itself."""
    told = facts(host, "ends", "streams")
    assert told["raw"]["stdout"]["tail"] == "past python"
    assert told["hung"]["stdout"]["tail"] == "step 1\n"


def test_the_next_call_finds_signals_as_a_fresh_process_has_them(host: Host) -> None:
    assert facts(host, "ends", "after_a_call") == {"masked": [0, 1], "again": [0, 1]}


@measured_once
def test_an_interrupt_of_the_caller_ends_the_call(host: Host) -> None:
    told = facts(host, "ends", "interrupted", by_itself=measured(host))
    assert told["caught_s"] < at_most(host, 0.5) and told["gone_s"] < at_most(host, 1.0)
    assert told["next"] == 2


@pytest.mark.parametrize("what", [*STARTERS, *STUBBORN])
def test_what_a_call_started_dies_with_it_at_its_limit(host: Host, what: str) -> None:
    result = facts(host, "ends", "timed_out")[what]
    assert "raised" not in result, result
    assert result["status"] == "timeout" and result["limit"] == {"which": "call", "seconds": 0.6, "source": "given"}
    assert result["leash"] == "let go"
    killed(host, result)
    assert 0.6 <= result["elapsed"] < 0.6 + 1.5
    assert result["receipt"]["processes"] >= {"subprocess": 2, "daemon": 2, "multiprocessing": 3}.get(what, 1)


@pytest.mark.alone
@pytest.mark.parametrize("host", hosts.each_kind(), indirect=True)
@pytest.mark.parametrize("what", [*STARTERS, *STUBBORN])
def test_a_killed_call_is_dead_soon_after_its_limit(host: Host, what: str) -> None:
    assert facts(host, "ends", "timed_out", by_itself=True)[what]["receipt"]["deadline_to_dead_ms"] < 250


def test_a_native_call_that_holds_the_interpreter_lock_shows_its_stack(host: Host) -> None:
    result = facts(host, "ends", "timed_out")["native"]
    assert "in holds_lock_natively" in result["evidence"]["stacks"]


@pytest.mark.parametrize("what", STARTERS)
def test_what_a_completed_call_left_behind_is_ended_and_named(host: Host, what: str) -> None:
    result = facts(host, "ends", "left_behind")[what]
    assert "raised" not in result, result
    assert (result["status"], result["value"]) == ("completed", "done")
    assert result["leash"] == "let go"
    killed(host, result)
    assert LEFT[what] in result["leftover"]
    assert result["elapsed"] < 2


@pytest.mark.parametrize("when", ["timed_out", "left_behind"])
def test_shared_memory_of_a_killed_call_is_removed_or_named(host: Host, when: str) -> None:
    result = facts(host, "ends", when)["multiprocessing"]
    assert not result["memory_there"] or any("psm_" in name for name in result["leftover"])


def test_nothing_is_done_after_the_result_of_a_timeout(host: Host) -> None:
    told = facts(host, "ends", "effects")
    assert told["result"]["status"] == "timeout" and told["there"] is False


def test_an_overrun_is_never_a_success_however_it_ends(host: Host) -> None:
    told = facts(host, "ends", "polite")
    for name in ("inline", "killable", "late"):
        assert told[name]["status"] == "timeout", told[name]
        assert not told[name]["ok"] and told[name]["value"] is None
    assert told["late"]["late"]["kind"] == "value" and told["late"]["late_value"] == "slept"
    assert told["late"]["receipt"]["proof"] == "none" and told["late"]["receipt"]["survivors"] is None
    assert "ToolTimeoutError" in told["inline"]["late"]["text"] and told["inline"]["elapsed"] < 1.3


def test_after_all_of_it_there_are_only_idle_workers(host: Host) -> None:
    told = facts(host, "ends", "quiet")
    names = told["names"]
    assert told["threads"] == []
    assert names.count("deadstop-worker") == told["alive"], names
    assert sum(name.startswith("deadstop-nurs") for name in names) == 1
    firsts = [name for name in names if name in ("deadstop-init", "deadstop-reaper")]
    assert len(names) == 3 + told["alive"] + len(firsts) and len(firsts) in (0, told["alive"])
