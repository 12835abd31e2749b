# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401, F811 -- fixtures are imported, and used by their names
"""The OpenAPI document says what the server does: it is whole, and no answer is another."""

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
