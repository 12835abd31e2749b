# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401, F811 -- fixtures are imported, and used by their names
"""Commands over HTTP: every end has its status, a client that goes takes its command along, a patient one gets it."""

from __future__ import annotations

import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from http_front import Front, alive, front, root_host, sandbox

from hosts import within


def execs(front: Front, ref: str) -> list[dict[str, Any]]:
    return front.ask("GET", f"/v1/sandboxes/{ref}/execs").json["items"]


def running(front: Front, ref: str) -> list[dict[str, Any]]:
    return [each for each in execs(front, ref) if each["status"] == "running"]


def post(path: str, body: dict[str, Any], version: str = "1.1") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


def events(answer_data: bytes) -> list[tuple[str, Any]]:
    found = []
    for block in answer_data.decode("ascii").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines.get("event", ""), json.loads(lines["data"])))
    return found


@pytest.mark.parametrize(
    ("cmd", "code", "status"),
    [
        ("exit 3", 3, "completed"),
        ("kill -9 $$", 137, "signaled"),
        ("kill -TERM $$", 143, "signaled"),
        ("no-such-command", 127, "completed"),
        (["no-such-program"], 127, "error"),
        (["/etc"], 126, "error"),
        (["echo", "a b", "$HOME"], 0, "completed"),
    ],
)
def test_what_ends_by_itself_is_200(front: Front, sandbox: str, cmd: Any, code: int, status: str) -> None:
    answer = front.run(sandbox, cmd)
    assert answer.status == 200, answer.data
    document = answer.json
    assert (document["exit_code"], document["status"]) == (code, status)
    assert document["result"]["call_id"] and document["duration_ms"] >= 0 and document["truncated"] is False
    if code in (126, 127):
        assert document["stderr"]


def test_options_of_a_command(front: Front, sandbox: str) -> None:
    body = {"cwd": "/tmp", "env": {"A": "b c"}, "stdin": "in", "user": "agent", "timeout_seconds": 5}
    assert front.run(sandbox, 'pwd; echo "$A"; cat; id -un', **body).json["stdout"] == "/tmp\nb c\ninagent\n"
    raw = base64.b64encode(bytes(range(256))).decode()
    assert front.run(sandbox, "wc -c", stdin_base64=raw).json["stdout"].split() == ["256"]
    assert front.run(sandbox, "cat").json["stdout"] == ""
    assert "open files" in front.run(sandbox, "ulimit -a", rlimits={"open_files": 33}).json["stdout"]
    assert front.run(sandbox, "ulimit -n", rlimits={"open_files": 33}).json["stdout"] == "33\n"
    cut = front.run(sandbox, "seq 100000", tail_bytes=100).json
    assert cut["truncated"] is True and cut["stdout"].endswith("100000\n") and len(cut["stdout"]) == 100


@pytest.mark.parametrize(
    "body",
    [
        {"cmd": ""}, {"cmd": []}, {"cmd": [""]}, {"cmd": "a\0"}, {"cmd": ["a", "\0"]}, {"cmd": 5}, {},
        {"cmd": "x", "timeout_seconds": -1}, {"cmd": "x", "timeout_seconds": True}, {"cmd": "x", "user": "root"},
        {"cmd": "x", "cwd": "tmp"}, {"cmd": "x", "env": {"": "x"}}, {"cmd": "x", "stdin": "a", "stdin_base64": "YQ=="},
        {"cmd": "x", "stdin_base64": "?"}, {"cmd": "x", "rlimits": {"cpu": 1}}, {"cmd": "x", "on_timeout": "wait"},
        {"cmd": "x", "timeout": 5}, {"cmd": "x", "session": "ses_x", "background": True},
    ],
)  # fmt: skip
def test_bad_commands_are_422_and_never_run(front: Front, sandbox: str, body: dict[str, Any]) -> None:
    before = len(execs(front, sandbox))
    front.ask("POST", f"/v1/sandboxes/{sandbox}/exec", body).problem(422)
    assert len(execs(front, sandbox)) == before


