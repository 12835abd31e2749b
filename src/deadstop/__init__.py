# SPDX-License-Identifier: Apache-2.0
"""deadstop: every tool call ends, and you know how it ended.

Layers, low to high; a module imports only from lower ones (docs/design.md):

    0  model  results  errors  clock        words: frozen data, no I/O
    1  deadlines  budget  cancel  wire      arithmetic and small state
    2  boundary/                            where code runs: start, watch, evidence, kill, proof
    2  ledger/                              what happened: operations, attempts, evidence, the log
    3  executor/  guard/                    how a call is asked for and its result fetched; early refusals
    4  supervisor/  worker/                 the process that keeps deadlines and kills; those that run functions
    5  sandbox/                             sandboxes with a life of their own, no HTTP
    6  server/  client/                     the same over HTTP, and its Python client
    6  effects/  testing/                   HTTP and SSH effects, the reconciler, delivery; an authority for tests
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
    from .effects.http import AsyncHttpEffects as AsyncHttpEffects
    from .effects.http import HttpEffects as HttpEffects
    from .effects.on_demand import reconcile as reconcile
    from .effects.ssh import SshEffects as SshEffects
    from .errors import Accepted as Accepted
    from .errors import BoundaryUnavailable as BoundaryUnavailable
    from .errors import CapacityError as CapacityError
    from .errors import DeadstopError as DeadstopError
    from .errors import EffectError as EffectError
    from .errors import FileProblem as FileProblem
    from .errors import IllegalTransition as IllegalTransition
    from .errors import InternalError as InternalError
    from .errors import InvalidLimit as InvalidLimit
    from .errors import KeyConflict as KeyConflict
    from .errors import LedgerBroken as LedgerBroken
    from .errors import LedgerError as LedgerError
    from .errors import LedgerUnavailable as LedgerUnavailable
    from .errors import MissingExtra as MissingExtra
    from .errors import NotAllowed as NotAllowed
    from .errors import NotFound as NotFound
    from .errors import NotSent as NotSent
    from .errors import OperationConflict as OperationConflict
    from .errors import OperationNotFound as OperationNotFound
    from .errors import OutcomeUnknown as OutcomeUnknown
    from .errors import Rejected as Rejected
    from .errors import SandboxEnded as SandboxEnded
    from .errors import SandboxError as SandboxError
    from .errors import SandboxPaused as SandboxPaused
    from .errors import ServerUnreachable as ServerUnreachable
    from .errors import StaleClaim as StaleClaim
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
    from .executor.declared import UnansweredEffect as UnansweredEffect
    from .executor.decorator import tool as tool
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
    from .ledger.definition import Effect as Effect
    from .ledger.ledger import Ledger as Ledger
    from .ledger.queries import FunctionQuery as FunctionQuery
    from .ledger.queries import HttpQuery as HttpQuery
    from .ledger.queries import SqlQuery as SqlQuery
    from .ledger.queries import SshQuery as SshQuery
    from .ledger.records import Finding as Finding
    from .ledger.states import Verdict as Verdict
    from .messages import check as check
    from .messages import progress as progress
    from .model import Isolation as Isolation
    from .operation import Acting as Acting
    from .operation import Operation as Operation
    from .operation import acting as acting
    from .results import Progress as Progress
    from .results import Status as Status
    from .results import ToolResult as ToolResult

_HOME = {
    "reconcile": "effects.on_demand",
    "HttpEffects": "effects.http",
    "AsyncHttpEffects": "effects.http",
    "SshEffects": "effects.ssh",
    "Effect": "ledger.definition",
    "Operation": "operation",
    "Acting": "operation",
    "acting": "operation",
    "Ledger": "ledger.ledger",
    "HttpQuery": "ledger.queries",
    "SqlQuery": "ledger.queries",
    "SshQuery": "ledger.queries",
    "FunctionQuery": "ledger.queries",
    "Finding": "ledger.records",
    "Verdict": "ledger.states",
    "UnansweredEffect": "executor.declared",
    "Accepted": "errors",
    "EffectError": "errors",
    "IllegalTransition": "errors",
    "LedgerBroken": "errors",
    "LedgerError": "errors",
    "LedgerUnavailable": "errors",
    "MissingExtra": "errors",
    "NotSent": "errors",
    "OperationConflict": "errors",
    "OperationNotFound": "errors",
    "Rejected": "errors",
    "StaleClaim": "errors",
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
    "tool": "executor.decorator",
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
    "Accepted",
    "Acting",
    "AsyncHttpEffects",
    "AsyncSandbox",
    "Boundary",
    "BoundaryUnavailable",
    "Call",
    "CancelToken",
    "CapacityError",
    "DeadstopError",
    "Effect",
    "EffectError",
    "FileProblem",
    "Finding",
    "FunctionQuery",
    "HttpEffects",
    "HttpQuery",
    "IllegalTransition",
    "InternalError",
    "InvalidLimit",
    "Isolation",
    "KeptWorker",
    "KeyConflict",
    "Ledger",
    "LedgerBroken",
    "LedgerError",
    "LedgerUnavailable",
    "MissingExtra",
    "NotAllowed",
    "NotFound",
    "NotSent",
    "Operation",
    "OperationConflict",
    "OperationNotFound",
    "OutcomeUnknown",
    "Progress",
    "RaceResult",
    "Rejected",
    "Sandbox",
    "SandboxEnded",
    "SandboxError",
    "SandboxPaused",
    "ServerUnreachable",
    "SoftLimit",
    "SqlQuery",
    "SshEffects",
    "SshQuery",
    "StaleClaim",
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
    "UnansweredEffect",
    "UsageError",
    "Verdict",
    "__version__",
    "acting",
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
    "reconcile",
    "remaining",
    "run",
    "run_async",
    "tool",
]


def __getattr__(name: str) -> object:
    if name in ("deferred", "guard", "effects", "ledger", "testing"):
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
