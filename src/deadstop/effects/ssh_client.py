# SPDX-License-Identifier: Apache-2.0
"""One run of the OpenSSH client, killable and bounded, and what it shows: how far it came, and what the host reported.

ssh's own log goes to a file that the other side cannot write to. Without the line that it writes before it sends a
command, and with its process dead, nothing was sent; with it, only a report of the host says what happened.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..cancel import CancelToken
from ..executor.refusals import NOTHING_STARTED
from ..executor.run import run
from ..ledger import crash
from ..ledger.query_check import check_host
from ..results import Output, Status, ToolResult

__all__ = ["Heard", "Host", "OnOutput", "talk"]

OnOutput = Callable[[str, bytes], None]
_TAIL = 1 << 18
_MOST_LOG, _MOST_REPORT = 16 << 20, 1 << 20

# ssh takes the first value it is given for an option, so that these hold whatever the caller and ssh_config say.
_FIXED = (
    *("-T", "-x", "-a", "-v", "-e", "none"),
    *(word for option in (
        "BatchMode=yes", "ControlMaster=no", "ControlPath=none", "ClearAllForwardings=yes", "PermitLocalCommand=no",
        "ServerAliveInterval=5", "ServerAliveCountMax=3", "TCPKeepAlive=yes",
    ) for word in ("-o", option)),
)  # fmt: skip

# $1 is the word that marks a report, the rest the program and its words. One line: a login shell may be any.
_REPORT = 'printf \'@deadstop %s {"state":"%s","detail":"%s"}\\n\' "$n"'
_SCRIPT = (
    f"n=$1; shift; {_REPORT} connected '' >&2; "
    'p=$(PATH="$PATH:/usr/local/bin:$HOME/.local/bin"; command -v "$1") || '
    f"{{ {_REPORT} no_helper 'the helper is not installed there' >&2; exit 127; }}; "
    'shift; exec "$p" "$@"'
)


@dataclass(frozen=True, slots=True)
class Host:
    """Where, and by which program there. `name` is user@host or an alias of ssh_config. Raises UsageError."""

    name: str
    helper: str = "deadstop-remote"
    options: tuple[str, ...] = ()
    connect_s: float = 10.0

    def __post_init__(self) -> None:
        check_host(self.name, self.helper, self.options)


@dataclass(frozen=True, slots=True)
class Heard:
    """`sent` is False where the command surely never left, None where that cannot be said. `reports` are the helper's
    own words, in order; `observation` is what ssh said last."""

    result: ToolResult
    sent: bool | None
    reports: tuple[dict[str, Any], ...]
    observation: str

    @property
    def last(self) -> dict[str, Any]:
        """The last thing that the host said about the operation; {} if nothing."""
        return self.reports[-1] if self.reports and self.reports[-1]["state"] != "connected" else {}

    @property
    def problem(self) -> str:
        """Why there is no answer: what the host's program said last where it ended by itself, else what ssh said."""
        if self.last:
            return f"{self.last['state']}: {self.last.get('detail', '')}"
        said = self.result.stderr.plain().strip().splitlines()
        if self.sent and said and self.result.status is Status.COMPLETED and self.result.exit_code != 255:
            return said[-1][:300]
        return self.observation or "no answer"


def talk(
    host: Host,
    words: Sequence[str],
    *,
    timeout: float | None,
    tool: str = "ssh",
    script: str = _SCRIPT,
    stdin: bytes | None = None,
    on_output: OnOutput | None = None,
    cancel: CancelToken | None = None,
    effect: bool = False,
) -> Heard:
    """Run a program on the host. Raises nothing for what a network, a host or ssh can do.

    `effect`: this is what the operation is about, and no question (crash points are for it alone).
    """
    nonce = secrets.token_hex(8)
    if effect:
        words = [*words[:2], "--report", nonce, *words[2:]]
    with _Log() as log:
        reports = Reports(nonce, on_output, effect, log.forget)
        connect = math.ceil(min(host.connect_s, timeout or host.connect_s))
        command = "exec sh -c " + shlex.join([script, "sh", nonce, *words])
        argv = [
            "ssh",
            "-E",
            log.path,
            *_FIXED,
            "-o",
            f"ConnectTimeout={connect}",
            *host.options,
            *("-S", "none"),  # the one option whose last value counts; another's connection would log nothing here
            "--",
            host.name,
            command,
        ]
        result = run(argv, timeout=timeout, stdin=stdin, on_output=reports, cancel=cancel, tool=tool, tail=_TAIL)
        lines = log.lines()
    reports.close()
    result = _without(result, reports)
    return Heard(result, _was_sent(result, lines), tuple(reports.heard), _observation(result, lines))