def test_a_timeout_is_504_with_output_and_result(front: Front, sandbox: str) -> None:
    begin = time.monotonic()
    answer = front.run(sandbox, "echo Proceed?; (setsid sleep 60123 &); read x < <(sleep 60123)", timeout_seconds=0.5)
    assert 0.5 <= time.monotonic() - begin < 2
    document = answer.problem(504, "timeout")
    assert "timeout" in document["detail"] and "Proceed?" in document["detail"]
    assert document["stdout"] == "Proceed?\n" and document["result"]["status"] == "timeout"
    assert document["result"]["receipt"]["survivors"] == 0
    assert not alive("60123")


def test_no_time_at_all_is_a_timeout_and_nothing_runs(front: Front, sandbox: str) -> None:
    document = front.run(sandbox, "touch /tmp/ran", timeout_seconds=0).problem(504, "timeout")
    assert document["result"]["reason"] == "deadline_over"
    assert front.run(sandbox, "test -e /tmp/ran").json["exit_code"] == 1


def test_output_cannot_make_a_client_repeat_its_command(front: Front, sandbox: str) -> None:
    text = "dial tcp: connect: connection refused; no route to host; i/o timeout"
    document = front.run(sandbox, f"echo '{text}'; sleep 30", timeout_seconds=0.4).problem(504)
    assert not any(phrase in document["error"] for phrase in ("connect: connection refused", *text.split("; ")[1:]))
    assert document["stdout"].strip() == text


def test_a_memory_limit_is_500_and_no_timeout(front: Front) -> None:
    small = front.create(memory_mb=32)
    hog = ["python3", "-c", "print('the timeout of doom', flush=True); x = bytearray(1 << 30); print(len(x))"]
    answer = front.run(small, hog, timeout_seconds=20)
    if answer.status == 200:  # it was told, not killed, and ended by itself
        assert answer.json["exit_code"] != 0
        return
    document = answer.problem(500, "resource_limit")
    assert "timeout" not in document["detail"].lower() and document["result"]["status"] == "resource_limit"


def test_a_client_that_goes_takes_its_command_along(front: Front, sandbox: str) -> None:
    for path in ("exec", "exec/stream"):
        sock = front.connect()
        sock.sendall(post(f"/v1/sandboxes/{sandbox}/{path}", {"cmd": "sleep 54321", "timeout_seconds": 60}))
        within(5, lambda: bool(running(front, sandbox)) and alive("54321"))
        sock.close()
        within(5, lambda: not running(front, sandbox))
        last = execs(front, sandbox)[-1]
        assert last["outcome"] == "cancelled", last
        assert not alive("54321")
    gone = [line for line in front.log() if line.get("status") == 499]
    assert len(gone) >= 2 and all(line["route"].startswith("/v1/sandboxes/{ref}/exec") for line in gone)


def test_interims_go_out_while_it_runs_and_none_after(front: Front, sandbox: str) -> None:
    sock = front.connect()
    body = {"cmd": "sleep 1.1; echo done", "timeout_seconds": 10}
    sock.sendall(post(f"/v1/sandboxes/{sandbox}/exec", body))
    sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    data = b""
    while chunk := sock.recv(65536):
        data += chunk
    sock.close()
    interims, _, rest = data.rpartition(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert interims.count(b"100 Continue") >= 1
    assert rest.startswith(b"HTTP/1.1 200 OK") and rest.count(b"HTTP/1.1 200 OK") == 2 and b"done" in rest


def test_no_interims_for_http_1_0(front: Front, sandbox: str) -> None:
    answer = front.raw(post(f"/v1/sandboxes/{sandbox}/exec", {"cmd": "sleep 0.8"}, version="1.0"))
    assert (b"100 Continue" not in answer and answer.startswith(b"HTTP/1.0 200")) or answer.startswith(b"HTTP/1.1 200")


def test_a_client_with_a_short_read_timeout_gets_its_answer(front: Front, sandbox: str) -> None:
    """interim_s is 0.3 here: a client that waits 0.7 s for each read sees a command of 2 s to its end."""
    answer = front.ask("POST", f"/v1/sandboxes/{sandbox}/exec", {"cmd": "sleep 2; echo x"}, seconds=0.7)
    assert answer.json["stdout"] == "x\n"


def test_a_repeated_request_with_the_same_key_runs_once(front: Front, sandbox: str) -> None:
    body, key = {"cmd": "echo $RANDOM; sleep 0.3"}, {"Idempotency-Key": "once-1"}
    path = f"/v1/sandboxes/{sandbox}/exec"
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: front.ask("POST", path, body, headers=key).json, range(3)))
    assert len({json.dumps(answer) for answer in answers}) == 1
    assert front.ask("POST", path, body, headers=key).json == answers[0]
    front.ask("POST", path, {"cmd": "echo other"}, headers=key).problem(422, "key_conflict")


