# SPDX-License-Identifier: Apache-2.0
"""What is known of sandboxes after a server has died, whenever that was, and what is left of them: nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keeping
import pytest

import hosts
from deadstop.boundary.cgroup import PREFIX
from deadstop.errors import UsageError
from deadstop.sandbox.settings import Settings

ROUNDS = 10  # for each kind
LONGEST_S = 0.5  # how long a server has before it is killed
GONE_S = 2.0


class Crashing:
    """The process (crashing.py) that forks servers to be killed, all with one state folder."""

    def __init__(self, host: hosts.Host, kind: str) -> None:
        self.keeper = keeping.Keeper(host, kind, program="crashing")
        self.known: dict[str, float] = {}  # id -> its end, as last told
        self.ended: set[str] = set()
        self.snapshots: set[str] = set()

    def serve(self, seed: int, seconds: float | None) -> dict[str, Any]:
        """Let a server run for so long and kill it, or look and close; what it found at its start."""
        mark = uuid.uuid4().hex
        self.keeper.tell({"mark": mark, "seed": seed, "calm": seconds is None})
        pid, started, end = 0, {}, time.monotonic() + 30
        while True:
            line = self.keeper.line(end - time.monotonic())
            assert line, self.keeper.said()
            told = json.loads(line)
            assert "failed" not in told, told
            pid = told.get("pid", pid)
            if "started" in told:
                started = told["started"]
                self.check(started)
                if seconds is not None:
                    time.sleep(seconds)  # a random moment of what it does then
                    os.kill(pid, signal.SIGKILL)
            self._remember(told)
            if "dead" in told:
                break
        dead = time.monotonic()
        host = dataclasses.replace(self.keeper.host, mark=mark)
        host.no_survivors(within=GONE_S)
        assert time.monotonic() - dead < GONE_S + 1
        return started

    def _remember(self, told: dict[str, Any]) -> None:
        if "made" in told:
            self.known[told["made"]] = told["expires_boot"]
        self.ended.update([told["ended"]] if "ended" in told else [])
        self.snapshots.update([told["snapshot"]] if "snapshot" in told else [])

    def check(self, found: dict[str, Any]) -> None:
        """Every record has an end, the right one; nothing has vanished; nothing is left of what they speak of."""
        records = found["records"]
        assert set(records) >= set(self.known), "records have vanished"
        assert (found["unreadable"], found["half_written"]) == ([], [])
        assert (found["layers"], found["images_of_nothing"]) == ([], [])
        assert set(found["snapshots"]) >= self.snapshots
        for identity, record in records.items():
            assert record["state"] == "ended", record
            end = record["end"]
            if identity in self.ended:
                assert end["reason"] == "killed", end
            else:
                assert end["reason"] in ("host_lost", "killed", "failed"), end
            if record["pid"]:
                assert end["receipt"]["proof"] == "pid_namespace_reaped", end
            if identity in self.known:
                assert record["expires_boot"] >= self.known[identity] - 0.001, "the end that was told is not there"


@pytest.fixture(params=[kind for kind in keeping.KINDS if kind != "no-cgroup"])
def crashing(request: pytest.FixtureRequest, _made_hosts: dict[str, hosts.Host | str]) -> Iterator[Crashing]:
    host = keeping.host_of(request.param, _made_hosts)
    if isinstance(host, str):
        pytest.skip(host)
    made = Crashing(host, request.param)
    yield made
    made.keeper.close()


def test_a_server_killed_at_any_moment_leaves_the_truth_and_nothing_else(crashing: Crashing) -> None:
    """Case 71."""
    draw = random.Random(20)
    for turn in range(ROUNDS):
        crashing.serve(turn, draw.uniform(0, LONGEST_S))
    found = crashing.serve(ROUNDS, None)
    reasons = [record["end"]["reason"] for record in found["records"].values()]
    assert len(reasons) > ROUNDS
    assert reasons.count("host_lost") > ROUNDS / 2
    place = str(crashing.keeper.folder)
    hosts.within(5, lambda: loops_on(place) == [])
    assert place not in Path("/proc/self/mountinfo").read_text()
    assert left_groups() == []


def loops_on(place: str) -> list[str]:
    found = []
    for each in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found += [each.read_text()] if place in each.read_text() else []
        except OSError:
            continue
    return found


def left_groups() -> list[str]:
    """Groups of supervisors that are gone with a process in them. Empty ones are swept by the next supervisor."""
    found = []
    for mount in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        for folder in Path(mount).glob(f"{PREFIX}*"):
            owner = folder.name[len(PREFIX) :].partition("-")[0]
            try:
                if owner.isdigit() and not Path(f"/proc/{owner}").exists():
                    found += [str(folder) for procs in folder.rglob("cgroup.procs") if procs.read_text().strip()]
            except OSError:
                continue
    return found


def test_settings_are_checked() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, value in (("max_ttl_s", 0.0), ("max_sandboxes", 0), ("layers", "none"), ("retention_s", -1.0)):
            with pytest.raises(UsageError, match=name):
                Settings(state=folder, **{name: value})  # type: ignore[arg-type]
