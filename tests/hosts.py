# SPDX-License-Identifier: Apache-2.0
"""The four hosts that every boundary is tested on, and how a test sees what is left on the real one.

root and user are what they say. `no-userns` and `no-userns-no-cgroup` are an ordinary user on a host that refuses
namespaces, and one that refuses cgroups too (DEADSTOP_DENY stands in for the refusal).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src"
ORDINARY_UID = 41_731  # no account: what an ordinary user is to the kernel
MARK = "DEADSTOP_TEST_MARK"


@dataclass
class Host:
    """A way to run `deadstop` as some user on some kind of host. `folder` is this user's own."""

    name: str
    uid: int
    deny: str
    python: str
    source: str
    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def namespaces(self) -> bool:
        return "userns" not in self.deny

    @property
    def proof(self) -> str:
        return "pid_namespace_reaped" if self.namespaces else "subreaper_drained"

    def environment(self, **extra: str) -> dict[str, str]:
        keep = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
        env = {
            **keep,
            "HOME": str(self.folder),
            "PYTHONPATH": self.source,
            "PYTHONDONTWRITEBYTECODE": "1",
            MARK: self.mark,
        }
        if self.deny:
            env["DEADSTOP_DENY"] = self.deny
        return {**env, **extra}

    def popen(
        self, words: Sequence[str], *, env: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start any program as this host's user."""
        if os.geteuid() == 0 and self.uid != 0:
            options.update(user=self.uid, group=self.uid, extra_groups=[])
        options.setdefault("cwd", self.folder)
        return subprocess.Popen(list(words), env=self.environment(**(env or {})), **options)

    def start(self, *words: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        """Start `deadstop` with these words."""
        return self.popen([self.python, "-m", "deadstop", *words], env=env, **options)

    def cli(
        self, *words: str, env: dict[str, str] | None = None, bound: float = 30, **options: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `deadstop` with these words to its end; stdout and stderr captured."""
        options.setdefault("stdin", subprocess.DEVNULL)
        process = self.start(*words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        try:
            out, err = process.communicate(timeout=bound)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate(timeout=10)
            raise
        return subprocess.CompletedProcess(list(words), process.returncode, out, err)

    def run(self, *words: str, **options: Any) -> dict[str, Any]:
        """`deadstop run --json` with these words; the result, which must be the one line on stdout."""
        done = self.cli("run", "--json", *words, **options)
        lines = done.stdout.splitlines()
        assert len(lines) == 1, (done.returncode, done.stdout[-2000:], done.stderr[-4000:])
        result: dict[str, Any] = json.loads(lines[0])
        return result

    def script(self, text: str, *arguments: str, bound: float = 40, env: dict[str, str] | None = None) -> str:
        """Run Python text as this user with deadstop importable; its stdout. Fails with its stderr."""
        process = self.popen(
            [self.python, "-c", text, *arguments], env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=bound)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate(timeout=10)
            raise
        assert process.returncode == 0, err.decode()[-4000:]
        return out.decode()

    def survivors(self) -> list[str]:
        """Commands of live processes that carry this host's mark: anything started through it and still there."""
        found = []
        wanted = f"{MARK}={self.mark}".encode()
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
                state = Path(f"/proc/{name}/stat").read_bytes().rpartition(b") ")[2][:1]
                if wanted in environ.split(b"\0") and state != b"Z":
                    found.append(
                        Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                    )
            except OSError:
                continue
        return found

    def no_survivors(self, within: float = 0.0) -> None:
        """Assert that nothing is left; `within` bounds the wait where an end is not synchronous."""
        end = time.monotonic() + within
        while (left := self.survivors()) and time.monotonic() < end:
            time.sleep(0.002)
        assert left == []


def within(seconds: float, happened: Callable[[], bool]) -> float:
    """Wait until something is true; how long that took. Fails when it does not come."""
    begin = time.monotonic()
    while not happened():
        assert time.monotonic() - begin < seconds, f"not within {seconds} s"
        time.sleep(0.002)
    return time.monotonic() - begin


def _python_for(uid: int) -> str | None:
    """An interpreter that this user may execute."""
    for candidate in dict.fromkeys([sys.executable, "/usr/bin/python3", shutil.which("python3") or ""]):
        if not candidate:
            continue
        options: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []} if os.geteuid() == 0 and uid else {}
        check = [candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if subprocess.run(check, capture_output=True, timeout=20, cwd="/", **options).returncode == 0:
                return candidate
        except OSError:
            continue
    return None


def available() -> dict[str, tuple[int, str]]:
    """Name -> (uid, DEADSTOP_DENY)."""
    ordinary = ORDINARY_UID if os.geteuid() == 0 else os.geteuid()
    hosts = {
        "user": (ordinary, ""),
        "no-userns": (ordinary, "userns"),
        "no-userns-no-cgroup": (ordinary, "userns,cgroup"),
    }
    return {"root": (0, ""), **hosts} if os.geteuid() == 0 else hosts


def each_kind() -> tuple[str, str]:
    """One host with namespaces, one without: for what does not depend on cgroups or on who the user is."""
    return next(iter(available())), "no-userns-no-cgroup"


def make(name: str) -> Host | str:
    """The host, or why it cannot be had."""
    uid, deny = available()[name]
    python = _python_for(uid)
    if python is None:
        return f"no Python 3.11 or newer that uid {uid} may execute"
    folder = Path(tempfile.mkdtemp(prefix="deadstop-test-"))
    source = folder / "src"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([python, "-m", "compileall", "-q", str(source)], check=True, timeout=60)  # not once per start
    home = folder / "home"
    home.mkdir()
    if os.geteuid() == 0:
        os.chown(home, uid, uid)
    folder.chmod(0o755)
    return Host(name, uid, deny, python, str(source), home)
