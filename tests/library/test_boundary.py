# SPDX-License-Identifier: Apache-2.0
"""A boundary to keep: several commands in it, one end for all."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from asking import ask, shown_without_supervisor

from deadstop import Boundary, InvalidLimit, ToolResult, UsageError
from hosts import Host


def test_several_commands_with_exact_exits(host: Host) -> None:
    got = ask(
        host,
        """
        with Boundary() as b:
            ends = [b.run(["bash", "-c", text]) for text in (
                "exit 0", "exit 7", "exit 255", "kill -9 $$", "kill -TERM $$", "echo out; echo err >&2")]
            missing = b.run(["no-such-program"], env={"PATH": "/usr/bin:/bin"})
            after = b.run(["echo", "still here"])
        tell(ends=[[r.status, r.exit_code, r.signal] for r in ends], out=[ends[5].stdout.tail, ends[5].stderr.tail],
             missing=[missing.status, missing.start_errno], after=after.stdout.tail, where=after.environment,
             receipt=[b.receipt.proof, b.receipt.survivors, b.receipt.boundary], receipts=[r.receipt for r in ends])
        """,
    )
    assert got["ends"] == [
        ["completed", 0, None], ["completed", 7, None], ["completed", 255, None],
        ["signaled", None, 9], ["signaled", None, 15], ["completed", 0, None],
    ]  # fmt: skip
    assert got["out"] == ["out\n", "err\n"] and got["missing"] == ["error", 2]
    assert (got["after"], got["where"]) == ("still here\n", "the boundary lives on")
    assert got["receipt"] == [host.proof, 0, "process"] and got["receipts"] == [None] * 6


def test_exits_are_exact_in_a_sandbox_too(namespace_host: Host) -> None:
    got = ask(
        namespace_host,
        """
        with Boundary("sandbox", bind_cwd=False) as b:
            ends = [b.run(["bash", "-c", text]) for text in (
                "exit 0", "exit 7", "exit 255", "kill -9 $$", "kill -TERM $$")]
            missing = b.run(["no-such-program"], env={"PATH": "/usr/bin:/bin"})
        tell(ends=[[r.status, r.exit_code, r.signal] for r in ends], missing=[missing.status, missing.start_errno],
             receipt=[b.receipt.proof, b.receipt.survivors, b.receipt.boundary])
        """,
    )
    assert got["ends"] == [
        ["completed", 0, None], ["completed", 7, None], ["completed", 255, None],
        ["signaled", None, 9], ["signaled", None, 15],
    ]  # fmt: skip
    assert got["missing"] == ["error", 2]
    assert got["receipt"] == ["pid_namespace_reaped", 0, "sandbox"]


def test_files_of_a_sandbox_persist_between_commands_and_are_gone_after(namespace_host: Host) -> None:
    got = ask(
        namespace_host,
        """
        with Boundary("sandbox", bind_cwd=False) as b:
            b.run(["bash", "-c", "echo kept > ~/file; echo too > /tmp/file; mkdir -p ~/deep/er"], check=True)
            second = b.run(["bash", "-c", "cat ~/file /tmp/file; ls -d ~/deep/er; pwd"]).stdout.tail.split()
        with Boundary("sandbox", bind_cwd=False) as other:
            after = other.run(["bash", "-c", "ls -A ~ /tmp | grep -cE 'file|deep'"]).stdout.tail.strip()
        tell(second=second, after=after, host=os.path.exists("/tmp/file"))
        """,
    )
    assert got["second"] == ["kept", "too", "/home/agent/deep/er", "/home/agent"]
    assert (got["after"], got["host"]) == ("0", False)


@pytest.mark.parametrize("level", ["process", "sandbox"])
def test_background_processes_live_between_commands_and_die_with_it(namespace_host: Host, level: str) -> None:
    got = ask(
        namespace_host,
        """
        options = {"bind_cwd": False} if sys.argv[1] == "sandbox" else {}
        with Boundary(sys.argv[1], **options) as b:
            b.run(["bash", "-c", "setsid sleep 40 >/dev/null 2>&1 & echo $! > ${TMPDIR:-/tmp}/pid-$MARKER"],
                env={**MARKED, "MARKER": MARK[13:]})
            first = marked()
            seen = b.run(["bash", "-c",
                "kill -0 $(cat ${TMPDIR:-/tmp}/pid-$MARKER) && echo alive; rm ${TMPDIR:-/tmp}/pid-$MARKER"],
                         env={"MARKER": MARK[13:]}).stdout.tail
            second = marked()
        tell(first=len(first), seen=seen, same=first == second, left=marked(), survivors=b.receipt.survivors)
        """,
        level,
    )
    assert got == {"first": 1, "seen": "alive\n", "same": True, "left": [], "survivors": 0}


def test_background_processes_without_namespaces(host: Host) -> None:
    got = ask(
        host,
        """
        with Boundary() as b:
            b.run(["bash", "-c", "(setsid sleep 40 >/dev/null 2>&1 &) ; sleep 40 & exit 0"], env=MARKED)
            b.run(["true"])
            between = len(marked())
        tell(between=between, left=marked(), survivors=b.receipt.survivors, proof=b.receipt.proof)
        """,
    )
    assert got == {"between": 2, "left": [], "survivors": 0, "proof": host.proof}


def test_a_command_with_a_background_process_that_holds_its_pipe_ends_with_its_leader(host: Host) -> None:
    got = ask(
        host,
        """
        with Boundary() as b:
            began = time.monotonic()
            r = b.run(["bash", "-c", "sleep 40 & echo said"], timeout=20)
            tell(took=time.monotonic() - began, status=r.status, out=r.stdout.tail)
        """,
    )
    assert (got["status"], got["out"]) == ("completed", "said\n") and got["took"] < 1


def test_two_commands_at_once(host: Host) -> None:
    got = ask(
        host,
        """
        with Boundary() as b:
            began = time.monotonic()
            threads = [in_thread(b.run, ["bash", "-c", f"sleep 0.5; echo {n}; exit {n}"]) for n in range(4)]
            [t.join(20) for t, _ in threads]
            took = time.monotonic() - began
            async def both():
                return await asyncio.gather(*(b.run_async(["bash", "-c", f"sleep 0.2; echo a{n}"]) for n in range(4)))
            later = [r.stdout.tail for r in asyncio.run(both())]
        tell(took=took, ends=[[o[0].exit_code, o[0].stdout.tail] for _, o in threads], later=later)
        """,
    )
    assert got["ends"] == [[n, f"{n}\n"] for n in range(4)]
    assert got["later"] == [f"a{n}\n" for n in range(4)]
    assert got["took"] < 1.7


def test_a_command_that_times_out_ends_the_boundary(host: Host) -> None:
    got = ask(
        host,
        """
        b = Boundary()
        b.run(["bash", "-c", "setsid sleep 40 & exit 0"], env=MARKED)
        other, out = in_thread(b.run, ["sleep", "30"], env=MARKED)
        until(lambda: len(marked()) == 2)
        r = b.run(["bash", "-c", "trap '' TERM; while :; do sleep 1; done"], timeout=0.5, grace=0.1, env=MARKED)
        left = marked()
        other.join(5)
        refused = b.run(["true"])
        receipt = b.kill()
        tell(status=r.status, left=left, proof=r.receipt.proof, survivors=r.receipt.survivors,
             other=[out[0].status, out[0].reason], refused=[refused.status, refused.reason, refused.error["message"]],
             kill=[receipt.proof, receipt.survivors])
        """,
    )
    assert got["left"] == []
    assert (got["status"], got["proof"], got["survivors"]) == ("timeout", host.proof, 0)
    assert got["other"] == ["cancelled", "shutdown"]
    assert got["refused"][0] == "refused" and "ended" in got["refused"][2]
    assert got["kill"] == [host.proof, 0]


@pytest.mark.parametrize("level", ["process", "sandbox"])
def test_kill_is_idempotent_and_nothing_runs_after_it(namespace_host: Host, level: str) -> None:
    got = ask(
        namespace_host,
        """
        os.mkdir("k" + sys.argv[1]); os.chdir("k" + sys.argv[1])
        b = Boundary(sys.argv[1])
        first = b.kill()
        refused = b.run(["touch", "never"])
        async def later():
            return await b.run_async(["touch", "never"])
        tell(same=b.kill() == first, receipt=[first.proof, first.survivors], refused=refused.status,
             later=asyncio.run(later()).status, environment=refused.environment, touched=os.path.exists("never"))
        """,
        level,
    )
    assert got == {
        "same": True, "receipt": ["pid_namespace_reaped", 0], "refused": "refused", "later": "refused",
        "environment": "nothing was started", "touched": False,
    }  # fmt: skip


def test_kill_while_commands_run(host: Host) -> None:
    got = ask(
        host,
        """
        b = Boundary()
        running = [in_thread(b.run, ["bash", "-c", "trap '' TERM; setsid sleep 30 & while :; do sleep 1; done"],
            env=MARKED) for _ in range(3)]
        until(lambda: len(marked()) >= 6)
        began = time.monotonic()
        receipt = b.kill()
        left, took = marked(), time.monotonic() - began
        [t.join(5) for t, _ in running]
        tell(left=left, took=took, survivors=receipt.survivors, ends=[[o[0].status, o[0].reason] for _, o in running])
        """,
    )
    assert got["left"] == [] and got["survivors"] == 0 and got["took"] < 1
    assert got["ends"] == [["cancelled", "shutdown"]] * 3


def test_an_exception_in_the_block_ends_it(host: Host) -> None:
    got = ask(
        host,
        """
        try:
            with Boundary() as b:
                b.run(["bash", "-c", "setsid sleep 40 & exit 0"], env=MARKED)
                raise LookupError
        except LookupError:
            tell(left=marked(), survivors=b.receipt.survivors)
        """,
    )
    assert got == {"left": [], "survivors": 0}


def test_a_cancelled_command_ends_the_boundary(host: Host) -> None:
    got = ask(
        host,
        """
        b, token = Boundary(), CancelToken()
        threading.Timer(0.3, token.set).start()
        r = b.run(["sleep", "30"], cancel=token, env=MARKED)
        tell(status=r.status, left=marked(), after=b.run(["true"]).status, proof=b.kill().proof)
        """,
    )
    assert got == {"status": "cancelled", "left": [], "after": "refused", "proof": host.proof}


def test_words_larger_than_a_socket_buffer_arrive_whole() -> None:
    """A frame of a few megabytes does not fit the socket: it must be sent to its end, not torn."""
    words = ["x" * 130_000] * 12
    with Boundary() as boundary:
        result = boundary.run(["bash", "-c", 'echo "${#1} $#"', "sh", *words], timeout=5)
        again = boundary.run(["echo", "next"], timeout=5)
    assert (result.status, result.stdout.tail) == ("completed", "130000 12\n")
    assert again.stdout.tail == "next\n"


def test_large_commands_from_many_threads_do_not_mix() -> None:
    results: dict[int, ToolResult] = {}
    with Boundary() as boundary:

        def one(number: int) -> None:
            words = [str(number) * 100_000] * 6
            results[number] = boundary.run(["bash", "-c", 'echo "$1" | cut -c1; echo $#', "sh", *words], timeout=8)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert {number: result.stdout.tail.split() for number, result in results.items()} == {
        number: [str(number), "6"] for number in range(8)
    }


def test_stdin_output_and_deadline_as_for_run() -> None:
    chunks: list[bytes] = []
    with Boundary() as boundary:
        result = boundary.run(["cat"], stdin=b"x" * 1_000_000, on_output=lambda _, data: chunks.append(data))
        assert len(b"".join(chunks)) == result.stdout.bytes_total == 1_000_000
        began = time.monotonic()
        assert boundary.run(["sleep", "5"], timeout=0.3, grace=0).status == "timeout"
        assert time.monotonic() - began < 1


def test_cancelling_a_task_inside_kills_and_waits(host: Host) -> None:
    got = ask(
        host,
        """
        async def main():
            with Boundary() as b:
                task = asyncio.create_task(b.run_async(["bash", "-c", "trap '' TERM; sleep 30; :"], env=MARKED,
                                                       grace=3))
                while not marked():
                    await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.wait([task])
                return dict(cancelled=task.cancelled(), left=marked())
        tell(**asyncio.run(main()))
        """,
    )
    assert got == {"cancelled": True, "left": []}


def test_a_boundary_whose_supervisor_was_killed(host: Host) -> None:
    """It dies with it; leaving the block must not hide the caller's own work behind an error."""
    got = ask(
        host,
        """
        with Boundary() as b:
            b.run(["bash", "-c", "setsid sleep 40 & exit 0"], env=MARKED)
            os.kill(supervisor_pid(), signal.SIGKILL)
            began = time.monotonic()
            until(lambda: not marked(), within=3)
            r = b.run(["true"], timeout=5)
            took = time.monotonic() - began
            receipt = b.kill()
        tell(status=r.status, took=took, left=marked(), shown=[receipt.proof, receipt.survivors],
             again=b.kill() == receipt, next=run(["echo", "n"]).stdout.tail)
        """,
    )
    assert got["left"] == [] and got["status"] in ("refused", "unknown") and got["took"] < 3
    assert tuple(got["shown"]) == shown_without_supervisor(host)
    assert got["again"] and got["next"] == "n\n"


