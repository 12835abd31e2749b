# SPDX-License-Identifier: Apache-2.0
"""The error tree."""

from __future__ import annotations

import copy
import pickle

import pytest

from deadstop import errors
from deadstop.errors import BoundaryUnavailable, DeadstopError, OutcomeUnknown, ToolError, UsageError
from deadstop.results import FiredLimit, Status, ToolResult

TOOL_ERRORS = [getattr(errors, name) for name in errors.__all__ if name.startswith("Tool")] + [OutcomeUnknown]


def test_every_error_is_a_deadstop_error() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), DeadstopError)


def test_only_the_timeout_is_a_timeout_error() -> None:
    assert [kind.__name__ for kind in TOOL_ERRORS if issubclass(kind, TimeoutError)] == ["ToolTimeoutError"]
    assert not issubclass(OutcomeUnknown, OSError)


def test_usage_errors_are_value_errors() -> None:
    assert issubclass(UsageError, ValueError)
    assert issubclass(errors.InvalidLimit, UsageError)
    assert not issubclass(ToolError, ValueError)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = errors.__doc__ or ""
    assert [name for name in errors.__all__ if name not in drawn] == []


@pytest.mark.parametrize("kind", TOOL_ERRORS)
@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_tool_error_keeps_its_result_when_copied_and_pickled(kind: type[ToolError], again: object) -> None:
    result = ToolResult(tool="bash", status=Status.TIMEOUT, limit=FiredLimit("call", 30.0))
    error = kind("bash: timed out", result)
    same = again(error)  # type: ignore[operator]
    assert type(same) is kind
    assert (str(same), same.result) == ("bash: timed out", result)


def test_boundary_unavailable_says_reason_and_fix() -> None:
    error = pickle.loads(pickle.dumps(BoundaryUnavailable("sandbox", "no user namespaces", "set the sysctl")))
    assert (error.level, error.reason, error.fix) == ("sandbox", "no user namespaces", "set the sysctl")
    assert str(error) == ("the sandbox boundary is not available on this host: no user namespaces; set the sysctl")
    assert str(BoundaryUnavailable("microvm", "no /dev/kvm")).endswith("no /dev/kvm")
