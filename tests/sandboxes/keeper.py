# SPDX-License-Identifier: Apache-2.0
"""A process that keeps sandboxes, and runs the tests that it is told to in itself: `python -m keeper STATE`.

One line of JSON in: a module and the names of its tests. One line out for each test that has ended. A test is a
coroutine that takes a `Bench`: a mark of its own, sandboxes made with it, and ways to see the processes that carry it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from deadstop.results import Status, ToolResult
from deadstop.sandbox.execs import Exec
from deadstop.sandbox.host import Host
from deadstop.sandbox.layers import private_mounts
from deadstop.sandbox.sandbox import Sandbox
from deadstop.sandbox.settings import Settings
from deadstop.sandbox.wishes import MIB, ExecWish, Wish

KIND = os.environ.get("DEADSTOP_TEST_KIND", "")
MARK, WHO = "DEADSTOP_BENCH", "WHO"
AT_ONCE = 4
TEST_S = 40.0
LATE_S = 1.5  # how much later than its time an end may come on a busy machine; the figures are measured elsewhere
Check = Callable[[], object]


def on(*kinds: str) -> Callable[[Any], Any]:
    """A test for these kinds of host alone."""

    def mark(test: Any) -> Any:
        test.kinds = kinds
        return test

    return mark


def alone(test: Any) -> Any:
    """A test beside which no other may run in its process."""
    test.alone = True
    return test


@contextmanager
def refused(*kinds: type[BaseException]) -> Iterator[list[BaseException]]:
    """What is in it must raise one of these."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kinds as problem:
        caught.append(problem)
    assert caught, f"none of {[kind.__name__ for kind in kinds]} was raised"


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def until(happened: Check, within: float = 10.0, what: str = "") -> float:
    """Wait until something is true; how long that took."""
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < within, f"not within {within} s: {what or happened}"
        await asyncio.sleep(0.005)
    return time.monotonic() - began


