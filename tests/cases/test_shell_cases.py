# SPDX-License-Identifier: Apache-2.0
"""Commands that are known to break tool runners, on every host and in both boundaries. They are kept in inputs/."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from grounds import PROCESS, SANDBOX, Case, Ended, Table, completed, timed_out

import hosts
from deadstop.results import ToolResult

# The four hosts, and of the two sandboxes the ordinary user's: tests/sandboxes runs these cases as root's.
table = Table([*PROCESS, SANDBOX[-1]])
case = table.case

PROMPT_ENV_OFF = "--no-env-defaults"


# -- pipes and leftovers ---------------------------------------------------------------------------------------------


@case("01-grandchild-holds-pipe.sh")
def case_01_grandchild_holds_the_pipe(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out == "started\n"
    assert ended.receipt["processes"] >= 2


@case("02-fifo-writer-loop.sh")
def case_02_fifo_writer_loop(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out.splitlines() and set(ended.out.splitlines()) == {"tick"}
    assert ended.receipt["processes"] >= 3


@case("03-leader-exits-bg-keeps-pipe.sh", timeout=6)
def case_03_leader_exits_while_a_child_keeps_the_pipe(ended: Ended) -> None:
    completed(ended)
    assert ended.elapsed < 2.0 and ended.result["duration_s"] < 1.5
    assert ended.out.startswith("bg=")
    assert ended.result["leftover"] in (["sleep"], ["bash"])  # bash: forked, and not yet become sleep
    assert ended.receipt["survivors"] == 0 and ended.receipt["proof"] == ended.host.proof


@case("04-setsid-daemon-escape.sh")
def case_04_a_session_of_its_own_is_no_escape(ended: Ended) -> None:
    timed_out(ended)
    assert ended.receipt["processes"] >= 3
    assert "late" not in ended.out


@case("12-stderr-fills-unread-pipe.sh", timeout=2)
def case_12_stderr_is_drained(ended: Ended) -> None:
    completed(ended)
    assert ended.out == "answered\n"
    assert ended.result["stderr"]["bytes_total"] == 300_000
    assert ended.err.endswith("eeee") and ended.result["stderr"]["truncated"]


@case("31-late-write-after-timeout.sh", env={"TARGET": "late-write"}, grace=0.3)
def case_31_nothing_is_written_after_the_timeout(ended: Ended) -> None:
    timed_out(ended)
    target = Path(ended.host.folder, "late-write")
    while time.monotonic() < ended.began + 4.5:
        assert not target.exists()
        time.sleep(0.05)


# -- signals ---------------------------------------------------------------------------------------------------------


@case("05-ignores-sigterm.sh")
def case_05_sigterm_is_ignored(ended: Ended) -> None:
    timed_out(ended)
    assert ended.receipt["escalated"]
    assert ended.receipt["method"][0] == "SIGTERM" and len(ended.receipt["method"]) > 1
    assert ended.elapsed >= ended.timeout + ended.grace


@case("07-cleanup-handler-hangs.sh")
def case_07_the_cleanup_handler_hangs(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out == "cleaning\n"
    assert ended.receipt["escalated"]
    assert ended.elapsed >= ended.timeout + ended.grace


@case("20-signal-death-is-not-zero.sh", timeout=2)
def case_20_death_by_a_signal_is_not_zero(ended: Ended) -> None:
    assert (ended.status, ended.result["signal"], ended.result["exit_code"]) == ("signaled", 9, None)
    assert ended.exit_status == 137
    assert ended.out == "before\n"


# -- input -----------------------------------------------------------------------------------------------------------


@case("08-reads-stdin-prompt.sh", timeout=2)
def case_08_stdin_is_closed(ended: Ended) -> None:
    completed(ended, 9)
    assert ended.result["duration_s"] < 1
    assert ended.out == "Continue? [y/N] eof\n"


@case("09-dev-tty-prompt.sh", timeout=2)
def case_09_there_is_no_terminal(ended: Ended) -> None:
    completed(ended, 8)
    assert ended.result["duration_s"] < 1
    assert ended.out == "no tty\n"


@case("10-git-opens-editor.sh", timeout=4)
def case_10_git_does_not_open_an_editor(ended: Ended) -> None:
    completed(ended)
    assert ended.result["duration_s"] < 2
    assert re.search(r"rc=\d+\n\Z", ended.out)


@case("10-git-opens-editor.sh", PROMPT_ENV_OFF, on=PROCESS)
def case_10_git_opens_an_editor_where_the_defaults_are_off(ended: Ended) -> None:
    timed_out(ended)
    assert {"git", "sleep"} <= {process["cmd"].split()[0] for process in ended.processes}


@case("35-unclosed-quote-in-session.sh", timeout=2)
def case_35_an_unclosed_quote_is_an_error_not_a_wait(ended: Ended) -> None:
    completed(ended, 2)
    assert ended.result["duration_s"] < 1
    assert "unexpected EOF" in ended.err


@case("36-exec-replaces-session.sh")
def case_36_exec_replaces_the_shell(ended: Ended) -> None:
    timed_out(ended)
    assert ended.diagnosis["kind"] == "sleeping"


# -- output ----------------------------------------------------------------------------------------------------------


@case("13-one-3MB-line.sh", timeout=2)
def case_13_one_line_of_three_megabytes(ended: Ended) -> None:
    completed(ended)
    stdout = ended.result["stdout"]
    assert stdout["bytes_total"] == 3_000_005
    assert stdout["bytes_dropped"] == 3_000_005 - len(ended.out)
    assert ended.out.endswith("a\nEND\n")


@case("14-binary-stdout.sh", timeout=2)
def case_14_binary_output(ended: Ended) -> None:
    completed(ended)
    assert ended.out.startswith("ok\n\ufffd\ufffd\0\ufffd\n\x7fELF") and ended.out.endswith("\nEND\n")
    raw = ToolResult.from_dict(ended.result).stdout.raw
    assert raw.startswith(b"ok\n\xff\xfe\x00\x80\n\x7fELF")
    assert len(raw) == ended.result["stdout"]["bytes_total"]


@case("16-partial-output-at-timeout.sh")
def case_16_what_was_printed_before_the_timeout_is_kept(ended: Ended) -> None:
    timed_out(ended)
    assert (ended.out, ended.err) == ("step-1-ok\n", "step-2-warn\n")


@case("17-block-buffered-python.sh")
def case_17_python_does_not_hold_its_output_back(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out == "phase A done\n"


@case("18-error-is-in-the-tail.sh", timeout=3)
def case_18_the_error_is_at_the_end(ended: Ended) -> None:
    completed(ended, 3)
    assert ended.out.endswith("200000\nlast-line\n")
    assert ended.err == "FATAL: real cause 4711\n"
    stdout = ended.result["stdout"]
    assert stdout["truncated"] and stdout["bytes_dropped"] == stdout["bytes_total"] - len(ended.out) > 0
    assert "4711" in ToolResult.from_dict(ended.result).for_model()


@case("19-pipeline-masks-failure.sh", timeout=2)
def case_19_a_pipeline_says_only_what_its_last_stage_said(ended: Ended) -> None:
    completed(ended)
    assert ended.out == "2 failed\n"
    assert "succe" not in ToolResult.from_dict(ended.result).for_model().lower()


@case("32-spinner-ansi.sh", timeout=2)
def case_32_progress_is_readable(ended: Ended) -> None:
    completed(ended)
    assert "\x1b[2K" in ended.out
    plain = ToolResult.from_dict(ended.result).stdout.plain()
    assert "\x1b" not in plain
    assert plain.split() == ["400%", "DONE"]


@case("27-non-ascii-in-C-locale.py", timeout=2, on=SANDBOX,
      env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})  # fmt: skip
def case_27_a_sandbox_has_a_locale_of_its_own(ended: Ended) -> None:
    completed(ended)
    assert ended.out == ascii("stra\u00dfe-\u03b2") + "\n"


# -- loops and limits ------------------------------------------------------------------------------------------------


@case("21-many-children.sh", timeout=2, slack=2, alone=True)
def case_21_many_children(ended: Ended) -> None:
    timed_out(ended)
    # Counted by a cgroup, or one by one in no more time than it may cost.
    assert ended.receipt["processes"] >= (240 if ended.host.uid == 0 else 50)


@case("24-memory-hog.py", "--memory", "256M", timeout=5, alone=True)
def case_24_memory_hog(ended: Ended) -> None:
    assert "held 16" not in ended.out
    assert ended.result["limits"]["memory"]["value"] == 256 << 20
    if ended.result["limits"]["memory"]["enforced_by"] == "cgroup":
        assert ended.status == "resource_limit" and ended.result["limit"]["which"] == "memory"
        assert ended.exit_status == 122
    else:
        completed(ended, 1)
        assert "MemoryError" in ended.err
        assert any("memory" in line for line in ended.result["degraded"])


@case("25-disk-fill.sh", "--disk", "50M", timeout=2)
def case_25_disk_fill(ended: Ended) -> None:
    if ended.isolation == "sandbox":
        assert ended.status == "resource_limit" and ended.result["limit"]["which"] == "disk"
    else:
        timed_out(ended)  # the shell goes on after its child met SIGXFSZ
        assert "File size limit exceeded" in ended.err
        assert [int(size) for size in re.findall(r" (\d{6,}) ", ended.out)] == [50 << 20]
    left = [path for path in Path(ended.host.folder).glob("tmp.*") if path.is_file()]
    assert left == []  # its own trap ran within the grace


def tries_until_the_end(ended: Ended) -> None:
    """It went round and round, every try is there, and it was still at it at the limit; how often is the machine's."""
    tries = ended.out.splitlines()
    assert tries == [f"try {number + 1}" for number in range(len(tries))]
    assert len(tries) >= 2
    assert ended.result["stdout"]["bytes_total"] == len(ended.out)
    assert ended.receipt["processes"] >= 1


