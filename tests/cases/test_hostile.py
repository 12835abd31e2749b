# SPDX-License-Identifier: Apache-2.0
"""Payloads written to escape, to hide, to flood or to lie. Whatever they do, the call ends, on time, with nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import hosts
import pytest
from grounds import (
    BARE, CONTAINED, EVERYWHERE, PROCESS, SANDBOX, Case, Ended, Table, check, completed, left_with, marked, on,
    run, timed_out, variables, words_for,
)  # fmt: skip

from deadstop.results import ToolResult

table = Table()
case = table.case


def commands_with(*parts: str) -> list[str]:
    """Live processes of this machine whose command has one of these in it, for payloads that shed their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            state = (entry / "stat").read_bytes().rpartition(b") ")[2][:1]
        except OSError:
            continue
        if state != b"Z" and entry.name != str(os.getpid()) and any(part in command for part in parts):
            found.append(command)
    return found


# -- escape -----------------------------------------------------------------------------------------------------------

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        os.closerange(0, 4096)
        os.execve("/usr/bin/sleep", ["sleep", "4731.25"], {})
    os._exit(0)
time.sleep(%s)
"""


@case(DAEMON % "0.2", python=True)
def a_daemon_with_nothing_of_its_parent_is_killed_when_the_command_completes(ended: Ended) -> None:
    completed(ended)
    assert ended.result["leftover"] == ["sleep"]
    assert ended.receipt["proof"] == ended.host.proof
    assert commands_with("4731.25") == []


@case(DAEMON.replace("4731.25", "4731.75") % "30", python=True, timeout=0.6)
def a_daemon_with_nothing_of_its_parent_is_killed_at_the_limit(ended: Ended) -> None:
    timed_out(ended)
    assert commands_with("4731.75") == []


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


@case(CHAIN, python=True, timeout=1.5, alone=True)
def two_hundred_sessions_one_below_the_other(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out == "deep\n"
    assert ended.receipt["processes"] >= 200


@case("trap '' HUP; while :; do (setsid sleep 30 &); done", "--pids", "120", timeout=0.7, alone=True)
def orphans_faster_than_they_can_be_counted(ended: Ended) -> None:
    timed_out(ended)
    assert ended.result["limits"]["pids"]["value"] == 120


@case("trap 'for i in $(seq 30); do sleep 30 & done; wait' TERM; sleep 30 & wait", timeout=0.5, grace=0.3)
def children_born_during_the_grace(ended: Ended) -> None:
    timed_out(ended)
    assert ended.receipt["escalated"]


# -- attack -----------------------------------------------------------------------------------------------------------


@case("kill -KILL 1; kill -STOP 1; sleep 30 & kill -9 -1; echo alone; exit 5", on=CONTAINED)
def killing_everything_it_can_name_reaches_nobody_else(ended: Ended) -> None:
    completed(ended, 5)
    assert ended.out == "alone\n"


@case("for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = $$ ] || kill -9 $p 2>/dev/null; done; echo alone; exit 6", on=CONTAINED)
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


@case("kill -STOP $PPID; trap '' TERM; sleep 30; sleep 30", timeout=0.5, on=BARE, slack=3.5)
def stopping_its_reaper_where_nothing_hides_it(ended: Ended) -> None:
    assert ended.status == "timeout"
    assert (ended.receipt["proof"], ended.receipt["survivors"]) == ("scan", 0)


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


@case("import os\nwhile True:\n    os.posix_spawn('/bin/true', ['true'], {})", "--pids", "100", python=True, timeout=0.6,
      alone=True)  # fmt: skip
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
    if os.fork() == 0:
        os._exit(0)
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


# -- disguise ---------------------------------------------------------------------------------------------------------


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


# -- output -----------------------------------------------------------------------------------------------------------


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
    assert (1 << 20) < total < (64 << 20)
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


# -- time -------------------------------------------------------------------------------------------------------------


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


# -- files ------------------------------------------------------------------------------------------------------------


@case("d=$(mktemp -d); cd $d; rmdir $d; echo deleted; sleep 30", timeout=0.5)
def its_own_folder_deleted_under_it(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out == "deleted\n"


@case("set -e; echo x > /tmp/left-behind; echo y > ~/left-behind; cat /tmp/left-behind ~/left-behind", on=SANDBOX, timeout=2)
def files_in_a_sandbox(ended: Ended) -> None:
    completed(ended)
    assert ended.out == "x\ny\n"
    assert not Path("/tmp/left-behind").exists() and not (ended.host.folder / "left-behind").exists()


# -- statuses -----------------------------------------------------------------------------------------------------------

SOME_GROUNDS = [PROCESS[0], PROCESS[-1], *SANDBOX[-1:]]
DEADLY = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT XCPU XFSZ VTALRM PROF IO PWR SYS "
    "RTMIN RTMAX"
).split()


@on(SOME_GROUNDS)
@pytest.mark.parametrize("code", [1, 122, 123, 124, 125, 126, 127, 128, 130, 137, 255])
def test_an_exit_code_that_looks_like_ours_is_the_commands_own(host: hosts.Host, isolation: str, code: int) -> None:
    ended = run(host, isolation, ["sh", "-c", f"exit {code}"], timeout=2)
    check(ended)
    completed(ended, code)


@on(SOME_GROUNDS)
@pytest.mark.parametrize("name", DEADLY)
def test_every_deadly_signal_is_named(host: hosts.Host, isolation: str, name: str) -> None:
    number = int(signal.Signals[f"SIG{name}"])
    ended = run(host, isolation, ["dash", "-c", f"ulimit -c 0; kill -{number} $$; sleep 30"], timeout=2)
    check(ended)
    assert (ended.status, ended.result["signal"]) == ("signaled", number), ended.result
    assert ended.exit_status == 128 + number


# -- commands that cannot run ---------------------------------------------------------------------------------------------


@pytest.fixture
def odd_files(host: hosts.Host) -> Path:
    """A folder with things that are no programs."""
    folder = host.folder / "odd"
    if not folder.exists():
        folder.mkdir()
        contents = {"plain": "echo never", "noshebang": "echo plain script $1", "badshebang": "#!/no/such/interpreter\n"}
        for name, text in {**contents, "empty": "", "binary": "\x7fELF broken"}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o644 if name == "plain" else 0o755)
        (folder / "folder").mkdir()
        (folder / "dangling").symlink_to("/no/such/target")
        (folder / "loop").symlink_to("loop")
    return folder


@on(EVERYWHERE)
@pytest.mark.parametrize(
    ("name", "statuses"),
    [("/no/such/program", (127,)), ("no-such-program-anywhere", (127,)), ("plain", (126,)), ("folder", (126,)),
     ("dangling", (127,)), ("loop", (126,)), ("badshebang", (126, 127)), ("plain/below", (126, 127))],
)  # fmt: skip
def test_a_command_that_cannot_run(
    host: hosts.Host, isolation: str, odd_files: Path, name: str, statuses: tuple[int, ...]
) -> None:
    word = str(odd_files / name) if (odd_files / name.split("/")[0]).is_symlink() or "-" not in name else name
    word = name if name.startswith("/") else word
    ended = run(host, isolation, [word], timeout=2)
    check(ended)
    assert ended.status == "error", ended.result
    assert ended.exit_status in statuses
    assert ended.result["exit_code"] is None and ended.result["start_errno"]
    assert word in ended.result["error"]["message"]
    assert ended.result["environment"] == "nothing was started"


@on(EVERYWHERE)
def test_a_script_without_a_first_line_is_run_by_a_shell(host: hosts.Host, isolation: str, odd_files: Path) -> None:
    ended = run(host, isolation, [str(odd_files / "noshebang"), "argument"], timeout=2)
    check(ended)
    completed(ended)
    assert ended.out == "plain script argument\n"


@on(EVERYWHERE)
def test_a_folder_without_permission(host: hosts.Host, isolation: str) -> None:
    closed = host.folder / "closed"
    closed.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        os.chown(closed, host.uid, host.uid)
    closed.chmod(0)
    try:
        ended = run(host, isolation, ["echo", "in"], "--cwd", str(closed), timeout=2)
    finally:
        closed.chmod(0o700)
    check(ended)
    if host.uid == 0 and isolation == "process":
        completed(ended)  # root needs no permission
        return
    assert ended.status == "error" and ended.exit_status == 126
    assert "Permission denied" in ended.result["error"]["message"] and "folder" in ended.result["error"]["message"]


@on(EVERYWHERE)
def test_started_in_a_folder_that_is_gone(host: hosts.Host, isolation: str) -> None:
    own = marked(host)
    words = words_for(host, isolation, ["sh", "-c", "echo still; exit 3"], timeout=2)
    gone = 'd=$(mktemp -d); cd "$d"; rmdir "$d"; exec "$@"'
    process = own.popen(
        ["sh", "-c", gone, "sh", own.python, "-m", "deadstop", *words], env=variables(own),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(timeout=10)
    own.no_survivors()
    assert b"Traceback" not in err
    if isolation == "process":
        assert process.returncode == 3 and json.loads(out)["stdout"]["tail"] == "still\n"
    else:  # there is nothing to show: refused in one line, or run elsewhere
        assert process.returncode == 3 or (process.returncode == 125 and len(err.splitlines()) == 1)


# -- too large to start -------------------------------------------------------------------------------------------------

MAIN = "import sys\nfrom deadstop.cli import main\nlevel = sys.argv[1]\n"
TOO_LARGE = {
    "argv": 'big = ["x" * 120_000] * 40\nsys.exit(main(["run", "--json", "--isolation", level, "--timeout", "2", "--", "true", *big]))',
    "environment": (
        'big = [word for n in range(40) for word in ("--env", f"BIG{n}=" + "x" * 120_000)]\n'
        'sys.exit(main(["run", "--json", "--isolation", level, "--timeout", "2", *big, "--", "true"]))'
    ),
    "one variable": (
        'sys.exit(main(["run", "--json", "--isolation", level, "--timeout", "2", "--env", "B=" + "x" * 200_000, "--", "true"]))'
    ),
}


@on(EVERYWHERE)
@pytest.mark.parametrize("what", TOO_LARGE)
def test_what_is_too_large_for_the_kernel_never_starts(host: hosts.Host, isolation: str, what: str) -> None:
    own = marked(host)
    process = own.popen(
        [own.python, "-c", MAIN + TOO_LARGE[what], isolation], env=variables(own), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(timeout=15)
    own.no_survivors()
    assert b"Traceback" not in err
    if process.returncode == 125:  # seen beforehand
        assert len(err.splitlines()) == 1
        return
    result = json.loads(out)
    assert (result["status"], result["start_errno"], process.returncode) == ("error", 7, 126)
    assert result["receipt"] is None


@on(EVERYWHERE)
def test_a_large_command_that_fits_is_run(host: hosts.Host, isolation: str) -> None:
    ended = run(host, isolation, ["sh", "-c", "echo $#", "sh", *["y" * 100] * 8000], timeout=3)
    check(ended)
    completed(ended)
    assert ended.out == "8000\n"


# -- around it ------------------------------------------------------------------------------------------------------------


@on(EVERYWHERE)
def test_nobody_reads_what_it_prints(host: hosts.Host, isolation: str) -> None:
    """A flood towards a reader that never reads: the limit is kept, and what could not be handed over is given up."""
    own = marked(host)
    words = words_for(host, isolation, ["yes"], timeout=0.7, json=False)
    began = time.monotonic()
    process = own.start(*words, env=variables(own), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.wait(timeout=10) == 124
        assert time.monotonic() - began < 0.7 + 0.5 + 2 + 1  # two seconds are allowed for handing over
    finally:
        process.stdout.close()
        process.kill()
        process.wait(timeout=10)
    own.no_survivors()


@on(EVERYWHERE)
def test_the_reader_of_what_it_prints_leaves(host: hosts.Host, isolation: str) -> None:
    own = marked(host)
    words = words_for(host, isolation, ["yes"], timeout=5, json=False)
    began = time.monotonic()
    process = own.start(*words, env=variables(own), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    process.communicate(timeout=15)
    assert process.returncode == 128 + signal.SIGPIPE  # `yes` met the closed pipe, as it would have without us
    assert time.monotonic() - began < 4
    own.no_survivors()


@on(EVERYWHERE)
def test_the_supervisor_is_killed(host: hosts.Host, isolation: str) -> None:
    own = marked(host)
    begun = host.folder / "begun-kill"
    begun.unlink(missing_ok=True)
    payload = "trap '' TERM HUP INT; setsid sleep 30 & touch begun-kill; while :; do sleep 0.1; done"
    words = words_for(host, isolation, ["bash", "-c", payload], timeout=20)
    process = own.start(*words, env=variables(own), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 5
    while not begun.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    process.kill()
    process.wait(timeout=10)
    own.no_survivors(within=2)


# -- another user's process in it -------------------------------------------------------------------------------------------

BECOME_ROOT = """
import os, time
try:
    os.setresuid(0, 0, 0)
