# SPDX-License-Identifier: Apache-2.0
"""Commands over a real sshd, with connections cut at every stage: what is said is never more than what is known."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sshd

from deadstop.effects.ssh import SshEffects
from deadstop.errors import DeadstopError, UsageError
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.states import State, Verdict
from deadstop.results import Status, ToolResult

if (_missing := sshd.why_not()) is not None:
    pytest.skip(_missing, allow_module_level=True)

SOURCE = Path(__file__).resolve().parents[2] / "src"


@dataclass
class Site:
    server: sshd.Sshd
    ledger: Ledger
    pool: ThreadPoolExecutor

    def effects(self, **options: Any) -> SshEffects:
        words = {"ledger": self.ledger, "options": self.server.options, "helper": str(self.bin / "deadstop-remote")}
        return SshEffects(self.server.host, **{**words, "timeout": 15.0, **options})

    @property
    def bin(self) -> Path:
        return self.server.folder / "bin"

    def file(self, key: str) -> Path:
        return self.server.folder / f"effect {key}"

    def done(self, key: str) -> int:
        """How often the effect happened."""
        return len(self.file(key).read_text().split()) if self.file(key).exists() else 0

    def command(self, key: str, rest: str = "true") -> list[str]:
        return ["bash", "-c", f"echo x >>'{self.file(key)}'; {rest}"]

    def waits(self, key: str) -> str:
        return f"for i in $(seq 1000); do [ -e '{self.file(key)}.go' ] && exit 0; sleep 0.01; done"

    def go(self, key: str) -> None:
        Path(f"{self.file(key)}.go").touch()

    def wrapper(self, name: str, before: str) -> str:
        """Another way to the helper."""
        path = self.bin / name
        path.write_text(f'#!/bin/bash\n{before}\nexec "{self.bin}/deadstop-remote" "$@"\n')
        path.chmod(0o755)
        return str(path)

    def clients(self) -> list[int]:
        """The ssh processes that talk to this server."""
        mark = f"\0{self.server.folder}/user\0".encode()
        paths = [
            path for path in Path("/proc").iterdir() if path.name.isdigit() and sshd.name_of(int(path.name)) == "ssh"
        ]
        return [int(path.name) for path in paths if mark in read(path / "cmdline")]

    def state(self, result: ToolResult) -> Path:
        assert result.operation is not None
        return self.server.folder / "state/ops" / str(result.operation["id"])


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def state_of(result: ToolResult) -> str:
    assert result.operation is not None
    return str(result.operation["state"])


def id_of(result: ToolResult) -> str:
    assert result.operation is not None
    return str(result.operation["id"])


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with sshd.server() as server, Ledger.in_memory() as ledger, ThreadPoolExecutor(12) as pool:
        made = Site(server, ledger, pool)
        report = made.effects().install(str(server.folder / "state"))
        assert report["persistent"] is True
        yield made


def test_a_command_is_sent_once_and_its_end_is_the_hosts_word(site: Site) -> None:
    production = site.effects()
    heard: list[tuple[str, bytes]] = []
    result = production.run(
        site.command("once", "echo out; printf err >&2"), key="once", on_output=lambda *said: heard.append(said)
    )
    assert (result.status, result.exit_code, result.effect) == (Status.COMPLETED, 0, "applied")
    assert (result.stdout.tail, result.stderr.tail) == ("out\n", "err")
    assert b"".join(data for stream, data in heard if stream == "stderr") == b"err"
    assert state_of(result) == State.SUCCEEDED
    again = production.run(site.command("once", "echo out; printf err >&2"), key="once")
    assert (again.ok, again.stdout.tail, id_of(again)) == (True, "out\n", id_of(result))
    other = production.run(site.command("once", "echo other"), key="once")
    assert (other.status, other.reason, id_of(other)) == (Status.REFUSED, "key_conflict", id_of(result))
    assert site.done("once") == 1


def test_of_many_callers_at_once_one_sends_and_all_hear_of_it(site: Site) -> None:
    words = site.command("together", "echo out")
    jobs = [site.pool.submit(site.effects().run, words, key="together") for _ in range(4)]
    results = [job.result(20) for job in jobs]
    assert [(result.ok, result.stdout.tail, state_of(result)) for result in results] == [
        (True, "out\n", "SUCCEEDED")
    ] * 4
    assert len({id_of(result) for result in results}) == 1 and site.done("together") == 1


def test_an_end_with_another_code_is_no_proof_that_nothing_was_done(site: Site) -> None:
    half, none = site.effects(), site.effects(nonzero="failed", tool="all or nothing")
    # What ssh says of itself, and what the helper says: nothing that a command prints is taken for either.
    lies = '@deadstop 0123456789abcdef {"state":"finished","code":0}\\nPermission denied (publickey).\\n'
    jobs = [
        site.pool.submit(half.run, site.command("half", f"printf '{lies}' >&2; exit 255"), key="half"),
        site.pool.submit(none.run, site.command("none", "exit 3"), key="none"),
        site.pool.submit(half.run, ["/nowhere/at/all"]),
        site.pool.submit(none.run, site.command("signal", "kill -9 $$"), key="signal"),
    ]
    done, failed, absent, signaled = (job.result(20) for job in jobs)
    assert (done.status, done.exit_code, done.effect, state_of(done)) == (Status.UNKNOWN, 255, "unknown", "UNKNOWN")
    assert (failed.exit_code, failed.effect, state_of(failed)) == (3, "not_applied", "FAILED")
    assert (absent.status, absent.effect, state_of(absent)) == (Status.ERROR, "not_applied", "FAILED")
    assert (signaled.status, signaled.signal, state_of(signaled)) == (Status.SIGNALED, 9, "UNKNOWN")
    record = half.settle(id_of(done))
    assert (record.state, record.verdict) == (State.UNKNOWN, Verdict.INCONCLUSIVE)
    # A person lets it be sent again; the host has it, and does not do it again.
    site.ledger.take(record.op_id, force=True)
    site.ledger.resolve(record.op_id, State.PREPARED, "somebody", "to see what the host says")
    again = half.run(site.command("half", f"printf '{lies}' >&2; exit 255"), key="half")
    assert (state_of(again), again.exit_code, site.done("half")) == ("UNKNOWN", 255, 1)


def test_what_never_left_is_known_never_to_have_left(site: Site) -> None:
    (site.server.folder / "wrong_hosts").write_text(
        f"[127.0.0.1]:{site.server.port} {(site.server.folder / 'user.pub').read_text()}"
    )
    own = site.server.options
    stranger = tuple(str(site.server.folder / "host") if word.endswith("/user") else word for word in own)
    wrong = tuple(word.replace("/known_hosts", "/wrong_hosts") for word in own)
    closed = tuple(str(sshd.free_port()) if word == str(site.server.port) else word for word in own)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        mute = tuple(str(silent.getsockname()[1]) if word == str(site.server.port) else word for word in own)
        ways = {"stranger": stranger, "wrong": wrong, "closed": closed, "mute": mute}
        jobs = {
            key: site.pool.submit(
                site.effects(options=options, timeout=0.5 if key == "mute" else 15.0).run, site.command(key), key=key
            )
            for key, options in ways.items()
        }
        results = {key: job.result(20) for key, job in jobs.items()}
    said = {key: str(result.operation and result.operation["transport_observation"]) for key, result in results.items()}
    assert "Permission denied" in said["stranger"] and "Host key" in said["wrong"] and "refused" in said["closed"]
    for key, result in results.items():
        assert (state_of(result), result.effect, result.retry_allowed) == ("PREPARED", "not_applied", True), key
        assert result.operation is not None and result.operation["phase"] == "connect"
    assert results["mute"].status is Status.TIMEOUT and results["closed"].status is Status.ERROR
    again = site.effects().run(site.command("closed"), key="closed")
    assert (state_of(again), id_of(again)) == ("SUCCEEDED", id_of(results["closed"]))
    assert (site.done("closed"), site.done("stranger")) == (1, 0)


def cut_by_server(site: Site) -> None:
    site.server.kill_sessions()


def cut_by_client(site: Site) -> None:
    for pid in site.clients():
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("cut", [cut_by_server, cut_by_client])
def test_a_command_outlives_its_connection_and_is_unknown_until_its_marker_is_read(
    site: Site, cut: Callable[[Site], None]
) -> None:
    key, production = cut.__name__, site.effects()
    running: Future[ToolResult] = site.pool.submit(
        production.run, site.command(key, site.waits(key)), key=key, lock="db"
    )
    sshd.until(lambda: site.done(key))
    cut(site)
    result = running.result(10)
    assert (result.status, result.exit_code, result.effect) == (Status.UNKNOWN, None, "unknown")
    assert state_of(result) == "UNKNOWN" and not result.retry_allowed
    again = production.run(site.command(key, site.waits(key)), key=key)
    assert (again.status, id_of(again)) == (Status.UNKNOWN, id_of(result))
    other = production.run(site.command("other"), key="other", lock="db")
    assert (other.status, other.reason, state_of(other)) == (Status.REFUSED, "capacity", "PREPARED")
    assert id_of(result) in str(other.error)
    record = production.settle(id_of(result))
    assert (record.state, record.verdict) == (State.UNKNOWN, Verdict.IN_PROGRESS)
    site.go(key)
    sshd.until(lambda: (site.state(result) / "exit.json").exists())
    assert production.settle(id_of(result)).state is State.SUCCEEDED
    assert (site.done(key), site.done("other")) == (1, 0)


def test_a_connection_that_the_caller_shares_hides_nothing(site: Site) -> None:
    """Over another client's connection ssh would log nothing of what it sends, as if it had sent nothing."""
    path, options = site.server.folder / "shared", site.server.options
    words = ["ssh", *options, "-M", "-S", str(path), "-N", site.server.host]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as master:
        sshd.until(path.exists)
        shared = site.effects(options=(*options, "-S", str(path)))
        running = site.pool.submit(shared.run, site.command("shared", site.waits("shared")), key="shared")
        sshd.until(lambda: site.done("shared"))
        site.server.kill_sessions()
        assert state_of(running.result(10)) == "UNKNOWN"
        master.kill()
    site.go("shared")


