# SPDX-License-Identifier: Apache-2.0
"""Places at which this process can be made to die, for tests: `DEADSTOP_CRASH_AT=claim.committed` or `...:3`.

The process kills itself with SIGKILL when it passes that place (the third time). `DEADSTOP_CRASH_RECORD=FILE` notes
every place that was passed instead. Without these variables a place costs one comparison.
"""

from __future__ import annotations

import os
import signal

__all__ = ["at"]

AT_VARIABLE = "DEADSTOP_CRASH_AT"
RECORD_VARIABLE = "DEADSTOP_CRASH_RECORD"

_where, _, _count = os.environ.get(AT_VARIABLE, "").partition(":")
_left = int(_count) if _count.isdigit() else 1
_record = os.environ.get(RECORD_VARIABLE)
_armed = bool(_where or _record)


def at(name: str) -> None:
    """This place. Its name is in tests/ledger with what must be true after a death here."""
    if _armed:
        _pass(name)


def _pass(name: str) -> None:
    global _left
    if _record:
        with open(_record, "a") as file:
            file.write(f"{name}\n")
    if name == _where:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
