# SPDX-License-Identifier: Apache-2.0
"""`deadstop doctor`: what this host can give; for all that is missing or weaker, why and what would help."""

from __future__ import annotations

import argparse
import json

from ..boundary.probe import STRONG, HostReport, LevelReport, LimitSupport, probe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"Exit status: 0 when the process level has its strong proof ({STRONG}), 1 otherwise."
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    report = probe()
    print(json.dumps(report.to_dict()) if arguments.json else "\n".join(_lines(report)))
    return 0 if report.level("process").proof == STRONG else 1


def _lines(report: HostReport) -> list[str]:
    lines = [f"{report.platform}, kernel {report.kernel}, as {report.user}"]
    lines += ["", _row("level", "here", "proof", "opened in")]
    for level in report.levels:
        lines += _level(level)
    limits = [limit for limit in report.limits if report.level(limit.level).available]
    lines += ["", _row("limit", "level", "kept by")] if limits else []
    said: set[tuple[str, str]] = set()
    for limit in limits:
        lines += _limit(limit, said)
    lines += ["", *(f"note: {remark}" for remark in report.remarks)] if report.remarks else []
    return lines


def _level(level: LevelReport) -> list[str]:
    took = "-" if level.create_ms is None else f"{level.create_ms:.1f} ms"
    proof = "-" if level.proof == "none" else level.proof
    return [_row(level.name, "yes" if level.available else "no", proof, took), *_why(level.reason, level.fix)]


def _limit(limit: LimitSupport, said: set[tuple[str, str]]) -> list[str]:
    """One row; what was said for another level already is not said again."""
    why = (limit.reason, limit.fix)
    explained = ["    as above"] if why in said and limit.reason else _why(*why)
    said.add(why)
    return [_row(limit.name, limit.level, limit.enforced_by), *explained]


def _why(reason: str, fix: str) -> list[str]:
    return [f"    {name}: {text}" for name, text in (("reason", reason), ("fix", fix)) if text]


def _row(first: str, second: str, *others: str) -> str:
    return f"{first:<10}{second:<10}{''.join(f'{text:<24}' for text in others)}".rstrip()
