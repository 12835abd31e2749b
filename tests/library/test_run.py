# SPDX-License-Identifier: Apache-2.0
"""`deadstop.run`: what goes in, what comes out, how it is cancelled, and what a command finds around it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import ask

import deadstop
from deadstop import CancelToken, ToolResult, UsageError, run
from hosts import Host

# Of one kind with namespaces and one without; tests/cases and tests/library/test_supervisor_life.py have them all.
HOSTS = ("user", "no-userns-no-cgroup")


def test_a_command_completes(host: Host) -> None:
    got = ask(
        host,
        """
        r = run(["bash", "-c", "echo out; echo err >&2; exit 3"])
        ok = run(["true"])
        tell(status=r.status, code=r.exit_code, out=r.stdout.tail, err=r.stderr.tail, tool=r.tool, id=r.call_id,
             ok=[r.ok, ok.ok], receipt=r.receipt is None, limit=r.limit is None, duration=r.duration_s,
             text=run(["echo", "hello"]).unwrap(),
             json=r.to_dict() == deadstop.ToolResult.from_dict(r.to_dict()).to_dict())
        """,
    )
    assert (got["status"], got["code"], got["out"], got["err"]) == ("completed", 3, "out\n", "err\n")
    assert (got["tool"], got["ok"], got["text"], got["json"]) == ("bash", [False, True], "hello\n", True)
    assert got["id"].startswith("call_") and got["receipt"] and got["limit"]
    assert 0 < got["duration"] < 2


def test_a_command_that_hangs_is_gone_when_run_returns(host: Host) -> None:
    got = ask(
        host,
        """
        began = time.monotonic()
        r = run(["bash", "-c",
            "trap '' TERM; setsid sleep 30 & (sleep 30 &) ; sleep 30 & echo up; while :; do wait; done"],
                timeout=0.5, grace=0.1, env=MARKED)
        tell(took=time.monotonic() - began, left=marked(), status=r.status,
             limit=[r.limit.which, r.limit.seconds, r.limit.source],
             proof=r.receipt.proof, survivors=r.receipt.survivors, out=r.stdout.tail, processes=r.receipt.processes)
        """,
    )
    assert got["left"] == []
    assert (got["status"], got["limit"], got["out"]) == ("timeout", ["call", 0.5, "given"], "up\n")
    assert (got["proof"], got["survivors"]) == (host.proof, 0)
    assert got["processes"] >= 4
    assert 0.5 <= got["took"] < 1.2


def test_check_raises_the_error_of_each_end(host: Host) -> None:
    got = ask(
        host,
        """
        stop = CancelToken(); threading.Timer(0.2, stop.set).start()
        kill = 'kill -9 $$; sleep 5'
        cases = {
            "exit": (["bash", "-c", "echo why >&2; exit 3"], {}),
            "timeout": (["sleep", "5"], {"timeout": 0.2, "grace": 0}),
            "idle": (["sleep", "5"], {"idle_timeout": 0.2, "grace": 0}),
            "cancelled": (["sleep", "5"], {"cancel": stop}),
            "signaled": (["bash", "-c", kill], {}),
            "not found": (["no-such-program-here"], {}),
            "not executable": (["/etc/passwd"], {}),
            "output": (["yes"], {"output_limit": 100_000}),
        }
        told = {}
        for name, (argv, options) in cases.items():
            try:
                told[name] = repr(run(argv, check=True, **options))
            except deadstop.ToolError as problem:
                r = problem.result
                told[name] = [type(problem).__name__, r.status, isinstance(problem, TimeoutError),
                    str(problem).count("\\n")]
        try:
            with deadstop.deadline(0.001):
                time.sleep(0.01)
                run(["true"], check=True)
        except deadstop.ToolRefusedError as problem:
            told["refused"] = [type(problem).__name__, problem.result.reason, problem.result.environment]
        tell(**told)
        """,
    )
    assert got == {
        "exit": ["ToolExitError", "completed", False, 0],
        "timeout": ["ToolTimeoutError", "timeout", True, 0],
        "idle": ["ToolTimeoutError", "timeout", True, 0],
        "cancelled": ["ToolCancelledError", "cancelled", False, 0],
        "signaled": ["ToolSignaledError", "signaled", False, 0],
        "not found": ["ToolStartError", "error", False, 0],
        "not executable": ["ToolStartError", "error", False, 0],
        "output": ["ToolResourceError", "resource_limit", False, 0],
        "refused": ["ToolRefusedError", "deadline_over", "nothing was started"],
    }


def test_a_boundary_killed_from_outside_is_a_crash_and_a_lost_supervisor_is_unknown(host: Host) -> None:
    """Neither is a success or a failure of the command."""
    got = ask(
        host,
        """
        def roots():
            with open(f"/proc/{supervisor_pid()}/task/{supervisor_pid()}/children") as file:
                return [int(word) for word in file.read().split()]
        run(["true"])
        told = {}
        for name, victims in (("crashed", lambda: roots()), ("unknown", lambda: [supervisor_pid()])):
            thread, out = in_thread(run, ["sleep", "20"], timeout=15, env=MARKED, check=True)
            until(marked)
            for pid in victims():
                os.kill(pid, signal.SIGKILL)
            thread.join(10)
            told[name] = [type(out[0]).__name__, getattr(out[0], "result", None) and out[0].result.status,
                          isinstance(out[0], TimeoutError), marked()]
        tell(**told)
        """,
    )
    assert got["crashed"] == ["ToolCrashedError", "crashed", False, []]
    assert got["unknown"] == ["OutcomeUnknown", "unknown", False, []]


# -- output ------------------------------------------------------------------------------------------------------------


def test_on_output_is_called_in_order_completely_and_in_the_calling_thread() -> None:
    seen: list[tuple[str, bytes, int]] = []
    result = run(
        ["bash", "-c", "seq 1 200000; echo done >&2"],
        tail=1000,
        on_output=lambda stream, data: seen.append((stream, data, threading.get_ident())),
    )
    out = b"".join(data for stream, data, _ in seen if stream == "stdout")
    assert out == b"".join(b"%d\n" % number for number in range(1, 200001))
    assert b"".join(data for stream, data, _ in seen if stream == "stderr") == b"done\n"
    assert {who for _, _, who in seen} == {threading.get_ident()}
    assert result.stdout.bytes_total == len(out) and result.stdout.raw == out[-1000:]
    assert result.stdout.bytes_dropped == len(out) - 1000


def test_on_output_comes_while_the_command_runs() -> None:
    when: list[float] = []
    run(["bash", "-c", "echo a; sleep 0.3; echo b"], on_output=lambda *_: when.append(time.monotonic()))
    assert len(when) == 2 and when[1] - when[0] > 0.25


def test_a_slow_on_output_slows_the_command_but_not_its_deadline() -> None:
    began = time.monotonic()
    result = run(["yes"], timeout=0.5, grace=0, on_output=lambda *_: time.sleep(0.05))
    assert result.status == "timeout"
    assert result.receipt and result.receipt.survivors == 0
    assert result.receipt.deadline_to_dead_ms is not None and result.receipt.deadline_to_dead_ms < 100
    assert time.monotonic() - began < 5


def test_an_error_in_on_output_is_the_callers_and_ends_the_command() -> None:
    def fail(stream: str, data: bytes) -> None:
        raise LookupError(stream)

    began = time.monotonic()
    with pytest.raises(LookupError, match="stdout"):
        run(["bash", "-c", "echo up; sleep 30"], timeout=20, on_output=fail)
    assert time.monotonic() - began < 2
    assert run(["echo", "next"]).stdout.tail == "next\n"


def test_binary_output_is_kept_byte_for_byte() -> None:
    result = run([sys.executable, "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 100)"])
    assert result.stdout.raw == bytes(range(256)) * 100


# -- input -------------------------------------------------------------------------------------------------------------

TEN_MB = b"0123456789abcdef" * (10 << 16)


def test_ten_megabytes_of_bytes_on_stdin() -> None:
    result = run(["sha256sum"], stdin=TEN_MB)
    assert result.stdout.tail.split()[0] == hashlib.sha256(TEN_MB).hexdigest()


def test_input_that_the_command_does_not_read() -> None:
    result = run(["bash", "-c", "head -c 10; exec 0<&-; sleep 0.1; echo"], stdin=TEN_MB)
    assert (result.status, result.stdout.tail) == ("completed", "0123456789\n")


@pytest.mark.parametrize(("given", "read"), [("Grüße\n", "Grüße\n"), ("", ""), (b"", ""), (None, "")])
def test_text_and_nothing_on_stdin(given: str | bytes | None, read: str) -> None:
    result = run(["cat"], stdin=given, timeout=5)
    assert (result.status, result.stdout.tail) == ("completed", read)


def test_a_descriptor_on_stdin_is_read_from_where_it_stands_and_stays_open() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(TEN_MB)
        file.flush()
        os.lseek(file.fileno(), 16, os.SEEK_SET)
        result = run(["sha256sum"], stdin=file.fileno())
        assert result.stdout.tail.split()[0] == hashlib.sha256(TEN_MB[16:]).hexdigest()
        os.fstat(file.fileno())


def test_a_pipe_on_stdin() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"through a pipe")
        os.close(writing)
        assert run(["cat"], stdin=reading, timeout=5).stdout.tail == "through a pipe"
    finally:
        os.close(reading)


@pytest.mark.parametrize("bad", [3.5, True, ["x"], 123_456, -1, -5])
def test_what_cannot_be_stdin_is_refused_at_once(bad: object) -> None:
    began = time.monotonic()
    with pytest.raises(UsageError, match="stdin") as caught:
        run(["cat"], stdin=bad, timeout=10, grace=0)  # type: ignore[arg-type]
    assert time.monotonic() - began < 3
    assert repr(bad)[:20] in str(caught.value)


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_a_token_that_is_set_before_lets_nothing_start(tmp_path: Path) -> None:
    token = CancelToken()
    token.set()
    result = run(["touch", str(tmp_path / "touched")], cancel=token)
    assert (result.status, result.reason, result.receipt) == ("cancelled", "caller", None)
    assert result.environment == "nothing was started"
    assert not (tmp_path / "touched").exists()


def test_a_token_set_from_a_thread(host: Host) -> None:
    got = ask(
        host,
        """
        token = CancelToken(); threading.Timer(0.3, token.set).start()
        began = time.monotonic()
        r = run(["bash", "-c", "sleep 30 & setsid sleep 30 & trap '' TERM; while :; do wait; done"],
                grace=0.2, cancel=token, env=MARKED)
        tell(took=time.monotonic() - began, left=marked(), status=r.status, reason=r.reason, proof=r.receipt.proof,
             survivors=r.receipt.survivors)
        """,
    )
    assert got["left"] == [] and 0.3 <= got["took"] < 1.2
    assert (got["status"], got["reason"], got["proof"], got["survivors"]) == ("cancelled", "caller", host.proof, 0)


def test_a_token_set_from_a_signal_handler(host: Host) -> None:
    got = ask(
        host,
        """
        token = CancelToken()
        signal.signal(signal.SIGALRM, lambda *_: token.set())
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        began = time.monotonic()
        r = run(["sleep", "30"], cancel=token, env=MARKED)
        tell(took=time.monotonic() - began, left=marked(), status=r.status)
        """,
    )
    assert got["left"] == [] and got["status"] == "cancelled" and 0.3 <= got["took"] < 1.2


def test_a_token_set_afterwards_changes_nothing() -> None:
    token = CancelToken()
    result = run(["echo", "done"], cancel=token)
    token.set()
    assert (result.status, result.stdout.tail) == ("completed", "done\n")
    assert run(["true"], cancel=token).status == "cancelled"


def test_one_token_ends_many_calls() -> None:
    token = CancelToken()
    results: list[ToolResult] = []
    threads = [
        threading.Thread(target=lambda: results.append(run(["sleep", "20"], cancel=token, grace=0))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    timer = threading.Timer(0.4, token.set)
    timer.start()
    for thread in [*threads, timer]:
        thread.join(10)
    assert [result.status for result in results] == ["cancelled"] * 8


# -- many at once ------------------------------------------------------------------------------------------------------


def test_twenty_threads_at_once_get_each_their_own_output(host: Host) -> None:
    got = ask(
        host,
        """
        outs = {}
        def one(number):
            chunks = []
            r = run(["bash", "-c", f"for i in $(seq 200); do echo {number} $i; done; exit {number}"],
                    on_output=lambda stream, data: chunks.append(data))
            outs[number] = (r.exit_code, r.stdout.raw, b"".join(chunks))
        threads = [threading.Thread(target=one, args=(n,)) for n in range(20)]
        [t.start() for t in threads]; [t.join(30) for t in threads]
        wrong = []
        for n in range(20):
            wanted = b"".join(b"%d %d\\n" % (n, i) for i in range(1, 201))
            if outs.get(n) != (n, wanted, wanted):
                wrong.append(n)
        tell(wrong=wrong, supervisors=len(children()))
        """,
    )
    assert got == {"wrong": [], "supervisors": 1}


def test_inside_a_running_event_loop() -> None:
    async def main() -> ToolResult:
        return run(["echo", "inside"])

    assert asyncio.run(main()).stdout.tail == "inside\n"


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_a_deadline_block_ends_the_calls_made_in_it() -> None:
    began = time.monotonic()
    with deadstop.deadline(0.5):
        first = run(["sleep", "10"], timeout=5, grace=0)
        left = deadstop.remaining()
        second = run(["true"])
    assert time.monotonic() - began < 1.2
    assert first.status == "timeout" and first.limit is not None
    assert (first.limit.which, first.limit.seconds, first.limit.source) == ("parent", 0.5, "inherited")
    assert left == 0.0
    assert (second.status, second.reason) == ("refused", "deadline_over")
    assert deadstop.remaining() is None


def test_deadline_blocks_nest() -> None:
    with deadstop.deadline(20), deadstop.deadline(0.3), deadstop.deadline(10):
        result = run(["sleep", "10"], timeout=None, grace=0)
    assert result.status == "timeout" and result.limit and result.limit.seconds == 0.3
    with deadstop.deadline(20):
        own = run(["sleep", "10"], timeout=0.2, grace=0)
    assert own.limit and (own.limit.which, own.limit.seconds, own.limit.source) == ("call", 0.2, "given")


def test_an_omitted_timeout_is_a_default_and_shown_to_the_command() -> None:
    result = run(["bash", "-c", "echo $DEADSTOP_DEADLINE"])
    assert 299 < float(result.stdout.tail) - time.monotonic() <= 300
    assert run(["bash", "-c", "echo [$DEADSTOP_DEADLINE]"], timeout=None).stdout.tail == "[]\n"


@pytest.mark.parametrize("seconds", [3e6, 1e10, 1e300])
def test_a_very_long_limit_is_a_limit_like_any_other(one_host: Host, seconds: float) -> None:
    got = ask(
        one_host,
        f'r = run(["echo", "hi"], timeout={seconds!r}); tell(status=r.status, out=r.stdout.tail, notes=r.degraded)',
    )
    assert got == {"status": "completed", "out": "hi\n", "notes": []}


# -- interrupts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["setitimer", "pthread_kill", "kill"])
def test_keyboard_interrupt_in_the_middle_leaves_nothing(host: Host, way: str) -> None:
    got = ask(
        host,
        """
        way = sys.argv[1]
        if way == "setitimer":
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.4)
        elif way == "kill":
            threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            threading.Timer(0.4, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        began = time.monotonic()
        try:
            raised, r = None, run(["bash", "-c", "trap '' INT TERM; setsid sleep 30 & while :; do sleep 1; done"],
                    timeout=20, env=MARKED)
        except KeyboardInterrupt:
            raised, took = "KeyboardInterrupt", time.monotonic() - began
        until(lambda: not marked(), within=2)
        tell(raised=raised, took=took, next=run(["echo", "next"]).stdout.tail)
        """,
        way,
    )
    assert got["raised"] == "KeyboardInterrupt" and got["next"] == "next\n"
    assert got["took"] < 1.0


# -- what a command finds around it ------------------------------------------------------------------------------------

FACTS = """
import json, os, resource, signal, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
own = lambda name: open(f"/proc/self/{name}").read().strip()
def fd(number):
    try: return os.readlink(f"/proc/self/fd/{number}").split(":")[0]
    except OSError: return None
here = sorted(int(n) for n in os.listdir("/proc/self/fd"))
mask = os.umask(0)
print(json.dumps(dict(
    umask=mask, nice=os.getpriority(os.PRIO_PROCESS, 0), oom=own("oom_score_adj"), cwd=os.getcwd(),
    limits={n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
    uid=status["Uid"].split(), gid=status["Gid"].split(), groups=sorted(set(status["Groups"].split())),
    cpus=status["Cpus_allowed"].strip(), ignored=status["SigIgn"].strip(), blocked=status["SigBlk"].strip(),
    dumpable=os.access("/proc/self/environ", os.R_OK), no_new_privs=status["NoNewPrivs"].strip(),
    seccomp=status["Seccomp"].strip(), fds=[n for n in here if fd(n) and "/proc" not in fd(n)],
    kinds=[fd(0), fd(1), fd(2)], leader=os.getsid(0) == os.getpid(), tty=[os.isatty(n) for n in (0, 1, 2)],
    sched=os.sched_getscheduler(0), home=os.environ.get("HOME"), extra=os.environ.get("FROM_CALLER"),
)))
"""


def test_the_command_finds_what_its_caller_has(host: Host) -> None:
    got = ask(
        host,
        f"""
        import resource
        os.umask(0o027); os.nice(3); os.environ["FROM_CALLER"] = "yes"
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300)); resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
        with open("/proc/self/oom_score_adj", "w") as file: file.write("77")
        signal.signal(signal.SIGHUP, signal.SIG_IGN); signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
        leak = os.open("/etc/passwd", os.O_RDONLY); os.set_inheritable(leak, True)
        os.makedirs("here", exist_ok=True); os.chdir("here")
        facts = {FACTS!r}
        r = run([sys.executable, "-I", "-c", facts], pids=None)
        assert r.ok, r.stderr.tail
        signals = run(["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"]).stdout.tail.split()[1::2]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1, signal.SIGTERM])
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        direct = subprocess.run([sys.executable, "-I", "-c", facts], capture_output=True, stdin=subprocess.DEVNULL,
                                start_new_session=True, check=True, close_fds=True)
        tell(signals=signals, inside=json.loads(r.stdout.tail), outside=json.loads(direct.stdout))
        """,
    )
    inside, outside = got["inside"], got["outside"]
    different = {name: (inside[name], outside[name]) for name in outside if inside[name] != outside[name]}
    assert different == {}
    assert inside["umask"] == 0o027 and inside["nice"] == 3 and inside["oom"] == "77"
    assert inside["limits"]["RLIMIT_NOFILE"] == [200, 300]
    assert inside["fds"] == [0, 1, 2] and inside["kinds"] == ["/dev/null", "pipe", "pipe"]
    assert [int(mask, 16) for mask in got["signals"]] == [0, 0]  # Python would ignore SIGPIPE and SIGXFSZ itself
    assert inside["leader"] and inside["tty"] == [False] * 3
    assert inside["extra"] == "yes" and inside["cwd"].endswith("/here")


def test_another_call_finds_what_its_caller_has_become(host: Host) -> None:
    """The supervisor was started before the caller changed: it must not hand on its own older state."""
    got = ask(
        host,
        """
        import resource
        run(["true"])
        os.umask(0o007); os.nice(4); os.environ["LATER"] = "yes"; os.mkdir("later"); os.chdir("later")
        show = "umask; nice; echo $LATER; pwd"
        tell(lines=run(["bash", "-c", show]).stdout.tail.split())
        os.chdir(".."); os.rmdir("later")
        """,
    )
    assert got["lines"][:3] == ["0007", "4", "yes"] and got["lines"][3].endswith("/later")


def test_another_call_finds_the_limit_of_open_files_that_its_caller_has_now(host: Host) -> None:
    """Soft and hard: the supervisor's own are those of its start, and its soft one is higher."""
    got = ask(
        host,
        """
        import resource
        found = []
        for pair in ((200, 300), (100, 150)):
            resource.setrlimit(resource.RLIMIT_NOFILE, pair)
            found.append([int(word) for word in run(["bash", "-c", "ulimit -Sn; ulimit -Hn"]).stdout.tail.split()])
        tell(found=found)
        """,
    )
    assert got["found"] == [[200, 300], [100, 150]]