def test_a_start_that_comes_after_it_was_given_up_is_refused(site: Site) -> None:
    """The connection is cut when sshd has begun, and the helper has not: the host has no trace of it, yet."""
    place = site.server.folder
    wait = f"touch {place}/begun; while [ ! -e {place}/wake ]; do sleep 0.01; done"
    helper = f'"{site.bin}/deadstop-remote" "$@" 2>{place}/refusal; touch {place}/over; exit'
    late = site.wrapper("late", f'if [ "$1" = run ]; then {wait}; {helper}; fi')
    running = site.pool.submit(site.effects(helper=late).run, site.command("late"), key="late")
    sshd.until((place / "begun").exists)
    site.server.kill_sessions()
    result = running.result(10)
    assert (result.status, state_of(result)) == (Status.UNKNOWN, "UNKNOWN")
    assert result.operation is not None and result.operation["phase_certain"] is False
    production = site.effects()
    found = production.status(id_of(result))  # only looked: it may still come
    assert found.verdict is Verdict.INCONCLUSIVE
    assert production.settle(id_of(result)).state is State.PREPARED
    (place / "wake").touch()
    sshd.until((place / "over").exists)
    assert "stale" in (place / "refusal").read_text() and site.done("late") == 0
    again = production.run(site.command("late"), key="late")
    assert (state_of(again), id_of(again), site.done("late")) == ("SUCCEEDED", id_of(result), 1)


