# SPDX-License-Identifier: Apache-2.0
"""Control groups, really made: limits, kill, counters, removal, and what a killed supervisor left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deadstop.boundary import cgroup
from deadstop.boundary.cgroup import PREFIX, Group, Hierarchies, denied, read, write

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make control groups here")


@pytest.fixture
def hierarchies(monkeypatch: pytest.MonkeyPatch) -> Hierarchies:
    monkeypatch.delenv("DEADSTOP_DENY", raising=False)
    return Hierarchies()


@pytest.fixture
def made(hierarchies: Hierarchies) -> Iterator[list[Group]]:
    """Groups to be taken away after the test, with all in them."""
    groups: list[Group] = []
    yield groups
    for group in groups:
        group.kill()
        group.remove()


def folders_of(group: Group) -> list[str]:
    return [folder for folder in (*group.v1.values(), group.v2) if folder]


def start_in(group: Group, *words: str) -> subprocess.Popen[bytes]:
    """A process that joins the group and then becomes `words`."""
    folders = folders_of(group)
    join = f"for f in {folders!r}: open(f + '/cgroup.procs', 'w').write('0')"
    return subprocess.Popen(
        [sys.executable, "-c", f"import os\n{join}\nos.execvp({words[0]!r}, {list(words)!r})"], stdout=subprocess.PIPE
    )


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(10)
    if process.stdout:
        process.stdout.close()


def need(hierarchies: Hierarchies, controller: str) -> None:
    if not hierarchies.enforces(controller):
        pytest.skip(f"no writable {controller} controller: {hierarchies.reasons.get(controller)}")


def need_kill(hierarchies: Hierarchies) -> None:
    if not hierarchies.can_kill:
        pytest.skip(f"no cgroup.kill: {hierarchies.reasons.get('kill')}")


def until(check: object, within: float = 5) -> None:
    limit = time.monotonic() + within
    while not check():  # type: ignore[operator]
        assert time.monotonic() < limit, "not in time"
        time.sleep(0.002)


def test_every_controller_is_found_or_its_absence_has_a_reason(hierarchies: Hierarchies) -> None:
    for name in ("memory", "pids", "cpu"):
        assert hierarchies.enforces(name) != (name in hierarchies.reasons)
    assert hierarchies.can_kill != ("kill" in hierarchies.reasons)


def test_looking_leaves_no_probe_behind(hierarchies: Hierarchies) -> None:
    places = {*hierarchies.v1.values(), *([hierarchies.v2] if hierarchies.v2 else [])}
    mine = f"{PREFIX}{os.getpid()}-"
    assert [name for place in places for name in os.listdir(place) if name.startswith(mine)] == []


def test_denied_takes_all_of_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEADSTOP_DENY", "userns, cgroup ,")
    assert denied() == {"userns", "cgroup"}
    none = Hierarchies()
    assert not none.can_kill and not any(none.enforces(name) for name in ("memory", "pids", "cpu"))
    assert set(none.reasons) == {"memory", "pids", "cpu", "kill"}
    group = none.create(memory=1 << 20, pids=5, cpus=1.0)
    assert folders_of(group) == [] and group.enforced == set()
    assert group.kill() is False and group.populated() is False and group.out_of_memory_kills() == 0
    group.remove()


@pytest.mark.parametrize(
    ("controller", "options", "file_v1", "file_v2", "value"),
    [
        ("memory", {"memory": 64 << 20}, "memory.limit_in_bytes", "memory.max", str(64 << 20)),
        ("pids", {"pids": 17}, "pids.max", "pids.max", "17"),
        ("cpu", {"cpus": 0.5}, "cpu.cfs_quota_us", "cpu.max", "50000"),
    ],
)
def test_a_limit_is_written_where_the_controller_is(
    hierarchies: Hierarchies,
    made: list[Group],
    controller: str,
    options: dict[str, float],
    file_v1: str,
    file_v2: str,
    value: str,
) -> None:
    need(hierarchies, controller)
    group = hierarchies.create(**options)  # type: ignore[arg-type]
    made.append(group)
    assert group.enforced == {controller}
    path = f"{group.v1[controller]}/{file_v1}" if controller in group.v1 else f"{group.v2}/{file_v2}"
    assert read(path).split()[0] == value
    assert folders_of(group) and all(os.path.isdir(folder) for folder in folders_of(group))


def test_groups_do_not_share_a_name(hierarchies: Hierarchies, made: list[Group]) -> None:
    made += [hierarchies.create(pids=5) for _ in range(5)]
    assert len({group.name for group in made}) == 5


def test_the_limit_of_processes_holds(hierarchies: Hierarchies, made: list[Group]) -> None:
    need(hierarchies, "pids")
    group = hierarchies.create(pids=10)
    made.append(group)
    count = "for i in $(seq 40); do sleep 5 & done 2>/dev/null; jobs -p | wc -l"
    process = start_in(group, "bash", "-c", count)
    try:
        files = group.files()
        until(lambda: int(read(files["pids"])) >= 9)
        assert int(read(files["pids"])) <= 10 and read(files["pids_max"]).strip() == "10"
    finally:
        for line in read(files["pids"].replace("pids.current", "cgroup.procs")).split():
            os.kill(int(line), signal.SIGKILL)  # members of our own group
        end(process)


def test_kill_ends_every_member_at_once_and_populated_follows(hierarchies: Hierarchies, made: list[Group]) -> None:
    need_kill(hierarchies)
    group = hierarchies.create()
    made.append(group)
    assert not group.populated()
    process = start_in(
        group, "bash", "-c", "trap '' TERM; setsid sleep 60 & (sleep 60 &) ; echo up; while :; do sleep 1; done"
    )
    try:
        assert process.stdout and process.stdout.readline() == b"up\n"
        assert group.populated()
        assert len(read(f"{group.v2}/cgroup.procs").split()) >= 3
        assert group.kill() is True
        until(lambda: not group.populated(), within=1)
        assert process.wait(5) == -signal.SIGKILL
        assert read(f"{group.v2}/cgroup.procs").split() == []
    finally:
        end(process)


def test_out_of_memory_is_counted(hierarchies: Hierarchies, made: list[Group]) -> None:
    need(hierarchies, "memory")
    group = hierarchies.create(memory=64 << 20)
    made.append(group)
    assert group.out_of_memory_kills() == 0
    process = start_in(
        group, sys.executable, "-c", "x = bytearray(256 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1"
    )
    try:
        assert process.wait(20) == -signal.SIGKILL
        until(lambda: group.out_of_memory_kills() >= 1, within=2)
    finally:
        end(process)


def test_remove_takes_every_folder_away(hierarchies: Hierarchies) -> None:
    group = hierarchies.create(memory=64 << 20, pids=50, cpus=1.0)
    folders = folders_of(group)
    assert group.remove() is True
    assert [folder for folder in folders if os.path.exists(folder)] == []
    assert group.remove() is True  # once more is harmless


def test_remove_takes_nested_groups_along(hierarchies: Hierarchies) -> None:
    group = hierarchies.create(pids=50)
    for folder in folders_of(group):
        os.makedirs(f"{folder}/deadstop-1-1-1/deeper/still")
        os.mkdir(f"{folder}/other")
    group.remove()
    assert [folder for folder in folders_of(group) if os.path.exists(folder)] == []


def test_remove_of_a_group_nested_deeper_than_python_recurses(hierarchies: Hierarchies) -> None:
    """A payload as root can make any tree below its group; it must not be able to break the cleaning of it."""
    need_kill(hierarchies)
    group = hierarchies.create()
    depth, here = 0, os.open(str(group.v2), os.O_DIRECTORY)
    try:
        for _ in range(1200):  # relative steps: the whole path is longer than a path may be
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here, depth = below, depth + 1
    except OSError:
        pass  # the host bounds the depth
    os.close(here)
    try:
        until(group.remove)
        assert not os.path.exists(str(group.v2)), f"{depth} nested groups were left"
        Hierarchies()
    finally:
        subprocess.run(
            ["find", str(group.v2), "-depth", "-type", "d", "-exec", "rmdir", "{}", "+"],
            capture_output=True,
            timeout=30,
        )


def test_remove_of_a_busy_group_does_not_wait_and_says_so(hierarchies: Hierarchies, made: list[Group]) -> None:
    need_kill(hierarchies)
    group = hierarchies.create()
    made.append(group)
    process = start_in(group, "bash", "-c", "echo up; sleep 60")
    try:
        assert process.stdout and process.stdout.readline() == b"up\n"
        began = time.monotonic()
        assert group.remove() is False
        assert time.monotonic() - began < 0.1
        assert os.path.isdir(str(group.v2))
        group.kill()
        until(group.remove, within=2)
    finally:
        group.kill()
        end(process)


def dead_owner() -> tuple[int, str]:
    """Pid and start time of a process that has ended."""
    process = subprocess.Popen(["sleep", "60"])
    start = cgroup._start_time(process.pid)
    process.kill()
    process.wait(10)
    return process.pid, start


def test_a_sweep_removes_groups_of_dead_supervisors_only(
    hierarchies: Hierarchies, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_kill(hierarchies)
    pid, start = dead_owner()
    place = str(hierarchies.v2)
    dead = f"{place}/{PREFIX}{pid}-{start}-1"
    mine = f"{place}/{PREFIX}{os.getpid()}-{cgroup._start_time(os.getpid())}-77"
    reused = f"{place}/{PREFIX}{os.getpid()}-12345-1"  # our pid, but another start: its number was used before
    foreign = f"{place}/other-{pid}-{start}-1"
    odd = [f"{place}/{PREFIX}{name}" for name in ("x-1-1", "none", f"{pid}")]
    for folder in (f"{dead}/nested/deeper", mine, reused, foreign, *odd):
        os.makedirs(folder)
    try:
        Hierarchies()
        assert os.path.isdir(dead), "one so young may belong to a supervisor in a pid namespace that we cannot see into"
        monkeypatch.setattr(cgroup, "_SWEEP_AFTER_S", -1.0)
        Hierarchies()
        assert not os.path.exists(dead) and not os.path.exists(reused)
        assert os.path.isdir(mine) and os.path.isdir(foreign)
        assert os.path.isdir(odd[0]) and os.path.isdir(odd[1])
    finally:
        for folder in (f"{dead}/nested/deeper", f"{dead}/nested", dead, mine, reused, foreign, *odd):
            try:
                os.rmdir(folder)
            except OSError:
                pass


def test_a_sweep_leaves_a_group_with_members_alone(hierarchies: Hierarchies, monkeypatch: pytest.MonkeyPatch) -> None:
    need_kill(hierarchies)
    pid, start = dead_owner()
    group = Group(f"{PREFIX}{pid}-{start}-9", hierarchies.v2)
    process = start_in(group, "bash", "-c", "echo up; sleep 60")
    try:
        assert process.stdout and process.stdout.readline() == b"up\n"
        monkeypatch.setattr(cgroup, "_SWEEP_AFTER_S", -1.0)
        Hierarchies()
        assert os.path.isdir(str(group.v2)) and process.poll() is None
    finally:
        group.kill()
        end(process)
        group.remove()


def test_reading_and_writing_what_is_not_there(tmp_path: Path) -> None:
    assert read(str(tmp_path / "missing")) == "" and write(str(tmp_path / "missing"), "1") is False
    assert read(str(tmp_path)) == ""
    (tmp_path / "binary").write_bytes(b"\xff\xfeok")
    assert read(str(tmp_path / "binary")).endswith("ok")
