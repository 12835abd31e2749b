# SPDX-License-Identifier: Apache-2.0
"""Clients that mean harm, or are broken: each is answered by a problem document or closed, soon, and nothing is lost.

After every test a sandbox can still be made, used and ended, and nothing of it is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import Answer, Serving, eventually, reset

import hosts

# Of this server a slow client gets less than a second, where a real one gives fifteen or thirty.
PATIENCE = {"keepalive_s": 0.7, "body_s": 0.7}
LINGER_S = 2.0  # so long what a refused client still sends is read and thrown away, for it to see the answer
SOON_S = 4.0


@pytest.fixture(autouse=True)
def _still_works(server: Serving) -> Iterator[None]:
    yield
    server.works()


def head(
    server: Serving, method: str, path: str, *lines: str, token: str | None = None, host: str = "localhost"
) -> bytes:
    """The head of a request, ended; what `lines` do not say is as it should be."""
    named = [line.partition(":")[0].lower() for line in lines]
    first = [f"{method} {path} HTTP/1.1"]
    if "host" not in named:
        first.append(f"Host: {host}")
    if "authorization" not in named:
        first.append(f"Authorization: Bearer {server.token if token is None else token}")
    return "\r\n".join([*first, *lines, "", ""]).encode("utf-8", "surrogateescape")


def read_to_end(connection: socket.socket, within: float = SOON_S, *, said: bool = False) -> bytes:
    """All that comes until the server closes; fails if it does not. With `said` its word that it will is enough."""
    end, data = time.monotonic() + within, b""
    while not (said and _says_last(data)):
        left = end - time.monotonic()
        assert left > 0, f"still open after {within} s: {data[:500]!r}"
        connection.settimeout(left)
        try:
            piece = connection.recv(1 << 16)
        except ConnectionResetError:
            return data
        except TimeoutError:
            continue
        if not piece:
            return data
        data += piece
    return data


def _says_last(data: bytes) -> bool:
    top, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", top)
    return bool(re.search(rb"(?i)\r\nconnection: *close", top) and length and len(body) >= int(length.group(1)))


def send(server: Serving, data: bytes, *, said: bool = True) -> list[tuple[int, Any]]:
    """All answers, as (status, document), to these bytes; the server must close, or say that it does."""
    with contextlib.closing(server.raw()) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
        return answers(read_to_end(connection, said=said))


def answers(data: bytes) -> list[tuple[int, Any]]:
    found = []
    while data:
        top, _, rest = data.partition(b"\r\n\r\n")
        matched = re.match(rb"HTTP/1\.[01] (\d{3})", top)
        assert matched is not None, data[:300]
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", top)
        size = int(length.group(1)) if length else 0
        body, data = rest[:size], rest[size:]
        found.append((int(matched.group(1)), json.loads(body) if body else None))
    return found


def refused(found: list[tuple[int, Any]], *statuses: int) -> None:
    """One answer: a problem document with one of these statuses."""
    assert len(found) == 1, found
    status, document = found[0]
    assert status in statuses, (status, document)
    assert document["status"] == status and document["detail"] and document["error"] == document["detail"]


def problem(answer: Answer, *statuses: int) -> None:
    assert answer.status in statuses and answer.is_problem, (answer.status, answer.body[:500])
    assert answer.document["status"] == answer.status and answer.document["error"]


# -- bodies ------------------------------------------------------------------------------------------------------------

BROKEN_JSON = [
    b"", b"{", b"[]", b"null", b"1", b'"text"', b'{"cmd": }', b'{"cmd": "true"', b'{"cmd": "true"} x', b"\xff\xfe",
    b'{"cmd": "\xff"}', b'{"cmd": "a\x00b"}', b'{"cmd": NaN}', b'{"cmd": "true", "timeout_seconds": NaN}',
    b'{"cmd": "true", "timeout_seconds": Infinity}', b'{"cmd": "true", "timeout_seconds": 1e999}',
    b'{"cmd": "true", "timeout_seconds": -1}', b'{"cmd": "true", "timeout_seconds": "5"}',
    b'{"cmd": "true", "timeout_seconds": true}', b'{"cmd": 5}', b'{"cmd": []}', b'{"cmd": [1]}', b'{"cmd": ""}',
    b'{"cmd": "a\\u0000b"}', b'{"cmd": "true", "cwd": "relative"}', b'{"cmd": "true", "env": {"A": 1}}',
    b'{"cmd": "true", "env": {"A=B": "1"}}', b'{"cmd": "true", "user": "root"}', b'{"cmd": "true", "timeout": 5}',
    b'{"cmd": "true", "stdin_base64": "%%%"}', b'{"cmd": "true", "tail_bytes": 1e30}', b"[" * 200_000,
    b'{"a":' * 100_000, b'{"cmd": "true", "rlimits": {"open_files": 0}}', b'{"cmd": "true", "background": "yes"}',
]  # fmt: skip


def test_bodies_that_are_no_command(server: Serving) -> None:
    sandbox = server.create()
    for body in BROKEN_JSON:
        answer = server.ask("POST", f"/v1/sandboxes/{sandbox}/exec", body=body, Content_Type="application/json")
        problem(answer, 400, 422)
    assert server.get(f"/v1/sandboxes/{sandbox}/execs")["items"] == []  # none of them began


def test_bodies_that_are_no_sandbox(server: Serving) -> None:
    before = len(server.get("/v1/sandboxes?state=all")["items"])
    for text in (
        '{"ttl_seconds": 0}', '{"ttl_seconds": -5}', '{"ttl_seconds": NaN}', '{"ttl_seconds": 1e999}',
        '{"ttl_seconds": null}', '{"ttl": 60}', '{"metadata": {"a": 1}}', '{"metadata": []}', '{"name": "../up"}',
        '{"name": ""}', '{"memory_mb": -1}', '{"memory_mb": 1.5}', '{"pids": 0}', '{"cpus": 0}', '{"network": "lan"}',
        '{"template": ""}', '{"volumes": [{"name": "a"}]}', '{"hooks": {"on_timeout": 5}}', '{"on_expiry": "live"}',
        '{"disk_mb": 99999999999999999999}',
    ):  # fmt: skip
        problem(server.ask("POST", "/v1/sandboxes", body=text.encode(), Content_Type="application/json"), 400, 422)
    for name in ("no-such", "../../etc", "a" * 128, "base/../base", "\u2028"):
        problem(server.ask("POST", "/v1/sandboxes", {"template": name}), 404, 422)
        problem(server.ask("POST", "/v1/sandboxes", {"from_snapshot": name}), 404, 422)
    assert len(server.get("/v1/sandboxes?state=all")["items"]) == before


def test_a_body_of_another_kind(server: Serving) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        problem(server.ask("POST", "/v1/sandboxes", body=b"{}", Content_Type=kind), 415)
    packed = server.ask(
        "POST", "/v1/sandboxes", body=b"\x1f\x8b", Content_Type="application/json", Content_Encoding="gzip"
    )
    problem(packed, 415)


def test_a_body_too_large_by_its_own_word(server: Serving) -> None:
    lines = ("Content-Type: application/json", "Content-Length: 99999999999")
    refused(send(server, head(server, "POST", "/v1/sandboxes", *lines)), 413)
    for length in ("-1", "1e3", "0x10", "5, 6", "", "\u0665"):
        refused(send(server, head(server, "POST", "/v1/sandboxes", f"Content-Length: {length}")), 400)


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_chunked_body_without_an_end(server: Serving) -> None:
    """It is answered at once; what still comes is thrown away for a while, and then the connection is closed."""
    assert server.process is not None
    start = head(server, "POST", "/v1/sandboxes", "Content-Type: application/json", "Transfer-Encoding: chunked")
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    before, began = resident(server.process.pid), time.monotonic()
    with contextlib.closing(server.raw(start)) as connection:
        for _ in range(40):
            connection.sendall(chunk)
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413 ") and time.monotonic() - began < 1
        with contextlib.suppress(OSError):
            while time.monotonic() - began < LINGER_S + 2:
                connection.sendall(chunk)
        assert time.monotonic() - began < LINGER_S + 1.5
    assert resident(server.process.pid) - before < 32 << 20


def test_chunks_that_are_none(server: Serving) -> None:
    start = head(server, "POST", "/v1/sandboxes", "Content-Type: application/json", "Transfer-Encoding: chunked")
    for body in (b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n{}\r\n", b"ffffffffffffffffff\r\n{}", b"2;" + b"x" * 40_000):
        found = send(server, start + body)
        assert all(status in (400, 413, 408) for status, _ in found), found


def test_a_body_with_two_lengths_is_refused_and_not_smuggled(server: Serving) -> None:
    smuggled = head(server, "DELETE", "/v1/sandboxes/none")
    for lines in (
        ("Content-Length: 4", "Transfer-Encoding: chunked"), ("Content-Length: 4", "Content-Length: 5"),
        ("Transfer-Encoding: chunked, identity",), ("Transfer-Encoding: xchunked", "Content-Length: 4"),
    ):  # fmt: skip
        found = send(server, head(server, "POST", "/v1/sandboxes", *lines) + b"0\r\n\r\n" + smuggled, said=False)
        assert len(found) <= 1 and all(400 <= status < 502 and status != 500 for status, _ in found), (lines, found)


def test_a_body_that_is_shorter_than_it_says(server: Serving) -> None:
    """The client hangs up in the middle of an upload: nothing of the file is there."""
    sandbox = server.create()
    start = head(server, "PUT", f"/v1/sandboxes/{sandbox}/fs?path=/tmp/half", "Content-Length: 1000000")
    for end in (reset, socket.socket.close):
        connection = server.raw(start + b"x" * 1000)
        time.sleep(0.1)
        end(connection)
    eventually(3, lambda: server.exec(sandbox, "ls -A /tmp").document["stdout"] == "")


# -- slow clients ------------------------------------------------------------------------------------------------------


def trickle(connection: socket.socket, data: bytes, most: float = SOON_S) -> float:
    """Send byte by byte until the other side has had enough; how long that took."""
    began = time.monotonic()
    connection.settimeout(0.05)
    for byte in data:
        try:
            connection.sendall(bytes([byte]))
            if connection.recv(4096) == b"":
                break
            return time.monotonic() - began  # an answer
        except TimeoutError:
            pass
        except OSError:
            break
        assert time.monotonic() - began < most, "it listens on and on"
    return time.monotonic() - began


def test_a_head_that_trickles_in_is_cut(server: Serving) -> None:
    with contextlib.closing(server.raw()) as connection:
        assert trickle(connection, head(server, "GET", "/healthz", *[f"X-{n}: y" for n in range(50)])) < SOON_S


def test_a_head_that_stops_is_cut(server: Serving) -> None:
    for part in (b"", b"GET", b"GET / HTTP/1.1\r\nHost: loc", head(server, "GET", "/healthz")[:-2]):
        with contextlib.closing(server.raw(part)) as connection:
            read_to_end(connection)


def test_a_body_that_trickles_in_is_cut(server: Serving) -> None:
    sandbox = server.create()
    for start in (
        head(server, "POST", f"/v1/sandboxes/{sandbox}/exec", "Content-Type: application/json", "Content-Length: 500"),
        head(server, "POST", "/v1/sandboxes", "Content-Type: application/json", "Transfer-Encoding: chunked"),
    ):
        with contextlib.closing(server.raw(start)) as connection:
            assert trickle(connection, b'{"cmd": "' + b"x" * 400) < SOON_S


def test_a_body_that_stops_is_answered_408(server: Serving) -> None:
    start = head(server, "POST", "/v1/sandboxes", "Content-Type: application/json", "Content-Length: 500")
    refused(send(server, start + b"{"), 408)


def test_a_command_is_not_cut_for_its_silence(server: Serving) -> None:
    """The bounds on silence are on the client's, not on a command's."""
    answer = server.exec(server.create(), "sleep 2.5; echo end")
    assert (answer.status, answer.document["stdout"]) == (200, "end\n")


# -- heads -------------------------------------------------------------------------------------------------------------


def test_heads_that_are_too_much(server: Serving) -> None:
    many = [f"X-{number}: value" for number in range(2000)]
    for lines in (
        many,
        ["X-Long: " + "a" * 100_000],
        ["X" * 20_000 + ": a"],
        [f"X-{n}: {'a' * 500}" for n in range(60)],
    ):
        refused(send(server, head(server, "GET", "/healthz", *lines, "Connection: close")), 400, 431)
    refused(send(server, head(server, "GET", "/" + "a" * 100_000)), 400, 414)


def test_a_head_without_an_end(server: Serving) -> None:
    with contextlib.closing(server.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")) as connection:
        sent = 0
        with contextlib.suppress(OSError):
            connection.settimeout(2)
            while sent < 64 << 20:
                connection.sendall(b"X-A: " + b"b" * 1000 + b"\r\n")
                sent += 1007
        assert sent < 16 << 20
        found = answers(read_to_end(connection))
        assert all(status in (400, 431) for status, _ in found)


def test_what_is_no_http(server: Serving) -> None:
    for data in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(64), b"SSH-2.0-OpenSSH_9.6\r\n",
        b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n\r\n", b"\0" * 5000, b"GET / HTTP/1.1\nHost: a\n\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nX y: z\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n folded: z\r\n\r\n", b"GET http://[ HTTP/1.1\r\nHost: a\r\n\r\n",
    ):  # fmt: skip
        found = send(server, data)
        assert len(found) <= 1 and all(400 <= status < 500 or status == 505 for status, _ in found), (data, found)


def test_requests_in_a_row_are_answered_in_a_row(server: Serving) -> None:
    sandbox = server.create()
    body = json.dumps({"cmd": "sleep 0.3; echo first"}).encode()
    first = head(
        server,
        "POST",
        f"/v1/sandboxes/{sandbox}/exec",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    second = head(server, "GET", f"/v1/sandboxes/{sandbox}")
    last = head(server, "GET", "/v1/sandboxes/none", "Connection: close")
    found = send(server, first + body + second * 20 + last)
    assert [status for status, _ in found] == [200] * 21 + [404]
    assert found[0][1]["stdout"] == "first\n" and found[1][1]["id"] == sandbox


# -- paths -------------------------------------------------------------------------------------------------------------

ESCAPES = (
    "..", "../..", "%2e%2e", "%2e%2e%2f%2e%2e", "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "a%00b", "%00", "%ff%fe",
    "%", "%zz", "a%0d%0aX-Injected:%20yes", "sbx_%2e%2e", "a" * 4000, "%E2%80%A8", "'; drop", "$(id)", "*",
)  # fmt: skip


def test_references_that_lead_elsewhere(server: Serving) -> None:
    for name in ESCAPES:
        for method, path in (
            ("GET", f"/v1/sandboxes/{name}"), ("DELETE", f"/v1/sandboxes/{name}"), ("GET", f"/v1/snapshots/{name}"),
            ("DELETE", f"/v1/snapshots/{name}"), ("GET", f"/v1/templates/{name}"), ("DELETE", f"/v1/templates/{name}"),
            ("GET", f"/v1/sandboxes/{name}/fs?path=/tmp"),
        ):  # fmt: skip
            if name in ("..", "../.."):  # which lead to another path of the table
                continue
            found = send(server, head(server, method, path.replace(" ", "%20"), "Connection: close"))
            refused(found, 400, 404, 405, 422)
    assert {each["name"] for each in server.get("/v1/templates")["items"]} >= {"base", "python"}


def test_paths_of_files_that_lead_elsewhere(server: Serving) -> None:
    sandbox = server.create()
    server.exec(sandbox, "ln -s / /tmp/root; ln -s ../../../../../../etc/passwd /tmp/link; mkfifo /tmp/fifo")
    fs = f"/v1/sandboxes/{sandbox}/fs"
    for path in (
        "/etc/shadow", "/tmp/../../../etc/shadow", "/tmp/%2e%2e/%2e%2e/etc/shadow", "..%2f..%2fetc%2fshadow",
        "/tmp/root/etc/shadow", "/tmp/link", "/proc/1/environ", "/proc/self/environ", "/dev/sda", "/tmp/a%00b",
        "", "/", "/tmp/" + "a" * 5000, "/tmp/" + "d/" * 3000,
    ):  # fmt: skip
        for method, where in (("GET", fs), ("PUT", fs), ("GET", f"{fs}/tree"), ("DELETE", fs)):
            if path == "/tmp/link" and method in ("PUT", "DELETE"):
                continue  # of the sandbox's own links anything may be made
            answer = server.ask(method, f"{where}?path={path}", body=b"x" if method == "PUT" else None, timeout=5)
            fine = answer.status == 200 and path in ("/", "") and where.endswith("tree")
            assert fine or (answer.is_problem and 400 <= answer.status < 500), (method, path, answer.status)
            assert b"root:" not in answer.body
    for where in (fs, f"{fs}/tree"):  # opening it must not wait for one who writes to it
        answer = server.ask("GET", f"{where}?path=/tmp/fifo", timeout=5)
        assert answer.status == 200 or 400 <= answer.status < 500


def test_methods_and_paths_that_are_not_there(server: Serving) -> None:
    for method, path in (
        ("PATCH", "/v1/sandboxes"), ("PUT", "/v1/sandboxes/x"), ("TRACE", "/healthz"), ("CONNECT", "localhost:80"),
        ("OPTIONS", "*"), ("BREW", "/v1/sandboxes"), ("POST", "/healthz"), ("GET", "//etc/passwd"), ("GET", "/v2/me"),
    ):  # fmt: skip
        refused(send(server, head(server, method, path, "Connection: close")), 400, 403, 404, 405, 501)


# -- who may ask -------------------------------------------------------------------------------------------------------


def test_tokens_that_are_not_the_token(server: Serving) -> None:
    for line in (
        "Authorization: Bearer wrong", "Authorization: Bearer", f"Authorization: Basic {server.token}",
        f"Authorization: {server.token}", f"Authorization: Bearer {server.token}x", "Authorization: Bearer \u00e9",
        f"Authorization: Bearer {server.token[:-1]}", f"X-Api-Key: {server.token}", "Authorization:",
    ):  # fmt: skip
        lines = [line] if line.startswith("Auth") else [line, "Authorization: none"]
        for method, path in (("GET", "/v1/sandboxes"), ("POST", "/v1/sandboxes"), ("GET", "/v1/sandboxes/x/exec/ws")):
            refused(send(server, head(server, method, path, *lines, "Connection: close")), 401)
    assert send(server, head(server, "GET", "/healthz", "Authorization: no", "Connection: close"))[0][0] == 200
    assert server.token not in server.log()


def test_a_token_of_an_earlier_server(start_server: Callable[..., Serving]) -> None:
    """What was good before a restart is not afterwards, where the token is another; the sandboxes' ends are known."""
    renewed = start_server()
    sandbox, old = renewed.create(), renewed.token
    assert renewed.stop() == 0
    renewed.token = "another-token-9876543210"
    renewed.start()
    problem(renewed.ask("GET", f"/v1/sandboxes/{sandbox}", Authorization=f"Bearer {old}"), 401)
    assert renewed.get(f"/v1/sandboxes/{sandbox}")["end"]["reason"] == "killed"


