# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI 3.1 document, made from the table of routes and the Structs of bodies and answers."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from .._version import __version__
from ..schema import result_schema
from . import documents
from .replies import EVENTS, JSON, PROBLEM
from .route import Answer, Route

__all__ = ["openapi"]

_REF = "#/components/schemas/{name}"
_EVERYWHERE = (400, 403, 422, 431, 500, 503)
_WITH_BODY = (408, 413, 415)
_IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "a request sent again with the same key gets the same answer, and nothing is done twice",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
_NAMES = {"ref": "the sandbox's id or name"}


def openapi(routes: Iterable[Route]) -> dict[str, Any]:
    """The whole document; the caller owns it."""
    routes = list(routes)
    schemas = _components(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "deadstop",
            "version": __version__,
            "description": "Sandboxes with a life of their own: every command in them ends, and how is known.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "on the unix socket none is needed"}
            },
        },
    }


def _components(routes: list[Route]) -> dict[str, Any]:
    kinds: list[type[msgspec.Struct]] = [*documents.COMPONENTS]
    kinds += dict.fromkeys(route.body for route in routes if route.body is not None)
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    result = _moved(result_schema(), documents.RESULT)
    result.pop("$schema", None)
    return {**schemas, "Result": result}


def _moved(part: Any, to: str) -> Any:
    """`part` with its references to definitions of its own leading to where it stands now."""
    if isinstance(part, dict):
        return {key: _moved(value, to) for key, value in part.items()}
    if isinstance(part, list):
        return [_moved(value, to) for value in part]
    if isinstance(part, str) and part.startswith("#/$defs/"):
        return to + part[1:]
    return part


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [*_path_parameters(route), *_query_parameters(route), *([_IDEMPOTENCY] if route.keyed else [])],
        "responses": {
            **{str(status): _answer(answer) for status, answer in route.answers.items()},
            **{str(status): _problem(status) for status in _errors(route)},
        },
    }
    if route.public:
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = _json_body(route)
    elif route.upload is not None:
        schema = {"type": "string", "contentMediaType": route.upload}
        operation["requestBody"] = {"required": False, "content": {route.upload: {"schema": schema}}}
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9_.-]+$"}
    return [
        {"name": name, "in": "path", "required": True, "description": _NAMES.get(name, name), "schema": schema}
        for name in route.parameters
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    _, schemas = msgspec.json.schema_components([route.query], ref_template=_REF)
    schema = schemas[route.query.__name__]
    return [
        {"name": name, "in": "query", "required": name in schema["required"], "schema": part}
        for name, part in schema["properties"].items()
        if part.get("type") != "object"  # metadata.KEY=VALUE, which OpenAPI has no word for
    ]


def _json_body(route: Route) -> dict[str, Any]:
    assert route.body is not None
    content: dict[str, Any] = {"schema": {"$ref": _REF.format(name=route.body.__name__)}}
    if route.example is not None:
        content["example"] = dict(route.example)
    return {"required": route.body_needed, "content": {JSON: content}}


def _answer(answer: Answer) -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.summary}
    if answer.headers:
        described["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in answer.headers.items()
        }
    if answer.schema is not None:
        described["content"] = {answer.media: {"schema": {"$ref": _REF.format(name=answer.schema.__name__)}}}
    elif answer.media != JSON:
        described["content"] = {media: {"schema": _raw(media)} for media in (answer.media, answer.also) if media}
    return described


def _raw(media: str) -> dict[str, Any]:
    """What is no JSON; of a stream, one event."""
    if media != EVENTS:
        return {"type": "string"}
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name="Problem")}
    return {"description": HTTPStatus(status).phrase, "content": {PROBLEM: {"schema": schema}}}


def _errors(route: Route) -> list[int]:
    found = {*_EVERYWHERE, *route.errors}
    found |= set() if route.public else {401}
    found |= {404} if route.parameters else set()
    found |= set(_WITH_BODY) if route.body is not None or route.upload is not None else set()
    return sorted(found - set(route.answers))
