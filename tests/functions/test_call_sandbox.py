# SPDX-License-Identifier: Apache-2.0
"""Functions with isolation="sandbox": they are confined, and only plain data comes out."""

from __future__ import annotations

from typing import Any

import pytest
from calling import facts

from hosts import Host


def killed(result: dict[str, Any]) -> None:
    receipt = result["receipt"]
    assert (receipt["boundary"], receipt["proof"], receipt["survivors"]) == ("sandbox", "pid_namespace_reaped", 0)


def test_plain_data_comes_back_as_it_was(namespace_host: Host) -> None:
    told = facts(namespace_host, "confined", "plain_data")
    assert told["same"] is True and told["types"] == ["tuple", "set", "frozenset", "bytearray", "bytes"]
    assert told["large"] is True and told["argument"] == {"a": [1, "b'2'"]}


def test_the_network_cannot_be_reached(namespace_host: Host) -> None:
    assert "connected" not in facts(namespace_host, "confined", "confined")["network"]


def test_the_home_cannot_be_written_or_read(namespace_host: Host) -> None:
    told = facts(namespace_host, "confined", "confined")
    assert told["there"] == []
    assert told["sees"] == [False, False, False]
    assert "written" not in [result for path, result in told["writes"].items() if not path.startswith("/tmp/")]


@pytest.mark.parametrize("what", ["result", "raised", "subclass", "returns_class", "deep"])
def test_what_is_more_than_data_stays_inside_and_that_is_said(namespace_host: Host, what: str) -> None:
    told = facts(namespace_host, "confined", "bombs")
    result = told[what]
    assert result["status"] == "error" and result["exception"] is None
    message = result["error"]["message"]
    assert "with a bomb" in message if what == "raised" else "cannot leave a sandbox" in message
    assert told["exploded"] == [False, False, False]


def test_forged_answers_are_no_results(namespace_host: Host) -> None:
    told = facts(namespace_host, "confined", "bombs")
    assert told["forged"]["status"] in ("crashed", "error", "unknown", "completed")
    assert told["forged"]["value"] is None or isinstance(told["forged"]["value"], int)
    assert told["exploded"] == [False, False, False] and told["next"] == 0


def test_an_exception_arrives_as_type_text_and_traceback(namespace_host: Host) -> None:
    result = facts(namespace_host, "confined", "bombs")["value_error"]
    assert (result["error"]["type"], result["error"]["message"]) == ("ValueError", "inside")
    assert "in raises_value" in result["traceback"] and result["exception"] is None


@pytest.mark.parametrize("face", ["timeout", "timeout_async"])
def test_a_timeout_ends_the_whole_sandbox(namespace_host: Host, face: str) -> None:
    result = facts(namespace_host, "confined", "ends")[face]
    assert result["status"] == "timeout" and result["elapsed"] < 3
    assert result["stdout"]["tail"] == "before it hung\n"
    assert result["receipt"]["processes"] >= 2
    killed(result)


def test_a_crash_and_what_is_left_behind(namespace_host: Host) -> None:
    told = facts(namespace_host, "confined", "ends")
    assert (told["dies"]["status"], told["dies"]["exit_code"]) == ("crashed", 4)
    assert (told["leaves"]["status"], told["leaves"]["value"], told["leaves"]["leftover"]) == (
        "completed", "left", ["sleep"],
    )  # fmt: skip
    killed(told["leaves"])
    assert "sleep" not in facts(namespace_host, "confined", "quiet")


def test_prints_async_and_the_time_left(namespace_host: Host) -> None:
    told = facts(namespace_host, "confined", "works")
    assert told["printed"]["stdout"]["tail"] == "printed inside\n" and told["printed"]["value"] == 0
    assert told["async"] == "napped" and told["parallel"] == ["napped"] * 4 and told["decorated"] is None


def test_messages_come_out_of_a_sandbox(namespace_host: Host) -> None:
    result = facts(namespace_host, "confined", "works")["told"]
    assert result["status"] == "completed", result["error"]
    assert [message["text"] for message in result["progress"]] == ["from inside"]
    assert 0 < result["value"] <= 10
