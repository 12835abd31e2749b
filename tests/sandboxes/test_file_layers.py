# SPDX-License-Identifier: Apache-2.0
"""Layers and images of the three stores: on real file systems, with real mounts, as root and as an ordinary user.

Everything runs in a process of its own, as another user where need be: its mounts and loop devices go with it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hosts

BEGIN = """
import asyncio, contextlib, errno, json, os, signal, stat, subprocess, sys, time
from deadstop.errors import *
from deadstop.sandbox import layers
from deadstop.sandbox.layers import subvolumes
root = sys.argv[1]
no_wait = contextlib.asynccontextmanager

def write(path, text):
    with open(path, "w") as file:
        file.write(text)

def read(path):
    with open(path) as file:
        return file.read()

@no_wait
async def nothing_runs():
    yield

@no_wait
async def never():
    raise AssertionError("stopped though it is idle")
    yield

def say(**found):
    print(json.dumps(found))
"""


@pytest.fixture
def state(tmp_path: Path, namespace_host: hosts.Host) -> Iterator[str]:
    folder = namespace_host.folder / f"state-{os.urandom(4).hex()}"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, namespace_host.uid, namespace_host.uid)
    yield str(folder)
    shutil.rmtree(folder)


def ask(host: hosts.Host, text: str, *arguments: str, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.script(BEGIN + text, *arguments, **options).splitlines()[-1])
    return found


def needs_root_and_btrfs(host: hosts.Host) -> None:
    if host.uid != 0:
        pytest.skip("a volume needs root")
    if shutil.which("mkfs.btrfs", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
        pytest.skip("btrfs-progs is not installed")
    if not Path("/dev/loop-control").exists():
        pytest.skip("this host has no loop devices")


def loop_files() -> str:
    return "".join(path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file"))


# -- btrfs -------------------------------------------------------------------------------------------------------------

BTRFS = """
async def main():
    assert layers.private_mounts()
    store = await layers.open_store(root, size=1 << 30)
    layer = await store.create(None, disk=24 << 20)
    home = layer.folder + "/home"
    # A real process writes the same number into two files, one after the other.
    code = "import sys,os\\nn=0\\na,b=(os.open(p,os.O_CREAT|os.O_WRONLY) for p in sys.argv[1:])\\nprint(flush=True)\\n"
    code += "while True:\\n n+=1; os.pwrite(a,b'%020d'%n,0); os.pwrite(b,b'%020d'%n,0)"
    writer = subprocess.Popen([sys.executable, "-c", code, home + "/a", home + "/b"], stdout=subprocess.PIPE)
    writer.stdout.readline()
    @no_wait
    async def frozen():
        os.kill(writer.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
        yield
        os.kill(writer.pid, signal.SIGCONT)
    torn, pauses = [], []
    for _ in range(5):
        image, how = await store.capture(layer, frozen=frozen, idle=False)
        a, b = (int(read(f"{store.place}/images/{image.id}/home/{name}")) for name in "ab")
        torn.append(a - b)
        pauses.append(how.pause_ms)
    writer.kill(), writer.wait(), writer.stdout.close()
    child = await store.create(image, disk=24 << 20)
    write(child.folder + "/home/a", "child")
    write(home + "/late", "parent")
    owner = os.stat(home).st_uid
    frozen_image = f"{store.place}/images/{image.id}/home/a"
    try:
        write(frozen_image, "x")
        refused = 0
    except OSError as problem:
        refused = problem.errno
    def fill(path):
        try:
            with open(path, "wb", 0) as file:
                for _ in range(64):
                    file.write(os.urandom(1 << 20))
            return 0
        except OSError as problem:
            return problem.errno
    full = [fill(child.folder + "/home/big")]
    subvolumes.create(home, "inner")
    full.append(fill(home + "/inner/big"))
    await store.capture(layer, frozen=never, idle=True, measure=False)
    os.unlink(home + "/inner/big")
    write(home + "/late", "after a snapshot of a full one")
    names = sorted(os.listdir(child.folder + "/home"))
    idle_image, idle = await store.capture(layer, frozen=never, idle=True, measure=False)
    before = store.kind, layer.limited, how.how, child.usage(), image.size_bytes, idle_image.size_bytes, idle.pause_ms
    kept = await store.sweep({image.id})
    left = os.listdir(store.place + "/layers"), sorted(os.listdir(store.place + "/images"))
    store.close()
    say(torn=torn, pauses=pauses, owner=owner, refused=refused, full=full, names=names, before=before, left=left,
        gone=len(kept), image=image.id)
asyncio.run(main())
"""


def test_a_running_process_is_snapshotted_at_one_moment_and_its_bytes_are_bounded(
    namespace_host: hosts.Host, state: str
) -> None:
    needs_root_and_btrfs(namespace_host)
    found = ask(namespace_host, BTRFS, state)
    assert all(each in (0, 1) for each in found["torn"]), "a later write is in the image, an earlier one is not"
    assert min(found["pauses"]) < 100
    kind, limited, how, usage, size, unmeasured, idle_pause = found["before"]
    assert (kind, limited, how, unmeasured, idle_pause) == ("btrfs", True, "snapshot", None, 0)
    assert 0 < usage <= 24 << 20
    assert size > 0
    assert found["owner"] == 1_879_048_191
    assert (found["refused"], found["full"]) == (30, [122, 122])  # EROFS, EDQUOT
    assert found["names"] == ["a", "b", "big"], "a child is of the moment of its image"
    assert found["gone"] == 8  # two layers, one with a subvolume of the payload's; six images
    assert found["left"] == [[], [found["image"], f"{found['image']}.json"]]
    assert state not in loop_files()


KILLED = """
async def main():
    assert layers.private_mounts()
    store = await layers.open_store(root, size=300 << 20)
    assert store.kind == "btrfs", store.remarks
    layer = await store.create(None)
    write(layer.folder + "/home/kept", "yes")
    image, _ = await store.capture(layer, frozen=never, idle=True)
    if sys.argv[2] == "die":
        print(image.id, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
AGAIN = """
async def main():
    assert layers.private_mounts()
    store = await layers.open_store(root)
    try:
        await layers.open_store(root)
        second = ""
    except NotAllowed as problem:
        second = str(problem)
    layer = await store.create(store.image(sys.argv[2]))
    kept = read(layer.folder + "/home/kept")
    fill = 0
    with open(layer.folder + "/tmp/fill", "wb", 0) as file:
        while fill < 256 and os.statvfs(root + "/btrfs").f_bavail * 4096 > 100 << 20:
            fill += file.write(bytes(1 << 20)) >> 20
            os.fsync(file.fileno())
    try:
        await store.create(None)
        full = ""
    except CapacityError as problem:
        full = problem.full
    try:
        store.image("img_none")
    except NotFound as problem:
        missing = problem.kind
    await store.discard(sys.argv[2])
    say(kept=kept, second=second, full=full, missing=missing, images=len(store.images()))
asyncio.run(main())
"""


def test_a_killed_server_leaves_no_mount_and_no_loop_device_and_its_images_come_back(
    namespace_host: hosts.Host, state: str
) -> None:
    needs_root_and_btrfs(namespace_host)
    first = namespace_host.popen(
        [namespace_host.python, "-c", BEGIN + KILLED, state, "die"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = first.communicate(timeout=30)
    assert first.returncode == -signal.SIGKILL, err.decode()
    hosts.within(5, lambda: state not in loop_files())
    assert state not in Path("/proc/self/mountinfo").read_text()
    found = ask(namespace_host, AGAIN, state, out.decode().strip())
    assert found["kept"] == "yes"
    assert found["second"].endswith("in use by another server")
    assert (found["full"], found["missing"], found["images"]) == ("disk", "snapshot", 0)
    hosts.within(5, lambda: state not in loop_files())


# -- folder ------------------------------------------------------------------------------------------------------------

FOLDER = """
import socket
async def main():
    store = await layers.open_store(root, kind="folder")
    layer = await store.create(None)
    home = layer.folder + "/home"
    write(home + "/plain", "one")
    os.link(home + "/plain", home + "/same")
    os.setxattr(home + "/plain", "user.note", b"n")
    os.utime(home + "/plain", ns=(1, 1_234_567_890_123_456_789))
    os.symlink("/etc/passwd", home + "/outside")
    os.symlink("nowhere", home + "/dangling")
    os.symlink("/", home + "/rootdir")
    os.mkfifo(home + "/pipe")
    socket.socket(socket.AF_UNIX).bind(os.path.relpath(home + "/socket"))
    with open(home + "/sparse", "wb") as file:
        file.seek(64 << 20)
        file.write(b"end")
        file.truncate(96 << 20)
    os.makedirs(home + "/shut/in")
    write(home + "/shut/in/file", "x")
    os.chmod(home + "/shut/in/file", 0o000)
    os.chmod(home + "/shut/in", 0o000)
    os.chmod(home + "/shut", 0o555)
    write(home + "/run", "#!/bin/sh")
    os.chmod(home + "/run", 0o4751)
    image, how = await store.capture(layer, frozen=nothing_runs, idle=False)
    write(home + "/plain", "changed")
    child = await store.create(image)
    inside = child.folder + "/home"
    status = os.stat(inside + "/plain")
    sparse = os.stat(inside + "/sparse")
    modes = {name: oct(stat.S_IMODE(os.stat(f"{inside}/{name}").st_mode)) for name in ("shut", "run", "../tmp")}
    parent_modes = {name: oct(stat.S_IMODE(os.stat(f"{home}/{name}").st_mode)) for name in ("shut", "run", "../tmp")}
    os.chmod(inside + "/shut", 0o755)
    modes["in"] = oct(stat.S_IMODE(os.stat(inside + "/shut/in").st_mode))
    found = dict(
        names=sorted(os.listdir(inside)), plain=read(inside + "/plain"), mtime=status.st_mtime_ns,
        links=status.st_nlink,
        note=os.getxattr(inside + "/plain", "user.note").decode(), outside=os.readlink(inside + "/outside"),
        size=sparse.st_size, blocks=sparse.st_blocks, modes=modes, owners=sorted({status.st_uid, sparse.st_uid}),
        how=how.how, skipped=how.skipped, remarks=store.remarks, parent_modes=parent_modes)
    taken = await store.create(image, consume=True)
    found["consumed"] = [read(taken.folder + "/home/same"), len(store.images())]
    try:
        await store.create(image)
    except NotFound as problem:
        found["gone"] = str(problem)
    # Deeper than a path may be long and than Python's stack, and shut on the way.
    here = os.open(taken.folder + "/tmp", os.O_RDONLY)
    for level in range(1200):
        name = "n" * 200 if level < 25 else "n"
        os.mkdir(name, 0o700, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.fchmod(here, 0)
    os.close(here)
    cut, how = await store.capture(taken, frozen=never, idle=True)
    found["cut"] = how.skipped
    await store.discard(taken.id)
    await store.sweep(set())
    found["left"] = os.listdir(store.place + "/layers") + os.listdir(store.place + "/images")
    say(**found)
asyncio.run(main())
"""


def test_a_copied_layer_is_faithful_whatever_a_payload_put_there(namespace_host: hosts.Host, state: str) -> None:
    found = ask(namespace_host, FOLDER, state)
    names = ["dangling", "outside", "plain", "rootdir", "run", "same", "shut", "sparse"]
    assert found["names"] == names
    assert (found["plain"], found["mtime"], found["links"]) == ("one", 1_234_567_890_123_456_789, 2)
    assert (found["note"], found["outside"]) == ("n", "/etc/passwd")
    assert found["size"] == 96 << 20
    assert found["blocks"] < 200
    assert found["modes"] == {"shut": "0o555", "run": "0o4751", "../tmp": "0o1777", "in": "0o0"}
    assert found["parent_modes"] == {"shut": "0o555", "run": "0o4751", "../tmp": "0o1777"}
    assert found["owners"] == [1_879_048_191 if namespace_host.uid == 0 else namespace_host.uid]
    assert (found["how"], found["skipped"]) == ("copied while stopped", 2)
    assert any("not bounded" in remark for remark in found["remarks"])
    assert found["consumed"] == ["one", 0]
    assert found["gone"].startswith("no such snapshot")
    assert found["cut"] == 1  # the rest of a tree that is too deep for any path
    assert found["left"] == []


def test_a_host_without_namespaces_gets_folders_and_is_told_why(namespace_host: hosts.Host, state: str) -> None:
    text = """
async def main():
    store = await layers.open_store(root)
    try:
        await layers.open_store(root + "/other", kind="btrfs" if os.geteuid() else "overlay")
    except NotAllowed as problem:
        say(kind=store.kind, remarks=store.remarks, refused=str(problem))
asyncio.run(main())
"""
    found = ask(namespace_host, text, state, env={"DEADSTOP_DENY": "userns"})
    assert found["kind"] == "folder"
    wanted = "mounts are not private" if namespace_host.uid == 0 else "denied by DEADSTOP_DENY"
    assert wanted in found["remarks"][0]
    assert "cannot be kept in a store of kind" in found["refused"]


# -- overlay -----------------------------------------------------------------------------------------------------------

ROOM = """
import ctypes, tempfile
from deadstop.boundary import overlay, process, syscalls
libc = ctypes.CDLL(None, use_errno=True)

class Room:
    '''A real bubblewrap that shows a layer, idle but for its holder, as the boundary makes it.'''
    def __init__(self, layer):
        answer, answering = os.pipe()
        self.feed = os.pipe()
        place = tempfile.mkdtemp(dir=root)
        self.helper = os.fork()
        if self.helper == 0:
            try:
                uid, gid = os.geteuid(), os.getegid()
                assert libc.unshare(0x10020000) == 0, os.strerror(ctypes.get_errno())
                process.map_ids(uid, gid)
                overlay.mount_overlay(layer.mount, place)
                words = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--disable-userns", "--uid", "1000",
                    "--gid", "1000", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink",
                    "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dir", "/home",
                    "--bind", place + "/tmp", "/tmp", "--bind", place + "/home", "/home/agent", "--remount-ro", "/",
                    "--chdir", "/home/agent", "--cap-drop", "ALL", "--info-fd", str(answering)]
                os.set_inheritable(answering, True)
                os.dup2(self.feed[0], 0)
                os.close(self.feed[1])
                os.execvp("bwrap", ["bwrap", *words, "--", "/usr/bin/cat"])
            except BaseException as problem:
                print(repr(problem), file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        os.close(answering)
        with open(answer) as pipe:
            self.pid = json.load(pipe)["child-pid"]
        while not self.holder():
            os.sched_yield()

    def holder(self):
        '''bubblewrap itself becomes pid 1; below it is what holds the room open.'''
        for pid in read(f"/proc/{self.pid}/task/{self.pid}/children").split():
            if read(f"/proc/{pid}/comm") == "cat\\n":
                return int(pid)
        return 0

    def path(self, name):
        return f"/proc/{self.holder()}/root/home/agent/{name}"

    async def swap(self, mount, view):
        begin = time.perf_counter()
        overlay.swap(self.holder(), mount, view)
        self.swap_ms = (time.perf_counter() - begin) * 1000

    def end(self):
        os.close(self.feed[1])
        os.close(self.feed[0])
        os.waitpid(self.helper, 0)
"""

OVERLAY = """
async def main():
    store = await layers.open_store(root)
    assert store.kind == "overlay", store.remarks
    layer = await store.create(None)
    room = Room(layer)
    write(room.path("kept"), "first")
    write(room.path("removed"), "first")
    os.mkdir(room.path("dir"))
    write(room.path("dir/one"), "1")
    first, how = await store.capture(layer, frozen=never, idle=True, swap=room.swap)
    write(room.path("kept"), "second")
    os.unlink(room.path("removed"))
    os.unlink(room.path("dir/one")), os.rmdir(room.path("dir")), os.mkdir(room.path("dir"))
    write(room.path("dir/two"), "2")
    live = sorted(os.listdir(room.path("")))
    write(room.path("passing"), "second")
    second, _ = await store.capture(layer, frozen=never, idle=True, swap=room.swap)
    write(room.path("late"), "third")
    os.unlink(room.path("passing"))
    os.unlink(room.path("dir/two")), os.rmdir(room.path("dir")), os.mkdir(room.path("dir"))
    write(room.path("dir/three"), "3")
    running, copied = await store.capture(layer, frozen=nothing_runs, idle=False)
    async def fails(mount, view):
        overlay.swap(1, mount, view)
    try:
        await store.capture(layer, frozen=never, idle=True, swap=fails)
        refused = 0
    except OSError as problem:
        refused = problem.errno
    write(room.path("still"), "works")
    with open(f"/proc/{room.holder()}/mountinfo") as file:
        shown = [line for line in file if "overlay" in line]
    seen = {}
    for name, image in (("first", first), ("second", second), ("running", running)):
        child = await store.create(image)
        inside = Room(child)
        names = sorted(os.listdir(inside.path("")))
        seen[name] = [names, read(inside.path("kept")), sorted(os.listdir(inside.path("dir")))]
        write(inside.path("kept"), name)
        inside.end()
        await store.discard(child.id)
    parent = read(room.path("kept"))
    again = await store.create(second)
    for text in ("", "mounted twice"):
        inside = Room(again)
        found = read(inside.path("kept"))
        write(inside.path("kept"), "mounted twice")
        inside.end()
    await store.discard(again.id)
    await store.discard(first.id)
    child = await store.create(second)
    inside = Room(child)
    kept = read(inside.path("kept"))
    inside.end(), room.end()
    ids = {second.id, child.id}
    await store.sweep(ids)
    trees = len([name for name in os.listdir(store.place + "/images") if not name.endswith(".json")])
    await store.sweep(set())
    left = os.listdir(store.place + "/layers") + os.listdir(store.place + "/images")
    say(seen=seen, live=live, how=[how.how, how.pause_ms, copied.how], refused=refused, parent=parent,
        kept=kept, again=found, trees=trees, left=left,
        leaks=[line for line in shown if root in line.partition(" - ")[2]], lines=len(shown))
asyncio.run(main())
"""


def _user_with_overlay(host: hosts.Host) -> None:
    if host.uid == 0:
        pytest.skip("root has the other kinds")
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")


def test_an_idle_sandbox_branches_without_a_copy_and_goes_on(namespace_host: hosts.Host, state: str) -> None:
    _user_with_overlay(namespace_host)
    found = ask(namespace_host, ROOM + OVERLAY, state)
    assert found["live"] == ["dir", "kept"]
    assert found["seen"] == {
        "first": [["dir", "kept", "removed"], "first", ["one"]],
        "second": [["dir", "kept", "passing"], "second", ["two"]],
        "running": [["dir", "kept", "late"], "second", ["three"]],
    }
    assert found["how"] == ["layered", 0, "copied while stopped"]
    assert found["refused"] == 13  # and the sandbox has its old layer
    assert (found["parent"], found["kept"]) == ("second", "second")
    assert found["again"] == "mounted twice", "a layer outlives one sandbox, as when a template is built"
    assert found["trees"] == 4  # the ground, what second lies on, second, and the child's own
    assert found["left"] == ["ground"]
    assert found["lines"] > 0
    assert found["leaks"] == []


DEEP = """
async def main():
    store = await layers.open_store(root)
    layer = await store.create(None)
    depths, hows = [], set()
    for number in range(20):
        os.makedirs(layer.folder + "/home", exist_ok=True)
        write(f"{layer.folder}/home/file{number}", str(number))
        write(layer.folder + "/home/same", str(number))
        if number > 2:
            os.mknod(f"{layer.folder}/home/file{number - 2}", stat.S_IFCHR, 0) # removed, as the kernel notes it
        image, how = await store.capture(layer, frozen=never, idle=True)
        depths.append(len(layer.mount.lowers))
        hows.add(how.how)
    child = await store.create(image)
    room = Room(child)
    names, same = sorted(os.listdir(room.path(""))), read(room.path("same"))
    room.end()
    say(names=names, same=same, deepest=max(depths), hows=sorted(hows), lowers=len(child.mount.lowers))
asyncio.run(main())
"""


def test_a_chain_of_layers_is_made_one_before_it_is_slow(namespace_host: hosts.Host, state: str) -> None:
    _user_with_overlay(namespace_host)
    found = ask(namespace_host, ROOM + DEEP, state)
    assert found["names"] == ["file0", "file18", "file19", "same"]
    assert found["same"] == "19"
    assert found["deepest"] <= 17
    assert found["lowers"] < 17
    assert found["hows"] == ["layered", "layered, then made one"]
