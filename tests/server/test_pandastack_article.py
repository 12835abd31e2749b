# SPDX-License-Identifier: Apache-2.0
"""The pattern that the PandaStack article shows, as a program that knows only the SDK; and what makes it work.

The SDK's read timeout is 30 s and the article's limits are longer: without a sign of life from the server a hung
command would be a connection error, which nobody catches, and its sandbox would stay. The sign is `100 Continue`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandastack", reason="pandastack is not installed")

import pandastack
from pandastack.exceptions import ConnectionError as SdkConnectionError
from pandastack.exceptions import SandboxTimeout
from server_process import Serving, eventually

AGENT = Path(__file__).with_name("agent_task.py")
PATIENCE = {"interim_s": 0.3}  # of the module's server; the long test's has the real one
LONG_LIMIT = int(os.environ.get("DEADSTOP_ARTICLE_LIMIT", "33"))  # the article's own is 60
SUPPORTED = ("3.11", "3.12", "3.13")


def run_agent(server: Serving, limit: int, *commands: str, bound: float = 20) -> list[dict[str, Any]]:
    """The program's answers. It has an environment like any user's, and no configuration file."""
    home = server.state.parent / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "*",
        "PANDASTACK_API": server.url, "PANDASTACK_API_KEY": server.token,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(AGENT), str(limit), *commands], env=environment, capture_output=True, timeout=bound,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def eager(start_server: Callable[..., Serving]) -> Serving:
    """A server that sends interim answers as fast as it can."""
    return start_server(patience={"interim_s": 0.01})


@pytest.fixture(scope="module", autouse=True)
def long_run(
    start_server: Callable[..., Serving], background: ThreadPoolExecutor
) -> tuple[Serving, Future[list[dict[str, Any]]]]:
    """The long test's program, which waits while the other tests are run."""
    server = start_server()
    hang = (
        "echo 'Proceed? [Y/n]' | tee /tmp/tool.log; trap '' TERM; (setsid sleep 7201 &); while :; do sleep 7201; done"
    )
    return server, background.submit(run_agent, server, LONG_LIMIT, "echo first", hang, bound=LONG_LIMIT + 20)


# -- the program -------------------------------------------------------------------------------------------------------


def test_commands_that_end_are_told_as_they_ended(server: Serving) -> None:
    first, second = run_agent(server, 10, "echo one; echo two >&2; exit 3", "cat /nothing")
    assert (first["exit_code"], first["stdout"], first["stderr"]) == (3, "one\n", "two\n")
    assert second["exit_code"] == 1 and "/nothing" in second["stderr"]
    assert server.live() == []


def test_a_hung_command_leaves_evidence_and_nothing_else(server: Serving) -> None:
    (answer,) = run_agent(server, 1, "echo asked > /tmp/tool.log; sleep 7202")
    assert (answer["status"], answer["stdout_tail"], answer["exit_code"]) == ("timeout", "asked\n", None)
    assert 1.0 <= answer["seconds"] < 2.5
    assert server.live() == [] and server.running("7202") == []
    (ended,) = [each for each in server.get("/v1/sandboxes?state=ended")["items"] if each["metadata"]][-1:]
    assert (ended["metadata"], ended["ttl_seconds"]) == ({"surface": "agent-task"}, 900.0)
    assert ended["end"]["reason"] == "killed" and ended["end"]["receipt"]["survivors"] == 0


def test_a_limit_longer_than_the_clients_patience_is_still_the_commands_own(server: Serving) -> None:
    with ThreadPoolExecutor(3) as pool:
        runs = [
            pool.submit(run, server) for run in (_hang_beyond_patience, _work_beyond_patience, _code_beyond_patience)
        ]
        for run in runs:
            run.result(20)


def _hang_beyond_patience(server: Serving) -> None:
    with impatient(server, 1.0) as sandbox:
        began = time.monotonic()
        with pytest.raises(SandboxTimeout):
            sandbox.exec("sleep 7203", timeout_seconds=3)
        assert 3.0 <= time.monotonic() - began < 4.0
        assert sandbox.exec("echo on").stdout == "on\n"  # over the same connection


def _work_beyond_patience(server: Serving) -> None:
    with impatient(server, 1.0) as sandbox:
        assert sandbox.exec("sleep 2.5; echo late", timeout_seconds=10).stdout == "late\n"


