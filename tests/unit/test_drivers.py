# SPDX-License-Identifier: Apache-2.0
"""What is sent into sandboxes runs on every Python from 3.9 on, and on nothing but it."""

from __future__ import annotations

import ast
import base64
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deadstop.executor import answers
from deadstop.sandbox import drivers
from deadstop.sandbox.drivers import BOOT, call, shell
from deadstop.sandbox.session_answers import Answer, Marks, Reading, taken_out
from deadstop.worker.answers import PlainData

FOLDER = Path(drivers.__file__).parent
SENT = ("python", "call")
FOUND = [found for minor in range(9, 16) if (found := shutil.which(f"python3.{minor}"))]
# A name on the path may stand for one that is not there.
PYTHONS = [each for each in FOUND if not subprocess.run([each, "-c", ""], capture_output=True).returncode]
PYTHONS = PYTHONS or [sys.executable]


def told(python: str, name: str, stdin: bytes) -> tuple[bytes, bytes]:
    program = (FOLDER / f"{name}.py").read_bytes()
    command = [python, "-u", "-c", BOOT, str(len(program))]
    done = subprocess.run(command, input=program + stdin, capture_output=True, timeout=20)
    return done.stdout, done.stderr


@pytest.mark.parametrize("name", SENT)
def test_a_sent_file_is_python_3_9_and_imports_nothing_of_others(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text(), feature_version=(3, 9))
    imported = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    } | {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported - {"cloudpickle"} <= sys.stdlib_module_names
    assert not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))


@pytest.mark.parametrize("python", PYTHONS)
def test_the_session_driver(python: str) -> None:
    codes = [
        b"x = 20\nprint('out')",
        b"import asyncio\nawait asyncio.sleep(0)\nx + 1",
        b"1 / 0",
        b"raise SystemExit(4)",
    ]
    marks = [Marks.new() for _ in codes]
    stdin = b"".join(
        b"%s %010d\n%s%s\n" % (mark.begin, len(code), code, mark.end) for mark, code in zip(marks, codes, strict=True)
    )
    out, err = told(python, "python", stdin)
    found = []
    for mark in marks:
        reading = Reading(1000)
        reading.expect(mark, 1000)
        reading.feed("stdout", out)
        reading.feed("stderr", err)
        assert reading.done, err
        found.append((reading.answer(), reading.output()[0].raw))
    assert found[0] == (Answer(0), b"out\n") and found[3][0] == Answer(4, "SystemExit: 4")
    assert found[1][0].results == ({"type": "text/plain", "data": "21"},)
    assert found[2][0].exit == 1 and "ZeroDivisionError" in str(found[2][0].error) and "1 / 0" in str(found[2][0].error)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_call_driver(python: str) -> None:
    request: dict[str, Any] = {
        "mark": "m" * 32, "how": "source", "name": "add", "modules": {"math": "math"},
        "source": "def add(a, b):\n    print(where)\n    return math.floor(a) + b",
        "data": _text({"where": "here"}), "packed": _text(((1.5,), {"b": 2})),
    }  # fmt: skip
    out, _ = told(python, "call", json.dumps(request).encode())
    printed, answer = taken_out(out, b"m" * 32)
    assert printed == b"here\n" and answer == b"value 3"
    other = {"mark": "m" * 32, "how": "value", "version": [2, 7], "packed": ""}
    out, _ = told(python, "call", json.dumps(other).encode())
    assert str(taken_out(out, b"m" * 32)[1]).startswith("b'version 3 ")


def _text(value: object) -> str:
    return base64.b64encode(pickle.dumps(value, 4)).decode()


def test_a_driver_that_does_not_come_whole_does_nothing() -> None:
    command = [sys.executable, "-u", "-c", BOOT, "100"]
    done = subprocess.run(command, input=b"print('half')", capture_output=True, timeout=20)
    assert done.returncode == 1 and done.stdout == b"" and b"did not come whole" in done.stderr


VALUES: list[Any] = [
    None, True, 0, -(1 << 63), 1 << 64, -(1 << 70), 1.5, float("-inf"), "", "\u2028\ud800", b"\0", bytearray(b"a"),
    [1, [2]], (1, ()), {1, "a"}, frozenset({2}), {"a": {(1, b"k"): [None]}},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_plain_data_is_what_a_sandboxed_worker_sends(value: Any) -> None:
    text = json.dumps(call.plain(value, 0)).encode()
    assert text == PlainData().value(value)
    assert answers.load("sandbox", text) == value


def test_a_shell_request_has_the_second_mark_after_the_code() -> None:
    marks = Marks.new()
    text = shell.request(b"echo 'a", marks.begin, marks.end)
    assert text.index(marks.begin) < text.index(b"echo 'a\0") < text.index(marks.end)
