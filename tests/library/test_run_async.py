# SPDX-License-Identifier: Apache-2.0
"""`deadstop.run_async`: the same engine in an event loop. Cancelling a task kills, and waits for the proof."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from asking import ask

import deadstop
from deadstop import CancelToken, ToolResult, ToolTimeoutError, run_async
from hosts import Host

# Of one kind with namespaces and one without; tests/cases and tests/library/test_supervisor_life.py have them all.
HOSTS = ("user", "no-userns-no-cgroup")


@asynccontextmanager
async def heartbeat() -> AsyncIterator[list[float]]:
    """How long the loop was kept from running, at most, while the block ran: [seconds]."""
    worst = [0.0]

    async def beat() -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            worst[0], before = max(worst[0], now - before - 0.01), now

    task = asyncio.create_task(beat())
    yield worst
    task.cancel()


def test_a_command_completes(host: Host) -> None:
    got = ask(
        host,
        """
        async def main():
            r = await run_async(["bash", "-c", "cat; echo err >&2; exit 3"], stdin="in")
            return dict(status=r.status, code=r.exit_code, out=r.stdout.tail, err=r.stderr.tail)
        tell(**asyncio.run(main()))
        """,
    )
    assert got == {"status": "completed", "code": 3, "out": "in", "err": "err\n"}


def test_gather_of_twenty(host: Host) -> None:
    got = ask(
        host,
        """
        async def main():
            await run_async(["true"])
            began = time.monotonic()
            commands = [["bash", "-c", f"sleep 0.3; echo {n}; exit {n}"] for n in range(20)]
            results = await asyncio.gather(*(run_async(c) for c in commands))
            return dict(took=time.monotonic() - began, codes=[r.exit_code for r in results],
                        outs=[r.stdout.tail.strip() for r in results])
        tell(**asyncio.run(main()))
        """,
    )
    assert got["codes"] == list(range(20)) and got["outs"] == [str(n) for n in range(20)]
    assert got["took"] < 4  # 6 s one after another


def test_cancelling_the_task_kills_and_waits(host: Host) -> None:
    got = ask(
        host,
        """
        async def main():
            hostile = ("trap '' TERM; setsid bash -c 'trap \\\"\\\" TERM; sleep 30; :' & (sleep 30 &) ; "
                       "while :; do sleep 1; done")
            tasks = [asyncio.create_task(run_async(["bash", "-c", hostile], env=MARKED, grace=5)) for _ in range(5)]
            while len(marked()) < 15:
                await asyncio.sleep(0.01)
            began, left = time.monotonic(), []
            for task in tasks:
                task.cancel()
                try:
                    await task
                    left.append("not cancelled")
                except asyncio.CancelledError:
                    pass
            left += marked()   # right after the last await
            took = time.monotonic() - began
            one = asyncio.create_task(run_async(["sleep", "30"], env=MARKED))
            while not marked():
                await asyncio.sleep(0.01)
            one.cancel()
            await asyncio.wait([one])
            return dict(took=took, left=left, alone=marked(), state=one.cancelled(),
                        next=(await run_async(["echo", "n"])).stdout.tail)
        tell(**asyncio.run(main()))
        """,
    )
    assert (got["left"], got["alone"]) == ([], [])
    assert got["state"] is True and got["next"] == "n\n"
    assert got["took"] < 2


def test_a_task_cancelled_at_once_starts_or_leaves_nothing(host: Host) -> None:
    got = ask(
        host,
        """
        async def main():
            for pause in (None, 0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.03):
                task = asyncio.create_task(run_async(["sleep", "30"], env=MARKED))
                if pause is not None:
                    await asyncio.sleep(pause)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled(), task
                if left := marked():
                    return dict(pause=pause, left=left)
            return dict(left=[])
        tell(**asyncio.run(main()))
        """,
    )
    assert got == {"left": []}


def test_asyncio_timeout_around_it(host: Host) -> None:
    got = ask(
        host,
        """
        async def main():
            began = time.monotonic()
            try:
                async with asyncio.timeout(0.4):
                    await run_async(["bash", "-c", "sleep 30 & setsid sleep 30 & wait"], env=MARKED)
            except TimeoutError:
                return dict(took=time.monotonic() - began, left=marked())
        tell(**asyncio.run(main()))
        """,
    )
    assert got["left"] == [] and 0.4 <= got["took"] < 1.0


def test_a_task_group_that_fails_ends_its_commands(host: Host) -> None:
    got = ask(
        host,
        """
        async def fail():
            while len(marked()) < 3:
                await asyncio.sleep(0.01)
            raise LookupError
        async def main():
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(3):
                        group.create_task(run_async(["sleep", "30"], env=MARKED))
                    group.create_task(fail())
            except* LookupError:
                pass
            return dict(left=marked())
        tell(**asyncio.run(main()))
        """,
    )
    assert got["left"] == []


def test_the_loop_may_be_closed_right_after(host: Host) -> None:
    """With a call in flight and with one that has just ended; a new loop then works."""
    got = ask(
        host,
        """
        out = asyncio.run(run_async(["echo", "one"])).stdout.tail
        async def leave():
            asyncio.create_task(run_async(["sleep", "30"], env=MARKED)).add_done_callback(lambda t: t)
            while not marked():
                await asyncio.sleep(0.01)
        asyncio.run(leave())     # asyncio.run cancels what is left and waits for it
        left = marked()
        loop = asyncio.new_event_loop()
        task = loop.create_task(run_async(["sleep", "30"], env=MARKED))
        loop.run_until_complete(asyncio.sleep(0.3))
        assert marked()
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        loop.close()
        tell(out=out, left=left, later=marked(), again=asyncio.run(run_async(["echo", "two"])).stdout.tail)
        """,
    )
    assert got == {"out": "one\n", "left": [], "later": [], "again": "two\n"}


def test_a_loop_thrown_away_with_a_call_in_flight_leaves_nothing(host: Host) -> None:
    got = ask(
        host,
        """
        import gc, warnings
        warnings.simplefilter("ignore")
        def throw():
            loop = asyncio.new_event_loop()
            task = loop.create_task(run_async(["sleep", "30"], env=MARKED))
            loop.run_until_complete(asyncio.sleep(0.3))
            assert marked()
            loop.close()
        throw(); gc.collect()
        tell(next=run(["echo", "n"]).stdout.tail)
        """,
    )
    assert got["next"] == "n\n"


def test_check_raises() -> None:
    with pytest.raises(ToolTimeoutError) as caught:
        asyncio.run(run_async(["sleep", "5"], timeout=0.2, grace=0, check=True))
    assert caught.value.result is not None and caught.value.result.status == "timeout"


def test_a_timeout_of_its_own_keeps_the_loop_free() -> None:
    async def main() -> tuple[ToolResult, float]:
        async with heartbeat() as worst:
            result = await run_async(["bash", "-c", "trap '' TERM; sleep 30; sleep 30"], timeout=0.4, grace=0.2)
        return result, worst[0]

    result, worst = asyncio.run(main())
    assert result.status == "timeout" and result.receipt and result.receipt.survivors == 0
    assert worst < 0.2


def test_the_first_call_does_not_hold_up_the_loop_for_long(one_host: Host) -> None:
    """It starts the supervisor: an interpreter's start, not more."""
    got = ask(
        one_host,
        """
        async def main():
            gaps = []
            async def beat():
                before = time.monotonic()
                while True:
                    await asyncio.sleep(0.005)
                    gaps.append(time.monotonic() - before); before = time.monotonic()
            task = asyncio.create_task(beat())
            await asyncio.sleep(0.05)
            await run_async(["true"])
            task.cancel()
            return max(gaps)
        tell(worst=asyncio.run(main()))
        """,
    )
    assert got["worst"] < 0.5


