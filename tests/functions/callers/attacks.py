# SPDX-License-Identifier: Apache-2.0
"""Calls by tools and modules that mean harm or have bad luck. Those that would disturb others run only when named."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import os
import random
import resource
import signal
import sys
import textwrap
import threading
import time
import types

import tools
from telling import (
    Leash,
    at_once,
    hold,
    main,
    own_processes,
    pool,
    section,
    seen,
    supervisor_pid,
    until,
    workers_alive,
)

import deadstop
from deadstop import Call, CancelToken, batch, call, call_async
from deadstop.executor.kept import KeptWorker

HOME = os.path.join(os.environ["TMPDIR"], f"attacks-{os.getpid()}")
os.makedirs(HOME, exist_ok=True)
sys.path.insert(0, HOME)
sys.dont_write_bytecode = True
ELSEWHERE = 'os.getpid() != int(os.environ["CALLER_PID"])'
IN_NURSERY = '"deadstop.worker.nursery" in sys.modules'
HEAD = f"import os, sys, time\nELSEWHERE = {ELSEWHERE}\nIN_NURSERY = {IN_NURSERY}\n"
read = None  # what a tool calls on its argument has this name, too


def apart(function):
    """A section that runs only where it was asked for by name."""
    return section(function) if function.__name__ in sys.argv[1:] else function


def module(name, text):
    with open(os.path.join(HOME, f"{name}.py"), "w") as file:
        file.write(HEAD + textwrap.dedent(text))
    importlib.invalidate_caches()
    return importlib.import_module(name)


def slow_module(name, seconds, body):
    """Quick for the caller, slow wherever else it is imported."""
    return module(name, f"if ELSEWHERE: time.sleep({seconds})\n{textwrap.dedent(body)}")


def settled():
    """Every worker is idle and known."""
    from deadstop.executor.workers import _alive

    found = pool()
    return not found.queue and len(found.free) == found.alive == len(_alive)


def tried(job):
    """What it gave, or what it raised; how long it took."""
    begun = time.monotonic()
    try:
        result = job()
        out = seen(result) if hasattr(result, "to_dict") else {"value": result}
    except Exception as problem:
        out = {"raised": f"{type(problem).__name__}: {problem}"[:300]}
    return {**out, "elapsed": time.monotonic() - begun}


# -- who keeps the limit is stopped ------------------------------------------------------------------------------------


def _stops_its_parent(leash, path):
    hold(leash)
    with open(path, "w") as file:
        file.write(str(os.getppid()))
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(30)


def _gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


@apart
def stopped_parent():
    """Pid 1 of its namespace, which no signal from inside stops, or its reaper."""
    leash, path = Leash(), os.path.join(HOME, "parent")
    call(tools.plus, 1)
    got, sibling = at_once(
        lambda: tried(lambda: call(Call(_stops_its_parent, leash.path, path).options(timeout=0.5))),
        lambda: tried(lambda: call(Call(tools.sleep, 1.8, "sibling").options(timeout=6))),
    )
    out = {**got, "sibling": sibling, "next": call(tools.plus, 1).value}
    until(lambda: leash.state() == "let go", within=3)
    with open(path) as file:
        parent = int(file.read())
    if parent != 1:
        until(lambda: _gone(parent), within=3)
    until(lambda: own_processes().count("deadstop-worker") == workers_alive())
    return out


def _go_on(pid):
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:  # somebody found out that it stood still, and ended it
        pass


def _awaited(asked):
    return asyncio.run(call_async(asked))


@apart
def stopped_supervisor():
    """Each way to wait, with a token that nobody sets and with one that is set meanwhile."""
    hang = deadstop.tool(tools.hang, timeout=0.5)
    batch([Call(tools.sleep, 0.2) for _ in range(6)], parallel=6)
    pid, tokens = supervisor_pid(), [CancelToken() for _ in range(6)]
    os.kill(pid, signal.SIGSTOP)
    fallback = threading.Timer(8, _go_on, (pid,))
    fallback.start()
    threading.Timer(0.2, lambda: [token.set() for token in tokens[3:]]).start()
    ways = {
        "sync": lambda token: call(Call(hang).options(cancel=token)),
        "batch": lambda token: batch([Call(hang)], cancel=token)[0],
        "async": lambda token: _awaited(Call(hang).options(cancel=token)),
    }
    jobs = {f"{way}{what}": way for what in ("", " token") for way in ways}
    pairs = zip(jobs.values(), tokens, strict=True)
    try:
        got = at_once(*[lambda way=way, token=token: tried(lambda: ways[way](token)) for way, token in pairs])
    finally:
        fallback.cancel()
        _go_on(pid)
    return {**dict(zip(jobs, got, strict=True)), "next": tried(lambda: call(tools.plus, 1))}


@apart
def lagging_supervisor():
    """It does not run for 1.2 s while a call asks for what was printed."""
    call(tools.writes_and_returns, "warm")
    pid = supervisor_pid()
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(1.2, _go_on, (pid,)).start()
    return tried(lambda: call(Call(tools.writes_and_returns, "printed").options(timeout=10)))


# -- whose deadline, whose result --------------------------------------------------------------------------------------


@apart
def late_answer():
    """A's worker is killed while A's loop is busy; B gets its slot; then A's loop sees the answer."""
    a, b = deadstop.tool(tools.sleep, timeout=0.2), deadstop.tool(tools.hang, timeout=1.0)
    call(tools.plus, 1)
    out, begin = [], threading.Event()

    def other():
        begin.wait(10)
        time.sleep(0.3)  # A's worker is dead by now, its slot is free
        holders = [threading.Thread(target=call, args=(tools.sleep, 1.5)) for _ in range(len(pool().free) + 1)]
        for holder in holders:
            holder.start()
        time.sleep(0.2)
        out.extend(at_once(*[lambda: tried(b.call)] * 3))
        for holder in holders:
            holder.join(10)

    async def body():
        asked = asyncio.create_task(a.call_async(0.1, "A"))
        await asyncio.sleep(0.02)
        begin.set()
        time.sleep(0.9)
        return await asked

    thread = threading.Thread(target=other)
    thread.start()
    first = asyncio.run(body())
    thread.join(20)
    return {"a": seen(first), "b": out}


