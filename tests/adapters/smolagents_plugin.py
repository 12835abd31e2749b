# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin (`-p smolagents_plugin`): smolagents' own executor tests, unmodified, run through this project's.

Test modules take the names from smolagents when they are collected, so replacing them before that is enough.
"""

from __future__ import annotations

from smolagents import local_python_executor

from deadstop.adapters.smolagents import DeadstopPythonExecutor, evaluate_python_code

local_python_executor.evaluate_python_code = evaluate_python_code
local_python_executor.LocalPythonExecutor = DeadstopPythonExecutor
