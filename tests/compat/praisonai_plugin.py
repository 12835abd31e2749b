# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin (`-p praisonai_plugin`) that puts our executor where PraisonAI's own tests import theirs from."""

from __future__ import annotations

import sys
import types

from deadstop.compat import praisonai

_MODULES = {
    "praisonaiagents": "",
    "praisonaiagents.errors": "ToolExecutionError",
    "praisonaiagents.tools": (
        "ToolProgress DeferredToolResult defer DeferredResolver get_deferred_resolver register_deferred "
        "resolve_deferred"
    ),
    "praisonaiagents.tools.call_executor": " ".join(praisonai.__all__),
    "praisonaiagents.tools.path_overlap": (
        "extract_paths paths_conflict detect_path_conflicts has_write_conflicts group_by_conflicts"
    ),
    "praisonaiagents.agent": "",
    "praisonaiagents.agent.interrupt": "InterruptController",
}

for name, names in _MODULES.items():
    module = types.ModuleType(name)
    vars(module).update({each: getattr(praisonai, each) for each in names.split()})
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
