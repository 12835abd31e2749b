# SPDX-License-Identifier: Apache-2.0
"""Tools with effects. The effect is a line in the file named by EFFECTS: the authority's own record."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import deadstop
from deadstop import Effect, Finding, NotSent, Operation, Rejected, Verdict


def record() -> Path:
    return Path(os.environ["EFFECTS"])


def lines() -> list[str]:
    return record().read_text().split() if record().exists() else []


def find(op: Operation) -> Finding:
    """What the authority knows of it."""
    return Finding(Verdict.APPLIED if op.key in lines() else Verdict.DEFINITELY_ABSENT, reference=op.key)


SAFE = Effect(
    retry="if_not_accepted", fingerprint=["amount"], reconcile=find, consistent=True, target="account {amount}"
)  # fmt: skip
BLIND = Effect(fingerprint=["amount"])


def pay(op: Operation, amount: int, how: str = "ok") -> dict[str, object]:
    match how:
        case "hang before":
            time.sleep(30)
        case "not sent":
            raise NotSent("connection refused")
        case "rejected":
            raise Rejected("no such account", reference="err_1")
    with record().open("a") as file:
        file.write(f"{op.key}\n")
    match how:
        case "hang after":
            time.sleep(30)
        case "raise":
            raise ConnectionResetError("ack lost")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(0)
        case "unprintable":
            return {"amount": object.__new__(object)}
    return {"paid": amount, "attempt": op.attempt, "correlation": op.correlation}


def blindly(amount: int, how: str = "ok") -> str:
    with record().open("a") as file:
        file.write(f"{amount}\n")
    if how == "raise":
        raise ConnectionResetError("ack lost")
    return "done"


async def pay_async(op: Operation, amount: int) -> int:
    with record().open("a") as file:
        file.write(f"{op.key}\n")
    return amount


pay_tool = deadstop.tool(pay, timeout=5, effect=SAFE)
async_tool = deadstop.tool(pay_async, timeout=5, effect=SAFE)


def telling(op: Operation, amount: int) -> int:
    with record().open("a") as file:
        file.write(f"{op.key}\n")
    deadstop.progress("half of it")
    time.sleep(30)
    return amount


telling_tool = deadstop.tool(telling, timeout=5, effect=SAFE)


class Account:
    def __init__(self, name: str) -> None:
        self.name = name

    @deadstop.tool(
        timeout=5,
        effect=Effect(fingerprint=["self.name", "amount"], reconcile=find, consistent=True),
        name="account_pay",
    )
    def pay(self, amount: int) -> int:
        with record().open("a") as file:
            file.write(f"{self.name}\n")
        return amount


def odd(
    amount: int, more: int = 3, op: Operation | None = None, /, **rest: int
) -> tuple[int, int, str, dict[str, int]]:
    return amount, more, type(op).__name__, rest


def slow(op: Operation, amount: int) -> int:
    time.sleep(0.5)
    with record().open("a") as file:
        file.write(f"{op.key}\n")
    return amount


slow_tool = deadstop.tool(slow, timeout=5, effect=SAFE, soft_timeout=0.1, on_soft=lambda asked: "detach")


def begin(op: Operation, amount: int) -> deadstop.Deferred:
    return deadstop.defer("begun")


deferred_tool = deadstop.tool(begin, timeout=5, effect=SAFE)


@deadstop.tool(timeout=10, effect=SAFE)
def within(op: Operation, amount: int, how: str) -> None:
    """Has an effect of its own, then asks another tool for one."""
    with record().open("a") as file:
        file.write(f"{op.key}\n")
    pay_tool(amount, how)


@deadstop.tool(timeout=10, effect="none")
def step(amount: int) -> str:
    """A step of a run, in a worker, that calls a tool with effects."""
    return deadstop.call(pay_tool, amount).operation["correlation_id"]
