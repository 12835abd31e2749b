# SPDX-License-Identifier: Apache-2.0
"""A layer with its owner, something outside that must never be touched, and processes that attack."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deadstop.sandbox.files import Files
from hosts import ORDINARY_UID

LAYER_OWNER = 1_879_048_191  # what a server that is root gives files to
CANARY = b"CANARY"
_libc = ctypes.CDLL(None, use_errno=True)


class LayerBox:
    """`top/layer/{home,tmp}` belong to the owner; all else in `top` is the canary."""

    def __init__(self, as_root: bool, place: str | None) -> None:
        self.as_root = as_root
        if as_root:
            self.owner = LAYER_OWNER
        else:
            self.owner = ORDINARY_UID if os.geteuid() == 0 else os.geteuid()
        self.top = Path(tempfile.mkdtemp(prefix="deadstop-files-", dir=place))
        self.top.chmod(0o755)
        self.home, self.tmp = self.top / "layer/home", self.top / "layer/tmp"
        self.outside = self.top / "outside"
        for folder in (self.home, self.tmp):
            folder.mkdir(parents=True)
        # `e` and `outside` are what somebody finds who goes up too far.
        for name in ("outside", "outside/sub", "outside/sub/deep", "e", "layer/e", "layer/outside"):
            (self.top / name).mkdir()
            (self.top / name / "f").write_bytes(CANARY)
        if os.geteuid() == 0:
            give(self.top if not as_root else self.top / "layer", self.owner)
        self.files = Files.for_layer(str(self.top / "layer"), (self.owner, self.owner))
        self.before = self.seen_outside()

    def seen_outside(self) -> list[tuple[object, ...]]:
        """All there is to know of everything beside the layer."""
        found: list[tuple[object, ...]] = []
        for folder, folders, names in os.walk(self.top):
            if folder == str(self.top / "layer"):
                folders[:] = sorted(set(folders) - {"home", "tmp"})
            for name in sorted([*folders, *names]):
                path = Path(folder, name)
                facts = path.lstat()
                content = path.read_bytes() if name in names else b""
                found.append(
                    (path, facts.st_mode, facts.st_uid, facts.st_ino, facts.st_nlink, facts.st_mtime_ns, content)
                )
        return found

    def write(self, path: str, data: bytes, mode: int | None = None) -> None:
        with self.files.writer(path, mode) as writer:
            writer.write(data)

    def read(self, path: str | bytes) -> bytes:
        return b"".join(self.files.pieces(*self.files.read(path)))

    def inside(self, act: Callable[[], object]) -> None:
        """Do something once as the payload would, and wait for it."""
        with self.attack(act, once=True) as pid:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    @contextmanager
    def attack(self, act: Callable[[], object], once: bool = False) -> Iterator[int]:
        """Do something in another process of the owner, over and over, until the block ends."""
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._become_payload()
                while os.getppid() == parent:
                    act()
                    if once:
                        break
                code = 0
            finally:
                os._exit(code)
        try:
            yield pid
        finally:
            if not once:
                os.kill(pid, signal.SIGKILL)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, "the attacker failed"

    def _become_payload(self) -> None:
        os.chdir(self.home)
        if os.getuid() == 0:
            os.seteuid(0)
            os.setgroups([])
            os.setresgid(self.owner, self.owner, self.owner)
            os.setresuid(self.owner, self.owner, self.owner)


def give(top: Path, owner: int) -> None:
    os.chown(top, owner, owner)
    for folder, folders, names in os.walk(top):
        for name in [*folders, *names]:
            os.chown(f"{folder}/{name}", owner, owner)


def forget(top: Path) -> None:
    try:
        shutil.rmtree(top)
    except (OSError, RecursionError):
        subprocess.run(["rm", "-rf", top], check=True, timeout=30)  # a deep tree that a failed test left


def exchange(one: str, other: str) -> None:
    """Swap two names in one step (renameat2), as fast as anybody can."""
    if _libc.renameat2(-100, one.encode(), -100, other.encode(), 2) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass  # the listing itself
    return sorted(found)


@contextmanager
def layer_box(kind: str, *, swift: bool = False) -> Iterator[LayerBox]:
    """On the disk, or `swift` in memory; as that user while it lasts.

    Afterwards the outside is as before, and no descriptor is left open.
    """
    box = LayerBox(kind == "root", "/dev/shm" if swift and os.access("/dev/shm", os.W_OK) else None)
    groups, switched = os.getgroups(), kind == "user" and os.geteuid() == 0
    before = open_files()
    try:
        if switched:
            os.setgroups([])
            os.setegid(box.owner)
            os.seteuid(box.owner)
        yield box
        if open_files() != before:
            gc.collect()
            assert open_files() == before
    finally:
        if switched:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)
        after = box.seen_outside()
        forget(box.top)
    assert after == box.before


def kinds() -> list[str]:
    return ["root", "user"] if os.geteuid() == 0 else ["user"]


def kind_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The kind of the FileProblem that a call raises."""
    from deadstop.errors import FileProblem

    try:
        call(*arguments, **options)
    except FileProblem as problem:
        return problem.kind
    return ""
