# SPDX-License-Identifier: Apache-2.0
"""From what a user asks for to a command with everything resolved.

All checking is done here, before anything starts.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import clock, deadlines
from ..boundary import limits as boundary_limits
from ..boundary.cgroup import read
from ..errors import UsageError
from ..model import Command, Isolation, Limits, Place
from ..results import Status, ToolResult
from .environment import environment
from .folders import sandbox_binds

DEFAULT_TIMEOUT_S = 300.0
DEFAULT_GRACE_S = 0.5
DEFAULT_TAIL = 65536
MAX_TAIL = 8 << 20
MAX_ARGUMENT_BYTES = 131_071  # MAX_ARG_STRLEN of the kernel, less the closing NUL


class Default:
    """Stands for "not given", where None means unlimited."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default()


@dataclass(frozen=True, slots=True)
class Options:
    """Every option of a command, as `deadstop.run` documents them."""

    timeout: float | Default | None = DEFAULT
    idle_timeout: float | None = None
    grace: float = DEFAULT_GRACE_S
    isolation: str = "process"
    memory: int | Default | None = DEFAULT
    pids: int | Default | None = DEFAULT
    cpus: float | None = None
    disk: int | Default | None = DEFAULT
    output_limit: int | None = None
    net: bool = False
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str | None] | None = None
    clear_env: bool = False
    env_defaults: bool = True
    bind: Sequence[str] = ()
    ro_bind: Sequence[str] = ()
    bind_cwd: bool = True
    tail: int = DEFAULT_TAIL
    tty: bool = False
    on_input_wait: str = "wait"
    evidence_paths: Sequence[str] = ()
    tool: str | None = None
    task_id: str | None = None


PLACE_OPTIONS = frozenset({"memory", "pids", "cpus", "disk", "net", "bind", "ro_bind", "bind_cwd"})
COMMAND_OPTIONS = frozenset(Options.__dataclass_fields__) - PLACE_OPTIONS - {"isolation"}


def check_names(given: Iterable[str], known: frozenset[str], what: str) -> None:
    """An option that would be ignored is an error."""
    for name in sorted(set(given) - known):
        raise UsageError(f"{name} is not an option of {what}; it takes {', '.join(sorted(known))}")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked command and the boundary it wants. `cwd` is the host folder for `process`, None for the current one."""

    command: Command
    place: Place
    cwd: str | None


def prepare_place(options: Options) -> tuple[Place, dict[str, str]]:
    """The boundary asked for, and the variables of a virtual environment that is visible in it."""
    level = check_isolation(options.isolation)
    limits = _limits(level, options)
    if level == "process":
        for name in ("bind", "ro_bind", "net"):
            if getattr(options, name):
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag} has a meaning only with isolation sandbox: process has the caller's own")
        return Place("process", limits), {}
    current = _current_folder() if options.bind_cwd else None
    binds, python = sandbox_binds(current, _paths(options.bind, "bind"), _paths(options.ro_bind, "ro_bind"))
    return Place("sandbox", limits, options.net, tuple(binds)), python


def prepare(argv: Sequence[str], options: Options, *, stdin: str, size: tuple[int, int] | None = None) -> Prepared:
    """Check everything and compose the command. Raises UsageError (InvalidLimit) with one line. Starts nothing."""
    place, python = prepare_place(options)
    return Prepared(prepare_command(argv, options, place, python, stdin=stdin, size=size), place, host_cwd(options))


def prepare_command(
    argv: Sequence[str],
    options: Options,
    place: Place,
    python: dict[str, str],
    *,
    stdin: str,
    size: tuple[int, int] | None,
    stream: bool = False,
) -> Command:
    words = check_argv(argv)
    given = not isinstance(options.timeout, Default)
    timeout = clock.check_limit("timeout", options.timeout) if given else DEFAULT_TIMEOUT_S
    if options.on_input_wait not in ("wait", "kill"):
        raise UsageError(f"on_input_wait: {options.on_input_wait!r} is neither 'wait' nor 'kill'")
    if not isinstance(options.env, Mapping | None):
        raise UsageError(f"env: give a mapping of names to text, not {options.env!r:.60}")
    if not isinstance(options.tool, str | None):
        raise UsageError(f"tool: {options.tool!r:.60} is not a name")
    env = environment(
        place.isolation, dict(options.env or {}), clear=options.clear_env,
        defaults=options.env_defaults and not options.tty, python=python,
    )  # fmt: skip
    _check_sizes(env)
    grace = (
        0.0 if options.grace == 0 and not isinstance(options.grace, bool) else clock.check_limit("grace", options.grace)
    )
    end, hard_end, limit = deadlines.resolve(timeout, "given" if given else "default")
    if end is not None:
        env[deadlines.VARIABLE] = f"{end:.6f}"
    return Command(
        argv=words,
        env=env,
        tool=options.tool or os.path.basename(words[0]),
        call_id=f"call_{os.urandom(10).hex()}",
        cwd=_inside_cwd(options, place),
        task_id=options.task_id or _current_task_id(),
        limit=limit,
        deadline=end,
        hard_end=hard_end,
        idle_timeout=clock.check_limit("idle_timeout", options.idle_timeout),
        grace=grace or 0.0,
        stdin=stdin,
        tty=(size or (24, 80)) if options.tty else None,
        tail=_tail(options.tail),
        output_limit=clock.check_count("output_limit", options.output_limit),
        on_input_wait=options.on_input_wait,
        # Resolved now: later the payload could make a link of it, and we would read for it what it may not.
        evidence_paths=tuple(map(os.path.realpath, _paths(options.evidence_paths, "evidence_paths"))),
        umask=current_umask(),
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        stream=stream,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        oom_score_adj=int(read("/proc/self/oom_score_adj").strip() or 0),
    )


def _current_task_id() -> str | None:
    tasks = deadlines.entered.get()
    return tasks[-1].task_id if tasks else None


def check_isolation(value: object) -> str:
    known = [level.value for level in Isolation]
    if value in known:
        return str(value)
    raise UsageError(f"isolation: {value!r} is not one of {', '.join(known)}")


def check_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A list of words, none of them larger than the kernel takes."""
    if isinstance(argv, str | bytes) or not isinstance(argv, Iterable):
        raise UsageError("the command must be a list of words, not one string; for a shell: ['bash', '-c', '...']")
    words = tuple(os.fspath(word) if isinstance(word, os.PathLike) else word for word in argv)
    if not words or words[0] == "":
        raise UsageError("the command is empty: give a program and its arguments")
    for number, word in enumerate(words):
        if not isinstance(word, str):
            raise UsageError(f"the command's word {number} must be text, not {word!r:.60}")
        size = len(_encoded(word, f"the command's word {number}"))
        if size > MAX_ARGUMENT_BYTES:
            allowed = f"the kernel allows {MAX_ARGUMENT_BYTES} for one"
            raise UsageError(f"the command's word {number} has {size} bytes, {allowed}: pass it in a file or on stdin")
    return words


