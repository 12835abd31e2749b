# SPDX-License-Identifier: Apache-2.0
"""The PandaStack SDK from PyPI, unmodified, against `deadstop serve`: what it reads, raises and sends again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pandastack", reason="pandastack is not installed")

import pandastack
from panda import aimed_at
from pandastack.exceptions import (
    AuthError,
    BadRequestError,
    CommandFailed,
    ExecInterrupted,
    NotFoundError,
    SandboxTimeout,
    ServerError,
)
from pandastack.exceptions import ConnectionError as SdkConnectionError
from server_process import Serving, eventually

SENT_AGAIN = ("connect: connection refused", "no route to host", "i/o timeout")


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "*")
    for name in ("PANDASTACK_API", "PANDASTACK_API_KEY", "PANDASTACK_EXEC_READY_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def client(server: Serving) -> Iterator[pandastack.Client]:
    with aimed_at(server, timeout=20) as made:
        yield made


@pytest.fixture
def sandbox(client: pandastack.Client) -> pandastack.Sandbox:
    return pandastack.Sandbox.create(ttl_seconds=120)


# -- create, find, end -------------------------------------------------------------------------------------------------


def test_create_gives_what_the_sdk_reads(client: pandastack.Client) -> None:
    made = pandastack.Sandbox.create(ttl_seconds=120, metadata={"task": "42"})
    assert (made.template, made.status, made.metadata) == ("code-interpreter", "running", {"task": "42"})
    assert (made.cpu, made.memory_mb, made.persistent, made.from_snapshot) == (1, 512, False, None)
    assert isinstance(made.boot_ms, int) and made.boot_mode == "cold" and made.created_at


def test_get_refresh_and_list(client: pandastack.Client, sandbox: pandastack.Sandbox) -> None:
    found = pandastack.Sandbox.get(sandbox.id)
    assert (found.id, found.created_at) == (sandbox.id, sandbox.created_at)
    assert sandbox.id in [each.id for each in pandastack.Sandbox.list()]
    sandbox.kill()
    assert sandbox.refresh().status == "ended"
    assert sandbox.id not in [each.id for each in pandastack.Sandbox.list()]


def test_the_environment_names_server_and_key(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANDASTACK_API", f"{server.url}/")
    monkeypatch.setenv("PANDASTACK_API_KEY", server.token)
    client = pandastack.Client()
    assert client.sandboxes.list() == []
    client.session.close()


def test_killing_twice_and_within_with_is_no_error(client: pandastack.Client) -> None:
    with pandastack.Sandbox.create(ttl_seconds=60) as made:
        made.kill()
        made.kill()
    assert made.refresh().status == "ended"


def test_a_ttl_is_kept_whatever_the_client_does(client: pandastack.Client, server: Serving) -> None:
    made = pandastack.Sandbox.create(ttl_seconds=1)
    began = time.monotonic()
    while pandastack.Sandbox.get(made.id).status != "ended":  # traffic does not move the end
        assert time.monotonic() - began < 4
        time.sleep(0.05)
    assert 0.7 < time.monotonic() - began < 1.6
    assert server.get(f"/v1/sandboxes/{made.id}")["end"]["reason"] == "ttl"


# -- commands ----------------------------------------------------------------------------------------------------------


def test_exec(sandbox: pandastack.Sandbox) -> None:
    result = sandbox.exec("echo out; echo err >&2; sleep 0.1; exit 3", timeout_seconds=10)
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert 100 <= result.duration_ms < 5000
    assert sandbox.commands.run("echo $((6 * 7))", timeout=10).stdout == "42\n"


def test_an_exit_code_is_a_number_however_the_command_ended(sandbox: pandastack.Sandbox) -> None:
    assert sandbox.exec("kill -9 $$").exit_code == 137
    assert sandbox.exec("no-such-program").exit_code == 127
    assert sandbox.exec("cat").exit_code == 0  # stdin is at its end


def test_check_raises_command_failed(sandbox: pandastack.Sandbox) -> None:
    assert sandbox.exec("true", check=True).exit_code == 0
    with pytest.raises(CommandFailed) as caught:
        sandbox.exec("echo why >&2; exit 7", check=True)
    assert (caught.value.exit_code, caught.value.stderr) == (7, "why\n")


def test_run_code(sandbox: pandastack.Sandbox) -> None:
    assert sandbox.run_code("print('it''s', 6 * 7)").stdout == "its 42\n"
    assert sandbox.run_code("x='a b'; echo \"$x\"", language="bash").stdout == "a b\n"
    with pytest.raises(ValueError):
        sandbox.run_code("1", language="cobol")


def test_output_is_text_whatever_the_bytes(sandbox: pandastack.Sandbox) -> None:
    assert sandbox.exec(r"printf '\xf0\x9f\x98\x80 \xe2\x80\xa8 \xff'").stdout == "\U0001f600 \u2028 \ufffd"


def test_what_a_command_left_running_does_not_hold_the_answer_and_ends_with_the_sandbox(
    sandbox: pandastack.Sandbox, server: Serving
) -> None:
    began = time.monotonic()
    assert sandbox.exec("setsid sleep 7101 & sleep 7101 & echo done").stdout == "done\n"
    assert time.monotonic() - began < 3
    assert len(server.running("7101")) == 2
    sandbox.kill()
    assert server.running("7101") == []


# -- time limits -------------------------------------------------------------------------------------------------------


def test_a_hung_command_is_sandbox_timeout_at_its_own_limit(sandbox: pandastack.Sandbox, server: Serving) -> None:
    began = time.monotonic()
    with pytest.raises(SandboxTimeout):
        sandbox.exec("trap '' TERM INT; (setsid sleep 7102 &); echo Proceed?; while :; do sleep 7102; done", 1)
    assert 1.0 <= time.monotonic() - began < 2.0
    assert server.running("7102") == []
    assert sandbox.exec("echo usable").stdout == "usable\n"


def test_the_cause_of_a_timeout_shows_the_last_output(sandbox: pandastack.Sandbox) -> None:
    with pytest.raises(SandboxTimeout) as caught:
        sandbox.exec("echo 'Proceed? [Y/n]'; sleep 60", timeout_seconds=1)
    assert isinstance(caught.value.__cause__, ServerError)
    assert "Proceed? [Y/n]" in str(caught.value.__cause__)


def test_no_time_left_means_over_and_nothing_runs(sandbox: pandastack.Sandbox) -> None:
    began = time.monotonic()
    with pytest.raises(SandboxTimeout):
        sandbox.exec("touch /tmp/ran; sleep 60", timeout_seconds=0)
    assert time.monotonic() - began < 1
    assert not sandbox.filesystem.exists("/tmp/ran")


@pytest.mark.parametrize(
    ("end", "raised"),
    [("sleep 60", SandboxTimeout), ("while :; do x=$x$x:; done", Exception)],
    ids=["timeout", "memory"],
)
def test_a_command_is_not_sent_again_for_what_it_printed(
    sandbox: pandastack.Sandbox, end: str, raised: type[Exception]
) -> None:
    words = "; ".join(f"echo 'curl: {phrase}'; echo 'curl: {phrase}' >&2" for phrase in SENT_AGAIN)
    try:
        sandbox.exec(f"echo once >> /tmp/count; ulimit -v 200000; {words}; {end}", timeout_seconds=1)
    except raised:
        pass
    assert sandbox.filesystem.read("/tmp/count") == b"once\n"


def test_nor_for_what_it_was_called(sandbox: pandastack.Sandbox) -> None:
    with pytest.raises(SandboxTimeout):
        sandbox.exec(f"echo once >> /tmp/count; : '{' '.join(SENT_AGAIN)}'; sleep 60", timeout_seconds=1)
    assert sandbox.filesystem.read("/tmp/count") == b"once\n"


def test_a_file_name_with_those_words_is_not_asked_for_again(sandbox: pandastack.Sandbox) -> None:
    for phrase in SENT_AGAIN:
        began = time.monotonic()
        with pytest.raises((NotFoundError, BadRequestError)):
            sandbox.filesystem.read(f"/tmp/{phrase.replace('/', '_')}/{phrase}")
        assert time.monotonic() - began < 2


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_arrives_as_it_is_printed(sandbox: pandastack.Sandbox) -> None:
    arrivals: list[tuple[str, float]] = []

    def arrived(text: str) -> None:
        arrivals.append((text, time.monotonic()))

    code = sandbox.exec_stream("for i in 0 1 2; do echo $i; sleep 0.4; done; exit 5", on_stdout=arrived)
    ended = time.monotonic()
    assert (code, "".join(text for text, _ in arrivals)) == (5, "0\n1\n2\n")
    first = arrivals[0][1]
    assert [pytest.approx(at - first, abs=0.25) for _, at in arrivals] == [0.0, 0.4, 0.8]
    assert ended - first == pytest.approx(1.2, abs=0.3)  # closed at once when the command has ended


def test_both_streams_and_every_character(sandbox: pandastack.Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    text = 'line\u2028sep \x85 \U0001f600 \u00e9 \x1b[31m \\ " \u2029 end'
    sandbox.filesystem.write("/tmp/text", text)
    slowly = "import os\nfor byte in open('/tmp/text', 'rb').read():\n    os.write(1, bytes([byte]))"
    sandbox.filesystem.write("/tmp/slow.py", slowly)
    code = sandbox.exec_stream("python3 /tmp/slow.py; cat /tmp/text >&2", out.append, err.append, timeout_seconds=20)
    assert (code, "".join(out), "".join(err)) == (0, text, text)


def test_much_output_comes_whole(sandbox: pandastack.Sandbox) -> None:
    out: list[str] = []
    assert sandbox.exec_stream("seq 1 200000", on_stdout=out.append, timeout_seconds=30) == 0
    assert "".join(out) == "".join(f"{number}\n" for number in range(1, 200001))


def test_a_stream_that_meets_its_limit_is_sandbox_timeout_with_the_servers_words(sandbox: pandastack.Sandbox) -> None:
    out: list[str] = []
    began = time.monotonic()
    with pytest.raises(SandboxTimeout, match="timeout"):
        sandbox.exec_stream("echo so far; sleep 60", on_stdout=out.append, timeout_seconds=1)
    assert 1.0 <= time.monotonic() - began < 2.0 and out == ["so far\n"]


def test_a_stream_is_not_repeated_either(sandbox: pandastack.Sandbox) -> None:
    words = "; ".join(f"echo '{phrase}'" for phrase in SENT_AGAIN)
    with pytest.raises(SandboxTimeout):
        sandbox.exec_stream(f"echo once >> /tmp/count; {words}; sleep 60", timeout_seconds=1)
    assert sandbox.filesystem.read("/tmp/count") == b"once\n"


@pytest.mark.parametrize("how", ["kill", "ttl"])
def test_a_sandbox_that_ends_under_a_stream_ends_it_cleanly(sandbox: pandastack.Sandbox, how: str) -> None:
    out: list[str] = []
    if how == "ttl":
        sandbox.set_ttl(1)
        killer = None
    else:
        killer = threading.Timer(0.5, lambda: pandastack.Sandbox.get(sandbox.id).kill())
        killer.start()
    began = time.monotonic()
    ends = (SandboxTimeout,) if how == "ttl" else (ServerError, ExecInterrupted)
    with pytest.raises(ends):  # and no ChunkedEncodingError, which the SDK does not wrap
        sandbox.exec_stream("echo so far; sleep 60", on_stdout=out.append)
    assert time.monotonic() - began < 3 and out == ["so far\n"]
    if killer:
        killer.join()


# -- files -------------------------------------------------------------------------------------------------------------


def test_files(sandbox: pandastack.Sandbox, tmp_path: Path) -> None:
    files = sandbox.filesystem
    files.write("/home/agent/a/b/one.txt", "one\n")
    files.write("/home/agent/a/two.bin", bytes(range(256)))
    assert files.read("/home/agent/a/b/one.txt") == b"one\n"
    assert sandbox.exec("cat ~/a/b/one.txt; stat -c %U ~/a/two.bin").stdout.splitlines()[0] == "one"
    entry = files.stat("/home/agent/a/two.bin")
    assert (entry.name, entry.path, entry.size, entry.is_dir) == ("two.bin", "/home/agent/a/two.bin", 256, False)
    assert abs(entry.mtime - time.time()) < 60
    assert sorted((each.name, each.is_dir) for each in files.listdir("/home/agent/a")) == [
        ("b", True),
        ("two.bin", False),
    ]
    walked = {path: sorted(each.path for each in found) for path, _, found in files.walk("/home/agent/a")}
    assert walked == {"/home/agent/a": ["/home/agent/a/two.bin"], "/home/agent/a/b": ["/home/agent/a/b/one.txt"]}
    (tmp_path / "up").write_bytes(b"\0up\xff")
    files.upload(tmp_path / "up", "/tmp/up")
    files.download("/tmp/up", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == b"\0up\xff"


def test_files_that_are_not_there_or_not_ours(sandbox: pandastack.Sandbox) -> None:
    files = sandbox.filesystem
    assert files.exists("/tmp") and not files.exists("/tmp/none")
    with pytest.raises(NotFoundError):
        files.read("/tmp/none")
    sandbox.exec("ln -s /etc/shadow /tmp/link; ln -s / /tmp/root")
    for path in ("/etc/shadow", "/proc/1/environ", "/tmp/link", "/tmp/root/etc/shadow", "/tmp/../../etc/shadow"):
        with pytest.raises((NotFoundError, BadRequestError)):
            files.read(path)
        with pytest.raises((NotFoundError, BadRequestError)):
            files.write(path, b"x")


def test_a_large_file_and_one_too_large(sandbox: pandastack.Sandbox) -> None:
    data = bytes(range(256)) * (32 * 4096)  # 32 MiB: the most there may be
    sandbox.filesystem.write("/tmp/large", data)
    assert sandbox.filesystem.read("/tmp/large") == data
    with pytest.raises((BadRequestError, SdkConnectionError)):
        sandbox.filesystem.write("/tmp/larger", data + b"x")
    assert not sandbox.filesystem.exists("/tmp/larger")


# -- logs --------------------------------------------------------------------------------------------------------------


def test_logs_have_what_commands_printed(sandbox: pandastack.Sandbox) -> None:
    sandbox.exec("echo one; echo two >&2")
    sandbox.exec("echo three")
    assert sorted(sandbox.logs()) == ["one", "three", "two"]
    assert list(sandbox.logs(stream="stderr")) == ["two"]
    sandbox.kill()
    assert sorted(sandbox.logs()) == ["one", "three", "two"]  # also when it has ended


def test_logs_are_followed_to_the_end_of_the_sandbox(
    client: pandastack.Client, sandbox: pandastack.Sandbox, server: Serving
) -> None:
    sandbox.exec("echo before")
    lines: list[str] = []
    with aimed_at(server) as other:
        follower = threading.Thread(target=lambda: lines.extend(other.sandboxes.get(sandbox.id).logs(follow=True)))
        follower.start()
        time.sleep(0.3)
        server.exec(sandbox.id, "echo during")
        server.delete(sandbox.id)
        follower.join(10)
    assert not follower.is_alive()
    assert lines == ["before", "during"]


# -- pause, snapshot, fork ---------------------------------------------------------------------------------------------


def test_pause_and_resume(sandbox: pandastack.Sandbox) -> None:
    sandbox.pause()
    assert sandbox.refresh().status == "paused"
    with pytest.raises(BadRequestError):
        sandbox.exec("true")
    sandbox.resume()
    assert sandbox.refresh().status == "running"
    assert sandbox.exec("echo on").stdout == "on\n"


def test_snapshots(client: pandastack.Client, sandbox: pandastack.Sandbox) -> None:
    sandbox.filesystem.write("/home/agent/kept", "then")
    snapshot = sandbox.snapshot()
    sandbox.filesystem.write("/home/agent/kept", "now")
    assert [each["id"] for each in client.snapshots.list(sandbox_id=sandbox.id)] == [snapshot]
    assert client.snapshots.get(snapshot)["sandbox_id"] == sandbox.id
    sandbox.kill()
    again = pandastack.Sandbox.create(from_snapshot=snapshot, ttl_seconds=60)
    assert again.from_snapshot == snapshot
    assert again.filesystem.read("/home/agent/kept") == b"then"
    client.snapshots.delete(snapshot)
    assert snapshot not in [each["id"] for each in client.snapshots.list()]
    assert again.exec("cat ~/kept").stdout == "then"  # lives on
    with pytest.raises(NotFoundError):
        pandastack.Sandbox.create(from_snapshot=snapshot)


def test_fork(sandbox: pandastack.Sandbox, server: Serving) -> None:
    sandbox.filesystem.write("/home/agent/state", "shared")
    twin = sandbox.fork(metadata={"branch": "a"})
    assert twin.id != sandbox.id and twin.status == "running"
    assert (twin.metadata["fork_parent_id"], twin.metadata["branch"]) == (sandbox.id, "a")
    assert twin.exec("cat ~/state; echo twin > ~/state").stdout == "shared"
    assert sandbox.exec("cat ~/state").stdout == "shared"
    ends = [server.get(f"/v1/sandboxes/{each.id}")["time_left_s"] for each in (sandbox, twin)]
    assert abs(ends[0] - ends[1]) < 1 and ends[1] < 120  # it inherits the end


def test_fork_tree_and_promote(sandbox: pandastack.Sandbox) -> None:
    sandbox.filesystem.write("/tmp/seed", "7")
    children = sandbox.fork_tree(3, metadata={"try": "1"})
    assert len({each.id for each in children}) == 3
    assert [each.exec("cat /tmp/seed").stdout for each in children] == ["7"] * 3
    answer = children[1].promote(cleanup_siblings=True)
    assert answer["winner"] == children[1].id and answer["failures"] == {}
    assert sorted(answer["deleted"]) == sorted([children[0].id, children[2].id])
    assert children[0].refresh().status == "ended"
    assert children[1].exec("echo won").stdout == "won\n"
    assert sandbox.exec("echo parent").stdout == "parent\n"


def test_explore(sandbox: pandastack.Sandbox, server: Serving) -> None:
    sandbox.exec("mkdir -p ~/work; echo 41 > ~/work/seed")
    result = sandbox.explore(
        [
            pandastack.Candidate.shell("hangs", "sleep 7103", timeout_s=1),
            pandastack.Candidate.shell("fails", "exit 1"),
            pandastack.Candidate.shell("works", "echo $(($(cat ~/work/seed) + 1)) | tee ~/work/answer"),
        ],
        score_fn=lambda _, outcome: 1.0 if "42" in outcome.stdout_tail else 0.0,
    )
    outcomes = {each.label: each for each in result.outcomes}
    assert outcomes["hangs"].timed_out and outcomes["fails"].exit_code == 1
    assert result.winner_outcome is outcomes["works"] and result.errors == [] and result.reap_failures == {}
    assert any(path.endswith("/work/answer") for path in outcomes["works"].files_changed)
    assert {each["id"] for each in server.live()} == {sandbox.id, result.winner.id}
    assert result.winner.exec("cat ~/work/answer").stdout == "42\n"
    assert server.running("7103") == []


# -- its life ----------------------------------------------------------------------------------------------------------


def test_set_ttl_lifecycle_and_persistence(sandbox: pandastack.Sandbox) -> None:
    assert sandbox.lifecycle()["ttl_seconds"] == 120
    moved = sandbox.set_ttl(300)
    assert 298 < moved["time_left_s"] <= 300 and moved["persistent"] is False
    assert sandbox.set_persistent(True)["persistent"] is True
    assert sandbox.refresh().persistent is True
    sandbox.set_persistent(False)
    with pytest.raises(BadRequestError):
        sandbox.set_ttl(0)
    assert sandbox.lifecycle()["time_left_s"] > 290


def test_hibernate_and_wake(sandbox: pandastack.Sandbox) -> None:
    sandbox.filesystem.write("/home/agent/kept", "through the night")
    sandbox.hibernate()
    sandbox.wake()
    assert sandbox.refresh().status == "running"
    assert sandbox.exec("cat ~/kept").stdout == "through the night"
    sandbox.kill()


def test_ports_are_none(sandbox: pandastack.Sandbox) -> None:
    assert sandbox.preview_urls() == {}


# -- code contexts -----------------------------------------------------------------------------------------------------


def test_a_code_context_keeps_its_state(sandbox: pandastack.Sandbox) -> None:
    with sandbox.create_code_context() as context:
        context.run_code("import math\nx = 41")
        answer = context.run_code("print('hello')\nx + 1")
        assert (answer.text, answer.stdout, answer.error) == ("42", "hello\n", None)
        failed = context.run_code("1 / 0")
        assert failed.error is not None and "ZeroDivisionError" in failed.error
        assert context.run_code("x").text == "41"


def test_a_hung_kernel_is_sandbox_timeout_at_its_limit(sandbox: pandastack.Sandbox, server: Serving) -> None:
    context = sandbox.create_code_context()
    context.run_code("import subprocess, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    began = time.monotonic()
    with pytest.raises(SandboxTimeout):
        context.run_code("subprocess.Popen(['sleep', '7104'])\nwhile True: pass", timeout_seconds=1)
    assert 1.0 <= time.monotonic() - began < 2.5
    assert server.running("7104") == []
    context.close()
    assert sandbox.create_code_context().run_code("6 * 7").text == "42"


def test_a_bash_context(sandbox: pandastack.Sandbox) -> None:
    context = sandbox.create_code_context("bash")
    context.run_code("cd /tmp; x=5")
    assert context.run_code("pwd; echo $x").stdout == "/tmp\n5\n"
    context.close()
    context.close()


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_server(start_server: Callable[..., Serving]) -> Serving:
    return start_server("--max-sandboxes", "2")


def test_a_full_server_is_asked_again_and_then_gives(small_server: Serving) -> None:
    retries: list[pandastack.CreateRetryEvent] = []
    with aimed_at(small_server, timeout=10, max_create_retry_seconds=15, on_create_retry=retries.append) as client:
        first, second = pandastack.Sandbox.create(ttl_seconds=60), pandastack.Sandbox.create(ttl_seconds=60)
        timer = threading.Timer(0.5, lambda: small_server.delete(first.id))
        timer.start()
        third = client.sandboxes.create(ttl_seconds=60)
        timer.join()
        assert [each.status_code for each in retries][:1] == [503] and retries[0].delay_seconds >= 1
        assert third.exec("echo in").stdout == "in\n"
        second.kill()
        third.kill()


def test_a_refusal_that_holds_is_raised_at_once(small_server: Serving) -> None:
    retries: list[pandastack.CreateRetryEvent] = []
    with aimed_at(small_server, timeout=10, on_create_retry=retries.append) as client:
        made = client.sandboxes.create(ttl_seconds=60)
        began = time.monotonic()
        with pytest.raises(BadRequestError):
            made.fork_tree(3)  # more than the server ever keeps
        with pytest.raises(BadRequestError):
            client.sandboxes.create(volumes=[{"name": "data", "read_only": True}])
        assert time.monotonic() - began < 2 and retries == []
        made.kill()


def test_without_a_budget_for_retries_a_full_server_is_a_server_error(small_server: Serving) -> None:
    with aimed_at(small_server, timeout=10, max_create_retry_seconds=0):
        made = [pandastack.Sandbox.create(ttl_seconds=60) for _ in range(2)]
        with pytest.raises(ServerError, match="2 sandboxes"):
            pandastack.Sandbox.create()
        with pytest.raises(ServerError):
            made[0].fork()
        assert len(small_server.live()) == 2
        for each in made:
            each.kill()


def test_errors_are_the_classes_of_the_sdks_table(server: Serving, sandbox: pandastack.Sandbox) -> None:
    stranger = pandastack.Client(api_url=server.url, api_key="wrong")
    with pytest.raises(AuthError):
        stranger.sandboxes.list()
    stranger.session.close()
    with pytest.raises(NotFoundError):
        pandastack.Sandbox.get("sbx_00000000000000000000")
    with pytest.raises(NotFoundError):
        pandastack.Sandbox.create(template="no-such-template")
    with pytest.raises(BadRequestError):
        pandastack.Sandbox.create(ttl_seconds=0)
    with pytest.raises(BadRequestError):
        sandbox.exec("true", timeout_seconds=-1)
    with pytest.raises(NotFoundError):
        pandastack.sandbox.get_default_client().me()
    sandbox.kill()
    with pytest.raises(BadRequestError, match="ended"):
        sandbox.exec("true")


def test_deleting_what_never_was_is_not_found(client: pandastack.Client) -> None:
    with pytest.raises(NotFoundError):
        client.sandboxes.delete("sbx_00000000000000000000")


# -- a client that goes ------------------------------------------------------------------------------------------------


def test_a_client_that_loses_patience_takes_its_command_with_it(server: Serving) -> None:
    """What an SDK with a short read timeout looks like from here; interim answers come too late for it."""
    with aimed_at(server, timeout=1):
        made = pandastack.Sandbox.create(ttl_seconds=60)
        with pytest.raises(SdkConnectionError):
            made.exec("sleep 7105", timeout_seconds=50)
        eventually(2, lambda: not server.running("7105"))
        assert made.exec("echo usable").stdout == "usable\n"