def test_the_stream(front: Front, sandbox: str) -> None:
    cmd = "printf 'é \\xe2\\x80\\xa8 1\\n'; sleep 0.4; echo err >&2; printf '\\xff\\xfe'; exit 4"
    connection = front.connection()
    connection.request(
        "POST", f"/v1/sandboxes/{sandbox}/exec/stream", json.dumps({"cmd": cmd}), {"Content-Type": "application/json"}
    )
    begin = time.monotonic()
    response = connection.getresponse()
    first, at = response.read1(), 0.0
    while b"stdout" not in first:
        first += response.read1()
    at = time.monotonic() - begin
    found = events(first + response.read())
    assert at < 0.35, "the first event waited for the rest"
    assert response.headers["Transfer-Encoding"] == "chunked" and response.headers["X-Deadstop-Exec"]
    assert found[0] == ("stdout", {"chunk": "é \u2028 1\n"}) and ("stderr", {"chunk": "err\n"}) in found
    assert ("stdout", {"chunk": "\ufffd\ufffd", "chunk_base64": base64.b64encode(b"\xff\xfe").decode()}) in found
    name, last = found[-1]
    assert name == "exit" and last["exit_code"] == 4 and last["exec_id"] == response.headers["X-Deadstop-Exec"]
    connection.request("GET", "/healthz")  # it ended as it should: the connection is good for more
    assert connection.getresponse().read()
    connection.close()


def test_the_stream_of_a_timeout_ends_with_an_error(front: Front, sandbox: str) -> None:
    answer = front.ask(
        "POST", f"/v1/sandboxes/{sandbox}/exec/stream", {"cmd": "echo a; sleep 9", "timeout_seconds": 0.4}
    )
    name, last = events(answer.data)[-1]
    assert name == "error" and "timeout" in last["error"] and last["result"]["status"] == "timeout"


def test_a_sandbox_that_is_killed_ends_its_streams_cleanly(front: Front) -> None:
    mine = front.create()
    threading.Timer(0.5, lambda: front.ask("DELETE", f"/v1/sandboxes/{mine}")).start()
    answer = front.ask("POST", f"/v1/sandboxes/{mine}/exec/stream", {"cmd": "while :; do echo x; sleep 0.1; done"})
    name, last = events(answer.data)[-1]
    assert name == "error" and "timeout" not in last["error"].lower() and last["status"] in (409, 500)


def test_in_the_background(front: Front, sandbox: str) -> None:
    started = front.run(sandbox, "cat; echo end; sleep 60", background=True, keep_stdin=True, timeout_seconds=90)
    assert started.status == 202 and started.json["status"] == "running"
    path = f"/v1/sandboxes/{sandbox}/execs/{started.json['exec_id']}"
    assert front.ask("POST", f"{path}/stdin", b"some ").status == 200
    assert front.ask("POST", f"{path}/stdin?close=true", b"input\n").status == 200
    within(5, lambda: "end" in front.ask("GET", f"{path}/output").data.decode())
    assert front.ask("GET", f"{path}/output?stream=stdout").data == b"some input\nend\n"
    assert front.ask("GET", f"{path}/wait?timeout_s=0.2").json["status"] == "running"
    front.ask("POST", f"{path}/signal", {"signal": "SIGNOPE"}).problem(422)
    assert front.ask("POST", f"{path}/signal", {"signal": "TERM"}).status == 200
    ended = front.ask("GET", f"{path}/wait?timeout_s=5").json
    assert ended["status"] == "ended" and ended["result"]["status"] == "signaled"
    front.ask("POST", f"{path}/signal", {"signal": 2}).problem(409)
    assert front.ask("DELETE", path).json["result"]["status"] == "signaled"
    front.ask("GET", f"/v1/sandboxes/{sandbox}/execs/exec_none").problem(404, "not_found")