except OSError:
    print("refused", flush=True)
else:
    print("root", flush=True)
time.sleep(12)
"""


def setuid_copy(program: str, host: hosts.Host, bits: int) -> Path:
    copy = host.folder.parent / f"{Path(program).name}-{bits:o}"
    if not copy.exists():
        copy.write_bytes(Path(program).resolve().read_bytes())
        os.chown(copy, 0, 0)
        copy.chmod(0o755 | bits)
    return copy


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making a setuid program needs root")
@on(PROCESS)
@pytest.mark.parametrize("bits", [0o4000, 0o2000], ids=["setuid", "setgid"])
def test_a_setuid_sleeper_is_killed(host: hosts.Host, isolation: str, bits: int) -> None:
    ended = run(host, isolation, [str(setuid_copy("/usr/bin/sleep", host, bits)), "12"], timeout=0.5)
    check(ended)
    timed_out(ended)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making a setuid program needs root")
@on([ground for ground in PROCESS if ground[0] != "root"])
def test_a_process_that_became_root_is_killed_or_reported(host: hosts.Host, isolation: str) -> None:
    """Where namespaces hold it, it cannot become root. Where nothing does, it cannot be killed: then that is said."""
    program = setuid_copy("/usr/bin/python3", host, 0o4000)
    ended = run(host, isolation, [str(program), "-IS", "-u", "-c", BECOME_ROOT], timeout=0.5, grace=0.2)
    try:
        if host.namespaces:
            assert ended.out == "refused\n"
            check(ended)
            timed_out(ended)
            return
        assert ended.out == "root\n"
        assert ended.status == "timeout"
        assert ended.elapsed < 0.7 + 2 + 2 + 5 + 1  # the reaper's time, the supervisor's own sweep, the proof's
        assert ended.receipt["proof"] == "none"
        assert ended.receipt["survivors"] != 0
        assert "could not be shown" in ended.result["environment"]
    finally:
        for pid, _ in left_with(ended.host.mark):
            os.kill(pid, signal.SIGKILL)


@table.every_case()
def test_hostile(request: pytest.FixtureRequest, host: hosts.Host, isolation: str, case: Case) -> None:
    table.verify(request, host, isolation, case)