def _code_beyond_patience(server: Serving) -> None:
    with impatient(server, 1.0) as sandbox:
        context = sandbox.create_code_context()
        assert context.run_code("import time\ntime.sleep(2.5)\n'slept'", timeout_seconds=10).text == "'slept'"


@contextlib.contextmanager
def impatient(server: Serving, timeout: float) -> Iterator[pandastack.Sandbox]:
    """A sandbox of a client that gives up after `timeout` seconds of silence."""
    client = pandastack.Client(api_url=server.url, api_key=server.token, timeout=timeout)
    client.session.trust_env = False
    try:
        with client.sandboxes.create(ttl_seconds=60) as sandbox:
            yield sandbox
    finally:
        client.session.close()


def test_without_a_sign_of_life_it_would_not_be(start_server: Callable[..., Serving]) -> None:
    """The control: it is the interim answers that the test above rests on. The command goes with its client."""
    silent = start_server(patience={"interim_s": 1000.0})
    with impatient(silent, 1.0) as sandbox:
        with pytest.raises(SdkConnectionError):
            sandbox.exec("sleep 7204", timeout_seconds=3)
        eventually(1, lambda: not silent.running("7204"))


# -- interim answers, client by client ---------------------------------------------------------------------------------


def with_http_client(server: Serving, path: str, body: bytes, headers: dict[str, str], patience: float) -> list[int]:
    with contextlib.closing(server.connection(patience)) as connection:
        found = []
        for _ in range(2):
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            response.read()
            found.append(response.status)
        return found


def with_requests(server: Serving, path: str, body: bytes, headers: dict[str, str], patience: float) -> list[int]:
    requests = pytest.importorskip("requests")
    with requests.Session() as session:
        session.trust_env = False
        return [
            session.post(server.url + path, data=body, headers=headers, timeout=patience).status_code for _ in range(2)
        ]


def with_urllib3(server: Serving, path: str, body: bytes, headers: dict[str, str], patience: float) -> list[int]:
    urllib3 = pytest.importorskip("urllib3")
    with urllib3.PoolManager(maxsize=1) as pool:
        return [
            pool.request("POST", server.url + path, body=body, headers=headers, timeout=patience, retries=False).status
            for _ in range(2)
        ]


def with_httpx2(server: Serving, path: str, body: bytes, headers: dict[str, str], patience: float) -> list[int]:
    httpx2 = pytest.importorskip("httpx2")
    with httpx2.Client(timeout=patience, trust_env=False) as client:
        return [client.post(server.url + path, content=body, headers=headers).status_code for _ in range(2)]


def with_httpx2_async(server: Serving, path: str, body: bytes, headers: dict[str, str], patience: float) -> list[int]:
    httpx2 = pytest.importorskip("httpx2")

    async def ask() -> list[int]:
        async with httpx2.AsyncClient(timeout=patience, trust_env=False) as client:
            return [(await client.post(server.url + path, content=body, headers=headers)).status_code for _ in range(2)]

    return asyncio.run(ask())


def with_aiohttp(server: Serving, path: str, body: bytes, headers: dict[str, str], patience: float) -> list[int]:
    import aiohttp

    async def ask() -> list[int]:
        found = []
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_read=patience)) as session:
            for _ in range(2):
                async with session.post(server.url + path, data=body, headers=headers) as response:
                    await response.read()
                    found.append(response.status)
        return found

    return asyncio.run(ask())


CLIENTS = (with_http_client, with_requests, with_urllib3, with_httpx2, with_httpx2_async, with_aiohttp)


def test_every_common_client_waits_on_and_keeps_its_connection(server: Serving) -> None:
    sandbox = server.create()
    path, body = f"/v1/sandboxes/{sandbox}/exec", json.dumps({"cmd": "sleep 1.3", "timeout_seconds": 10}).encode()
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        answers = {
            client.__name__: pool.submit(client, server, path, body, headers, 0.9) for client in CLIENTS
        }  # fmt: skip
        assert {name: answer.result(20) for name, answer in answers.items()} == {
            client.__name__: [200, 200] for client in CLIENTS
        }


STDLIB_CLIENT = """
import http.client, json, sys
port, path, token = sys.argv[1:]
connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=0.9)
found = []
for _ in range(2):
    connection.request("POST", path, json.dumps({"cmd": "sleep 1.3", "timeout_seconds": 10}),
                       {"Authorization": "Bearer " + token, "Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    found.append(response.status)
print(sys.version_info[1], *found)
"""


