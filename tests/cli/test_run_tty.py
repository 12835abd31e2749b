# SPDX-License-Identifier: Apache-2.0
"""`--tty` gives a command a terminal of its own; with `--stdin` whoever sits at ours can answer it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from hosts import Host

# Of one kind with namespaces and one without; tests/cases and tests/library/test_supervisor_life.py have them all.
HOSTS = ("user", "no-userns-no-cgroup")

PIPES: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
LOOK = (
    "import os, fcntl; print([os.isatty(fd) for fd in (0, 1, 2)], os.get_terminal_size());"
    "print(os.tcgetpgrp(os.open('/dev/tty', os.O_RDWR)) == os.getpgrp())"
)


class Terminal:
    """A window with `deadstop` in it, as a terminal emulator has one: we are at the master's end."""

    def __init__(self, host: Host, *words: str, through: Sequence[str] = ()) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(30, 100)
        if os.geteuid() == 0:
            os.fchown(self.slave, host.uid, -1)
        self.before = self.modes()
        cli = through or [host.python, "-m", "deadstop", "run"]
        ends: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), self.slave)
        self.process = host.popen(["setsid", "--ctty", *cli, *words], **ends)
        self.seen = b""

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    @property
    def raw(self) -> bool:
        return not self.modes()[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def read_until(self, wanted: bytes, within: float = 15) -> None:
        """Read the screen until these bytes came; what was before them is dropped from `seen`."""
        end = time.monotonic() + within
        while wanted not in self.seen:
            left = end - time.monotonic()
            assert left > 0 and select.select([self.master], [], [], left)[0], (wanted, self.seen)
            self.seen += os.read(self.master, 65536)
        self.seen = self.seen.partition(wanted)[2]

    def end(self, within: float = 10) -> int:
        """The exit status; the screen is read on, so that nothing waits for us."""
        end = time.monotonic() + within
        while self.process.poll() is None:
            assert time.monotonic() < end, f"still running; seen: {self.seen!r}"
            if select.select([self.master], [], [], 0.01)[0]:
                self.seen += os.read(self.master, 65536)
        while select.select([self.master], [], [], 0)[0]:
            self.seen += os.read(self.master, 65536)
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)
        os.close(self.master)
        os.close(self.slave)


@contextmanager
def _terminal(host: Host, *words: str, **options: Any) -> Iterator[Terminal]:
    terminal = Terminal(host, *words, **options)
    try:
        yield terminal
    finally:
        terminal.close()


# -- a terminal for the command, none for us ----------------------------------------------------------------------


def test_the_command_has_a_terminal_and_controls_it(host: Host) -> None:
    result = host.run("--timeout", "10", "--tty", "--", host.python, "-c", LOOK)
    assert (result["status"], result["exit_code"]) == ("completed", 0), result["stdout"]["tail"]
    seen = "[True, True, True] os.terminal_size(columns=80, lines=24)\r\nTrue\r\n"
    assert result["stdout"]["tail"] == seen
    assert result["stderr"]["bytes_total"] == 0


def test_without_it_there_is_no_terminal_to_open(host: Host) -> None:
    """Not even ours: the command is in a session of its own, so a prompt on /dev/tty cannot reach a person."""
    script = "for fd in 0 1 2; do test -t $fd && echo $fd; done; (: < /dev/tty) 2>/dev/null && echo opened; tty"
    with _terminal(host, "--timeout", "10", "--", "bash", "-c", script) as terminal:
        assert terminal.end() == 1
        assert terminal.seen.startswith(b"not a tty")


def test_a_timeout_with_a_terminal_is_kept_and_proved(host: Host) -> None:
    script = "trap '' HUP TERM INT; echo on screen; sleep 40"
    result = host.run("--timeout", "1", "--tty", "--", "bash", "-c", script)
    assert (result["status"], result["stdout"]["tail"]) == ("timeout", "on screen\r\n")
    assert (result["receipt"]["survivors"], result["receipt"]["proof"]) == (0, host.proof)


def test_a_command_may_let_go_of_its_terminal_and_come_back(host: Host) -> None:
    """What many programs do at their end, file by file: it is no reason to hang up on them."""
    script = "exec <&- >&- 2>&-; sleep 0.3; exec > /dev/tty; echo back; exit 4"
    result = host.run("--timeout", "10", "--tty", "--", "bash", "-c", script)
    assert (result["status"], result["exit_code"], result["signal"]) == ("completed", 4, None)
    assert result["stdout"]["tail"] == "back\r\n"


def test_a_password_prompt_that_nobody_can_answer_ends_early(host: Host) -> None:
    script = "read -s -p 'Password: ' x; echo never"
    begin = time.monotonic()
    result = host.run("--timeout", "20", "--tty", "--on-input-wait", "kill", "--", "bash", "-c", script)
    assert time.monotonic() - begin < 8
    assert (result["status"], result["reason"]) == ("cancelled", "input_wait")
    assert result["evidence"]["diagnosis"]["kind"] == "waiting_for_input"
    assert result["stdout"]["tail"] == "Password: "
    assert result["receipt"]["survivors"] == 0


