# SPDX-License-Identifier: Apache-2.0
"""The published JSON Schemas."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["result_schema"]


def result_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `deadstop.result/1`, read anew on every call: the caller owns it."""
    from importlib.resources import files
    from json import loads

    document: dict[str, Any] = loads(files(__name__).joinpath("result.schema.json").read_text("utf-8"))
    return document
