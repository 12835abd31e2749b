# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per verb, loaded when it is the one asked for."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from .._version import __version__
from ..errors import DeadstopError

VERBS = {
    "run": "run a command that always ends, and say how it ended",
    "serve": "keep sandboxes for clients, each with a life of its own",
    "create": "make a sandbox",
    "exec": "run a command in a sandbox, and say how it ended",
    "ps": "list the sandboxes, or the commands of one",
    "logs": "what the commands of a sandbox printed, also after its end",
    "extend": "give a sandbox more life",
    "pause": "freeze a sandbox; its life goes on passing",
    "resume": "let a paused sandbox go on, or bring an ended one back from its last snapshot",
    "snapshot": "keep the files of a sandbox, or list what is kept",
    "fork": "make twins of a sandbox",
    "kill": "end sandboxes now, with receipts",
    "cp": "copy files into a sandbox, or out of it",
    "template": "list, build and delete what sandboxes are made from",
    "templates": "list what sandboxes are made from",
    "ops": "operations: what calls with effects have done, and what is not known yet",
    "audit": "whether every operation is accounted for, and whether the record is what was written",
    "doctor": "what this host can give: levels, proofs, limits, and what is missing",
    "schema": "print the JSON schema of a result",
    "completion": "print a completion script for a shell",
}
FAILED = 125


class Parser(argparse.ArgumentParser):
    """Errors are one line and exit status 125: lower ones belong to the command that is run."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(FAILED, f"{self.prog}: {message}; see '{self.prog} --help'\n")


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser with every verb's options, or with those of one verb (start-up time)."""
    parser = Parser(prog="deadstop", description="Every tool call ends, and you know how it ended.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"deadstop {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for name, text in VERBS.items():
        if only in (None, name):
            verb = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
            importlib.import_module(f".{name}", __name__).add_arguments(verb)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status. Errors of ours are one line on stderr."""
    _occupy_standard_descriptors()
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser(words[0] if words and words[0] in VERBS else None)
    arguments = parser.parse_args(words)
    try:
        status: int = importlib.import_module(f".{arguments.verb}", __name__).execute(arguments)
        return status
    except DeadstopError as problem:
        print(f"deadstop: {problem}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        return 128 + 13
    except Exception:
        import traceback

        print(f"deadstop: internal error, please report it:\n{traceback.format_exc()}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130


def _occupy_standard_descriptors() -> None:
    """A closed 0, 1 or 2 would become one of our own pipes."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
