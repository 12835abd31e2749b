# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401, F811 -- fixtures are imported, and used by their names
"""What is no proper request gets a 4xx problem document, whatever it is, and nothing is lost by it."""

from __future__ import annotations

import json
import time

import pytest
from http_front import Front, front, root_host, sandbox

CREATE = "/v1/sandboxes"


@pytest.mark.parametrize(
    "body", [b"{", b"{'a': 1}", b'{"ttl_seconds": NaN}', b'{"ttl_seconds": 1', b"\xff\xfe{}", b'"\\ud800"']
)
def test_malformed_json_is_400(front: Front, body: bytes) -> None:
    front.ask("POST", CREATE, body, headers={"Content-Type": "application/json"}).problem(400, "malformed")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"ttl_seconds": "5"}, "$.ttl_seconds"),
        ({"ttl_seconds": True}, "$.ttl_seconds"),
        ({"ttl_seconds": 0}, "$.ttl_seconds"),
        ({"ttl_seconds": -1}, "$.ttl_seconds"),
        ({"ttl_seconds": 1e300}, "$.ttl_seconds"),
        ({"metadata": {"a": 1}}, "$.metadata"),
        ({"volumes": [{"name": "v"}]}, "$.volumes"),
        ({"memory_mb": 1.5}, "$.memory_mb"),
        ({"network": "all"}, "$.network"),
        ({"hooks": {"on_timeout": 3}}, "$.hooks.on_timeout"),
        ({"name": "-x"}, "$.name"),
        ({"name": "a b"}, "$.name"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"ttl_second": 5}, "ttl_second"),
        ([], "array"),
    ],
)
def test_wrong_values_are_422_and_say_where(front: Front, body: object, path: str) -> None:
    before = front.ask("GET", "/healthz").json["sandboxes"]
    assert path in front.ask("POST", CREATE, body).problem(422)["detail"]
    assert front.ask("GET", "/healthz").json["sandboxes"] == before


def test_numbers_of_the_other_kind_are_taken(front: Front) -> None:
    made = front.ask("POST", CREATE, {"ttl_seconds": 60, "template": "code-interpreter", "metadata": {}})
    assert made.status == 201 and made.json["ttl_seconds"] == 60
    assert front.ask("DELETE", f"{CREATE}/{made.json['id']}").status == 200


def test_deep_and_long_json(front: Front) -> None:
    json_type = {"Content-Type": "application/json"}
    front.ask("POST", CREATE, b"[" * 200_000, headers=json_type).problem(422)
    deep = b'{"volumes":' + b"[" * 200_000
    assert front.ask("POST", CREATE, deep, headers=json_type).status in (400, 422)
    front.ask("POST", CREATE, b" " * (2 << 20), headers=json_type).problem(413, "too_large")


def test_chunked_body_over_the_bound_is_413(front: Front) -> None:
    head = b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunk = b"%x\r\n%s\r\n" % (1 << 16, b" " * (1 << 16))
    sock = front.connect()
    try:
        sock.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(17):
            sock.sendall(chunk)
        assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")
    finally:
        sock.close()


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_other_media_types_are_415(front: Front, media: str) -> None:
    front.ask("POST", CREATE, b"{}", headers={"Content-Type": media}).problem(415)


def test_compressed_bodies_are_415(front: Front) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    front.ask("POST", CREATE, b"\x1f\x8b", headers=headers).problem(415)


def test_no_body_where_none_is_needed(front: Front, sandbox: str) -> None:
    assert front.ask("POST", f"{CREATE}/{sandbox}/pause").status == 200
    assert front.ask("POST", f"{CREATE}/{sandbox}/resume").status == 200
    front.ask("POST", f"{CREATE}/{sandbox}/exec").problem(400, "malformed")


def test_unknown_paths_and_methods(front: Front, sandbox: str) -> None:
    for path in ("/", "/v1", "/v1/me", "/v1/volumes", "/v1/functions/x", "/v1/sandboxes/a/b/c/d", "/v1//sandboxes"):
        front.ask("GET", path).problem(404, "not_found")
    for method, path in (("PUT", CREATE), ("TRACE", CREATE), ("POST", f"{CREATE}/{sandbox}")):
        answer = front.ask(method, path)
        answer.problem(405, "method")
        assert "GET" in answer.headers["Allow"]