def test_on_output_in_order_and_completely_in_the_loops_thread() -> None:
    chunks: list[bytes] = []

    async def main() -> ToolResult:
        return await run_async(["seq", "1", "100000"], tail=100, on_output=lambda _, data: chunks.append(data))

    result = asyncio.run(main())
    assert b"".join(chunks) == b"".join(b"%d\n" % number for number in range(1, 100001))
    assert result.stdout.bytes_total == len(b"".join(chunks))


def test_an_error_in_on_output_is_raised_and_ends_the_command() -> None:
    def fail(stream: str, data: bytes) -> None:
        raise LookupError(stream)

    async def main() -> float:
        began = time.monotonic()
        with pytest.raises(LookupError, match="stdout"):
            await asyncio.wait_for(run_async(["bash", "-c", "echo up; sleep 5"], on_output=fail), 3)
        return time.monotonic() - began

    assert asyncio.run(main()) < 2


def test_ten_megabytes_on_stdin() -> None:
    data = bytes(range(256)) * 40960

    async def main() -> ToolResult:
        return await run_async(["sha256sum"], stdin=data)

    assert asyncio.run(main()).stdout.tail.split()[0] == hashlib.sha256(data).hexdigest()


def test_a_token_ends_it() -> None:
    async def main() -> list[ToolResult]:
        before, during = CancelToken(), CancelToken()
        before.set()
        asyncio.get_running_loop().call_later(0.2, during.set)
        return list(
            await asyncio.gather(
                run_async(["sleep", "5"], cancel=before), run_async(["sleep", "5"], cancel=during, grace=0)
            )
        )

    first, second = asyncio.run(main())
    assert (first.status, first.environment) == ("cancelled", "nothing was started")
    assert (second.status, second.reason) == ("cancelled", "caller")


def test_one_token_ends_every_call_that_holds_it() -> None:
    async def main() -> list[ToolResult]:
        token = CancelToken()
        asyncio.get_running_loop().call_later(0.4, token.set)
        calls = [run_async(["sleep", "4"], cancel=token, grace=0, timeout=3) for _ in range(5)]
        return list(await asyncio.gather(*calls))

    began = time.monotonic()
    assert [result.status for result in asyncio.run(main())] == ["cancelled"] * 5
    assert time.monotonic() - began < 2


def test_a_call_that_ends_does_not_take_the_token_from_another() -> None:
    async def main() -> ToolResult:
        token = CancelToken()
        long = asyncio.create_task(run_async(["sleep", "4"], cancel=token, grace=0, timeout=3))
        await run_async(["true"], cancel=token)
        token.set()
        return await long

    assert asyncio.run(main()).status == "cancelled"


def test_a_deadline_block_reaches_the_tasks_made_in_it() -> None:
    async def main() -> list[ToolResult]:
        with deadstop.deadline(0.4):
            return list(await asyncio.gather(*(run_async(["sleep", "5"], grace=0) for _ in range(3))))

    results = asyncio.run(main())
    assert [(r.status, r.limit.which if r.limit else None) for r in results] == [("timeout", "parent")] * 3


def test_a_second_cancellation_does_not_leave_a_command_behind(host: Host) -> None:
    got = ask(
        host,
        """
        async def main():
            task = asyncio.create_task(run_async(["bash", "-c", "trap '' TERM; sleep 30; :"], env=MARKED, grace=5))
            while not marked():
                await asyncio.sleep(0.01)
            task.cancel(); await asyncio.sleep(0); task.cancel()
            await asyncio.wait([task])
            until(lambda: not marked(), within=2)
            return task.cancelled()
        tell(cancelled=asyncio.run(main()))
        """,
    )
    assert got["cancelled"] is True


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="time_out"):
        asyncio.run(run_async(["true"], time_out=3))
