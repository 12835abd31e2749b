# SPDX-License-Identifier: Apache-2.0
"""The quick way for what most operations are: sent once, and settled by the answer.

Its entries are written again from the rows that the tables have of it, and must be the log's letter for letter. That
says more than playing them does, and needs no JSON read. What is not ordinary, or not right, is for `replay` to say.
"""

from __future__ import annotations

import json
from hashlib import sha256
from json.encoder import encode_basestring as quoted  # what `canonical` writes text with
from typing import Any

from ..errors import DeadstopError
from .canonical import canonical
from .entries import clean
from .states import State

__all__ = ["is_ordinary", "receipt_text"]

Row = tuple[Any, ...]
Definitions = dict[tuple[str, int], str]
_COUNTS, _NUMBERS = (3, 1, 1, None, 1, 1), {3: [1, 2, 3], 4: [1, 2, 3, 4]}
_ENDS = {State.SUCCEEDED.value: '"SUCCEEDED"', State.FAILED.value: '"FAILED"'}
_NO_RESULT = '"sealed.result":null,'
_parsed = json.JSONDecoder().raw_decode  # (text, where it begins) -> the value, where it ended

# Only %d and quoted text, or hashes: a number that became text, or the other way round, is not what was written.
_INTENT = '"at":%d,"attempts":0,"binding":%s,"correlation":%s,"declared":%s,"definition":%d,"digest":'
_REST = (
    ',"fence":0,"fingerprint":%s,"from":"","key":%s,"kind":"intent","n":1,"op":%s,"prev":"","scope":%s,%s"target":%s,'
    '"to":"PREPARED","tool":%s,"ver":1}'
)
_AUTHORISED, _BY = ',"at":%d,"authorised_by":', ',"kind":"authz.decision","n":2,"op":%s,"prev":"%s"}'
_STARTED = (
    '{"at":%d,"attempt":1,"attempts":1,"fence":1,"from":"PREPARED","kind":"attempt.started","n":%d,"op":%s,"owner":%s,'
    '"prev":"%s","to":"DISPATCHING","ver":2}'
)
_SETTLED = (
    '{"at":%d,"attempt":1,"attempts":1,"certain":%s,"fence":1,"from":"DISPATCHING","kind":"settled","n":%d,'
    '"observation":%s,"op":%s,"phase":%s,"prev":"%s",%s"reference":%s,%s"to":%s,"ver":3}'
)


def is_ordinary(
    row: Row, trail: list[Row], attempts: list[Row], ends: list[Row], payloads: list[Row], declared: Definitions
) -> bool:
    """Whether this is all that the log and the tables have of such an operation, and is right. False says nothing.

    To be asked only where each entry's hash is that of its body.
    """
    try:
        return _fits(row, trail, attempts, ends, payloads, declared)
    except (AttributeError, DeadstopError, KeyError, RecursionError, TypeError, ValueError):
        return False


def _fits(
    row: Row, trail: list[Row], attempts: list[Row], ends: list[Row], payloads: list[Row], declared: Definitions
) -> bool:
    (op_id, scope, key, binding, fingerprint, tool, version, correlation, target, state, ver, fence, count, verdict,
     reference, evidence, head) = row  # fmt: skip
    if (ver, fence, count, verdict, len(attempts), len(ends)) != _COUNTS or state not in _ENDS:
        return False
    if len(trail) != evidence or [each[1] for each in trail] != _NUMBERS.get(evidence):
        return False
    op, sealed, result = quoted(op_id), "", ""
    for _, name, salt, value in payloads:
        seal = sha256(f"{salt}\0{value}".encode()).hexdigest()
        if name == "result":
            result = f'"sealed.result":"{seal}",'
        else:
            sealed += f'{quoted("sealed." + name)}:"{seal}",'
    _, _, kind, at, text, prev, leaf, place = trail[0]
    begin = _INTENT % (at, quoted(binding), _text(correlation), quoted(declared[tool, version]), version)
    rest = _REST % (quoted(fingerprint), quoted(key), op, quoted(scope), sealed, _text(target), quoted(tool))
    if kind != "intent" or prev != "" or place < 0 or not _is_intent(text, begin, rest):
        return False
    for _, _, kind, at, text, prev, own, seq in trail[1:-2]:
        if kind != "authz.decision" or prev != leaf or seq <= place or not _is_authz(text, at, _BY % (op, leaf)):
            return False
        leaf, place = own, seq
    return _is_sent(trail[-2], (leaf, place), attempts[0], op) and _is_settled(
        trail[-1], trail[-2], ends[0], op, (state, reference, head, result)
    )


def _text(value: str | None) -> str:
    return "null" if value is None else quoted(value)


def _end_of(text: str, begin: int) -> int:
    """Of the value that begins there. What was asked for, by whom, and its digest are only in the log."""
    return begin + 4 if text.startswith("null", begin) else _parsed(text, begin)[1]


def _is_intent(text: str, begin: str, rest: str) -> bool:
    end = 0
    if text.startswith('{"arguments":'):
        end = _end_of(text, 13)
    if not text.startswith(',"asked_by":' if end else '{"asked_by":', end):
        return False
    end = _end_of(text, end + 12)
    if not text.startswith(begin, end + 1) or text[end] != ",":
        return False
    return text[_end_of(text, end + 1 + len(begin)) :] == rest


def _is_authz(text: str, at: int, rest: str) -> bool:
    if not text.startswith('{"asked_by":'):
        return False
    end, begin = _end_of(text, 12), _AUTHORISED % at
    return text.startswith(begin, end) and text[_end_of(text, end + len(begin)) :] == rest


def _is_sent(entry: Row, before: tuple[str, int], attempt: Row, op: str) -> bool:
    _, n, kind, at, text, prev, _, place = entry
    _, number, fence, owner, started = attempt
    return (
        (kind, number, fence, started, prev) == ("attempt.started", 1, 1, at, before[0])
        and place > before[1]
        and text == _STARTED % (at, n, op, quoted(owner), prev)
    )


def _is_settled(entry: Row, before: Row, end: Row, op: str, said: tuple[str, str | None, str, str]) -> bool:
    _, n, kind, at, text, prev, leaf, place = entry
    _, number, ended, outcome, phase, certain, observation, receipt = end
    state, reference, head, result = said
    if (kind, number, ended, outcome, prev, leaf) != ("settled", 1, at, state, before[6], head) or place <= before[7]:
        return False
    known = "" if receipt is None else f'"receipt":{quoted(receipt_text(receipt))},'
    values = (at, "true" if certain else "false", n, quoted(observation), op, _text(phase), prev, known,
              _text(reference))  # fmt: skip
    if text == _SETTLED % (*values, result, _ENDS[state]):
        return True
    return not result and text == _SETTLED % (*values, _NO_RESULT, _ENDS[state])


def receipt_text(receipt: str) -> str:
    """As the log has it. Raises for what is no JSON: UsageError, TypeError, ValueError."""
    return clean(canonical(json.loads(receipt)).decode()) or ""
