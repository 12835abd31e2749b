# SPDX-License-Identifier: Apache-2.0
"""Frames, and descriptors that travel with them."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadstop import wire

frames = st.lists(st.tuples(st.binary(min_size=1, max_size=1), st.binary(max_size=300)), max_size=12)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    left.setblocking(False)
    with left, right:
        yield left, right


@given(sent=frames, cuts=st.lists(st.integers(1, 400), max_size=40))
def test_any_chunking_parses_the_same(sent: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(wire.frame(kind, data) for kind, data in sent)
    parser, got = wire.Parser(), []
    for size in [*cuts, len(stream) + 1]:
        got += parser.feed(stream[:size])
        stream = stream[size:]
    assert got == sent


@given(sent=frames)
def test_one_byte_at_a_time(sent: list[tuple[bytes, bytes]]) -> None:
    parser, got = wire.Parser(), []
    for byte in b"".join(wire.frame(kind, data) for kind, data in sent):
        got += parser.feed(bytes([byte]))
    assert got == sent


@given(head=frames, cut=st.integers(1, 4))
def test_an_unfinished_frame_gives_nothing_yet(head: list[tuple[bytes, bytes]], cut: int) -> None:
    stream = b"".join(wire.frame(kind, data) for kind, data in head) + wire.frame(b"X", b"1234")[:-cut]
    assert wire.Parser().feed(stream) == head


def test_an_oversize_frame_is_refused_before_it_is_stored() -> None:
    header = (wire.MAX_FRAME + 1).to_bytes(4, "big") + b"R"
    with pytest.raises(ValueError, match=str(wire.MAX_FRAME + 1)):
        wire.Parser().feed(header)
    assert wire.Parser().feed(wire.MAX_FRAME.to_bytes(4, "big") + b"R") == []  # the largest is waited for


def test_an_oversize_frame_behind_good_ones_is_refused_too() -> None:
    with pytest.raises(ValueError):
        wire.Parser().feed(wire.frame(b"R", b"fine") + b"\xff\xff\xff\xff" + b"R")


def test_a_large_frame_is_parsed_in_time_linear_in_its_size() -> None:
    import time

    stream = wire.frame(b"O", bytes(16 << 20))
    parser, began = wire.Parser(), time.monotonic()
    got = [frame for start in range(0, len(stream), 65536) for frame in parser.feed(stream[start : start + 65536])]
    assert [(kind, len(data)) for kind, data in got] == [(b"O", 16 << 20)]
    assert time.monotonic() - began < 2


def test_a_json_frame_is_json_of_ascii() -> None:
    [(kind, body)] = wire.Parser().feed(wire.json_frame(wire.RUN, {"word": "é\udcff", "n": [1, None]}))
    assert kind == wire.RUN
    assert body.isascii() and json.loads(body) == {"word": "é\udcff", "n": [1, None]}


def test_the_kinds_are_single_bytes_and_differ_within_a_direction() -> None:
    down = [wire.RUN, wire.OPEN, wire.EXEC, wire.CANCEL, wire.HURRY, wire.KILL, wire.PING]
    up = [wire.STARTED, wire.OUTPUT, wire.DONE, wire.OPENED, wire.GONE, wire.FAILED, wire.PONG]
    for kinds in (down, up):
        assert {len(kind) for kind in kinds} == {1}
        assert len(set(kinds)) == len(kinds)


def test_receive_says_nothing_yet_data_and_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    assert wire.receive(left) is None
    right.sendall(b"abc")
    assert wire.receive(left) == (b"abc", [])
    right.close()
    assert wire.receive(left) == (b"", [])


def test_received_descriptors_work_and_do_not_survive_an_exec(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    source = os.memfd_create("hello")
    os.write(source, b"hello")
    inheritable = os.dup(source)
    os.set_inheritable(inheritable, True)
    socket.send_fds(right, [b"two"], [source, inheritable])
    got = wire.receive(left)
    assert got is not None
    data, fds = got
    try:
        assert data == b"two" and len(fds) == 2
        assert not any(os.get_inheritable(fd) for fd in fds)
        assert os.pread(fds[0], 10, 0) == b"hello"
    finally:
        for fd in (*fds, source, inheritable):
            os.close(fd)


def test_a_peer_that_resets_is_the_end_and_not_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    left.send(b"unread")
    right.close()  # with data unread: a reset for the other side
    assert wire.receive(left) == (b"", [])


def test_receive_fds_closes_on_exec_and_takes_no_more_than_asked(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    source = os.memfd_create("hello")
    os.write(source, b"hello")
    os.set_inheritable(source, True)
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(right, [b"three"], [source] * 3)
    data, fds = wire.receive_fds(left, 16, 2)
    try:
        assert data == b"three" and len(fds) == 2
        assert len(os.listdir("/proc/self/fd")) == before + 2  # none came in unnoticed
        assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in fds)
        assert [os.pread(fd, 10, 0) for fd in fds] == [b"hello", b"hello"]
    finally:
        for fd in (*fds, source):
            os.close(fd)