def _check_sizes(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        size = len(os.fsencode(name)) + 1 + len(os.fsencode(value))
        if size > MAX_ARGUMENT_BYTES:
            raise UsageError(
                f"env: {name} has {size} bytes; the kernel allows {MAX_ARGUMENT_BYTES} for one: use a file"
            )


def _tail(given: int) -> int:
    size = clock.check_count("tail", given)
    if size is None or size > MAX_TAIL:
        raise UsageError(f"tail: {given!r:.60} is not a number of bytes up to {MAX_TAIL}: it is kept in memory")
    return size


def _encoded(text: str, what: str) -> bytes:
    """As the kernel takes it."""
    if "\0" in text:
        raise UsageError(f"{what} has a NUL byte in it")
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        raise UsageError(f"{what} has characters that no program can be given: {text!r:.60}") from None


def _paths(given: object, name: str) -> tuple[str, ...]:
    """A list of paths, not one: a single string would be taken letter by letter."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(f"{name}: give a list of paths, not {given!r:.60}")
    paths = []
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"{name}: {path!r:.60} is not a path")
        _encoded(os.fspath(path), f"{name}: {os.fspath(path)!r:.60}")
        paths.append(os.fspath(path))
    return tuple(paths)


def _limits(level: str, options: Options) -> Limits:
    defaults = boundary_limits.DEFAULTS[level]
    asked: dict[str, Any] = {"cpus": clock.check_limit("cpus", options.cpus)}
    defaulted = set()
    for name in ("memory", "pids", "disk"):
        value = getattr(options, name)
        if isinstance(value, Default):
            asked[name] = getattr(defaults, name)
            defaulted.add(name)
        else:
            asked[name] = clock.check_count(name, value)
    return Limits(**asked, defaulted=frozenset(defaulted))


def host_cwd(options: Options) -> str | None:
    if options.isolation == "sandbox" or options.cwd is None:
        return None
    path = _cwd_text(options.cwd)
    if not os.path.isdir(path):
        raise UsageError(f"cwd: {path!r} is not a folder")
    return path


def _cwd_text(cwd: object) -> str:
    if not isinstance(cwd, str | os.PathLike):
        raise UsageError(f"cwd: {cwd!r:.60} is not a path")
    path: str = os.fspath(cwd)
    _encoded(path, f"cwd: {path!r:.60}")
    return path


def _inside_cwd(options: Options, place: Place) -> str | None:
    """In a sandbox a path inside: the current folder where it is shown, the private home otherwise."""
    if place.isolation == "process":
        return None
    base = _current_folder() if options.bind_cwd else "/home/agent"
    path = base if options.cwd is None else os.path.normpath(os.path.join(base, _cwd_text(options.cwd)))
    for source, target, _ in place.binds:
        if path == target or path.startswith(target + "/"):
            host = source + path[len(target) :]
            if not os.path.isdir(host):
                raise UsageError(f"cwd: {path!r} is not a folder")
    return path


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError as problem:
        text = "the current folder, which a sandbox would be shown, cannot be found"
        raise UsageError(f"{text} ({problem.strerror}): change to another, or show none (--no-bind-cwd)") from None


def current_umask() -> int:
    """Without changing it: a change would show in other threads."""
    for line in read("/proc/self/status", 4096).splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


def refused(command: Command, reason: str, message: str) -> ToolResult:
    """The result of a call that never started."""
    return ToolResult(
        tool=command.tool,
        status=Status.REFUSED,
        call_id=command.call_id,
        task_id=command.task_id,
        reason=reason,
        limit=command.limit if reason in ("deadline_over", "budget") else None,
        started_at=clock.now_iso(),
        environment="nothing was started",
        error_message=message,
        degraded=command.notes,
    )


def over_before_start(command: Command) -> ToolResult | None:
    """A refusal if the deadline is over already."""
    if command.deadline is None or command.deadline > clock.monotonic():
        return None
    if command.limit is not None and command.limit.which == "task":
        return _task_is_over(command)
    return refused(command, "deadline_over", "its deadline was over before it could start")


def _task_is_over(command: Command) -> ToolResult:
    from ..budget import current, refused_result  # loaded already, by whoever made the task

    task = current()
    refusal = task.used_up() if task else None
    if refusal is None:
        return refused(command, "budget", "the wall clock of its task was over before it could start")
    return refused_result(refusal, command.tool, command.call_id)