@case("28-poll-loop-never-true.sh", timeout=1.5)
def case_28_a_loop_whose_condition_never_holds(ended: Ended) -> None:
    timed_out(ended)
    tries_until_the_end(ended)


@case("28-poll-loop-never-true.sh", timeout=1.5, background=True)
def case_28_the_same_in_the_background(ended: Ended) -> None:
    timed_out(ended)
    tries_until_the_end(ended)
    assert ended.receipt["processes"] >= 2  # the job, and the shell that waits for it


@case("29-silent-then-done.sh", timeout=8)
def case_29_silence_is_not_a_hang(ended: Ended) -> None:
    completed(ended)
    assert 4 <= ended.result["duration_s"] < 5
    assert ended.out == "start\nfinished\n"


@case("29-silent-then-done.sh", "--idle-timeout", "500ms", timeout=8)
def case_29_silence_ends_it_only_where_asked_for(ended: Ended) -> None:
    timed_out(ended, "idle")
    assert ended.result["limit"]["seconds"] == 0.5
    assert ended.result["duration_s"] < 1.5
    assert ended.out == "start\n"


@case("30-drip-resets-idle.sh", "--idle-timeout", "1s", timeout=3)
def case_30_a_drip_does_not_move_the_limit(ended: Ended) -> None:
    timed_out(ended)
    assert re.fullmatch(r"\.{7,}", ended.out)


@case("67-result-out-but-no-exit.py", arguments=("x",))
def case_67_the_answer_is_out_but_it_does_not_exit(ended: Ended) -> None:
    timed_out(ended)
    assert ended.out == '{"answer": 42}\n'


@table.every_case()
def test_case(request: pytest.FixtureRequest, host: hosts.Host, isolation: str, case: Case) -> None:
    table.verify(request, host, isolation, case)
