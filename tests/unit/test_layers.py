# SPDX-License-Identifier: Apache-2.0
"""The layers of docs/design.md, the cost of an import, and the length of files and functions."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import deadstop

PACKAGE = Path(deadstop.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = {
    0: "model results errors clock plain contract narrate envelope schema _version",
    1: "deadlines cancel budget amounts saving packing slots closures messages deferred wire places operation",
    2: "boundary ledger",
    3: "executor guard",
    4: "supervisor worker",
    5: "sandbox",
    6: "adapters compat client effects server testing",
    7: "cli __main__",
}
LAYER_OF = {name: number for number, names in LAYERS.items() for name in names.split()}
SMOLAGENTS = "smolagents _smolagents_errors _smolagents_once _smolagents_values _smolagents_worker"
THIRD_PARTY = {
    "ledger/canonical.py": {"rfc8785"},
    "ledger/signing.py": {"cryptography"},
    "ledger/postgresql.py": {"psycopg"},
    "ledger/pg_session.py": {"psycopg"},
    "ledger/pg_settings.py": {"psycopg"},
    "effects/ask_http.py": {"httpx2"},
    "effects/ask_postgresql.py": {"psycopg"},
    "effects/http_exchange.py": {"httpx2"},
    "effects/posting.py": {"httpx2"},
    "effects/apprise_face.py": {"apprise"},
    "cli/completion.py": {"shtab"},
    "closures.py": {"cloudpickle"},
    "cli/tables.py": {"rich"},
    "client/connection.py": {"httpx2"},
    # Runs inside a sandbox, where it may be sent along.
    "sandbox/drivers/call.py": {"cloudpickle"},
    **{f"adapters/{name}.py": {"smolagents"} for name in SMOLAGENTS.split()},
}
# Folders that are a face of something third, from the first file to the last.
THIRD_PARTY_FOLDERS = {"server": {"aiohttp", "msgspec", "prometheus_client"}}
# The two lazy tables, and those that load the user's modules.
LOADS_BY_COMPUTED_NAMES = {
    *("__init__.py", "cli/__init__.py"),
    *("effects/ask_function.py", "testing/__init__.py"),
    *(
        "sandbox/drivers/call.py",
        "closures.py",
        "worker/calls.py",
        "worker/nursery.py",
        "worker/start.py",
    ),
}
FILE_LINES, FUNCTION_LINES = 400, 60
# Installed by itself on hosts that have no deadstop: one file.
ALONE = {"effects/remote/deadstop_remote.py"}


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def part_of(file: Path) -> str:
    """The word that LAYERS has for a file: its folder below the package, or its own name."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`, which never run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            for other in child.orelse:
                yield other
                yield from runtime_nodes(other)
        else:
            yield child
            yield from runtime_nodes(child)


def imports(file: Path, tree: ast.AST) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of every import that runs; `from . import a` counts as the module a."""
    folder = ["deadstop", *file.relative_to(PACKAGE).parts[:-1]]
    found = []
    for node in runtime_nodes(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            found += [(node.lineno, ".".join([*base, alias.name])) for alias in node.names]
    return found


def parsed() -> list[tuple[Path, ast.Module]]:
    return [(file, ast.parse(file.read_text(), str(file))) for file in FILES]


def test_every_module_has_a_layer() -> None:
    assert {part_of(file) for file in FILES} - {"__init__"} == set(LAYER_OF)


def test_a_module_imports_only_from_its_own_layer_or_lower_ones() -> None:
    offenders = []
    for file, tree in parsed():
        if name_of(file) == "__init__.py":
            continue
        own = LAYER_OF[part_of(file)]
        for line, name in imports(file, tree):
            words = name.split(".")
            if words[0] == "deadstop" and len(words) > 1 and LAYER_OF.get(words[1], 99) > own:
                offenders.append(f"{name_of(file)}:{line} (layer {own}) imports {name}")
    assert offenders == []


def test_a_module_named_by_a_string_is_in_a_lower_layer_too() -> None:
    """importlib goes around the walk above. Few files may load what no constant names."""
    offenders = []
    for file, tree in parsed():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module"):
                continue
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            layer = (
                LAYER_OF.get(name.split(".")[1], 99) if isinstance(name, str) and name.startswith("deadstop.") else 99
            )
            if name_of(file) not in LOADS_BY_COMPUTED_NAMES and layer > LAYER_OF[part_of(file)]:
                offenders.append(f"{name_of(file)}:{node.lineno} loads {name or 'a computed name'}")
    assert offenders == []


def test_nothing_of_a_third_party_is_imported() -> None:
    offenders = []
    for file, tree in parsed():
        for line, name in imports(file, tree):
            top = name.split(".")[0]
            known = top == "deadstop" or top in sys.stdlib_module_names
            allowed = THIRD_PARTY.get(name_of(file), set()) | THIRD_PARTY_FOLDERS.get(part_of(file), set())
            if not known and top not in allowed:
                offenders.append(f"{name_of(file)}:{line} imports {name}")
    assert offenders == []


def test_the_lazy_table_gives_every_public_name() -> None:
    assert sorted(deadstop.__all__) == list(deadstop.__all__) or set(deadstop.__all__) == set(dir(deadstop))
    for name in deadstop.__all__:
        assert getattr(deadstop, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        deadstop.nothing  # noqa: B018


def loaded_after(code: str) -> set[str]:
    """Names in sys.modules of a fresh interpreter after `code`; what a bare interpreter loads itself is taken off."""
    report = "import sys, os; os.write(2, ('\\n' + repr(sorted(sys.modules))).encode())"
    program = [sys.executable, "-S", "-E", "-c"]
    setup = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    done = [
        subprocess.run([*program, f"{setup}{text}\n{report}"], capture_output=True, text=True, timeout=30, check=True)
        for text in ("", code)
    ]
    bare, full = (set(ast.literal_eval(each.stderr.splitlines()[-1])) for each in done)
    return full - bare


def test_import_deadstop_is_cheap() -> None:
    loaded = loaded_after("import deadstop")
    assert "deadstop" in loaded
    assert loaded & {"asyncio", "json", "subprocess", "dataclasses", "pathlib", "socket"} == set()


def test_deadstop_run_loads_no_asyncio_and_no_subprocess() -> None:
    loaded = loaded_after("from deadstop.cli import main\nassert main(['run', '--json', '--', 'true']) == 0")
    assert "deadstop.supervisor.call" in loaded
    assert loaded & {"asyncio", "subprocess", "deadstop.executor.run", "deadstop.executor.client"} == set()


def test_the_supervisor_loads_no_asyncio_no_subprocess_and_no_client() -> None:
    loaded = loaded_after("import deadstop.supervisor.server")
    assert (
        loaded & {"asyncio", "subprocess", "argparse", "http", "sqlite3", "deadstop.cli", "deadstop.executor"} == set()
    )


def test_files_are_short() -> None:
    lengths = {name_of(file): len(file.read_text().splitlines()) for file in FILES}
    assert {name: length for name, length in lengths.items() if length > FILE_LINES and name not in ALONE} == {}


def test_functions_are_short() -> None:
    offenders = {}
    for file, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                length = node.end_lineno - node.lineno + 1
                if length > FUNCTION_LINES:
                    offenders[f"{name_of(file)}:{node.lineno} {node.name}"] = length
    print(json.dumps(offenders, indent=1))
    assert offenders == {}


def test_every_file_has_its_licence_line() -> None:
    assert [name_of(file) for file in FILES if file.stat().st_size and "SPDX" not in file.read_text()[:80]] == []