def test_unknown_sandboxes_are_404(front: Front) -> None:
    for ref in ("sbx_00000000000000000000", "nobody", "%00", "..%2f..", "a" * 3000, "%ff%fe", "☃".encode().hex()):
        document = front.ask("GET", f"{CREATE}/{ref}").problem(404, "not_found")
        assert document["what"] == "sandbox"


@pytest.mark.parametrize(
    "query", ["state=dead", "state=live&state=ended", "limit=5", "metadata=x", "metadata.a=1&metadata=2"]
)
def test_bad_queries_are_422(front: Front, query: str) -> None:
    front.ask("GET", f"{CREATE}?{query}").problem(422)


def test_head_has_no_body(front: Front, sandbox: str) -> None:
    answer = front.ask("HEAD", f"{CREATE}/{sandbox}")
    assert answer.status == 200 and answer.data == b"" and int(answer.headers["Content-Length"]) > 100
    assert front.ask("HEAD", f"{CREATE}/nobody").status == 404


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é"])
def test_bad_idempotency_keys_are_422(front: Front, key: str) -> None:
    front.ask("POST", CREATE, {}, headers={"Idempotency-Key": key}).problem(422)


def test_request_ids_come_back_if_they_are_ids(front: Front) -> None:
    assert front.ask("GET", CREATE, headers={"X-Request-Id": "abc-1"}).headers["X-Request-Id"] == "abc-1"
    made = front.ask("GET", CREATE, headers={"X-Request-Id": 'a"b'}).headers["X-Request-Id"]
    assert made.startswith("req_")
    bad = front.ask("GET", "/nowhere").headers
    assert bad["X-Request-Id"].startswith("req_") and bad["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 500 + b"\r\n",
    ],
)
def test_what_is_no_http_gets_a_problem_document_and_the_end(front: Front, data: bytes) -> None:
    answer = front.raw(data + b"\r\n\r\n", seconds=5)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 400 " in head.split(b"\r\n")[0], answer[:500]
    assert json.loads(body.split(b"HTTP/1")[0])["status"] == 400


def test_headers_beyond_the_bound_are_431(front: Front) -> None:
    headers = {f"X-{number}": "a" * 3000 for number in range(6)}
    front.ask("GET", CREATE, headers=headers).problem(431)


def test_two_hosts_or_none_are_400(front: Front) -> None:
    for hosts in (b"", b"Host: localhost\r\nHost: localhost\r\n"):
        assert b" 400 " in front.raw(b"GET /healthz HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
    assert b" 200 " in front.raw(b"GET /healthz HTTP/1.0\r\n\r\n")


def test_every_answer_is_in_the_log_without_query_or_body(front: Front) -> None:
    front.ask(
        "GET", f"{CREATE}?metadata.secret=hush", headers={"X-Request-Id": "logged-1", "Authorization": "Bearer hush"}
    )
    line = next(line for line in front.log() if line.get("id") == "logged-1")
    assert line["status"] == 200 and line["route"] == CREATE and line["method"] == "GET" and line["ms"] >= 0
    assert "hush" not in json.dumps(front.log())


def test_pipelined_requests_are_answered_in_order(front: Front, sandbox: str) -> None:
    one = b"GET /v1/sandboxes/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % sandbox.encode()
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = front.raw(one * 5 + last)
    assert answer.count(b"HTTP/1.1 200 ") == 6 and answer.rstrip().endswith(b"}")
    assert answer.rindex(sandbox.encode()) < answer.rindex(b'"version"')


def test_an_unfinished_head_does_not_stay(root_host, tmp_path) -> None:
    from http_front import start

    running = start(root_host, root_host.folder / "slow", keepalive_s=0.6, body_s=0.6)
    try:
        for data in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nA"):
            sock, begin = running.connect(seconds=5), time.monotonic()
            sock.sendall(data)
            if data:
                assert sock.recv(65536) == b""
                assert time.monotonic() - begin < 3
            sock.close()
        head = b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        sock, begin = running.connect(seconds=5), time.monotonic()
        sock.sendall(head + b"{")
        answer = sock.recv(65536)
        assert answer.startswith(b"HTTP/1.1 408 ") and 0.5 < time.monotonic() - begin < 3
        sock.close()
    finally:
        assert running.stop() == (0, "")
