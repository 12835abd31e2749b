# SPDX-License-Identifier: Apache-2.0
"""Why does this call not end: read from the kernel, before the kill, within a small budget."""

from .collect import collect
from .prompts import ended_on_prompt, prompt_loop
from .view import View
from .watch import watch_input

__all__ = ["View", "collect", "ended_on_prompt", "prompt_loop", "watch_input"]
