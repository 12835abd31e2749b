#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deadstop-remote: runs a command under an operation id and keeps durable markers of it. One file, Python 3.8 or later,
standard library only, for hosts that have no deadstop.

    deadstop-remote install [--state DIR]
    deadstop-remote run --op OP --fence N [--key K] [--lock NAME --lock-ttl S] [--limit S] [--cwd DIR] -- argv...
    deadstop-remote status --op OP [--seal N] | list | lock NAME | output --op OP [--stream stderr] | mark --op OP PHASE
    deadstop-remote unlock NAME --op OP [--by WHO]

Promised: one operation id starts at most one command. Its intent is on disk before, its `started` marker before the
command's first instruction, its exit after its end; the command goes on when the connection ends. `status` says
`running`, `finished`, `unknown` (ended, and nobody saw how), `interrupted` (the host restarted), `contradiction`,
`not_started` or `absent`. `status --seal N` also refuses every later start with a fence below N: only then is it shown
that what is absent will not start afterwards. A lock is released by the end of its own operation, or by a person
(`unlock` names the operation, and is refused while anything of it runs); nothing else removes one, however old.
Not promised: anything about a folder that was edited or restored from a backup, that output fits on
the disk, that `--limit` reaches what has left the command's process group, or that the command goes on where the host
ends what a login leaves behind (KillUserProcesses=yes of systemd-logind). Markers are never removed.

Order of a start: gate of the operation (flock), seal, key, lock, mkdir, intent, keeper, `started`, command. The keeper
holds OPDIR/alive for as long as it lives, so no process id has to be believed where that lock is held.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Dict, NoReturn  # noqa: UP035

FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
VOLATILE = frozenset(("tmpfs", "ramfs", "devtmpfs", "rootfs", "hugetlbfs", "squashfs", "proc", "sysfs"))
REFUSED, USAGE = 75, 64  # sysexits: try again later, and a command line that is wrong
GATE_WAIT, TICK = 10.0, 0.05  # seconds
Document = Dict[str, Any]  # noqa: UP006 (made at run time, and 3.8 has no dict[...])


class Refused(Exception):
    """Nothing was started. `state` is exists, stale, locked, key_taken, busy, running, not_installed or failed."""

    def __init__(self, state: str, detail: str, **more: Any) -> None:
        super().__init__(state, detail)
        self.report: Document = {"state": state, "detail": detail, **more}


# --- the disk ---------------------------------------------------------------------------------------------------------


def sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: str) -> None:
    """With its parents, durably; one that is there already is left as it is."""
    if not os.path.isdir(path):
        make_folder(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        sync_folder(os.path.dirname(path))


def write_durably(path: str, document: Document, *, new: bool = False) -> None:
    """All of it or nothing, on disk when this returns. With `new`, FileExistsError where there is one already."""
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(document, file, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        (os.link if new else os.rename)(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    sync_folder(os.path.dirname(path))


def read_document(path: str) -> Document | None:
    """None where there is none. Raises ValueError for what nobody of ours wrote."""
    try:
        with open(path) as file:
            document = json.load(file)
    except FileNotFoundError:
        return None
    if not isinstance(document, dict):
        raise ValueError(f"{os.path.basename(path)} is not a JSON object")
    return document


@contextlib.contextmanager
def guard(path: str, wait: float = GATE_WAIT) -> Iterator[int]:
    """An flock on `path`. Raises Refused("busy") after `wait` seconds."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end = time.monotonic() + wait
        while not try_lock(fd):
            if time.monotonic() >= end:
                raise Refused("busy", f"another process has held {os.path.basename(path)} for {wait:g} s")
            time.sleep(TICK)
        yield fd
    finally:
        os.close(fd)


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- the host ---------------------------------------------------------------------------------------------------------


def read_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


def host_id() -> str:
    """A digest of the machine id, which is not to be shown. "" where the host has none."""
    machine = read_line("/etc/machine-id") or read_line("/var/lib/dbus/machine-id")
    return hashlib.sha256(b"deadstop-remote\0" + machine.encode()).hexdigest()[:32] if machine else ""


def boot_id() -> str:
    return read_line("/proc/sys/kernel/random/boot_id")


def file_system(path: str) -> str:
    """The type of the file system that a folder is on; "" where that cannot be read."""
    path, best, kind = os.path.realpath(path), "", ""
    try:
        with open("/proc/self/mountinfo") as file:
            for line in file:
                left, _, right = line.partition(" - ")
                point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), left.split()[4])
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):  # a later one covers an earlier one
                    best, kind = point, right.split()[0]
    except (OSError, IndexError):
        return ""
    return kind


def start_time(pid: int) -> int | None:
    """In clock ticks since boot; None where there is no such process, or only its zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else int(words[19])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def crash(place: str) -> None:
    """For tests: DEADSTOP_REMOTE_CRASH_AT names the place at which this process kills itself."""
    if os.environ.get("DEADSTOP_REMOTE_CRASH_AT") == place:
        os.kill(os.getpid(), signal.SIGKILL)


# --- the state folder -------------------------------------------------------------------------------------------------


class State:
    """sentinel.json, ops/OP/, gates/OP, seals/OP.json, keys/DIGEST.json and locks/NAME.json in one folder."""

    FOLDERS = ("ops", "gates", "seals", "keys", "locks")

    def __init__(self, given: str | None) -> None:
        beside = read_line(os.path.realpath(sys.argv[0]) + ".state")  # written by install --state
        named = given or os.environ.get("DEADSTOP_REMOTE_STATE") or beside
        if not named:
            home = "~/.local/state/deadstop-remote"
            named = "/var/lib/deadstop-remote" if os.geteuid() == 0 else os.path.expanduser(home)
        self.folder = os.path.abspath(named)

    def path(self, *words: str) -> str:
        return os.path.join(self.folder, *words)

    def trust(self) -> Document:
        """Whether having no trace of an operation means anything here, and why not."""
        try:
            sentinel = read_document(self.path("sentinel.json"))
        except (OSError, ValueError):
            sentinel = None
        kind = file_system(self.folder)
        installed = sentinel is not None and bool(host_id()) and sentinel.get("host") == host_id()
        persistent = installed and bool(kind) and kind not in VOLATILE
        detail = "" if persistent else f"the folder is on {kind or 'an unknown file system'}"
        if not installed:
            detail = "no sentinel of this host: another folder, another host, or not installed"
        return {"sentinel": installed, "persistent": persistent, "file_system": kind, "why_not": detail}

    def install(self, volatile: bool) -> Document:
        if not host_id():
            raise Refused("failed", "this host has no machine id, so its folder cannot be told from another's")
        for name in self.FOLDERS:
            make_folder(self.path(name))
        kind = file_system(self.folder)
        if kind in VOLATILE and not volatile:
            text = f"{self.folder} is on {kind}, which forgets at a restart: name another with --state"
            raise Refused("failed", f"{text}, or give --volatile (absence will then prove nothing)")
        with contextlib.suppress(FileExistsError):
            write_durably(
                self.path("sentinel.json"), {"format": FORMAT, "host": host_id(), "at_ms": now_ms()}, new=True
            )
        report = {"state": "installed", "folder": self.folder, **self.trust()}
        if not report["sentinel"]:
            raise Refused("failed", f"{self.folder} has the sentinel of another host: it was copied; remove it by hand")
        return report


# --- reading the markers ----------------------------------------------------------------------------------------------


class Operation:
    """The markers of one operation, read once."""

    def __init__(self, state: State, op: str) -> None:
        self.state, self.op, self.folder = state, op, state.path("ops", op)
        self.problems: list[str] = []
        self.made = os.path.isdir(self.folder)
        self.intent = self._read("intent.json")
        self.exit = self._read("exit.json")
        self.phases = self._phases()
        self._check()

    def _read(self, name: str) -> Document | None:
        try:
            document = read_document(os.path.join(self.folder, name))
        except (OSError, ValueError) as problem:
            self.problems.append(f"{name} cannot be read: {problem}")
            return None
        if document is not None and document.get("op") != self.op:
            self.problems.append(f"{name} is of operation {document.get('op')}")
        return document

    def _phases(self) -> list[Document]:
        """Whole lines only: what a crash cut off was not durable, and nobody was told of it."""
        try:
            with open(os.path.join(self.folder, "phases"), errors="replace") as file:
                lines = file.read().split("\n")[:-1]
            phases: list[Document] = [json.loads(line) for line in lines if line]
            [phase["phase"] for phase in phases]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as problem:
            self.problems.append(f"phases cannot be read: {problem}")
            return []
        return phases

    def _check(self) -> None:
        intent, end, names = self.intent, self.exit, [phase["phase"] for phase in self.phases]
        if intent is None and (end is not None or names):
            self.problems.append("it has ended or started without an intent")
        if names and (names[0] != "started" or "started" in names[1:]):
            self.problems.append(f"its phases are out of order: {', '.join(map(str, names))}")
        if [phase.get("n") for phase in self.phases] != list(range(1, len(names) + 1)):
            self.problems.append("its phases are not numbered one after another")
        if end is not None and not names:
            self.problems.append("it has ended without having started")
        if intent and end and end.get("fence") != intent.get("fence"):
            self.problems.append("its end has another fence than its intent")
        if end is not None and self.child_alive():
            self.problems.append("it has ended and its process is alive")
        if intent and intent.get("key") and key_owner(self.state, intent["key"]) not in (None, self.op):
            self.problems.append(f"its key belongs to operation {key_owner(self.state, intent['key'])}")

    def child_alive(self) -> bool:
        first = self.phases[0] if self.phases else {}
        if first.get("boot_id") != boot_id() or not isinstance(first.get("pid"), int):
            return False
        return start_time(first["pid"]) == first.get("start_time")

    def at_work(self) -> bool:
        """Anything of it: its keeper, its command, or what the command has left behind in its session."""
        if self.keeper_alive() or self.child_alive():
            return True
        first = self.phases[0] if self.phases else {}
        if first.get("boot_id") != boot_id() or not isinstance(first.get("pid"), int):
            return False
        # A session's number is not given again while the session lives; another process's has its leader.
        return start_time(first["pid"]) is None and left_running(first["pid"]) > 0

    def keeper_alive(self) -> bool:
        try:
            fd = os.open(os.path.join(self.folder, "alive"), os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(fd)
        finally:
            os.close(fd)

    def settled(self) -> tuple[str, str]:
        """(state, detail). Only with the operation's gate held can nobody be about to change it."""
        if self.problems:
            return "contradiction", "; ".join(self.problems)
        if self.exit is not None:
            return "finished", ""
        if self.keeper_alive():
            return "running", ""
        if self.child_alive():
            return "running", "nobody will see how it ends: its keeper is dead"
        if not self.phases:
            text = "a start got this far and died before the command could run"
            return ("not_started", text) if self.made else ("absent", "")
        if self.phases[0].get("boot_id") != boot_id():
            return "interrupted", "the host has restarted since it was started"
        return "unknown", "it has ended, and nobody saw how"

    def report(self) -> Document:
        state, detail = self.settled()
        document: Document = {"op": self.op, "state": state, "detail": detail}
        if self.intent is not None:
            document.update({name: self.intent.get(name) for name in ("fence", "command", "nonzero", "at_ms")})
        document["phase"] = self.phases[-1]["phase"] if self.phases else None
        document["phases"] = [phase["phase"] for phase in self.phases]
        if self.exit is not None:
            names = ("code", "signal", "ran", "error", "started_ms", "ended_ms", "stdout", "stderr", "left_running")
            document.update({name: self.exit.get(name) for name in names})
        return document


def key_digest(key: str) -> str:
    return hashlib.sha256(b"deadstop-remote.key\0" + key.encode(errors="surrogateescape")).hexdigest()


def key_owner(state: State, digest: str) -> str | None:
    try:
        document = read_document(state.path("keys", f"{digest}.json"))
    except (OSError, ValueError):
        return "?"
    return None if document is None else str(document.get("op"))


def sealed(state: State, op: str) -> int:
    document = read_document(state.path("seals", f"{op}.json"))
    return 0 if document is None else int(document["fence"])


def status(state: State, op: str, seal: int | None = None, key: str | None = None) -> Document:
    """What the markers say. Absence is `definite` only in the installed folder on a disk, and once sealed."""
    trust = state.trust()
    document: Document = {"op": op, "state": "absent", "detail": "", "phase": None, "phases": []}
    fenced = False
    if os.path.isdir(state.path("gates")):
        try:
            with guard(state.path("gates", op), GATE_WAIT / 10):
                if seal is not None and seal > sealed(state, op):
                    write_durably(state.path("seals", f"{op}.json"), {"op": op, "fence": seal, "at_ms": now_ms()})
                fenced = seal is not None
                document = Operation(state, op).report()
        except Refused as busy:
            document.update(state="running", detail=busy.report["detail"])
    if seal is not None and isinstance(document.get("fence"), int) and document["fence"] > seal:
        detail = f"it was started with fence {document['fence']}, and whoever asks knows of none above {seal}"
        document.update(state="contradiction", detail=detail)
    owner = key_owner(state, key_digest(key)) if key else None
    if owner not in (None, op):
        document.update(state="contradiction", detail=f"its key belongs to operation {owner}")
    definite = document["state"] not in ("absent", "not_started") or (trust["persistent"] and fenced)
    return {"format": FORMAT, **document, "definite": definite, "sealed": fenced, **trust}


# --- locks ------------------------------------------------------------------------------------------------------------


def lock_report(state: State, name: str) -> Document:
    """Only looks: a lock past its expiry is said to be so, and stays."""
    held = read_document(state.path("locks", f"{name}.json"))
    report: Document = {"name": name, "held": False, "unlocked": (unlocks(state, name) or [None])[-1]}
    if held is None:
        return {**report, "detail": "" if state.trust()["sentinel"] else state.trust()["why_not"]}
    holder = Operation(state, held["op"]).settled()[0]
    return {**report, **held, "held": True, "expired": held["expires_ms"] <= now_ms(), "op_state": holder}


def take_lock(state: State, name: str, op: str, fence: int, ttl: float) -> None:
    """Raises Refused("locked"). One whose own operation has ended, or can be shown never to have started, is free."""
    path = state.path("locks", f"{name}.json")
    with guard(state.path("locks", f"{name}.guard")):
        held = read_document(path)
        if held is not None and held["op"] != op and not _is_over(state, held["op"]):
            report = lock_report(state, name)
            age = "past its expiry" if report["expired"] else "before its expiry"
            text = f"lock {name} is held by operation {held['op']} ({report['op_state']}), {age}"
            raise Refused("locked", text, lock=report)
        expires = now_ms() + int(ttl * 1000)
        lock = {"name": name, "op": op, "fence": fence, "host": host_id(), "at_ms": now_ms(), "expires_ms": expires}
        write_durably(path, {**lock, "boot_id": boot_id()})


def _is_over(state: State, op: str) -> bool:
    try:
        with guard(state.path("gates", op), 0):
            return Operation(state, op).settled()[0] in ("finished", "not_started", "absent")
    except Refused:
        return False


def release_lock(state: State, name: str, op: str) -> None:
    path = state.path("locks", f"{name}.json")
    with guard(state.path("locks", f"{name}.guard")):
        held = read_document(path)
        if held is not None and held["op"] == op:
            os.unlink(path)
            sync_folder(os.path.dirname(path))


def unlock(state: State, name: str, op: str, by: str) -> Document:
    """A person's word that what holds the lock is over. Who and when is on the disk before the lock is free."""
    path = state.path("locks", f"{name}.json")
    with guard(state.path("gates", op)), guard(state.path("locks", f"{name}.guard")):
        held = read_document(path)
        if held is None or held["op"] != op:
            other = "nobody" if held is None else f"operation {held['op']}"
            raise Refused("failed", f"lock {name} is held by {other}, not by {op}: look again with: lock {name}")
        known = Operation(state, op)
        if known.at_work():
            raise Refused("running", f"operation {op} still runs here: its lock stays until all of it has ended")
        mark = {"name": name, "op": op, "op_state": known.settled()[0], "by": by, "uid": os.getuid(), "at_ms": now_ms()}
        marks = [*unlocks(state, name), mark]
        write_durably(state.path("locks", f"{name}.unlocked"), {"unlocks": marks})
        crash("remote.unlocked")
        os.unlink(path)
        sync_folder(os.path.dirname(path))
    return {**mark, "state": "unlocked", "detail": f"operation {op} ({mark['op_state']}) no longer holds it"}


def unlocks(state: State, name: str) -> list[Any]:
    """Each time that a person has freed it, in order."""
    return list((read_document(state.path("locks", f"{name}.unlocked")) or {}).get("unlocks", ()))


def login_name() -> str:
    if os.getuid() == 0 and os.environ.get("SUDO_USER"):
        return os.environ["SUDO_USER"]
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


# --- a start ----------------------------------------------------------------------------------------------------------


def append_phase(folder: str, phase: str, **more: Any) -> None:
    """One line more, on disk when this returns."""
    fd = os.open(os.path.join(folder, "phases"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(fd, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        known = file.read()
        whole = known.rfind(b"\n") + 1
        file.truncate(whole)  # what a crash cut off
        line = {"n": known.count(b"\n") + 1, "phase": phase, "at_ms": now_ms(), **more}
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def command_digest(argv: list[str], cwd: str | None) -> str:
    return hashlib.sha256(json.dumps([argv, cwd]).encode()).hexdigest()


def admit(state: State, args: argparse.Namespace, argv: list[str]) -> None:
    """With the gate held. Raises Refused, or leaves an intent on the disk."""
    known = Operation(state, args.op)
    recorded = max(sealed(state, args.op), int((known.intent or {}).get("fence", 0)))
    if args.fence < recorded:
        raise Refused("stale", f"fence {args.fence} is below {recorded}: this attempt was given up by its ledger")
    if known.settled()[0] not in ("absent", "not_started"):
        same = known.intent is not None and known.intent.get("command") == command_digest(argv, args.cwd)
        raise Refused("exists", "the operation is here already", operation=known.report(), same_command=same)
    digest = key_digest(args.key) if args.key else None
    if digest is not None and key_owner(state, digest) not in (None, args.op):
        raise Refused("key_taken", f"the key belongs to operation {key_owner(state, digest)}")
    if args.lock:
        take_lock(state, args.lock, args.op, args.fence, args.lock_ttl)
    if digest is not None:
        with contextlib.suppress(FileExistsError):
            write_durably(state.path("keys", f"{digest}.json"), {"op": args.op}, new=True)
        if key_owner(state, digest) != args.op:
            raise Refused("key_taken", f"the key belongs to operation {key_owner(state, digest)}")
    make_folder(known.folder)
    crash("remote.made")
    if known.intent is not None:  # of a start that died before its command could run
        os.rename(os.path.join(known.folder, "intent.json"), os.path.join(known.folder, f"intent.{recorded}.json"))
    intent = {"op": args.op, "fence": args.fence, "key": digest, "program": argv[0], "lock": args.lock}
    intent.update(command=command_digest(argv, args.cwd), nonzero=args.nonzero, at_ms=now_ms(), boot_id=boot_id())
    write_durably(os.path.join(known.folder, "intent.json"), intent)
    crash("remote.intent")


def run(state: State, args: argparse.Namespace) -> int:
    """Start it once, send its output on, and exit as it did. Raises Refused: nothing was started."""
    argv = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
    if not argv or not argv[0]:
        raise Refused("failed", "there is no command")
    if not state.trust()["sentinel"]:
        raise Refused("not_installed", f"{state.folder}: {state.trust()['why_not']}; run: deadstop-remote install")
    try:
        with guard(state.path("gates", args.op)) as gate:
            admit(state, args, argv)
            done, keeper_end = os.pipe()
            if os.fork() == 0:
                keep(state, args, argv, gate, keeper_end)
            os.close(keeper_end)
            started = os.read(done, 1) == b"."
    except OSError as problem:
        raise Refused("failed", f"the markers cannot be written: {problem}") from None
    if started:
        tell(args, {"state": "started", "op": args.op})
        if args.detach:
            return 0
        follow(state.path("ops", args.op), done)
    return ended(state, args)


def ended(state: State, args: argparse.Namespace) -> int:
    report = Operation(state, args.op).report()
    tell(args, report)
    if report["state"] != "finished":
        return 70
    return int(report["code"]) if report["code"] is not None else 128 + int(report["signal"] or 0)


def tell(args: argparse.Namespace, report: Document) -> None:
    """To a program: one line on stderr, marked by a word that only its reader and this process know."""
    if args.report:
        with contextlib.suppress(OSError):
            os.write(2, f"@deadstop {args.report} {json.dumps(report)}\n".encode())


def follow(folder: str, done: int) -> None:
    """What the command writes, until its keeper ends or nobody reads any more."""
    streams = [(os.open(os.path.join(folder, name), os.O_RDONLY), to) for name, to in (("stdout", 1), ("stderr", 2))]
    watch = select.poll()
    watch.register(done, select.POLLIN)
    watch.register(1, 0)
    while True:
        events = dict(watch.poll(int(TICK * 1000)))
        if events.get(1, 0) & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
            sys.exit(0)  # the connection is gone; the keeper goes on
        for source, to in streams:
            for data in iter(lambda source=source: os.read(source, 65536), b""):  # type: ignore[misc]
                write_all(to, data)
        if done in events:
            return


def write_all(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BrokenPipeError:
        sys.exit(0)


# --- the keeper -------------------------------------------------------------------------------------------------------


def keep(state: State, args: argparse.Namespace, argv: list[str], gate: int, done: int) -> NoReturn:
    """In a process of its own session, from before the command's first instruction to after its last."""
    try:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)  # sshd waits for these to be closed
        folder = state.path("ops", args.op)
        alive = os.open(os.path.join(folder, "alive"), os.O_RDWR | os.O_CREAT, 0o600)
        if not try_lock(alive):
            os._exit(70)
        child, go, problem = prepare_child(state, args, argv, folder)
        started = now_ms()
        append_phase(folder, "started", pid=child, start_time=start_time(child), boot_id=boot_id())
        os.close(gate)
        os.write(go, b".")
        crash("remote.started")
        with contextlib.suppress(BrokenPipeError):
            os.write(done, b".")
        error = os.read(problem, 4096).decode(errors="replace")
        status_word, limited = wait_for(child, args.limit)
        crash("remote.exited")
        write_end(args, folder, child, started, status_word, error, limited)
        if args.lock:
            release_lock(state, args.lock, args.op)
        os._exit(0)
    finally:
        os._exit(70)


def prepare_child(state: State, args: argparse.Namespace, argv: list[str], folder: str) -> tuple[int, int, int]:
    """(pid, where a byte lets it begin, where it says why it could not). It ends by itself if its keeper dies first."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    out, err = (os.open(os.path.join(folder, name), flags, 0o600) for name in ("stdout", "stderr"))
    wait, go = os.pipe()
    problem, complain = os.pipe()
    env = dict(os.environ, DEADSTOP_OPERATION_ID=args.op, DEADSTOP_REMOTE=os.path.realpath(sys.argv[0]))
    env.update(DEADSTOP_REMOTE_STATE=state.folder, DEADSTOP_OPERATION_KEY=args.key or args.op)
    env.pop("DEADSTOP_REMOTE_CRASH_AT", None)
    pid = os.fork()
    if pid:
        for fd in (wait, complain, out, err):
            os.close(fd)
        return pid, go, problem
    try:
        os.setsid()
        os.close(go)
        if os.read(wait, 1):
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.umask(args.umask)
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            if args.cwd:
                os.chdir(args.cwd)
            os.execvpe(argv[0], argv, env)
    except OSError as failure:
        os.write(complain, f"{args.cwd or argv[0]}: {failure.strerror}".encode(errors="replace"))
    finally:
        os._exit(127)


def wait_for(child: int, limit: float | None) -> tuple[int, bool]:
    """(wait status, whether it was ended at its limit): SIGTERM to its process group, SIGKILL two seconds later."""
    if limit is None:
        return os.waitpid(child, 0)[1], False
    ends = [(time.monotonic() + limit, signal.SIGTERM), (time.monotonic() + limit + 2, signal.SIGKILL)]
    limited = False
    while True:
        pid, word = os.waitpid(child, os.WNOHANG)
        if pid:
            return word, limited
        if ends and time.monotonic() >= ends[0][0]:
            limited = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, ends.pop(0)[1])
        time.sleep(TICK)


def write_end(
    args: argparse.Namespace, folder: str, child: int, started: int, word: int, error: str, limited: bool
) -> None:
    signaled = os.WIFSIGNALED(word)
    end = {"op": args.op, "fence": args.fence, "started_ms": started, "ended_ms": now_ms(), "boot_id": boot_id()}
    end.update(code=None if signaled else os.WEXITSTATUS(word), signal=os.WTERMSIG(word) if signaled else None)
    end.update(ran=not error, error=error or ("its limit was over" if limited else None), limited=limited)
    end.update({name: digest_of(os.path.join(folder, name)) for name in ("stdout", "stderr")})
    end["left_running"] = left_running(child)
    write_durably(os.path.join(folder, "exit.json"), end, new=True)


def digest_of(path: str) -> Document:
    summed, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        for data in iter(lambda: file.read(1 << 16), b""):
            summed.update(data)
            size += len(data)
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": summed.hexdigest()}


def left_running(session: int) -> int:
    """How many processes of the command's session have outlived it."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat") as file:
            words = file.read().rpartition(")")[2].split()
            count += words[0] not in "ZX" and int(words[3]) == session
    return count


# --- the command line -------------------------------------------------------------------------------------------------


def mark(state: State, op: str, phase: str) -> Document:
    known = Operation(state, op)
    if phase == "started" or known.exit is not None or not known.phases:
        raise Refused("failed", f"operation {op} is {known.settled()[0]}: {phase} cannot be one of its phases now")
    append_phase(known.folder, phase)
    return {"op": op, "state": "marked", "detail": phase}


def output(state: State, op: str, stream: str) -> int:
    try:
        with open(state.path("ops", op, stream), "rb") as file:
            for data in iter(lambda: file.read(1 << 16), b""):
                write_all(1, data)
    except FileNotFoundError:
        raise Refused("failed", f"there is no {stream} of operation {op}") from None
    return 0


def list_operations(state: State) -> Document:
    names = sorted(os.listdir(state.path("ops"))) if os.path.isdir(state.path("ops")) else []
    return {"operations": [Operation(state, name).report() for name in names], **state.trust()}


def show(args: argparse.Namespace, document: Document) -> int:
    if args.json:
        sys.stdout.write(json.dumps(document, sort_keys=True) + "\n")
        return 0
    for each in document.get("operations", [document]):
        words = [each.get("op") or each.get("name") or each.get("folder"), each.get("state"), each.get("phase")]
        if each.get("held"):
            age = "past its expiry" if each["expired"] else "before its expiry"
            words = [f"{each['name']} is held by operation {each['op']} ({each['op_state']}), {age}"]
        line = " ".join(str(word) for word in words if word)
        sys.stdout.write(f"{line}: {each['detail']}\n" if each.get("detail") else f"{line}\n")
    return 0


def name_of(text: str) -> str:
    if not NAME.match(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 to 128 of A-Z a-z 0-9 _ . -")
    return text


def fence_of(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--state", help="the folder of the markers")
    common.add_argument("--json", action="store_true")
    common.add_argument("--report", type=name_of, help=argparse.SUPPRESS)
    top = argparse.ArgumentParser(prog="deadstop-remote", description="Runs a command once, with durable markers.")
    verbs = top.add_subparsers(dest="verb", required=True)
    add: Callable[[str], argparse.ArgumentParser] = lambda name: verbs.add_parser(name, parents=[common])  # noqa: E731
    add("install").add_argument("--volatile", action="store_true", help="allow a file system that forgets")
    start = add("run")
    start.add_argument("--fence", type=fence_of, required=True)
    start.add_argument("--key")
    start.add_argument("--lock", type=name_of)
    start.add_argument("--lock-ttl", type=float, default=3600.0, help="seconds after which the lock is called expired")
    start.add_argument("--limit", type=float, help="seconds after which the command is ended")
    start.add_argument("--cwd")
    start.add_argument("--nonzero", choices=("unknown", "failed"), default="unknown")
    start.add_argument("--detach", action="store_true")
    ask = add("status")
    ask.add_argument("--seal", type=fence_of, help="refuse every later start with a lower fence")
    ask.add_argument("--key")
    add("list")
    add("lock").add_argument("name", type=name_of)
    freeing = add("unlock")
    freeing.add_argument("name", type=name_of)
    freeing.add_argument("--by", help="who has looked (default: your login name)")
    out = add("output")
    out.add_argument("--stream", choices=("stdout", "stderr"), default="stdout")
    marking = add("mark")
    for verb in (start, ask, out, marking, freeing):
        default = os.environ.get("DEADSTOP_OPERATION_ID") if verb is marking else None
        verb.add_argument("--op", type=name_of, default=default, required=default is None)
    marking.add_argument("phase", type=name_of)
    start.add_argument("argv", nargs=argparse.REMAINDER)
    return top


def act(args: argparse.Namespace) -> int:
    state = State(args.state)
    if args.verb == "run":
        return run(state, args)
    if args.verb == "output":
        return output(state, args.op, args.stream)
    if args.verb == "install":
        document = state.install(args.volatile)
        if args.state and os.path.isfile(sys.argv[0]):  # so that whoever calls it later means the same folder
            with contextlib.suppress(OSError), open(os.path.realpath(sys.argv[0]) + ".state", "w") as file:
                file.write(state.folder + "\n")
        return show(args, document)
    if args.verb == "status":
        return show(args, status(state, args.op, args.seal, args.key))
    if args.verb == "lock":
        return show(args, lock_report(state, args.name))
    if args.verb == "unlock":
        return show(args, unlock(state, args.name, args.op, args.by or login_name()))
    return show(args, mark(state, args.op, args.phase) if args.verb == "mark" else list_operations(state))


def main() -> int:
    args = parser().parse_args()
    args.umask = os.umask(0o077)
    try:
        return act(args)
    except Refused as refused:
        tell(args, {"op": getattr(args, "op", None), **refused.report})
        sys.stderr.write(f"deadstop-remote: {refused.report['state']}: {refused.report['detail']}\n")
        return REFUSED
    except (OSError, ValueError, KeyError) as problem:  # of a folder that cannot be read: never of a start
        sys.stderr.write(f"deadstop-remote: {type(problem).__name__}: {problem}\n")
        return REFUSED


if __name__ == "__main__":
    sys.exit(main())