@section
def kept_by_two_threads():
    echo = deadstop.tool(tools.echo, timeout=3)
    wrong = []
    with KeptWorker(echo) as kept:

        def body(who):
            for number in range(60):
                got = tried(lambda number=number: kept.call(echo, [who, number]))
                if got.get("value") != [who, number]:
                    wrong.append(got)
                if len(wrong) > 3:
                    return

        at_once(lambda: body(0), lambda: body(1))
    return wrong


@section
def kept_closed_in_the_middle():
    leash = Leash()
    kept = KeptWorker(deadstop.tool(tools.echo, timeout=3))
    kept.call(tools.echo, 0)

    def closes():
        until(lambda: leash.state() == "held")
        kept.close()

    thread = threading.Thread(target=closes)
    thread.start()
    got = tried(lambda: kept.run(Call(tools.hang, leash.path).options(timeout=3)))
    thread.join(10)
    until(lambda: leash.state() == "let go", within=3)
    return {**got, "after": tried(lambda: kept.call(tools.echo, 1)), "next": call(tools.plus, 1).value}


@section
def kept_in_a_forked_child():
    kept = KeptWorker(deadstop.tool(tools.echo, timeout=3))
    first = kept.call(tools.own_pid).value
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        got = tried(lambda: kept.call(tools.own_pid))
        os.write(writing, repr((got.get("value"), got.get("raised"))).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    child = os.read(reading, 4096).decode()
    again = kept.call(tools.own_pid).value
    told = {"child": child, "first": first, "again": again, "generation": kept.generation}
    kept.close()
    return told


# -- async -------------------------------------------------------------------------------------------------------------


@section
def first_async_call():
    """Each of them is the first call of its function."""
    path = os.path.join(HOME, "touched")

    async def body():
        await call_async(tools.plus, 1)
        begun = time.monotonic()
        with deadstop.deadline(0.3):
            block = await call_async(slow_module("first_a", 0, "def f(): time.sleep(20)").f)
        block = seen(block, elapsed=time.monotonic() - begun)
        tools.HOUSE.set("the caller's")
        variable = (await call_async(tools.sees)).value["house"]
        begun = time.monotonic()
        with deadstop.Task(wall_clock=0.3):
            late = "def f(path):\n    time.sleep(0.6)\n    open(path, 'w').close()\n    time.sleep(20)"
            task = await call_async(slow_module("first_b", 0, late).f, path)
        return block, variable, seen(task, elapsed=time.monotonic() - begun)

    block, variable, task = asyncio.run(body())
    time.sleep(0.6)
    return {"block": block, "variable": variable, "task": task, "touched": os.path.exists(path)}


@section
def cancelled_while_it_loads():
    paths = [os.path.join(HOME, f"ran-{number}") for number in range(4)]
    functions = [
        slow_module(f"loads_{number}", 0.5, f"def f(): open({path!r}, 'w').close(); time.sleep(1)").f
        for number, path in enumerate(paths)
    ]

    async def one(function, delay):
        task = asyncio.create_task(call_async(function))
        await asyncio.sleep(delay)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "went on"

    async def body():
        await call_async(tools.plus, 1)
        delays = (0, 0.05, 0.2, 0.35)
        got = await asyncio.gather(*[one(*each) for each in zip(functions, delays, strict=True)])
        await asyncio.sleep(0.6)
        return got

    got = asyncio.run(body())
    until(settled)
    return {"got": got, "ran": [os.path.exists(path) for path in paths], "next": call(tools.plus, 1).value}


# -- modules -----------------------------------------------------------------------------------------------------------


@section
def batch_beside_a_slow_module():
    function = slow_module("slow_beside", 0.9, "def f(): return 'slow'").f
    call(tools.plus, 1)
    quick = Call(tools.sleep, 0.1, "quick").options(timeout=0.5)
    return [seen(one) for one in batch([quick, Call(function)], parallel=2)]


def _others_after(bad):
    """Calls that cost a worker each, after one of a module that does not like its second import."""
    first = tried(lambda: call(Call(bad.f).options(timeout=1)))
    hang = deadstop.tool(tools.hang, timeout=0.2)
    return {"first": first, "others": [tried(hang.call) for _ in range(4)], "next": tried(lambda: call(tools.plus, 1))}


@apart
def hangs_at_second_import():
    mark = os.path.join(HOME, "hangs")
    return _others_after(module("hangs_second", f"""
        if IN_NURSERY:
            if os.path.exists({mark!r}): time.sleep(20)
            open({mark!r}, "w").close()
        def f(): return 1
    """))  # fmt: skip


@apart
def exits_at_second_import():
    mark = os.path.join(HOME, "exits")
    return _others_after(module("exits_second", f"""
        if IN_NURSERY:
            if os.path.exists({mark!r}): os._exit(3)
            open({mark!r}, "w").close()
        def f(): return 1
    """))  # fmt: skip


@section
def reloaded():
    found = module("edited", "def f(): return 'old'\n")
    old = [found.f(), call(found.f).value]
    with open(found.__file__, "w") as file:
        file.write("def f(): return 'new, and longer than before'\n")
    importlib.reload(found)
    return {"old": old, "new": [found.f()] + [call(found.f).value for _ in range(3)]}


@section
def cancelled_while_its_module_loads():
    function = slow_module("slow_to_load", 4, "def f(): return 1").f
    token = CancelToken()
    threading.Timer(0.3, token.set).start()
    return tried(lambda: call(Call(function).options(timeout=8, cancel=token)))


@section
def forks_at_import():
    leash, log = Leash(), os.path.join(HOME, "importers")
    found = module("forks", f"""
        if ELSEWHERE:
            with open("/proc/self/comm") as file, open({log!r}, "a") as log:
                log.write(file.read())
            if os.fork() == 0:
                os.write(os.open({leash.path!r}, os.O_WRONLY), b"h")
                time.sleep(30)
                os._exit(0)
        def f(): return 1
    """)  # fmt: skip
    results = [tried(lambda: call(found.f)) for _ in range(2)]
    others = [tried(lambda: call(Call(tools.hang).options(timeout=0.1))) for _ in range(3)]
    until(lambda: leash.state() != "held", within=3)
    with open(log) as file:
        return {"results": results, "others": others, "importers": file.read().split(), "leash": leash.state()}


@section
def forks_in_the_nursery():
    """Only there, so that the worker that loads it first has nothing to say against it."""
    leash = Leash()
    found = module("forks_later", f"""
        with open("/proc/self/comm") as file:
            NAME = file.read()
        if NAME.startswith("deadstop-nurs") and os.fork() == 0:
            os.write(os.open({leash.path!r}, os.O_WRONLY), b"h")
            time.sleep(30)
            os._exit(0)
        def f(): return 1
    """)  # fmt: skip
    results = [tried(lambda: call(found.f)) for _ in range(2)]
    others = [tried(lambda: call(Call(tools.hang).options(timeout=0.1))) for _ in range(3)]
    until(lambda: leash.state() != "held", within=3)
    return {"results": results, "others": others, "again": tried(lambda: call(found.f)), "leash": leash.state()}


# -- what goes along ---------------------------------------------------------------------------------------------------


class NoState:
    def __getstate__(self):
        raise RuntimeError("has no state")


class ExitsWhenLoaded(Exception):
    def __reduce__(self):
        return sys.exit, (3,)


class LeavesWhenLoaded(Exception):
    def __reduce__(self):
        return exit, (3,)


def _raises(kind):
    raise kind("raised")


TATTLED = []


class Tattles:
    """Says when it is pickled."""

    def __reduce__(self):
        TATTLED.append(1)
        return list, ()


class Reader:
    def read(self):
        return b"four"


@section
def pickling():
    global read
    names = ("state", "sys_exit", "exit")
    jobs = (
        lambda: call(tools.echo, NoState()),
        lambda: call(_raises, ExitsWhenLoaded),
        lambda: call(_raises, LeavesWhenLoaded),
    )
    out = {name: tried(job) for name, job in zip(names, jobs, strict=True)}
    read = Tattles()
    out["attribute"] = tried(lambda: call(lambda source: len(source.read()), Reader()))
    read = None
    return {**out, "tattled": len(TATTLED), "next": call(tools.plus, 1).value}


def _only_here():
    return "ran"


@section
def variable_of_a_module_that_only_the_caller_has():
    here = types.ModuleType("only_here")
    here.variable = contextvars.ContextVar("variable")
    sys.modules["only_here"] = here
    token = here.variable.set("set")
    try:
        return {"process": tried(lambda: call(tools.plus, 1)), "closure": tried(lambda: call(_only_here))}
    finally:
        here.variable.reset(token)
        del sys.modules["only_here"]


@apart
def variable_outside_a_sandbox():
    """Of a module whose file a sandbox is not shown."""
    sandboxed = deadstop.tool(_only_here, isolation="sandbox", timeout=5)
    without = tried(sandboxed.call)
    tools.HOUSE.set("the caller's")
    module("not_shown", "import contextvars\nV = contextvars.ContextVar('V')").V.set("set")
    return {"without": without, "with": tried(sandboxed.call)}


def _leaves_behind():
    os.umask(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0.15)
    return os.getpid()


def _finds():
    mask = os.umask(0)
    os.umask(mask)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    time.sleep(0.3)
    return [mask, len(blocked)]


@section
def left_in_the_process():
    clean = call(_finds).value
    left = tried(lambda: call(_leaves_behind))
    return {"clean": clean, "left": left, "next": [tried(lambda: call(_finds)) for _ in range(2)]}


# -- few of something, and signals -------------------------------------------------------------------------------------


@apart
def long_import_path():
    sys.path.extend(f"/nowhere/{'x' * 90}/{number}" for number in range(3000))
    got = [tried(lambda: call(tools.plus, 1))]
    sys.path.append("/nowhere/else")
    return [*got, tried(lambda: call(tools.plus, 2)), tried(lambda: call(Call(tools.hang).options(timeout=0.2))),
            tried(lambda: call(tools.plus, 3))]  # fmt: skip


@apart
def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    nap = deadstop.tool(tools.sleep, timeout=5)
    first, pid = tried(lambda: nap.call(0, "first")), supervisor_pid()
    many = [tried(lambda: [one.status for one in batch([Call(nap, 0.1)] * 20, parallel=16)]) for _ in range(2)]
    after = tried(lambda: until(lambda: tried(lambda: nap.call(0, "after")).get("value"), within=3))
    return {"first": first, "many": many, "after": after, "same": pid == supervisor_pid() and not _gone(pid)}


def _interrupt(*_):
    raise KeyboardInterrupt


@apart
def interrupts():
    """Fifty, each at a random moment of a call that does nothing."""
    plus, wrong = deadstop.tool(tools.plus, timeout=5), []
    plus.call(1)
    until(settled)
    before = _held()
    signal.signal(signal.SIGALRM, _interrupt)
    for number in range(50):
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, 0.0015))
            while True:
                plus.call(1)
        except KeyboardInterrupt:
            pass
        got = tried(lambda number=number: plus.call(number))
        if got.get("value") != number + 1:
            wrong.append(got)
    try:
        until(settled, within=3)
    except AssertionError:
        wrong.append("workers are not idle")
    return {"wrong": wrong[:3], "count": len(wrong), "before": before, "after": _held()}


