# SPDX-License-Identifier: Apache-2.0
"""Templates made of a folder, PyPI packages and Debian packages.

A Python package runs code of its own when it is installed: that happens in a sandbox with the network. Debian packages
are downloaded and unpacked by the server, and no script of theirs ever runs; only what they have below /usr is used.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from ..errors import NotAllowed, UsageError
from .layers.copying import copy_tree
from .layers.store import Layer
from .templates import Template, Templates, check_name, no_processes

__all__ = ["Log", "Run", "build"]

HOME = "/home/agent"
VENV = f"{HOME}/.venv"
TARGET = f"{HOME}/.python"  # where the host's Python cannot make a virtual environment
PYPI_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._, -]+\])?[ ]*([<>=!~][<>=!~A-Za-z0-9.,*+ -]*)?")
DEBIAN_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?(=[A-Za-z0-9.+~:-]+)?")
QUIET = ("--no-input", "--disable-pip-version-check", "--no-cache-dir")
DOWNLOAD_S, UNPACK_S = 600.0, 120.0

Log = Callable[[str], None]


class Run(Protocol):
    """Runs a command in a sandbox that has the layer (and nobody else has), and gives its exit code."""

    def __call__(
        self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], net: bool, layer: Layer
    ) -> Awaitable[int]: ...


async def build(
    templates: Templates,
    name: str,
    *,
    base: str = "base",
    folder: str | None = None,
    pypi: Sequence[str] = (),
    debian: Sequence[str] = (),
    run: Run,
    log: Log,
    description: str = "",
) -> Template:
    """Make a template and record it; `log` gets a line for each step. On any error nothing is left of it.

    Raises UsageError for a name that is none, NotFound for the base, NotAllowed where a step failed.
    """
    check_name(name)
    _check_packages(pypi, debian)
    if folder is not None and not os.path.isdir(folder):
        raise UsageError(f"folder: {folder!r:.200} is not a folder of this host")
    before = templates.resolve(base)
    store = templates.store
    system = await _system(templates, before, debian, log)
    layer = None
    try:
        layer = await store.create(templates.image_of(before))
        if folder is not None:
            copied = await store.put_folder(layer, folder)
            log(f"{copied.files} files copied from {folder}")
        env, paths = dict(before.env), before.paths
        if pypi:
            more, first = await _install(pypi, before, layer, run, log)
            env, paths = {**env, **more}, (*first, *(path for path in paths if path not in first))
        image, _ = await store.capture(layer, frozen=no_processes, idle=True)
        return await templates.add_from_image(
            name, image, description=description or _describe(base, folder, pypi, debian), env=env, paths=paths,
            base=base, system=system,
        )  # fmt: skip
    except BaseException:
        if system and system != before.system:
            shutil.rmtree(system, ignore_errors=True)
        raise
    finally:
        if layer:
            await store.discard(layer.id)


def _check_packages(pypi: Sequence[str], debian: Sequence[str]) -> None:
    for kind, pattern, names in (("pypi", PYPI_NAME, pypi), ("debian", DEBIAN_NAME, debian)):
        for name in names:
            if not pattern.fullmatch(name):
                raise UsageError(f"{kind}: {name!r:.80} does not name a package")


def _describe(base: str, folder: str | None, pypi: Sequence[str], debian: Sequence[str]) -> str:
    parts = [folder and f"files of {os.path.basename(os.path.abspath(folder))}", *pypi, *debian]
    return f"{base} with {', '.join(filter(None, parts)) or 'nothing more'}"


# -- PyPI: inside, with the network ------------------------------------------------------------------------------------


async def _install(
    packages: Sequence[str], before: Template, layer: Layer, run: Run, log: Log
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Variables and folders for programs that the packages need. Goes on with the base's environment, if it has one."""

    async def step(*words: str) -> bool:
        log("$ " + " ".join(words))
        return await run(list(words), cwd=HOME, env=before.environment({}), net=True, layer=layer) == 0

    pip, options = await _pip(before, step)
    if not await step(*pip, "install", *QUIET, *options, *packages):
        raise NotAllowed(f"pip could not install {', '.join(packages)}; its words are in the log")
    if "--target" in options:
        return {"PYTHONPATH": TARGET}, (f"{TARGET}/bin",)
    return {"VIRTUAL_ENV": VENV}, (f"{VENV}/bin",)


