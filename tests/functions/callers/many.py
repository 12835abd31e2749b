# SPDX-License-Identifier: Apache-2.0
"""Cancelling, batches and races."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import tools
from telling import Leash, last, main, section, seen, threads_of_ours, timed, until, waits

import deadstop
from deadstop import Call, CancelToken, UsageError, batch, batch_async, call, call_async, race, race_async

pure = deadstop.tool(tools.sleep, effect="none", timeout=5)
hangs = deadstop.tool(tools.hang, effect="none", timeout=5)


def refusal(function, *args, **kwargs):
    try:
        result = function(*args, **kwargs)
    except UsageError as problem:
        return [type(problem).__name__, str(problem)]
    return ["none", repr(result)[:300]]


# -- tokens ------------------------------------------------------------------------------------------------------------


class Shaped:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def _fails():
    raise RuntimeError("the token is broken")


async def _coroutine():
    return False


def later(seconds):
    """A foreign token that is set after a while."""
    end = time.monotonic() + seconds
    return Shaped(is_set=lambda: time.monotonic() > end)


@section
def tokens():
    event, unset = threading.Event(), threading.Event()
    event.set()
    ours = CancelToken()
    ours.set()
    shapes = {
        "event": event, "unset_event": unset, "ours": ours, "attribute": Shaped(cancelled=True),
        "false": Shaped(cancelled=False),
        "cancelled_call": Shaped(cancelled=lambda: True), "is_cancelled": Shaped(is_cancelled=lambda: 1),
        "second_says_yes": Shaped(is_set=lambda: False, cancelled=True), "none_first": Shaped(is_set=None,
        cancelled=True),
        "raises": Shaped(is_set=_fails), "needs_argument": Shaped(is_set=lambda one: False),
        "coroutine": Shaped(is_cancelled=_coroutine),
        "asyncio_event": asyncio.Event(), "empty_answer": Shaped(is_set=lambda: ""),
    }  # fmt: skip
    path = os.path.join(os.environ["TMPDIR"], "token-effect")
    out = {
        name: seen(call(Call(tools.write_after, 0, f"{path}-{name}").options(cancel=shape)))
        for name, shape in shapes.items()
    }
    ran = {name: os.path.exists(f"{path}-{name}") for name in shapes}
    wrong = {
        repr(type(one).__name__): refusal(call, Call(tools.write_after, 0,
        path).options(cancel=one)) for one in (object(), 1, "yes", Shaped(is_set=None))
    }  # fmt: skip
    return {"results": out, "ran": ran, "wrong": wrong, "wrong_ran": os.path.exists(path),
            "wrong_batch": refusal(batch, [Call(tools.write_after, 0, path)], cancel=object()),
            "wrong_inline": refusal(call, Call(tools.write_after, 0, path).options(cancel=object(),
            isolation="inline"))}  # fmt: skip


@section
def token_without_an_answer():
    class Property:
        @property
        def is_cancelled(self):
            raise ValueError("no answer")

    return seen(call(Call(tools.plus, 1).options(cancel=Property())))


@waits
def cancelled_in_the_middle():
    def struck(token, strike):
        leash = Leash()

        def body():
            until(lambda: leash.state() == "held")
            strike()

        threading.Thread(target=body).start()
        begun = time.monotonic()
        result = call(Call(tools.hang, leash.path).options(cancel=token, timeout=10))
        return seen(result, elapsed=time.monotonic() - begun, leash=leash.state())

    ours, event = CancelToken(), threading.Event()
    broken = Shaped(broken=False)
    broken.is_set = lambda: _fails() if broken.broken else False
    out = {"ours": struck(ours, ours.set), "event": struck(event, event.set),
           "breaks": struck(broken, lambda: setattr(broken, "broken", True))}  # fmt: skip
    done = CancelToken()
    result = call(Call(tools.plus, 1).options(cancel=done))
    done.set()
    return {**out, "after": [result.value, call(Call(tools.plus, 1).options(cancel=done)).status]}


@waits
def cancelled_async():
    async def body():
        leash, out = Leash(), {}
        task = asyncio.create_task(call_async(Call(tools.hang, leash.path).options(timeout=10)))
        while leash.state() != "held":
            await asyncio.sleep(0.005)
        begun = time.monotonic()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            out["task"] = [time.monotonic() - begun, leash.state()]
        leash = Leash()
        begun = time.monotonic()
        try:
            async with asyncio.timeout(0.4):
                await call_async(Call(tools.hang, leash.path).options(timeout=10))
        except TimeoutError:
            out["timeout"] = [time.monotonic() - begun, leash.state()]
        token = CancelToken()
        asyncio.get_running_loop().call_later(0.3, token.set)
        out["token"] = seen(await call_async(Call(tools.hang).options(timeout=10, cancel=token)))
        out["foreign"] = seen(await call_async(Call(tools.hang).options(timeout=10, cancel=later(0.2))))
        leash = Leash()
        task = asyncio.create_task(
            batch_async([Call(tools.hang, leash.path), Call(tools.hang, leash.path)], parallel=2)
        )
        while leash.state() != "held":
            await asyncio.sleep(0.005)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            out["batch"] = leash.state()
        return out

    return asyncio.run(body())


# -- batches -----------------------------------------------------------------------------------------------------------


@section
def order():
    calls = [Call(tools.sleep, 0 if number else 0.3, number) for number in range(6)]
    told = []
    parallel, parallel_s = timed(
        lambda: batch(calls, parallel=6, on_result=lambda at, result: told.append((at, result.value)))
    )
    one_by_one = batch(iter([Call(tools.plus, number) for number in range(5)]))
    generator = batch((Call(tools.plus, number) for number in range(30)), parallel=4)
    return {
        "parallel": [one.value for one in parallel], "seconds": parallel_s, "told": sorted(told),
        "told_first": told[0][0],
        "sequential": [one.value for one in one_by_one], "generator": [one.value for one in generator],
        "empty": batch([]),
        "empty_race": refusal(race, []), "same_call_twice": [one.value for one in batch([calls[0]] * 3, parallel=3)],
        "ids": len({one.call_id for one in parallel}),
    }  # fmt: skip


@section
def what_is_refused():
    path = os.path.join(os.environ["TMPDIR"], "refused-effect")
    effect = Call(tools.write_after, 0, path)
    out = {
        name: refusal(batch, [effect], **options) for name, options in {
            "65": {"parallel": 65}, "0": {"parallel": 0}, "none": {"parallel": None}, "true": {"parallel": True},
            "half": {"parallel": 1.5},
            "timeout": {"timeout": 0}, "nan": {"timeout": float("nan")}, "deadline": {"deadline": -1},
            "inf": {"deadline": float("inf")},
        }.items()
    }  # fmt: skip
    out["not_a_call"] = refusal(batch, [effect, tools.plus])
    out["64"] = refusal(batch, [Call(tools.plus, 1)], parallel=64)[0]
    return {"refused": out, "ran": os.path.exists(path)}


@section
def queue_apart_from_run():
    results = batch([Call(tools.sleep, 0.1, number) for number in range(4)], parallel=2)
    slow = batch([Call(tools.sleep, 0.15, 1) for _ in range(3)], timeout=0.25)  # each from its own start
    return {
        "queued": [one.queued_s for one in results],
        "ran": [one.duration_s for one in results],
        "slow": [one.status for one in slow],
    }


@waits
def deadline_of_a_batch():
    calls = [
        Call(tools.sleep, 0.05, 0),
        Call(tools.hang),
        Call(tools.sleep, 0.1, 2),
        Call(tools.hang),
        Call(tools.plus, 1),
    ]
    results, elapsed = timed(lambda: batch(calls, parallel=1, deadline=0.8))
    wide, wide_s = timed(lambda: batch([Call(tools.hang) for _ in range(6)], parallel=3, timeout=0.3))
    return {
        "results": [seen(one) for one in results],
        "elapsed": elapsed,
        "wide": [one.status for one in wide],
        "wide_s": wide_s,
    }


@waits
def cancel_of_a_batch():
    token, leash = CancelToken(), Leash()
    calls = [
        Call(tools.plus, 1),
        Call(tools.plus, 2),
        Call(tools.hang, leash.path),
        Call(tools.plus, 3),
        Call(tools.plus, 4),
    ]

    def strike():
        until(lambda: leash.state() == "held")
        token.set()

    threading.Thread(target=strike).start()
    results, elapsed = timed(lambda: batch(calls, cancel=token))
    own = CancelToken()
    threading.Timer(0.2, own.set).start()
    one, _ = timed(lambda: batch([Call(tools.hang).options(cancel=own), Call(tools.sleep, 0.5, "kept")], parallel=2))
    foreign, foreign_s = timed(lambda: batch([Call(tools.hang), Call(tools.hang)], parallel=2, cancel=later(0.2)))
    before = CancelToken()
    before.set()
    never = batch([Call(tools.plus, 1), Call(tools.plus, 2)], cancel=before)
    broken = batch([Call(tools.plus, 1), Call(tools.plus, 2)], cancel=Shaped(is_set=_fails))
    return {
        "results": [seen(each) for each in results], "elapsed": elapsed, "leash": leash.state(),
        "own": [seen(each) for each in one],
        "foreign": [seen(each) for each in foreign], "foreign_s": foreign_s, "never": [seen(each) for each in never],
        "broken": [seen(each) for each in broken],
    }  # fmt: skip


def _spans(path, name, seconds=0.08):
    begun = time.monotonic()
    time.sleep(seconds)
    with open(path, "a") as file:
        file.write(f"{name}\n")
    return [begun, time.monotonic()]


@section
def writes():
    path = os.path.join(os.environ["TMPDIR"], "order")
    first = deadstop.tool(_spans, writes=["a file"])
    by_argument = deadstop.tool(_spans, writes=lambda path, name, seconds=0: [name.split("-")[0]])
    free = deadstop.tool(_spans)
    same = batch([Call(first, path, str(number)) for number in range(4)] + [Call(free, path, "free")], parallel=5)
    with open(path) as file:
        lines = [line for line in file.read().split() if line != "free"]
    named = batch([Call(by_argument, path, name) for name in ("a-1", "b-1", "a-2", "b-2")], parallel=4)
    spans = [one.value for one in named]
    inline = deadstop.tool(_spans, writes=["a file"], isolation="inline")
    mixed = batch([Call(inline, path, "i"), Call(first, path, "w"), Call(inline, path, "j")], parallel=3)
    wrong = []
    try:
        batch([Call(first, path, "never"), Call(deadstop.tool(_spans, writes=lambda *_: 1 // 0), path, "x")])
    except ZeroDivisionError as problem:
        wrong.append(str(problem))
    with open(path) as file:
        wrong.append("never" in file.read())
    return {
        "same": [one.value for one in same],
        "order": lines,
        "named": spans,
        "mixed": [one.value for one in mixed],
        "wrong": wrong,
    }


@section
def inline_in_a_batch():
    inline = deadstop.tool(tools.sleep, isolation="inline")
    results, elapsed = timed(lambda: batch([Call(inline, 0.15, number) for number in range(4)], parallel=4))
    mixed = batch(
        [Call(inline, 0.05, "in"), Call(tools.sleep, 0.05, "out"), Call(inline, 0.01, "in"), Call(tools.plus, 1)],
        parallel=2,
    )
    raised = batch([Call(deadstop.tool(tools.exits, isolation="inline"), 3), Call(inline, 0, 1)], parallel=2)
    return {"values": [one.value for one in results], "elapsed": elapsed, "mixed": [one.value for one in mixed],
            "raised": [seen(one)["status"] for one in raised], "receipt": seen(results[0])["receipt"]}  # fmt: skip


@section
def mixed_ends():
    calls = [
        Call(tools.plus, 1), Call(tools.raises, ValueError("x")), Call(tools.leave), Call(tools.kill_self),
        Call(tools.hang),
        Call(tools.unpicklable), Call(tools.echo, (number for number in [1])), Call(tools.async_plus, 1),
        Call(tools.segfault), Call(tools.plus, 2),
    ]  # fmt: skip
    results = batch(calls, parallel=4, timeout=0.4)
    return [[one.status, one.value] for one in results]


@waits
def on_result_raises():
    leash, got = Leash(), []

    def tell(index, result):
        until(lambda: leash.state() == "held")
        raise KeyError(f"from on_result {index}")

    try:
        batch(
            [Call(tools.hang, leash.path), Call(tools.plus, 1), Call(tools.hang, leash.path)],
            parallel=3,
            on_result=tell,
        )
    except KeyError as problem:
        got.append(str(problem))
    gone = time.monotonic()
    until(lambda: leash.state() == "let go", 4)
    return {"raised": got, "gone_s": time.monotonic() - gone, "after": call(tools.plus, 1).value}


@section
def wide():
    results, elapsed = timed(lambda: batch([Call(tools.plus, number) for number in range(300)], parallel=16))
    return {"right": [one.value for one in results] == list(range(1, 301)), "elapsed": elapsed}


# -- races -------------------------------------------------------------------------------------------------------------


@section
def races():
    leash = Leash()
    won, elapsed = timed(lambda: race([Call(hangs, leash.path), Call(pure, 0.05, "fast"), Call(pure, 2, "slow")]))
    picky = race([Call(pure, 0, 1), Call(pure, 0.1, 2), Call(pure, 2, 3)], accept=lambda result: result.value == 2)
    none = race([Call(pure, 0, 1), Call(pure, 0, 2)], accept=lambda result: False)
    failing = race([Call(deadstop.tool(tools.raises, effect="none"), ValueError("first")), Call(pure, 0.1, "second")])
    hung, hung_s = timed(lambda: race([Call(hangs), Call(hangs)], deadline=0.3))
    token = CancelToken()
    threading.Timer(0.2, token.set).start()
    cancelled = race([Call(hangs), Call(hangs)], cancel=token)
    path = os.path.join(os.environ["TMPDIR"], "race-effect")
    refused = {
        "undeclared": refusal(race, [Call(pure, 0, 1), Call(tools.write_after, 0, path)]),
        "inline": refusal(race, [Call(pure.with_options(isolation="inline"), 0)]), "not_a_call": refusal(race, [pure]),
    }  # fmt: skip
    accept_raises = []
    try:
        race([Call(pure, 0, 1), Call(hangs, leash.path)], accept=lambda result: 1 // 0)
    except ZeroDivisionError as problem:
        accept_raises.append(str(problem))
    from_loop = asyncio.run(race_async([Call(hangs), Call(pure, 0.05, "fast")]))
    until(lambda: leash.state() == "let go", 3)
    return {
        "winner": seen(won.winner), "results": [seen(one) for one in won.results], "elapsed": elapsed,
        "leash": leash.state(),
        "picky": [picky.winner.value, [one.status for one in picky.results]], "none": [none.winner,
        [one.value for one in none.results]],
        "failing": [failing.winner.value, failing.results[0].status], "hung": [hung.winner,
        [one.status for one in hung.results], hung_s],
        "cancelled": [cancelled.winner, [[one.status, one.reason] for one in cancelled.results]], "refused": refused,
        "ran": os.path.exists(path),
        "accept_raises": accept_raises, "async": from_loop.winner.value,
    }  # fmt: skip


@last
def quiet():
    # A thread of a timer or of a batch may be on its way out.
    until(lambda: not threads_of_ours(), 2)
    return {"threads": threads_of_ours(), "others": threading.active_count()}


if __name__ == "__main__":
    main()
