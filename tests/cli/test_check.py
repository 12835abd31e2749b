# SPDX-License-Identifier: Apache-2.0
"""`deadstop run --check` must say what the same words without it would give, and start nothing."""

from __future__ import annotations

import subprocess
from typing import Any

from test_doctor import groups_of, in_session

from hosts import Host


def check(host: Host, *words: str, **options: Any) -> tuple[int, dict[str, str], list[str]]:
    """(exit status, the lines by name, the reasons)."""
    done = host.cli("run", "--check", *words, **options)
    assert done.stderr == b""
    lines = [(line[:14].strip(), line[14:]) for line in done.stdout.decode().splitlines()]
    return done.returncode, dict(lines), [text for name, text in lines if name == "not as asked"]


def test_what_holds_is_said_and_nothing_is_started(host: Host) -> None:
    status, said, reasons = check(host, "--timeout", "5s", "--", "touch", "started")
    assert (status, reasons) == (0, [])
    assert f"process (proof: {host.proof})" in said["level"]
    assert said["time limit"] == "5s (call, given); grace 0.5s"
    assert said["program"].endswith("/touch")
    assert (said["folder"], said["network"]) == (str(host.folder), "the caller's own")
    assert not (host.folder / "started").exists()


def test_a_default_time_limit_is_called_one(host: Host) -> None:
    assert "(call, default)" in check(host, "--", "true")[1]["time limit"]
    assert check(host, "--timeout", "none", "--", "true")[1]["time limit"] == "none"


def test_each_limit_is_kept_by_what_run_reports(host: Host) -> None:
    words = ("--memory", "256M", "--pids", "64", "--cpus", "0.5", "--", "true")
    result = host.run(*words)
    status, said, reasons = check(host, *words)
    for name, limit in result["limits"].items():
        assert said[name] == f"{limit['value']}, kept by {limit['enforced_by']} ({limit['source']})"
    degraded = [line for line in result["degraded"] if line.partition(":")[0] in result["limits"]]
    assert reasons == degraded
    assert status == (125 if degraded else 0)


def test_a_weaker_proof_is_a_note(host: Host) -> None:
    status, said, _ = check(host, "--", "true")
    assert status == 0
    assert ("subreaper_drained" in said.get("note", "")) is not host.namespaces


def test_a_degraded_limit_is_125(host: Host) -> None:
    status, _, reasons = check(host, "--disk", "1M", "--", "true")
    assert status == 125
    assert any(reason.startswith("disk: bounds each single file only") for reason in reasons)


def test_a_program_that_is_not_there_is_125(host: Host) -> None:
    status, said, reasons = check(host, "--", "no-such-program-here")
    assert (status, said["program"]) == (125, "no-such-program-here (not found)")
    assert len(reasons) == 1 and "not found" in reasons[0] and "PATH" in reasons[0]
    assert host.run("--", "no-such-program-here")["status"] == "error"


def test_a_relative_program_is_looked_for_in_the_working_folder(one_host: Host) -> None:
    folder = one_host.folder / "tools"
    folder.mkdir(exist_ok=True)
    script = folder / "tool"
    script.write_text("#!/bin/sh\nexit 7\n")
    script.chmod(0o755)
    words = ("--cwd", "tools", "--", "./tool")
    status, said, _ = check(one_host, *words)
    assert (status, said["program"], said["folder"]) == (0, str(script), str(folder))
    assert one_host.run(*words)["exit_code"] == 7
    script.chmod(0o644)
    status, said, reasons = check(one_host, *words)
    assert (status, reasons) == (125, [f"{script} is not executable"])


def test_a_path_given_for_the_command_decides(one_host: Host) -> None:
    status, said, _ = check(one_host, "--env", "PATH=/nowhere:/bin", "--", "sh")
    assert (status, said["program"]) == (0, "/bin/sh")
    assert check(one_host, "--env", "PATH=/nowhere", "--", "sh")[0] == 125


def test_a_sandbox_is_opened_and_described(host: Host) -> None:
    words = ("--isolation", "sandbox", "--ro-bind", f"{host.source}:/code", "--", "ls", "/code")
    status, said, reasons = check(host, *words)
    result = host.run(*words)
    if not host.namespaces:
        assert status == 125 and "not available" in said["level"]
        assert "DEADSTOP_DENY" in reasons[0]
        assert result["status"] == "refused"
        return
    assert (result["status"], result["exit_code"]) == ("completed", 0)
    assert (status, reasons) == (0, [])
    assert "sandbox (proof: pid_namespace_reaped)" in said["level"]
    assert (said["network"], said["folder"]) == ("none", str(host.folder))
    assert said["disk"] == f"{result['limits']['disk']['value']}, kept by tmpfs (default)"
    done = host.cli("run", "--check", *words).stdout.decode()
    assert f"/code (read-only, from {host.source})" in done
    assert f"{host.folder} (writable)" in done


def test_a_program_that_only_the_host_has_is_not_in_the_sandbox(namespace_host: Host) -> None:
    tool = namespace_host.folder.parent / "outside"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    words = ("--isolation", "sandbox", "--", str(tool))
    assert check(namespace_host, "--", str(tool))[0] == 0
    status, _, reasons = check(namespace_host, *words)
    assert status == 125 and "inside the sandbox" in reasons[0]
    assert namespace_host.run(*words)["status"] == "error"
    bound = ("--ro-bind", str(tool), *words)
    assert check(namespace_host, *bound)[0] == 0
    assert namespace_host.run(*bound)["exit_code"] == 0


def test_a_deadline_that_is_over_is_125(one_host: Host) -> None:
    status, _, reasons = check(one_host, "--", "true", env={"DEADSTOP_DEADLINE": "1.0"})
    assert (status, reasons) == (125, ["its deadline is over already"])


def test_check_leaves_no_group_and_no_process(host: Host) -> None:
    words = ("run", "--check", "--memory", "64M", "--cpus", "0.5", "--", "true")
    process = host.start(*words, stdout=subprocess.DEVNULL, start_new_session=True)
    process.wait(timeout=20)
    assert groups_of(process.pid) == []
    assert in_session(process.pid) == []
    host.no_survivors()
