# SPDX-License-Identifier: Apache-2.0
"""deadstop: every tool call ends, and you know how it ended.

Layers, low to high; a module imports only from lower ones (docs/design.md):

    0  model  results  errors  clock        words: frozen data, no I/O
    1  deadlines  budget  cancel  wire      arithmetic and small state
    2  boundary/                            where code runs: start, watch, evidence, kill, proof
    3  executor/  guard/                    how a call is asked for and its result fetched; early refusals
    4  supervisor/  worker/                 the process that keeps deadlines and kills; those that run functions
    5  sandbox/                             sandboxes with a life of their own, no HTTP
    6  server/  client/                     the same over HTTP, and its Python client
    6  adapters/  compat/                   faces for frameworks, one file each
    7  cli/

Names are loaded when they are first used: `import deadstop` costs next to nothing, and the supervisor and the command
line load only what they need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._version import __version__ as __version__
    from .budget import Task as Task
    from .cancel import CancelToken as CancelToken
    from .client.asynchronous import AsyncSandbox as AsyncSandbox
    from .client.synchronous import Sandbox as Sandbox
    from .deadlines import deadline as deadline
    from .deadlines import remaining as remaining
    from .deferred import defer as defer
    from .errors import BoundaryUnavailable as BoundaryUnavailable
    from .errors import CapacityError as CapacityError
    from .errors import DeadstopError as DeadstopError
    from .errors import FileProblem as FileProblem
    from .errors import InternalError as InternalError
    from .errors import InvalidLimit as InvalidLimit
    from .errors import KeyConflict as KeyConflict
    from .errors import NotAllowed as NotAllowed
    from .errors import NotFound as NotFound
    from .errors import OutcomeUnknown as OutcomeUnknown
    from .errors import SandboxEnded as SandboxEnded
    from .errors import SandboxError as SandboxError
    from .errors import SandboxPaused as SandboxPaused
    from .errors import ServerUnreachable as ServerUnreachable
    from .errors import ToolCancelledError as ToolCancelledError
    from .errors import ToolCrashedError as ToolCrashedError
    from .errors import ToolError as ToolError
    from .errors import ToolExitError as ToolExitError
    from .errors import ToolRefusedError as ToolRefusedError
    from .errors import ToolResourceError as ToolResourceError
    from .errors import ToolSignaledError as ToolSignaledError
    from .errors import ToolStartError as ToolStartError
    from .errors import ToolTimeoutError as ToolTimeoutError
    from .errors import UsageError as UsageError
    from .executor.batch import batch as batch
    from .executor.batch import batch_async as batch_async
    from .executor.boundary import Boundary as Boundary
    from .executor.function import call as call
    from .executor.function_async import call_async as call_async
    from .executor.kept import KeptWorker as KeptWorker
    from .executor.race import RaceResult as RaceResult
    from .executor.race import race as race
    from .executor.race import race_async as race_async
    from .executor.run import run as run
    from .executor.run import run_async as run_async
    from .executor.soft import SoftLimit as SoftLimit
    from .executor.tool import Call as Call
    from .executor.tool import Tool as Tool
    from .executor.tool import tool as tool
    from .messages import check as check
    from .messages import progress as progress
    from .model import Isolation as Isolation
    from .results import Progress as Progress
    from .results import Status as Status
    from .results import ToolResult as ToolResult

_HOME = {
    "AsyncSandbox": "client.asynchronous",
    "Sandbox": "client.synchronous",
    "__version__": "_version",
    "CancelToken": "cancel",
    "deadline": "deadlines",
    "remaining": "deadlines",
    "batch": "executor.batch",
    "batch_async": "executor.batch",
    "race": "executor.race",
    "race_async": "executor.race",
    "RaceResult": "executor.race",
    "Call": "executor.tool",
    "KeptWorker": "executor.kept",
    "Tool": "executor.tool",
    "tool": "executor.tool",
    "call": "executor.function",
    "call_async": "executor.function_async",
    "progress": "messages",
    "check": "messages",
    "Task": "budget",
    "defer": "deferred",
    "SoftLimit": "executor.soft",
    "Progress": "results",
    "Boundary": "executor.boundary",
    "run": "executor.run",
    "run_async": "executor.run",
    "Isolation": "model",
    "Status": "results",
    "ToolResult": "results",
    "BoundaryUnavailable": "errors",
    "DeadstopError": "errors",
    "InternalError": "errors",
    "InvalidLimit": "errors",
    "OutcomeUnknown": "errors",
    "CapacityError": "errors",
    "FileProblem": "errors",
    "KeyConflict": "errors",
    "NotAllowed": "errors",
    "NotFound": "errors",
    "SandboxEnded": "errors",
    "SandboxError": "errors",
    "SandboxPaused": "errors",
    "ServerUnreachable": "errors",
    "ToolCancelledError": "errors",
    "ToolCrashedError": "errors",
    "ToolError": "errors",
    "ToolExitError": "errors",
    "ToolRefusedError": "errors",
    "ToolResourceError": "errors",
    "ToolSignaledError": "errors",
    "ToolStartError": "errors",
    "ToolTimeoutError": "errors",
    "UsageError": "errors",
}

__all__ = [
    "AsyncSandbox",
    "Boundary",
    "BoundaryUnavailable",
    "Call",
    "CancelToken",
    "CapacityError",
    "DeadstopError",
    "FileProblem",
    "InternalError",
    "InvalidLimit",
    "Isolation",
    "KeptWorker",
    "KeyConflict",
    "NotAllowed",
    "NotFound",
    "OutcomeUnknown",
    "Progress",
    "RaceResult",
    "Sandbox",
    "SandboxEnded",
    "SandboxError",
    "SandboxPaused",
    "ServerUnreachable",
    "SoftLimit",
    "Status",
    "Task",
    "Tool",
    "ToolCancelledError",
    "ToolCrashedError",
    "ToolError",
    "ToolExitError",
    "ToolRefusedError",
    "ToolResourceError",
    "ToolResult",
    "ToolSignaledError",
    "ToolStartError",
    "ToolTimeoutError",
    "UsageError",
    "__version__",
    "batch",
    "batch_async",
    "call",
    "call_async",
    "check",
    "deadline",
    "defer",
    "progress",
    "race",
    "race_async",
    "remaining",
    "run",
    "run_async",
    "tool",
]


def __getattr__(name: str) -> object:
    if name in ("deferred", "guard"):
        return importlib.import_module(f".{name}", __name__)
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value: object = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
