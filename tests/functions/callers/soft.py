# SPDX-License-Identifier: Apache-2.0
"""The soft limit: frozen, asked, obeyed."""

from __future__ import annotations

import asyncio
import os
import time

import tools
from telling import Leash, hold, last, main, processes, seen, threads_of_ours, timed, until, waits

import deadstop
from deadstop import Call, batch, call, call_async

FULL = bool(os.environ["IN_FULL"])  # then it is measured with nothing beside it


def ticks(path, count=100, leash=None):
    if leash:
        hold(leash)
    for number in range(count):
        with open(path, "a") as file:
            file.write(f"{time.monotonic()}\n")
        print(number)
        time.sleep(0.01)
    return count


def read(path):
    with open(path) as file:
        return [float(line) for line in file.read().split()]


def new_path():
    return os.path.join(os.environ["TMPDIR"], f"ticks-{os.urandom(4).hex()}")


def asked(answer, soft=0.15, count=60, limit=5.0, answer_s=2.0, leash=None, way=call):
    """One call of `ticks` whose question is answered by `answer`; what was asked, and its ticks."""
    path, questions = new_path(), []

    def on_soft(question):
        begun = time.monotonic()
        time.sleep(0.15)
        standing = len(read(path))
        questions.append({
            "elapsed_s": question.elapsed_s, "left_s": question.left_s, "answer_s": question.answer_s,
            "tail": question.tail[-20:],
            "tool": question.tool, "stacks": question.evidence.stacks if question.evidence else None,
            "model": question.for_model(),
            "ticks": standing, "begun": begun, "until": time.monotonic(),
            "kind": question.evidence.diagnosis.kind if question.evidence and question.evidence.diagnosis else None,
        })  # fmt: skip
        time.sleep(0.05)
        questions[-1]["ticks_later"] = len(read(path))
        return answer(len(questions)) if callable(answer) else answer

    options = {"soft_timeout": soft, "on_soft": on_soft, "timeout": limit, "soft_answer": answer_s}
    result, elapsed = timed(lambda: way(Call(ticks, path, count, leash).options(**options)))
    return {
        "result": seen(result, elapsed=elapsed),
        "questions": questions,
        "ticks": read(path),
        "handle": result.deferred,
    }


@waits
def extend():
    return asked("extend")


@waits
def number():
    return asked(lambda time_: 0.15 if time_ < 3 else "extend", count=60)


@waits
def kill():
    leash = Leash()
    return {**asked("kill", leash=leash.path), "leash": leash.state()}


@waits
def detach():
    told = asked("detach", count=40)
    begun = time.monotonic()
    later = deadstop.deferred.wait(told["handle"], 5)
    return {**told, "later": seen(later), "later_s": time.monotonic() - begun}


@waits
def detach_then_hard_limit():
    leash = Leash()
    told = asked("detach", count=1000, limit=0.8, leash=leash.path)
    later = deadstop.deferred.wait(told["handle"], 5)
    return {**told, "later": seen(later), "leash": leash.state()}


@waits
def other_answers():
    return {
        repr(answer): asked(answer)["result"] for answer in (None, "perhaps", -1, 0, float("nan"), float("inf"), True)
    }


@waits
def raises():
    def on_soft(question):
        raise ValueError("nobody to ask")

    path = new_path()
    result, elapsed = timed(lambda: call(Call(ticks, path).options(soft_timeout=0.15, on_soft=on_soft, timeout=5)))
    return seen(result, elapsed=elapsed)


@waits
def unanswered():
    def on_soft(question):
        time.sleep(1.6 if FULL else 3)
        return "extend"

    leash = Leash()
    result, elapsed = timed(
        lambda: call(
            Call(ticks, new_path(), 500, leash.path).options(
                soft_timeout=0.15, on_soft=on_soft, timeout=5, soft_answer=0.3
            )
        )
    )
    return seen(result, elapsed=elapsed, leash=leash.state())


@waits
def hard_limit_does_not_move():
    """Soft at 0.2, hard at 0.6, and whoever is asked sleeps."""

    def on_soft(question):
        time.sleep(1.5 if FULL else 3)
        return "extend"

    leash, dead = Leash(), []
    begun = time.monotonic()
    result = call(
        Call(ticks, new_path(), 500, leash.path).options(soft_timeout=0.2, on_soft=on_soft, timeout=0.6, soft_answer=10)
    )
    dead.append(time.monotonic() - begun)
    return seen(result, elapsed=dead[0], leash=leash.state())


@waits
def before_it():
    questions = []
    result = call(Call(tools.plus, 1).options(soft_timeout=0.3, on_soft=questions.append, timeout=2))
    return [result.value, questions]


@waits
def other_faces():
    def async_way(wanted):
        return asyncio.run(call_async(wanted))

    def batch_way(wanted):
        return batch([wanted, Call(tools.plus, 1)], parallel=2)[0]

    return {
        "async": asked("extend", way=async_way),
        "batch": asked("kill", way=batch_way),
        "async_kill": asked("kill", way=async_way),
    }


@waits
def with_children():
    """Everything it has started stands still, too."""
    path, counted = new_path(), []

    def on_soft(question):
        time.sleep(0.1)
        one = os.path.getsize(path)
        time.sleep(0.2)
        counted.append([one, os.path.getsize(path)])
        return "extend"

    result = call(Call(_child_ticks, path).options(soft_timeout=0.4, on_soft=on_soft, timeout=5))
    return {"result": seen(result), "sizes": counted, "after": os.path.getsize(path)}


def _child_ticks(path):
    import subprocess

    script = f"for i in $(seq 60); do printf x >>{path}; sleep 0.01; done"
    return subprocess.run(["bash", "-c", script], start_new_session=True).returncode


@waits
def cancelled_while_frozen():
    token, leash = deadstop.CancelToken(), Leash()

    def on_soft(question):
        token.set()
        time.sleep(0.1)
        return "extend"

    result, elapsed = timed(
        lambda: call(
            Call(ticks, new_path(), 500, leash.path).options(
                soft_timeout=0.15, on_soft=on_soft, timeout=3, cancel=token
            )
        )
    )
    return seen(result, elapsed=elapsed, leash=leash.state())


@last
def quiet():
    until(lambda: not threads_of_ours(), 4)
    stopped = [name for pid, (_, name) in processes().items() if _state(pid) == "T"]
    return {"threads": threads_of_ours(), "stopped": stopped, "next": call(tools.plus, 1).value}


def _state(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except OSError:
        return "gone"


if __name__ == "__main__":
    main()
