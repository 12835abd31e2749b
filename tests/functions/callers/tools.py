# SPDX-License-Identifier: Apache-2.0
"""Functions that workers import by name."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
import time

from telling import hold

import deadstop

COUNT = [0]
HOUSE = contextvars.ContextVar("HOUSE", default="nobody's")


def plus(one, other=1):
    return one + other


def echo(value):
    return value


def sleep(seconds, value=None):
    time.sleep(seconds)
    return value


def hang(leash=None):
    if leash:
        hold(leash)
    time.sleep(30)


def raises(problem):
    raise problem


def make(size):
    return b"x" * size


def kill_self(number=signal.SIGKILL):
    os.kill(os.getpid(), number)
    time.sleep(20)


def segfault():
    ctypes.string_at(8)


def leave(code=0):
    print("half done", flush=True)
    os._exit(code)


def write_after(seconds, path):
    time.sleep(seconds)
    with open(path, "a") as file:
        file.write("written\n")


def own_pid():
    return os.getpid()


def fill(megabytes):
    block = mmap.mmap(-1, megabytes << 20)
    for offset in range(0, megabytes << 20, 4096):
        block[offset] = 1
    return len(block)


def allocate(megabytes):
    return len(bytearray(megabytes << 20))


# -- what a call starts ------------------------------------------------------------------------------------------------


def with_thread(leash, then):
    hold(leash)
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
    return _then(then)


def with_subprocess(leash, then):
    hold(leash)
    subprocess.Popen(["sleep", "30"], close_fds=False)
    return _then(then)


def with_daemon(leash, then):
    """Away from everything: a session of its own, its parent gone, every signal ignored."""
    hold(leash)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        time.sleep(30)
        os._exit(0)
    os.wait()
    return _then(then)


def with_multiprocessing(leash, then):
    import multiprocessing
    from multiprocessing import shared_memory

    hold(leash)
    memory = shared_memory.SharedMemory(create=True, size=64)  # starts a resource tracker
    print(memory.name, flush=True)
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,), daemon=False).start()
    return _then(then)


def _then(then):
    if then == "hang":
        time.sleep(30)
    return then


# -- streams -----------------------------------------------------------------------------------------------------------


def read_input():
    return sys.stdin.read(), os.read(0, 10)


def prints(size):
    for _ in range(size // 100):
        print("y" * 99)
    print("at the end")
    sys.stderr.write("and this\n")
    return "done"


def writes_raw(text):
    os.write(1, text.encode())
    return "done"


def writes_and_returns(text):
    print(text)
    return text


def prints_and_hangs():
    print("step 1")
    print("step 2", file=sys.stderr)
    time.sleep(30)


# -- what does not want to be ended ------------------------------------------------------------------------------------


def holds_lock_natively(leash):
    hold(leash)
    ctypes.PyDLL(None).sleep(30)


def blocks_signals(leash):
    hold(leash)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.alarm(0)
    while True:
        time.sleep(30)


def ignores_signals(leash):
    hold(leash)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while True:
        try:
            time.sleep(30)
        except BaseException:
            pass


def masked_alarm():
    """What a fresh call finds: no signal blocked, and the alarm works."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    heard = []
    signal.signal(signal.SIGALRM, lambda *_: heard.append(True))
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    time.sleep(0.1)
    return len(blocked), len(heard)


# -- async -------------------------------------------------------------------------------------------------------------


async def async_plus(one, other=1):
    await asyncio.sleep(0)
    return one + other


async def async_blocking(seconds):
    time.sleep(seconds)
    return "woke"


async def async_nap(seconds):
    await asyncio.sleep(seconds)
    return "napped"


async def async_leaves_task(path):
    async def later():
        try:
            await asyncio.sleep(0.3)
            with open(path, "w") as file:
                file.write("too late")
        finally:
            COUNT[0] += 1

    asyncio.get_running_loop().create_task(later())
    await asyncio.sleep(0.01)
    return "left one"


async def async_in_thread():
    return await asyncio.to_thread(threading.current_thread) is not threading.main_thread()


async def async_eats_cancel():
    while True:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            pass


async def async_loop_id():
    return os.getpid(), id(asyncio.get_running_loop())


# -- what it sees ------------------------------------------------------------------------------------------------------


def sees():
    return {
        "house": HOUSE.get(),
        "left": deadstop.remaining(),
        "cwd": os.getcwd(),
        "env": os.environ.get("SEEN_BY_TOOLS"),
        "path": sys.path[0],
    }


def imports(name):
    return __import__(name).VALUE


def calls_inside(seconds, limit):
    result = deadstop.call(deadstop.Call(sleep, seconds, "slept").options(timeout=limit))
    return result.to_dict()


def runs_inside(seconds, limit):
    return deadstop.run(["sleep", str(seconds)], timeout=limit).to_dict()


def nested(depth):
    if depth == 0:
        return [deadstop.remaining()]
    return [deadstop.remaining(), *deadstop.call(nested, depth - 1).unwrap()]


def reports(count, hang_after=False):
    for number in range(count):
        deadstop.progress(f"step {number}", id="step")
        deadstop.progress(f"note {number}", data={"number": number})
    if hang_after:
        time.sleep(30)
    return "reported"


def reports_for_ever():
    number = 0
    while True:
        deadstop.progress(f"{number}")
        number += 1
        time.sleep(0.005)


def defers():
    return deadstop.defer("comes later", "the-handle")


def check_until_over():
    for _ in range(10_000):
        deadstop.check()
        time.sleep(0.002)
    return "never"


def recursive(number):
    return 1 if number < 2 else number * recursive(number - 1)


def endless_recursion():
    return endless_recursion()


class Shelf:
    def __init__(self, size):
        self.size = size

    def room(self, used=0):
        return self.size - used

    def __call__(self, used):
        return ("called", self.size - used)

    @staticmethod
    def fixed():
        return "static"

    @classmethod
    def named(cls):
        return cls.__name__


class Refuses(Exception):
    """Cannot be pickled: what it holds cannot."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class NeedsTwo(Exception):
    """Can be pickled, and not be loaded."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def raises_refuses():
    raise Refuses("it has a lock")


def raises_needs_two():
    raise NeedsTwo("one", "other")


def unpicklable():
    return threading.Lock()


def raises_group():
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


def exits(code):
    sys.exit(code)


def interrupts():
    raise KeyboardInterrupt


@deadstop.tool(timeout=0.5)
def decorated(one):
    return one * 2


@deadstop.tool(timeout=5)
async def async_tool(one):
    return one * 2