def _held():
    """Workers, and descriptors that belong to none of them."""
    from deadstop.executor.workers import _alive

    return [len(_alive), len(os.listdir("/proc/self/fd")) - 4 * len(_alive)]


@apart
def handler_makes_a_call():
    """While the first call opens everything."""
    heard = []
    signal.signal(signal.SIGALRM, lambda *_: heard.append(tried(lambda: call(tools.plus, 2))))
    signal.setitimer(signal.ITIMER_REAL, 0.03)
    first = tried(lambda: call(tools.plus, 1))
    until(lambda: heard)
    return {"first": first, "heard": heard, "next": call(tools.plus, 3).value}


# -- hostile answers of a sandbox --------------------------------------------------------------------------------------


def _own_calls():
    import gc

    from deadstop.worker.calls import Calls

    return next(found for found in gc.get_objects() if type(found) is Calls)


def _colliding(count):
    from deadstop.packing import VALUE

    body = ",".join(str(((1 << 61) - 1) * number) for number in range(1, count)).encode()
    calls = _own_calls()
    calls.port.send(VALUE, 0, calls.number, b'{"set":[' + body + b"]}")
    time.sleep(30)


def _big_document(count):
    from deadstop.packing import VALUE

    calls = _own_calls()
    calls.port.send(VALUE, 0, calls.number, b'{"list":[' + b",".join([b'{"list":[]}'] * count) + b"]}")
    time.sleep(30)


