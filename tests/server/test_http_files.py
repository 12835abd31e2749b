# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401, F811 -- fixtures are imported, and used by their names
"""Files over HTTP: whole bodies or none, in bounded memory, and nothing outside of the sandbox."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from http_front import Front, front, root_host, sandbox

from hosts import within

HOME = "/home/agent"


def fs(sandbox: str, path: str, what: str = "", more: str = "") -> str:
    return f"/v1/sandboxes/{sandbox}/fs{what}?path={path}{more}"


def test_written_read_listed_moved_removed(front: Front, sandbox: str) -> None:
    data = os.urandom(300_000)
    assert front.ask("PUT", fs(sandbox, f"{HOME}/d/a%20b"), data).json == {"path": f"{HOME}/d/a b", "bytes": len(data)}
    assert front.ask("GET", fs(sandbox, f"{HOME}/d/a%20b")).data == data
    head = front.ask("HEAD", fs(sandbox, f"{HOME}/d/a%20b"))
    assert head.status == 200 and head.headers["Content-Length"] == str(len(data)) and head.data == b""
    entry = front.ask("GET", fs(sandbox, f"{HOME}/d/a%20b", "/stat")).json
    assert (entry["name"], entry["size"], entry["is_dir"]) == ("a b", len(data), False)
    assert [each["name"] for each in front.ask("GET", fs(sandbox, f"{HOME}/d", "/dir")).json["entries"]] == ["a b"]
    moved = front.ask("POST", f"/v1/sandboxes/{sandbox}/fs/move", {"from": f"{HOME}/d/a b", "to": f"{HOME}/d/c"})
    assert moved.json["name"] == "c"
    assert front.ask("POST", fs(sandbox, f"{HOME}/d/e/f", "/mkdir")).status == 201
    front.ask("DELETE", fs(sandbox, f"{HOME}/d")).problem(409, "not_empty")
    assert front.ask("DELETE", fs(sandbox, f"{HOME}/d", more="&recursive=true")).status == 204
    front.ask("GET", fs(sandbox, f"{HOME}/d", "/stat")).problem(404, "not_found")


def test_a_payloads_view_and_ours_are_the_same(front: Front, sandbox: str) -> None:
    front.ask("PUT", fs(sandbox, f"{HOME}/script", more="&mode=755"), b"#!/bin/sh\necho ran\n")
    assert front.run(sandbox, "./script; echo back > /tmp/back").json["stdout"] == "ran\n"
    assert front.ask("GET", fs(sandbox, "/tmp/back")).data == b"back\n"
    assert front.ask("PUT", fs(sandbox, f"{HOME}/empty"), b"").json["bytes"] == 0
    assert front.ask("GET", fs(sandbox, f"{HOME}/empty")).data == b""


def test_names_that_are_no_utf8(front: Front, sandbox: str) -> None:
    assert front.ask("PUT", fs(sandbox, f"{HOME}/%ff"), b"x").status == 200
    assert front.run(sandbox, "printf '%s' *$'\\xff' | od -An -tx1").json["stdout"].strip() == "ff"
    assert front.ask("GET", fs(sandbox, f"{HOME}/%ff")).data == b"x"
    front.ask("GET", fs(sandbox, f"{HOME}/%fe")).problem(404, "not_found")
    assert front.ask("DELETE", fs(sandbox, f"{HOME}/%ff")).status == 204


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/../../etc/passwd", f"{HOME}/../../etc/passwd", "/proc/1/environ", "/root"]
)
def test_nothing_outside(front: Front, sandbox: str, path: str) -> None:
    for what in ("", "/stat", "/dir", "/tree"):
        assert front.ask("GET", fs(sandbox, path, what)).problem(front.ask("GET", fs(sandbox, path, what)).status)[
            "status"
        ] in (403, 404)
    assert front.ask("PUT", fs(sandbox, path), b"x").status in (403, 404)
    assert front.ask("DELETE", fs(sandbox, path)).status in (403, 404)


def test_links_do_not_lead_out(front: Front, sandbox: str) -> None:
    front.run(sandbox, f"ln -s /etc/hostname out; ln -s / root; ln -s {HOME} self")
    for path in (f"{HOME}/out", f"{HOME}/root/etc/hostname"):
        assert front.ask("GET", fs(sandbox, path)).status in (403, 404)
    front.ask("PUT", fs(sandbox, f"{HOME}/inside"), b"in")
    assert front.ask("GET", fs(sandbox, f"{HOME}/self/inside")).data == b"in"


def test_no_waiting_for_a_fifo(front: Front, sandbox: str) -> None:
    front.run(sandbox, "mkfifo pipe")
    front.ask("GET", fs(sandbox, f"{HOME}/pipe")).problem(409)


@pytest.mark.parametrize("query", ["", "?path=", "?path=/tmp/%00", "?path=/a&path=/b", "?path=/tmp/x&mode=9"])
def test_bad_paths_are_422(front: Front, sandbox: str, query: str) -> None:
    front.ask("PUT", f"/v1/sandboxes/{sandbox}/fs{query}", b"").problem(422)


def test_too_large_is_413_and_leaves_nothing(front: Front, sandbox: str) -> None:
    path = fs(sandbox, f"{HOME}/large")
    assert front.ask("PUT", path, bytes(32 << 20)).json["bytes"] == 32 << 20
    assert front.ask("DELETE", path).status == 204
    sock = front.connect()
    sock.sendall(f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {(32 << 20) + 1}\r\n\r\n".encode())
    assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")
    sock.close()
    sock = front.connect()
    sock.sendall(f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    try:
        for _ in range(33):
            sock.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")
    sock.close()
    front.ask("GET", path).problem(404)


def test_a_body_that_breaks_off_writes_nothing(front: Front, sandbox: str) -> None:
    path = fs(sandbox, f"{HOME}/half")
    sock = front.connect()
    sock.sendall(f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n".encode() + bytes(500_000))
    within(3, lambda: bool(front.ask("GET", "/metrics").data))
    sock.close()
    front.ask("GET", path).problem(404)
    assert front.run(sandbox, f"ls -A {HOME} | grep -c half").json["stdout"] == "0\n"


def test_trees(front: Front, sandbox: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("a/b", "a/c/d"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"data"))
        bad = tarfile.TarInfo("link")
        bad.type, bad.linkname = tarfile.SYMTYPE, "a/b"
        tar.addfile(bad)
    assert front.ask("PUT", fs(sandbox, f"{HOME}/tree", "/tree"), packed.getvalue()).status == 200
    assert front.run(sandbox, "find tree -type f | sort").json["stdout"] == "tree/a/b\ntree/a/c/d\n"
    answer = front.ask("GET", fs(sandbox, f"{HOME}/tree", "/tree"))
    with tarfile.open(fileobj=io.BytesIO(answer.data)) as tar:
        assert {name.removeprefix("./") for name in tar.getnames()} >= {"a/b", "a/c/d", "link"}
    front.ask("PUT", fs(sandbox, f"{HOME}/tree", "/tree"), b"this is no tar" * 100).problem(
        front.ask("PUT", fs(sandbox, f"{HOME}/tree", "/tree"), b"this is no tar" * 100).status
    )


def test_escapes_in_trees_are_refused(front: Front, sandbox: str, tmp_path: Path) -> None:
    for name in ("../../escaped", str(tmp_path / "escaped")):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
        front.ask("PUT", fs(sandbox, f"{HOME}/t", "/tree"), packed.getvalue())
    assert not (tmp_path / "escaped").exists()


def test_files_are_gone_with_their_sandbox(front: Front) -> None:
    mine = front.create()
    front.ask("PUT", fs(mine, f"{HOME}/x"), b"x")
    front.ask("DELETE", f"/v1/sandboxes/{mine}")
    for method in ("GET", "PUT", "DELETE"):
        front.ask(method, fs(mine, f"{HOME}/x")).problem(410, "ended")


def test_no_descriptor_stays(front: Front, sandbox: str) -> None:
    front.ask("PUT", fs(sandbox, f"{HOME}/many"), bytes(100_000))
    folder = f"/proc/{front.process.pid}/fd"
    front.ask("GET", fs(sandbox, f"{HOME}/many"))
    before = len(os.listdir(folder))
    for _ in range(20):
        front.ask("HEAD", fs(sandbox, f"{HOME}/many"))
        front.ask("GET", fs(sandbox, f"{HOME}/many"))
        front.ask("HEAD", fs(sandbox, f"{HOME}", "/tree"))
        sock = front.connect()
        sock.sendall(f"GET {fs(sandbox, HOME + '/many')} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        sock.close()
    within(5, lambda: len(os.listdir(folder)) <= before + 2)