def state_of(pid: int) -> str:
    """R, S, T, Z ... or "" when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except OSError:
        return ""


def carrying(*variables: str) -> list[int]:
    """Live processes of the whole machine with these in their environment."""
    wanted, found = [each.encode() for each in variables], []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    have = file.read().split(b"\0")
            except OSError:
                continue
            if all(each in have for each in wanted) and state_of(int(name)) not in ("", "Z"):
                found.append(int(name))
    return found


class Bench:
    """What one test works with. `host` is shared by all tests of this process."""

    def __init__(self, host: Host, name: str, folder: str, logged: list[tuple[str, dict[str, Any]]]) -> None:
        self.host, self.name, self.folder, self.logged = host, name, folder, logged
        self.kind, self.mark = KIND, uuid.uuid4().hex
        self.has_groups = KIND == "root"
        self.made: list[Sandbox] = []

    # -- sandboxes and commands --------------------------------------------------------------------------------------

    def wish(self, **given: Any) -> Wish:
        env = {MARK: self.mark, **given.pop("env", {})}
        defaulted = tuple(name for name in ("memory", "pids", "disk") if name not in given)
        return Wish(**{"ttl_s": 60.0, "memory": 256 * MIB, "env": env, "defaulted": defaulted, **given})

    async def create(self, *, host: Host | None = None, key: str | None = None, **given: Any) -> Sandbox:
        sandbox = await (host or self.host).create(self.wish(**given), key)
        self.made.append(sandbox)
        return sandbox

    async def short(self, seconds: float, **given: Any) -> Sandbox:
        """One with so little time left, however long it took to make."""
        sandbox = await self.create(**given)
        await sandbox.set_ttl(seconds)
        return sandbox

    async def old(self, seconds: float, buffer: float, **given: Any) -> Sandbox:
        """As one made long ago, with so much time left: the buffer before its end is not that of a short life."""
        sandbox = await self.create(buffer_s=buffer, **given)
        sandbox.record.created_boot -= 1000
        await sandbox.set_ttl(seconds)
        assert sandbox.hooks.buffer_s == buffer
        return sandbox

    async def start(self, sandbox: Sandbox, text: str, who: str = "", **given: Any) -> Exec:
        """bash -c TEXT; its processes carry WHO=who."""
        key = given.pop("key", None)
        env = {WHO: who, **given.pop("env", {})}
        wish = ExecWish(("bash", "-c", text), **{"timeout_s": 30.0, "env": env, "shown": text, **given})
        return await sandbox.exec(wish, key)

    async def run(self, sandbox: Sandbox, text: str, who: str = "", **given: Any) -> ToolResult:
        started = await self.start(sandbox, text, who, **given)
        return await self.end_of(started)

    async def bounded(self, sandbox: Sandbox) -> None:
        """Nothing that multiplies is started where nothing bounds it: a test must not take the machine along."""
        result = await self.run(sandbox, "ulimit -u")
        report = result.limits["pids"]
        assert report is not None
        assert report.enforced_by in ("cgroup", "rlimit"), report
        if report.enforced_by == "rlimit":
            assert int(result.stdout.tail) < 1000

    async def end_of(self, started: Exec, within: float = 20.0) -> ToolResult:
        result = await started.wait(within)
        assert result is not None, f"{started.cmd[:80]} did not end within {within} s"
        return result

    async def said(self, sandbox: Sandbox, text: str, **given: Any) -> str:
        """What a command prints that must succeed."""
        result = await self.run(sandbox, text, **given)
        assert result.ok, (result.status, result.exit_code, result.stdout.tail, result.stderr.tail)
        return result.stdout.tail.strip()

    async def printed(self, started: Exec, text: str, within: float = 10.0) -> None:
        """Wait until it has printed this."""
        await until(lambda: text in started.stdout.text(), within, f"{text!r} in {started.stdout.text()[-200:]!r}")

    async def gone(self, sandbox: Sandbox, within: float) -> dict[str, Any]:
        """Wait for the end of its life; its end."""
        await asyncio.wait_for(sandbox.gone.wait(), within)
        assert sandbox.record.end is not None
        return sandbox.record.end

    # -- what is seen from outside -----------------------------------------------------------------------------------

    def alive(self, who: str | None = None) -> list[int]:
        """Live payload processes of this test, or of one command of it."""
        words = [f"{MARK}={self.mark}"] + ([] if who is None else [f"{WHO}={who}"])
        return carrying(*words)

    @asynccontextmanager
    async def another_host(self, folder: str = "", **settings: Any) -> AsyncIterator[Host]:
        """A host of its own beside the shared one. `folder` says which, to have the same one again."""
        where = f"{self.folder}/{folder or uuid.uuid4().hex}"
        settings = {"layers": "folder", "image_size": 512 * MIB, **settings}
        host = await Host.start(Settings(state=where, **settings), self.log)
        try:
            yield host
        finally:
            await host.close()

    def log(self, event: str, **facts: Any) -> None:
        self.logged.append((event, facts))

    async def tidy(self) -> None:
        """Whatever it made goes, and nothing may be left of it."""
        wanted = {each.id: each for each in self.host.live() if each.wish.env.get(MARK) == self.mark}
        wanted.update((each.id, each) for each in self.made if each.record.live)
        await asyncio.gather(*(each.kill() for each in wanted.values()))
        left = self.alive()
        assert left == [], f"left behind: {[command_of(pid) for pid in left]}"


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode("utf-8", "replace")[:200]
    except OSError:
        return "gone"


def process_of_supervisor() -> subprocess.Popen[bytes]:
    from deadstop.executor.private import supervisor

    assert supervisor._process is not None
    return supervisor._process


class Stopper:
    """Another process, ready to stop `pid` for so long and to say when the watched one was gone (CLOCK_BOOTTIME)."""

    def __init__(self, pid: int, seconds: float, watched: int, started: str) -> None:
        words = [str(each) for each in (pid, seconds, watched, started)]
        self.process = subprocess.Popen([sys.executable, "-c", _STOPPER, *words], stdin=-1, stdout=-1, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def stop(self) -> dict[str, Any]:
        """Now, and until it goes on."""
        said, _ = self.process.communicate("\n", timeout=30)
        seen: dict[str, Any] = json.loads(said)
        return seen


_STOPPER = """
import json, os, signal, sys, time
pid, seconds, watched, started = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)
def there():
    try:
        fields = open(f"/proc/{watched}/stat").read().rpartition(") ")[2].split()
    except OSError:
        return False
    return fields[19] == started and fields[0] != "Z"