def _big_messages(count):
    from deadstop.packing import PROGRESS

    calls, text = _own_calls(), b'"' + b"x" * (4 << 20) + b'"'
    for _ in range(count):
        calls.port.send(PROGRESS, 0, calls.number, b'{"list":[' + text + b",null,true,null]}")
    time.sleep(30)


def _pipe_for_a_body():
    import socket

    from deadstop import packing

    calls = _own_calls()
    reading, _ = os.pipe()
    calls.port.socket.send(packing._pack(packing.VALUE | packing._LARGE, 0, calls.number))
    socket.send_fds(calls.port.socket, [b"+"], [reading])
    time.sleep(30)


@apart
def hostile_answers():
    jobs = {
        "colliding": (_colliding, 30_000), "document": (_big_document, 3_000_000), "messages": (_big_messages, 100),
        "pipe": (_pipe_for_a_body,),
    }  # fmt: skip
    out = {}
    for name, (function, *arguments) in jobs.items():
        sandboxed = deadstop.tool(function, isolation="sandbox", timeout=1)
        out[name] = tried(lambda sandboxed=sandboxed, arguments=arguments: sandboxed.call(*arguments))
        out[name]["value"] = type(out[name].get("value")).__name__
        out[name]["progress"] = len(out[name].get("progress") or ())
    out["next"] = tried(deadstop.tool(lambda: "fine", isolation="sandbox", timeout=5).call)
    return out


