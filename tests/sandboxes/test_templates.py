# SPDX-License-Identifier: Apache-2.0
"""Templates: names, files, and builds with real pip and real Debian packages, both made here and not from a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hosts

BEGIN = """
import asyncio, json, os, subprocess, sys
from deadstop.errors import *
from deadstop.sandbox import layers
from deadstop.sandbox.templates import Templates
from deadstop.sandbox.template_build import build
root = sys.argv[1]

def refusal(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as problem:
        return str(problem)

async def refused(kind, awaitable):
    try:
        await awaitable
    except kind as problem:
        return str(problem)

def left(store):
    return [name for part in ("layers", "images") for name in os.listdir(f"{store.place}/{part}") if name != "ground"]

async def run(argv, *, cwd, env, net, layer):
    '''In a real bubblewrap, with the packages of a folder of the layer in place of a network.'''
    words = ["bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink",
        "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
        "--bind", layer.folder + "/home", "/home/agent", "--chdir", cwd, "--clearenv"]
    env = {"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": cwd + "/wheels", **env}
    for name, value in env.items():
        words += ["--setenv", name, value]
    process = await asyncio.create_subprocess_exec(*words, "--", *argv, stdout=2)
    return await process.wait()
"""


@pytest.fixture
def state(namespace_host: hosts.Host) -> Iterator[str]:
    folder = namespace_host.folder / f"state-{os.urandom(4).hex()}"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, namespace_host.uid, namespace_host.uid)
    yield str(folder)
    shutil.rmtree(folder)


def ask(host: hosts.Host, text: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.script(BEGIN + text, *arguments).splitlines()[-1])
    return found


NAMES = """
async def main():
    store = await layers.open_store(root + "/layers")
    templates = Templates(store, root + "/templates")
    os.makedirs(root + "/work/sub")
    with open(root + "/work/sub/file", "w") as file:
        file.write("text")
    os.symlink("/etc/passwd", root + "/work/link")
    made = await templates.add_from_folder("mine-1", root + "/work", env={"A": "b"}, paths=("/home/agent/bin",))
    layer = await store.create(templates.image_of(made))
    seen = (layer.folder if not layer.mount else f"{layer.mount.root}/{layer.mount.lowers[0]}") + "/home/"
    with open(seen + "sub/file") as file:
        found = dict(text=file.read(), link=os.readlink(seen + "link"))
    found["items"] = [each.name for each in templates.items()]
    found["alias"] = templates.resolve("code-interpreter").name
    found["environment"] = made.environment({"PATH": "/usr/bin"})
    found["builtin"] = [templates.image_of(templates.resolve(name)) for name in ("base", "python")]
    found["document"] = made.document()
    found["bad"] = [bool(await refused(UsageError, templates.add_from_folder(name, root + "/work")))
        for name in ("../up", "", "base", "code-interpreter", "Big", "a" * 64, ".hidden", "a/b", "a\\n")]
    found["no_folder"] = await refused(UsageError, templates.add_from_folder("x", root + "/nothing"))
    found["missing"] = refusal(NotFound, templates.resolve, "nothing")
    found["kept"] = await refused(NotAllowed, templates.delete("code-interpreter"))
    before = made.image_id
    made = await templates.add_from_folder("mine-1", root + "/work", description="again")
    found["replaced"] = [before != made.image_id, len(store.images())]
    other = Templates(store, root + "/templates")
    found["loaded"] = other.resolve("mine-1") == made
    await store.discard(layer.id)
    await other.delete("mine-1")
    found["left"], found["files"] = left(store), sorted(os.listdir(root + "/templates"))
    await store.discard(made.image_id)
    image, _ = await store.capture(await store.create(None), frozen=None, idle=True)
    await templates.add_from_image("lost", image)
    await store.discard(image.id)
    found["remarks"] = Templates(store, root + "/templates").remarks
    print(json.dumps(found))
asyncio.run(main())
"""


def test_templates_have_names_files_and_an_environment(namespace_host: hosts.Host, state: str) -> None:
    found = ask(namespace_host, NAMES, state)
    assert (found["text"], found["link"]) == ("text", "/etc/passwd")
    assert found["items"] == ["base", "python", "mine-1"]
    assert found["alias"] == "python"
    assert found["environment"] == {"A": "b", "PATH": "/home/agent/bin:/usr/bin"}
    assert found["builtin"] == [None, None]
    document = found["document"]
    assert (document["name"], document["builtin"], document["packages"]) == ("mine-1", False, False)
    assert document["size_bytes"] > 0
    assert found["bad"] == [True] * 9
    assert "is not a folder" in found["no_folder"]
    assert found["missing"] == "no such template: nothing"
    assert "built in" in found["kept"]
    assert found["replaced"] == [True, 1]
    assert found["loaded"] is True
    assert (found["left"], found["files"]) == ([], ["system"])
    assert found["remarks"] == ["template lost cannot be used: its files are not in this store"]


def wheel(folder: Path) -> None:
    """A package `thing` with a module and a program, as pip takes it."""
    about = "thing-1.dist-info"
    files = {
        "thing.py": "def main():\n    print('thing works')\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: thing\nVersion: 1\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": "[console_scripts]\nthing = thing:main\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "thing-1-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


PYPI = """
async def main():
    store = await layers.open_store(root + "/layers", kind="folder")
    templates = Templates(store, root + "/templates")
    steps = []
    tried = run
    if sys.argv[3] == "no-venv":
        async def tried(argv, **options):
            return 1 if "venv" in argv else await run(argv, **options)
    made = await build(templates, "made", folder=sys.argv[2], pypi=["thing==1"], run=tried, log=steps.append)
    layer = await store.create(templates.image_of(made))
    script = "thing 2>/dev/null || python3 -c 'import thing; thing.main()'"
    env = made.environment({"PATH": "/usr/bin:/bin"})
    process = await asyncio.create_subprocess_exec("bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink",
        "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc",
        "--dev", "/dev", "--bind", layer.folder + "/home", "/home/agent", "--", "/bin/sh", "-c", script,
        stdout=subprocess.PIPE, env=env)
    out = (await process.communicate())[0].decode()
    async def fails(argv, **options):
        return 1
    bad = await refused(NotAllowed, build(templates, "bad", base="made", pypi=["no-such"], run=fails, log=steps.append))
    odd = [bool(await refused(UsageError, build(templates, "odd", pypi=[name], run=run, log=print)))
        for name in ("--index-url=x", "a;b", "a @ http://x", "../a", "")]
    await store.discard(layer.id)
    print(json.dumps(dict(out=out, env=dict(made.env), paths=made.paths, bad=bad, odd=odd, steps=steps,
        names=[each.name for each in templates.items()], left=len(left(store)), description=made.description)))
asyncio.run(main())
"""


@pytest.mark.parametrize("course", ["venv", "no-venv"])
def test_a_template_is_built_of_a_folder_and_packages_of_pypi(
    namespace_host: hosts.Host, state: str, tmp_path: Path, course: str
) -> None:
    if namespace_host.uid == 0:
        pytest.skip("the same for root, whose layers belong to another user")
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    if subprocess.run(["/usr/bin/python3", "-c", "import pip"], capture_output=True).returncode:
        pytest.skip("the system's Python has no pip")
    source = Path(state) / "source"
    wheel(source / "wheels")
    found = ask(namespace_host, PYPI, state, str(source), course)
    assert found["out"] == "thing works\n"
    if course == "venv":
        assert found["env"] == {"VIRTUAL_ENV": "/home/agent/.venv"}
        assert found["paths"] == ["/home/agent/.venv/bin"]
    else:
        assert found["env"] == {"PYTHONPATH": "/home/agent/.python"}
    assert "no-such" in found["bad"]
    assert found["odd"] == [True] * 5
    assert found["names"] == ["base", "python", "made"]
    assert found["left"] == 2, "the image of `made` with its record, and nothing of what failed"
    assert found["description"] == "base with files of source, thing==1"


DEBIAN = """
import ctypes
from deadstop.boundary import overlay, process
from deadstop.sandbox import template_build
async def main():
    store = await layers.open_store(root + "/layers", kind="folder")
    templates = Templates(store, root + "/templates")
    system, steps = templates.new_system_folder(), []
    await template_build._unpack(root + "/thing.deb", root + "/unpacked", system, steps.append)
    image, _ = await store.capture(await store.create(None), frozen=None, idle=True)
    made = await templates.add_from_image("made", image, system=system)
    place = root + "/usr"
    os.mkdir(place)
    libc, uid, gid = ctypes.CDLL(None, use_errno=True), os.geteuid(), os.getegid()
    child = os.fork()
    if child == 0:
        try:
            assert libc.unshare(0x20000 | (0x10000000 if uid else 0)) == 0
            assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
            if uid:
                process.map_ids(uid, gid)
            overlay.system_overlay(place, made.system)
            with open(root + "/said", "w") as file:
                subprocess.run([place + "/bin/thing"], stdout=file, check=True)
                file.write(f"{os.path.exists(place + '/bin/env')} {os.path.exists(place + '/lib/thing.txt')} ")
                try:
                    open(place + "/bin/new", "w")
                except OSError as problem:
                    file.write(str(problem.errno))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with open(root + "/said") as file:
        said = file.read()
    async def nothing(*_, **__):
        raise AssertionError
    bad = await refused(UsageError, build(templates, "bad", debian=["-o=x"], run=nothing, log=print))
    await templates.delete("made")
    Templates(store, root + "/templates")
    print(json.dumps(dict(said=said, steps=steps, bad=bad, left=os.listdir(root + "/templates/system"))))
asyncio.run(main())
"""


def test_debian_packages_show_above_usr_and_no_script_of_theirs_runs(namespace_host: hosts.Host, state: str) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed")
    package = Path(state) / "package"
    files = {
        "DEBIAN/control": "Package: thing\nVersion: 1\nArchitecture: all\nMaintainer: nobody <n@example.org>\n"
        "Description: made for a test\n",
        "DEBIAN/preinst": f"#!/bin/sh\ntouch {state}/ran\n",
        "usr/bin/thing": "#!/bin/sh\necho thing works\n",
        "lib/thing.txt": "where /usr is merged it belongs below it",
        "etc/thing.conf": "not used",
    }
    for name, text in files.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    build = ["dpkg-deb", "--root-owner-group", "--build", str(package), f"{state}/thing.deb"]
    subprocess.run(build, check=True, capture_output=True, timeout=30)
    found = ask(namespace_host, DEBIAN, state)
    merged = Path("/lib").is_symlink()
    assert found["said"] == f"thing works\nTrue {merged} 30"  # EROFS
    assert found["steps"] == ["thing.deb: left out: /etc" + ("" if merged else ", /lib")]
    assert "does not name a package" in found["bad"]
    assert found["left"] == []
    assert not Path(state, "ran").exists()