print("ready", flush=True)
sys.stdin.readline()
gone, began = None, now()
os.kill(pid, signal.SIGSTOP)
try:
    while now() < began + seconds:
        if gone is None and not there():
            gone = now()
        time.sleep(0.002)
finally:
    os.kill(pid, signal.SIGCONT)
print(json.dumps({"gone": gone, "stopped": began, "continued": now()}))
"""


# -- running tests ---------------------------------------------------------------------------------------------------


class Runner:
    def __init__(self, host: Host, folder: str, answers: Callable[[dict[str, Any]], None]) -> None:
        self.host, self.folder, self.answers = host, folder, answers
        self.logged: list[tuple[str, dict[str, Any]]] = []
        host.log = lambda event, **facts: self.logged.append((event, facts))

    async def run(self, module_name: str, names: list[str]) -> None:
        module = importlib.import_module(module_name)
        tests = [(name, getattr(module, name)) for name in names]
        together = [each for each in tests if not getattr(each[1], "alone", False)]
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(name: str, test: Callable[[Bench], Awaitable[None]]) -> None:
            async with turns:
                await self.test(name, test)

        await asyncio.gather(*(one(*each) for each in together))
        for name, test in tests:
            if getattr(test, "alone", False):
                await self.test(name, test)

    async def test(self, name: str, test: Callable[[Bench], Awaitable[None]]) -> None:
        logged: list[tuple[str, dict[str, Any]]] = []
        bench, problem, began = Bench(self.host, name, self.folder, logged), "", time.monotonic()
        for act in (lambda: test(bench), bench.tidy):
            try:
                await asyncio.wait_for(act(), TEST_S)
            except BaseException as found:
                if not isinstance(found, Exception):
                    raise
                problem += "".join(traceback.TracebackException.from_exception(found, capture_locals=True).format())
        if problem:
            problem += "\n".join(f"log: {each}" for each in [*logged, *self.logged][-12:])
        self.answers({"test": name, "problem": problem, "seconds": round(time.monotonic() - began, 2)})


async def main(state: str) -> None:
    host = await Host.start(Settings(state=state, image_size=2048 * MIB))
    await (await host.create(Wish())).kill()  # the first takes longer
    out = os.dup(1)
    os.dup2(2, 1)
    runner = Runner(host, os.path.dirname(state), lambda answer: _write(out, json.dumps(answer).encode() + b"\n"))
    orders = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    running: set[asyncio.Task[None]] = set()
    while line := await orders.readline():
        order = json.loads(line)
        running.add(asyncio.create_task(runner.run(order["module"], order["tests"])))
    for task in running:  # all of them have answered, or nobody waits for them any more
        task.cancel()
    for told in await asyncio.gather(*running, return_exceptions=True):
        assert told is None or isinstance(told, asyncio.CancelledError), told
    wrong = [facts for event, facts in runner.logged if event == "background_problem"]
    await host.close()
    await nothing_left(host)
    assert wrong == [], wrong


async def nothing_left(host: Host) -> None:
    """No layer of any sandbox, no process but ours and the supervisor's."""
    assert host.live() == []
    place = f"{host.store.place}/layers"
    layers = os.listdir(place) if os.path.isdir(place) else []
    assert layers == [], layers


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    sys.modules["keeper"] = sys.modules["__main__"]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests' own end tells it
    private_mounts()
    asyncio.run(main(sys.argv[1]))

__all__ = ["KIND", "LATE_S", "Bench", "Status", "alone", "boottime", "carrying", "on", "refused", "state_of", "until"]
