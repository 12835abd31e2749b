# SPDX-License-Identifier: Apache-2.0
"""Starts `deadstop run --isolation sandbox` as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import deadstop

SOURCE = str(Path(deadstop.__file__).parents[1])
KINDS = ["root", "user"]


@dataclass(frozen=True)
class Starter:
    """One kind of user that starts sandboxes."""

    kind: str
    prefix: tuple[str, ...]
    python: str
    uid: int
    gid: int

    def command(self, argv: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        chosen = ["run", "--isolation", "sandbox", "--json", "--timeout", "50s", "--no-bind-cwd", *options]
        return [*self.prefix, self.python, "-m", "deadstop", *chosen, "--", *argv]

    def environment(self, **more: str) -> dict[str, str]:
        return {"PATH": os.defpath + ":/usr/bin:/bin", "PYTHONPATH": SOURCE, "HOME": "/", **more}

    def run(self, *argv: str, options: Sequence[str] = (), **popen: Any) -> dict[str, Any]:
        """The JSON result of one command in a sandbox."""
        popen.setdefault("env", self.environment())
        popen.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run(self.command(argv, options), capture_output=True, text=True, timeout=58, **popen)
        assert done.stdout.strip(), f"no result: {done.stderr}"
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def output(self, *argv: str, options: Sequence[str] = ()) -> str:
        """Standard output of a command that has to succeed."""
        result = self.run(*argv, options=options)
        said = result["stdout"]["tail"] + result["stderr"]["tail"]
        assert (result["status"], result["exit_code"]) == ("completed", 0), said or result
        return str(result["stdout"]["tail"])


def bind(source: Path | str, target: str, *, writable: bool = True) -> list[str]:
    return ["--bind" if writable else "--ro-bind", f"{source}:{target}"]


@pytest.fixture(scope="session")
def binding() -> Callable[..., list[str]]:
    return bind


@pytest.fixture(scope="module", params=KINDS)
def starter(request: pytest.FixtureRequest) -> Starter:
    if shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin") is None:
        pytest.skip("bubblewrap is not installed")
    if request.param == "root":
        if os.getuid() != 0:
            pytest.skip("not root")
        return Starter("root", (), sys.executable, 0, 0)
    if os.getuid() != 0:
        return Starter("user", (), sys.executable, os.getuid(), os.getgid())
    return _ordinary_user()


def _ordinary_user() -> Starter:
    """Another user, started by root. The tests' own Python may lie in a folder only root can enter."""
    try:
        user = pwd.getpwnam("dstest")
    except KeyError:
        user = pwd.getpwnam("nobody")
    drop = ("setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups")
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            done = subprocess.run([*drop, python, "-c", check], capture_output=True, timeout=20)
        except OSError:
            continue
        if done.returncode == 0 and subprocess.run([*drop, "test", "-r", f"{SOURCE}/deadstop"]).returncode == 0:
            return Starter("user", drop, python, user.pw_uid, user.pw_gid)
    pytest.skip(f"{user.pw_name} has no Python 3.11 or cannot read the package")