def test_limits_of_a_boundary_hold_for_all_inside(host: Host) -> None:
    got = ask(
        host,
        """
        with Boundary(pids=30) as b:
            r = b.run(["bash", "-c", "for i in $(seq 60); do sleep 5 & done 2>/dev/null; jobs -p | wc -l"], timeout=10)
            tell(out=r.stdout.tail, limits={k: [v.value, v.enforced_by] for k, v in r.limits.items()})
        """,
    )
    assert got["limits"]["pids"][0] == 30


@pytest.mark.parametrize(
    "options", [{"memory": 0}, {"pids": -1}, {"cpus": float("nan")}, {"disk": "1G"}, {"net": True}, {"bind": ["/x"]}]
)
def test_bad_options_of_a_boundary_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Boundary("process", **options)


@pytest.mark.parametrize("options", [{"timeout": 5}, {"idle_timeout": 1}, {"output_limit": 10}, {"env": {"A": "1"}}])
def test_an_option_that_would_have_no_meaning_for_a_boundary_is_refused(options: dict[str, object]) -> None:
    """A limit that is taken and then not kept is worse than none."""
    with pytest.raises((UsageError, TypeError), match=next(iter(options))):
        Boundary("process", **options).kill()


@pytest.mark.parametrize("options", [{"memory": 1 << 30}, {"pids": 5}, {"net": True}, {"isolation": "sandbox"}])
def test_an_option_that_would_have_no_meaning_for_a_command_inside_is_refused(options: dict[str, object]) -> None:
    with Boundary() as boundary, pytest.raises((UsageError, TypeError), match=next(iter(options))):
        boundary.run(["true"], **options)