class _Log:
    """ssh's log, which has the command in it: a file with no name any more once the host has answered."""

    def __enter__(self) -> _Log:
        self._fd, self.path = tempfile.mkstemp(prefix="deadstop-ssh-")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.forget()
        os.close(self._fd)

    def forget(self) -> None:
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass

    def lines(self) -> list[str]:
        """All of it; [] for one that is too long to be read, and so says nothing."""
        size = os.fstat(self._fd).st_size
        return [] if size > _MOST_LOG else os.pread(self._fd, size, 0).decode(errors="replace").splitlines()


def _was_sent(result: ToolResult, lines: list[str]) -> bool | None:
    """ssh logs that it is authenticated, and then that it sends the command, each before it does the next thing."""
    if result.status in (Status.ERROR, Status.REFUSED) or result.environment == NOTHING_STARTED:
        return False  # there was no ssh
    if any(mark in line for line in lines for mark in ("Authenticated to ", "Sending command")):
        return True
    dead = result.status in (Status.COMPLETED, Status.SIGNALED) or (
        result.receipt is not None and result.receipt.survivors == 0
    )
    logged = bool(lines) and lines[0].startswith("OpenSSH_")  # the log is the one that we know
    return False if dead and logged else None


_CHATTER = ("debug", "OpenSSH_", "Authenticated", "Transferred", "Bytes per second", "Warning: Permanently added")


def _observation(result: ToolResult, lines: list[str]) -> str:
    """ssh's own last words; never the other side's."""
    said = [line for line in lines if line and not line.startswith(_CHATTER)]
    if said:
        return said[-1][:300]
    if result.error is not None:
        return str(result.error["message"])[:300]
    return "" if result.exit_code == 0 else f"ssh ended with {result.exit_code}"


@dataclass
class Reports:
    """Takes the lines of the host's own program out of the output, wherever in a line they begin."""

    nonce: str
    pass_on: OnOutput | None = None
    effect: bool = False
    at_first: Callable[[], None] | None = None
    heard: list[dict[str, Any]] = field(default_factory=list)
    removed: int = 0
    held: bytes = b""

    @property
    def mark(self) -> bytes:
        return f"@deadstop {self.nonce} ".encode()

    def __call__(self, stream: str, data: bytes) -> None:
        if stream == "stderr":
            data = self._sift(self.held + data)
        if data and self.pass_on is not None:
            self.pass_on(stream, data)

    def close(self) -> None:
        if self.held and self.pass_on is not None:
            self.pass_on("stderr", self.held)
        self.held = b""

    def _sift(self, data: bytes) -> bytes:
        out = b""
        while (start := data.find(self.mark)) >= 0 and (end := data.find(b"\n", start)) >= 0:
            out, line, data = out + data[:start], data[start + len(self.mark) : end], data[end + 1 :]
            self.removed += len(self.mark) + len(line) + 1
            self._hear(line)
        keep = len(data) - start if start >= 0 else _beginning(data, self.mark)
        keep = 0 if keep > _MOST_REPORT else keep
        cut = len(data) - keep
        self.held = data[cut:]
        return out + data[:cut]

    def _hear(self, line: bytes) -> None:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(document, dict) and isinstance(document.get("state"), str):
            if self.at_first is not None:
                self.at_first()
            self.heard.append(document)
            if self.effect and document["state"] in ("connected", "started", "finished"):
                crash.at(f"ssh.{document['state']}")


def _beginning(data: bytes, mark: bytes) -> int:
    """How many of the last bytes may be the beginning of a mark."""
    return next((size for size in range(min(len(mark) - 1, len(data)), 0, -1) if mark.startswith(data[-size:])), 0)


def _without(result: ToolResult, reports: Reports) -> ToolResult:
    raw, mark = result.stderr.raw, reports.mark
    while (start := raw.find(mark)) >= 0:
        end = raw.find(b"\n", start)
        raw = raw[:start] + (raw[end + 1 :] if end >= 0 else b"")
    stderr = Output(raw, max(len(raw), result.stderr.bytes_total - reports.removed), result.stderr.bytes_dropped)
    return replace(result, stderr=stderr)
