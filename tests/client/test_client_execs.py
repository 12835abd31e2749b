# SPDX-License-Identifier: Apache-2.0
"""Commands through the client: their results, their limits, and who else ends them."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import deadstop
from deadstop.client import execs
from serving import Served

SLOW_S = 2.0  # far above what it takes, far below the commands' own time


def test_a_result_has_the_exit_code_and_both_streams(sandbox: deadstop.Sandbox) -> None:
    result = sandbox.exec("echo out; echo err >&2; exit 3")
    assert (result.status, result.exit_code) == (deadstop.Status.COMPLETED, 3)
    assert (result.stdout.tail, result.stderr.tail) == ("out\n", "err\n")
    with pytest.raises(deadstop.errors.ToolExitError):
        sandbox.exec("exit 3", check=True)


def test_words_are_not_given_to_a_shell(sandbox: deadstop.Sandbox) -> None:
    assert sandbox.exec(["echo", "$HOME; exit 1"]).unwrap() == "$HOME; exit 1\n"


def test_cwd_env_and_stdin(sandbox: deadstop.Sandbox) -> None:
    result = sandbox.exec('pwd; echo "$NAME"; cat', cwd="/tmp", env={"NAME": "value"}, stdin="typed")
    assert result.unwrap() == "/tmp\nvalue\ntyped"


def test_a_program_that_is_not_there_is_an_error_with_its_errno(sandbox: deadstop.Sandbox) -> None:
    result = sandbox.exec(["/no/such/program"])
    assert (result.status, result.start_errno, result.exit_status()) == (deadstop.Status.ERROR, 2, 127)


def test_a_limit_gives_what_was_printed_and_a_receipt(sandbox: deadstop.Sandbox) -> None:
    begin = time.monotonic()
    result = sandbox.exec("echo before; sleep 60 & sleep 60", timeout=0.4)
    assert 0.4 <= time.monotonic() - begin < SLOW_S
    assert (result.status, result.stdout.tail) == (deadstop.Status.TIMEOUT, "before\n")
    assert result.limit is not None and (result.limit.which, result.limit.seconds) == ("call", 0.4)
    assert result.receipt is not None and result.receipt.survivors == 0
    with pytest.raises(deadstop.ToolTimeoutError):
        result.unwrap()


def test_a_limit_of_zero_is_over_already(sandbox: deadstop.Sandbox) -> None:
    result = sandbox.exec("touch /tmp/ran", timeout=0)
    assert (result.status, result.reason) == (deadstop.Status.REFUSED, "deadline_over")
    assert not sandbox.files.exists("/tmp/ran")


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), True, "5"])
def test_what_is_no_limit_is_refused_here(sandbox: deadstop.Sandbox, timeout: float) -> None:
    with pytest.raises(deadstop.InvalidLimit):
        sandbox.exec("true", timeout=timeout)


@pytest.mark.parametrize("cmd", ["", " ", [], [""], 5, [5], "a\0b"])
def test_what_is_no_command_is_refused_here(sandbox: deadstop.Sandbox, cmd: str) -> None:
    with pytest.raises(deadstop.UsageError):
        sandbox.exec(cmd)


def test_output_comes_as_it_is_printed_and_in_this_thread(sandbox: deadstop.Sandbox) -> None:
    seen: list[tuple[str, bytes, int]] = []
    first: list[float] = []

    def on_output(stream: str, data: bytes) -> None:
        first.append(time.monotonic())
        seen.append((stream, data, threading.get_ident()))

    result = sandbox.exec("echo one; sleep 0.5; echo two >&2", on_output=on_output)
    assert time.monotonic() - first[0] > 0.4
    assert seen == [("stdout", b"one\n", threading.get_ident()), ("stderr", b"two\n", threading.get_ident())]
    assert result.ok and result.stdout.tail == "one\n"


def test_output_that_is_not_text_comes_as_it_is(sandbox: deadstop.Sandbox) -> None:
    seen: list[bytes] = []
    sandbox.exec(r"printf '\377\376\000x'", on_output=lambda _, data: seen.append(data))
    assert b"".join(seen) == b"\xff\xfe\0x"


def test_a_callback_that_raises_ends_the_command(sandbox: deadstop.Sandbox) -> None:
    def on_output(stream: str, data: bytes) -> None:
        raise ZeroDivisionError

    begin = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        sandbox.exec("echo now; sleep 61", on_output=on_output)
    assert time.monotonic() - begin < SLOW_S
    _ended_as(sandbox, "sleep 61", "cancelled")


def test_a_stream_that_is_left_early_ends_the_command(sandbox: deadstop.Sandbox) -> None:
    for item in sandbox.exec_stream("echo now; sleep 62"):
        assert item == ("stdout", b"now\n")
        break
    _ended_as(sandbox, "sleep 62", "cancelled")


def _ended_as(sandbox: deadstop.Sandbox, text: str, status: str) -> None:
    process = next(each for each in sandbox.processes() if text in each.cmd)
    result = process.wait(SLOW_S)
    assert result is not None and result.status == status


def test_a_token_cancels_with_a_receipt(sandbox: deadstop.Sandbox) -> None:
    token = deadstop.CancelToken()
    threading.Timer(0.3, token.set).start()
    begin = time.monotonic()
    result = sandbox.exec("sleep 60", cancel=token)
    assert time.monotonic() - begin < SLOW_S
    assert (result.status, result.reason) == (deadstop.Status.CANCELLED, "caller")
    assert result.receipt is not None and result.receipt.survivors == 0
    before = sandbox.exec("touch /tmp/late", cancel=token)
    assert (before.status, before.environment) == (deadstop.Status.CANCELLED, "nothing was started")


def test_ctrl_c_ends_the_command(server: Served) -> None:
    text = (
        "import deadstop\n"
        "s = deadstop.Sandbox.create(ttl=60, name='ctrlc', detached=True)\n"
        "print(s.id, flush=True)\n"
        "s.exec('sleep 63')\n"
    )
    client = server.script(text)
    assert client.stdout is not None
    sandbox = deadstop.Sandbox.connect(client.stdout.readline().decode().strip(), server=server.url)
    end = time.monotonic() + 10
    while not sandbox.processes():
        assert time.monotonic() < end
        time.sleep(0.01)
    client.send_signal(signal.SIGINT)
    assert client.wait(10) == -signal.SIGINT
    client.stdout.close()
    _ended_as(sandbox, "sleep 63", "cancelled")
    sandbox.kill()


# -- tasks and deadlines ---------------------------------------------------------------------------------------------


def test_a_command_draws_on_the_task_it_is_made_in(sandbox: deadstop.Sandbox) -> None:
    with deadstop.Task(steps=2) as task:
        first = sandbox.exec("true")
        assert first.ok and first.task_id == task.task_id
        assert sandbox.exec("true", on_output=lambda *_: None).ok
        refused = sandbox.exec("touch /tmp/third")
        assert (refused.status, refused.reason) == (deadstop.Status.REFUSED, "budget")
        with pytest.raises(deadstop.ToolRefusedError):
            sandbox.start("true")
    assert not sandbox.files.exists("/tmp/third")


def test_a_command_ends_with_the_block_around_it(sandbox: deadstop.Sandbox) -> None:
    begin = time.monotonic()
    with deadstop.deadline(0.4):
        result = sandbox.exec("sleep 60", timeout=60)
        late = sandbox.exec("true")
    assert time.monotonic() - begin < SLOW_S
    assert result.limit is not None and result.status is deadstop.Status.TIMEOUT
    assert (result.limit.which, result.limit.source) == ("parent", "inherited")
    assert (late.status, late.reason) == (deadstop.Status.REFUSED, "deadline_over")


def test_a_call_that_could_not_be_made_gives_its_step_back(server: Served) -> None:
    with deadstop.Sandbox.create(ttl=30, server=server.url) as sandbox:
        sandbox.kill()
        with deadstop.Task(steps=1) as task:
            with pytest.raises(deadstop.errors.SandboxEnded) as caught:
                sandbox.exec("true")
            assert caught.value.reason == "killed"
            assert task.left().steps == 1


# -- a server that is lost -------------------------------------------------------------------------------------------


def test_a_server_that_dies_leaves_an_unknown_result(own_server: Served) -> None:
    sandbox = deadstop.Sandbox.create(ttl=60, server=own_server.url)
    threading.Timer(0.3, own_server.process.kill).start()
    begin = time.monotonic()
    result = sandbox.exec("sleep 60")
    assert time.monotonic() - begin < 5
    assert (result.status, result.ok) == (deadstop.Status.UNKNOWN, False)
    with pytest.raises(deadstop.OutcomeUnknown):
        result.unwrap()
    with pytest.raises(deadstop.errors.ServerUnreachable, match="deadstop serve"):
        sandbox.exec("true")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_server_that_is_frozen_does_not_hold_its_client(
    own_server: Served, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    from deadstop.client import running

    for module in (execs, running):
        monkeypatch.setattr(module, "MARGIN_S", 0.5)
    monkeypatch.setattr(running, "PROOF_S", 0.1)
    sandbox = deadstop.Sandbox.create(ttl=60, server=own_server.url)
    threading.Timer(0.3, os.kill, (own_server.process.pid, signal.SIGSTOP)).start()
    begin = time.monotonic()
    result = sandbox.exec("sleep 60", timeout=1, on_output=(lambda *_: None) if streamed else None)
    assert 1.4 < time.monotonic() - begin < 5
    assert result.status is deadstop.Status.UNKNOWN
