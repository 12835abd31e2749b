# SPDX-License-Identifier: Apache-2.0
"""A sandbox as blocking code sees it: `AsyncSandbox`, waited for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..executor.prepare import DEFAULT, Default
from ..results import Receipt, ToolResult
from .asynchronous import AsyncSandbox, OnOutput
from .execs import Command
from .files import Files
from .hooks import Hook
from .portal import portal
from .process import Process, Session
from .running import Piece
from .view import Known, View

if TYPE_CHECKING:
    from ..executor.tool import Call
    from .fresh import Fresh
    from .race import ForkRace

T = TypeVar("T")


class Sandbox(Known):
    """A place for an agent's work that a server keeps: it has a life of its own, and an end that nobody can prevent.

    Promised: it ends at its TTL at the latest, whatever becomes of this process; its end leaves no process behind,
    and the receipt says with which proof. Attached (the default), it also ends when this process does. Times are
    seconds. Methods raise SandboxError and its kinds (errors.py) where the server refuses or cannot be reached.
    """

    def __init__(self, face: AsyncSandbox) -> None:
        """Use `create`, `connect` or `list`."""
        self._async, self._closed = face, False
        face._face = self
        self.files = Files(face.files)

    @property
    def _view(self) -> View:  # type: ignore[override]
        return self._async._view

    # -- making and finding --------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, template: str = "base", ttl: float = 3600.0, *, idle_timeout: float | None = None,
        name: str | None = None, metadata: Mapping[str, str] | None = None, detached: bool = False,
        from_snapshot: str | None = None, persistent: bool | None = None, on_expiry: str | None = None,
        memory: int | None = None, cpus: float | None = None, pids: int | None = None, disk: int | None = None,
        network: bool | str | None = None, env: Mapping[str, str] | None = None, on_timeout: Hook = None,
        on_extended: Hook = None, before_stop: Hook = None, hook_seconds: float = 10.0, buffer: float | None = None,
        server: str | None = None, token: str | None = None,
    ) -> Self:  # fmt: skip
        """Make one that lives for `ttl` seconds; only `extend` and `set_ttl` move its end.

        It is attached to this process from here on, in a `with` block or not: when the process ends, however it
        ends, so does the sandbox. With `detached` it lives until its TTL, or until somebody kills it. Leaving a
        `with` block kills an attached one at once. `idle_timeout` ends it earlier, after that long without an exec.

        `memory` and `disk` are bytes. Hooks: `on_timeout` when the buffer before the end begins, `on_extended` after
        each extension, `before_stop` before an end. Text is a command that the server runs inside; a callable is
        called in this process with the sandbox (`on_extended` also with the seconds added), in a thread of its own,
        for `hook_seconds` at most. Nothing waits for it, but `kill` for `before_stop`, and that for 2 s at most.

        `server` is `unix:///path` or `http://host:port` (DEADSTOP_SERVER, or this user's own socket). Raises
        CapacityError if there is no room, UsageError for what is not allowed, ServerUnreachable.
        """
        options = {name: value for name, value in locals().items() if name not in ("cls", "__class__")}
        return cls(portal.run(AsyncSandbox.create(**options)))

    @classmethod
    def connect(cls, ref: str, *, resume: bool = False, server: str | None = None, token: str | None = None) -> Self:
        """The sandbox of that id or name, with the time it truly has left: this never moves its end.

        One that has ended is found too (its `status` says so, its logs can be read). With `resume` it is brought
        back from its last snapshot, under a new id, and a paused one goes on. Raises NotFound.
        """
        return cls(portal.run(AsyncSandbox.connect(ref, resume=resume, server=server, token=token)))

    @classmethod
    def list(
        cls, state: str = "present", metadata: Mapping[str, str] | None = None, *, server: str | None = None,
        token: str | None = None,
    ) -> Sequence[Self]:  # fmt: skip
        """Those of a state: live, ended, all, or present (live, and what ended without being asked to)."""
        return [cls(face) for face in portal.run(AsyncSandbox.list(state, metadata, server=server, token=token))]

    def refresh(self) -> Self:
        """Ask for the state as it is now."""
        portal.run(self._async.refresh())
        return self

    # -- commands ------------------------------------------------------------------------------------------------

    def exec(
        self, cmd: Command, timeout: float | Default | None = DEFAULT, *, cwd: str | None = None,
        env: Mapping[str, str] | None = None, stdin: bytes | str | None = None, user: str | None = None,
        on_timeout: str | None = None, rlimits: Mapping[str, float] | None = None, tail: int | None = None,
        on_output: OnOutput | None = None, cancel: Any = None, check: bool = False,
    ) -> ToolResult:  # fmt: skip
        """Run a command inside and return how it ended. Text is run by a shell, a list of words as it stands.

        The limit (300 s if omitted; None: as long as the sandbox has left; 0: over already) is kept by the server.
        `on_timeout` says what goes when it fires: `kill` the command's processes, `destroy` the sandbox, or
        `snapshot_destroy`. `on_output(stream, data)` is called in this thread as output comes; `cancel` is a
        CancelToken. In a `deadstop.Task` or `deadline` block the command draws on it and ends with it.
        `rlimits`: cpu_seconds, file_mb, open_files. With `check`, raises for what is not ok.

        A result of status `unknown` says that the server was lost meanwhile. Raises SandboxEnded, SandboxPaused,
        ServerUnreachable where nothing was started.
        """
        options: dict[str, Any] = {
            "cwd": cwd, "env": env, "stdin": stdin, "user": user, "on_timeout": on_timeout, "rlimits": rlimits,
            "tail": tail,
        }  # fmt: skip
        if on_output is None:
            return portal.run(self._async.exec(cmd, timeout, cancel=cancel, check=check, **options))
        result = None
        with closing(self.exec_stream(cmd, timeout, cancel=cancel, **options)) as items:
            for item in items:
                if isinstance(item, ToolResult):
                    result = item
                else:
                    on_output(*item)
        assert result is not None
        if check:
            result.unwrap()
        return result

    def exec_stream(
        self, cmd: Command, timeout: float | Default | None = DEFAULT, *, cancel: Any = None, **options: Any
    ) -> Generator[Piece | ToolResult, None, None]:
        """The output as it comes, as (stream, bytes), then the ToolResult. Leaving it early ends the command."""
        return portal.iterate(self._async.exec_stream(cmd, timeout, cancel=cancel, **options))

    def start(
        self, cmd: Command, timeout: float | Default | None = DEFAULT, *, keep_stdin: bool = False, **options: Any
    ) -> Process:
        """Start a command in the background, with the options of `exec`; `keep_stdin` leaves its input open.

        It has a limit, too. Raises ToolRefusedError if the task's budget is used up.
        """
        return Process(portal.run(self._async.start(cmd, timeout, keep_stdin=keep_stdin, **options)))

    def run_function(self, asked: Call) -> ToolResult:
        """What `deadstop.call(..., sandbox=self)` does."""
        from .function import run_in

        return run_in(self, asked)

    def processes(self) -> Sequence[Process]:
        """What runs or ran inside, as far as it is still known."""
        return [Process(face) for face in portal.run(self._async.processes())]

    def session(self, language: str = "python") -> Session:
        """A `python` interpreter or a `bash` that keeps its state from run to run."""
        return Session(portal.run(self._async.session(language)))

    # -- life ----------------------------------------------------------------------------------------------------

    def extend(self, seconds: float) -> dict[str, Any]:
        """More life: expires_at, time_left_s, added_s, and whether the server's maximum clamped it. Done once."""
        return portal.run(self._async.extend(seconds))

    def set_ttl(self, seconds: float) -> dict[str, Any]:
        """An end this long from now, sooner or later than it was."""
        return portal.run(self._async.set_ttl(seconds))

    def pause(self) -> Self:
        """Freeze all its processes. Its life goes on passing."""
        portal.run(self._async.pause())
        return self

    def resume(self) -> Self:
        """Let a paused one go on."""
        portal.run(self._async.resume())
        return self

    def snapshot(self, name: str | None = None) -> dict[str, Any]:
        """Keep its files as they are now: id, size_bytes, how, pause_ms. `create(from_snapshot=id)` starts from it."""
        return portal.run(self._async.snapshot(name))

    def fork(
        self, *, name: str | None = None, metadata: Mapping[str, str] | None = None, detached: bool = False
    ) -> Self:
        """A twin with the same files, running nothing. It ends when this one would.

        It is attached to this process if this one is, unless `detached`.
        """
        return type(self)(portal.run(self._async.fork(name=name, metadata=metadata, detached=detached)))

    def fork_tree(
        self, count: int, *, metadata: Mapping[str, str] | None = None, detached: bool = False
    ) -> Sequence[Self]:
        """`count` such twins (at most 16) of one moment; `promote` keeps one of them."""
        children = portal.run(self._async.fork_tree(count, metadata=metadata, detached=detached))
        return [type(self)(face) for face in children]

    def promote(self, *, cleanup_siblings: bool = False, tree_id: str | None = None) -> dict[str, Any]:
        """Keep this one of its tree: winner, deleted, failures, receipts. The others end if `cleanup_siblings`."""
        return portal.run(self._async.promote(cleanup_siblings=cleanup_siblings, tree_id=tree_id))

    def kill(self) -> Receipt | None:
        """End it now. The receipt says what was killed and with which proof. Idempotent."""
        return portal.run(self._async.kill())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends an attached sandbox, and a fork of one; a detached one lives on."""
        portal.run(self._async.__aexit__(None, None, None))

    # -- what it said and did --------------------------------------------------------------------------------------

    def logs(self, stream: str = "both") -> str:
        """The last output of all its commands, as far as it is kept; also after its end."""
        return portal.run(self._async.logs(stream))

    def follow_logs(self, stream: str = "both") -> Iterator[str]:
        """The same line by line, and what comes, until it ends."""
        return portal.iterate(self._async.follow_logs(stream))

    def events(self) -> Iterator[dict[str, Any]]:
        """What happens to it from now on, until it ends: `type`, `at` and more."""
        return portal.iterate(self._async.events())

    @classmethod
    def snapshots(
        cls, sandbox_id: str | None = None, *, server: str | None = None, token: str | None = None
    ) -> Sequence[dict[str, Any]]:
        """The snapshots the server keeps, or those of one sandbox."""
        return portal.run(AsyncSandbox.snapshots(sandbox_id, server=server, token=token))

    @classmethod
    def delete_snapshot(cls, snapshot_id: str, *, server: str | None = None, token: str | None = None) -> None:
        """Sandboxes made from it live on. Raises NotFound."""
        portal.run(AsyncSandbox.delete_snapshot(snapshot_id, server=server, token=token))

    # -- more than one -----------------------------------------------------------------------------------------------

    def retry_fresh(self, function: Callable[[Sandbox], T], attempts: int = 3) -> Fresh[T]:
        """Call `function` with a new sandbox for each attempt, from this one's last snapshot or its template.

        An attempt fails by raising an Exception or with a ToolResult that is not ok; its sandbox is killed, and the
        receipt kept. The sandbox of the attempt that succeeded lives on. None of them lives longer than this one.
        """
        from .fresh import retry_fresh

        return retry_fresh(self, function, attempts)

    def race(
        self, entries: Sequence[Command | Callable[[Sandbox], ToolResult]], *, timeout: float = 300.0, **options: Any
    ) -> ForkRace:
        """Each entry in a fork of its own, at once: the first that is ok wins, the others' forks are killed."""
        from .race import race_forks

        return race_forks(self, entries, timeout=timeout, **options)