def python_of(version: str) -> str | None:
    """An interpreter of exactly this version, if this machine has one."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    found: list[str] = []
    with contextlib.suppress(OSError):
        found = [str(path) for path in sorted(versions.glob(f"{version}.*/bin/python"), reverse=True)]
    for candidate in (shutil.which(f"python{version}"), *found):
        check = [candidate or "/nonexistent", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        with contextlib.suppress(OSError):
            if subprocess.run(check, capture_output=True, timeout=20).stdout.decode().strip() == version:
                return candidate
    return None


def test_the_standard_library_of_every_supported_python_waits_on(server: Serving) -> None:
    sandbox = server.create()
    found = {version: python for version in SUPPORTED if (python := python_of(version))}
    assert found, "not even the one that runs this test"
    running = {
        version: subprocess.Popen(
            [python, "-I", "-c", STDLIB_CLIENT, str(server.port), f"/v1/sandboxes/{sandbox}/exec", server.token],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for version, python in found.items()
    }
    for version, process in running.items():
        out, err = process.communicate(timeout=20)
        assert out.decode().split() == [version.partition(".")[2], "200", "200"], err.decode()


def exchange(server: Serving, sandbox: str, version: str, command: dict[str, Any], seconds: float = 10) -> bytes:
    """All bytes that come for one exec, asked for in this version of HTTP."""
    body = json.dumps(command).encode()
    head = (
        f"POST /v1/sandboxes/{sandbox}/exec {version}\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with contextlib.closing(server.raw(head.encode() + body, timeout=seconds)) as connection:
        data = b""
        while piece := connection.recv(1 << 16):
            data += piece
        return data


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


def test_interim_answers_come_at_their_interval_and_before_the_answer(server: Serving) -> None:
    sandbox = server.create()
    data = exchange(server, sandbox, "HTTP/1.1", {"cmd": "sleep 1.05"})
    assert re.fullmatch(rb"(HTTP/1\.1 100 Continue\r\n\r\n){3}HTTP/1\.1 200 OK\r\n.*", data, re.DOTALL), data


def test_a_client_of_http_1_0_gets_none(server: Serving) -> None:
    data = exchange(server, server.create(), "HTTP/1.0", {"cmd": "sleep 0.7"})
    assert data.startswith((b"HTTP/1.0 200", b"HTTP/1.1 200")) and INTERIM not in data


def test_a_stream_has_none(server: Serving) -> None:
    body = json.dumps({"cmd": "sleep 0.7"}).encode()
    head = (
        f"POST /v1/sandboxes/{server.create()}/exec/stream HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {server.token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with contextlib.closing(server.raw(head.encode() + body)) as connection:
        data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert data.startswith(b"HTTP/1.1 200") and INTERIM not in data and data.endswith(b"0\r\n\r\n")


def test_there_are_never_more_than_a_client_takes(eager: Serving) -> None:
    """A CPython to come refuses more than 100 of them."""
    sandbox = eager.create()
    data = exchange(eager, sandbox, "HTTP/1.1", {"cmd": "sleep 1.7; echo end"})
    assert data.count(INTERIM) == 95 and b"HTTP/1.1 200 OK" in data
    answer = eager.exec(sandbox, "sleep 1.7; echo end")
    assert (answer.status, answer.document["stdout"]) == (200, "end\n")


def test_one_who_does_not_read_them_is_not_flooded(eager: Serving) -> None:
    """They stop where the client's buffer is full; its command still meets its limit."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.connect(("127.0.0.1", eager.port))
    body = json.dumps({"cmd": "sleep 7205", "timeout_seconds": 1}).encode()
    head = (
        f"POST /v1/sandboxes/{eager.create()}/exec HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {eager.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    began = time.monotonic()
    eventually(2, lambda: eager.running("7205"))
    eventually(2, lambda: not eager.running("7205"))
    assert 0.5 < time.monotonic() - began < 2
    connection.close()


# -- last, what was begun first ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_article_runs_with_the_sdks_own_patience(
    long_run: tuple[Serving, Future[list[dict[str, Any]]]],
) -> None:
    server, run = long_run
    first, second = run.result(LONG_LIMIT + 30)
    assert first["stdout"] == "first\n"
    assert (second["status"], second["stdout_tail"]) == ("timeout", "Proceed? [Y/n]\n")
    assert LONG_LIMIT <= second["seconds"] < LONG_LIMIT + 2
    assert server.live() == [] and server.running("7201") == []
