# SPDX-License-Identifier: Apache-2.0
"""PraisonAI's tool-call executor, by the names and rules its callers know, on an engine that ends calls.

    from deadstop.compat.praisonai import ToolCall, create_tool_call_executor

What differs from theirs, and why, is listed in docs/compat-praisonai.md.
"""

from ._praisonai_batches import (
    ParallelToolCallExecutor,
    SequentialToolCallExecutor,
    ToolCallExecutor,
    create_tool_call_executor,
)
from ._praisonai_calls import run_single_tool_call
from ._praisonai_deferred import DeferredResolver, get_deferred_resolver, register_deferred, resolve_deferred
from ._praisonai_interrupt import InterruptController
from ._praisonai_paths import (
    detect_path_conflicts,
    extract_paths,
    group_by_conflicts,
    has_write_conflicts,
    paths_conflict,
)
from ._praisonai_seconds import effective_tool_timeout, wrap_with_timeout
from ._praisonai_types import (
    DeferredToolResult,
    OnProgress,
    ToolCall,
    ToolCancelledError,
    ToolCapacityError,
    ToolExecutionError,
    ToolExitError,
    ToolNotSendableError,
    ToolProgress,
    ToolRemoteError,
    ToolResult,
    ToolTimeoutError,
    defer,
)

__all__ = [
    "DeferredResolver",
    "DeferredToolResult",
    "InterruptController",
    "OnProgress",
    "ParallelToolCallExecutor",
    "SequentialToolCallExecutor",
    "ToolCall",
    "ToolCallExecutor",
    "ToolCancelledError",
    "ToolCapacityError",
    "ToolExecutionError",
    "ToolExitError",
    "ToolNotSendableError",
    "ToolProgress",
    "ToolRemoteError",
    "ToolResult",
    "ToolTimeoutError",
    "create_tool_call_executor",
    "defer",
    "detect_path_conflicts",
    "effective_tool_timeout",
    "extract_paths",
    "get_deferred_resolver",
    "group_by_conflicts",
    "has_write_conflicts",
    "paths_conflict",
    "register_deferred",
    "resolve_deferred",
    "run_single_tool_call",
    "wrap_with_timeout",
]
