# SPDX-License-Identifier: Apache-2.0
"""How a forked or started process becomes a call worker. Nothing here returns."""

from __future__ import annotations

import faulthandler
import gc
import marshal
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from .. import wire
from ..boundary import payload, syscalls
from ..packing import STACKS_SIGNAL, Port
from . import streams
from .answers import Pickled, PlainData
from .calls import Calls

_OWN_DEFAULTS = {
    signal.SIGPIPE: signal.SIG_IGN,
    signal.SIGXFSZ: signal.SIG_IGN,
    signal.SIGINT: signal.default_int_handler,
}


def _nothing() -> None:
    pass


def start_forked(spec: int, stdio: list[int], error_fd: int, *, enter: Callable[[], None] = _nothing) -> NoReturn:
    """As `payload.start`, without a new program: `stdio` is the data socket, stdout, stderr."""
    step = "enter"
    try:
        enter()
        order: dict[str, Any] = marshal.loads(os.pread(spec, os.fstat(spec).st_size, 0))
        step = "session"
        os.setsid()
        reset_signals()
        data = socket.socket(fileno=stdio[0])
        step = "streams"
        _place(data.fileno(), stdio[1], stdio[2], error_fd)
        step = "limits"
        os.umask(order["umask"])
        payload.restore_priority(order["nice"], order["oom_score_adj"])
        payload.limit(order)
        syscalls.show_to_peers()
    except OSError as problem:
        os.write(error_fd, marshal.dumps((problem.errno or 0, step)))
        os._exit(127)
    os.close(error_fd)
    syscalls.set_process_name("deadstop-worker")
    gc.enable()
    be_worker(data)


def start_in_sandbox() -> NoReturn:
    """Entry of the interpreter that a sandbox runs: stdin is the data socket."""
    data = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    streams.install()
    be_worker(data)


def be_worker(data: socket.socket) -> NoReturn:
    """The first packet says how to live here and brings the descriptor for stacks; calls follow."""
    try:
        packet, fds = wire.receive_fds(data, 64, 2)
        if not packet:
            os._exit(0)
        settings: dict[str, Any] = marshal.loads(os.pread(fds[0], os.fstat(fds[0]).st_size, 0))
        os.close(fds.pop(0))
        faulthandler.enable(file=2)  # a native crash leaves its Python stack in the tail
        faulthandler.register(STACKS_SIGNAL, file=fds[0], all_threads=True, chain=False)
        _settle(settings)
        sandboxed = settings["level"] == "sandbox"
        answers = PlainData() if sandboxed else Pickled()
        own_pids = sandboxed or settings["own_pids"]
        calls = Calls(Port(data), answers, own_pids=own_pids)
        data.send(b"settled")
        calls.serve()
    except OSError:
        os._exit(1)  # the caller is gone
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(70)


def _settle(settings: dict[str, Any]) -> None:
    if settings["sys_path"] is not None:
        sys.path[:] = settings["sys_path"]
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # otherwise every fork draws the same numbers


def reset_signals() -> None:
    """As a fresh interpreter has them."""
    payload.reset_signals()
    for number, action in _OWN_DEFAULTS.items():
        signal.signal(number, action)  # type: ignore[arg-type]


def _place(data: int, out: int, err: int, error_fd: int) -> None:
    for target, fd in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, err)):
        os.dup2(fd, target, inheritable=True)
    syscalls.close_all_except({0, 1, 2, data, error_fd})
