# SPDX-License-Identifier: Apache-2.0
"""Measuring: candidates in turn (A B C A B C), what they gave, and whether that meets the target.

A shared machine makes every absolute number doubtful. So what deadstop is compared with is measured in the same run, in
turn, and the ratio is printed beside the number.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Candidate = Callable[[], float]  #: one measurement; what it returns is in the unit of the figure
PERCENTILE_FROM = 100  # with fewer values than this the largest stands for the 99th percentile


@dataclass(frozen=True)
class Series:
    """The values that one candidate gave."""

    values: tuple[float, ...]

    @property
    def p50(self) -> float:
        return self._rank(0.5)

    @property
    def p99(self) -> float:
        """The 99th percentile, or the largest value when there are fewer than 100."""
        return self._rank(0.99) if len(self.values) >= PERCENTILE_FROM else max(self.values)

    @property
    def is_max(self) -> bool:
        return 1 < len(self.values) < PERCENTILE_FROM

    def _rank(self, part: float) -> float:
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]

    def text(self) -> str:
        if not self.values:
            return "nothing"
        if len(self.values) == 1:
            return f"{_short(self.values[0])}"
        return f"{_short(self.p50)} / {_short(self.p99)}{'*' if self.is_max else ''}"

    def document(self) -> dict[str, Any]:
        if not self.values:
            return {"n": 0}
        name = "max" if self.is_max else "p99"
        return {"n": len(self.values), "p50": round(self.p50, 3), name: round(self.p99, 3), "min": min(self.values)}


@dataclass(frozen=True)
class Figure:
    """One line of the table. `target` is (p50, p99), or (most,) for a single number, or () where none is set."""

    name: str
    got: Series
    target: tuple[float, ...] = ()
    unit: str = "ms"
    beside: Mapping[str, Series] = field(default_factory=dict)
    most_times: tuple[str, float] | None = None  # (what is beside, how many times its p50 is allowed)
    note: str = ""

    @property
    def met(self) -> bool | None:
        """None where no target is set."""
        if not self.target:
            return None
        reached = [self.got.p50, self.got.p99] if len(self.target) == 2 else [self.got.p99]
        met = bool(self.got.values) and all(value <= most for value, most in zip(reached, self.target, strict=True))
        if met and self.most_times:
            name, most = self.most_times
            met = name not in self.beside or self.ratio(name) <= most
        return met

    def ratio(self, name: str) -> float:
        floor = self.beside[name].p50
        return self.got.p50 / floor if floor else math.inf

    def document(self) -> dict[str, Any]:
        return {
            "figure": self.name, "unit": self.unit, "target": list(self.target), "got": self.got.document(),
            "beside": {name: series.document() for name, series in self.beside.items()},
            "most_times": list(self.most_times) if self.most_times else None, "met": self.met, "note": self.note,
        }  # fmt: skip

    def row(self) -> tuple[str, ...]:
        """name, target, got, n, verdict, beside."""
        target = " / ".join(_short(value) for value in self.target) or "-"
        verdict = {True: "met", False: "MISSED", None: "-"}[self.met]
        return self.name, target, f"{self.got.text()} {self.unit}", str(len(self.got.values)), verdict, self._beside()

    def _beside(self) -> str:
        parts = [
            f"{name} {series.text()} (x{self.ratio(name):.1f})" if series.p50 else f"{name} {series.text()}"
            for name, series in self.beside.items()
            if series.values
        ]
        return "; ".join([*parts, self.note] if self.note else parts)


class Compared(Figure):
    """A figure whose only target is a ratio to what is beside it."""

    @property
    def met(self) -> bool | None:
        if self.most_times is None or self.most_times[0] not in self.beside:
            return None
        return self.ratio(self.most_times[0]) <= self.most_times[1]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def in_turn(candidates: Mapping[str, Candidate], *, rounds: int, seconds: float) -> dict[str, Series]:
    """Run every candidate once per round. Stops after `rounds`, or when `seconds` are over and each has five values."""
    values: dict[str, list[float]] = {name: [] for name in candidates}
    end = time.monotonic() + seconds
    for done in range(rounds):
        if done >= 5 and time.monotonic() > end:
            break
        for name, measure in candidates.items():
            values[name].append(measure())
    return {name: Series(tuple(series)) for name, series in values.items()}


def figures(results: dict[str, Series], targets: Mapping[str, tuple[str, tuple[float, ...]]]) -> Iterator[Figure]:
    """One figure for each of ours in `targets` (candidate -> its name and target); all others stand beside it."""
    beside = {name: series for name, series in results.items() if name not in targets}
    for candidate, (name, target) in targets.items():
        yield Figure(name, results[candidate], target, beside=beside)


@dataclass(frozen=True)
class Bench:
    """What a benchmark is given: which host it runs on, how long it may take, and where the payloads are."""

    host: str
    folder: str
    quick: bool
    compiled: bool

    def payload(self, name: str, *arguments: str, inside: bool = False) -> list[str]:
        """The command of a payload; `inside` a sandbox its folder is shown as /payloads."""
        folder = "/payloads" if inside else f"{self.folder}/payloads"
        start = [f"{folder}/{name}"] if self.compiled else ["/usr/bin/python3", f"{folder}/{name}.py"]
        return [*start, *arguments]

    @property
    def payload_bind(self) -> str:
        return f"{self.folder}/payloads:/payloads"

    @property
    def namespaces(self) -> bool:
        return "userns" not in os.environ.get("DEADSTOP_DENY", "")

    def measure(self, candidates: Mapping[str, Candidate], *, rounds: int, seconds: float) -> dict[str, Series]:
        """`in_turn`, after one round that is thrown away; a quick run takes a fifth of both."""
        in_turn(candidates, rounds=1, seconds=0)
        if self.quick:
            rounds, seconds = max(5, rounds // 5), seconds / 5
        return in_turn(candidates, rounds=rounds, seconds=seconds)


def milliseconds(start: float, end: float | None = None) -> float:
    return ((time.monotonic() if end is None else end) - start) * 1000
