# SPDX-License-Identifier: Apache-2.0
"""deadstop-remote by itself: markers that outlive every death, and what may be concluded from them."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sshd

pytestmark = pytest.mark.skipif(
    sshd.folder_that_lasts() is None or not sshd.HELPER.is_file() or not Path("/etc/machine-id").is_file(),
    reason="no folder on a disk that outlives a restart, no machine id, or no helper",
)


@dataclass
class Remote:
    """The helper with a folder of its own, and a file in which each run of a command leaves a line."""

    folder: Path

    def __post_init__(self) -> None:
        shutil.copy(sshd.HELPER, self.folder / "helper.py")  # installing writes beside it

    def words(self, *words: str) -> list[str]:
        return [
            sys.executable,
            "-IS",
            str(self.folder / "helper.py"),
            words[0],
            "--state",
            str(self.folder / "state"),
            *words[1:],
        ]

    def call(self, *words: str, crash: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "DEADSTOP_REMOTE_CRASH_AT": crash}
        return subprocess.run(
            self.words(*words), env=env, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL, **options
        )

    def run(
        self, op: str, fence: int, *words: str, crash: str = "", script: str = ""
    ) -> subprocess.CompletedProcess[str]:
        text = f"echo {op} >>{self.folder}/effects; {script}"
        return self.call("run", "--op", op, "--fence", str(fence), *words, "--", "bash", "-c", text, crash=crash)

    def ask(self, *words: str) -> dict[str, Any]:
        done = self.call(*words, "--json")
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def status(self, op: str, seal: int | None = None) -> dict[str, Any]:
        return self.ask("status", "--op", op, *([] if seal is None else ["--seal", str(seal)]))

    def marker(self, op: str, name: str) -> Path:
        return self.folder / "state/ops" / op / name

    def effects(self) -> list[str]:
        path = self.folder / "effects"
        return path.read_text().split() if path.exists() else []

    def go(self) -> None:
        """What `waits` has been waiting for."""
        (self.folder / "go").touch()

    @property
    def waits(self) -> str:
        return f"for i in $(seq 500); do [ -e {self.folder}/go ] && exit 0; sleep 0.01; done"

    def running(self) -> list[str]:
        """Operations whose keeper lives."""
        held = []
        for path in (self.folder / "state/ops").glob("*/alive"):
            with path.open("r+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(path.parent.name)
        return held

    def copy(self, op: str, to: str) -> None:
        """As if an operation of that name had gone the same way."""
        shutil.copytree(self.marker(op, ""), self.marker(to, ""))
        for name in ("intent.json", "exit.json"):
            path = self.marker(to, name)
            path.write_text(json.dumps({**json.loads(path.read_text()), "op": to, "key": None}))

    def keeper(self, op: str) -> int:
        child = json.loads(self.marker(op, "phases").read_text().splitlines()[0])["pid"]
        return int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def remote() -> Iterator[Remote]:
    folder = Path(tempfile.mkdtemp(prefix="deadstop-remote-", dir=sshd.folder_that_lasts()))
    made = Remote(folder)
    assert made.ask("install")["persistent"] is True
    yield made
    made.go()
    sshd.until(lambda: not made.running())
    shutil.rmtree(folder)


def test_it_is_one_file_for_an_old_python_and_its_standard_library() -> None:
    tree = ast.parse(sshd.HELPER.read_text(), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
    assert not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))


def test_a_command_runs_once_and_leaves_what_it_did(remote: Remote) -> None:
    script = 'echo "$DEADSTOP_OPERATION_ID $DEADSTOP_OPERATION_KEY"; echo err >&2; umask; exit 3'
    done = remote.run("op_1", 2, "--key", "k1", script=script)
    assert (done.returncode, done.stderr) == (3, "err\n")
    assert done.stdout == f"op_1 k1\n{oct(current_umask())[2:]:0>4}\n"
    end = json.loads(remote.marker("op_1", "exit.json").read_text())
    assert end["stdout"] == {"bytes": len(done.stdout), "sha256": hashlib.sha256(done.stdout.encode()).hexdigest()}
    known = remote.status("op_1")
    assert (known["state"], known["code"], known["fence"], known["definite"]) == ("finished", 3, 2, True)
    assert remote.call("output", "--op", "op_1", "--stream", "stderr").stdout == "err\n"
    for fence, word in ((3, "exists"), (2, "exists"), (1, "stale")):
        again = remote.run("op_1", fence)
        assert again.returncode == 75 and word in again.stderr
    other = remote.run("op_2", 1, "--key", "k1")
    assert other.returncode == 75 and "key_taken" in other.stderr
    assert remote.effects() == ["op_1"]


def current_umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def test_of_many_starts_at_once_one_runs(remote: Remote) -> None:
    words = remote.words("run", "--op", "op", "--fence", "1", "--", "bash", "-c", f"echo op >>{remote.folder}/effects")
    started = [subprocess.Popen(words, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL) for _ in range(6)]
    assert sorted(each.wait(10) for each in started) == [0, 75, 75, 75, 75, 75]
    assert remote.effects() == ["op"]


@pytest.mark.parametrize("place", ["remote.made", "remote.intent"])
def test_a_helper_that_dies_before_the_command_leaves_proof_that_it_never_began(remote: Remote, place: str) -> None:
    assert remote.run("op", 1, crash=place).returncode == -signal.SIGKILL
    assert remote.status("op")["definite"] is False  # the same attempt could come again
    known = remote.status("op", seal=2)
    assert (known["state"], known["definite"]) == ("not_started", True)
    assert "stale" in remote.run("op", 1).stderr
    assert remote.effects() == []
    assert remote.run("op", 3).returncode == 0
    assert remote.effects() == ["op"]


def test_a_command_without_its_keeper_is_running_and_then_unknown(remote: Remote) -> None:
    assert remote.run("op", 1, "--lock", "db", crash="remote.started", script=remote.waits).returncode == 70
    assert remote.status("op", seal=2)["state"] == "running"
    remote.go()
    sshd.until(lambda: remote.status("op", seal=2)["state"] == "unknown")
    assert remote.effects() == ["op"]
    assert "exists" in remote.run("op", 3).stderr  # nobody knows: so it is not done again
    held = remote.ask("lock", "db")
    assert (held["held"], held["op"], held["op_state"]) == (True, "op", "unknown")


def test_a_keeper_that_dies_before_it_writes_the_end_leaves_it_unknown(remote: Remote) -> None:
    assert remote.run("op", 1, crash="remote.exited").returncode == 70
    known = remote.status("op", seal=2)
    assert (known["state"], known["definite"]) == ("unknown", True)
    assert remote.effects() == ["op"]


def test_the_command_outlives_whoever_started_it(remote: Remote) -> None:
    words = remote.words("run", "--op", "op", "--fence", "1", "--", "bash", "-c", f"echo begun; {remote.waits}")
    front = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert front.stdout is not None and front.stdout.readline() == b"begun\n"
    front.stdout.close()  # the connection is gone: the front ends, and nothing else
    assert front.wait(5) == 0
    assert remote.status("op", seal=2)["state"] == "running"
    remote.go()
    sshd.until(lambda: remote.status("op")["state"] == "finished")
    assert remote.status("op")["code"] == 0


def test_a_host_that_restarted_in_between_has_interrupted_it(remote: Remote) -> None:
    remote.run("op", 1, crash="remote.exited")
    line = json.loads(remote.marker("op", "phases").read_text())
    # The same pid and start time in another boot are another process.
    alive = {"pid": os.getpid(), "start_time": int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])}
    remote.marker("op", "phases").write_text(json.dumps({**line, **alive, "boot_id": "another"}) + "\n")
    assert remote.status("op")["state"] == "interrupted"


def test_markers_that_cannot_all_be_true_contradict(remote: Remote) -> None:
    assert remote.run("keys", 3, "--key", "k").returncode == 0
    for op in ("gone", "twice", "holes", "fences", "torn"):
        remote.copy("keys", op)
    remote.marker("gone", "intent.json").unlink()
    line = remote.marker("twice", "phases").read_text()
    remote.marker("twice", "phases").write_text(line + line.replace('"n": 1', '"n": 2'))
    remote.marker("holes", "phases").write_text(line.replace('"n": 1', '"n": 2'))
    end = json.loads(remote.marker("fences", "exit.json").read_text())
    remote.marker("fences", "exit.json").write_text(json.dumps({**end, "fence": 7}))
    next((remote.folder / "state/keys").iterdir()).write_text(json.dumps({"op": "someone"}))
    with remote.marker("torn", "phases").open("a") as file:
        file.write('{"n": 2, "pha')  # cut off by a crash: nobody was told of it
    states = {each["op"]: each["state"] for each in remote.ask("list")["operations"]}
    assert states.pop("torn") == "finished"
    assert set(states) == {"gone", "twice", "holes", "fences", "keys"} and set(states.values()) == {"contradiction"}
    known = remote.status("torn", seal=2)  # whoever asks has never given fence 3
    assert (known["state"], known["fence"]) == ("contradiction", 3)


def test_absence_counts_only_in_the_installed_folder_and_sealed(remote: Remote) -> None:
    assert (remote.status("op")["state"], remote.status("op")["definite"]) == ("absent", False)
    assert remote.status("op", seal=4)["definite"] is True
    assert "stale" in remote.run("op", 3).stderr
    sentinel = remote.folder / "state/sentinel.json"
    written = sentinel.read_text()
    sentinel.write_text(json.dumps({**json.loads(written), "host": "another"}))  # a copy of another host's folder
    assert remote.status("op", seal=5)["definite"] is False
    assert "not_installed" in remote.run("op", 5).stderr
    assert remote.call("install").returncode == 75
    sentinel.unlink()
    assert remote.status("op", seal=5)["definite"] is False
    sentinel.write_text(written)
    assert remote.run("op", 5).returncode == 0
    assert remote.effects() == ["op"]


def test_a_folder_that_forgets_is_refused_or_proves_nothing(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    kind = subprocess.run(["stat", "-f", "-c", "%T", memory], capture_output=True, text=True, timeout=5).stdout.strip()
    if kind != "tmpfs" or not os.access(memory, os.W_OK):
        pytest.skip("/dev/shm is not a tmpfs that can be written to")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        remote = Remote(Path(folder))
        refused = remote.call("install")
        assert refused.returncode == 75 and "tmpfs" in refused.stderr
        assert remote.ask("install", "--volatile")["persistent"] is False
        assert remote.status("op", seal=2)["definite"] is False


def test_a_start_in_the_middle_is_not_taken_for_none(remote: Remote) -> None:
    with open(remote.folder / "state/gates/op", "w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        known = remote.status("op", seal=2)
    assert (known["state"], known["sealed"]) == ("running", False)


def test_a_lock_is_looked_at_and_never_swept(remote: Remote) -> None:
    start = remote.words("run", "--op", "one", "--fence", "1", "--lock", "db", "--lock-ttl", "0.01", "--detach", "--")
    assert subprocess.run([*start, "bash", "-c", remote.waits], timeout=10, stdin=subprocess.DEVNULL).returncode == 0
    sshd.until(lambda: remote.ask("lock", "db")["expired"])
    held = remote.ask("lock", "db")
    assert (held["op"], held["fence"], held["op_state"], held["held"]) == ("one", 1, "running", True)
    refused = remote.run("two", 1, "--lock", "db")
    assert refused.returncode == 75 and "held by operation one (running), past its expiry" in refused.stderr
    assert remote.status("two")["state"] == "absent"
    remote.go()
    sshd.until(lambda: not remote.ask("lock", "db")["held"])
    assert remote.run("two", 1, "--lock", "db", crash="remote.made").returncode == -signal.SIGKILL
    assert remote.ask("lock", "db")["op"] == "two"  # which never began: that can be shown, so the next one may have it
    assert remote.run("three", 1, "--lock", "db").returncode == 0
    assert remote.effects() == ["three"]


def test_a_lock_that_nothing_will_release_is_freed_by_a_person_who_names_its_operation(remote: Remote) -> None:
    """Its keeper is dead, so nobody sees it end. As long as anything of it runs the lock stays."""
    left = f"({remote.waits}) & exit 0"  # outlives the command, in its session
    assert remote.run("op", 1, "--lock", "db", crash="remote.started", script=left).returncode == 70
    sshd.until(lambda: remote.status("op", seal=2)["state"] == "unknown")
    assert "(unknown), before its expiry" in remote.call("lock", "db").stdout
    refused = remote.call("unlock", "db", "--op", "op")
    assert refused.returncode == 75 and "running: operation op still runs here" in refused.stderr
    remote.go()
    sshd.until(
        lambda: remote.call("unlock", "db", "--op", "op", "--by", "anna", crash="remote.unlocked").returncode == -9
    )
    assert remote.ask("lock", "db")["held"]  # who and when is written down first
    other = remote.call("unlock", "db", "--op", "another")
    assert other.returncode == 75 and "held by operation op, not by another" in other.stderr
    freed = remote.ask("unlock", "db", "--op", "op", "--by", "ben")
    assert (freed["state"], freed["op_state"], freed["uid"]) == ("unlocked", "unknown", os.getuid())
    known = remote.ask("lock", "db")
    assert (known["held"], known["unlocked"]["by"], known["unlocked"]["op"]) == (False, "ben", "op")
    marks = json.loads((remote.folder / "state/locks/db.unlocked").read_text())["unlocks"]
    assert [each["by"] for each in marks] == ["anna", "ben"]
    assert "held by nobody" in remote.call("unlock", "db", "--op", "op").stderr
    assert remote.run("next", 1, "--lock", "db").returncode == 0
    assert remote.status("op")["state"] == "unknown"  # that it is not known what it did, has not changed


def test_a_program_marks_its_own_phases(remote: Remote) -> None:
    mark = f'"{sys.executable}" -IS "$DEADSTOP_REMOTE" mark'
    done = remote.run("op", 1, script=f"{mark} downloaded --json && {mark} migrated; {mark} started; exit 4")
    assert done.returncode == 4 and "cannot be one of its phases" in done.stderr
    known = remote.status("op")
    assert (known["phases"], known["phase"]) == (["started", "downloaded", "migrated"], "migrated")
    assert remote.call("mark", "--op", "op", "late").returncode == 75
    assert remote.call("mark", "--op", "none", "early").returncode == 75


def test_a_limit_ends_the_command_there_and_what_cannot_start_says_so(remote: Remote) -> None:
    done = remote.call("run", "--op", "op", "--fence", "1", "--limit", "0.1", "--", "sleep", "30")
    assert done.returncode == 128 + signal.SIGTERM
    known = remote.status("op")
    assert (known["signal"], known["error"]) == (signal.SIGTERM, "its limit was over")
    assert remote.call("run", "--op", "no", "--fence", "1", "--cwd", "/nowhere", "--", "true").returncode == 127
    known = remote.status("no")
    assert (known["ran"], known["error"]) == (False, "/nowhere: No such file or directory")


def test_a_killed_keeper_is_not_believed_to_have_ended_its_command(remote: Remote) -> None:
    front = subprocess.Popen(
        remote.words("run", "--op", "op", "--fence", "1", "--", "bash", "-c", f"echo begun; {remote.waits}"),
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert front.stdout is not None and front.stdout.readline() == b"begun\n"
    os.kill(remote.keeper("op"), signal.SIGKILL)
    assert front.wait(5) == 70  # its end was not seen
    front.stdout.close()
    assert remote.status("op")["state"] == "running"
    remote.go()
    sshd.until(lambda: remote.status("op")["state"] == "unknown")
