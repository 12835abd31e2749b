# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401, F811 -- fixtures are imported, and used by their names
"""Who may ask: a token over TCP, the own user on the socket, and no page that a browser has open."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest
from http_front import TOKEN, Front, front, root_host, start

from hosts import ORDINARY_UID, Host, _python_for

ROOT = "/v1/sandboxes"
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}


def test_tcp_needs_the_token(front: Front) -> None:
    for value in (
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        "Bearer é",
    ):
        headers = {} if value is None else {"Authorization": value.encode("latin-1").decode("latin-1")}
        answer = front.ask("GET", ROOT, headers=headers, tcp=True)
        answer.problem(401, "unauthorized")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    for path in ("/metrics", "/v1/openapi.json", "/v1/nothing"):
        front.ask("GET", path, tcp=True).problem(401)
    assert front.ask("GET", ROOT, headers=AUTHORIZATION, tcp=True).status == 200
    assert front.ask("GET", ROOT, headers={"Authorization": f"bearer {TOKEN}"}, tcp=True).status == 200
    assert front.ask("GET", "/healthz", tcp=True).status == 200


def test_no_body_is_read_of_who_may_not_ask(front: Front) -> None:
    head = f"PUT {ROOT}/x/fs?path=/tmp/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 30000000\r\n\r\n"
    sock = front.connect(tcp=True)
    sock.sendall(head.encode())
    assert sock.recv(65536).startswith(b"HTTP/1.1 401 ")
    sock.close()


def test_other_names_and_other_sites_are_refused(front: Front) -> None:
    port = front.port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "169.254.169.254",
        "localhost.evil.example",
        "[::2]",
        "[",
        "a b",
    ):
        front.ask("GET", ROOT, headers={**AUTHORIZATION, "Host": host}, tcp=True).problem(403, "host")
    for host in ("localhost", f"127.0.0.1:{port}", "[::1]", "LOCALHOST"):
        assert front.ask("GET", ROOT, headers={**AUTHORIZATION, "Host": host}, tcp=True).status == 200
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{port + 1}", ""):
        front.ask("GET", ROOT, headers={**AUTHORIZATION, "Origin": origin}, tcp=True).problem(403, "origin")
        front.ask("GET", ROOT, headers={"Origin": origin}).problem(403, "origin")
    own = {"Host": f"127.0.0.1:{port}", "Origin": f"http://127.0.0.1:{port}"}
    assert front.ask("GET", ROOT, headers={**AUTHORIZATION, **own}, tcp=True).status == 200


def test_the_socket_is_the_users_own(front: Front) -> None:
    path = Path(front.socket)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert front.ask("GET", ROOT).status == 200


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_on_the_socket_needs_the_token(front: Front) -> None:
    path, python = Path(front.socket), _python_for(ORDINARY_UID)
    assert python is not None
    path.chmod(0o666)
    try:
        program = (
            "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
            "head = b'GET /v1/sandboxes HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n'; "
            "s.sendall(head + sys.argv[2].encode() + b'\\r\\n'); "
            "print(s.recv(100).split(b'\\r\\n')[0].decode())"
        )

        def ask(header: str) -> str:
            words = [python, "-c", program, str(path), header]
            who = {"user": ORDINARY_UID, "group": ORDINARY_UID, "extra_groups": []}
            return subprocess.run(words, capture_output=True, text=True, timeout=20, cwd="/", **who).stdout.strip()

        assert ask("") == "HTTP/1.1 401 Unauthorized"
        assert ask(f"Authorization: Bearer {TOKEN}\r\n") == "HTTP/1.1 200 OK"
    finally:
        path.chmod(0o600)


def test_a_second_server_is_refused_and_does_no_harm(front: Front) -> None:
    with pytest.raises(RuntimeError, match="another server"):
        start(front.host, front.folder, state="other")
    with pytest.raises(RuntimeError, match="another server"):
        start(front.host, front.folder, socket=str(front.folder / "other.sock"))
    assert front.ask("GET", "/healthz").status == 200


def test_a_stale_socket_is_taken_over_and_other_files_are_not(root_host: Host) -> None:
    folder = root_host.folder / "stale"
    folder.mkdir()
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(folder / "s.sock"))
    stale.close()
    running = start(root_host, folder)
    try:
        assert running.ask("GET", "/healthz").status == 200
    finally:
        assert running.stop() == (0, "")
    assert not (folder / "s.sock").exists()
    (folder / "file").write_text("mine")
    with pytest.raises(RuntimeError, match="is no socket"):
        start(root_host, folder, socket=str(folder / "file"))
    assert (folder / "file").read_text() == "mine"
    with pytest.raises(RuntimeError, match="longer than"):
        start(root_host, folder, socket=str(folder / ("x" * 120)))


def test_a_made_token_is_told_once_and_never_logged(root_host: Host) -> None:
    running = start(root_host, root_host.folder / "made", token=None, listen=["127.0.0.1", 0])
    try:
        token = running.ready["token"]
        assert len(token) >= 40
        running.ask("GET", ROOT, headers={"Authorization": "Bearer wrong"}, tcp=True).problem(401)
        assert running.ask("GET", ROOT, headers={"Authorization": f"Bearer {token}"}, tcp=True).status == 200
        assert token not in json.dumps(running.log())
    finally:
        assert running.stop() == (0, "")


def test_connections_are_bounded(root_host: Host) -> None:
    running = start(root_host, root_host.folder / "many", connections=3, keepalive_s=5)
    try:
        held = [running.connect() for _ in range(3)]
        end = time.monotonic() + 5
        while b" 503 " not in (answer := running.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")):
            assert time.monotonic() < end, answer
        assert b"too many connections" in answer
        for sock in held:
            sock.close()
        while b" 200 " not in (answer := running.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")):
            assert time.monotonic() < end, answer
    finally:
        assert running.stop() == (0, "")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"token": "", "listen": ["127.0.0.1", 0]}, "token"),
        ({"token": "a b\n", "listen": ["127.0.0.1", 0]}, "token"),
        ({"socket": None}, "neither a socket nor an address"),
        ({"listen": ["no-such-host.invalid", 1]}, "cannot be listened on"),
        ({"listen": ["203.0.113.1", 0]}, "cannot be listened on"),
        ({"templates": {"python": {"memory": 5}}}, "template python"),
        ({"templates": {"*": {"memory_mb": "5"}}}, "memory_mb"),
    ],
)
def test_settings_that_cannot_be_are_refused_and_leave_nothing(root_host: Host, settings: dict, words: str) -> None:
    folder = root_host.folder / "refused"
    with pytest.raises(RuntimeError, match=words):
        start(root_host, folder, **settings)
    assert not (folder / "s.sock").exists()


def test_what_a_client_gets_that_does_not_say(root_host: Host) -> None:
    templates = {"*": {"memory_mb": 128}, "python": {"pids": 99, "network": "host", "env": {"A": "b"}}}
    running = start(root_host, root_host.folder / "defaults", templates=templates, host={"default_ttl_s": 77})
    try:
        made = running.ask("POST", ROOT, {"template": "python"}).json
        assert (made["memory_mb"], made["limits"]["pids"], made["network"], made["ttl_seconds"]) == (
            128,
            99,
            "host",
            77,
        )
        assert running.run(made["id"], "echo $A").json["stdout"] == "b\n"
        made = running.ask("POST", ROOT, {"template": "python", "network": False, "memory_mb": 64}).json
        assert (made["memory_mb"], made["network"]) == (64, "off")
        assert running.ask("POST", ROOT).json["template"] == "base"
    finally:
        assert running.stop() == (0, "")
