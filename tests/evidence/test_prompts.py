# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from deadstop.boundary.evidence import ended_on_prompt, prompt_loop


@pytest.mark.parametrize(
    "tail",
    [
        b"Proceed? [Y/n] ",
        b"Do you want to continue? [Y/n]",
        b"building...\nOverwrite (y/n)? ",
        b"Password: ",
        b"[sudo] password for me: ",
        b"Enter passphrase for key '/x/id_rsa': ",
        b"Username for 'https://example.com': ",
        b"package name: (x) ",
        b"Are you sure you want to continue connecting (yes/no/[fingerprint])? ",
        b"\x1b[1mWhich template?\x1b[0m ",
        b"? Project name: \xe2\x80\xba ",
        b">>> ",
        b"mysql> ",
        b"sqlite> ",
        b"user@host:~$ ",
        b"Press any key to continue . . . ",
        b"10%\r100%\rReady to go? ",
        b"Do you want to continue? [Y/n] Abort.\n",
        b"Proceed ([y]/n)? ",
        b"Replace file? [y]es, [n]o, [A]ll: ",
    ],
)
def test_unanswered_question_is_seen(tail: bytes) -> None:
    assert ended_on_prompt(tail)


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"done\n",
        b"all 12 tests passed",
        b'{"a": [1, 2]}',
        b"[1, 2, 3]",
        b"<html></html>",
        b"What is this? It is text.\n",
        b"is it on?\n",
        b"Traceback (most recent call last):\nEOFError: EOF when reading a line\n",
        b"progress 50%\r100%",
        b"The password: was changed\n",
        b"\xff\xfe\x00binary",
    ],
)
def test_ordinary_output_is_no_question(tail: bytes) -> None:
    assert ended_on_prompt(tail) is None


def test_the_prompt_itself_is_returned() -> None:
    assert ended_on_prompt(b"step 1\nProceed? [Y/n] ") == "Proceed? [Y/n]"
    assert len(ended_on_prompt(b"x" * 5000 + b" ok? ") or "") <= 200


@pytest.mark.parametrize(
    ("tail", "question"),
    [
        (b"* Project name: * Please enter some text.\n" * 5, "* Project name:"),
        (b"Continue? [y/N] " * 9, "Continue? [y/N]"),
        (b"Enter your name:\n" * 4, "Enter your name:"),
        (b"Password: Sorry, try again.\n" * 3, "Password:"),
        (b"half of a line: Your name: Please answer.\n" + b"Your name: Please answer.\n" * 3, "Your name:"),
    ],
)
def test_same_question_again_and_again(tail: bytes, question: str) -> None:
    assert prompt_loop(tail) == question


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"Project name: " + b"\n",
        b"ls: cannot access '/x': No such file or directory\n" * 9,
        b"curl: (7) Failed to connect\n" * 9,
        b"WARNING: Retrying after connection broken\n" * 9,
        b"2026-01-01 12:00:00 INFO polling: nothing\n" * 9,
        b"bash: line 1: nosuch: command not found\n" * 9,
        b"y\n" * 50,
        b"Downloading https://example.com/a\n" * 9,
    ],
)
def test_repeated_messages_are_no_prompt_loop(tail: bytes) -> None:
    assert prompt_loop(tail) is None


@pytest.mark.parametrize("tail", [b"a?" * 200_000, b"[y/" * 100_000, b"x: " * 100_000, b"(" * 400_000])
def test_hostile_output_costs_little(tail: bytes) -> None:
    import time

    start = time.thread_time()
    ended_on_prompt(tail)
    prompt_loop(tail)
    assert time.thread_time() - start < 0.05
