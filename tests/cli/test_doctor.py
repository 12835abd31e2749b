# SPDX-License-Identifier: Apache-2.0
"""`deadstop doctor` must say what `deadstop run` then really gives, and leave nothing behind."""

from __future__ import annotations

import glob
import json
import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hosts import Host

LIMITS = ("--memory", "256M", "--pids", "64", "--cpus", "0.5", "--disk", "16M")


def doctor(host: Host, *words: str, **options: Any) -> tuple[int, str]:
    done = host.cli("doctor", *words, **options)
    assert done.stderr == b""
    return done.returncode, done.stdout.decode()


def doctor_json(host: Host) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(doctor(host, "--json")[1])
    return report


def level(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [level for level in report["levels"] if level["name"] == name]
    assert len(found) == 1
    return found[0]


def promised(report: dict[str, Any], name: str) -> dict[str, str]:
    return {one["name"]: one["enforced_by"] for one in report["limits"] if one["level"] == name}


def given(result: dict[str, Any]) -> dict[str, str]:
    return {name: limit["enforced_by"] for name, limit in result["limits"].items()}


def test_the_process_level_is_given_as_it_was_reported(host: Host) -> None:
    report = doctor_json(host)
    process = level(report, "process")
    result = host.run("--timeout", "0.5s", "--grace", "0", *LIMITS, "--", "sleep", "30")
    assert result["status"] == "timeout"
    assert (process["available"], process["proof"]) == (True, host.proof)
    assert process["proof"] == result["receipt"]["proof"]
    assert promised(report, "process") == {**given(result), "output": "supervisor"}
    assert process["create_ms"] > 0


def test_the_sandbox_level_is_given_as_it_was_reported(host: Host) -> None:
    report = doctor_json(host)
    sandbox = level(report, "sandbox")
    words = ("--isolation", "sandbox", "--timeout", "0.5s", "--grace", "0", *LIMITS, "--", "sleep", "30")
    result = host.run(*words)
    assert sandbox["available"] is host.namespaces
    if sandbox["available"]:
        assert result["receipt"]["proof"] == sandbox["proof"] == "pid_namespace_reaped"
        assert promised(report, "sandbox") == {**given(result), "output": "supervisor"}
    else:
        assert result["status"] == "refused"
        assert sandbox["reason"] in result["error"]["message"]
        assert set(promised(report, "sandbox").values()) == {"none"}


def test_every_limit_that_run_calls_degraded_has_its_reason_and_a_fix(host: Host) -> None:
    report = doctor_json(host)
    result = host.run(*LIMITS, "--", "true")
    weaker = {line.partition(":")[0] for line in result["degraded"] if line.partition(":")[0] in result["limits"]}
    explained = {one["name"] for one in report["limits"] if one["level"] == "process" and one["reason"]}
    assert explained == weaker
    assert "disk" in explained
    assert all(one["fix"] for one in report["limits"] if one["level"] == "process" and one["reason"])


def test_text_names_every_reason_and_fix_of_what_is_missing(host: Host) -> None:
    report = doctor_json(host)
    status, text = doctor(host)
    lines = text.splitlines()
    here = {one["name"] for one in report["levels"] if one["available"]}
    for one in [*report["levels"], *(limit for limit in report["limits"] if limit["level"] in here)]:
        for name in ("reason", "fix"):
            assert not one[name] or f"    {name}: {one[name]}" in lines
    assert any("microvm" in line and " no" in line for line in lines)
    assert status == (0 if host.namespaces else 1)
    if not host.namespaces:
        assert "    reason: namespaces are denied by DEADSTOP_DENY" in lines


def test_doctor_is_quick_and_leaves_no_group_and_no_process(host: Host) -> None:
    begun = time.monotonic()
    process = host.start("doctor", "--json", stdout=subprocess.DEVNULL, start_new_session=True)
    process.wait(timeout=20)
    assert time.monotonic() - begun < 3
    assert groups_of(process.pid) == []
    assert in_session(process.pid) == []
    host.no_survivors()


def groups_of(pid: int) -> list[str]:
    """Control groups that a supervisor with this pid has made and that are still there."""
    depths = ("*/" * depth for depth in range(1, 6))  # not deeper: another test may be nesting groups without end
    return [path for depth in depths for path in glob.glob(f"/sys/fs/cgroup/{depth}deadstop-{pid}-*")]


def in_session(session: int) -> list[str]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if fields[3] == str(session) and fields[0] != "Z":
            found.append(name)
    return found


def doctor_below(host: Host, words: Sequence[str]) -> dict[str, Any]:
    """The report of a doctor that these words start."""
    command = [*words, host.python, "-m", "deadstop", "doctor", "--json"]
    process = host.popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=30)
    assert out, err.decode()
    report: dict[str, Any] = json.loads(out)
    return report