def test_delete_cancels_with_a_receipt(front: Front, sandbox: str) -> None:
    started = front.run(sandbox, "trap '' TERM; sleep 98765", background=True).json["exec_id"]
    begin = time.monotonic()
    ended = front.ask("DELETE", f"/v1/sandboxes/{sandbox}/execs/{started}").json
    assert ended["result"]["status"] == "cancelled" and ended["result"]["receipt"]["survivors"] == 0
    assert time.monotonic() - begin < 3 and not alive("98765")


def test_following_the_output_of_a_command(front: Front, sandbox: str) -> None:
    started = front.run(sandbox, "for i in 1 2 3; do echo $i; sleep 0.1; done", background=True).json["exec_id"]
    found = events(front.ask("GET", f"/v1/sandboxes/{sandbox}/execs/{started}/output?follow=true").data)
    assert "".join(data["chunk"] for name, data in found if name == "stdout") == "1\n2\n3\n"
    assert found[-1][0] == "exit" and found[-1][1]["exit_code"] == 0


def test_paused_and_ended_sandboxes_take_no_commands(front: Front) -> None:
    mine = front.create()
    front.ask("POST", f"/v1/sandboxes/{mine}/pause")
    front.run(mine, "true").problem(409, "paused")
    front.ask("POST", f"/v1/sandboxes/{mine}/resume")
    assert front.run(mine, "true").status == 200
    front.ask("DELETE", f"/v1/sandboxes/{mine}")
    assert front.run(mine, "true").problem(410, "ended")["reason"] == "killed"
    for path in ("exec/stream", "extend", "snapshots", "fork", "repl/sessions"):
        body = {"cmd": "true"} if path == "exec/stream" else {"seconds": 1} if path == "extend" else {}
        front.ask("POST", f"/v1/sandboxes/{mine}/{path}", body).problem(410, "ended")


def test_sessions(front: Front, sandbox: str) -> None:
    path = f"/v1/sandboxes/{sandbox}/repl/sessions"
    made = front.ask("POST", path, {"language": "python"})
    assert made.status == 201
    run = f"{path}/{made.json['id']}/run"
    assert front.ask("POST", run, {"code": "x = 41"}).json["exit"] == 0
    answer = front.ask("POST", run, {"code": "x + 1"}).json
    assert answer["results"][0] == {"type": "text/plain", "data": "42"} and answer["session_ended"] is False
    assert front.ask("POST", run, {"code": "1/0"}).json["error"]
    assert "timeout" in front.ask("POST", run, {"code": "while True: pass", "timeout_ms": 400}).problem(504)["detail"]
    assert [each["id"] for each in front.ask("GET", path).json["items"]] == [made.json["id"]]
    for _ in range(2):
        assert front.ask("DELETE", f"{path}/{made.json['id']}").status == 204
    front.ask("POST", run, {"code": "1"}).problem(404, "not_found")


def test_a_shell_session_through_exec(front: Front, sandbox: str) -> None:
    made = front.ask("POST", f"/v1/sandboxes/{sandbox}/repl/sessions", {"language": "bash"}).json["id"]
    assert front.run(sandbox, "cd /tmp; A=b", session=made).json["exit_code"] == 0
    answer = front.run(sandbox, 'pwd; echo "$A"; false', session=made).json
    assert (answer["stdout"], answer["exit_code"], answer["session_ended"]) == ("/tmp\nb\n", 1, False)
    assert front.run(sandbox, "exit 7", session=made).json["session_ended"] is True
    front.run(sandbox, "sleep 9", session=made, timeout_seconds=0.3).problem(504, "timeout")
    front.run(sandbox, "true", session="ses_none").problem(404)


def test_a_full_reader_does_not_stop_the_server(front: Front) -> None:
    mine = front.create()
    sock = front.connect()
    sock.sendall(post(f"/v1/sandboxes/{mine}/exec/stream", {"cmd": "yes", "timeout_seconds": 2}))
    begin = time.monotonic()
    assert front.run(mine, "echo still").json["stdout"] == "still\n"
    within(6, lambda: not running(front, mine))
    assert time.monotonic() - begin < 6
    sock.close()
