# SPDX-License-Identifier: Apache-2.0
"""What a tool sees and may do: its context, its deadline, calls of its own, async code, messages."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys
import threading
import time

import tools
from telling import Leash, at_once, hold, main, section, seen, timed, until, waits

import deadstop
from deadstop import Call, call, call_async

OF_MAIN = contextvars.ContextVar("OF_MAIN", default="nobody's")
UNSENDABLE = contextvars.ContextVar("UNSENDABLE", default=None)


def reads_of_main():
    return OF_MAIN.get()


def sets_it():
    tools.HOUSE.set("the tool's")
    return tools.HOUSE.get()


@section
def context():
    found = [call(tools.sees).value["house"]]
    tools.HOUSE.set("the caller's")
    OF_MAIN.set("main's")
    UNSENDABLE.set(threading.Lock())
    found.append(call(tools.sees).value["house"])
    other = contextvars.Context()
    other.run(tools.HOUSE.set, "another's")
    found += [other.run(call, tools.sees).value["house"], call(sets_it).value, call(tools.sees).value["house"]]

    def in_thread():
        tools.HOUSE.set(threading.current_thread().name)
        return call(tools.sees).value["house"] == threading.current_thread().name

    return {"module": found, "main": call(reads_of_main).value, "threads": at_once(*[in_thread] * 8),
            "nested": call(_nested_context).value}  # fmt: skip


def _nested_context():
    tools.HOUSE.set("inner")
    return [tools.HOUSE.get(), call(tools.sees).value["house"]]


@section
def surroundings():
    folder = os.path.join(os.environ["TMPDIR"], "elsewhere")
    os.makedirs(folder, exist_ok=True)
    before_cwd, before = os.getcwd(), call(tools.sees).value
    os.environ["SEEN_BY_TOOLS"] = "yes"
    os.chdir(folder)
    sys.path.insert(0, folder)
    during = call(tools.sees).value
    several = at_once(*[lambda: call(tools.sees).value for _ in range(6)])
    del os.environ["SEEN_BY_TOOLS"]
    os.chdir(before_cwd)
    sys.path.remove(folder)
    after = call(tools.sees).value
    # What a tool changes is its own, and the next call begins with what the caller has.
    call(_changes_all)
    untouched = call(tools.sees).value
    return {
        "before": [before["env"], before["cwd"] == before_cwd], "during": [during["env"], during["cwd"] == folder,
        during["path"] == folder],
        "several": all(one["env"] == "yes" and one["cwd"] == folder for one in several),
        "after": [after["env"], after["cwd"] == before_cwd, after["path"] == before["path"]],
        "untouched": [untouched["env"], untouched["cwd"] == before_cwd, untouched["path"] == before["path"]],
    }  # fmt: skip


def _changes_all():
    os.environ["SEEN_BY_TOOLS"] = "the tool's"
    os.chdir("/")
    sys.path.insert(0, "/nowhere")


@section
def deadline():
    left = call(Call(tools.sees).options(timeout=2)).value["left"]
    unlimited = call(Call(tools.sees).options(timeout=None)).value["left"]
    with deadstop.deadline(0.8):
        block = call(Call(tools.sees).options(timeout=5)).value["left"]
    inline = call(Call(tools.sees).options(timeout=2, isolation="inline")).value["left"]
    return {"left": left, "unlimited": unlimited, "block": block, "inline": inline, "outside": deadstop.remaining()}


def _hang_inside(leash):
    own = hold(leash)
    result = call(Call(tools.hang, leash).options(timeout=60))
    os.close(own)  # this worker lives on, for later calls
    return result.to_dict()


@waits
def nested_calls():
    """An inner call is clamped: it ends before its outer one, which still says how."""
    leash = Leash()
    got = at_once(
        lambda: timed(lambda: call(Call(_hang_inside, leash.path).options(timeout=1.5))),
        lambda: timed(lambda: call(Call(tools.calls_inside, 0.05, 5).options(timeout=3))),
        lambda: timed(lambda: call(Call(tools.calls_inside, 20, 0.2).options(timeout=3))),
        lambda: timed(lambda: call(Call(tools.runs_inside, 30, 60).options(timeout=1.5))),
        lambda: timed(lambda: call(Call(tools.runs_inside, 0.05, 60).options(timeout=3))),
        lambda: timed(lambda: call(Call(tools.nested, 3).options(timeout=8))),
    )  # fmt: skip
    names = ("clamped", "short", "inner_limit", "run_clamped", "run_short", "deep")
    until(lambda: leash.state() != "held", 3)  # on a busy machine the inner call may not have begun in time
    return {name: seen(result, elapsed=elapsed) for name, (result, elapsed) in zip(names, got, strict=True)}


def _swallows(leash):
    hold(leash)
    call(Call(tools.hang, leash).options(timeout=60))
    time.sleep(30)


@waits
def nested_killed():
    """The outer call is killed while an inner one runs."""
    leash, inner = Leash(), []
    token = deadstop.CancelToken()

    def strike():
        until(lambda: leash.state() == "held")
        time.sleep(0.4)
        token.set()

    threading.Thread(target=strike).start()
    result, elapsed = timed(lambda: call(Call(_swallows, leash.path).options(timeout=20, cancel=token)))
    state = leash.state()
    until(lambda: leash.state() == "let go", 3)
    return {"result": seen(result, elapsed=elapsed), "at_once": state, "inner": inner}


@section
def async_tools():
    out = {
        "value": call(tools.async_plus, 1, other=5).value,
        "same_loop": call(tools.async_loop_id).value[1:] == call(tools.async_loop_id).value[1:],
        "thread": seen(call(tools.async_in_thread)), "after_thread": call(tools.async_in_thread).value,
        "raises": seen(call(_async_raises)), "cancels_itself": seen(call(_async_cancels)),
        "next": call(tools.async_plus, 1).value,
    }  # fmt: skip
    path = os.path.join(os.environ["TMPDIR"], "left-task")
    out["leaves"] = seen(call(tools.async_leaves_task, path))
    time.sleep(0.4)
    call(tools.async_nap, 0.01)
    out["left_ran"] = os.path.exists(path)

    async def awaits():
        begun = time.monotonic()
        blocked = asyncio.create_task(call_async(Call(tools.async_blocking, 5).options(timeout=0.6)))
        await asyncio.sleep(0)
        quick = await call_async(tools.async_nap, 0.05)
        quick_s = time.monotonic() - begun
        return {"quick": quick.value, "quick_s": quick_s, "blocked": seen(await blocked)}

    out["beside"] = asyncio.run(awaits())
    return out


@deadstop.tool(timeout=5)
async def of_main_async(one):
    await asyncio.sleep(0)
    return one + 1


@section
def async_decorated():
    async def awaits():
        return [await of_main_async(4), (await of_main_async.call_async(5)).value, of_main_async.call(6).value]

    return asyncio.run(awaits())


@section
def async_decorated_importable():
    """With an outer deadline: a tool that calls itself in its worker would go on until its limit."""

    async def awaits():
        return await tools.async_tool.with_options(timeout=0.5)(4)

    return asyncio.run(awaits())


async def _async_raises():
    await asyncio.sleep(0)
    raise ValueError("in a coroutine")


async def _async_cancels():
    raise asyncio.CancelledError("by itself")


@section
def loop_stays_free():
    """How late the caller's own loop is while calls hang, crash, spin and carry much data."""

    async def body():
        late, stop = [], asyncio.Event()

        async def beat():
            while not stop.is_set():
                begun = time.monotonic()
                await asyncio.sleep(0.005)
                late.append(time.monotonic() - begun - 0.005)

        await call_async(tools.plus, 1)
        heart = asyncio.create_task(beat())
        got = await asyncio.gather(
            call_async(Call(tools.hang).options(timeout=0.5)), call_async(Call(_spin).options(timeout=0.5)),
            call_async(tools.segfault), call_async(tools.sleep, 0.3, 1), call_async(tools.make, 100_000),
            *[call_async(tools.plus, number) for number in range(30)],
        )  # fmt: skip
        stop.set()
        await heart
        late.sort()
        return {"worst_s": late[-1], "median_s": late[len(late) // 2], "statuses": [one.status for one in got[:5]],
                "values": [one.value for one in got[5:]]}  # fmt: skip

    return asyncio.run(body())


def _spin():
    while True:
        pass


@section
def from_a_running_loop():
    async def body():
        blocking, elapsed = timed(lambda: call(Call(tools.hang).options(timeout=0.2)))
        return {"timeout": seen(blocking, elapsed=elapsed), "value": call(tools.plus, 1).value,
                "async_tool": call(tools.async_plus, 1).value,
                "inline": call(Call(tools.async_plus, 1).options(isolation="inline")).value,
                "inline_async": (await call_async(Call(tools.async_plus, 1).options(isolation="inline"))).value,
                "batch": [one.value for one in deadstop.batch([Call(tools.plus, 1), Call(tools.async_plus, 2)],
                parallel=2)]}  # fmt: skip

    return asyncio.run(body())


@section
def messages():
    heard = []
    result = call(Call(tools.reports, 3).options(on_progress=lambda message: heard.append(message.text)))
    inline_heard = []
    inline = call(
        Call(tools.reports, 3).options(
            isolation="inline", on_progress=lambda message: inline_heard.append(message.text)
        )
    )
    late = []
    over = call(
        Call(tools.reports_for_ever).options(timeout=0.3, on_progress=lambda message: late.append(message.text))
    )
    at_result = len(late)
    time.sleep(0.2)
    hung = call(Call(tools.reports, 2, hang_after=True).options(timeout=0.3))
    before = call(tools.plus, 1)
    raising = []
    try:
        call(Call(tools.reports, 3).options(on_progress=_raises))
    except KeyError as problem:
        raising.append(repr(problem))
    many = call(tools.reports, 1500)
    deadstop.progress("outside a call: nobody hears it")

    async def awaits():
        heard_async = []
        got = await call_async(
            Call(tools.reports, 2).options(on_progress=lambda message: heard_async.append(message.text))
        )
        return [heard_async, len(got.progress)]

    return {
        "heard": heard, "kept": seen(result), "inline": [inline_heard, [message.text for message in inline.progress]],
        "over": over.status, "after_result": len(late) - at_result, "late_kept": len(over.progress),
        "late_heard": at_result,
        "hung": seen(hung), "before": len(before.progress), "raising": raising, "after_raising": call(tools.plus,
        1).value,
        "many": [many.value, len(many.progress), many.progress[-1].text], "async": asyncio.run(awaits()),
    }  # fmt: skip


def _raises(message):
    raise KeyError(message.text)


@section
def deferred():
    result = call(tools.defers)
    early = []
    deadstop.deferred.on_resolved(result.deferred, early.append)
    pending = deadstop.deferred.is_pending(result.deferred)
    first = deadstop.deferred.resolve(result.deferred, {"the": "value"})
    second = deadstop.deferred.resolve(result.deferred, "another")
    return {
        "result": seen(result), "pending": pending, "resolved": [first, second], "called": early,
        "waited": deadstop.deferred.wait(result.deferred, 1), "still": deadstop.deferred.is_pending(result.deferred),
        "unwrap": result.unwrap(),
    }  # fmt: skip


@section
def kept_worker():
    from deadstop.executor.kept import KeptWorker

    leash = Leash()
    with KeptWorker(deadstop.tool(tools.plus)) as kept:
        pids = {kept.call(tools.own_pid).value for _ in range(3)}
        counted = [kept.call(_count).value for _ in range(3)]
        kept.call(tools.with_subprocess, leash.path, "done")
        held = leash.state()
        generation = kept.generation
        ended = kept.run(Call(tools.hang).options(timeout=0.2))
        gone = leash.state()
        new = [kept.call(_count).value, kept.generation]
    try:
        kept.call(tools.plus, 1)
    except deadstop.UsageError as problem:
        closed = str(problem)
    return {"pids": len(pids), "counted": counted, "held": held, "generation": generation, "ended": seen(ended),
    "gone": gone,
            "new": new, "closed": closed}  # fmt: skip


def _count():
    tools.COUNT[0] += 1
    return tools.COUNT[0]


@section
def signals_of_the_caller():
    """A caller that ignores SIGCHLD, or has a handler for an alarm, changes nothing."""
    heard = []
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        slept, elapsed = timed(lambda: call(tools.sleep, 0.2, "slept"))
        hung, hung_s = timed(lambda: call(Call(tools.hang).options(timeout=0.3)))
        crashed = call(tools.leave, 3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return {
        "slept": [slept.value, elapsed],
        "hung": seen(hung, elapsed=hung_s),
        "crashed": seen(crashed),
        "heard": len(heard),
    }


if __name__ == "__main__":
    main()
