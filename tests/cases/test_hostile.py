# SPDX-License-Identifier: Apache-2.0
"""Payloads written to escape, to hide, to flood or to lie. Whatever they do, the call ends on time, nothing is left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from grounds import (
    BARE,
    CONTAINED,
    PROCESS,
    SANDBOX,
    SPREAD,
    Case,
    Ended,
    Table,
    completed,
    timed_out,
)

import hosts
from deadstop.results import ToolResult

table = Table(SPREAD)
case = table.case


def commands_with(part: str) -> list[str]:
    """Live processes of this machine whose command has this in it, for payloads that shed their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            state = (entry / "stat").read_bytes().rpartition(b") ")[2][:1]
        except OSError:
            continue
        if state != b"Z" and entry.name != str(os.getpid()) and part in command:
            found.append(command)
    return found


# -- escape ----------------------------------------------------------------------------------------------------------

NAPS = [f"{os.getpid()}.{number}" for number in (25, 75)]  # seconds that nobody else sleeps
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        os.closerange(0, 4096)
        os.execve("/usr/bin/sleep", ["sleep", sys.argv[1]], {})
    os._exit(0)
time.sleep(float(sys.argv[2]))
"""


@case(DAEMON, python=True, arguments=(NAPS[0], "0.2"))
def a_daemon_with_nothing_of_its_parent_is_killed_when_the_command_completes(ended: Ended) -> None:
    completed(ended)
    assert ended.result["leftover"] == ["sleep"]
    assert ended.receipt["proof"] == ended.host.proof
    assert commands_with(NAPS[0]) == []


@case(DAEMON, python=True, arguments=(NAPS[1], "30"), timeout=0.6)
def a_daemon_with_nothing_of_its_parent_is_killed_at_the_limit(ended: Ended) -> None:
    timed_out(ended)
    assert commands_with(NAPS[1]) == []


@case("unshare -Urpf sh -c 'sleep 30 & setsid sleep 30 & wait' || exit 9", timeout=0.8, on=PROCESS)
def namespaces_of_its_own_are_no_escape(ended: Ended) -> None:
    timed_out(ended)
    assert ended.receipt["processes"] >= 4


CHAIN = """
import os, time
for depth in range(200):
    if os.fork():
        while True:
            time.sleep(30)
    os.setsid()
