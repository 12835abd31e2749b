# SPDX-License-Identifier: Apache-2.0
"""A flood of requests: as many as the server takes, from clients in processes of their own.

Every other client asks for the list of all sandboxes, the others run `true` in the one that is named.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from deadstop.boundary.syscalls import die_with_parent

from .sandboxes_served import Client, Served

CLIENTS = 8


@contextmanager
def flooding(served: Served, sandbox: str) -> Iterator[None]:
    """So many clients, each in a process of its own, while the block runs."""
    words = [sys.executable, "-m", "benchmarks.sandboxes_flood", served.socket, sandbox]
    floods = [subprocess.Popen([*words, str(number % 2)], stdout=subprocess.PIPE) for number in range(CLIENTS)]
    try:
        for flood in floods:
            assert flood.stdout
            if flood.stdout.readline() != b"flooding\n":
                raise RuntimeError("a client of the flood did not start")
        yield
        if any(flood.poll() is not None for flood in floods):
            raise RuntimeError("a client of the flood has ended")
    finally:
        for flood in floods:
            flood.kill()
            flood.wait()
            assert flood.stdout
            flood.stdout.close()


def main(path: str, sandbox: str, runs: bool) -> None:
    die_with_parent()
    client, told = Client(path), False
    while True:
        if runs:
            client.run(sandbox, ["true"])
        else:
            client.ask("GET", "/sandboxes")
        if not told:
            os.write(1, b"flooding\n")
            told = True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "1")