def test_a_prompt_on_dev_tty_that_nobody_can_answer_ends_early(one_host: Host) -> None:
    script = "import getpass; getpass.getpass('Passphrase: ')"
    result = one_host.run("--timeout", "20", "--tty", "--on-input-wait", "kill", "--", one_host.python, "-c", script)
    assert (result["status"], result["reason"]) == ("cancelled", "input_wait")
    assert result["duration_s"] < 8


# -- the window ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--tty"], ["--tty", "--stdin"]], ids=" ".join)
def test_the_window_size_is_ours_and_follows_it(host: Host, words: list[str]) -> None:
    """(Without --stdin our terminal keeps its modes, and makes two carriage returns of one.)"""
    script = "stty size; trap 'stty size; exit 9' WINCH; echo armed; while :; do sleep 0.05; done"
    with _terminal(host, "--timeout", "20", *words, "--", "bash", "-c", script) as terminal:
        terminal.read_until(b"30 100\r")
        terminal.read_until(b"armed\r")
        terminal.resize(41, 123)  # the kernel tells the foreground of our terminal
        terminal.read_until(b"41 123\r", within=5)
        assert terminal.end() == 9


def test_a_stream_of_window_changes_loses_nothing(one_host: Host) -> None:
    """The last size counts, and no signal disturbs the deadline."""
    script = "trap : WINCH; echo armed; while :; do stty size; sleep 0.05; done"
    with _terminal(one_host, "--timeout", "3", "--tty", "--", "bash", "-c", script) as terminal:
        terminal.read_until(b"armed\r")
        for rows in range(31, 61):
            terminal.resize(rows, 99)
        terminal.read_until(b"60 99\r", within=5)
        assert terminal.end() == 124


# -- somebody types -----------------------------------------------------------------------------------------------


def test_a_question_is_answered_and_echoed_once(host: Host) -> None:
    script = 'read -p "name? " name; echo "hello $name"; exit 5'
    with _terminal(host, "--timeout", "20", "--tty", "--stdin", "--", "bash", "-c", script) as terminal:
        terminal.read_until(b"name? ")
        assert terminal.raw
        terminal.type(b"bob\r")
        terminal.read_until(b"bob\r\nhello bob\r\n")
        assert terminal.end() == 5
        assert terminal.modes() == terminal.before


def test_a_password_is_not_echoed(one_host: Host) -> None:
    script = "import getpass; print('got', len(getpass.getpass('Password: ')))"
    words = ["--timeout", "20", "--tty", "--stdin", "--", one_host.python, "-c", script]
    with _terminal(one_host, *words) as terminal:
        terminal.read_until(b"Password: ")
        terminal.type(b"secret\r")
        terminal.read_until(b"\r\ngot 6\r\n")
        assert b"secret" not in terminal.seen
        assert terminal.end() == 0


def test_control_c_is_the_commands_own(host: Host) -> None:
    script = "trap 'echo interrupted; exit 7' INT; echo armed; while :; do sleep 0.05; done"
    with _terminal(host, "--timeout", "20", "--tty", "--stdin", "--", "bash", "-c", script) as terminal:
        terminal.read_until(b"armed\r\n")
        terminal.type(b"\x03")
        terminal.read_until(b"interrupted\r\n", within=5)
        assert terminal.end() == 7
        assert terminal.modes() == terminal.before


def test_without_stdin_control_c_cancels_and_the_modes_are_never_touched(one_host: Host) -> None:
    script = "trap 'echo interrupted' INT; echo armed; while :; do sleep 0.05; done"
    with _terminal(one_host, "--timeout", "20", "--tty", "--", "bash", "-c", script) as terminal:
        terminal.read_until(b"armed\r")
        assert terminal.modes() == terminal.before
        terminal.type(b"\x03")
        assert terminal.end() == 130
        assert b"cancelled by the caller" in terminal.seen
        assert b"interrupted" not in terminal.seen


def test_in_the_background_nothing_is_read_and_no_deadline_is_lost(one_host: Host) -> None:
    """A shell stops a job that reads its terminal from there; a stopped supervisor could keep no deadline."""
    cli = [one_host.python, "-m", "deadstop", "run", "--timeout", "1.5", "--tty", "--stdin", "--"]
    payload = ["bash", "-c", "echo armed; read x; echo never"]
    script = 'set -m; "$@" & wait $!; echo status $?'
    with _terminal(one_host, *cli, *payload, through=["bash", "-c", script, "bash"]) as terminal:
        terminal.read_until(b"armed\r")
        assert terminal.modes() == terminal.before
        terminal.type(b"for the shell\r")
        terminal.read_until(b"status 124\r", within=10)
        assert terminal.end() == 0
        assert b"never" not in terminal.seen


# -- the terminal is put back -------------------------------------------------------------------------------------


