# SPDX-License-Identifier: Apache-2.0
"""A program that pays once, written in several ways: `python baseline_program.py WHICH FOLDER AMOUNT [kill]`.

The authority is a file: each payment is a line of it, there for good once it is written. With `kill` the program is
killed with SIGKILL after the payment and before whoever runs it could have noted that; started again without, it does
what its makers say to do after a crash. It prints what came of it as a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 20.0
LEASE_S = 0.3


def pay(amount: int) -> str:
    """The effect."""
    file = os.open(os.environ["PAYMENTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"paid {amount}\n".encode())
    os.close(file)
    if "KILL" in os.environ:
        time.sleep(DEADLINE_S)  # its program dies meanwhile
    return f"paid {amount}"


def with_dbos(folder: str, amount: int) -> str:
    """One workflow of one step. `launch` takes up what was under way, as its documentation says."""
    from dbos import DBOS, SetWorkflowID

    DBOS(config={
        "name": "baseline", "system_database_url": f"sqlite:///{folder}/dbos.sqlite", "log_level": "ERROR",
        "run_admin_server": False,
    })  # fmt: skip
    step = DBOS.step()(pay)

    @DBOS.workflow()
    def payment(amount: int) -> str:
        return str(step(amount))

    DBOS.launch()
    with SetWorkflowID("payment-1"):
        handle = DBOS.start_workflow(payment, amount)
    return str(handle.get_result())


def with_agent_outbox(folder: str, amount: int) -> str:
    """One call of one session. A lease that has run out is claimed again, as its documentation says."""
    from agent_outbox import OutboxStore, ToolExecutor

    executor = ToolExecutor(OutboxStore(f"{folder}/outbox.db"), lease_seconds=LEASE_S)
    execution = executor.run("pay", pay, {"amount": amount}, "session-1")
    return str(execution.error or execution.result)


def with_deadstop(folder: str, amount: int, **options: Any) -> object:
    """One call of a tool that says where its effect can be looked up."""
    from deadstop import Effect

    effect = Effect(
        retry="if_not_accepted", fingerprint=["amount"], reconcile=find_payment, consistent=True, target="{amount}"
    )
    return _call(effect, amount, **options)


def in_this_process(folder: str, amount: int) -> object:
    return with_deadstop(folder, amount, isolation="inline")


def with_nobody_to_ask(folder: str, amount: int) -> object:
    from deadstop import Effect

    return _call(Effect(fingerprint=["amount"]), amount)


def find_payment(op: Any) -> str:
    """What the authority says when it is asked."""
    with open(os.environ["PAYMENTS"]) as file:
        return "applied" if f"paid {op.target}\n" in file.readlines() else "definitely_absent"


def _call(effect: Any, amount: int, **options: Any) -> object:
    """Started again, it asks for the same thing; where that is unknown, it has the authority asked."""
    import deadstop
    from deadstop.effects.on_demand import reconcile

    tool = deadstop.tool(pay, timeout=DEADLINE_S, effect=effect, **options)
    result = deadstop.call(deadstop.Call(tool, amount).options(key="payment-1"))
    if result.status == "refused":
        return {"refused": result.reason}
    assert result.operation is not None
    state = result.operation["state"]
    if state == "UNKNOWN":
        state = reconcile(result.operation["id"]).state.value
    return {"state": state, "attempts": result.operation["attempt"]}


def die_when_paid() -> None:
    """Whichever process has paid."""
    while not os.path.exists(os.environ["PAYMENTS"]) or not os.path.getsize(os.environ["PAYMENTS"]):
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGKILL)


def main(which: str, folder: str, amount: str, *kill: str) -> None:
    os.environ["PAYMENTS"] = f"{folder}/payments"
    os.environ["DEADSTOP_LEDGER"] = f"{folder}/ledger.db"
    if kill:
        os.environ["KILL"] = "yes"
        threading.Thread(target=die_when_paid, daemon=True).start()
    print(json.dumps(PROGRAMS[which](folder, int(amount))), flush=True)
    os._exit(0)  # threads of theirs would take their time


PROGRAMS: dict[str, Callable[[str, int], object]] = {
    "dbos": with_dbos,
    "agent_outbox": with_agent_outbox,
    "deadstop": with_deadstop,
    "deadstop_inline": in_this_process,
    "deadstop_blind": with_nobody_to_ask,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
