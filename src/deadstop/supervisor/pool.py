# SPDX-License-Identifier: Apache-2.0
"""The workers of one caller that share a place (isolation and ceilings): made when asked for, handed over, buried.

The caller decides how many there are. Orders come as packets on its socket (marshal): ("more",), ("warm", names).
Each worker goes out as ("worker", slot, boundary level, pid) with its four descriptors; ("failed", level, reason, fix)
says that none can be had.
"""

from __future__ import annotations

import json
import marshal
import os
import socket
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import wire
from ..boundary import limits, payload, syscalls
from ..boundary.cgroup import denied
from ..boundary.limits import Applied
from ..boundary.open import REFUSALS
from ..boundary.process import ProcessBoundary
from ..boundary.subreaper import SubreaperBoundary
from ..errors import BoundaryUnavailable
from ..model import Place
from ..slots import SLOTS, Page, Slot
from .nursery import Interpreter
from .room import Room
from .worker import Worker

if TYPE_CHECKING:
    from .server import Server

ATTEMPTS = 3  # how often in a row making a worker may fail before the caller is told


class Pool:
    """Belongs to one channel of the caller: when that closes, all its workers are killed."""

    def __init__(
        self, server: Server, place: Place, document: dict[str, Any], orders: socket.socket, page: int
    ) -> None:
        self.server, self.loop, self.place = server, server.engine.loop, place
        self.interpreter = Interpreter.from_dict(document["interpreter"])
        self.document = document
        self.settings = {
            "level": place.isolation,
            "sys_path": document["inside_path"] if place.isolation == "sandbox" else list(self.interpreter.sys_path),
        }
        self.orders, self.page = orders, Page(page)
        self.free_slots = list(range(SLOTS - 1, -1, -1))
        self.workers: set[Worker] = set()
        self.fallback = "userns" in denied()
        self.closing = False
        self.failures = 0
        self.warmed: list[str] = []
        orders.setblocking(False)
        self.loop.watch(orders.fileno(), self._ordered)

    @property
    def cold(self) -> set[str]:
        return set() if self.place.isolation == "sandbox" else self.server.cold_modules(self.interpreter)

    def _ordered(self) -> None:
        while not self.closing and (got := wire.receive(self.orders, 1 << 16)) is not None:
            if not got[0]:
                self.close()
                return
            order = marshal.loads(got[0])
            if order[0] == "more":
                self.loop.later(self.make)
            elif order[0] == "warm" and self.place.isolation == "process":
                self.server.warm(self.interpreter, order[1])

    # -- making ------------------------------------------------------------------------------------------------------

    def make(self) -> None:
        if self.closing or not self.free_slots:
            return
        try:
            if self.place.isolation == "sandbox":
                self._occupy(self.server.engine.open(self.place))
            else:
                self._fork()
        except BoundaryUnavailable as problem:
            self._fail(problem.level, problem.reason, problem.fix)
        except OSError as problem:
            self._fail(self.place.isolation, f"{problem.strerror} ({problem.filename})", "")

    def _fork(self) -> None:
        user_namespace = os.geteuid() != 0 and not self.fallback
        applied = limits.apply(
            self.place.limits, "process", self.server.engine.hierarchies, user_namespace=user_namespace
        )
        if self.fallback:
            syscalls.become_subreaper()
        paths = applied.group.paths if applied.group else None
        fallback = self.fallback
        nursery = self.server.nursery(self.interpreter)
        nursery.fork(fallback, paths, lambda made, problem: self._forked(applied, fallback, made, problem))

    def _forked(
        self, applied: Applied, fallback: bool, made: tuple[int, int, socket.socket] | None, problem: tuple[int, str]
    ) -> None:
        if made is None:
            if applied.group:
                applied.group.remove()
            if problem[0] in REFUSALS and not fallback:
                self.fallback = True
                self.make()
            else:
                self._again(problem[1])
            return
        pid, exit_fd, lifeline = made
        kind = SubreaperBoundary if fallback else ProcessBoundary
        self._occupy(Room(self.loop, kind.adopt(applied, lifeline, pid, exit_fd), None))

    def _occupy(self, room: Room) -> None:
        self.server.rooms.append(room)
        if self.closing:
            room.kill(lambda: None)
            return
        slot = Slot(self.page, self.free_slots.pop())
        try:
            self.workers.add(Worker(self, slot, room))
        except OSError as problem:  # out of descriptors
            room.kill(lambda: None)
            self.free_slot(slot)
            self._fail(self.place.isolation, f"a worker could not be made ({problem.strerror})", "")

    def request(self, applied: Applied) -> payload.Request:
        """What a worker's first process puts on itself, or, in a sandbox, runs."""
        document = self.document
        return payload.request(
            document["argv"], document["env"], cwd=document["cwd_inside"], umask=document["umask"],
            nice=document["nice"], oom_score_adj=document["oom_score_adj"],
            open_files=tuple(document["open_files"]), rlimits=applied.rlimits,
            affinity=sorted(applied.affinity) if applied.affinity else None, tty=False,
        )  # fmt: skip

    # -- handing over and burying ------------------------------------------------------------------------------------

    def deliver(self, worker: Worker, fds: list[int]) -> None:
        self.failures = 0
        boundary = worker.room.boundary
        namespace = isinstance(boundary, ProcessBoundary)
        about = ("worker", worker.slot.number, boundary.level, boundary.pid, namespace, self._facts(worker.room))
        self._say(about, fds)

    def _facts(self, room: Room) -> str:
        """The ceilings in force, what was weaker than asked for, and which modules cannot be loaded before a fork."""
        reports = {name: asdict(report) for name, report in room.boundary.applied.reports.items()}
        return json.dumps({"limits": reports, "remarks": room.remarks, "cold": sorted(self.cold)})

    def gone(self, worker: Worker) -> None:
        self.workers.discard(worker)
        room = worker.room
        if room in self.server.rooms:
            self.server.rooms.remove(room)
        if worker.handed_over or worker.reason in ("unused", "owner_gone"):
            return
        if room.failed and not self.fallback and self.place.isolation == "process":
            self.fallback = True  # the namespaces were given and turned out to be of no use
            self.make()
        elif room.failed:
            self._fail(self.place.isolation, room.failed[1], "")
        else:
            said = worker.pumps[1].tail.last(2000).decode("utf-8", "replace").strip().splitlines()
            self._again(": ".join(["a worker ended while it started", *said[-1:]]))

    def free_slot(self, slot: Slot) -> None:
        slot.reset()
        self.free_slots.append(slot.number)

    def _again(self, reason: str) -> None:
        self.failures += 1
        if self.failures < ATTEMPTS:
            self.make()
        else:
            self._fail(self.place.isolation, reason, "")

    def _fail(self, level: str, reason: str, fix: str) -> None:
        self._say(("failed", level, reason, fix), [])

    def _say(self, message: tuple[Any, ...], fds: list[int]) -> None:
        try:
            socket.send_fds(self.orders, [marshal.dumps(message)], fds)
        except OSError:
            pass  # the caller is gone, or reads nothing: its channel says which

    def close(self) -> None:
        if self.closing:
            return
        self.closing = True
        self.loop.unwatch(self.orders.fileno())
        self.orders.close()
        for worker in list(self.workers):
            worker.abandon()
