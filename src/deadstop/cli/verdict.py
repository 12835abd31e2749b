# SPDX-License-Identifier: Apache-2.0
"""The line that `deadstop run` prints on stderr when there is something to say about how a command ended."""

from __future__ import annotations

from ..results import Receipt, Status, ToolResult


def verdict(result: ToolResult, *, stdin_ignored: bool, not_taken: int) -> str:
    """Empty for a plain success. Otherwise what happened, what was killed and with which proof, and what to try.

    `not_taken`: bytes of output that whoever reads ours did not take.
    """
    parts = [_what(result)]
    if result.receipt:
        parts.append(killed(result.receipt))
    if result.evidence and result.evidence.diagnosis:
        parts.append(result.evidence.diagnosis.detail)
    if result.hint:
        parts.append(f"hint: {result.hint}")
    if stdin_ignored:
        parts.append("what was piped in was not passed on (use --stdin)")
    if not_taken:
        parts.append(f"{not_taken} bytes of output were not taken by the reader of this command's output")
    lines = [part for part in parts if part]
    limits = tuple(f"{name}:" for name in result.limits)
    lines += [f"note: {line}" for line in result.degraded if lines or line.startswith(limits)]
    return "\n".join(f"deadstop: {line}" for line in lines)


def _what(result: ToolResult) -> str:
    error = result.error
    if error:
        source = f" (limit: {result.limit.which}, {result.limit.source})" if result.limit else ""
        return f"{error['message']}{source}"
    if result.leftover:
        left = f"it left {len(result.leftover)} running: {', '.join(result.leftover)}"
        return f"completed with exit code {result.exit_code}; {left}"
    return "" if result.status is Status.COMPLETED else str(result.status)


def killed(receipt: Receipt) -> str:
    """A receipt in one line."""
    many = f"{receipt.processes} process{'' if receipt.processes == 1 else 'es'}"
    if receipt.survivors == 0:
        return f"killed {many} in {receipt.kill_ms:.1f} ms, none left (proof: {receipt.proof})"
    stuck = ", ".join(f"{one.cmd} ({one.pid}) in {one.waiting_in}" for one in receipt.unkillable)
    return f"kill of {many} could not be shown to be complete (proof: {receipt.proof}){': ' + stuck if stuck else ''}"