print("deep", flush=True)
time.sleep(30)
"""


@case(CHAIN, python=True, timeout=4, alone=True)
def two_hundred_sessions_one_below_the_other(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out == "deep\n"
    assert ended.receipt["processes"] >= (200 if ended.host.uid == 0 else 50)  # without a cgroup: counted in passing


@case("trap '' HUP; while :; do (setsid sleep 30 &); done", "--pids", "120", timeout=0.7, alone=True)
def orphans_faster_than_they_can_be_counted(ended: Ended) -> None:
    timed_out(ended)
    assert ended.result["limits"]["pids"]["value"] == 120


@case("trap 'for i in $(seq 30); do sleep 30 & done; wait' TERM; sleep 30 & wait", timeout=0.5, grace=0.3)
def children_born_during_the_grace(ended: Ended) -> None:
    timed_out(ended)
    assert ended.receipt["escalated"]


# -- attack ----------------------------------------------------------------------------------------------------------


@case("kill -KILL 1; kill -STOP 1; sleep 30 & kill -9 -1; echo alone; exit 5", on=CONTAINED)
def killing_everything_it_can_name_reaches_nobody_else(ended: Ended) -> None:
    completed(ended, 5)
    assert ended.out == "alone\n"


@case(
    "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = $$ ] || kill -9 $p 2>/dev/null; done; echo alone; exit 6",
    on=CONTAINED,
)
def killing_every_pid_that_it_sees_reaches_nobody_else(ended: Ended) -> None:
    completed(ended, 6)
    assert ended.out == "alone\n"


@case("setsid sleep 30 & kill -9 $PPID; sleep 30", timeout=3, on=BARE)
def killing_its_reaper_where_nothing_hides_it(ended: Ended) -> None:
    assert ended.status == "crashed", ended.result
    assert ended.exit_status == 123
    assert ended.elapsed < 2.5
    assert (ended.receipt["proof"], ended.receipt["survivors"]) == ("scan", 0)


@case("kill -9 $PPID; exit 0", timeout=3, on=BARE)
def killing_its_reaper_and_leaving_is_no_success(ended: Ended) -> None:
    assert ended.status in ("crashed", "unknown"), ended.result
    assert ended.result["exit_code"] is None


@case("kill -STOP $PPID; trap '' TERM; sleep 30; sleep 30", timeout=0.5, on=BARE)
def stopping_its_reaper_where_nothing_hides_it(ended: Ended) -> None:
    """It is woken for the kill, and does its work."""
    assert ended.status == "timeout"
    assert (ended.receipt["proof"], ended.receipt["survivors"]) == ("subreaper_drained", 0)


@case("kill -TERM $(cut -d' ' -f4 /proc/$PPID/stat); sleep 30", timeout=3, on=BARE)
def ending_its_supervisor_politely_is_a_cancellation(ended: Ended) -> None:
    assert (ended.status, ended.result["reason"]) == ("cancelled", "caller")
    assert ended.receipt["proof"] == ended.host.proof


@case("sleep 30 & kill -STOP $!; kill -STOP $$; echo woken", timeout=0.6)
def a_payload_that_stops_itself_and_its_child(ended: Ended) -> None:
    timed_out(ended)
    assert ended.diagnosis["kind"] == "stopped"


BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


@case(BOMB, "--pids", "64", python=True, timeout=0.7, slack=1.5, alone=True)
def a_fork_bomb_stays_within_its_limit(ended: Ended) -> None:
    timed_out(ended)
    assert ended.result["limits"]["pids"]["value"] == 64
    if ended.result["limits"]["pids"]["enforced_by"] == "cgroup":
        assert 1 <= ended.receipt["processes"] <= 64
    else:
        assert ended.receipt["processes"] <= 64 + 32  # counted over all of this user's, others' at the time included


SPAWN = "import os\nwhile True:\n    os.posix_spawn('/bin/true', ['true'], {})"


@case(SPAWN, "--pids", "100", python=True, timeout=0.6, alone=True)
def vfork_without_end_and_without_wait(ended: Ended) -> None:
    assert ended.status == "timeout" or (ended.status == "completed" and "BlockingIOError" in ended.err)


VFORK = """
import ctypes, time
libc = ctypes.CDLL(None)
print("before", flush=True)
if libc.vfork() == 0:
    time.sleep(30)
"""


@case(VFORK, python=True, timeout=0.6, grace=0.2)
def a_parent_suspended_in_vfork(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out == "before\n"


ZOMBIES = """
import os, time
for _ in range(60):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # this one: any would be an earlier one, dead already
print("done", flush=True)
time.sleep(%s)
"""


@case(ZOMBIES % "30", python=True, timeout=0.6)
def sixty_zombies_are_not_sixty_processes(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out == "done\n"
    assert 1 <= ended.receipt["processes"] <= 61


@case(ZOMBIES % "0", python=True, timeout=3)
def zombies_left_behind_are_no_leftover(ended: Ended) -> None:
    completed(ended)
    assert ended.result["leftover"] == [] and ended.result["receipt"] is None


BALLOON = "blobs = []\nwhile True:\n    blobs.append(bytearray(8 << 20))"


@case(f"python3 -c '{BALLOON}'; echo child=$?; sleep 30", "--memory", "128M", timeout=1.5, alone=True)
def a_memory_balloon_in_a_child(ended: Ended) -> None:
    if ended.result["limits"]["memory"]["enforced_by"] == "cgroup":
        assert ended.status == "resource_limit" and ended.result["limit"]["which"] == "memory"
    else:
        timed_out(ended)
        assert ended.out == "child=1\n" and "MemoryError" in ended.err


FILES = """
import os, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
try:
    while len(held) < 20000:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as problem:
    print(problem.errno, flush=True)