def _marks():
    import deadstop.worker

    before = hasattr(deadstop.worker, "marked")
    deadstop.worker.marked = True
    return before


def _answers_for_others():
    from deadstop.packing import VALUE

    calls = _own_calls()
    calls.port.send(VALUE, 0, calls.number, b'"ok"')
    time.sleep(0.2)
    for number in range(1, 6):
        calls.port.send(VALUE, 0, calls.number + number, b'"forged"')
    time.sleep(30)


def _stays_and_forges():
    from deadstop.worker import calls

    _own_calls().answers.value = lambda value: b'"forged"'
    calls.loads = lambda *_: None
    return "ok"


@apart
def one_call_in_a_sandbox():
    def sandboxed(function):
        return deadstop.tool(function, isolation="sandbox", timeout=3)

    marks, honest = sandboxed(_marks), sandboxed(lambda: "honest")
    out = {"marked": [tried(marks.call).get("value") for _ in range(3)], "honest": []}
    for evil in (_answers_for_others, _stays_and_forges):
        tried(sandboxed(evil).call)
        out["honest"] += [tried(honest.call).get("value") for _ in range(2)]
    with KeptWorker(marks) as kept:
        out["kept"] = [tried(lambda: kept.call(marks)).get("value") for _ in range(3)]
    return out


if __name__ == "__main__":
    main()
