# SPDX-License-Identifier: Apache-2.0
"""Callers and supervisors that are frozen, killed or forked. The argument says which; lines are told as they come."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import tools
from telling import Leash, own_processes, seen, supervisor_pid, timed, until

import deadstop
from deadstop import Call, call


def tell(**facts):
    print(json.dumps(facts, default=repr), flush=True)


def frozen_caller():
    """It is stopped across the deadline by the test."""
    leash = Leash()
    call(tools.plus, 1)
    tell(leash=leash.path, pid=os.getpid())
    result = call(Call(tools.hang, leash.path).options(timeout=0.6))
    tell(result=seen(result), leash=leash.state(), next=call(tools.plus, 1).value)


def late_answer():
    """The answer is on its way when the deadline passes, and its caller reads it after that."""
    call(tools.plus, 1)
    tell(pid=os.getpid())
    result = call(Call(tools.sleep, 0.25, "value").options(timeout=0.4))
    tell(result=seen(result), next=call(tools.plus, 1).value)


def killed_caller():
    leash = Leash()
    threading.Thread(target=call, args=(Call(tools.with_daemon, leash.path, "hang"),), daemon=True).start()
    threading.Thread(target=call, args=(Call(tools.ignores_signals, leash.path),), daemon=True).start()
    threading.Thread(target=lambda: deadstop.batch([Call(tools.hang)] * 3, parallel=3), daemon=True).start()
    until(lambda: leash.state() == "held")
    names = until(lambda: (found := own_processes()).count("deadstop-worker") >= 5 and found)
    tell(pid=os.getpid(), names=names)
    time.sleep(30)


def supervisor_killed():
    leash = Leash()
    call(tools.plus, 1)

    def strike():
        until(lambda: leash.state() == "held")
        os.kill(supervisor_pid(), signal.SIGKILL)

    threading.Thread(target=strike).start()
    result, elapsed = timed(lambda: call(Call(tools.hang, leash.path).options(timeout=20)))
    state = leash.state()
    until(lambda: leash.state() == "let go", 3)
    following, next_s = timed(lambda: call(tools.plus, 1))
    begun = time.monotonic()
    again = call(Call(tools.hang).options(timeout=0.3))
    tell(result=seen(result, elapsed=elapsed), leash=state, next=following.value, next_s=next_s, again=seen(again),
         again_s=time.monotonic() - begun, names=own_processes())  # fmt: skip


def supervisor_killed_between():
    call(tools.plus, 1)
    os.kill(supervisor_pid(), signal.SIGKILL)
    time.sleep(0.1)
    tell(values=[seen(call(tools.plus, number)) for number in range(3)])


def _is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


def supervisor_stopped():
    leash = Leash()
    call(tools.plus, 1)
    pid = supervisor_pid()
    begun = time.monotonic()

    def strike():
        until(lambda: leash.state() == "held")
        os.kill(pid, signal.SIGSTOP)

    threading.Thread(target=strike).start()
    result = call(Call(tools.hang, leash.path).options(timeout=0.5))
    elapsed = time.monotonic() - begun
    state = leash.state()
    following, next_s = timed(lambda: call(tools.plus, 1))
    until(lambda: _is_gone(pid), 5)
    until(lambda: leash.state() == "let go", 3)
    tell(result=seen(result), elapsed=elapsed, leash=state, next=following.value, next_s=next_s, gone=_is_gone(pid))


def supervisor_stopped_async():
    import asyncio

    leash = Leash()
    call(tools.plus, 1)

    async def body():
        task = asyncio.create_task(deadstop.call_async(Call(tools.hang, leash.path).options(timeout=0.5)))
        while leash.state() != "held":
            await asyncio.sleep(0.002)
        os.kill(supervisor_pid(), signal.SIGSTOP)
        begun = time.monotonic()
        result = await task
        return result, time.monotonic() - begun

    result, elapsed = asyncio.run(body())
    until(lambda: leash.state() == "let go", 3)
    tell(result=seen(result), elapsed=elapsed, next=call(tools.plus, 1).value)


def forked():
    """A child of the caller has workers of its own, and its parent's call goes on."""
    leash, got = Leash(), []
    call(tools.plus, 1)
    thread = threading.Thread(
        target=lambda: got.append(call(Call(tools.sleep, 0.8, "the parent's").options(timeout=5)))
    )
    thread.start()
    other = threading.Thread(target=lambda: got.append(call(Call(tools.hang, leash.path).options(timeout=0.7))))
    other.start()
    until(lambda: leash.state() == "held")
    pid = os.fork()
    if pid == 0:
        try:
            values = [call(tools.plus, 5).value, call(Call(tools.hang).options(timeout=0.2)).status]
            values += [one.value for one in deadstop.batch([Call(tools.plus, 1), Call(tools.plus, 2)], parallel=2)]
            os.write(1, (json.dumps({"child": values}) + "\n").encode())
        finally:
            os._exit(0)
    thread.join()
    other.join()
    _, status = os.waitpid(pid, 0)
    by_tool = {one.tool: one for one in got}
    tell(parent=seen(by_tool["sleep"]), hung=seen(by_tool["hang"]), status=status, next=call(tools.plus, 1).value)


def ends_at_once():
    """The program's end does not wait for what was given up."""
    begun = time.monotonic()
    for _ in range(3):
        call(Call(tools.hang).options(timeout=0.1))
    threading.Thread(target=call, args=(Call(tools.hang).options(timeout=30),), daemon=True).start()
    time.sleep(0.1)
    tell(begun=begun, at=time.monotonic())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