@pytest.mark.root
def test_root_without_the_capability_is_told_so(host: Host) -> None:
    if host.uid != 0:
        pytest.skip("for root")
    report = doctor_below(host, ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"])
    process, sandbox = level(report, "process"), level(report, "sandbox")
    assert (process["proof"], sandbox["available"]) == ("subreaper_drained", False)
    assert "Operation not permitted" in process["reason"]
    assert "CAP_SYS_ADMIN" in process["fix"] and "CAP_SYS_ADMIN" in sandbox["fix"]
    assert any("CAP_SYS_ADMIN" in remark for remark in report["remarks"])


def test_a_setting_that_refuses_namespaces_is_named(namespace_host: Host) -> None:
    """The count of pid namespaces is a setting of each user namespace: one of our own has none to give."""
    refuse = 'echo 0 > /proc/sys/user/max_pid_namespaces && exec "$@"'
    report = doctor_below(namespace_host, ["unshare", "--user", "--map-root-user", "sh", "-c", refuse, "sh"])
    process = level(report, "process")
    assert process["proof"] == "subreaper_drained"
    assert "No space left" in process["reason"]
    assert process["fix"] == "as root: sysctl -w user.max_pid_namespaces=15000"
    assert not level(report, "sandbox")["available"]


@pytest.mark.root
def test_the_fix_for_a_missing_control_group_is_true(host: Host) -> None:
    """Do as it says and the same user is given the limit by a control group."""
    if os.geteuid() != 0 or host.name != "user":
        pytest.skip("root carries out the fix for an ordinary user")
    report = doctor_json(host)
    fix = next(one["fix"] for one in report["limits"] if (one["level"], one["name"]) == ("process", "memory"))
    prefix, ending = "as root: ", "deadstop ...'"
    if not (fix.startswith(prefix) and fix.endswith(ending)):
        pytest.skip(f"another fix on this host: {fix}")
    group = fix.partition("mkdir -p ")[2].partition(" ")[0]
    if os.path.exists(group):
        pytest.skip(f"{group} is in use")
    again = shlex.join([host.python, "-m", "deadstop", "doctor", "--json"])
    line = fix.removeprefix(prefix).removesuffix(ending) + again + "'"
    try:
        done = subprocess.run(
            ["sh", "-c", line], env=host.environment(), cwd=host.folder, capture_output=True, timeout=30, check=False
        )
        assert done.stdout, done.stderr.decode()
        after = json.loads(done.stdout)
        left = [name for name in os.listdir(group) if name.startswith("deadstop-")]
    finally:
        os.rmdir(group)
    assert after["user"] == f"uid {host.uid}"
    assert promised(after, "process")["memory"] == promised(after, "sandbox")["memory"] == "cgroup"
    assert left == []


def test_where_there_is_no_linux_all_but_inline_is_refused(one_host: Host) -> None:
    text = (
        "import sys\n"
        "for name in ('fcntl', 'resource', 'ctypes', 'termios'): sys.modules[name] = None\n"
        "sys.platform = 'darwin'\n"
        "from deadstop.cli import main\n"
        "print(main(['doctor', '--json']))\n"
    )
    line, status = one_host.script(text).splitlines()
    report = json.loads(line)
    assert {one["name"]: one["available"] for one in report["levels"]} == {
        "inline": True, "process": False, "sandbox": False, "microvm": False,
    }  # fmt: skip
    assert "darwin" in level(report, "process")["reason"]
    assert status == "1"