def test_a_deleted_current_folder(host: Host) -> None:
    got = ask(
        host,
        """
        os.mkdir("deleted"); os.chdir("deleted"); os.rmdir(os.getcwd())
        r = run(["bash", "-c", "echo ran; ls -di . | cut -d' ' -f1"])
        inode = os.stat(".").st_ino
        os.chdir("/")
        tell(status=r.status, out=r.stdout.tail.split(), inode=str(inode), error=r.error)
        """,
    )
    assert (got["status"], got["error"]) == ("completed", None)
    assert got["out"] == ["ran", got["inode"]]


def test_cwd_and_env_are_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "kept")
    result = run(["bash", "-c", 'pwd; echo "$A-$KEPT-$HOME"'], cwd=tmp_path, env={"A": "1", "HOME": "/h"})
    assert result.stdout.tail.splitlines() == [str(tmp_path), "1-kept-/h"]
    cleared = run(["bash", "-c", 'echo "$A-$KEPT"'], env={"A": "1"}, clear_env=True)
    assert cleared.stdout.tail == "1-\n"
    passed = run(["bash", "-c", 'echo "$KEPT"'], env={"KEPT": None}, clear_env=True)
    assert passed.stdout.tail == "kept\n"


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Numbers below 1200 are taken: select(2) cannot wait for what is opened next."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"RLIMIT_NOFILE {hard} leaves too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(1200)]
    yield
    for fd in taken:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_caller_with_more_than_1024_descriptors() -> None:
    assert run(["echo", "hi"], timeout=5).stdout.tail == "hi\n"
    token = CancelToken()
    threading.Timer(0.2, token.set).start()
    assert run(["sleep", "5"], timeout=5, grace=0, cancel=token).status == "cancelled"
    with deadstop.Boundary() as boundary:
        assert boundary.run(["echo", "hi"]).stdout.tail == "hi\n"


