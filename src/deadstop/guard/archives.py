# SPDX-License-Identifier: Apache-2.0
"""How large compressed data becomes: it is unpacked in pieces that are thrown away, until it is too much."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .limits import GuardLimits

__all__ = ["FREE", "is_too_much", "unpacked"]

FREE = 10_000_000
"""Bytes of output that need no ratio: less than this is never refused for one."""
_PIECE = 65_536
_DEFLATE_RATIO = 1040  # deflate cannot do better than 1032 to 1


def is_too_much(output: int, compressed: int, limits: GuardLimits) -> bool:
    """Whether an output of this size is refused."""
    if output > limits.decompressed_bytes:
        return True
    return output > FREE and output > compressed * limits.decompress_ratio


def unpacked(kind: str, data: Any, limits: GuardLimits, option: Any = None) -> int | None:
    """None where `data` may be unpacked; otherwise the size of the output so far, which is too much.

    `kind` is zlib (`option`: wbits), gzip, bz2 or lzma; a decompressor of zlib is asked through a copy of itself.
    Data that is broken is not judged: the real call says what is wrong with it.
    """
    view = memoryview(data).cast("B")
    if kind in ("zlib", "gzip", "object") and len(view) * _DEFLATE_RATIO <= min(FREE, limits.decompressed_bytes):
        return None
    total, left = 0, bytes(view)
    while left:
        decompressor = _decompressor(kind, option)
        while True:
            piece = decompressor.decompress(left, _PIECE)
            total += len(piece)
            if is_too_much(total, len(view), limits):
                return total
            left = getattr(decompressor, "unconsumed_tail", b"")
            if decompressor.eof or not (piece or left):
                break
        more = kind in ("gzip", "bz2", "lzma") and decompressor.eof  # members that follow one another
        left = decompressor.unused_data if more else b""
        left = left.lstrip(b"\0") if kind == "gzip" else left
    return None


def _decompressor(kind: str, option: Any) -> Any:
    """A new one. The module is there already: the caller's code holds a function of it."""
    if kind == "object":
        return option.copy()
    if kind == "bz2":
        return sys.modules["bz2"].BZ2Decompressor()
    if kind == "lzma":
        return sys.modules["lzma"].LZMADecompressor(**(option or {}))
    return sys.modules["zlib"].decompressobj(31 if kind == "gzip" else 15 if option is None else option)