def test_a_bad_limit_of_a_command_leaves_the_boundary_alone() -> None:
    with Boundary() as boundary:
        with pytest.raises(InvalidLimit):
            boundary.run(["true"], timeout=-1)
        assert boundary.run(["echo", "alive"]).stdout.tail == "alive\n"


def test_run_async_in_a_loop_while_another_thread_uses_it() -> None:
    with Boundary() as boundary:
        outs: list[str] = []
        thread = threading.Thread(
            target=lambda: outs.extend(boundary.run(["echo", "t"]).stdout.tail for _ in range(20))
        )
        thread.start()

        async def main() -> list[str]:
            return [(await boundary.run_async(["echo", "a"])).stdout.tail for _ in range(20)]

        mine = asyncio.run(main())
        thread.join(20)
    assert (mine, outs) == (["a\n"] * 20, ["t\n"] * 20)


def test_fifty_opened_and_closed_leave_nothing(host: Host) -> None:
    got = ask(
        host,
        """
        def groups():
            import glob
            name = f"deadstop-{supervisor_pid()}-*"
            return {path for depth in range(1, 6) for path in glob.glob("/sys/fs/cgroup/" + "*/" * depth + name)}
        def mounts():
            return open("/proc/self/mountinfo").read().count("\\n")
        def folders():
            others = ("deadstop-test", "deadstop-planted")
            return {n for n in os.listdir("/tmp") if "deadstop" in n and not n.startswith(others)}
        run(["true"])
        before = (groups(), mounts(), folders(), fds(), fds(supervisor_pid()))
        sandbox = len(sys.argv) > 1
        for number in range(50):
            if sandbox and number % 10 == 0:
                with Boundary("sandbox", bind_cwd=False) as b:
                    b.run(["true"], check=True)
            else:
                with Boundary() as b:
                    b.run(["bash", "-c", "sleep 40 & exit 0"], check=True)
        until(lambda: not groups(), within=2)
        until(lambda: fds(supervisor_pid()) <= before[4] + 1, within=2)
        tell(groups=sorted(groups() - before[0]), mounts=mounts() - before[1],
            folders=sorted(folders() - before[2]), fds=fds() - before[3],
             zombies=[pid for pid in children() if state(pid) == "Z"])
        """,
        *(["sandbox"] if host.namespaces else []),
    )
    assert got == {"groups": [], "mounts": 0, "folders": [], "fds": 0, "zombies": []}
