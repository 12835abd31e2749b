# SPDX-License-Identifier: Apache-2.0
"""The text a model is shown of a result."""

from __future__ import annotations

from .clock import check_count, format_duration
from .contract import json_value
from .errors import InvalidLimit
from .plain import plain_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .results import ToolResult

__all__ = ["diagnosed", "narrate"]

_LINE_MAX = 400  # characters of one line of words; output is bounded by max_chars


def _no_task() -> tuple[float | None, int | None]:
    return None, None


# Seconds and steps left of the task that is current. This layer knows no tasks: what knows them puts itself here.
left_of_task: Callable[[], tuple[float | None, int | None]] = _no_task


def narrate(result: ToolResult, max_chars: int, time_left_s: float | None, steps_left: int | None) -> str:
    """The text of `ToolResult.for_model`. Words come first in a short budget; output gets what is left."""
    room = check_count("max_chars", max_chars)
    if room is None:
        raise InvalidLimit("max_chars=None is not allowed: give a whole number above zero")
    time_known, steps_known = left_of_task()
    time_left_s = time_known if time_left_s is None else time_left_s
    steps_left = steps_known if steps_left is None else steps_left
    head = _head(result)
    if len(head) > room:
        return head[:room]
    texts = _texts(result)
    kept = min(room // 3, sum(len(text) + 60 for _, text, _ in texts))  # long words leave this much to output
    after: list[str] = []
    used = len(head)
    for line in _effect_lines(result):
        if used + 1 + len(line) <= room:
            after.append(line)
            used += 1 + len(line)
    for line in (*_other_lines(result), *_budget_lines(time_left_s, steps_left)):
        if used + 1 + len(line) <= room - kept:
            after.append(line)
            used += 1 + len(line)
    return "\n".join([head, *_blocks(texts, room - used), *after])


def _head(result: ToolResult) -> str:
    status = result.status.value
    error = result.error
    words = _completed_words(result) if error is None else str(error["message"])
    if error is not None and status == "error":
        words = f"{error['type']}: {words}"
    if status == "timeout" and result.limit is not None:
        words += f" (limit: {result.limit.which}, {result.limit.source})"
    if status not in ("refused", "timeout"):
        words += f", after {format_duration(result.duration_s)}"
    if result.gap_s:
        words += f"; the supervisor itself stood still for {format_duration(result.gap_s)}"
    return _line(f"{status}: {result.tool}: {words}")


def _completed_words(result: ToolResult) -> str:
    return "returned" if result.exit_code is None else f"exit code {result.exit_code}"


def _effect_lines(result: ToolResult) -> list[str]:
    """Only where a tool with effects is unknown or settled; the rest would be noise to a model."""
    if result.effect not in ("unknown", "applied", "not_applied"):
        return []
    retry = "a retry is allowed" if result.retry_allowed else "do not retry"
    what = "unknown, nobody can say yet whether it happened" if result.effect == "unknown" else result.effect
    lines = [_line(f"effect: {what}; {retry}")]
    if result.operation is not None:
        lines += _operation_lines(result.operation, result.tool)
    return lines


def _operation_lines(operation: Mapping[str, Any], tool: str) -> list[str]:
    state = operation.get("state") or "none confirmed"
    lines = [_line(f"operation: {operation.get('id')} on {operation.get('target') or tool}, last state: {state}")]
    query = operation.get("reconcile")
    if query:
        lines.append(_line(f"to settle it: {query if isinstance(query, str) else _compact(query)}"))
    return lines


def _other_lines(result: ToolResult) -> list[str]:
    receipt = result.receipt
    lines = []
    if receipt is not None and receipt.survivors != 0 and receipt.boundary != "inline":
        count = "some processes" if receipt.survivors is None else _counted(receipt.survivors, "process", "es")
        lines.append(f"warning: {count} could not be shown dead")
    if result.environment:
        lines.append(_line(f"environment: {result.environment}"))
    memory = [name for name in result.leftover if name.startswith("/")]
    ended = [name for name in result.leftover if name not in memory]
    if ended:
        lines.append(_line(f"left behind and killed: {', '.join(ended)}"))
    if memory:
        lines.append(_line(f"left behind, not removed: {', '.join(memory)}"))
    if result.deferred and result.ok:
        lines.append(_line(f"deferred: its value comes later, under the handle {result.deferred}"))
    if result.progress and not result.ok:
        lines.append(_line(f"last progress: {result.progress[-1].text}"))
    if result.late:
        lines.append(_line(f"it answered too late, which is no result: {result.late.kind} {result.late.text}"))
    hint = result.hint or diagnosed(result)
    if hint:
        lines.append(_line(f"hint: {hint}"))
    return lines


def diagnosed(result: ToolResult) -> str:
    """What the evidence says in words, for a result without a hint of its own; "" if nothing."""
    diagnosis = result.evidence.diagnosis if result.evidence else None
    return (diagnosis.hint or diagnosis.detail) if diagnosis else ""


def _budget_lines(time_left_s: float | None, steps_left: int | None) -> list[str]:
    left = []
    if time_left_s is not None:
        left.append(format_duration(max(time_left_s, 0.0)))
    if steps_left is not None:
        left.append(_counted(steps_left, "step", "s"))
    return [f"left of the task's budget: {', '.join(left)}"] if left else []


def _counted(number: int, word: str, plural: str) -> str:
    return f"{number} {word}{'' if number == 1 else plural}"


def _texts(result: ToolResult) -> list[tuple[str, str, int]]:
    """What the call gave, as name, plain text and bytes dropped before it; nothing that is empty."""
    texts = []
    if result.status.value == "completed" and result.exit_code is None and result.value is not None:
        texts.append(("value", plain_text(_compact(result.value)), 0))
    for name, output in (("stdout", result.stdout), ("stderr", result.stderr)):
        texts.append((name, output.plain().rstrip(), output.bytes_dropped))
    return [(name, text, dropped) for name, text, dropped in texts if text or dropped]


def _blocks(texts: list[tuple[str, str, int]], room: int) -> list[str]:
    """The marked tails, sharing `room`: the shortest first, so that what it leaves goes to the others."""
    blocks: dict[str, str] = {}
    for name, text, dropped in sorted(texts, key=lambda each: len(each[1])):
        blocks[name] = _block(name, text, dropped, room // (len(texts) - len(blocks)))
        room -= len(blocks[name]) + 1 if blocks[name] else 0
    return [blocks[name] for name, _, _ in texts if blocks[name]]


def _block(name: str, text: str, dropped: int, room: int) -> str:
    """One tail, every line marked with a bar that the output itself cannot forge."""
    whole = f"{name}:\n{_barred(text)}"
    if not dropped and len(whole) < room:
        return whole
    # The widest title first, so that the counts in it can only take less room than reserved.
    space = room - len(_cut_title(name, len(text), dropped, len(text))) - 2
    tail = _last(text, space)
    if tail:
        return f"{_cut_title(name, len(tail), dropped, len(text) - len(tail))}\n{_barred(tail)}"
    notice = f"{name}: not shown ({_counts(dropped, len(text))})"
    return notice if len(notice) < room else ""


def _cut_title(name: str, shown: int, dropped: int, cut: int) -> str:
    return f"{name}, the last {shown} characters (cut before them: {_counts(dropped, cut)}):"


def _counts(dropped: int, cut: int) -> str:
    """What the boundary dropped is known in bytes, what was cut here in characters."""
    earlier = [f"{dropped} bytes"] if dropped else []
    earlier += [f"{cut} characters"] if cut else []
    return " and ".join(earlier)


def _last(text: str, space: int) -> str:
    """The longest end of `text` that fits `space` once each of its lines carries a bar."""
    start = max(0, len(text) - max(space, 0))
    while start < len(text):
        over = len(text) - start + 2 * (text.count("\n", start) + 1) - space
        if over <= 0:
            break
        start += max(1, over // 3)  # a cut line gives back at most its newline and its two-character bar
    return text[start:]


def _barred(text: str) -> str:
    return "| " + text.replace("\n", "\n| ")


def _compact(value: Any) -> str:
    from json import dumps

    return value if isinstance(value, str) else dumps(json_value(value), ensure_ascii=False)


def _line(text: str) -> str:
    """One bounded line: names, hints and messages may carry what a hostile payload wrote."""
    words = " ".join(plain_text(text[: 4 * _LINE_MAX]).split())
    return words if len(words) <= _LINE_MAX else f"{words[: _LINE_MAX - 4]} ..."
