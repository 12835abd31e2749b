# SPDX-License-Identifier: Apache-2.0
"""Figures for Prometheus. Each server has a registry of its own."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .. import clock

if TYPE_CHECKING:
    from ..results import ToolResult
    from ..sandbox.host import Host
    from .operations import Operations

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("creating", "running", "paused", "expiring")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_KILL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Metrics:
    """What is counted and timed. `watch` names what is read at the time of asking."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "deadstop_http_requests", "Requests answered", ["method", "route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "deadstop_http_request_seconds", "Time to an answer's head", ["route"], buckets=_SECONDS, registry=registry
        )
        self.refused = Counter(
            "deadstop_http_refused", "What was no request, or one connection too many", ["why"], registry=registry
        )
        self.execs = Counter("deadstop_execs", "Commands that ended", ["status"], registry=registry)
        self.exec_seconds = Histogram(
            "deadstop_exec_seconds", "How long commands ran", buckets=_SECONDS, registry=registry
        )
        self.kill_seconds = Histogram(
            "deadstop_kill_seconds", "From the kill to nothing left", buckets=_KILL_SECONDS, registry=registry
        )
        self.create_seconds = Histogram(
            "deadstop_create_seconds", "Until a sandbox was ready", ["mode"], buckets=_SECONDS, registry=registry
        )
        self.ended = Counter("deadstop_sandboxes_ended", "Sandboxes that ended", ["reason"], registry=registry)

    def watch(self, states: Callable[[], Iterable[str]], connections: Callable[[], int]) -> None:
        """Read the sandboxes' states and the number of connections whenever somebody asks."""
        self.registry.register(_Live(states, connections))

    def watch_ledger(self, operations: Operations) -> None:
        """Show what was last seen in the ledger: nobody who asks waits for it."""
        self.registry.register(_Ledger(operations))

    def follow(self, host: Host) -> None:
        """Take part in what happens to its sandboxes and commands, whoever asked for it."""
        host.on_create = lambda sandbox, seconds: self._created(sandbox.record.boot_mode, seconds)
        host.on_exec_end = lambda sandbox, ended: self._exec_ended(ended.result)
        host.on_end = lambda sandbox: self._sandbox_ended(sandbox.record.end or {})

    def _created(self, mode: str, seconds: float) -> None:
        self.create_seconds.labels(mode).observe(seconds)

    def _exec_ended(self, result: ToolResult | None) -> None:
        if result is None:
            return
        self.execs.labels(result.status.value).inc()
        self.exec_seconds.observe(result.duration_s)
        if result.receipt is not None:
            self.kill_seconds.observe(result.receipt.kill_ms / 1000)

    def _sandbox_ended(self, end: Mapping[str, Any]) -> None:
        self.ended.labels(end.get("reason", "failed")).inc()
        kill_ms = (end.get("receipt") or {}).get("kill_ms")
        if kill_ms is not None:
            self.kill_seconds.observe(kill_ms / 1000)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Live(Collector):
    def __init__(self, states: Callable[[], Iterable[str]], connections: Callable[[], int]) -> None:
        self._states, self._connections = states, connections

    def collect(self) -> Iterable[GaugeMetricFamily]:
        counted = Counted(self._states())
        sandboxes = GaugeMetricFamily("deadstop_sandboxes", "Sandboxes that live", labels=["status"])
        for state in STATES:
            sandboxes.add_metric([state], counted[state])
        yield sandboxes
        yield GaugeMetricFamily("deadstop_http_connections", "Open connections", value=self._connections())


class _Ledger(Collector):
    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def collect(self) -> Iterable[GaugeMetricFamily]:
        seen = self._operations.figures
        yield GaugeMetricFamily("deadstop_ledger_up", "Whether the ledger answers", value=float(seen.up))
        if not seen.up:
            return
        yield _by_state("deadstop_operations", "Operations that have not ended", seen.operations)
        yield _by_state("deadstop_outbox_messages", "Events that were not delivered", seen.outbox)
        yield GaugeMetricFamily("deadstop_alerts_open", "Alerts that nobody has acknowledged", value=seen.alerts)
        if seen.beat_age_s is not None:
            age = seen.beat_age_s + clock.monotonic() - seen.at
            yield GaugeMetricFamily("deadstop_reconciler_beat_age_seconds", "Since its last sign of life", value=age)


def _by_state(name: str, text: str, counts: Mapping[str, int]) -> GaugeMetricFamily:
    made = GaugeMetricFamily(name, text, labels=["state"])
    for state, count in counts.items():
        made.add_metric([str(state)], count)
    return made
