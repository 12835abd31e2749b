# SPDX-License-Identifier: Apache-2.0
"""Whether calls of one batch would write to overlapping paths, guessed from the names of tools and arguments."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from ._praisonai_types import ToolCall

_WRITERS = frozenset(
    "write_file edit_file patch_file create_file save_file update_file delete_file move_file copy_file file_write "
    "file_edit file_create file_delete mkdir rmdir skill_manage".split()
)
_WRITE_WORDS = tuple(
    "write edit patch create save update delete remove mkdir rmdir move copy persist modify append".split()
)
_READ_WORDS = frozenset(
    "read get fetch load list ls search find query select scan inspect view show describe head tail cat".split()
)
_PATH_ARGUMENTS = frozenset(
    "path file_path filepath filename file dest destination target source src output output_path directory dir "
    "folder".split()
)
_CONTENT_ARGUMENTS = frozenset("content data text body patch diff value".split())


def _may_write(call: ToolCall) -> bool:
    """A known writer; else not if its first word reads; else if a word says so, or it takes a path and a content."""
    name = str(call.function_name)
    if name in _WRITERS:
        return True
    name = name.lower()
    if name in _READ_WORDS or (name.split("_", 1)[0] in _READ_WORDS and "_" in name):
        return False
    given = (call.arguments or {}).keys()
    return any(word in name for word in _WRITE_WORDS) or bool(given & _PATH_ARGUMENTS and given & _CONTENT_ARGUMENTS)


def extract_paths(tool_call: ToolCall) -> list[Path]:
    """The paths, absolute and without links, that the call may write to."""
    if not _may_write(tool_call):
        return []
    found = []
    for name, value in (tool_call.arguments or {}).items():
        if name in _PATH_ARGUMENTS and isinstance(value, str | os.PathLike) and str(value).strip():
            try:
                found.append(Path(value).resolve())
            except (OSError, ValueError, RuntimeError):  # not a path, or a loop of links
                continue
    return found


def paths_conflict(path1: Path, path2: Path) -> bool:
    """Whether they are the same, or one lies below the other."""
    return path1 == path2 or path1 in path2.parents or path2 in path1.parents


def detect_path_conflicts(tool_calls: list[ToolCall]) -> bool:
    """Whether two paths that these calls write to overlap. Never for a single call."""
    if len(tool_calls) < 2:
        return False
    # Sorted by their parts, what lies below a path comes right after it: neighbours decide.
    paths = sorted(path.parts for call in tool_calls for path in extract_paths(call))
    return any(lower[: len(upper)] == upper for upper, lower in pairwise(paths))


has_write_conflicts = detect_path_conflicts


def group_by_conflicts(tool_calls: list[ToolCall]) -> list[list[ToolCall]]:
    """Groups without a conflict inside, to be run one after another. Of two calls in conflict the later stays later."""
    groups: list[list[ToolCall]] = []
    for call in tool_calls:
        in_the_way = [index for index, group in enumerate(groups) if detect_path_conflicts([*group, call])]
        index = in_the_way[-1] + 1 if in_the_way else 0
        if index == len(groups):
            groups.append([])
        groups[index].append(call)
    return groups