@pytest.mark.parametrize(
    "options",
    [{"env": {"A": "\ud800"}}, {"env": {"\ud800": "a"}}, {"env": "A=1"}, {"env": ["A=1"]}, {"env": {1: "a"}}],
)
def test_an_environment_that_cannot_be_passed_is_refused_before_anything_starts(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="env") as caught:
        run(["true"], timeout=2, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_word_that_cannot_be_passed_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="word 1"):
        run(["echo", "\ud800"], timeout=2)


def test_an_environment_larger_than_the_kernel_takes_is_refused() -> None:
    with pytest.raises(deadstop.UsageError, match=r"BIG has 200004 bytes; the kernel allows 131071"):
        run(["true"], env={"BIG": "x" * 200_000}, timeout=5)
    result = run(["true"], env={f"BIG{number}": "x" * 120_000 for number in range(40)}, timeout=5)
    assert (result.status, result.reason, result.start_errno, result.exit_status()) == ("refused", "policy", 7, 125)
    assert result.error and "the kernel allows" in result.error["message"]


def test_terminal_when_asked_for() -> None:
    result = run(["bash", "-c", "test -t 0 && test -t 1 && stty size && read -t 0.2 x; echo $?"], tty=True, timeout=5)
    assert result.status == "completed" and "24 80" in result.stdout.tail


