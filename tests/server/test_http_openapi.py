# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401, F811 -- fixtures are imported, and used by their names
"""The OpenAPI document says what the server does: requests made from it find no defect, and no other answer."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from http_front import TOKEN, Front, front, root_host, sandbox

ROOT = "/v1/sandboxes"


def test_the_document_is_whole(front: Front) -> None:
    document = front.ask("GET", "/v1/openapi.json").json
    schemas = document["components"]["schemas"]
    names: list[str] = []
    for path, operations in document["paths"].items():
        for operation in operations.values():
            names.append(operation["operationId"])
            assert operation["summary"] and operation["responses"], path
            wanted = [part["name"] for part in operation["parameters"] if part["in"] == "path"]
            assert all(f"{{{name}}}" in path for name in wanted) and path.count("{") == len(wanted)
    assert len(set(names)) == len(names)
    for reference in _references(document):
        _resolve(document, reference)
    for name, schema in schemas.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert name
    for operations in document["paths"].values():
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                if "example" in content:
                    validate(document, content["schema"], content["example"])


def test_answers_are_as_documented(front: Front, sandbox: str) -> None:
    document = front.ask("GET", "/v1/openapi.json").json
    front.run(sandbox, "echo x > f")
    child = front.ask("POST", f"{ROOT}/{sandbox}/snapshots").json["id"]
    one = f"{ROOT}/{sandbox}"
    of_one = [
        ("GET", "", None), ("POST", "/exec", {"cmd": "true"}),
        ("POST", "/exec", {"cmd": "sleep 5", "timeout_seconds": 0.2}),
        ("POST", "/exec", {"cmd": "true", "background": True}), ("GET", "/execs", None), ("GET", "/lifecycle", None),
        ("POST", "/extend", {"seconds": 1}), ("POST", "/fork", {}), ("POST", "/fork-tree", {"count": 2}),
        ("POST", "/promote", {"cleanup_siblings": True}), ("POST", "/snapshots", None), ("GET", "/ports", None),
        ("GET", "/fs/dir?path=/home/agent", None), ("GET", "/fs/stat?path=/home/agent/f", None),
        ("POST", "/fs/mkdir?path=/tmp/d", None), ("PUT", "/fs?path=/tmp/x", None),
        ("POST", "/fs/move", {"from": "/tmp/x", "to": "/tmp/y"}),
        ("POST", "/repl/sessions", {"language": "bash"}), ("GET", "/repl/sessions", None), ("POST", "/pause", None),
        ("POST", "/resume", None), ("POST", "/hibernate", None), ("POST", "/wake", None), ("DELETE", "", None),
    ]  # fmt: skip
    asked = [
        ("GET", ROOT, ROOT, None), ("POST", ROOT, ROOT, {"ttl_seconds": 60}), ("POST", ROOT, ROOT, {"ttl_seconds": 0}),
        ("GET", "/v1/snapshots", "/v1/snapshots", None), ("GET", f"/v1/snapshots/{child}", "/v1/snapshots/{id}", None),
        ("GET", "/v1/templates", "/v1/templates", None), ("GET", "/v1/templates/base", "/v1/templates/{name}", None),
        ("GET", "/healthz", "/healthz", None), ("GET", f"{ROOT}/nobody", f"{ROOT}/{{ref}}", None),
        *((method, one + path, f"{ROOT}/{{ref}}{path.partition('?')[0]}", body) for method, path, body in of_one),
    ]  # fmt: skip
    for method, path, template, body in asked:
        answer = front.ask(method, path, body)
        responses = document["paths"][template][method.lower()]["responses"]
        assert str(answer.status) in responses, (method, path, answer.status, answer.data[:500])
        media = answer.headers["Content-Type"].partition(";")[0]
        validate(document, responses[str(answer.status)]["content"][media]["schema"], answer.json)


# They do not end by themselves, or take packages from elsewhere.
UNASKED = {"all_events", "sandbox_events", "attach_to_sandbox", "build_template", "open_websocket"}
EXAMPLES = 12
BOUND_S = 15.0


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_generated_requests_find_no_defect(front: Front, mode: str) -> None:
    """Every operation, on a sandbox that lives, one that has ended and none: no 500, no hang, no unknown answer."""
    schemathesis = pytest.importorskip("schemathesis")
    ended = front.create()
    front.ask("DELETE", f"{ROOT}/{ended}")
    document = _bounded(front.ask("GET", "/v1/openapi.json").json)
    failures: list[str] = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if operation["operationId"] not in UNASKED:
                refs = [front.create(ttl_seconds=200), ended, "nobody"]
                narrow = _narrowed(document, path, method, refs)
                failures += _fuzz(schemathesis, narrow, front, mode)
                for each in front.ask("GET", f"{ROOT}?state=live").json["items"]:
                    front.ask("DELETE", f"{ROOT}/{each['id']}")
    assert failures == [], "\n".join(failures[:10])
    assert not [line for line in front.log() if line["level"] == "error"]


def _fuzz(schemathesis: Any, document: dict[str, Any], front: Front, mode: str) -> list[str]:
    from hypothesis import HealthCheck, Phase, given, settings

    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=f"http://127.0.0.1:{front.port}")
    checks = schemathesis.checks.CHECKS.get_by_names(
        [
            "status_code_conformance",
            "content_type_conformance",
            "response_schema_conformance",
            "response_headers_conformance",
        ]
    )
    failures: list[str] = []
    for found in schema.get_all_operations():
        operation = found.ok()
        strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode))

        @given(case=strategy)
        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        def ask(case: Any) -> None:
            response = case.call(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=BOUND_S)
            assert response.status_code != 500, response.text
            case.validate_response(response, checks=checks)

        try:
            ask()
        except (Exception, BaseExceptionGroup) as problem:
            if "Unsatisfiable" not in type(problem).__name__:
                failures.append(f"{operation.label}: {type(problem).__name__}: {str(problem)[:1500]}")
    return failures


def _bounded(document: dict[str, Any]) -> dict[str, Any]:
    """Commands and waits of half a second at most; nothing is followed."""
    for name in ("ExecCommand", "StreamCommand"):
        command = document["components"]["schemas"][name]
        command["properties"]["timeout_seconds"] = {"type": "number", "minimum": 0, "maximum": 0.5}
        command["required"] = [*command["required"], "timeout_seconds"]
    document["components"]["schemas"]["RunCode"]["properties"]["timeout_ms"] = {
        "type": "number",
        "minimum": 0,
        "maximum": 500,
    }
    document["components"]["schemas"]["RunCode"]["required"] = ["code", "timeout_ms"]
    for operations in document["paths"].values():
        for operation in operations.values():
            upload = operation.get("requestBody", {}).get("content", {})
            if "application/x-tar" in upload:  # of which the generator knows nothing
                upload["application/octet-stream"] = upload.pop("application/x-tar")
            for part in operation["parameters"]:
                if part["name"] == "follow":
                    part["schema"] = {"const": False}
                if part["name"] == "timeout_s":
                    part.update(schema={"type": "number", "minimum": 0, "maximum": 0.5}, required=True)
    return document


def _narrowed(document: dict[str, Any], path: str, method: str, refs: list[str]) -> dict[str, Any]:
    """The document of one operation, on these sandboxes."""
    operation = json.loads(json.dumps(document["paths"][path][method]))
    for part in operation["parameters"]:
        if part["name"] == "ref":
            part["schema"] = {"type": "string", "enum": refs}
    return {**document, "paths": {path: {method: operation}}}


def validate(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    jsonschema.validate(value, {**schema, "components": document["components"]}, jsonschema.Draft202012Validator)


def _references(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [found for value in part.values() for found in _references(value)]
    return [found for value in part for found in _references(value)] if isinstance(part, list) else []


def _resolve(document: Any, reference: str) -> None:
    assert reference.startswith("#/"), reference
    for name in reference[2:].split("/"):
        document = document[name]
