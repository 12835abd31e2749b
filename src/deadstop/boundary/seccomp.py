# SPDX-License-Identifier: Apache-2.0
"""The system call filter of the `sandbox` level: compiled per architecture, applied without a library.

`scripts/build-seccomp` makes the programs. A filter is inherited by fork and exec and cannot be taken off,
but joining a namespace does not bring it along: whoever starts a payload there applies it in that child.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence

__all__ = ["apply", "filters"]

_FOLDER = os.path.join(os.path.dirname(__file__), "filters")
_ARCHITECTURES = ("x86_64", "aarch64")  # aarch64 is cross-built and has not been run
_PROGRAMS = ("policy", "arguments")

_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_INSTRUCTION_BYTES = 8


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


# Loaded once, before any fork: a child between fork and exec should not open libraries.
_libc = ctypes.CDLL(None, use_errno=True)


def filters() -> list[bytes]:
    """Return the compiled programs for this machine, in the order in which `apply` takes them.

    Raises LookupError where none is shipped for the architecture (also for a 32-bit Python).
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES or sys.maxsize <= 2**32:
        raise LookupError(f"no seccomp filter for a {sys.maxsize.bit_length() + 1}-bit Python on {machine}")
    return [_read(f"{machine}.{program}.bpf") for program in _PROGRAMS]


def apply(programs: Sequence[bytes]) -> None:
    """Set no_new_privs and put the calling thread, and all it starts from now on, under every program.

    Other threads that already run stay outside. Raises OSError; no payload may be run after that.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, None)
    for program in programs:
        header = _Program(len(program) // _INSTRUCTION_BYTES, program)
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(header))


def _prctl(option: int, value: int, pointer: object) -> None:
    zero = ctypes.c_ulong(0)
    third = zero if pointer is None else pointer
    if _libc.prctl(option, ctypes.c_ulong(value), third, zero, zero) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"prctl({option})")


def _read(name: str) -> bytes:
    with open(os.path.join(_FOLDER, name), "rb") as file:
        return file.read()