def test_a_name_that_was_made_to_lead_here(server: Serving) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "[::2]", "@"):
        refused(
            send(server, head(server, "GET", "/v1/sandboxes", host=host)[:-2] + b"Connection: close\r\n\r\n"), 400, 403
        )
    refused(
        send(server, head(server, "GET", "/v1/sandboxes", "Host: localhost", "Host: evil", "Connection: close")), 400
    )


def test_pages_of_other_sites(server: Serving) -> None:
    for origin in ("http://evil.example", "null", "http://localhost:1", "http://localhost.evil.example", "file://"):
        lines = (f"Origin: {origin}", "Connection: close")
        refused(send(server, head(server, "POST", "/v1/sandboxes", *lines, host=f"localhost:{server.port}")), 403)
        upgrade = (
            f"Origin: {origin}", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        )  # fmt: skip
        with contextlib.closing(server.raw(head(server, "GET", "/v1/sandboxes/x/exec/ws", *upgrade))) as connection:
            assert re.match(rb"HTTP/1.1 403 ", connection.recv(65536))


def test_a_websocket_that_is_none(server: Serving) -> None:
    sandbox = server.create()
    path = f"/v1/sandboxes/{sandbox}/exec/ws"
    refused(send(server, head(server, "GET", path, "Connection: close")), 400, 426)
    upgrade = (
        "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )  # fmt: skip
    masked_garbage = b"\x81\x85\0\0\0\0hello" + b"\xff\xff\xff\xff" * 100
    with contextlib.closing(server.raw(head(server, "GET", path, *upgrade))) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 101 ")
        connection.sendall(masked_garbage)
        read_to_end(connection)


CONNECT = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(5)
try:
    connection.connect(sys.argv[1])
except OSError as problem:
    print(type(problem).__name__)
    sys.exit()
lines = ["GET /v1/sandboxes HTTP/1.1", "Host: localhost", "Connection: close", *sys.argv[2:], "", ""]
connection.sendall("\\r\\n".join(lines).encode())
print(connection.recv(65536).split(b" ", 2)[1].decode())
"""


@pytest.mark.root
def test_another_user_at_the_unix_socket(server: Serving) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    python = hosts._python_for(hosts.ORDINARY_UID)
    if python is None:
        pytest.skip("no Python that another user may execute")

    def connect(*lines: str) -> str:
        command = [python, "-c", CONNECT, server.socket, *lines]
        done = subprocess.run(
            command, user=hosts.ORDINARY_UID, group=hosts.ORDINARY_UID, extra_groups=[], cwd="/", timeout=10,
            capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    assert connect() == "PermissionError"
    assert server.ask("GET", "/v1/sandboxes", unix=True, Authorization="none").status == 200  # its own user
    try:  # even where somebody has opened the way, the kernel's word on who is there counts
        server.state.chmod(0o711)
        os.chmod(server.socket, 0o666)
        assert connect() == "401"
        assert connect("Authorization: Bearer wrong") == "401"
        assert connect(f"Authorization: Bearer {server.token}") == "200"
    finally:
        os.chmod(server.socket, 0o600)
        server.state.chmod(0o700)


# -- clients that go ---------------------------------------------------------------------------------------------------


def begin(server: Serving, sandbox: str, cmd: str, path: str = "exec") -> socket.socket:
    body = json.dumps({"cmd": cmd, "timeout_seconds": 60}).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    return server.raw(head(server, "POST", f"/v1/sandboxes/{sandbox}/{path}", *lines) + body)


@pytest.mark.parametrize("path", ["exec", "exec/stream"])
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
def test_a_command_ends_with_its_client(server: Serving, path: str, how: str) -> None:
    sandbox = server.create()
    word = f"74{len(path)}{len(how)}.5"
    connection = begin(server, sandbox, f"trap '' TERM; (setsid sleep {word} &); while :; do sleep {word}; done", path)
    eventually(3, lambda: len(server.running(word)) >= 2)
    if how == "reset":
        reset(connection)
    elif how == "close":
        connection.close()
    else:
        connection.shutdown(socket.SHUT_WR)  # no client of HTTP does so while it waits for an answer
    eventually(2, lambda: not server.running(word))
    (command,) = server.get(f"/v1/sandboxes/{sandbox}/execs")["items"]
    assert (command["status"], command["outcome"]) == ("ended", "cancelled")
    connection.close()


def test_a_background_command_does_not(server: Serving) -> None:
    sandbox = server.create()
    body = json.dumps({"cmd": "sleep 7403", "background": True}).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    connection = server.raw(head(server, "POST", f"/v1/sandboxes/{sandbox}/exec", *lines) + body)
    assert connection.recv(65536).startswith(b"HTTP/1.1 202 ")
    reset(connection)
    time.sleep(0.3)
    assert server.running("7403")
    server.delete(sandbox)
    assert not server.running("7403")


def test_clients_that_go_in_the_midst_of_everything(server: Serving) -> None:
    """Half a create, a fork or a snapshot is undone or finished; what is there afterwards is known."""
    sandbox = server.create()
    for path in ("", f"/{sandbox}/fork", f"/{sandbox}/snapshots", f"/{sandbox}/repl/sessions"):
        for delay in (0.0, 0.005, 0.03):
            lines = ("Content-Type: application/json", "Content-Length: 2")
            connection = server.raw(head(server, "POST", f"/v1/sandboxes{path}", *lines) + b"{}")
            time.sleep(delay)
            reset(connection)
    eventually(5, lambda: [each["id"] for each in server.live()] == [sandbox])
    for each in server.get("/v1/sandboxes?state=ended")["items"]:
        assert each["end"]["reason"] in ("killed", "owner_gone"), each


def test_a_reader_that_takes_nothing_does_not_hold_the_limit(server: Serving) -> None:
    sandbox = server.create()
    body = json.dumps({"cmd": "yes 7404", "timeout_seconds": 1}).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(head(server, "POST", f"/v1/sandboxes/{sandbox}/exec/stream", *lines) + body)
    eventually(2, lambda: server.running("7404"))
    eventually(3, lambda: not server.running("7404"))
    assert server.exec(sandbox, "echo on").document["stdout"] == "on\n"
    connection.close()


# -- many --------------------------------------------------------------------------------------------------------------


def test_two_hundred_idle_connections_hold_nobody_up(server: Serving) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(contextlib.closing(server.raw()))
        began = time.monotonic()
        server.works()
        assert time.monotonic() - began < 3


def test_more_connections_than_there_may_be(start_server: Callable[..., Serving]) -> None:
    """Those beyond are told so and closed, also where many come at once; when there is room again it serves."""
    few = start_server(patience={"connections": 20})
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(contextlib.closing(few.raw())) for _ in range(60)]
        for each in held:
            each.sendall(head(few, "GET", "/healthz"))
        statuses = [int(each.recv(65536).split(b" ", 2)[1]) for each in held]
        assert sorted(statuses) == [200] * 20 + [503] * 40
        refused(send(few, head(few, "GET", "/healthz")), 503)
    eventually(SOON_S, lambda: few.ask("GET", "/healthz").status == 200)
    few.works()


def test_the_process_is_what_it_was(server: Serving) -> None:
    """After all of the above: its descriptors and threads are few."""
    assert server.process is not None
    pid = server.process.pid
    eventually(SOON_S, lambda: len(os.listdir(f"/proc/{pid}/fd")) < 60)
    assert len(os.listdir(f"/proc/{pid}/task")) < 50