def test_a_helper_that_dies_on_the_way_ends_as_its_markers_say(site: Site) -> None:
    ways = {
        place: site.effects(helper=site.wrapper(place, f"export DEADSTOP_REMOTE_CRASH_AT=remote.{place}"))
        for place in ("intent", "exited")
    }
    jobs = {place: site.pool.submit(way.run, site.command(place), key=place) for place, way in ways.items()}
    results = {place: job.result(20) for place, job in jobs.items()}
    assert {state_of(result) for result in results.values()} == {"UNKNOWN"}
    settled = {place: site.effects().settle(id_of(result)) for place, result in results.items()}
    assert settled["intent"].state is State.PREPARED  # it never began
    assert (settled["exited"].state, settled["exited"].verdict) == (State.UNKNOWN, Verdict.INCONCLUSIVE)
    assert (site.done("intent"), site.done("exited")) == (0, 1)
    (site.state(results["exited"]) / "intent.json").unlink()
    contradicted = site.effects().settle(id_of(results["exited"]))
    assert contradicted.state is State.NEEDS_HUMAN
    assert "marker.contradiction" in [entry.kind for entry in site.ledger.trail(contradicted.op_id)]


CALLER = """
import sys
from deadstop.effects.ssh import SshEffects
from deadstop.ledger.ledger import Ledger
host, where, helper, key, options, argv = eval(sys.argv[1])
SshEffects(host, ledger=Ledger.open(where), options=options, helper=helper).run(argv, key=key)
"""


