# SPDX-License-Identifier: Apache-2.0
"""What is known of each sandbox, on disk: written before it exists, so that whoever dies in between, it is known.

One JSON file each, replaced by rename. Nothing is synced: it has to survive the death of processes, and what it speaks
of does not survive the death of the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..boundary.cgroup import read
from ..clock import boottime
from .states import End, State, check
from .wishes import Hooks, Wish

VERSION = 1


@dataclass
class Record:
    """One sandbox. `_boot` times are of CLOCK_BOOTTIME, in the boot that `boot_id` names; others are wall time."""

    id: str
    wish: dict[str, Any]
    template: str
    created_at: float
    created_boot: float
    expires_boot: float
    boot_id: str
    ttl_s: float
    clamped: bool = False  # a longer life was asked for than this server gives
    name: str | None = None
    state: State = State.CREATING
    metadata: dict[str, str] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    persistent: bool = False
    on_expiry: str = "kill"
    attached: bool = False
    key: str | None = None
    owner: dict[str, Any] = field(default_factory=dict)
    from_snapshot: str | None = None
    parent: str | None = None
    tree_id: str | None = None
    last_snapshot: str | None = None
    resumed_as: str | None = None
    resumed_from: str | None = None
    boot_ms: int = 0
    boot_mode: str = "cold"
    layer_id: str | None = None
    layer_kind: str = ""
    pid: int = 0  # of the boundary's first process, and the time it started: for a sweep to recognise it
    pid_start: str = ""

    def move(self, then: State) -> None:
        """To another state, if the table has it."""
        self.state = check(self.state, then)

    def finish(self, reason: End, detail: str, receipt: dict[str, Any] | None) -> None:
        self.move(State.ENDED)
        self.end = {"reason": str(reason), "detail": detail, "at": time.time(), "receipt": receipt}

    @property
    def live(self) -> bool:
        return self.state is not State.ENDED

    def time_left(self) -> float:
        return max(0.0, self.expires_boot - boottime()) if self.live else 0.0

    def expires_at(self) -> float:
        """As wall time: what is left, from now on. Of an ended one the end that it had."""
        if self.end is not None:
            return float(self.end.get("expires_at", self.end["at"]))
        if self.boot_id != boot_id():
            return self.created_at + self.ttl_s
        return time.time() + self.expires_boot - boottime()


def wish_document(wish: Wish) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(asdict(wish)))
    return document


def wish_of(document: dict[str, Any]) -> Wish:
    """Raises what a document raises that is none."""
    hooks, defaulted = Hooks(**document["hooks"]), tuple(document.get("defaulted", ()))
    return Wish(**{**document, "hooks": hooks, "defaulted": defaulted})


def boot_id() -> str:
    return read("/proc/sys/kernel/random/boot_id").strip()


def start_time(pid: int) -> str:
    """Of a process, as /proc has it; empty when it is gone."""
    fields_after_name = read(f"/proc/{pid}/stat", 1024).rpartition(") ")[2].split()
    return fields_after_name[19] if len(fields_after_name) > 19 else ""


class Registry:
    """All records of one state folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.records: dict[str, Record] = {}
        self.unreadable: list[str] = []

    def load(self) -> None:
        """Read them all. A file that cannot be read is left where it is, and named."""
        known = {each.name for each in fields(Record)}
        for name in sorted(os.listdir(self.folder)):
            path = os.path.join(self.folder, name)
            if name.endswith(".new"):
                with contextlib.suppress(OSError):
                    os.unlink(path)  # a record that was never finished: what it speaks of does not exist
            elif name.endswith(".json"):
                try:
                    with open(path, encoding="utf-8") as file:
                        document = json.load(file)
                    record = Record(**{key: value for key, value in document.items() if key in known})
                    record.state = State(record.state)
                    wish_of(record.wish)
                    if not record.live:
                        float(record.end["at"]), End(record.end["reason"])  # type: ignore[index]
                    self.records[record.id] = record
                except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as problem:
                    self.unreadable.append(f"{name}: {problem}")

    def save(self, record: Record) -> None:
        """On disk when this returns, as far as the death of processes goes. Raises OSError (a full disk)."""
        self.records[record.id] = record
        path = os.path.join(self.folder, f"{record.id}.json")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(json.dumps({"version": VERSION, **asdict(record)}))
        os.replace(f"{path}.new", path)

    def forget(self, record: Record) -> None:
        self.records.pop(record.id, None)
        for name in (f"{record.id}.json", f"{record.id}.json.new"):
            try:
                os.unlink(os.path.join(self.folder, name))
            except FileNotFoundError:
                pass
