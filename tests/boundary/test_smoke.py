# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from hosts import Host


def test_a_command_completes(host: Host) -> None:
    result = host.run("--", "bash", "-c", "echo out; echo err >&2; exit 3")
    assert (result["status"], result["exit_code"], result["receipt"]) == ("completed", 3, None)
    assert (result["stdout"]["tail"], result["stderr"]["tail"]) == ("out\n", "err\n")


def test_a_hanging_command_is_killed_with_a_receipt(host: Host) -> None:
    result = host.run("--timeout", "1", "--", "bash", "-c", "setsid sleep 41 & trap '' TERM; sleep 42 & wait; sleep 43")
    assert result["status"] == "timeout"
    assert result["receipt"]["survivors"] == 0
    assert result["receipt"]["proof"] == host.proof
    host.no_survivors()
