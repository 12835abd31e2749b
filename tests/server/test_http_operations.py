# SPDX-License-Identifier: Apache-2.0
"""The ledger behind the server: operations are seen, asked about and decided; a broken ledger stops no sandbox."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="deadstop[server] is not installed")
pytest.importorskip("rfc8785", reason="deadstop[ledger] is not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "effects"))

import jsonschema
from server_process import Serving, eventually
from webhook_receiver import Receiver, receiver

from deadstop.client.operations import list_operations
from deadstop.errors import LedgerUnavailable, NotAllowed, OperationConflict, OperationNotFound
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import HttpQuery
from deadstop.ledger.records import Intent, Outcome
from deadstop.ledger.states import State

SECRET = "a-secret-for-tests"


class Authority:
    """Says of a key what `known` has, 404 otherwise."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        known = self.known

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                state = known.get(self.path.rpartition("/")[2])
                body = json.dumps({"state": state, "id": "ch_9"}).encode()
                self.send_response(404 if state is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @property
    def query(self) -> HttpQuery:
        return HttpQuery(url=f"http://127.0.0.1:{self.server.server_address[1]}/{{key}}", state="state", reference="id")

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join(5)
        self.server.server_close()


@pytest.fixture(scope="module")
def authority() -> Iterator[Authority]:
    made = Authority()
    yield made
    made.close()


@pytest.fixture(scope="module")
def hooks() -> Iterator[tuple[Receiver, Receiver]]:
    """Who gets the events, and who the alerts."""
    with receiver() as events, receiver() as alerts:
        yield events, alerts


@pytest.fixture(scope="module")
def alerted(server_host: Any) -> Path:
    """What the alert command has written: an alert a line."""
    path = Path(server_host.folder) / "alerted"
    path.touch()
    return path


@pytest.fixture(scope="module")
def kept(start_server: Callable[..., Serving], hooks: tuple[Receiver, Receiver], alerted: Path) -> Serving:
    command = f"sh -c 'cat >> {alerted}; echo >> {alerted}'"
    words = ("--webhook", hooks[0].url, "--alert-webhook", hooks[1].url, "--alert-command", command)
    started = start_server(*words, clean=False)
    until = time.monotonic() + 20  # the ledger is opened beside what the server does otherwise
    while started.ask("GET", "/v1/audit").status == 503 and time.monotonic() < until:
        time.sleep(0.05)
    return started


@pytest.fixture(scope="module")
def ledger(kept: Serving) -> Iterator[Ledger]:
    """The server's own, opened from here as an agent's program would."""
    with Ledger.open(str(kept.state / "ledger.db")) as made:
        yield made


_number = iter(range(10**6))


def lost(ledger: Ledger, authority: Authority | None = None, **effect: Any) -> Any:
    """An operation whose answer was lost."""
    tool = f"pay{next(_number)}"
    if authority is not None:
        effect["reconcile"] = authority.query
    definition = ledger.define(Effect(**effect).define(tool))
    begun = ledger.begin(Intent(f"default/{tool}", "b", "f" * 64, tool, definition.version, target="shop"))
    assert begun.claim is not None
    outcome = Outcome(State.UNKNOWN, phase="await_response", certain=False, observation="lost", retry_after_s=600)
    return ledger.finish(begun.claim, outcome)


def schema_of(server: Serving, template: str, method: str, status: int) -> tuple[Any, Any]:
    document = server.get("/v1/openapi.json")
    content = document["paths"][template][method]["responses"][str(status)]["content"]
    return document, next(iter(content.values()))["schema"]


def fits(server: Serving, template: str, method: str, answer: Any) -> Any:
    """The answer's document, which must be as the API's document says."""
    document, schema = schema_of(server, template, method, answer.status)
    whole = {**schema, "components": document["components"]}
    jsonschema.validate(answer.document, whole, jsonschema.Draft202012Validator)
    return answer.document


def test_an_unknown_one_is_seen_and_settled_by_its_authority(
    kept: Serving, ledger: Ledger, authority: Authority
) -> None:
    record = lost(ledger, authority)
    seen = fits(kept, "/v1/operations", "get", kept.ask("GET", f"/v1/operations?state=UNKNOWN&tool={record.tool}"))
    assert [each["id"] for each in seen["items"]] == [record.op_id] and seen["next_before"] is None
    one = fits(kept, "/v1/operations/{id}", "get", kept.ask("GET", f"/v1/operations/{record.op_id}"))
    assert one["state"] == "UNKNOWN" and one["effect"] == "unknown" and one["target"] == "shop"
    assert one["settle"]["query"] == {"method": "GET", "url": authority.query.url.replace("{key}", record.key)}
    assert one["settle"]["decisions"] == ["succeeded", "failed", "abandoned", "retry"]
    assert [each["observation"] for each in one["attempts_made"]] == ["lost"] and one["findings"] == []
    authority.known[record.key] = "succeeded"
    answer = kept.ask("POST", f"/v1/operations/{record.op_id}/reconcile")
    settled = fits(kept, "/v1/operations/{id}/reconcile", "post", answer)
    assert settled["state"] == "SUCCEEDED" and settled["reference"] == "ch_9" and settled["verdict"] == "applied"
    after = kept.get(f"/v1/operations/{record.op_id}")
    assert [each["verdict"] for each in after["findings"]] == ["applied"] and after["settle"]["decisions"] == []
    kinds = [each["kind"] for each in after["trail"]]
    assert kinds[:3] == ["intent", "attempt.started", "attempt.ended"] and "settled" in kinds
    assert kept.ask("POST", f"/v1/operations/{record.op_id}/reconcile").document["state"] == "SUCCEEDED"


def test_a_person_decides_once_and_who_it_was_is_written_down(kept: Serving, ledger: Ledger) -> None:
    record = lost(ledger)
    assert record.state is State.NEEDS_HUMAN
    path = f"/v1/operations/{record.op_id}/resolve"
    decision = {"decision": "succeeded", "reason": "seen in the shop", "ver": record.ver}
    stale = kept.ask("POST", path, {**decision, "ver": record.ver - 1})
    assert (stale.status, stale.document["kind"]) == (409, "changed")
    made = fits(kept, "/v1/operations/{id}/resolve", "post", kept.ask("POST", path, {**decision, "operator": "ada"}))
    assert made["state"] == "SUCCEEDED"
    again = kept.ask("POST", path, {**decision, "decision": "failed"})
    assert again.status == 409
    assert kept.ask("POST", path, {"decision": "failed", "reason": "x"}).document["kind"] == "not_allowed"
    bodies = {each["kind"]: each["body"] for each in kept.get(f"/v1/operations/{record.op_id}")["trail"]}
    assert bodies["human.decision"]["operator"] == "ada" and bodies["human.decision"]["reason"] == "seen in the shop"
    assert bodies["authz.decision"]["authorised_by"] == "token from 127.0.0.1"


def test_who_asks_over_the_socket_is_the_operator_by_the_kernels_word(kept: Serving, ledger: Ledger) -> None:
    record = lost(ledger)
    answer = kept.ask(
        "POST", f"/v1/operations/{record.op_id[:-3]}/resolve", {"decision": "retry", "reason": "y"}, unix=True
    )
    assert (answer.status, answer.document["state"]) == (200, "PREPARED"), answer.body
    seen = kept.get(f"/v1/operations/{record.op_id}")
    decided = next(each["body"] for each in seen["trail"] if each["kind"] == "human.decision")
    assert decided["operator"] == f"uid {os.geteuid()}" and seen["settle"]["decisions"] == ["abandoned"]
    assert seen["settle"]["retry_allowed"] is True


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/operations?state=gone", None, 422), ("GET", "/v1/operations?limit=0", None, 422),
        ("GET", "/v1/operations?limit=9999", None, 422), ("GET", "/v1/operations?before=x", None, 422),
        ("GET", "/v1/operations?tool=%ff", None, 422), ("GET", "/v1/operations?tool=%00", None, 422),
        ("GET", "/v1/operations/op_nobody", None, 404), ("GET", "/v1/operations/%00", None, 404),
        ("GET", "/v1/operations/%ff", None, 404), ("GET", "/v1/operations/op_", None, 404),
        ("POST", "/v1/operations/op_nobody/reconcile", None, 404),
        ("POST", "/v1/operations/op_nobody/resolve", {"decision": "failed", "reason": "x"}, 404),
        ("POST", "/v1/operations/op_nobody/resolve", {"decision": "failed"}, 422),
        ("POST", "/v1/operations/op_nobody/resolve", {"decision": "maybe", "reason": "x"}, 422),
        ("POST", "/v1/operations/op_nobody/resolve", {"decision": "failed", "reason": "x\0"}, 422),
        ("POST", "/v1/operations/op_nobody/resolve", {"decision": "failed", "reason": " \n"}, 422),
        ("POST", "/v1/operations/op_nobody/resolve", {"decision": "failed", "reason": "two\nlines, a blank "}, 404),
        ("POST", "/v1/operations/op_nobody/resolve", {"decision": "failed", "reason": "x", "state": "y"}, 422),
        ("POST", "/v1/alerts/ack", {"kind": "key_conflict", "op_id": "op_nobody"}, 404),
        ("POST", "/v1/alerts/ack", {"kind": "Key Conflict", "op_id": "op_nobody"}, 422),
        ("GET", "/v1/alerts?all=perhaps", None, 422),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(kept: Serving, method: str, path: str, body: Any, status: int) -> None:
    answer = kept.ask(method, path, body)
    if path.endswith("/op_") and answer.status == 422:
        return  # the beginning of more than one
    assert answer.status == status and answer.is_problem, (answer.status, answer.body)


def test_pages_of_operations(kept: Serving, ledger: Ledger) -> None:
    definition = ledger.define(Effect().define("pages"))
    with ThreadPoolExecutor(8) as pool:  # several in one millisecond, as likely as not
        intents = [Intent("pages", f"b{n}", "f" * 64, "pages", definition.version) for n in range(24)]
        made = [begun.record for begun in pool.map(ledger.submit, intents)]
    pages, before = [], ""
    while True:
        page = kept.get(f"/v1/operations?tool=pages&limit=2{before}")
        pages.append([each["id"] for each in page["items"]])
        if page["next_before"] is None:
            break
        before = f"&before={page['next_before']}"
    ids = [each for page in pages for each in page]
    assert sorted(ids) == sorted(each.op_id for each in made) and len(pages) > 1
    assert {each["state"] for each in kept.get("/v1/operations?state=open&limit=1000")["items"]} <= {
        "PREPARED", "DISPATCHING", "UNKNOWN", "RECONCILING", "NEEDS_HUMAN"
    }  # fmt: skip


def test_alerts_are_told_listed_and_acknowledged(
    kept: Serving, ledger: Ledger, hooks: tuple[Receiver, Receiver], alerted: Path
) -> None:
    definition = ledger.define(Effect().define("book"))
    intent = Intent("default/book", "seat 7", "a" * 64, "book", definition.version)
    op_id = ledger.begin(intent).record.op_id
    with pytest.raises(OperationConflict):
        ledger.begin(Intent("default/book", "seat 7", "b" * 64, "book", definition.version))
    path = "/v1/alerts/ack"
    found = fits(kept, "/v1/alerts", "get", kept.ask("GET", "/v1/alerts"))
    assert ("key_conflict", op_id) in [(each["kind"], each["op_id"]) for each in found["items"]]
    eventually(8, lambda: [each for each in hooks[1].got if each.event["data"]["op_id"] == op_id])
    told = [each.event["data"] for each in hooks[1].got if each.event["data"]["op_id"] == op_id]
    assert len(told) == 1 and told[0]["kind"] == "key_conflict" and told[0]["operation"]["tool"] == "book"
    lines = eventually(5, lambda: [line for line in alerted.read_text().splitlines() if op_id in line])
    assert [json.loads(line) for line in lines] == told
    body = {"kind": "key_conflict", "op_id": op_id, "by": "ada"}
    acked = fits(kept, "/v1/alerts/ack", "post", kept.ask("POST", path, body))
    assert acked["acknowledged_by"] == "ada"
    assert kept.ask("POST", path, {**body, "by": "bob"}).document["acknowledged_by"] == "ada"
    assert op_id not in [each["op_id"] for each in kept.get("/v1/alerts")["items"]]
    assert op_id in [each["op_id"] for each in kept.get("/v1/alerts?all=true&limit=1000")["items"]]
    assert "alert.acked" in [each["kind"] for each in kept.get(f"/v1/operations/{op_id}")["trail"]]


def test_what_was_settled_is_an_event(kept: Serving, ledger: Ledger, hooks: tuple[Receiver, Receiver]) -> None:
    record = lost(ledger)
    kept.ask("POST", f"/v1/operations/{record.op_id}/resolve", {"decision": "failed", "reason": "x"})
    got = eventually(5, lambda: [each for each in hooks[0].got if each.event.get("subject") == record.op_id])
    assert got[0].event["type"] == "deadstop.operation.settled" and got[0].event["data"]["state"] == "FAILED"


def test_the_sum_and_the_figures(kept: Serving, ledger: Ledger) -> None:
    lost(ledger)
    total = fits(kept, "/v1/audit", "get", kept.ask("GET", "/v1/audit"))
    assert total["started"] == total["ended"] + total["open"] > 0 and total["holds"] is True
    assert total["ledger"] == ledger.id and total["beats"][0]["name"] == "reconciler"

    def figures() -> dict[str, float]:
        lines = [line for line in kept.ask("GET", "/metrics").body.decode().splitlines() if line[0] != "#"]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    found = eventually(8, lambda: (seen := figures()).get('deadstop_operations{state="NEEDS_HUMAN"}') and seen)
    assert found["deadstop_ledger_up"] == 1 and found["deadstop_alerts_open"] >= 1
    assert found['deadstop_outbox_messages{state="dead"}'] == 0
    assert 0 <= found["deadstop_reconciler_beat_age_seconds"] < 30
    health = kept.get("/healthz")
    assert (health["status"], health["ledger"], health["problem"]) == ("ok", "ok", None)
    assert kept.defects() == []


def test_the_client_sees_asks_and_decides(kept: Serving, ledger: Ledger, authority: Authority) -> None:
    from deadstop.client import operations as client

    at = {"server": f"unix://{kept.socket}"}
    record, other = lost(ledger, authority), lost(ledger)
    seen = client.list_operations("UNKNOWN", record.tool, **at)
    assert [each["id"] for each in seen] == [record.op_id]
    authority.known[record.key] = "failed"
    assert client.reconcile_operation(record.op_id, **at)["state"] == "FAILED"
    assert client.get_operation(record.op_id, **at)["findings"][0]["verdict"] == "applied_failed"
    assert other.op_id in [each["op_id"] for each in client.list_alerts(**at)]
    assert client.acknowledge_alert("no_authority", other.op_id, "ada", **at)["acknowledged_by"] == "ada"
    with pytest.raises(NotAllowed):
        client.resolve_operation(other.op_id, "failed", "x", ver=other.ver + 1, **at)
    assert client.resolve_operation(other.op_id, "abandoned", "x", ver=other.ver, **at)["state"] == "ABANDONED"
    assert client.audit(**at)["holds"] is True
    with pytest.raises(OperationNotFound):
        client.get_operation("op_nobody", **at)


def test_a_ledger_that_cannot_be_opened_stops_no_sandbox_and_is_tried_again(
    start_server: Callable[..., Serving], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    tmp_path.chmod(0o755)
    place.chmod(0o777)
    bad = place / "ledger.db"
    bad.write_text("this is no database, and has never been one" * 100)
    bad.chmod(0o666)
    server = start_server("--ledger", str(bad), clean=False)
    server.works()
    health = eventually(5, lambda: (seen := server.get("/healthz"))["status"] == "degraded" and seen)
    assert health["ledger"] == "away" and "not a database" in health["problem"]
    answer = server.ask("GET", "/v1/operations")
    assert (answer.status, answer.document["kind"]) == (503, "ledger_unavailable") and answer.headers["Retry-After"]
    assert b"deadstop_ledger_up 0.0" in server.ask("GET", "/metrics").body
    assert "the ledger is not available" in server.log() and server.defects() == []
    bad.unlink()
    eventually(10, lambda: server.get("/healthz")["ledger"] == "ok")
    assert server.get("/v1/operations") == {"items": [], "next_before": None}
    server.works()
    assert server.stop() == 0


def test_without_a_ledger_it_says_so(start_server: Callable[..., Serving]) -> None:
    server = start_server("--no-ledger")
    for method, path in (("GET", "/v1/operations"), ("GET", "/v1/alerts"), ("GET", "/v1/audit")):
        answer = server.ask(method, path)
        assert (answer.status, answer.document["kind"]) == (501, "no_ledger")
    with pytest.raises(LedgerUnavailable, match="keeps no ledger"):
        list_operations(server=f"unix://{server.socket}")
    assert server.get("/healthz")["ledger"] == "off" and not (server.state / "ledger.db").exists()


def test_words_that_cannot_work_are_refused_at_the_start(server_host: Any) -> None:
    first = ["serve", "--state", str(server_host.folder / "never"), "--no-socket", "--listen", "127.0.0.1:0"]
    started = [
        server_host.start(*first, *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for words in (
            ["--no-ledger", "--webhook", "http://x/"], ["--webhook", "ftp://x/"], ["--ledger", "mysql://x"],
            ["--alert-command", "'"],
        )
    ]  # fmt: skip
    for process, word in zip(started, ("--no-ledger", "ftp://", "mysql://", "--alert-command"), strict=True):
        out, said = process.communicate(timeout=30)
        assert process.returncode == 125 and out == b"" and word in said.decode(), (out, said)
