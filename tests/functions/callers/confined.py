# SPDX-License-Identifier: Apache-2.0
"""Functions in a sandbox."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time

from telling import at_once, last, main, processes, section, seen, timed, until

import deadstop
from deadstop import Call, call, call_async

sandboxed = deadstop.tool(isolation="sandbox", timeout=10)
NAMES = {"plain": 1}
os.makedirs(os.path.join(os.environ["TMPDIR"], "work"), exist_ok=True)
os.chdir(os.path.join(os.environ["TMPDIR"], "work"))  # the folder that a sandbox may write is not the home


@sandboxed
def data():
    return {
        "none": None, "big": 1 << 70, "small": -(1 << 80), "float": 1.5, "text": "\u00e4\0", "bytes": b"\0\xff",
        "tuple": (1, (2, [3])),
        "set": {1, 2}, "frozen": frozenset("ab"), 3: "three", (1, 2): "pair", "array": bytearray(b"ab"),
        "inf": float("inf"), "names": NAMES,
    }  # fmt: skip


@sandboxed
def reaches(host, port):
    found = []
    for family, address in ((socket.AF_INET, (host, port)), (socket.AF_INET, ("192.0.2.1", 80))):
        try:
            with socket.socket(family) as one:
                one.settimeout(1)
                one.connect(address)
            found.append("connected")
        except OSError as problem:
            found.append(type(problem).__name__)
    return found


@sandboxed
def touches(paths):
    out = {}
    for path in paths:
        try:
            with open(path, "w") as file:
                file.write("was here")
            out[path] = "written"
        except OSError as problem:
            out[path] = type(problem).__name__
    return out


@sandboxed
def sees_files(path):
    return [
        os.path.exists(path),
        os.getuid() == 0 and os.access("/etc/shadow", os.R_OK),
        "DEADSTOP_TEST_MARK" in os.environ,
    ]


class Bomb:
    def __reduce__(self):
        return os.system, (f"touch {os.environ.get('HOME', '/tmp')}/exploded",)


class BombError(Exception):
    def __reduce__(self):
        return os.system, ("touch exploded",)


@sandboxed
def bomb(path):
    class Local:
        def __reduce__(self):
            return os.system, (f"touch {path}",)

    return [1, {"deep": Local()}]


@sandboxed
def raises_bomb():
    raise BombError("with a bomb")


@sandboxed
def subclassed():
    class Loud(str):
        pass

    return Loud("text")


@sandboxed
def raises_value():
    raise ValueError("inside")


@sandboxed
def hangs():
    print("before it hung", flush=True)
    subprocess.Popen(["sleep", "30"], start_new_session=True)
    time.sleep(30)


@sandboxed
def leaves():
    subprocess.Popen(["sleep", "30"], start_new_session=True)
    return "left"


@sandboxed
def prints():
    print("printed inside")
    return len(sys.stdin.read())


@sandboxed
def forges():
    """Write into every descriptor there is, as if an answer came from elsewhere."""
    written = 0
    for fd in range(3, 64):
        try:
            written += os.write(fd, b"\x80\x05." * 50)
        except OSError:
            pass
    return written


@sandboxed
def dies():
    os._exit(4)


@sandboxed
async def naps():
    await asyncio.sleep(0.01)
    return "napped"


@sandboxed
def tells():
    deadstop.progress("from inside", id="one", data={"a": (1, 2)})
    return deadstop.remaining()


@sandboxed
def deep():
    found = []
    for _ in range(500):
        found = [found]
    return found


@section
def plain_data():
    value = call(data).value
    expected = data.function()
    return {"same": value == expected, "types": [type(value[key]).__name__ for key in ("tuple", "set", "frozen",
    "array", "bytes")],
            "large": call(sandboxed(lambda size: b"x" * size), 3_000_000).value == b"x" * 3_000_000,
            "argument": call(sandboxed(lambda given: given), {"a": [1, b"2"]}).value}  # fmt: skip


@section
def confined():
    server = socket.create_server(("127.0.0.1", 0))
    home = os.path.expanduser("~")
    paths = [
        os.path.join(home, "touched"),
        "/etc/touched",
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "touched"),
        "/usr/touched",
    ]
    with open(os.path.join(home, "secret"), "w") as file:
        file.write("secret")
    told = {
        "network": call(reaches, *server.getsockname()).value, "writes": call(touches, paths).value,
        "there": [path for path in paths if os.path.exists(path)], "sees": call(sees_files, os.path.join(home,
        "secret")).value,
    }  # fmt: skip
    server.close()
    return told


@section
def bombs():
    path = os.path.join(os.environ["TMPDIR"], "exploded")
    told = {
        "result": seen(call(bomb, path)), "raised": seen(call(raises_bomb)), "subclass": seen(call(subclassed)),
        "deep": seen(call(deep)),
        "forged": seen(call(Call(forges).options(timeout=2))), "returns_class": seen(call(sandboxed(lambda: Bomb))),
        "value_error": seen(call(raises_value)),
    }  # fmt: skip
    return {**told, "exploded": [os.path.exists(path), os.path.exists("exploded"),
    os.path.exists(os.path.expanduser("~/exploded"))],
            "next": call(prints).value}  # fmt: skip


@section
def ends():
    got = at_once(
        lambda: timed(lambda: call(Call(hangs).options(timeout=0.5))), lambda: timed(lambda: call(dies)),
        lambda: timed(lambda: call(leaves)),
        lambda: timed(lambda: asyncio.run(call_async(Call(hangs).options(timeout=0.4)))),
    )  # fmt: skip
    names = ("timeout", "dies", "leaves", "timeout_async")
    return {name: seen(result, elapsed=elapsed) for name, (result, elapsed) in zip(names, got, strict=True)}


@section
def works():
    return {
        "printed": seen(call(prints)),
        "async": call(naps).value,
        "told": seen(call(tells)),
        "parallel": [one.value for one in deadstop.batch([Call(naps) for _ in range(4)], parallel=4)],
        "decorated": data()["none"],
    }


@last
def quiet():
    until(lambda: all(name != "sleep" for _, name in processes().values()))
    return sorted({name for _, name in processes().values()})


if __name__ == "__main__":
    main()
