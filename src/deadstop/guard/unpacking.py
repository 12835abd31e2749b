# SPDX-License-Identifier: Apache-2.0
"""The rules for decompression: zlib, gzip, bz2, lzma and zip archives."""

from __future__ import annotations

from .archives import is_too_much, unpacked
from .watched import Rule, refuse_output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .runtime import Checks

__all__ = ["object_unpacks", "unpacks", "zip_all", "zip_member"]


def unpacks(kind: str) -> Rule:
    def check(checks: Checks, data: Any, /, *args: Any, **options: Any) -> None:
        option: Any = None
        if kind == "zlib":
            option = args[0] if args else options.get("wbits")
        elif kind == "lzma":
            option = dict(zip(("format", "memlimit", "filters"), args, strict=False)) | options
        output = unpacked(kind, data, checks.limits, option)
        if output is not None:
            refuse_output(output, len(data), checks.limits, f"{kind} data")

    return Rule(check)


def object_unpacks(checks: Checks, decompressor: Any, data: Any, max_length: Any = 0) -> None:
    if not max_length:
        output = unpacked("object", data, checks.limits, decompressor)
        if output is not None:
            refuse_output(output, len(data), checks.limits, "compressed data")


def zip_member(checks: Checks, archive: Any, member: Any, *_rest: Any, **_options: Any) -> None:
    info = member if hasattr(member, "file_size") else archive.getinfo(member)
    if is_too_much(info.file_size, info.compress_size, checks.limits):
        refuse_output(info.file_size, info.compress_size, checks.limits, "a zip member")


def zip_all(checks: Checks, archive: Any, path: Any = None, members: Any = None, _password: Any = None) -> None:
    wanted = archive.namelist() if members is None else members
    if not isinstance(wanted, list | tuple):
        return
    infos = [each if hasattr(each, "file_size") else archive.getinfo(each) for each in wanted]
    output, compressed = sum(each.file_size for each in infos), sum(each.compress_size for each in infos)
    if is_too_much(output, compressed, checks.limits):
        refuse_output(output, compressed, checks.limits, "a zip archive")
