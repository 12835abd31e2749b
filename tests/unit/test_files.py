# SPDX-License-Identifier: Apache-2.0
"""The ends of files a caller named: bounded, of regular files only, through no link, and without waiting."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from deadstop.clock import monotonic
from deadstop.supervisor.files import TAIL_BYTES, read_tails


def tails(*paths: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    read_tails(tuple(map(str, paths)), found.append)
    return found


@pytest.mark.parametrize("size", [0, 1, TAIL_BYTES, TAIL_BYTES + 1, 3 * TAIL_BYTES])
def test_the_last_bytes_and_how_many_there_are(tmp_path: Path, size: int) -> None:
    text = "".join(chr(97 + number % 23) for number in range(size))
    (tmp_path / "log").write_text(text)
    [report] = tails(tmp_path / "log")
    assert report == {
        "path": f"{tmp_path}/log", "tail": text[-TAIL_BYTES:], "bytes_total": size, "truncated": size > TAIL_BYTES
    }  # fmt: skip


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"a\xffb")
    assert tails(tmp_path / "log")[0]["tail"] == "a\ufffdb"


def test_no_link_is_followed_anywhere_in_the_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/secret").write_text("secret")
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "real/link").symlink_to("secret")
    (tmp_path / "real/self").symlink_to("/proc/self")
    asked = ("folder/secret", "real/link", "real/self/stat", "real/../folder/secret")
    for report in tails(*(tmp_path / name for name in asked)):
        assert report == {"path": report["path"], "error": os.strerror(40)}
    assert tails(tmp_path / "real/secret")[0]["tail"] == "secret"


def test_a_link_of_the_kernel_is_not_followed_either() -> None:
    fd = os.memfd_create("secret")
    try:
        assert "error" in tails(Path(f"/proc/{os.getpid()}/fd/{fd}"))[0]
    finally:
        os.close(fd)


def test_nothing_waits_for_a_fifo_and_the_rest_is_read_in_order(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "log").write_text("text")
    began = monotonic()
    reports = tails(tmp_path / "fifo", tmp_path, tmp_path / "missing", Path("/dev/null"), tmp_path / "log")
    assert monotonic() - began < 1
    no_file = "not a regular file"
    assert [report.get("error") for report in reports] == [no_file, no_file, os.strerror(2), no_file, None]
    assert reports[-1]["tail"] == "text"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "log").write_text("text")
    before = os.listdir("/proc/self/fd")
    tails(tmp_path / "fifo", tmp_path / "log", tmp_path / "missing", tmp_path)
    assert os.listdir("/proc/self/fd") == before
