# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401, F811 -- fixtures are imported, and used by their names
"""SIGTERM: what runs is ended and told so, streams end as they should, nothing is left."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_front import Front, alive, root_host, start
from test_http_execs import events, post, running

from hosts import Host, within

ROOT = "/v1/sandboxes"


@pytest.fixture
def own(root_host: Host) -> Iterator[Front]:
    running = start(root_host, root_host.folder / f"stop-{time.monotonic_ns()}")
    try:
        yield running
    finally:
        running.stop()
        root_host.no_survivors(within=3)


def test_everything_is_told_and_nothing_is_left(own: Front) -> None:
    mine = own.create()
    opened = {}
    for name, data in {
        "exec": post(f"{ROOT}/{mine}/exec", {"cmd": "echo out; sleep 24680"}),
        "stream": post(f"{ROOT}/{mine}/exec/stream", {"cmd": "echo out; sleep 24680"}),
        "events": f"GET {ROOT}/{mine}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
        "logs": f"GET {ROOT}/{mine}/logs?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
        "idle": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    }.items():
        opened[name] = own.connect()
        opened[name].sendall(data)
    within(5, lambda: len(running(own, mine)) == 2 and alive("24680"))
    begin = time.monotonic()
    assert own.stop() == (0, "")
    assert time.monotonic() - begin < 5
    assert not alive("24680")
    answers = {}
    for name, sock in opened.items():
        data = b""
        while chunk := sock.recv(65536):
            data += chunk
        answers[name] = data
        sock.close()
    last = answers["exec"].rpartition(b"\r\n\r\n")
    assert b" 409 " in answers["exec"] and json.loads(last[2])["result"]["status"] == "cancelled"
    for name in ("stream", "events", "logs"):
        assert answers[name].endswith(b"0\r\n\r\n"), (name, answers[name][-300:])
    assert b"event: error" in answers["stream"]
    assert not Path(own.socket).exists()


def test_new_work_is_refused_while_it_stops(own: Front) -> None:
    mine = own.create(hooks={"before_stop": "sleep 1.5", "timeout_s": 3})
    connection = own.connection()
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    own.process.send_signal(signal.SIGTERM)
    within(3, lambda: any(line["event"] == "stopping" for line in own.log()))
    connection.request("POST", ROOT, b"{}", {"Content-Type": "application/json"})
    answer = connection.getresponse()
    document = json.loads(answer.read())
    assert answer.status == 503 and document["kind"] == "stopping" and answer.headers["Retry-After"]
    connection.request("GET", f"{ROOT}/{mine}")  # looking is still allowed
    assert connection.getresponse().status == 200
    connection.close()
    assert own.stop() == (0, "")


def test_a_second_signal_hurries(own: Front) -> None:
    own.create(hooks={"before_stop": "sleep 8", "timeout_s": 9})
    begin = time.monotonic()
    own.process.send_signal(signal.SIGINT)
    within(3, lambda: any(line["event"] == "stopping" for line in own.log()))
    own.stop(signal.SIGTERM)
    assert time.monotonic() - begin < 4


def test_systemd_is_told(root_host: Host) -> None:
    folder = root_host.folder / "notify"
    folder.mkdir()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(folder / "notify"))
    listener.settimeout(10)
    try:
        running = start(root_host, folder, env={"NOTIFY_SOCKET": str(folder / "notify")})
        assert listener.recv(100) == b"READY=1"
        assert running.stop() == (0, "")
        assert listener.recv(100) == b"STOPPING=1"
    finally:
        listener.close()


def test_frozen_it_still_keeps_limits(own: Front) -> None:
    """The supervisor keeps them: with the front stopped, a command ends at its limit all the same."""
    mine = own.create()
    answers: list[bytes] = []
    body = post(f"{ROOT}/{mine}/exec", {"cmd": "sleep 86420", "timeout_seconds": 1})
    thread = threading.Thread(
        target=lambda: answers.append(own.raw(body.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)))
    )
    thread.start()
    within(3, lambda: alive("86420"))
    own.process.send_signal(signal.SIGSTOP)
    try:
        within(2, lambda: not alive("86420"))
    finally:
        own.process.send_signal(signal.SIGCONT)
    thread.join(10)
    assert b" 504 " in answers[0].split(b"\r\n")[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_next_server_tells_what_became_of_everything(root_host: Host, number: int) -> None:
    folder = root_host.folder / f"next-{number}"
    first = start(root_host, folder)
    mine = first.create(name="kept")
    done = first.run(mine, "echo out; echo err >&2; exit 3").json["exec_id"]
    first.run(mine, "sleep 11223", background=True, timeout_seconds=90)
    within(3, lambda: alive("11223"))
    first.stop(number)
    within(5, lambda: not alive("11223"))
    second = start(root_host, folder)
    try:
        document = second.ask("GET", f"{ROOT}/kept").json
        assert document["id"] == mine and document["status"] == "ended"
        assert document["end"]["reason"] == ("killed" if number == signal.SIGTERM else "host_lost")
        assert b"out\nerr\n" in second.ask("GET", f"{ROOT}/{mine}/logs").data
        assert done in [each["exec_id"] for each in second.ask("GET", f"{ROOT}/{mine}/execs").json["items"]]
        seen = second.ask("GET", f"{ROOT}/{mine}/execs/{done}").json
        assert seen["result"]["exit_code"] == 3 and seen["stdout_tail"] == "out\n"
        assert second.ask("GET", f"{ROOT}/{mine}/execs/{done}/output?stream=stderr").data == b"err\n"
        second.run(mine, "true").problem(410, "ended")
        assert second.ask("DELETE", f"{ROOT}/{mine}").status == 200
    finally:
        assert second.stop() == (0, "")
    root_host.no_survivors(within=3)