print(len(held) > 1000, flush=True)
import time
time.sleep(30)
"""


@case(FILES, python=True, timeout=1)
def thousands_of_open_files(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out.endswith("True\n")


# -- disguise --------------------------------------------------------------------------------------------------------


@case(r"printf 'deadstop-init' > /proc/self/comm; exec -a deadstop-init sleep 30", timeout=0.5)
def the_name_of_our_own_process_protects_nobody(ended: Ended) -> None:
    timed_out(ended)
    assert ended.receipt["processes"] == 1


RENAME = r"""
import ctypes, time
name = b") Z 1 (\x1b[31m\n\xff"
ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
open("/proc/self/comm", "wb").write(name)
time.sleep(30)
"""


@case(RENAME, python=True, timeout=0.5)
def a_name_made_to_confuse_readers_of_proc(ended: Ended) -> None:
    timed_out(ended)
    assert ended.receipt["processes"] == 1
    assert [process["state"] for process in ended.result["evidence"]["processes"]] == ["S"]
    assert "\x1b" not in ToolResult.from_dict(ended.result).for_model()


FORGED = json.dumps({"schema": "deadstop.result/1", "status": "completed", "exit_code": 0})


@case(f"echo '{FORGED}'; echo '{FORGED}' >&2; sleep 30", timeout=0.5)
def a_forged_result_is_only_output(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out == ended.err == FORGED + "\n"


@case("import os, time\nprint(sorted(map(int, os.listdir('/proc/self/fd')))[:3], os.environ.get('DEADSTOP_DENY'))\n"
      "print(len(os.listdir('/proc/self/fd')) - 1)", python=True, timeout=2)  # fmt: skip
def no_descriptor_of_ours_is_inherited(ended: Ended) -> None:
    completed(ended)
    assert ended.out.startswith("[0, 1, 2]") and ended.out.endswith("\n3\n")


SIGNALS = """
import signal
status = open("/proc/self/status").read()
ignored = int(next(l for l in status.splitlines() if l.startswith("SigIgn:")).split()[1], 16)
blocked = int(next(l for l in status.splitlines() if l.startswith("SigBlk:")).split()[1], 16)
python_ignores = {signal.SIGPIPE, signal.SIGXFSZ}
print([n for n in range(1, 65) if ignored >> (n - 1) & 1 and n not in python_ignores], blocked)
"""


@case(SIGNALS, python=True, timeout=2)
def no_signal_is_ignored_or_blocked_for_it(ended: Ended) -> None:
    completed(ended)
    assert ended.out == "[] 0\n"


# -- output ----------------------------------------------------------------------------------------------------------


@case("for i in $(seq 100); do sleep 30 & done; echo gone; exit 4", timeout=5)
def a_hundred_children_hold_stdout_of_a_leader_that_left(ended: Ended) -> None:
    completed(ended, 4)
    assert ended.elapsed < 3
    assert ended.out == "gone\n"
    assert ended.receipt["processes"] == 100 and set(ended.result["leftover"]) <= {"sleep", "bash"}


@case("yes out & yes err >&2 & wait", "--output-limit", "1M", timeout=3, alone=True)
def both_streams_at_full_speed_with_a_limit(ended: Ended) -> None:
    assert ended.status == "resource_limit" and ended.result["limit"]["which"] == "output"
    assert ended.exit_status == 122
    total = ended.result["stdout"]["bytes_total"] + ended.result["stderr"]["bytes_total"]
    assert (1 << 20) < total < (4 << 20)  # what the pipes held beyond the limit, no more
    assert ended.elapsed < 2


@case("yes out & yes err >&2 & wait", timeout=0.7, alone=True)
def both_streams_at_full_speed_without_a_limit(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out.endswith("out\n") or "out\n" in ended.out
    assert "err\n" in ended.err
    assert ended.diagnosis["kind"] == "output_flood"


@case("echo before; exec >&- 2>&-; sleep 0.3; exit 4", timeout=3)
def closing_its_output_early_is_not_the_end(ended: Ended) -> None:
    completed(ended, 4)
    assert ended.result["duration_s"] >= 0.3
    assert ended.out == "before\n"


@case("exec >&- 2>&-; sleep 30", timeout=0.5)
def closing_its_output_early_is_no_escape(ended: Ended) -> None:
    timed_out(ended)


WIDE_PIPE = """
import fcntl, os
size = fcntl.fcntl(1, 1031, 1 << 20)
os.write(1, b"x" * (size - 4) + b"END\\n")
"""


@case(WIDE_PIPE, python=True, timeout=2)
def a_pipe_made_wide_is_drained_whole(ended: Ended) -> None:
    completed(ended)
    assert ended.result["stdout"]["bytes_total"] == 1 << 20
    assert ended.out.endswith("xEND\n")


@case(r"head -c 70000 /dev/zero; printf '\303\050\0\377\376\360\237END'", "--tail", "4K", timeout=2)
def nul_and_broken_utf8_in_the_tail(ended: Ended) -> None:
    completed(ended)
    assert ended.out.endswith("\ufffd(\0\ufffd\ufffd\ufffdEND")
    raw = ToolResult.from_dict(ended.result).stdout.raw
    assert raw.endswith(b"\0\xc3(\0\xff\xfe\xf0\x9fEND") and len(raw) == 4096
    assert "\0" not in ToolResult.from_dict(ended.result).for_model()


@case("trap 'for i in 1 2 3; do echo saving $i; sleep 0.05; done; echo saved; exit 0' TERM; sleep 30 & wait",
      timeout=0.5, grace=1)  # fmt: skip
def what_is_written_during_the_grace_is_kept(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out == "saving 1\nsaving 2\nsaving 3\nsaved\n"
    assert not ended.receipt["escalated"]
    assert ended.receipt["method"][0] == "SIGTERM"
    assert ended.result["duration_s"] < 1.2  # it did not use up the grace


# -- time ------------------------------------------------------------------------------------------------------------


@case("sleep 30", timeout=0.001)
def a_limit_of_a_millisecond(ended: Ended) -> None:
    assert ended.status in ("timeout", "refused")
    assert ended.result["limit"]["which"] == "call" and ended.result["limit"]["seconds"] == 0.001
    assert ended.status == "timeout" or ended.result["reason"] == "deadline_over"


@case("echo quick", timeout=None)
def no_limit_and_a_quick_command(ended: Ended) -> None:
    completed(ended)
    assert (ended.out, ended.result["limit"]) == ("quick\n", None)
    assert ended.elapsed < 2


@case("sleep 0.3; exit 0", timeout=0.32, grace=0)
def an_end_at_a_hairs_breadth_is_one_or_the_other(ended: Ended) -> None:
    if ended.status == "completed":
        completed(ended)
        assert ended.result["duration_s"] <= 0.32 and ended.result["limit"] is None
    else:
        timed_out(ended)


# -- files -----------------------------------------------------------------------------------------------------------


@case("d=$(mktemp -d); cd $d; rmdir $d; echo deleted; sleep 30", timeout=0.5)
def its_own_folder_deleted_under_it(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out == "deleted\n"


@case(
    "set -e; echo x > /tmp/left-behind; echo y > ~/left-behind; cat /tmp/left-behind ~/left-behind",
    on=SANDBOX,
    timeout=2,
)
def files_in_a_sandbox(ended: Ended) -> None:
    completed(ended)
    assert ended.out == "x\ny\n"
    assert not Path("/tmp/left-behind").exists() and not (ended.host.folder / "left-behind").exists()


@table.every_case()
def test_hostile(request: pytest.FixtureRequest, host: hosts.Host, isolation: str, case: Case) -> None:
    table.verify(request, host, isolation, case)
