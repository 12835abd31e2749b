# SPDX-License-Identifier: Apache-2.0
"""What keeps a limit is never inside what it limits: callers and supervisors frozen, busy, killed or forked."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from textwrap import dedent
from typing import Any

import pytest
from asking import PRELUDE, ask, shown_without_supervisor

from hosts import Host

HOSTILE = (
    "trap '' TERM HUP INT; (setsid sleep 60 &) ; "
    "setsid bash -c 'trap \"\" TERM; sleep 60; :' & while :; do sleep 1; done"
)
HOSTS = ("user", "no-userns-no-cgroup")  # root differs from a user in nothing that these show
NOTICED_S = 2.0  # after a call's last possible end: how soon a supervisor that does not answer is given up


def start(host: Host, text: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """A caller that this test can stop and kill. Its stdout is a pipe."""
    return host.popen(
        [host.python, "-c", PRELUDE + dedent(text), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        **options,
    )


def told(process: subprocess.Popen[bytes], within: float = 15) -> Any:
    """The next line that it tells."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], within)[0], "it told nothing in time"
    line = process.stdout.readline()
    assert line, "it ended without a word"
    return json.loads(line)


def marked(mark: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                here = mark.encode() in file.read().split(b"\0")
            with open(f"/proc/{name}/stat", "rb") as file:
                alive = file.read().rpartition(b") ")[2][:1] not in b"ZX"
            if here and alive:
                found.append(int(name))
        except OSError:
            pass
    return found


def wait_for(check: Any, within: float) -> float:
    """How long it took to become true."""
    began = time.monotonic()
    while not check():
        assert time.monotonic() - began < within, "not in time"
        time.sleep(0.002)
    return time.monotonic() - began


def end(process: subprocess.Popen[bytes]) -> None:
    """Whatever state it is in."""
    if process.poll() is None:
        process.kill()
    process.wait(10)
    if process.stdout:
        process.stdout.close()


# -- the caller --------------------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_a_frozen_caller_does_not_stop_the_deadline(host: Host) -> None:
    caller = start(
        host,
        """
        run(["true"])
        tell(mark=MARK)
        began = time.monotonic()
        r = run(["bash", "-c", sys.argv[1]], timeout=1, grace=0, env={**MARKED, "BEGAN": f"{began}"})
        tell(status=r.status, survivors=r.receipt.survivors, late=r.receipt.deadline_to_dead_ms)
        """,
        HOSTILE,
    )
    try:
        mark = told(caller)["mark"]
        began = time.monotonic()
        wait_for(lambda: len(marked(mark)) >= 3, 5)
        os.kill(caller.pid, signal.SIGSTOP)
        wait_for(lambda: not marked(mark), 5)
        assert 0.9 < time.monotonic() - began < 1.2 + 0.1  # 0.1: told() and its script are not synchronous
        os.kill(caller.pid, signal.SIGCONT)
        after = told(caller)
    finally:
        os.kill(caller.pid, signal.SIGCONT)
        end(caller)
    assert after["status"] == "timeout" and after["survivors"] == 0 and after["late"] < 200


@pytest.mark.alone
def test_a_caller_that_holds_the_interpreter_lock_does_not_stop_the_deadline(host: Host) -> None:
    """The payload's own last heartbeat says when it died."""
    got = ask(
        host,
        """
        run(["true"])
        beat = ("import os, sys, time\\nwhile True:\\n"
                "    os.pwrite(1, f'{time.monotonic():.6f}'.encode(), 0); time.sleep(0.002)")
        out = os.open("beat", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        held = []
        def hold():
            began = time.monotonic()
            number = 7 ** 400_000
            while time.monotonic() - began < 1.5:
                one = time.monotonic(); 3 ** 2_500_000; held.append(time.monotonic() - one)   # one C call, lock held
        thread = threading.Thread(target=hold)
        import shlex
        script = "exec >beat; exec " + shlex.join([sys.executable, "-c", beat])
        threading.Timer(0.3, thread.start).start()
        began = time.monotonic()
        r = run(["bash", "-c", script], timeout=1, grace=0, on_output=lambda *_: None)
        thread.join(20)
        last = float(os.pread(out, 30, 0))
        tell(status=r.status, last=last - began, held=max(held), late=r.receipt.deadline_to_dead_ms)
        """,
        bound=50,
    )
    assert got["status"] == "timeout"
    assert got["held"] > 0.15, "the lock was not held for long enough to show anything"
    assert 0.85 < got["last"] <= 1.1
    assert got["late"] < 100


@pytest.mark.alone
def test_a_killed_caller_takes_two_hundred_hostile_descendants_along(host: Host) -> None:
    caller = start(
        host,
        """
        tell(mark=MARK)
        text = ("trap '' TERM HUP INT; for i in $(seq 66); do (trap '' TERM; setsid sleep 60 &) ; "
                "setsid sleep 60 & sleep 60 & done; while :; do sleep 1; done")
        run(["bash", "-c", text], timeout=40, env=MARKED, pids=None)
        """,
    )
    try:
        mark = told(caller)["mark"]
        wait_for(lambda: len(marked(mark)) >= 199, 15)
        os.kill(caller.pid, signal.SIGKILL)
        killed = time.monotonic()
        wait_for(lambda: not marked(mark), 5)
        took = time.monotonic() - killed
    finally:
        end(caller)
    host.no_survivors(within=1)
    assert took < 0.5


@pytest.mark.parametrize(
    "text",
    [
        "run(['sleep', '30'], env=MARKED)",
        "asyncio.run(run_async(['sleep', '30'], env=MARKED))",
        "with Boundary() as b: b.run(['sleep', '30'], env=MARKED)",
    ],
)
def test_a_killed_caller_leaves_nothing_whichever_way_it_called(host: Host, text: str) -> None:
    caller = start(host, f"tell(mark=MARK)\n{text}")
    try:
        mark = told(caller)["mark"]
        wait_for(lambda: marked(mark), 10)
        os.kill(caller.pid, signal.SIGKILL)
        wait_for(lambda: not marked(mark), 2)
    finally:
        end(caller)
    host.no_survivors(within=1)


def test_leaving_with_a_call_in_a_daemon_thread_is_quick_and_leaves_nothing(host: Host) -> None:
    caller = start(
        host,
        """
        in_thread(run, ["bash", "-c", sys.argv[1]], timeout=30, env=MARKED)
        until(lambda: len(marked()) >= 3)
        tell(mark=MARK)
        """,
        HOSTILE,
    )
    try:
        mark = told(caller)["mark"]
        took = wait_for(lambda: caller.poll() is not None, 10)
        assert caller.returncode == 0
        wait_for(lambda: not marked(mark), 2)
    finally:
        end(caller)
    assert took < 3  # and not the 30 s of the call
    host.no_survivors(within=1)


@pytest.mark.parametrize("way", ["os._exit(3)", "sys.exit(3)", "os.abort()", "os.execv('/bin/true', ['true'])"])
def test_every_way_to_end_a_caller_ends_what_it_started(host: Host, way: str) -> None:
    caller = start(
        host,
        f"""
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        in_thread(run, ["sleep", "30"], timeout=30, env=MARKED)
        until(marked)
        tell(mark=MARK)
        {way}
        """,
        stderr=subprocess.DEVNULL,
    )
    try:
        mark = told(caller)["mark"]
        caller.wait(10)
        wait_for(lambda: not marked(mark), 2)
    finally:
        end(caller)
    host.no_survivors(within=1)


def test_a_caller_that_ignores_sigchld_and_blocks_signals(host: Host) -> None:
    got = ask(
        host,
        """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ends = []
        for number in (0, 7):
            r = run(["bash", "-c", f"(exit 3); echo $?; exit {number}"], timeout=10)
            ends.append([r.status, r.exit_code, r.stdout.tail])
        r = run(["bash", "-c", "sleep 30 & sleep 30; :"], timeout=0.4, grace=0, env=MARKED)
        with Boundary() as b:
            inside = b.run(["bash", "-c", "exit 5"]).exit_code
        tell(ends=ends, late=[r.status, r.receipt.survivors, r.receipt.proof], left=marked(), inside=inside,
             supervisors=len(children()))
        """,
    )
    assert got["ends"] == [["completed", 0, "3\n"], ["completed", 7, "3\n"]]
    assert got["late"] == ["timeout", 0, host.proof] and got["left"] == []
    assert (got["inside"], got["supervisors"]) == (5, 1)


def test_a_caller_that_collects_every_child_itself(host: Host) -> None:
    """waitpid(-1) in the host program must not break us, nor find children that it does not know of for long."""
    got = ask(
        host,
        """
        run(["true"])
        pid = supervisor_pid()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(-1, 0)
        r = run(["echo", "next"])
        tell(out=r.stdout.tail, new=supervisor_pid() != pid)
        """,
    )
    assert got == {"out": "next\n", "new": True}


# -- the supervisor ----------------------------------------------------------------------------------------------------


def test_a_killed_supervisor_ends_the_call_with_proof(host: Host) -> None:
    got = ask(
        host,
        """
        thread, out = in_thread(run, ["bash", "-c", sys.argv[1]], timeout=20, env=MARKED)
        until(lambda: len(marked()) >= 3)
        os.kill(supervisor_pid(), signal.SIGKILL)
        began = time.monotonic()
        thread.join(10)
        took, left = time.monotonic() - began, marked()
        r = out[0]
        tell(took=took, left=left, status=r.status, survivors=r.receipt.survivors, proof=r.receipt.proof,
            degraded=r.degraded,
             next=run(["echo", "next"]).stdout.tail)
        clean_up()
        """,
        HOSTILE,
    )
    assert got["left"] == []
    assert got["status"] == "unknown" and got["took"] < 3 and got["degraded"]
    assert (got["proof"], got["survivors"]) == shown_without_supervisor(host)
    assert got["next"] == "next\n"


def test_a_killed_supervisor_ends_every_call_and_the_next_ones_work(host: Host) -> None:
    got = ask(
        host,
        """
        calls = [in_thread(run, ["sleep", "30"], timeout=20, env=MARKED) for _ in range(8)]
        until(lambda: len(marked()) == 8)
        old = supervisor_pid()
        os.kill(old, signal.SIGKILL)
        until(lambda: state(old) in ("Z", "gone"))  # what it is handed before that is lost with it
        began = time.monotonic()
        nexts = [in_thread(run, ["echo", "next"], timeout=10) for _ in range(4)]
        [t.join(10) for t, _ in calls + nexts]
        took = time.monotonic() - began
        tell(took=took, left=marked(), ends=sorted({o[0].status for _, o in calls}),
             nexts=[o[0].stdout.tail for _, o in nexts],
             zombies=[pid for pid in children() if state(pid) == "Z"], supervisors=len(children()))
        clean_up()
        """,
    )
    assert got["left"] == [] and got["ends"] == ["unknown"]
    assert got["nexts"] == ["next\n"] * 4
    assert got["took"] < 3
    assert (got["zombies"], got["supervisors"]) == ([], 1)


def test_a_stopped_supervisor_does_not_keep_run_from_returning(host: Host) -> None:
    got = ask(
        host,
        """
        thread, out = in_thread(run, ["bash", "-c", sys.argv[1]], timeout=0.8, grace=0.1, env=MARKED)
        until(lambda: len(marked()) >= 3)
        began = time.monotonic()
        os.kill(supervisor_pid(), signal.SIGSTOP)
        thread.join(15)
        took, left = time.monotonic() - began, marked()
        r = out[0]
        tell(took=took, left=left, status=r.status, limit=r.limit and r.limit.which, degraded=r.degraded,
            survivors=r.receipt.survivors,
             proof=r.receipt.proof, next=run(["echo", "next"]).stdout.tail)
        clean_up()
        """,
        HOSTILE,
    )
    assert got["left"] == []
    assert (got["status"], got["limit"]) == ("timeout", "call")
    assert got["took"] < 0.8 + 0.1 + NOTICED_S + 1.5
    assert any("supervisor" in line for line in got["degraded"])
    assert (got["proof"], got["survivors"]) == shown_without_supervisor(host)
    assert got["next"] == "next\n"


def test_a_stopped_supervisor_does_not_keep_run_async_from_returning(host: Host) -> None:
    got = ask(
        host,
        """
        async def main():
            task = asyncio.create_task(run_async(["bash", "-c", sys.argv[1]], timeout=0.8, grace=0.1, env=MARKED))
            while len(marked()) < 3:
                await asyncio.sleep(0.01)
            os.kill(supervisor_pid(), signal.SIGSTOP)
            return await asyncio.wait_for(task, 10)
        r = asyncio.run(main())
        tell(left=marked(), status=r.status, shown=[r.receipt.proof, r.receipt.survivors], degraded=len(r.degraded))
        clean_up()
        """,
        HOSTILE,
    )
    assert got["left"] == [] and got["status"] == "timeout" and got["degraded"] >= 1
    assert tuple(got["shown"]) == shown_without_supervisor(host)


def test_a_stopped_supervisor_and_a_short_call_do_not_end_a_long_one(host: Host) -> None:
    """Stopped for a moment only: whoever runs out of patience first must not take the others along unsaid."""
    got = ask(
        host,
        """
        long, out = in_thread(run, ["bash", "-c", "sleep 2.5; echo long"], timeout=20, env=MARKED)
        until(marked)
        pid = supervisor_pid()
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.6, os.kill, (pid, signal.SIGCONT)).start()
        short = run(["sleep", "5"], timeout=0.3, grace=0)
        long.join(10)
        tell(short=short.status, long=[out[0].status, out[0].stdout.tail], gap=short.gap_s)
        """,
    )
    assert got["short"] in ("timeout", "refused") and got["long"] == ["completed", "long\n"]


def test_a_stopped_supervisor_says_that_time_was_lost(host: Host) -> None:
    got = ask(
        host,
        """
        call, out = in_thread(run, ["bash", "-c", "sleep 30"], timeout=0.5, grace=0, env=MARKED)
        until(marked)
        pid = supervisor_pid()
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(1.1, os.kill, (pid, signal.SIGCONT)).start()
        call.join(10)
        tell(status=out[0].status, gap=out[0].gap_s)
        """,
    )
    assert got["status"] == "timeout" and got["gap"] is not None and 0.4 < got["gap"] < 1.5


def test_a_supervisor_that_cannot_start_is_a_clear_error_and_not_for_ever(one_host: Host) -> None:
    got = ask(
        one_host,
        """
        real, sys.executable = sys.executable, "/bin/false"
        began = time.monotonic()
        try:
            run(["true"])
            kind, text = "none", ""
        except deadstop.DeadstopError as problem:
            kind, text = type(problem).__name__, str(problem)
        took = time.monotonic() - began
        sys.executable = real
        tell(kind=kind, text=text, took=took, next=run(["echo", "next"]).stdout.tail,
            zombies=[p for p in children() if state(p) == "Z"])
        """,
    )
    assert got["kind"] == "InternalError" and "supervisor" in got["text"] and got["took"] < 5
    assert got["next"] == "next\n" and got["zombies"] == []


# -- forks -------------------------------------------------------------------------------------------------------------


def test_a_forked_child_has_calls_of_its_own_and_leaves_those_of_its_parent_alone(host: Host) -> None:
    got = ask(
        host,
        """
        thread, out = in_thread(run, ["bash", "-c", "sleep 1.5; echo parent"], timeout=20, env=MARKED)
        until(marked)
        reading, writing = os.pipe()
        import warnings
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            r = run(["echo", "child"])
            late = run(["sleep", "30"], timeout=0.3, grace=0)
            os.write(writing, json.dumps([r.stdout.tail, late.status, supervisor_pid()]).encode())
            os._exit(0)
        os.waitpid(child, 0)
        inside = json.loads(os.read(reading, 1000))
        alive = len(marked())          # the child has ended by now: the parent's call has not
        thread.join(20)
        tell(child=inside[:2], other=inside[2] != supervisor_pid(), alive=alive,
             parent=[out[0].status, out[0].stdout.tail],
             gone=until(lambda: state(inside[2]) in ("gone", "Z"), within=2))
        """,
    )
    assert got["child"] == ["child\n", "timeout"] and got["other"] and got["alive"] >= 1
    assert got["parent"] == ["completed", "parent\n"]


def test_a_forked_child_that_outlives_its_parent_does_not_keep_its_calls_alive(host: Host) -> None:
    """It holds no copy of the parent's lifeline."""
    caller = start(
        host,
        """
        import warnings
        warnings.simplefilter("ignore")
        in_thread(run, ["sleep", "30"], timeout=30, env=MARKED)
        until(marked)
        child = os.fork()
        if child == 0:
            os.close(1)
            time.sleep(3)
            os._exit(0)
        tell(mark=MARK, child=child)
        time.sleep(30)
        """,
    )
    try:
        facts = told(caller)
        os.kill(caller.pid, signal.SIGKILL)
        wait_for(lambda: not marked(facts["mark"]), 2)
        assert os.path.exists(f"/proc/{facts['child']}")
        os.kill(facts["child"], signal.SIGKILL)
    finally:
        end(caller)
    host.no_survivors(within=1)


def test_a_fork_while_other_threads_call(host: Host) -> None:
    """Locks held by other threads at the fork must not stay locked in the child."""
    got = ask(
        host,
        """
        import warnings
        warnings.simplefilter("ignore")
        stop, ends = threading.Event(), []
        def busy():
            while not stop.is_set():
                ends.append(run(["true"]).status)
        threads = [threading.Thread(target=busy) for _ in range(4)]
        [t.start() for t in threads]
        codes = []
        for _ in range(8):
            child = os.fork()
            if child == 0:
                signal.alarm(8)
                os._exit(0 if run(["true"], timeout=5).ok else 1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set(); [t.join(10) for t in threads]
        tell(codes=codes, ends=sorted(set(ends)))
        """,
    )
    assert got == {"codes": [0] * 8, "ends": ["completed"]}


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_multiprocessing(host: Host, way: str) -> None:
    folder = host.folder / f"mp-{way}"
    folder.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, host.uid, host.uid)
    program = folder / "program.py"
    program.write_text(
        dedent(
            """
            import json, multiprocessing, sys
            from deadstop import run

            def work(number):
                return run(["bash", "-c", f"echo {number}"]).stdout.tail, \\
                    run(["sleep", "20"], timeout=0.2, grace=0).status

            if __name__ == "__main__":
                run(["true"])
                with multiprocessing.get_context(sys.argv[1]).Pool(3) as pool:
                    print(json.dumps(pool.map(work, range(6))))
                pool.join()
            """
        )
    )
    with host.popen([host.python, str(program), way], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        out, _ = process.communicate(timeout=40)
    assert process.returncode == 0
    assert json.loads(out) == [[f"{number}\n", "timeout"] for number in range(6)]
    host.no_survivors(within=2)


# -- over time ---------------------------------------------------------------------------------------------------------


def test_three_hundred_calls_leave_no_trace(host: Host) -> None:
    got = ask(
        host,
        """
        def rss(pid):
            return next(int(line.split()[1]) for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS"))
        for _ in range(10):
            run(["true"])
        pid = supervisor_pid()
        before = fds(), fds(pid), rss(pid)
        for number in range(300):
            if number % 30 == 0:
                run(["bash", "-c", "sleep 30 & sleep 30"], timeout=0.05, grace=0)
            elif number % 30 == 1:
                run(["no-such-program"])
            elif number % 30 == 2:
                run(["bash", "-c", "sleep 30 & head -c 300000 /dev/zero"], stdin=b"x" * 100000)
            else:
                run(["true"])
        until(lambda: fds(pid) <= before[1], within=2)
        below = [int(p) for p in open(f"/proc/{pid}/task/{pid}/children").read().split()]
        tell(own=fds() - before[0], theirs=fds(pid) - before[1], rss=rss(pid) - before[2], same=pid == supervisor_pid(),
             zombies=[p for p in children() + below if state(p) == "Z"], left=len(below))
        """,
        bound=50,
    )
    assert got["own"] <= 0 and got["theirs"] <= 0
    assert got["rss"] < 10 * 1024 and got["same"]
    assert got["zombies"] == [] and got["left"] == 0


def test_refused_calls_leave_no_descriptors_in_the_supervisor(host: Host) -> None:
    """Folder and input travel with the request: they must be closed also where it is turned down."""
    if host.namespaces:
        pytest.skip("this host refuses nothing: see the ones without namespaces")
    got = ask(
        host,
        """
        run(["true"])
        pid = supervisor_pid()
        before, kinds = fds(pid), set()
        for _ in range(30):
            try:
                run(["cat"], isolation="sandbox", bind_cwd=False, stdin=b"x")
            except deadstop.BoundaryUnavailable as problem:
                kinds.add(type(problem).__name__)
            try:
                Boundary("sandbox", bind_cwd=False)
            except deadstop.BoundaryUnavailable as problem:
                kinds.add(type(problem).__name__)
        run(["true"])
        settled = time.monotonic() + 5
        while fds(pid) > before + 1 and time.monotonic() < settled:
            time.sleep(0.01)  # it finds out a moment later that our ends are closed
        tell(grown=fds(pid) - before, kinds=sorted(kinds))
        """,
    )
    assert got["kinds"] == ["BoundaryUnavailable"] and got["grown"] <= 1


def test_many_calls_with_few_descriptors_are_refused_one_by_one(host: Host) -> None:
    """Descriptors that run out are a matter of the calls that get none, not of those that run."""
    got = ask(
        host,
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (80, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        first, out = in_thread(run, ["bash", "-c", "sleep 1.5; echo first"], timeout=20, env=MARKED)
        until(marked)
        pid = supervisor_pid()
        calls = [in_thread(run, ["sleep", "0.5"], timeout=5, grace=0) for _ in range(40)]
        [t.join(20) for t, _ in calls]; first.join(20)
        tell(first=getattr(out[0], "status", repr(out[0])),
             kinds=sorted({getattr(o[0], "status", type(o[0]).__name__) for _, o in calls}),
             same=pid == supervisor_pid(), next=run(["echo", "next"]).stdout.tail)
        """,
    )
    assert got["first"] == "completed" and got["next"] == "next\n"
    assert got["same"], "the supervisor ended"


def test_one_bad_call_does_not_end_the_others(host: Host) -> None:
    """Whatever a caller passes by mistake: the supervisor is shared by all its calls."""
    got = ask(
        host,
        """
        first, out = in_thread(run, ["bash", "-c", "sleep 1.5; echo first"], timeout=20, env=MARKED)
        until(marked)
        pid = supervisor_pid()
        odd = [
            dict(argv=["true"], timeout=1e300), dict(argv=["true"], timeout=1e9), dict(argv=["true"],
            env={"A": "\\ud800"}),
            dict(argv=["tr\\ud800"]), dict(argv=["true"], idle_timeout=1e300), dict(argv=["true"], grace=1e300),
            dict(argv=["true"], memory=1), dict(argv=["true"], pids=1), dict(argv=["true"], cpus=1e-9),
            dict(argv=["true"], cpus=1e300),
            dict(argv=["true"], disk=1), dict(argv=["true"], memory=2**200), dict(argv=["true"], pids=2**200),
            dict(argv=["true"], disk=2**200),
            dict(argv=["true"], tail=2**70), dict(argv=["true"], output_limit=2**70), dict(argv=["x" * 5000]),
            dict(argv=["a/b/c"]),
            dict(argv=["true"], env={"": "x"}), dict(argv=["true"], tool="\\ud800"), dict(argv=["true"],
            evidence_paths=["\\ud800"]),
            dict(argv=["true"], evidence_paths=["a\\0b"]), dict(argv=["sleep", "3"], timeout=1e-9),
            dict(argv=["true"], cwd="\\ud800"),
            dict(argv=["true"], cwd="a\\0b"),
        ]
        told = {}
        for number, case in enumerate(odd):
            try:
                status = run(**{"timeout": 3, **case}).status
                status = str(status) if status in ("unknown", "crashed") else "fine"
            except deadstop.UsageError:
                status = "fine"
            except Exception as problem:
                status = type(problem).__name__
            if status != "fine" or supervisor_pid() != pid:
                told[repr(case)[:70]] = status + (", the supervisor ended" if supervisor_pid() != pid else "")
                pid = supervisor_pid()
        first.join(20)
        tell(first=out[0].status, told=told)
        """,
        bound=55,
    )
    print(json.dumps(got["told"], indent=1))
    assert got["told"] == {}
    assert got["first"] == "completed"
