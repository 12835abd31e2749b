# SPDX-License-Identifier: Apache-2.0
"""Which folders a sandbox is shown: the current one, those asked for, and the Python a virtual environment rests on."""

from __future__ import annotations

import os
import sys

from ..boundary.policy import Bind
from ..errors import UsageError

# Bound as a whole they would hand over the system, or hide the sandbox's own folders of that name.
SYSTEM_FOLDERS = (
    "/", "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/boot", "/dev", "/proc", "/sys", "/run", "/var", "/tmp",
    "/home", "/opt", "/srv", "/mnt", "/media",
)  # fmt: skip


def sandbox_binds(
    current: str | None, bind: tuple[str, ...], ro_bind: tuple[str, ...]
) -> tuple[list[tuple[str, str, bool]], dict[str, str]]:
    """(host path, path inside, writable) in mounting order, and the variables of a virtual environment found.

    `current` is the folder the command is started in, or None to show none. A later bind of the same path wins.
    """
    wanted: dict[str, tuple[str, bool]] = {}
    if current is not None:
        if current in SYSTEM_FOLDERS:
            raise UsageError(f"a sandbox cannot be given {current} as its current folder: change to a project's folder")
        wanted[current] = (current, True)
    for texts, writable in ((ro_bind, False), (bind, True)):
        for text in texts:
            source, target = parse_bind(text)
            wanted[target] = (source, writable)
    environment, interpreter = _virtual_environment(current, wanted)
    for path in interpreter:
        wanted.setdefault(path, (path, False))
    binds = [(source, target, writable) for target, (source, writable) in sorted(wanted.items())]
    return binds, environment


def parse_bind(text: str) -> tuple[str, str]:
    """`SOURCE` or `SOURCE:TARGET`, checked: the source exists, the target is an absolute path."""
    source, separator, target = text.partition(":")
    path = os.path.realpath(source)
    if not source or not os.path.exists(path):
        raise UsageError(f"bind: {source or text!r} does not exist; give SOURCE or SOURCE:TARGET")
    target = target if separator else os.path.abspath(source)
    try:
        Bind(path, target, False)
    except ValueError as problem:
        raise UsageError(f"bind: {problem}") from None
    return path, target


def _virtual_environment(current: str | None, wanted: dict[str, tuple[str, bool]]) -> tuple[dict[str, str], list[str]]:
    """The active virtual environment if it is visible inside, else `.venv` of the current folder."""
    candidates = [os.environ.get("VIRTUAL_ENV", ""), f"{current}/.venv" if current else ""]
    for folder in map(os.path.abspath, filter(None, candidates)):
        visible = any(folder == path or folder.startswith(path + "/") for path in wanted)
        home = _python_home(folder)
        if visible and home:
            path = f"{folder}/bin:/usr/local/bin:/usr/bin:/bin"
            return {"VIRTUAL_ENV": folder, "PATH": path}, _outside_usr(home)
    return {}, []


def python_folders() -> list[str]:
    """This interpreter's own folders, where a sandbox does not show them already."""
    return _outside_usr(os.path.dirname(os.path.join(sys.base_prefix, "bin", "python3"))) + (
        [sys.prefix] if sys.prefix != sys.base_prefix else []
    )


def _python_home(folder: str) -> str | None:
    try:
        with open(f"{folder}/pyvenv.cfg", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition("=")
                if key.strip() == "home":
                    return value.strip()
    except (OSError, UnicodeDecodeError):
        pass
    return None


def _outside_usr(home: str) -> list[str]:
    """The interpreter's folders, as named and as they really are, where /usr does not show them already.

    The file that names them lies in a folder that a payload may have written to: only what is a Python installation is
    shown, and never a folder that has the user's own in it.
    """
    prefixes = dict.fromkeys([os.path.dirname(home), os.path.dirname(os.path.realpath(home))])
    return [path for path in prefixes if not path.startswith("/usr/") and _is_installation(path)]


def _is_installation(path: str) -> bool:
    users = os.path.realpath(os.path.expanduser("~"))
    real = os.path.realpath(path)
    if (
        not os.path.isabs(path)
        or path in SYSTEM_FOLDERS
        or real in SYSTEM_FOLDERS
        or f"{users}/".startswith(f"{real}/")
    ):
        return False
    try:
        versions = [name for name in os.listdir(f"{path}/lib") if name.startswith("python3")]
    except OSError:
        return False
    return any(
        os.path.isfile(f"{path}/lib/{name}/os.py") and os.access(f"{path}/bin/{name}", os.X_OK) for name in versions
    )
