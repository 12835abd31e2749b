# SPDX-License-Identifier: Apache-2.0
"""What SIGKILL does not end is said to be left, with what it waits in; never counted as zero."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import MARK, Host

FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def frozen_group() -> Iterator[Path]:
    """A v1 freezer group: what is frozen in it dies only after it was thawed, like a process stuck in the kernel."""
    if os.geteuid() != 0 or not (FREEZER / "cgroup.procs").exists():
        pytest.skip("needs root and a cgroup v1 freezer")
    group = FREEZER / f"deadstop-test-{os.getpid()}"
    group.mkdir()
    yield group
    (group / "freezer.state").write_text("THAWED")
    end = time.monotonic() + 5
    while (group / "cgroup.procs").read_text().strip() and time.monotonic() < end:
        time.sleep(0.01)
    group.rmdir()


def pids_of(host: Host, command: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                marked = f"{MARK}={host.mark}".encode() in (entry / "environ").read_bytes()
                if marked and (entry / "comm").read_text().strip() == command:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_process_that_cannot_be_killed_is_named(one_host: Host, frozen_group: Path) -> None:
    process = one_host.start(
        "run", "--json", "--timeout", "1", "--grace", "0", "--", "sleep", "47",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    end = time.monotonic() + 5
    while not (pids := pids_of(one_host, "sleep")) and time.monotonic() < end:
        time.sleep(0.005)
    (frozen_group / "cgroup.procs").write_text(str(pids[0]))
    (frozen_group / "freezer.state").write_text("FROZEN")
    out, err = process.communicate(timeout=20)
    result = json.loads(out)
    assert process.returncode == 124, err
    receipt = result["receipt"]
    assert (result["status"], receipt["proof"], receipt["survivors"]) == ("timeout", "none", None)
    assert [(stuck["pid"], stuck["cmd"]) for stuck in receipt["unkillable"]] == [(pids[0], "sleep")]
    assert receipt["unkillable"][0]["waiting_in"]
    assert "could not be shown" in result["environment"] or "not be shown" in result["environment"]
    (frozen_group / "freezer.state").write_text("THAWED")
    one_host.no_survivors(within=3)


def test_the_files_named_as_evidence_are_read_at_the_end(host: Host) -> None:
    log = host.folder / "build.log"
    log.unlink(missing_ok=True)
    result = host.run(
        "--timeout", "0.5", "--evidence-path", str(log), "--evidence-path", "missing.log", "--",
        "bash", "-c", f"for i in $(seq 2000); do echo step $i >> {log}; done; sleep 30",
    )  # fmt: skip
    first, second = result["evidence"]["files"]
    assert first["tail"].endswith("step 2000\n") and first["truncated"]
    assert first["bytes_total"] == log.stat().st_size
    assert second["error"] == "No such file or directory"


def test_a_payload_cannot_point_evidence_at_what_only_the_supervisor_may_read(namespace_host: Host) -> None:
    secret = namespace_host.folder.parent / "secret"
    secret.write_text("the secret")
    secret.chmod(0o600)
    project = namespace_host.folder / "project"
    project.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        os.chown(project, namespace_host.uid, namespace_host.uid)
    (project / "log").unlink(missing_ok=True)
    result = namespace_host.run(
        "--isolation", "sandbox", "--timeout", "10", "--evidence-path", "log", "--",
        "bash", "-c", f"ln -sf {secret} log", cwd=project,
    )  # fmt: skip
    assert result["status"] == "completed", result
    assert result["evidence"]["files"][0]["tail"] == ""
    assert "the secret" not in json.dumps(result["evidence"])
