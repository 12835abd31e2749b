# SPDX-License-Identifier: Apache-2.0
"""What `collect` promises whatever it finds: order, bounds, cost, and that it never raises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from live_case import Case
from zoo_field import ZOO

from deadstop.boundary.evidence import View, collect, proc, waits
from deadstop.boundary.evidence.hints import HINTS, RANK
from deadstop.boundary.evidence.sockets import Sockets, _from_files
from deadstop.boundary.evidence.syscalls import TABLES

KINDS = set(
    "waiting_for_input cpu_spin network_wait sleeping disk_wait lock_wait fork_storm memory_pressure "
    "output_flood retry_loop stopped pipe_wait serving event_wait waiting_for_child zombie_wait unknown".split()
)


def until(condition, seconds: float = 5.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)
    return found


def members_of(case: Case) -> list[int]:
    return proc.descendants(case.root)


def test_kinds_are_the_closed_set() -> None:
    assert set(HINTS) == KINDS == set(RANK)


def test_processes_come_first_and_leader_leads() -> None:
    with Case(["bash", "-c", "sleep 1000 & sleep 1000 & wait"]) as case:
        until(lambda: len(members_of(case)) == 3)
        found = case.look()
        assert found["order"][:2] == ["processes", "count"]
        assert found["order"][-3:] == ["diagnosis", "complete", "took_ms"]
        assert found["count"] == 3
        assert found["processes"][0]["host_pid"] == case.leader
        assert set(found["processes"][0]) == {"pid", "host_pid", "cmd", "state", "waiting_in", "cpu_s"}
        assert set(found["diagnosis"]) == {"kind", "pid", "detail", "confidence", "hint", "chain"}


def test_process_list_comes_within_ten_milliseconds() -> None:
    with Case(["bash", "-c", "for i in 1 2 3 4; do sleep 1000 & done; wait"]) as case:
        until(lambda: len(members_of(case)) == 5)
        best = min(_first_emit(case.view()) for _ in range(5))
        assert best < 0.010


def _first_emit(view: View) -> float:
    start, seen = time.monotonic(), []
    collect(view, lambda _part: seen.append(time.monotonic()))
    return seen[0] - start


class _Stopped(BaseException):
    """The reader is killed here."""


def _told_before_the_second_sample(case: Case) -> list[dict]:
    """What has come when the reader does not get a CPU again after the first sample."""
    parts: list[dict] = []

    def sleep(_seconds: float) -> None:
        raise _Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deadstop.boundary.evidence.snapshot.time.sleep", sleep)
        with pytest.raises(_Stopped):
            collect(case.view(), parts.append)
    return parts


def test_what_sleeps_is_diagnosed_before_the_second_sample() -> None:
    with Case(["bash", "-c", "sleep 1000 & wait"]) as case:
        until(lambda: len(members_of(case)) == 2 and proc.command_line(members_of(case)[1]) == "sleep 1000")
        until(lambda: waits.of_thread(members_of(case)[1], members_of(case)[1]).operation == "sleep")
        until(lambda: waits.of_thread(case.leader, case.leader).operation == "wait")
        _processes, early = _told_before_the_second_sample(case)
        assert early["complete"] is False
        found = case.look()
        assert found["complete"] is True
        for told in (early, found):
            assert (told["diagnosis"]["kind"], told["diagnosis"]["chain"]) == ("sleeping", members_of(case))
        assert early["diagnosis"]["confidence"] < found["diagnosis"]["confidence"]


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import threading, time\ndef spin():\n    while True: pass\n"
        "threading.Thread(target=spin).start()\nwhile True: time.sleep(1000)",
    ],
)
def test_what_runs_is_not_judged_by_one_sample(code: str) -> None:
    """Nor where only a thread of it does."""
    with Case([sys.executable, "-c", code]) as case:
        until(lambda: (found := proc.stat(case.leader)) and found.cpu > 0.1)
        until(lambda: _runs(case.leader))
        assert [sorted(part) for part in _told_before_the_second_sample(case)] == [["count", "processes"]]


def _runs(pid: int) -> bool:
    states = [proc.stat(pid, int(thread)) for thread in proc.names(f"/proc/{pid}/task", 8)]
    return any(found and found.state == "R" for found in states)


def test_our_own_helpers_are_neither_shown_nor_blamed() -> None:
    with Case(["bash", "-c", "sleep 1000 & wait"]) as case:
        pids = until(lambda: len(members_of(case)) == 2 and members_of(case))
        sleeper = next(pid for pid in pids if pid != case.leader)
        found = case.look(ours=frozenset({sleeper}))
        assert [entry["host_pid"] for entry in found["processes"]] == [case.leader]
        assert found["diagnosis"]["pid"] != sleeper


def test_vanished_and_impossible_pids_do_not_raise() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for root, leader in ((gone.pid, gone.pid), (2**22, 2**22 + 1), (0, 0), (-1, -5)):
        parts: list[dict] = []
        collect(View(root=root, leader=leader, cgroup={"procs": "/nonexistent", "pids": "/"}), parts.append)
        assert parts[0]["count"] == 0
        assert parts[1]["diagnosis"]["kind"] == "unknown"


def test_collect_while_everything_is_killed() -> None:
    for delay in (0.0, 0.002, 0.005, 0.01, 0.014):
        with Case(["bash", "-c", "for i in $(seq 30); do sleep 1000 & done; cat <(sleep 1000) | wc"]) as case:
            pids = until(lambda case=case: len(members_of(case)) >= 30 and members_of(case))
            killer = threading.Timer(delay, lambda pids=pids: [_kill(pid) for pid in pids])
            killer.start()
            found = case.look()
            killer.join()
            assert found["diagnosis"]["kind"] in KINDS
            assert "failed" not in found["diagnosis"]["detail"]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def test_two_hundred_processes_are_cheap_and_the_list_is_bounded() -> None:
    with Case(["bash", "-c", "for i in $(seq 199); do sleep 1000 & done; wait"]) as case:
        until(lambda: len(members_of(case)) == 200, 20)
        found = min((case.look() for _ in range(3)), key=lambda look: look["cpu_ms"])
        assert found["count"] == 200
        assert len(found["processes"]) == 64
        assert found["diagnosis"]["kind"] == "sleeping"
        assert found["cpu_ms"] < 60


def test_long_and_dirty_command_lines_become_one_line() -> None:
    with Case([sys.executable, "-c", "import time; time.sleep(1000)", "a\nb\x1b[31m" + "x" * 100_000]) as case:
        until(lambda: "a b" in proc.command_line(case.leader))
        shown = case.look()["processes"][0]["cmd"]
        assert len(shown) <= 200
        assert shown.isprintable()


def test_details_use_numbers_of_the_inner_namespace() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to make a pid namespace")
    inner = "sleep 1000 & wait"
    with Case(["unshare", "--pid", "--fork", "--kill-child", "bash", "-c", inner]) as case:
        until(lambda: len(members_of(case)) == 3)
        diagnosis = case.look()["diagnosis"]
        assert diagnosis["kind"] == "sleeping"
        assert diagnosis["pid"] == 2
        assert "pid 2 (sleep)" in diagnosis["detail"]
        assert diagnosis["chain"][1:] == [1, 2]


def test_a_failed_emit_is_the_callers() -> None:
    with Case(["sleep", "1000"]) as case, pytest.raises(BrokenPipeError):
        collect(case.view(), _refuse)


def _refuse(_part: dict) -> None:
    raise BrokenPipeError


def test_children_by_scan_agree_with_the_kernels_list() -> None:
    with Case(["bash", "-c", "bash -c 'sleep 1000; true' & wait"]) as case:
        pids = until(lambda: len(members_of(case)) == 3 and members_of(case))
        assert sorted(proc._scan(case.root, 4096)) == sorted(pids)


def test_sockets_from_files_agree_with_sock_diag() -> None:
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    inode = os.fstat(client.fileno()).st_ino
    by_files = _from_files(os.getpid())[inode]
    sockets = Sockets()
    by_diag = sockets.find(os.getpid(), inode)
    sockets.close()
    assert by_diag is not None
    assert (by_diag.protocol, by_diag.local, by_diag.peer) == (
        by_files.protocol,
        by_files.local,
        by_files.peer,
    )
    assert by_diag.state == by_files.state == "ESTABLISHED"
    assert by_diag.received == 0 and by_diag.acked == 0
    listener.close()
    client.close()


def test_sockets_that_are_kept_for_a_second_look_do_not_hide_a_new_one() -> None:
    import socket

    sockets = Sockets()
    with socket.create_server(("127.0.0.1", 0)) as old:
        assert sockets.find(os.getpid(), os.fstat(old.fileno()).st_ino)
        sockets.keep()
        with socket.create_server(("127.0.0.1", 0)) as new:
            found = sockets.find(os.getpid(), os.fstat(new.fileno()).st_ino)
            assert found is not None and found.local.endswith(f":{new.getsockname()[1]}")
        assert sockets.find(os.getpid(), 1) is None
    sockets.close()


def test_system_call_tables_name_the_same_calls() -> None:
    only_x86 = {
        "open",
        "poll",
        "pause",
        "select",
        "fork",
        "vfork",
        "epoll_wait",
        "rename",
        "unlink",
        "semget",
    }
    names = {machine: set(table.values()) for machine, table in TABLES.items()}
    assert names["x86_64"] - names["aarch64"] == only_x86
    assert names["aarch64"] - names["x86_64"] == {"unlinkat"}


def test_a_wait_is_read_with_its_arguments() -> None:
    with Case(["sleep", "777"]) as case:
        until(lambda: waits.of_thread(case.leader, case.leader).operation == "sleep")
        assert waits.of_thread(case.leader, case.leader).timeout == pytest.approx(777, abs=1)


@pytest.mark.parametrize(
    ("code", "operation"),
    [
        ("import time; time.sleep(777)", "sleep"),
        ("import select; p = select.poll(); p.register(0); p.poll(777000)", "poll"),
        ("import ctypes; ctypes.CDLL(None).nanosleep(b'\\x09\\x03' + bytes(14), None)", "sleep"),
    ],
)
def test_a_wait_is_read_after_a_stop_and_a_continue(code: str, operation: str) -> None:
    with Case([sys.executable, "-c", code], "open") as case:
        until(lambda: waits.of_thread(case.leader, case.leader).operation == operation)
        os.kill(case.leader, signal.SIGSTOP)
        until(lambda: proc.stat(case.leader).state == "T")
        os.kill(case.leader, signal.SIGCONT)
        until(lambda: proc.stat(case.leader).state == "S")  # it has had its turn, and waits again
        wait = waits.of_thread(case.leader, case.leader)
        assert (wait.operation, wait.timeout) == (operation, pytest.approx(777, abs=1))


def test_a_question_beside_an_idle_connection_is_a_question() -> None:
    code = (
        "import select, socket\n"
        "a = socket.create_server(('127.0.0.1', 0)); b = socket.create_connection(a.getsockname())\n"
        "print('Name? ', end='', flush=True); select.select([0, b], [], [])"
    )
    with Case([sys.executable, "-c", code], "open") as case:
        until(lambda: case.pump(0.05) or case.output)
        until(lambda: waits.of_thread(case.leader, case.leader).operation == "poll")
        assert case.look()["diagnosis"]["kind"] == "waiting_for_input"
        assert case.look(tail=b"")["diagnosis"]["kind"] == "network_wait"


def test_payload_folder_is_there() -> None:
    assert os.path.isfile(f"{ZOO}/servers.py")
