# SPDX-License-Identifier: Apache-2.0
"""What a caller gives to a call, made into what travels: the command, and descriptors of its folder and its input."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..errors import UsageError
from ..model import Command, Place
from .client import OnOutput
from .prepare import Options, host_cwd, prepare_command

Stdin = bytes | str | int | None


def command_of(
    argv: Sequence[str],
    options: Options,
    place: Place,
    python: dict[str, str],
    stdin: Stdin,
    on_output: OnOutput | None,
) -> Command:
    kind = "tty" if options.tty else "open" if isinstance(stdin, int) and not isinstance(stdin, bool) else "null"
    stream = on_output is not None
    return prepare_command(argv, options, place, python, stdin=kind, size=None, stream=stream)


class Given:
    """The folder and the input of a call as descriptors, for as long as it takes to hand them over."""

    def __init__(self, options: Options, stdin: Stdin) -> None:
        self._options, self._stdin = options, stdin
        self._open: list[int] = []

    def __enter__(self) -> tuple[int | None, int | None]:
        try:
            return self._descriptors()
        except BaseException:
            self.__exit__()
            raise

    def _descriptors(self) -> tuple[int | None, int | None]:
        cwd = None
        if self._options.isolation == "process":
            folder = host_cwd(self._options) or "."
            cwd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._open.append(cwd)
        return cwd, self._input()

    def _input(self) -> int | None:
        given = self._stdin
        if given is None:
            return None
        if isinstance(given, int) and not isinstance(given, bool):
            try:
                os.fstat(given)
            except OSError as problem:
                raise UsageError(f"stdin: {given} is not an open descriptor ({problem.strerror})") from None
            return given
        if isinstance(given, str):
            given = given.encode()
        if not isinstance(given, bytes):
            raise UsageError(f"stdin: {given!r:.60} is neither bytes, text, a descriptor nor None")
        memory = os.memfd_create("deadstop-stdin", os.MFD_CLOEXEC)
        self._open.append(memory)
        left = memoryview(given)
        while left:
            left = left[os.write(memory, left) :]
        reading = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY | os.O_CLOEXEC)
        self._open.append(reading)
        return reading

    def __exit__(self, *exc_info: object) -> None:
        for fd in self._open:
            os.close(fd)
