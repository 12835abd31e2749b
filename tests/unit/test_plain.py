# SPDX-License-Identifier: Apache-2.0
"""Terminal output as plain text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deadstop.plain import plain_text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("nothing to do\n\tat all é", "nothing to do\n\tat all é"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred\x9bm", "red"),
        ("\x1b]0;title\x07shown", "shown"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2\x1b\\after", "after"),
        ("\x1b]0;never closed\nthe next line stays", "\nthe next line stays"),
        ("\x1b(Bascii\x1b=\x1b7", "ascii"),
        ("bell\x07 nul\x00 vt\x0b ff\x0c del\x7f nel\x85", "bell nul vt ff del nel"),
        ("cut off \x1b[3", "cut off "),
        ("cut off \x1b", "cut off "),
        ("50%\r100%", "100%"),
        ("100%\r50%", "50%%"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("working...\r\x1b[Kdone", "done"),
        ("working...\x1b[2K\rdone", "done"),
        ("working...\x1b[1K\rdone", "done"),
        ("working...\x1b[1G\x1b[0Kdone", "done"),
        ("long line\rshort\x1b[K", "short"),
        ("12345\rab\x1b[1K", "ab345"),
        ("12345\r\x1b[2Kab", "ab"),
        ("a\x08a b\x08\x08\x08", "a b"),
        ("_\x08x_\x08y", "xy"),
        ("abc\x08\x08\rX", "Xbc"),
        ("blank   \rdone", "donek"),
        ("first   \r        \rx", "x"),
    ],
)
def test_what_a_person_would_have_read(text: str, plain: str) -> None:
    assert plain_text(text) == plain


_PIECES = st.sampled_from(
    ["\x1b", "\x1b[", "\x1b]", "\x9b", "\x90", "\r", "\x08", "\n", "K", "2K", "m", ";", "\x07", "ab"]
)


@settings(deadline=None)
@given(st.lists(st.one_of(_PIECES, st.text(max_size=3))).map("".join))
def test_no_control_character_is_left(text: str) -> None:
    plain = plain_text(text)
    assert "\x1b" not in plain
    assert not [c for c in plain if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) <= 0x9F]
    assert plain_text(plain) == plain
    assert plain.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "piece",
    [
        "\x1b",
        "\r",
        "\x08",
        "\x1b[",
        "\x1b]",
        "\x1bP;",
        "\x9b",
        "\x90",
        "\r\x08",
        "\x1b[;",
        "x\x1b[1K",
        "ab\x1b[2K",
        "\x00",
    ],
)
def test_hostile_runs_take_milliseconds(piece: str) -> None:
    text = "a" * 32768 + piece * (65536 // len(piece))
    plain_text("\x1b")
    fastest = min(_seconds(text) for _ in range(3))
    assert fastest < 0.25  # measured 3 to 30 ms; a quadratic scan of 64 KiB takes seconds


def _seconds(text: str) -> float:
    before = time.process_time()
    plain_text(text)
    return time.process_time() - before
