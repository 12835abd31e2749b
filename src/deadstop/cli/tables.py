# SPDX-License-Identifier: Apache-2.0
"""Tables: with rich on a terminal where it is installed, aligned text otherwise."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_STYLES = {"running": "green", "creating": "cyan", "paused": "yellow", "expiring": "yellow", "ended": "dim"}


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Control characters in a cell are shown, not obeyed: names and commands come from whoever made them."""
    clean = [[shown(cell) for cell in row] for row in rows]
    if not clean:
        print(empty)
    elif not (sys.stdout.isatty() and _with_rich(columns, clean)):
        _plain(columns, clean)


def _with_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in ("ID", "STATUS", "LEFT", "EXEC"))
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    Console().print(table)
    return True


def _plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def shown(text: str) -> str:
    """Control characters as they are written in a program."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
