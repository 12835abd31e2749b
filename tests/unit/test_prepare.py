# SPDX-License-Identifier: Apache-2.0
"""Every option of a command is checked before anything starts: one line that names the value and what is allowed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from deadstop.boundary.policy import BASE_ENVIRONMENT
from deadstop.clock import VirtualClock
from deadstop.deadlines import VARIABLE, deadline
from deadstop.errors import InvalidLimit, UsageError
from deadstop.executor.environment import KEPT_BY_CLEAR, NON_INTERACTIVE, environment
from deadstop.executor.folders import SYSTEM_FOLDERS, parse_bind, sandbox_binds
from deadstop.executor.prepare import (
    DEFAULT_TIMEOUT_S,
    MAX_ARGUMENT_BYTES,
    Options,
    Prepared,
    over_before_start,
    prepare,
)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepared(argv: Any = ("true",), **options: Any) -> Prepared:
    return prepare(argv, Options(**options), stdin="null")


# -- bad values --------------------------------------------------------------------------------------------------------

NO_LIMITS = [0, -1, -0.5, float("nan"), float("inf"), float("-inf"), True, False, "5", "5s", b"5", [], {}, 1j, object]
NO_COUNTS = [0, -1, 1.5, 2.0, float("nan"), float("inf"), True, False, "5", "1G", b"5", [], object]


@pytest.mark.parametrize("bad", NO_LIMITS, ids=repr)
@pytest.mark.parametrize("name", ["timeout", "idle_timeout", "cpus", "grace"])
def test_no_limit_of_time_or_processors(name: str, bad: object) -> None:
    if name == "grace" and type(bad) is int and bad == 0:
        assert prepared(grace=0).command.grace == 0.0
        return
    with pytest.raises(InvalidLimit) as caught:
        prepared(**{name: bad})
    text = str(caught.value)
    assert "\n" not in text and len(text) < 200
    assert text.startswith(f"{name}=") and "above zero" in text


@pytest.mark.parametrize("bad", NO_COUNTS, ids=repr)
@pytest.mark.parametrize("name", ["memory", "pids", "disk", "tail", "output_limit"])
def test_no_count(name: str, bad: object) -> None:
    with pytest.raises(InvalidLimit) as caught:
        prepared(**{name: bad})
    text = str(caught.value)
    assert "\n" not in text and text.startswith(f"{name}=") and "whole number above zero" in text


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"isolation": "microvm"}, ["'microvm'", "process", "sandbox"]),
        ({"isolation": "Process"}, ["'Process'"]),
        ({"isolation": None}, ["None"]),
        ({"isolation": []}, ["[]"]),
        ({"isolation": ""}, ["''"]),
        ({"on_input_wait": "ask"}, ["'ask'", "wait", "kill"]),
        ({"on_input_wait": None}, ["None"]),
        ({"cwd": "no/such/folder"}, ["cwd", "no/such/folder"]),
        ({"cwd": "/etc/passwd"}, ["cwd", "/etc/passwd"]),
        ({"cwd": ""}, ["cwd"]),
        ({"cwd": 7}, ["cwd", "7"]),
        ({"cwd": "a\0b"}, ["cwd"]),
        ({"net": True}, ["--net", "sandbox"]),
        ({"bind": ["/srv"]}, ["--bind", "sandbox"]),
        ({"ro_bind": ["/srv"]}, ["--ro-bind", "sandbox"]),
        ({"isolation": "sandbox", "bind": ["no/such"]}, ["no/such", "does not exist"]),
        ({"isolation": "sandbox", "bind": [""]}, ["bind"]),
        ({"isolation": "sandbox", "bind": [":/x"]}, ["bind"]),
        ({"isolation": "sandbox", "bind": ["/etc/passwd:relative"]}, ["'relative'"]),
        ({"isolation": "sandbox", "bind": ["/etc/passwd:/"]}, ["'/'"]),
        ({"isolation": "sandbox", "bind": ["/etc/passwd:/proc/x"]}, ["/proc/x", "kernel"]),
        ({"isolation": "sandbox", "bind": ["/etc/passwd:/a/../b"]}, ["/a/../b"]),
        ({"isolation": "sandbox", "bind": "/etc/passwd"}, ["bind", "/etc/passwd"]),
        ({"isolation": "sandbox", "bind": [7]}, ["bind", "7"]),
        ({"isolation": "sandbox", "cwd": "missing"}, ["cwd", "missing"]),
        ({"env": {"": "x"}}, ["env", "''"]),
        ({"env": {"A=B": "x"}}, ["env", "'A=B'"]),
        ({"env": {"A\0": "x"}}, ["env"]),
        ({"env": {7: "x"}}, ["env", "7"]),
        ({"env": {"A": 7}}, ["env", "A", "7"]),
        ({"env": {"A": b"x"}}, ["env", "A"]),
        ({"env": {"A": "x\0y"}}, ["env", "A", "NUL"]),
        ({"env": {"A": "\ud800"}}, ["env", "A"]),
        ({"env": {"\ud800": "x"}}, ["env"]),
        ({"env": ["A=1"]}, ["env"]),
        ({"env": "A=1"}, ["env"]),
        ({"evidence_paths": "/etc/passwd"}, ["evidence_paths", "/etc/passwd"]),
        ({"evidence_paths": [7]}, ["evidence_paths", "7"]),
        ({"tool": 7}, ["tool", "7"]),
    ],
    ids=lambda value: repr(value)[:60] if isinstance(value, dict) else "",
)
def test_bad_options(options: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        prepared(**options)
    text = str(caught.value)
    assert "\n" not in text
    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "empty"), ([""], "empty"), ("ls -l", "list of words"), (b"ls", "list of words"), (None, "list of words"),
        (7, "list of words"), (["ls", 7], "word 1"), (["ls", None], "word 1"), ([b"ls"], "word 0"), (["a\0b"], "NUL"),
        (["ls", "\ud800"], "word 1"), (["ls", "x" * (MAX_ARGUMENT_BYTES + 1)], str(MAX_ARGUMENT_BYTES)),
        (["ls", "é" * (MAX_ARGUMENT_BYTES // 2 + 1)], str(MAX_ARGUMENT_BYTES)),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_bad_commands(argv: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        prepared(argv)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_a_bad_value_with_line_breaks_still_makes_one_line() -> None:
    for options in ({"isolation": "a\nb"}, {"cwd": "a\nb"}, {"env": {"a\n=": "x"}}, {"timeout": "1\n2"}):
        with pytest.raises(UsageError) as caught:
            prepared(**options)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError) as caught:
        prepared(isolation="sandbox", bind=["a\nb"])
    assert "\n" not in str(caught.value)


def test_a_sandbox_from_a_deleted_folder_is_refused_in_words(project: Path) -> None:
    folder = project / "deleted"
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    with pytest.raises(UsageError, match="current folder"):
        prepared(isolation="sandbox")
    assert prepared().cwd is None  # the process level passes it on as a descriptor
    assert prepared(isolation="sandbox", bind_cwd=False).command.cwd == "/home/agent"


# -- defaults ----------------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    with VirtualClock(1000.0):
        ready = prepared(["/usr/bin/true", "a"])
    command = ready.command
    assert command.argv == ("/usr/bin/true", "a") and command.tool == "true"
    assert command.deadline == 1000.0 + DEFAULT_TIMEOUT_S and command.hard_end is None
    assert command.limit and (command.limit.which, command.limit.seconds, command.limit.source) == (
        "call",
        300.0,
        "default",
    )
    assert (command.idle_timeout, command.grace, command.tail, command.output_limit) == (None, 0.5, 65536, None)
    assert (command.stdin, command.tty, command.on_input_wait, command.stream) == ("null", None, "wait", False)
    assert ready.cwd is None and ready.place.isolation == "process"
    assert ready.place.limits.pids == 4096 and ready.place.limits.memory is None
    assert ready.place.limits.defaulted == {"memory", "pids", "disk"}
    assert command.env[VARIABLE] == "1300.000000"


def test_none_is_unlimited_and_given_says_given() -> None:
    ready = prepared(timeout=None, pids=None, memory=None, disk=None)
    assert (ready.command.deadline, ready.command.limit) == (None, None)
    assert VARIABLE not in ready.command.env
    assert ready.place.limits.pids is None and ready.place.limits.defaulted == frozenset()
    given = prepared(timeout=5, pids=7, memory=1 << 20)
    assert given.command.limit and given.command.limit.source == "given"
    assert (given.place.limits.pids, given.place.limits.memory) == (7, 1 << 20)
    assert given.place.limits.defaulted == {"disk"}


def test_a_stale_deadline_of_an_outer_command_does_not_leak_into_an_unlimited_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with VirtualClock(1000.0):
        monkeypatch.setenv(VARIABLE, "1010.0")
        command = prepared(timeout=None).command
        assert command.deadline == pytest.approx(1009.9)
        assert float(command.env[VARIABLE]) == pytest.approx(1009.9)


def test_call_ids_differ_and_facts_of_the_caller_are_taken() -> None:
    before = os.umask(0o027)
    try:
        commands = [prepared().command for _ in range(100)]
    finally:
        os.umask(before)
    assert len({command.call_id for command in commands}) == 100
    assert {command.umask for command in commands} == {0o027}
    assert commands[0].nice == os.getpriority(os.PRIO_PROCESS, 0)
    assert commands[0].oom_score_adj == int(Path("/proc/self/oom_score_adj").read_text())


def test_sandbox_defaults(project: Path) -> None:
    ready = prepared(isolation="sandbox")
    limits = ready.place.limits
    assert limits.memory and limits.pids and limits.disk and limits.defaulted == {"memory", "pids", "disk"}
    assert ready.place.binds == ((str(project), str(project), True),)
    assert (ready.command.cwd, ready.cwd, ready.place.net) == (str(project), None, False)


def test_words_may_be_paths_and_any_iterable() -> None:
    assert prepared(iter([Path("/bin/ls"), "-l"])).command.argv == ("/bin/ls", "-l")
    assert prepared(["ls", "x" * MAX_ARGUMENT_BYTES]).command.argv[0] == "ls"
    assert prepared(["ls", "caf\udce9"]).command.argv[1] == "caf\udce9"  # a file name that is not UTF-8


def test_evidence_paths_are_made_absolute_where_they_were_named(project: Path) -> None:
    assert prepared(evidence_paths=["log.txt", "/var/log/x"]).command.evidence_paths == (
        f"{project}/log.txt",
        "/var/log/x",
    )


def test_a_deadline_that_is_over_refuses_before_the_start() -> None:
    with VirtualClock(1000.0) as clock, deadline(1.0):
        clock.advance(1.5)
        command = prepared().command
        result = over_before_start(command)
    assert result is not None
    assert (result.status, result.reason, result.environment) == ("refused", "deadline_over", "nothing was started")
    assert over_before_start(prepared().command) is None


# -- environment -------------------------------------------------------------------------------------------------------


def compose(isolation: str = "process", extra: dict[str, str | None] | None = None, **options: Any) -> dict[str, str]:
    return environment(isolation, extra or {}, **{"clear": False, "defaults": False, "python": {}, **options})


def test_the_callers_environment_and_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "mine")
    monkeypatch.delenv("PAGER", raising=False)
    assert compose() == dict(os.environ)
    with_defaults = compose(defaults=True)
    assert with_defaults["EDITOR"] == "mine" and with_defaults["PAGER"] == "cat"
    assert set(with_defaults) == set(os.environ) | set(NON_INTERACTIVE)


def test_what_is_given_wins_and_none_passes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "host")
    monkeypatch.delenv("ABSENT", raising=False)
    extra = {"PAGER": "less", "MINE": None, "ABSENT": None, "EMPTY": ""}
    env = compose(clear=True, defaults=True, extra=extra)
    assert env["PAGER"] == "less" and env["MINE"] == "host" and env["EMPTY"] == "" and "ABSENT" not in env


def test_clear_keeps_only_the_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("TZ", "UTC")
    env = compose(clear=True)
    assert set(env) <= set(KEPT_BY_CLEAR) and env["TZ"] == "UTC" and env["PATH"] == os.environ["PATH"]


def test_a_sandbox_gets_nothing_of_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD", "PYTHONPATH", "HOME", "PATH", "USER", "EDITOR"):
        monkeypatch.setenv(name, "of-the-host")
    env = prepared(isolation="sandbox").command.env
    assert "of-the-host" not in env.values()
    assert set(env) == set(BASE_ENVIRONMENT) | set(NON_INTERACTIVE) | {VARIABLE}
    asked = prepared(isolation="sandbox", env={"SECRET": None, "A": "1"}).command.env
    assert (asked["SECRET"], asked["A"]) == ("of-the-host", "1")
    plain = prepared(isolation="sandbox", env_defaults=False).command.env
    assert set(plain) == set(BASE_ENVIRONMENT) | {VARIABLE}


def test_a_terminal_gets_no_defaults_against_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGER", raising=False)
    assert "PAGER" not in prepared(tty=True).command.env
    assert prepared(tty=True).command.tty == (24, 80)


def test_the_callers_own_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    given: dict[str, str | None] = {"A": "1"}
    prepared(env=given)
    assert dict(os.environ) == before and given == {"A": "1"}


# -- folders of a sandbox ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", SYSTEM_FOLDERS)
def test_system_folders_are_refused_as_the_current_one(folder: str) -> None:
    with pytest.raises(UsageError, match="current folder") as caught:
        sandbox_binds(folder, (), ())
    assert folder in str(caught.value)


@pytest.mark.parametrize("folder", ["/", "/usr", "/etc", "/tmp", "/proc", "/home"])
def test_system_folders_are_refused_also_through_a_link(project: Path, folder: str) -> None:
    link = project / "link"
    link.symlink_to(folder)
    os.chdir(link)
    with pytest.raises(UsageError, match="current folder"):
        prepared(isolation="sandbox")


def test_no_current_folder_and_no_binds() -> None:
    assert sandbox_binds(None, (), ()) == ([], {})


def test_binds_are_parsed_and_ordered(project: Path) -> None:
    (project / "a").mkdir()
    (project / "file").write_text("x")
    assert parse_bind("a") == (f"{project}/a", f"{project}/a")
    assert parse_bind("file:/data/in.txt") == (f"{project}/file", "/data/in.txt")
    (project / "link").symlink_to("a")
    assert parse_bind("link") == (f"{project}/a", f"{project}/link")
    binds, _ = sandbox_binds(str(project), ("a:/place/sub",), ("file:/place", "a:/z"))
    targets = [target for _, target, _ in binds]
    assert targets == sorted(targets) and targets.index("/place") < targets.index("/place/sub")
    assert (f"{project}/a", "/place/sub", True) in binds and (f"{project}/a", "/z", False) in binds


def test_a_later_bind_of_the_same_path_wins(project: Path) -> None:
    binds, _ = sandbox_binds(str(project), (), (str(project),))
    assert binds == [(str(project), str(project), False)]
    binds, _ = sandbox_binds(None, (f"{project}:/x",), ("/etc/passwd:/x",))
    assert binds == [(str(project), "/x", True)]


def virtual_environment(folder: Path, home: str) -> None:
    folder.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"include-system-site-packages = false\nhome = {home}\nversion = 3.11\n")


def test_the_virtual_environment_of_the_project_is_used(project: Path) -> None:
    virtual_environment(project / ".venv", "/usr/bin")
    binds, env = sandbox_binds(str(project), (), ())
    assert binds == [(str(project), str(project), True)]  # /usr shows the interpreter already
    assert env["VIRTUAL_ENV"] == f"{project}/.venv" and env["PATH"].split(":")[0] == f"{project}/.venv/bin"
    command = prepared(isolation="sandbox").command
    assert command.env["VIRTUAL_ENV"] == f"{project}/.venv"


def installation(python: Path) -> None:
    """What makes a folder a Python installation: its library and a program beside it."""
    (python / "bin").mkdir(parents=True)
    (python / "lib/python3.11").mkdir(parents=True)
    (python / "lib/python3.11/os.py").touch()
    (python / "bin/python3.11").touch(mode=0o755)


def shown_beside(project: Path) -> list[tuple[str, str, bool]]:
    return [bind for bind in sandbox_binds(str(project), (), ())[0] if bind[0] != str(project)]


def test_an_interpreter_outside_usr_is_shown_read_only(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    python = tmp_path_factory.mktemp("python") / "3.11"
    installation(python)
    virtual_environment(project / ".venv", f"{python}/bin")
    assert shown_beside(project) == [(str(python), str(python), False)]


def test_an_interpreter_behind_a_link_is_shown_under_both_names(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("python")
    installation(folder / "3.11.7")
    (folder / "3.11").symlink_to("3.11.7")
    virtual_environment(project / ".venv", f"{folder}/3.11/bin")
    assert shown_beside(project) == [(f"{folder}/{name}", f"{folder}/{name}", False) for name in ("3.11", "3.11.7")]


@pytest.mark.parametrize("lacks", ["lib/python3.11/os.py", "bin/python3.11", "execute permission"])
def test_a_folder_that_is_no_python_installation_is_not_shown(
    project: Path, tmp_path_factory: pytest.TempPathFactory, lacks: str
) -> None:
    folder = tmp_path_factory.mktemp("secrets") / "folder"
    installation(folder)
    if (folder / lacks).exists():
        (folder / lacks).unlink()
    else:
        (folder / "bin/python3.11").chmod(0o644)
    virtual_environment(project / ".venv", f"{folder}/bin")
    assert shown_beside(project) == []


@pytest.mark.parametrize("above", [0, 1, 2])
def test_neither_the_home_folder_nor_a_parent_of_it_is_shown_as_an_interpreter(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, above: int
) -> None:
    """Even if a payload made it look like an installation, in an earlier call."""
    home = tmp_path_factory.mktemp("people") / "all/someone"
    home.mkdir(parents=True)
    named = (home, *home.parents)[above]
    installation(named)
    virtual_environment(project / ".venv", f"{named}/bin")
    monkeypatch.setenv("HOME", str(project))
    assert shown_beside(project) == [(str(named), str(named), False)]  # it is the home folder that forbids it
    monkeypatch.setenv("HOME", str(home))
    assert shown_beside(project) == []
    (project / "link").symlink_to(named)
    (project / ".venv/pyvenv.cfg").write_text(f"home = {project}/link/bin\n")
    assert shown_beside(project) == []


def test_a_virtual_environment_that_is_not_visible_is_not_named(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "venv"
    virtual_environment(elsewhere, "/usr/bin")
    monkeypatch.setenv("VIRTUAL_ENV", str(elsewhere))
    assert sandbox_binds(str(project), (), ())[1] == {}
    _, env = sandbox_binds(str(project), (), (str(elsewhere),))
    assert env["VIRTUAL_ENV"] == str(elsewhere)


def test_an_active_virtual_environment_comes_before_that_of_the_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual_environment(project / ".venv", "/usr/bin")
    virtual_environment(project / "other", "/usr/bin")
    monkeypatch.setenv("VIRTUAL_ENV", f"{project}/other")
    assert sandbox_binds(str(project), (), ())[1]["VIRTUAL_ENV"] == f"{project}/other"


@pytest.mark.parametrize("content", [b"", b"home\n", b"\xff\xfe", b"version = 3\n"])
def test_a_broken_pyvenv_is_no_virtual_environment(project: Path, content: bytes) -> None:
    (project / ".venv").mkdir()
    (project / ".venv" / "pyvenv.cfg").write_bytes(content)
    assert sandbox_binds(str(project), (), ())[1] == {}


def test_a_home_in_pyvenv_cannot_bring_in_a_system_folder(project: Path) -> None:
    """The project is the model's to write: what its pyvenv.cfg names must not widen what it sees."""
    for home in ("/etc/x", "/nowhere/bin", "/home/someone/bin", "/var/lib", "relative/bin", "/", ""):
        folder = project / ".venv"
        if not folder.exists():
            virtual_environment(folder, home)
        (folder / "pyvenv.cfg").write_text(f"home = {home}\n")
        binds, _ = sandbox_binds(str(project), (), ())
        shown = [source for source, _, _ in binds if source != str(project)]
        assert shown == [], f"home = {home} shows {shown}"


def test_the_running_interpreter_of_a_real_virtual_environment() -> None:
    if sys.prefix == sys.base_prefix:
        pytest.skip("the tests do not run in a virtual environment")
    binds, env = sandbox_binds(None, (), (sys.prefix,))
    assert env == {} or env["VIRTUAL_ENV"] == sys.prefix
    assert all(os.path.exists(source) for source, _, _ in binds)