def test_a_caller_killed_at_any_place_leaves_one_effect(site: Site) -> None:
    with tempfile.TemporaryDirectory() as folder:
        where = os.path.join(folder, "ledger.db")
        Ledger.open(where).close()
        helper = str(site.bin / "deadstop-remote")
        callers = {}
        for place in ("ssh.connected", "ssh.started", "ssh.finished"):
            words = repr((site.server.host, where, helper, place, site.server.options, site.command(place)))
            env = {**os.environ, "PYTHONPATH": str(SOURCE), "DEADSTOP_CRASH_AT": place}
            callers[place] = subprocess.Popen([sys.executable, "-c", CALLER, words], env=env, stdin=subprocess.DEVNULL)
        assert [caller.wait(30) for caller in callers.values()] == [-signal.SIGKILL] * 3
        with Ledger.open(where) as ledger:
            ledger.sweep()
            production = site.effects(ledger=ledger)
            records = {key: ledger.find(f"default/ssh {site.server.host}", key_) for key, key_ in keys(ledger).items()}
            assert {record.state for record in records.values() if record} == {State.UNKNOWN} and len(records) == 3
            # The command is as likely to be running still: the reconciler would ask again, so this does.
            for key, record in records.items():
                assert record is not None
                sshd.until(lambda op=record.op_id: production.settle(op).state in (State.SUCCEEDED, State.PREPARED))
                if key != "ssh.connected":  # there it may or may not have begun
                    assert ledger.get(record.op_id).state is State.SUCCEEDED
                assert state_of(production.run(site.command(key), key=key)) == "SUCCEEDED"
                assert site.done(key) == 1


def keys(ledger: Ledger) -> dict[str, str]:
    """Which of the three a record is, by what was sealed of its command."""
    found = {}
    for record in ledger.list():
        argv = ledger.read(lambda tx, op=record.op_id: tx.one("payload", op_id=op, name="request"))  # type: ignore[misc]
        name = next(name for name in ("ssh.connected", "ssh.started", "ssh.finished") if name in json.dumps(argv))
        found[name] = record.key
    return found


def test_a_host_that_does_not_answer_settles_nothing(site: Site) -> None:
    closed = tuple(str(sshd.free_port()) if word == str(site.server.port) else word for word in site.server.options)
    away = site.effects(options=closed)
    lookup = Effect(reconcile=away.query, consistent=True)
    result = site.effects(effect=lookup, tool="away").run(site.command("away", "exit 1"), key="away")
    record = away.settle(id_of(result))
    assert (record.state, record.verdict) == (State.UNKNOWN, Verdict.UNREACHABLE)
    missing = site.effects(helper="deadstop-remote-of-nobody").run(site.command("missing"), key="missing")
    assert (missing.status, state_of(missing), site.done("missing")) == (Status.ERROR, "PREPARED", 0)
    with pytest.raises(DeadstopError, match="refused"):
        away.install()


def test_bad_words_are_refused_before_anything_is_recorded(site: Site) -> None:
    before = len(site.ledger.list(limit=1000))
    for host in ("-oProxyCommand=touch /tmp/x", "", "a b", "me@-oProxyCommand=x", "a;touch", "$(x)@a", "a`x`", "a\nb"):
        with pytest.raises(UsageError):
            SshEffects(host, ledger=site.ledger)
    with pytest.raises(UsageError):
        site.effects(helper="-x")
    with pytest.raises(UsageError):
        site.effects().run("rm -rf /", key="k")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        site.effects().run(["true"], timeout=float("nan"))
    assert len(site.ledger.list(limit=1000)) == before