def test_the_modes_are_put_back_after_a_timeout(host: Host) -> None:
    script = r"stty raw -echo; trap '' TERM HUP; printf 'armed\r\n'; sleep 40"
    with _terminal(host, "--timeout", "1.5", "--tty", "--stdin", "--", "bash", "-c", script) as terminal:
        terminal.read_until(b"armed\r\n")
        assert terminal.raw
        assert terminal.end() == 124
        assert terminal.modes() == terminal.before
        assert b"deadstop: timed out after 1.5s" in terminal.seen
        # Written after the modes were put back: no stairs.
        assert b"\n" not in terminal.seen.replace(b"\r\n", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_modes_are_put_back_after_a_cancel(one_host: Host, number: signal.Signals) -> None:
    with _terminal(one_host, "--tty", "--stdin", "--", "bash", "-c", "echo armed; sleep 40") as terminal:
        terminal.read_until(b"armed\r\n")
        assert terminal.raw
        terminal.process.send_signal(number)
        assert terminal.end() == 130
        assert terminal.modes() == terminal.before


def test_the_modes_are_put_back_when_the_command_cannot_start(one_host: Host) -> None:
    with _terminal(one_host, "--tty", "--stdin", "--", "no-such-program") as terminal:
        assert terminal.end() == 127
        assert terminal.modes() == terminal.before


def test_an_output_limit_puts_the_modes_back(one_host: Host) -> None:
    words = ["--tty", "--stdin", "--output-limit", "100K", "--timeout", "20", "--", "yes"]
    with _terminal(one_host, *words) as terminal:
        assert terminal.end() == 122
        assert terminal.modes() == terminal.before


def test_a_window_that_is_closed_ends_the_run(host: Host) -> None:
    """The kernel hangs up the terminal: SIGHUP comes, and every use of the terminal fails."""
    with _terminal(host, "--timeout", "30", "--tty", "--stdin", "--", "bash", "-c", "echo armed; sleep 40") as terminal:
        terminal.read_until(b"armed\r\n")
        os.close(terminal.master)
        begin = time.monotonic()
        assert terminal.process.wait(timeout=10) != 0
        assert time.monotonic() - begin < 3
        host.no_survivors(within=1)
        terminal.master = os.open(os.devnull, os.O_RDONLY)  # for close()


# -- stdin that is no terminal ------------------------------------------------------------------------------------


def _piped(host: Host, given: bytes, *words: str, within: float = 20) -> tuple[int, bytes]:
    process = host.start("run", "--timeout", "10", "--tty", "--stdin", *words, **{**PIPES, "stdin": subprocess.PIPE})
    try:
        out, _ = process.communicate(given, timeout=within)
    finally:
        process.kill()
        process.communicate(timeout=10)
    return process.returncode, out


@pytest.mark.parametrize(
    ("given", "got"),
    [(b"", b""), (b"line\n", b"line\r\n"), (b"no end", b"no end"), (b"one\ntwo", b"one\r\ntwo")],
)
def test_the_end_of_a_pipe_is_the_terminals_end_of_file(host: Host, given: bytes, got: bytes) -> None:
    """Echoed by the terminal and printed by the command, line by line or all at once."""
    status, out = _piped(host, given, "--", "cat")
    lines = got.splitlines(keepends=True)
    assert status == 0
    assert out in (got * 2, b"".join(line * 2 for line in lines))


def test_a_pipe_larger_than_any_buffer_arrives_whole(one_host: Host) -> None:
    given = b"".join(b"%d\n" % number for number in range(100_000))
    status, out = _piped(one_host, given, "--", "bash", "-c", "wc -lc")
    assert status == 0
    assert out.split()[-2:] == [b"100000", str(len(given)).encode()]


def test_files_and_nothing_at_all_are_read_to_their_end(one_host: Host) -> None:
    path = one_host.folder / "answers"
    try:
        path.write_bytes(b"yes\n")
        for name, lines in ((os.fspath(path), "1"), (os.devnull, "0")):
            with open(name, "rb") as source:
                words = ["run", "--json", "--timeout", "10", "--tty", "--stdin", "--", "wc", "-l"]
                process = one_host.start(*words, **{**PIPES, "stdin": source})
                out, _ = process.communicate(timeout=15)
            result = json.loads(out)
            assert (result["status"], result["stdout"]["tail"].split()[-1]) == ("completed", lines)
    finally:
        path.unlink(missing_ok=True)


def test_a_command_that_never_reads_does_not_hold_up_its_deadline(host: Host) -> None:
    """The terminal takes a few KB; the rest stays with whoever writes, and we stay at the clock."""
    script = 'yes | "$@"'
    cli = [host.python, "-m", "deadstop", "run", "--json", "--timeout", "1", "--tty", "--stdin", "--"]
    words = ["bash", "-c", script, "bash", *cli, "bash", "-c", "stty -echo; sleep 40"]
    process = host.popen(words, **PIPES)
    out, _ = process.communicate(timeout=15)
    result = json.loads(out)
    assert (result["status"], result["receipt"]["survivors"]) == ("timeout", 0)
    assert result["duration_s"] < 1.8


def test_a_pipe_that_stays_open_does_not_hold_up_the_end(one_host: Host) -> None:
    read, write = os.pipe()
    try:
        process = one_host.start("run", "--tty", "--stdin", "--", "true", **{**PIPES, "stdin": read})
        process.communicate(timeout=10)
        assert process.returncode == 0
    finally:
        os.close(read)
        os.close(write)
