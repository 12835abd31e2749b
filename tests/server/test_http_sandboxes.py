# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401, F811 -- fixtures are imported, and used by their names
"""The life of a sandbox over HTTP: made once, found by name, extended, paused, copied, ended again and again."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from http_front import Front, alive, front, root_host, sandbox

from hosts import within

ROOT = "/v1/sandboxes"


class Stream:
    """An open stream of events, and what has come of it."""

    def __init__(self, front: Front, path: str) -> None:
        self.socket, self.data = front.connect(), b""
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head, _, self.data = self.until(b"\r\n\r\n").partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK") and b"text/event-stream" in head, head

    def until(self, what: bytes) -> bytes:
        while what not in self.data:
            chunk = self.socket.recv(65536)
            assert chunk, self.data
            self.data += chunk
        return self.data

    def close(self) -> None:
        self.socket.close()


def test_made_found_and_ended(front: Front) -> None:
    made = front.ask(
        "POST", ROOT, {"template": "python", "ttl_seconds": 100, "name": "one", "metadata": {"task": "42"}}
    )
    assert made.status == 201
    document = made.json
    assert made.headers["Location"] == f"{ROOT}/{document['id']}"
    assert document["status"] == "running" and document["end"] is None and 99 < document["time_left_s"] <= 100
    assert document["owner"] in ({"uid": os.geteuid()}, {"address": "127.0.0.1"})
    for ref in (document["id"], "one"):
        assert front.ask("GET", f"{ROOT}/{ref}").json["id"] == document["id"]
    listed = front.ask("GET", f"{ROOT}?metadata.task=42&state=live").json["items"]
    assert [each["id"] for each in listed] == [document["id"]]
    assert front.ask("GET", f"{ROOT}?metadata.task=43").json["items"] == []
    front.ask("POST", ROOT, {"name": "one"}).problem(409)
    for _ in range(2):
        ended = front.ask("DELETE", f"{ROOT}/{document['id']}")
        assert ended.status == 200 and ended.json["end"]["reason"] == "killed"
        assert ended.json["end"]["receipt"]["survivors"] == 0
    assert front.ask("GET", f"{ROOT}/{document['id']}").json["status"] == "ended"
    assert document["id"] not in [each["id"] for each in front.ask("GET", ROOT).json["items"]]
    assert document["id"] in [each["id"] for each in front.ask("GET", f"{ROOT}?state=ended").json["items"]]


def test_the_same_key_makes_one(front: Front) -> None:
    key = {"Idempotency-Key": "create-1"}
    first = front.ask("POST", ROOT, {"ttl_seconds": 50}, headers=key).json["id"]
    assert front.ask("POST", ROOT, {"ttl_seconds": 50}, headers=key).json["id"] == first
    front.ask("POST", ROOT, {"ttl_seconds": 51}, headers=key).problem(422, "key_conflict")


def test_a_life_ends_and_only_extend_moves_it(front: Front) -> None:
    begin = time.monotonic()
    mine = front.create(ttl_seconds=1.2, buffer_s=0.1)
    while time.monotonic() - begin < 0.6:  # asking is no reason to live on
        front.ask("GET", f"{ROOT}/{mine}")
        time.sleep(0.05)
    key = {"Idempotency-Key": "extend-1"}
    for _ in range(2):  # sent twice, done once
        answer = front.ask("POST", f"{ROOT}/{mine}/extend", {"seconds": 0.7}, headers=key).json
        assert answer["added_s"] == 0.7 and answer["clamped"] is False
    within(4, lambda: front.ask("GET", f"{ROOT}/{mine}").json["status"] == "ended")
    assert 1.9 <= time.monotonic() - begin < 3
    assert front.ask("GET", f"{ROOT}/{mine}").json["end"]["reason"] == "ttl"
    front.ask("POST", f"{ROOT}/{mine}/extend", {"seconds": 5}).problem(410, "ended")
    assert mine in [each["id"] for each in front.ask("GET", ROOT).json["items"]]  # nobody asked for its end


@pytest.mark.parametrize("seconds", [0, -1, "5", True, None, 1e400])
def test_extensions_are_finite_and_above_zero(front: Front, sandbox: str, seconds: Any) -> None:
    body = json.dumps({"seconds": seconds}).replace("Infinity", "1e400").encode()
    headers = {"Content-Type": "application/json"}
    front.ask("POST", f"{ROOT}/{sandbox}/extend", body, headers=headers).problem(422)


def test_extensions_are_clamped(front: Front) -> None:
    mine = front.create()
    answer = front.ask("POST", f"{ROOT}/{mine}/extend", {"seconds": 1e8}).json
    assert answer["clamped"] is True and answer["time_left_s"] <= 18_000


def test_lifecycle(front: Front) -> None:
    mine = front.create()
    assert front.ask("PATCH", f"{ROOT}/{mine}/lifecycle", {"ttl_seconds": 900}).json["time_left_s"] > 890
    patched = front.ask("PATCH", f"{ROOT}/{mine}/lifecycle", {"persistent": True}).json
    assert patched["persistent"] is True
    assert front.ask("GET", f"{ROOT}/{mine}/lifecycle").json["persistent"] is True
    assert front.ask("GET", f"{ROOT}/{mine}/ports").json == {"ports": []}


def test_an_attached_one_ends_with_its_owners_connection(front: Front) -> None:
    mine = front.create(attached=True)
    one, other = Stream(front, f"{ROOT}/{mine}/attach"), Stream(front, f"{ROOT}/{mine}/attach")
    one.close()
    assert front.run(mine, "echo here").json["stdout"] == "here\n"
    front.run(mine, "sleep 13579", background=True)
    within(3, lambda: alive("13579"))
    other.close()
    within(5, lambda: front.ask("GET", f"{ROOT}/{mine}").json["status"] == "ended")
    assert front.ask("GET", f"{ROOT}/{mine}").json["end"]["reason"] == "owner_gone"
    assert not alive("13579")


def test_attaching_to_a_detached_one_holds_nothing(front: Front) -> None:
    mine = front.create()
    Stream(front, f"{ROOT}/{mine}/attach").close()
    assert front.run(mine, "true").status == 200


def test_events(front: Front) -> None:
    everything = Stream(front, "/v1/events")
    mine = front.create()
    own = Stream(front, f"{ROOT}/{mine}/events")
    front.run(mine, "true")
    front.ask("POST", f"{ROOT}/{mine}/extend", {"seconds": 1})
    front.ask("DELETE", f"{ROOT}/{mine}")
    told = own.until(b"\r\n0\r\n\r\n").decode()  # it ends by itself, with its sandbox
    kinds = [line.removeprefix("event: ") for line in told.splitlines() if line.startswith("event: ")]
    assert kinds == ["exec_started", "exec_ended", "extended", "ended"]
    assert '"reason": "killed"' in told
    seen = everything.until(b"event: ended")
    assert b"event: created" in seen and mine.encode() in seen
    for each in (everything, own):
        each.close()


def test_logs(front: Front) -> None:
    mine = front.create()
    front.run(mine, "echo out; echo err >&2")
    assert front.ask("GET", f"{ROOT}/{mine}/logs").data == b"out\nerr\n"
    assert front.ask("GET", f"{ROOT}/{mine}/logs?stream=stderr&follow=false").data == b"err\n"
    follow = Stream(front, f"{ROOT}/{mine}/logs?follow=1")
    front.run(mine, "printf 'la'; sleep 0.1; echo ter; printf rest")
    data = follow.until(b'"rest"')
    assert b"event:" not in data and b'{"line": "out"}' in data and b'{"line": "later"}' in data
    front.ask("DELETE", f"{ROOT}/{mine}")
    assert follow.until(b"\r\n0\r\n\r\n")
    follow.close()
    assert front.ask("GET", f"{ROOT}/{mine}/logs").data == b"out\nerr\nlater\nrest"  # also when it has ended


def test_snapshots_and_forks(front: Front) -> None:
    mine = front.create(ttl_seconds=77)
    front.run(mine, "echo one > f")
    taken = front.ask("POST", f"{ROOT}/{mine}/snapshots")
    assert taken.status == 201
    snapshot = taken.json["id"]
    assert snapshot in [each["id"] for each in front.ask("GET", f"/v1/snapshots?sandbox_id={mine}").json["snapshots"]]
    front.run(mine, "echo two > f")
    again = front.create(from_snapshot=snapshot)
    assert front.run(again, "cat f").json["stdout"] == "one\n"
    fork = front.ask("POST", f"{ROOT}/{mine}/fork", {"metadata": {"a": "b"}})
    assert fork.status == 201 and fork.json["how"]
    child = fork.json["sandbox"]
    assert child["parent"] == mine and child["metadata"]["a"] == "b" and child["time_left_s"] <= 77
    assert front.run(child["id"], "cat f").json["stdout"] == "two\n"
    tree = front.ask("POST", f"{ROOT}/{mine}/fork-tree", {"count": 2}).json
    assert len(tree["children"]) == 2 and tree["tree_id"]
    promoted = front.ask("POST", f"{ROOT}/{tree['children'][0]['id']}/promote", {"cleanup_siblings": True}).json
    assert tree["children"][1]["id"] in promoted["deleted"] and promoted["failures"] == {}
    for count in (0, 17, 1.5, True):
        front.ask("POST", f"{ROOT}/{mine}/fork-tree", {"count": count}).problem(422)
    assert front.ask("GET", f"/v1/snapshots/{snapshot}").json["id"] == snapshot
    assert front.ask("DELETE", f"/v1/snapshots/{snapshot}").status == 204
    front.ask("GET", f"/v1/snapshots/{snapshot}").problem(404)
    front.ask("POST", ROOT, {"from_snapshot": snapshot}).problem(404)


def test_hibernate_and_wake(front: Front) -> None:
    mine = front.create()
    front.run(mine, "echo kept > f")
    assert front.ask("POST", f"{ROOT}/{mine}/hibernate").json["status"] == "ended"
    woken = front.ask("POST", f"{ROOT}/{mine}/wake").json
    assert woken["status"] == "running" and woken["resumed_from"] == mine
    assert front.run(mine, "cat f").json["stdout"] == "kept\n"  # the old id leads to it


def test_templates(front: Front) -> None:
    items = {each["name"]: each for each in front.ask("GET", "/v1/templates").json["items"]}
    assert items["base"]["builtin"] is True
    front.ask("DELETE", "/v1/templates/base").problem(409)
    front.ask("GET", "/v1/templates/none").problem(404)
    front.ask("POST", ROOT, {"template": "none"}).problem(404, "not_found")


def test_metrics_and_health(front: Front) -> None:
    mine = front.create()
    front.run(mine, "true")
    front.ask("DELETE", f"{ROOT}/{mine}")
    text = front.ask("GET", "/metrics").data.decode()
    for name in (
        'deadstop_sandboxes{status="running"}', 'deadstop_execs_total{status="completed"}', "deadstop_exec_seconds_sum",
        "deadstop_kill_seconds_count", 'deadstop_create_seconds_count{mode="cold"}', "deadstop_http_connections",
        'deadstop_http_requests_total{method="POST",route="/v1/sandboxes",status="201"}',
    ):  # fmt: skip
        assert name in text, name
    health = front.ask("GET", "/healthz").json
    assert health["status"] == "ok" and health["version"]