async def _pip(before: Template, step: Callable[..., Awaitable[bool]]) -> tuple[list[str], list[str]]:
    """The first way that this host's Python has: its own pip for a virtual environment, that one's pip, or a folder.

    An environment with a pip of its own takes seconds more, and on Debian python3-venv: who wants it names `pip`, too.
    """
    python = f"{VENV}/bin/python"
    folder = ["python3", "-m", "pip"], ["--upgrade", "--target", TARGET]
    if before.env.get("PYTHONPATH") == TARGET:
        return folder
    there = before.env.get("VIRTUAL_ENV") == VENV
    if there or await step("python3", "-m", "venv", "--without-pip", VENV):
        if await step("python3", "-m", "pip", "--python", python, "--version"):
            return ["python3", "-m", "pip", "--python", python], []
        if there or await step("python3", "-m", "venv", "--clear", VENV):
            return [python, "-m", "pip"], []
    return folder


# -- Debian: by the server, nothing of a package is run ----------------------------------------------------------------


async def _system(templates: Templates, before: Template, packages: Sequence[str], log: Log) -> str | None:
    """The folder to be laid over /usr, with what the base's has; the base's own if there is nothing to add."""
    if not packages:
        return before.system
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise NotAllowed(f"debian: this host has no {program}")
    system = templates.new_system_folder()
    downloads = tempfile.mkdtemp(prefix="deadstop-apt-")
    try:
        if before.system:
            await asyncio.to_thread(copy_tree, before.system, system)
        for package in await _with_dependencies(packages):
            log(f"$ apt-get download {package}")
            await _command("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package, cwd=downloads)
        for file in sorted(os.listdir(downloads)):
            if file.endswith(".deb"):
                await _unpack(f"{downloads}/{file}", f"{downloads}/unpacked", system, log)
    except BaseException:
        shutil.rmtree(system, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(downloads, ignore_errors=True)
    return system


async def _with_dependencies(packages: Sequence[str]) -> list[str]:
    """The packages and what of their dependencies this host does not have: its /usr shows below."""
    said = await _command("apt-get", "-qq", "--simulate", "--no-install-recommends", "install", "--", *packages)
    found = dict.fromkeys(package.partition(":")[0] for package in packages)
    for line in said.splitlines():
        if match := re.match(r"Inst (\S+) .*?\((\S+) ", line):
            name, version = match.groups()
            found.pop(name.partition(":")[0], None)
            found[f"{name}={version}"] = None
    return [package for package in found if package]


async def _unpack(file: str, folder: str, system: str, log: Log) -> None:
    """Add what the package has below /usr. On a host with a merged /usr, its /bin, /lib and so on belong there, too."""
    os.mkdir(folder)
    try:
        await _command("dpkg-deb", "--extract", file, folder, seconds=UNPACK_S)
        left = []
        for name in sorted(os.listdir(folder)):
            here = f"{folder}/{name}"
            if name == "usr":
                await asyncio.to_thread(copy_tree, here, system)
            elif os.path.islink(f"/{name}") and os.path.isdir(f"/usr/{name}"):
                os.makedirs(f"{system}/{name}", exist_ok=True)
                await asyncio.to_thread(copy_tree, here, f"{system}/{name}")
            else:
                left.append(f"/{name}")
        if left:
            log(f"{os.path.basename(file)}: left out: {', '.join(left)}")
    finally:
        shutil.rmtree(folder)


async def _command(*words: str, cwd: str = "/", seconds: float = DOWNLOAD_S) -> str:
    process = await asyncio.create_subprocess_exec(
        *words, cwd=cwd, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
    except BaseException as problem:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if isinstance(problem, TimeoutError):
            raise NotAllowed(f"{words[0]} did not end within {seconds:g} s") from None
        raise
    if process.returncode:
        raise NotAllowed(f"{' '.join(words[:4])}: {err.decode('utf-8', 'replace').strip()[-400:]}")
    return out.decode("utf-8", "replace")
