# SPDX-License-Identifier: Apache-2.0
"""The verbs about sandboxes, as a person or a script uses them, against a real server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts import within
from serving import Served, served


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    pytest.importorskip("aiohttp")
    pytest.importorskip("httpx2")
    with served("--log-format", "text", "--max-ttl", "2h") as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(server: Served) -> Iterator[str]:
    """The id of a sandbox that the tests of this module share."""
    done = server.cli("create", "--ttl", "5m", "--name", "shared", "--metadata", "task=42", "--env", "GIVEN=value")
    assert done.returncode == 0, done.stderr
    made = done.stdout.decode().strip()
    yield made
    server.cli("kill", made)


def document(done: subprocess.CompletedProcess[bytes]) -> Any:
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


def test_create_prints_the_id_and_ps_shows_it(server: Served, sandbox: str) -> None:
    assert sandbox.startswith("sbx_")
    lines = server.cli("ps").stdout.decode().splitlines()
    assert lines[0].split()[:4] == ["ID", "NAME", "TEMPLATE", "STATUS"]
    assert [line.split()[1:4] for line in lines if line.startswith(sandbox)] == [["shared", "base", "running"]]
    found = document(server.cli("ps", "--json", "--metadata", "task=42"))
    assert [each["id"] for each in found] == [sandbox]
    assert document(server.cli("ps", "--json", "--metadata", "task=43")) == []


def test_exec_passes_output_and_exit_status_on(server: Served, sandbox: str) -> None:
    done = server.cli("exec", "shared", "--", "bash", "-c", "echo out; echo err >&2; echo $GIVEN; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\nvalue\n", b"err\n")
    assert server.cli("exec", sandbox, "--", "echo one; exit 3").returncode == 3
    assert server.cli("exec", sandbox, "--", "/no/such/thing").returncode == 127
    assert server.cli("exec", "--cwd", "/tmp", "--env", "A=b c", sandbox, "--", "pwd; echo $A").stdout == b"/tmp\nb c\n"


def test_exec_streams_as_it_comes(server: Served, sandbox: str) -> None:
    client = server.start("exec", sandbox, "--", "echo first; sleep 1; echo second", stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"first\n"
    begin = time.monotonic()
    assert client.stdout.readline() == b"second\n"
    assert time.monotonic() - begin > 0.7
    assert client.wait(5) == 0
    client.stdout.close()


def test_exec_at_its_limit_says_what_is_known(server: Served, sandbox: str) -> None:
    done = server.cli("exec", "--timeout", "400ms", sandbox, "--", "echo before; sleep 60")
    assert (done.returncode, done.stdout) == (124, b"before\n")
    assert "timed out after 400ms" in done.stderr.decode() and "none left" in done.stderr.decode()
    result = json.loads(server.cli("exec", "--json", "--timeout", "300ms", sandbox, "--", "sleep 60").stdout)
    assert (result["schema"], result["status"]) == ("deadstop.result/1", "timeout")


def test_exec_with_stdin(server: Served, sandbox: str) -> None:
    done = server.cli("exec", "-i", sandbox, "--", "wc", "-c", stdin=None, input=b"x" * 2_000_000)
    assert (done.returncode, done.stdout.strip()) == (0, b"2000000")
    ignored = server.cli("exec", sandbox, "--", "cat", stdin=None, input=b"text")
    assert ignored.returncode == 0 and ignored.stdout == b"" and "use -i" in ignored.stderr.decode()


def test_ctrl_c_cancels_on_the_server_and_says_so(server: Served, sandbox: str) -> None:
    client = server.start(
        "exec", sandbox, "--", "echo up; sleep 67", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip
    assert client.stdout is not None and client.stderr is not None
    assert client.stdout.readline() == b"up\n"
    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=10)
    assert client.returncode == 130
    assert "cancelled by the caller" in err.decode() and "none left" in err.decode()
    commands = document(server.cli("ps", "--json", sandbox))
    assert [each["outcome"] for each in commands if "sleep 67" in each["cmd"]] == ["cancelled"]


def test_a_second_ctrl_c_does_not_wait(server: Served, sandbox: str) -> None:
    client = server.start("exec", sandbox, "--", "echo up; sleep 69", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert client.stdout is not None
    assert client.stdout.readline() == b"up\n"
    server.process.send_signal(signal.SIGSTOP)  # it will not answer
    try:
        client.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            client.wait(0.5)
        client.send_signal(signal.SIGINT)
        assert client.wait(5) in (130, -signal.SIGINT)
    finally:
        server.process.send_signal(signal.SIGCONT)
        client.kill()
        client.wait(5)
        client.stdout.close()


def test_a_command_ends_with_the_client_that_was_killed(server: Served, sandbox: str) -> None:
    client = server.start("exec", sandbox, "--", "echo up; sleep 68", stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"up\n"
    client.kill()
    client.wait(5)
    client.stdout.close()

    def ended() -> bool:
        commands = document(server.cli("ps", "--json", sandbox))
        return [each["status"] for each in commands if "sleep 68" in each["cmd"]] == ["ended"]

    within(5, ended)


def test_a_background_command_and_its_logs(server: Served, sandbox: str) -> None:
    started = (
        server.cli("exec", "-d", sandbox, "--", "echo in-background; sleep 0.3; echo late").stdout.decode().strip()
    )
    assert started.startswith("exec_")
    assert server.cli("logs", "-f", sandbox, started).stdout == b"in-background\nlate\n"
    assert b"in-background" in server.cli("logs", sandbox).stdout
    assert server.cli("logs", sandbox, "exec_none").returncode == 125


def test_extend_is_clamped_to_the_servers_maximum(server: Served, sandbox: str) -> None:
    answer = document(server.cli("extend", "--json", sandbox, "1m"))
    assert answer["added_s"] == 60
    assert "(the server's maximum)" in server.cli("extend", sandbox, "9h").stdout.decode()


def test_pause_and_resume(server: Served, sandbox: str) -> None:
    assert "paused" in server.cli("pause", sandbox).stdout.decode()
    refused = server.cli("exec", sandbox, "--", "true")
    assert refused.returncode == 125 and "resume it first" in refused.stderr.decode()
    assert document(server.cli("resume", "--json", sandbox))["status"] == "running"


def test_snapshot_fork_and_kill(server: Served, sandbox: str) -> None:
    server.cli("exec", sandbox, "--", "echo data > file")
    snapshot = server.cli("snapshot", "--name", "mine", sandbox).stdout.decode().strip()
    assert snapshot in server.cli("snapshot").stdout.decode()
    made = server.cli("create", "--ttl", "1m", "--from-snapshot", snapshot).stdout.decode().strip()
    forks = server.cli("fork", "--count", "2", sandbox).stdout.decode().split()
    assert len(forks) == 2
    for each in (made, *forks):
        assert server.cli("exec", each, "--", "cat file").stdout == b"data\n"
    done = server.cli("kill", made, *forks)
    assert done.returncode == 0 and done.stdout.count(b"none left (proof: ") == 3
    assert server.cli("kill", made).returncode == 0  # again is the same
    missing = server.cli("kill", "nobody")
    assert missing.returncode == 1 and b"no such sandbox: nobody" in missing.stderr
    assert made not in server.cli("ps").stdout.decode()
    assert made in server.cli("ps", "--all").stdout.decode()


def test_copies_go_in_and_out(server: Served, sandbox: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("text")
    assert server.cli("cp", str(tmp_path / "folder"), f"{sandbox}:/home/agent/in").returncode == 0
    assert server.cli("exec", sandbox, "--", "cat in/file; ln -s /etc/passwd in/out").stdout == b"text"
    done = server.cli("cp", f"shared:/home/agent/in", str(tmp_path / "back"))  # noqa: F541
    assert done.returncode == 0 and b"left out" in done.stderr
    assert (tmp_path / "back" / "file").read_text() == "text" and not (tmp_path / "back" / "out").exists()
    assert server.cli("cp", f"{sandbox}:/home/agent/in/file", str(tmp_path)).returncode == 0
    assert (tmp_path / "file").read_text() == "text"
    assert server.cli("cp", "a", "b").returncode == 125
    missing = server.cli("cp", f"{sandbox}:/home/agent/none", str(tmp_path))
    assert missing.returncode == 125 and b"/home/agent/none" in missing.stderr


def test_templates_are_listed(server: Served) -> None:
    found = document(server.cli("templates", "--json"))
    assert {"base", "python"} <= {each["name"] for each in found}
    assert b"base" in server.cli("template", "list").stdout


def test_a_template_is_built_from_a_folder(server: Served, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from the template")
    done = server.cli("template", "build", "mine", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    made = server.cli("create", "--template", "mine", "--ttl", "1m").stdout.decode().strip()
    assert server.cli("exec", made, "--", "cat file").stdout == b"from the template"
    server.cli("kill", made)
    assert server.cli("template", "delete", "mine").returncode == 0
    assert "mine" not in [each["name"] for each in document(server.cli("templates", "--json"))]


def test_a_table_on_a_terminal(server: Served, sandbox: str) -> None:
    pytest.importorskip("rich")
    near, far = pty.openpty()
    client = server.start("ps", stdout=far)
    os.close(far)
    data = b""
    while True:
        try:
            data += os.read(near, 65536)
        except OSError:
            break
    os.close(near)
    assert client.wait(10) == 0
    assert sandbox.encode() in data and b"\x1b[" in data


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["create", "--ttl", "0"], "'0'"),
        (["create", "--ttl", "none"], "none"),
        (["create", "--template", "nothing"], "nothing"),
        (["create", "--metadata", "x"], "KEY=VALUE"),
        (["exec", "shared"], "command"),
        (["exec", "nobody", "--", "true"], "nobody"),
        (["kill"], "--all"),
        (["extend", "shared", "5x"], "'5x'"),
        (["logs", "nobody"], "nobody"),
    ],
)
def test_a_mistake_is_one_line(server: Served, sandbox: str, words: list[str], named: str) -> None:
    done = server.cli(*words)
    lines = [line for line in done.stderr.decode().splitlines() if "usage:" not in line]
    assert done.returncode in (1, 125) and len(lines) == 1, lines
    assert named in lines[0]


def test_without_a_server_it_says_how_to_start_one(server: Served, tmp_path: Path) -> None:
    done = server.cli("ps", "--server", f"unix://{tmp_path}/none.sock")
    assert done.returncode == 125 and b"deadstop serve" in done.stderr and b"Traceback" not in done.stderr


# -- serve -----------------------------------------------------------------------------------------------------------


def test_serve_on_tcp_wants_its_token_which_is_shown_once() -> None:
    with served("--listen", "127.0.0.1:0") as server:
        url = next(line.split()[-1] for line in server.announced if " on http:" in line)
        token = next(line.split()[2] for line in server.announced if ": token " in line)
        assert b"token" in server.cli("ps", "--server", url).stderr
        env = {**server.environment, "DEADSTOP_TOKEN": token}
        words = [sys.executable, "-m", "deadstop", "ps", "--json", "--server", url]
        assert json.loads(subprocess.run(words, env=env, capture_output=True, timeout=20, check=True).stdout) == []
        assert token not in (server.folder / "log").read_text()


def test_serve_ends_everything_on_sigterm() -> None:
    with served() as server:
        server.cli("create", "--ttl", "5m")
        follower = server.start("exec", "-i", "--", stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        follower.wait(10)
        threading.Timer(0.0, server.process.terminate).start()
        assert server.process.wait(15) == 0
    # served() asserts that no process of it is left


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--no-socket"], "listen"),
        (["--max-ttl", "0"], "'0'"),
        (["--warm", "-1"], "-1"),
        (["--template-config", "/no/such/file"], "/no/such/file"),
    ],
)
def test_serve_refuses_what_is_not_allowed(words: list[str], named: str, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    command = [sys.executable, "-m", "deadstop", "serve", "--state", str(tmp_path), *words]
    done = subprocess.run(command, capture_output=True, timeout=20, stdin=subprocess.DEVNULL)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 125 and len(lines) == 1 and named in lines[0], lines
