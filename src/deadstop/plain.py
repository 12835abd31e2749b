# SPDX-License-Identifier: Apache-2.0
"""What a person would have read off the terminal, as plain text."""

from __future__ import annotations

import re

__all__ = ["plain_text"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# Linear on any input: each alternative starts with a control character, its repeats run over disjoint
# sets and everything after the first character is optional, so nothing is ever tried twice.
# A string (OSC, DCS, ...) that is never closed ends with its line: it must not swallow the output after it.
_TOKEN = re.compile(
    r"""
      (?P<erase> (?:\x1b\[|\x9b) (?P<how>[0-2]?) K )
    | (?P<home> (?:\x1b\[|\x9b) 1? G )
    | (?P<back> [\r\x08]+ )
    | (?P<drop>
          [\x1b\x9b]+ (?=[\x1b\x9b])                                   # begun again and again
        | (?:\x1b\[|\x9b) [0-?]* [\x20-/]* [@-~]?                      # CSI
        | (?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])                        # OSC, DCS, SOS, PM, APC
          [^\x07\x1b\x9c\r]* (?:\x07|\x1b\\|\x9c)?
        | \x1b [\x20-/]* [0-~]?                                        # other escapes
        | [\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x8f\x91-\x97\x99\x9a\x9c]+
      )
    """,
    re.VERBOSE,
)


def plain_text(text: str) -> str:
    """`text` without terminal escapes and control characters (but newline and tab).

    Carriage returns, backspaces and erase-line act as on a terminal, line by line, so a progress bar leaves
    its last state. Movements between lines are dropped, not carried out. Takes linear time on any input.
    """
    if _CONTROL.search(text) is None:
        return text
    return "\n".join(_plain_line(line) if _CONTROL.search(line) else line for line in text.split("\n"))


def _plain_line(line: str) -> str:
    cells: list[str] = []
    cursor = 0
    moved = False
    position = 0
    for token in _TOKEN.finditer(line):
        cursor = _write(cells, cursor, line[position : token.start()])
        position = token.end()
        match token.lastgroup:
            case "home":
                cursor, moved = 0, True
            case "back":
                back = token.group()
                cursor, moved = 0 if "\r" in back else max(0, cursor - len(back)), True
            case "erase":
                cursor, moved = _erase(cells, cursor, token.group("how")), True
    _write(cells, cursor, line[position:])
    shown = "".join(cells)
    return shown.rstrip(" ") if moved else shown  # blanks that an overwriting line left behind


def _write(cells: list[str], cursor: int, run: str) -> int:
    end = cursor + len(run)
    cells[cursor:end] = run
    return end


def _erase(cells: list[str], cursor: int, how: str) -> int:
    """Erase in the line, and return the cursor.

    The whole line (2) and everything up to the cursor at its end (1) empty it; filling with blanks
    instead would be true to the terminal but quadratic on hostile input, and blank.
    """
    if how in ("", "0"):
        del cells[cursor:]
    elif how == "2" or cursor == len(cells):
        cells.clear()
        return 0
    return cursor
