# SPDX-License-Identifier: Apache-2.0
"""What a session's driver writes, taken apart: whatever the pieces it comes in, whatever is printed around it."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from deadstop.sandbox.session_answers import (
    ANSWER_BYTES,
    FRAME_BYTES,
    Answer,
    Damaged,
    Marks,
    Reading,
    answer_of,
    taken_out,
)

MARKS = Marks(b"b" * 32, b"e" * 32)


def frame(mark: bytes, text: bytes = b"", *, more: bool = False) -> bytes:
    return b"\x1e" + mark + b" " + (b"+" if more else b".") + text + b"\n"


def reading(tail: int = 1000) -> Reading:
    made = Reading(tail)
    made.expect(MARKS, tail)
    return made


def test_a_run_has_what_lies_between_its_marks() -> None:
    found = reading()
    found.feed("stdout", b"old" + frame(MARKS.begin) + b"mine\n" + frame(MARKS.end, b"3") + b"later")
    found.feed("stderr", frame(MARKS.begin) + b"err" + frame(MARKS.end))
    assert found.done and found.answer() == Answer(3)
    assert [each.raw for each in found.before()] == [b"old", b""]
    assert [each.raw for each in found.output()] == [b"mine\n", b"err"]
    found.expect(Marks.new(), 1000)
    assert [each.raw for each in found.before()] == [b"later", b""]
    assert reading().done is False


@pytest.mark.parametrize("seed", range(20))
def test_it_does_not_matter_how_it_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    printed = bytes(chance.choice(b"\x1eb e.+\n") for _ in range(500))
    answer = json.dumps({"exit": 0, "results": [{"type": "text/plain", "data": "x" * 300}]}).encode()
    text = (
        frame(MARKS.begin)
        + printed
        + frame(MARKS.end, answer[:100], more=True)
        + b"\x1ebg"
        + frame(MARKS.end, answer[100:])
    )
    found = reading(10_000)
    found.feed("stderr", frame(MARKS.begin) + frame(MARKS.end))
    while text:
        size = chance.randint(1, 40)
        found.feed("stdout", text[:size])
        text = text[size:]
    assert found.done and found.answer().results[0]["data"] == "x" * 300
    assert found.output()[0].raw == printed + b"\x1ebg"  # something else printed between two frames


def test_output_is_kept_from_its_end_and_counted() -> None:
    found = reading(100)
    found.feed("stdout", frame(MARKS.begin))
    for _ in range(1000):
        found.feed("stdout", b"x" * 999 + b"\n")
    out = found.output()[0]
    assert (len(out.raw), out.bytes_total, out.bytes_dropped) == (100, 1_000_000, 999_900)


def test_other_marks_are_output() -> None:
    found = reading()
    found.feed("stdout", frame(MARKS.begin) + frame(b"f" * 32, b"0"))
    assert not found.done and found.output()[0].raw == frame(b"f" * 32, b"0")


def test_the_second_mark_does_not_count_before_the_first() -> None:
    found = reading()
    found.feed("stdout", frame(MARKS.end, b"0"))
    assert not found.done and found.before()[0].raw == frame(MARKS.end, b"0")


def test_what_looked_like_a_frame_is_output_once_nothing_follows() -> None:
    found = reading()
    found.feed("stdout", frame(MARKS.begin) + b"a\x1e" + MARKS.end[:5])
    assert found.output()[0].raw == b"a"
    found.flush()
    assert found.output()[0].raw == b"a\x1e" + MARKS.end[:5]


@pytest.mark.parametrize(
    "text",
    [b"\x1e" + b"b" * 32 + b" ?\n", b"\x1e" + b"b" * 32 + b" " + b"x" * FRAME_BYTES],
    ids=["no kind", "no end"],
)
def test_a_broken_frame_is_damage(text: bytes) -> None:
    with pytest.raises(Damaged):
        reading().feed("stdout", text)


def test_an_endless_answer_is_damage() -> None:
    found = reading()
    found.feed("stdout", frame(MARKS.begin))
    piece = frame(MARKS.end, b"x" * 4000, more=True)
    with pytest.raises(Damaged, match="more than"):
        found.feed("stdout", piece * (ANSWER_BYTES // 4000 + 1))


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"{", b"[" * 100_000, b"null", b"-1", b"256", b"1.5", b"true", b"9" * 5000, b"{}", b'{"exit": "0"}',
        b'{"exit": 0, "error": 1}', b'{"exit": 0, "results": 1}', b'{"exit": 0, "results": [1]}',
        b'{"exit": 0, "results": [{"type": 1, "data": ""}]}', b'{"exit": 0, "results": [{"type": "a"}]}',
        json.dumps({"exit": 0, "results": [{"type": "a", "data": ""}] * 257}).encode(), b"\xff",
    ],
)  # fmt: skip
def test_what_no_driver_says_is_damage(answer: bytes) -> None:
    with pytest.raises(Damaged):
        answer_of(answer)


@pytest.mark.parametrize("answer", [{"exit": 1, "error": "no"}, {"exit": 0, "results": None, "more": 1}])
def test_answers(answer: dict[str, Any]) -> None:
    found = answer_of(json.dumps(answer).encode())
    assert (found.exit, found.error, found.results) == (answer["exit"], answer.get("error"), ())


def test_marks_are_not_guessed() -> None:
    one, other = Marks.new(), Marks.new()
    assert len({one.begin, one.end, other.begin, other.end}) == 4 and len(one.end) == 32


def test_taken_out() -> None:
    mark = b"m" * 32
    data = b"before" + frame(mark, b"one ", more=True) + b"between" + frame(mark, b"two") + b"after"
    assert taken_out(data, mark) == (b"beforebetweenafter", b"one two")
    assert taken_out(b"only this", mark) == (b"only this", None)
    assert taken_out(b"", mark) == (b"", None)
    assert taken_out(b"x" + frame(mark, b"half", more=True), mark) == (b"x", None)


def test_many_small_frames_cost_no_more_than_their_bytes() -> None:
    mark = b"m" * 32
    data = frame(mark, b"x", more=True) * 150_000
    begun = time.process_time()
    assert taken_out(data, mark) == (b"", None)
    assert time.process_time() - begun < 2.0  # as the square of their number it would be minutes