def test_a_sandbox_has_nothing_of_the_callers(namespace_host: Host) -> None:
    got = ask(
        namespace_host,
        """
        os.environ["SECRET"] = "s"; os.mkdir("project"); os.chdir("project")
        open("file", "w").write("seen")
        r = run(["bash", "-c", "cat file; echo; echo [$SECRET]; pwd; id -u; cat /proc/1/comm; ls -A ~ | wc -l"],
                isolation="sandbox", timeout=20)
        tell(status=r.status, out=r.stdout.tail.splitlines(), err=r.stderr.tail, cwd=os.getcwd(), effect=r.effect)
        """,
    )
    assert got["status"] == "completed", got
    assert got["out"][:3] == ["seen", "[]", got["cwd"]]
    assert got["out"][3] != "0" and got["out"][4] == "deadstop-room"


def test_signals_of_the_group_of_the_caller_do_not_reach_the_command() -> None:
    """A command is a session of its own: what the terminal sends to the caller's group is the caller's to pass on."""
    result = run(["bash", "-c", "ps -o pgid=,sid= -p $$ 2>/dev/null || cut -d' ' -f5,6 /proc/$$/stat; echo $$"])
    words = result.stdout.tail.split()
    assert words[0] == words[1] == words[2]
    assert signal.getsignal(signal.SIGCHLD) in (signal.SIG_DFL, signal.SIG_IGN, None)  # and we installed none
