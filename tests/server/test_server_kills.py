# SPDX-License-Identifier: Apache-2.0
"""kill -9 of clients, servers, supervisors, boundaries and payloads at random moments, many rounds of it.

No process outlives its owner or its TTL, and the registry tells the truth: of every id that was ever given to anyone
the list says, also after restarts, that it lives or how it ended. DEADSTOP_ROUNDS and DEADSTOP_SEED make it longer, or
another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from server_process import Serving, eventually, serving

import hosts

ROUNDS = int(os.environ.get("DEADSTOP_ROUNDS", "20"))
SEED = int(os.environ.get("DEADSTOP_SEED", "4"))
PATIENCE = {"attach_grace_s": 1.0}
VICTIMS = ["client"] * 9 + ["payload"] * 5 + ["server"] * 3 + ["boundary"] * 2 + ["supervisor"]
GONE_S = 3.0
LATE_S = 0.5  # from the end of a life to its proof
REASONS = {"killed", "ttl", "owner_gone", "host_lost", "failed", "resource"}

# Raw, for a quick start: it says each id that it was given, then runs what does not end by itself.
CLIENT = r"""
import json, socket, sys
port, token, attached, stream, ttl, word = sys.argv[1:]
def ask(method, path, document):
    body = json.dumps(document).encode()
    link = socket.create_connection(("127.0.0.1", int(port)))
    link.sendall((f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode() + body)
    return link
def whole(link):
    data = b""
    while piece := link.recv(65536):
        data += piece
    return data
made = whole(ask("POST", "/v1/sandboxes", {"ttl_seconds": float(ttl), "attached": attached == "1"}))
if not made.startswith(b"HTTP/1.1 201"):
    print("refused", made.decode(), flush=True)
    sys.exit()
name = json.loads(made.partition(b"\r\n\r\n")[2])["id"]
print(name, flush=True)
if attached == "1":
    holding = ask("GET", f"/v1/sandboxes/{name}/attach", None)
command = f"trap '' TERM INT; (setsid sleep {word} &); while :; do sleep {word}; done"
whole(ask("POST", f"/v1/sandboxes/{name}/exec" + ("/stream" if stream == "1" else ""), {"cmd": command}))
"""


@dataclass
class Given:
    """A sandbox that somebody was told of. `attached`: it is to end with its client."""

    id: str
    ttl_s: float = 60.0
    attached: bool = False


@dataclass
class Rounds:
    server: Serving
    dice: random.Random
    given: dict[str, Given] = field(default_factory=dict)
    clients: list[subprocess.Popen[bytes]] = field(default_factory=list)
    words: Iterator[int] = field(default_factory=lambda: iter(range(7500, 99999)))
    told: list[str] = field(default_factory=list)

    def word(self) -> str:
        """Something to find a command's processes by on the real machine."""
        return f"{next(self.words)}.25"

    # -- one round of each kind --------------------------------------------------------------------------------------

    def client(self) -> None:
        """A client dies, at any moment between its start and long after."""
        process, word, attached = self._start_client()
        self._wait_a_while(0.35)
        self._kill_client(process, attached)
        eventually(GONE_S, lambda: not self.server.running(word))

    def payload(self) -> None:
        """Some process inside dies: its command has ended, its sandbox goes on."""
        sandbox, word = self._create(), self.word()
        started = self._exec_in_background(sandbox, f"sleep {word} & sleep {word}")
        eventually(GONE_S, lambda: len(self.server.running(word)) >= 2)
        self._wait_a_while(0.05)
        for pid in self.server.running(word):
            _kill(pid)
        assert self._exec_end(sandbox, started)["status"] == "ended"
        answer = self.server.exec(sandbox, "echo on")
        assert (answer.status, answer.document["stdout"]) == (200, "on\n")

    def boundary(self) -> None:
        """What holds a sandbox dies: the sandbox has ended, with everything in it, and says so."""
        sandbox, word = self._create(), self.word()
        self._exec_in_background(sandbox, f"(setsid sleep {word} &); sleep {word}")
        eventually(GONE_S, lambda: len(self.server.running(word)) >= 2)
        record = json.loads((self.server.state / "sandboxes" / f"{sandbox}.json").read_text())
        self._wait_a_while(0.05)
        _kill(record["pid"])
        eventually(GONE_S, lambda: self._end(sandbox))
        assert self._end(sandbox)["reason"] in ("failed", "resource", "host_lost")
        assert self.server.running(word) == []

    def server_dies(self) -> None:
        """The server dies while it is busy; everything ends with it; the next one knows of all of it."""
        busy = [self._start_client() for _ in range(self.dice.randrange(1, 4))]
        self._wait_a_while(0.4)
        self.server.kill()
        self._all_gone()
        self._wait_for_clients([process for process, _, _ in busy])
        self.server.start()
        self._nobody_lives("host_lost")

    def supervisor(self) -> None:
        """What keeps the deadlines dies: every sandbox ends with it, and the server goes on with another."""
        process, _, _ = self._start_client()
        self._create()
        self._wait_a_while(0.3)
        assert self.server.process is not None
        tasks = Path(f"/proc/{self.server.process.pid}/task").iterdir()  # any of its threads may have started it
        children = [pid for task in tasks for pid in (task / "children").read_text().split()]
        for pid in children:
            _kill(int(pid))
        eventually(GONE_S, lambda: not self.server.live() or not self._collect())
        self._wait_for_clients([process])
        eventually(GONE_S, lambda: not self.server.live())
        self._nobody_lives("host_lost")
        self.server.works()

    # -- what the rounds are made of ---------------------------------------------------------------------------------

    def _create(self) -> str:
        sandbox = self.server.create(ttl_seconds=60)
        self.given[sandbox] = Given(sandbox)
        return sandbox

    def _exec_in_background(self, sandbox: str, cmd: str) -> str:
        answer = self.server.exec(sandbox, cmd, 50, background=True)
        assert answer.status == 202, answer.body
        found: str = answer.document["exec_id"]
        return found

    def _exec_end(self, sandbox: str, started: str) -> Any:
        return self.server.get(f"/v1/sandboxes/{sandbox}/execs/{started}/wait?timeout_s={GONE_S}")

    def _start_client(self) -> tuple[subprocess.Popen[bytes], str, Given]:
        """Another process that makes a sandbox and runs something in it; it is killed, or its connection ends."""
        word, attached = self.word(), self.dice.random() < 0.4
        ttl = self.dice.choice([60.0, 60.0, self.dice.uniform(0.05, 2.0)])
        words = [str(self.server.port), self.server.token, str(int(attached)), self.dice.choice("01"), str(ttl), word]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", CLIENT, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.clients.append(process)
        return process, word, Given("", ttl, attached)

    def _wait_a_while(self, most: float) -> None:
        time.sleep(self.dice.uniform(0, most))  # the moment is what is tried, not something that is waited for

    def _kill_client(self, process: subprocess.Popen[bytes], kind: Given) -> None:
        process.kill()
        process.wait(10)
        self._note(process, kind)

    def _note(self, process: subprocess.Popen[bytes], kind: Given) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            name = said.read().decode().split("\n")[0]
        if name.startswith("sbx_"):
            self.given[name] = Given(name, kind.ttl_s, kind.attached)
        self.clients.remove(process)

    def _wait_for_clients(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Their connections have ended, and so do they."""
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GONE_S)
            process.kill()
            process.wait(10)
            self._note(process, Given(""))

    def _collect(self) -> bool:
        return any(each["status"] == "running" for each in self.server.live())

    def _all_gone(self) -> None:
        self.server.host.no_survivors(within=GONE_S)

    def _end(self, sandbox: str) -> Any:
        return self.server.get(f"/v1/sandboxes/{sandbox}")["end"]

    def _nobody_lives(self, reason: str) -> None:
        found = self._list()
        for name in self.given:
            assert found[name]["status"] == "ended", (name, found[name])
        assert self.server.live() == []
        assert all(each["end"]["reason"] in REASONS for each in found.values())
        assert reason in {each["end"]["reason"] for each in found.values()}

    def _list(self) -> dict[str, Any]:
        return {each["id"]: each for each in self.server.get("/v1/sandboxes?state=all")["items"]}

    # -- what holds at all times, and in the end ---------------------------------------------------------------------

    def check(self) -> None:
        """Of every id ever given the list tells; nobody lives longer than said."""
        found = self._list()
        assert self.given.keys() <= found.keys(), "an id was given and is not known"
        now = time.time()
        for each in found.values():
            end, expires = each["end"], _seconds(each["expires_at"])
            if end is None:
                assert now < expires + LATE_S, each
            else:
                assert end["reason"] in REASONS and end["at"], each
                seen = end["reason"] == "host_lost"  # by the next server, which may be late
                assert seen or _seconds(end["at"]) < _seconds(each["created_at"]) + each["ttl_seconds"] + LATE_S, each
                if end["reason"] in ("ttl", "killed", "owner_gone"):
                    assert end["receipt"]["survivors"] == 0, each

    def finish(self) -> None:
        """Attached ones have ended with their owners, short lives by themselves; the rest is ended now."""
        short = [each.id for each in self.given.values() if each.ttl_s < 10 or each.attached]
        eventually(6, lambda: all(self._list()[name]["end"] for name in short))
        for name in short:
            reason, kind = self._end(name)["reason"], self.given[name]
            allowed = {
                "host_lost",
                *({"owner_gone"} if kind.attached else ()),
                *({"ttl", "failed"} if kind.ttl_s < 10 else ()),
            }
            assert reason in allowed, (name, kind, self._end(name))
        for each in self.server.live():
            self.server.delete(each["id"])
        self.check()
        assert self.server.live() == []


@pytest.mark.slow
@pytest.mark.timeout(60 + 2 * ROUNDS)
def test_whoever_dies_nothing_outlives_its_owner_and_the_registry_tells_the_truth(server_host: hosts.Host) -> None:
    with serving(server_host, patience=PATIENCE) as server:
        rounds = Rounds(server, random.Random(SEED))
        kinds: dict[str, Callable[[], None]] = {
            "client": rounds.client, "payload": rounds.payload, "boundary": rounds.boundary,
            "server": rounds.server_dies, "supervisor": rounds.supervisor,
        }  # fmt: skip
        # Each kind once, whatever the dice say.
        order = [*kinds, *(rounds.dice.choice(VICTIMS) for _ in range(max(0, ROUNDS - len(kinds))))]
        try:
            for number, kind in enumerate(order):
                print(f"round {number}: {kind}")
                kinds[kind]()
                if number % 5 == 0:
                    rounds.check()
            rounds.finish()
        finally:
            for process in rounds.clients:
                process.kill()
                process.wait(10)
        assert len(rounds.given) >= ROUNDS // 3


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
