# SPDX-License-Identifier: Apache-2.0
"""The published schema, the example of the contract, and results of every status agree."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from deadstop.results import (
    Diagnosis,
    Evidence,
    FileTail,
    FiredLimit,
    LimitReport,
    Output,
    ProcessSeen,
    Receipt,
    Status,
    ToolResult,
    Unkillable,
)
from deadstop.schema import result_schema

CHECK = jsonschema.Draft202012Validator(result_schema())

EXAMPLE: dict[str, Any] = json.loads(r"""
{
  "schema": "deadstop.result/1",
  "call_id": "call_...", "tool": "bash", "task_id": null,
  "status": "timeout",
  "reason": null,
  "limit": {"which": "call", "seconds": 30.0, "source": "given"},
  "limits": {"memory": {"value": 536870912, "enforced_by": "cgroup"}, "disk": null},
  "exit_code": null, "signal": null, "value": null,
  "started_at": "2026-11-30T12:00:00.000Z", "duration_s": 30.004, "queued_s": 0.0,
  "stdout": {"tail": "...Proceed? [Y/n] ", "bytes_total": 8123, "bytes_dropped": 0, "truncated": false},
  "stderr": {"tail": "", "bytes_total": 0, "bytes_dropped": 0, "truncated": false},
  "effect": "undeclared",
  "retry_allowed": false,
  "receipt": {"boundary": "process", "method": ["cgroup.kill", "pidfd"], "proof": "pid_namespace_reaped",
              "survivors": 0, "processes": 4, "kill_ms": 1.1, "deadline_to_dead_ms": 2.3,
              "escalated": false, "unkillable": []},
  "evidence": {"diagnosis": {"kind": "waiting_for_input",
                             "detail": "pid 4 (bash) blocked reading its terminal or a pipe nobody writes"},
               "processes": [{"pid": 4, "cmd": "bash deploy.sh", "state": "S", "waiting_in": "pipe_read",
                              "cpu_s": 0.01}], "stacks": null,
               "took_ms": 9.0, "complete": true},
  "environment": "the process tree was destroyed; files it wrote remain",
  "hint": "it was waiting for input: run it non-interactively",
  "degraded": [],
  "error": {"error": true, "kind": "timeout", "type": "ToolTimeoutError",
            "message": "timed out after 30s", "tool": "bash"},
  "operation": null
}
""")

KEYS_ADDED_LATER = ["gap_s", "leftover", "start_errno", "late", "progress", "deferred", "traceback"]

ENDS: list[dict[str, Any]] = [
    {"status": Status.COMPLETED, "exit_code": 3, "leftover": ("sleep",), "gap_s": 0.2},
    {"status": Status.COMPLETED, "value": {"any": ["thing", 1.5, None]}},
    {"status": Status.ERROR, "error_type": "ValueError", "error_message": "no"},
    {"status": Status.ERROR, "start_errno": 2},
    {"status": Status.TIMEOUT, "limit": FiredLimit("idle", 5.0, "default"), "stdout": Output(b"\xff", 9, 8)},
    {"status": Status.CANCELLED, "reason": "owner_gone"},
    {"status": Status.SIGNALED, "signal": 11},
    {"status": Status.CRASHED},
    {"status": Status.RESOURCE_LIMIT, "limit": FiredLimit("memory")},
    {"status": Status.REFUSED, "reason": "capacity"},
    {"status": Status.UNKNOWN, "effect": "unknown", "operation": {"id": "op_1", "reconcile": "GET /op_1"}},
]
FULL: dict[str, Any] = {
    "limits": {"pids": LimitReport(64, "cgroup", "default"), "disk": None},
    "receipt": Receipt("process", ("pidfd",), "scan", 1, 2, 0.1, None, True, (Unkillable(7, "dd"),)),
    "evidence": Evidence(
        Diagnosis("cpu_spin", "pid 4 spins", 4, 1.0, None, 3.0, (1, 4)),
        (ProcessSeen(4, 4711, "spin", "R", None, 2.0),),
        files=(FileTail("log", error="no such file"),),
    ),
}


def test_the_schema_itself_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(result_schema())


def test_every_caller_gets_a_schema_of_its_own() -> None:
    result_schema().clear()
    assert result_schema()["title"] == "deadstop.result/1"


def test_the_statuses_are_those_of_the_code() -> None:
    assert result_schema()["properties"]["status"]["enum"] == [status.value for status in Status]
    assert {end["status"] for end in ENDS} == set(Status)


def test_the_example_of_the_contract_is_valid() -> None:
    CHECK.validate(EXAMPLE)


def test_a_result_has_the_keys_of_the_contract_in_its_order() -> None:
    again = ToolResult.from_dict(EXAMPLE).to_dict()
    assert list(again) == [*EXAMPLE, *KEYS_ADDED_LATER]
    assert list(again["receipt"]) == list(EXAMPLE["receipt"])
    assert list(again["evidence"])[:5] == list(EXAMPLE["evidence"])
    assert list(again["evidence"]["processes"][0])[:5] == list(EXAMPLE["evidence"]["processes"][0])
    assert list(again["stdout"]) == list(EXAMPLE["stdout"])
    assert again["error"] == EXAMPLE["error"]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end["status"].value)
@pytest.mark.parametrize("rest", [{}, FULL], ids=["bare", "full"])
def test_results_of_every_status_are_valid(end: dict[str, Any], rest: dict[str, Any]) -> None:
    result = ToolResult(tool="bash", **end, **rest)
    CHECK.validate(json.loads(result.to_json()))
    assert ToolResult.from_dict(result.to_dict()) == result


@pytest.mark.parametrize(
    "change",
    [
        {"status": "done"},
        {"reason": "because"},
        {"effect": "maybe"},
        {"limit": {"which": "lunch", "seconds": 1.0, "source": "given"}},
        {"limit": {"which": "call", "seconds": 1.0, "source": "guessed"}},
        {"limit": None},
        {"error": None},
        {"error": {**EXAMPLE["error"], "kind": "oops"}},
        {"error": {**EXAMPLE["error"], "more": 1}},
        {"receipt": {**EXAMPLE["receipt"], "proof": "trust me"}},
        {"receipt": {**EXAMPLE["receipt"], "survivors": -1}},
        {"evidence": {**EXAMPLE["evidence"], "diagnosis": {"kind": "tired", "detail": ""}}},
        {"stdout": {**EXAMPLE["stdout"], "head": ""}},
        {"status": "cancelled", "reason": "budget"},
        {"status": "refused", "reason": "caller"},
    ],
)
def test_the_closed_sets_are_closed(change: dict[str, Any]) -> None:
    assert not CHECK.is_valid({**EXAMPLE, **change})


def test_new_keys_may_be_added_at_the_top_only() -> None:
    assert CHECK.is_valid({**EXAMPLE, "key_of_the_future": 1})


@pytest.mark.parametrize("key", list(EXAMPLE))
def test_no_key_of_the_contract_may_be_missing(key: str) -> None:
    assert not CHECK.is_valid({k: v for k, v in EXAMPLE.items() if k != key})
