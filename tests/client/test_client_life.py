# SPDX-License-Identifier: Apache-2.0
"""Who a sandbox belongs to, how long it has, and what its owner is told."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import deadstop
from deadstop.client.hooks import Hooks
from deadstop.client.view import View
from deadstop.clock import boottime
from deadstop.errors import NotFound, SandboxPaused, ServerUnreachable
from hosts import SOURCE, within
from serving import Served


def test_a_with_block_ends_it_with_a_receipt(server: Served) -> None:
    with deadstop.Sandbox.create(ttl=60, metadata={"task": "42"}, server=server.url) as sandbox:
        assert (sandbox.status, sandbox.metadata, sandbox.end) == ("running", {"task": "42"}, None)
        assert 55 < sandbox.time_left <= 60
        sandbox.exec("echo kept")
        sandbox.start("sleep 60")
    assert sandbox.status == "ended" and sandbox.time_left == 0
    assert sandbox.end is not None and sandbox.end["reason"] == "killed"
    assert sandbox.receipt is not None and sandbox.receipt.survivors == 0
    assert sandbox.kill() == sandbox.receipt
    assert "kept" in sandbox.logs()


OWNER = """
import os, sys, time, deadstop
s = deadstop.Sandbox.create(ttl=60, detached=sys.argv[1:] == ["detached"])
s.start("sleep 60")
print(s.id, flush=True)
FORK
time.sleep(60)
"""


def _owner(server: Served, text: str) -> tuple[object, deadstop.Sandbox]:
    process = server.script(text)
    assert process.stdout is not None
    sandbox = deadstop.Sandbox.connect(process.stdout.readline().decode().strip(), server=server.url)
    process.stdout.close()
    return process, sandbox


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_attached_one_ends_with_its_owner(server: Served, end: signal.Signals) -> None:
    process, sandbox = _owner(server, OWNER.replace("FORK", ""))
    assert sandbox.status == "running"
    process.send_signal(end)  # type: ignore[attr-defined]
    process.wait(10)  # type: ignore[attr-defined]
    within(3, lambda: sandbox.refresh().status == "ended")
    assert sandbox.end is not None and sandbox.end["reason"] == "owner_gone"


def test_a_forked_child_does_not_own_what_its_parent_made(server: Served, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    fork = f"""
child = os.fork()
if child == 0:
    open({str(pid_file)!r}, "w").write(str(os.getpid()))
    time.sleep(60)
"""
    process, sandbox = _owner(server, OWNER.replace("FORK", fork))
    within(5, lambda: pid_file.exists() and bool(pid_file.read_text()))
    try:
        process.kill()  # type: ignore[attr-defined]
        process.wait(10)  # type: ignore[attr-defined]
        within(3, lambda: sandbox.refresh().status == "ended")
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_a_sandbox_may_be_used_in_a_forked_child_too(server: Served) -> None:
    text = """
import os, deadstop
with deadstop.Sandbox.create(ttl=60) as s:
    s.exec("true")
    child = os.fork()
    if child == 0:
        ok = s.exec("echo child").stdout.tail == "child\\n"
        os._exit(0 if ok else 1)
    print(s.exec("echo parent").stdout.tail.strip(), os.waitpid(child, 0)[1], flush=True)
"""
    process = server.script(text)
    out, _ = process.communicate(timeout=20)
    assert out == b"parent 0\n"


def test_one_object_serves_more_than_one_loop(server: Served) -> None:
    made = asyncio.run(deadstop.AsyncSandbox.create(ttl=60, detached=True, server=server.url))
    result = asyncio.run(made.exec("echo again"))
    assert result.unwrap() == "again\n"
    asyncio.run(made.kill())


def test_a_detached_one_outlives_its_owner(server: Served) -> None:
    process, sandbox = _owner(server, OWNER.replace('sys.argv[1:] == ["detached"]', "True").replace("FORK", ""))
    process.kill()  # type: ignore[attr-defined]
    process.wait(10)  # type: ignore[attr-defined]
    with sandbox:
        assert sandbox.exec("true").ok
    assert sandbox.refresh().status == "running"  # it is not ours
    sandbox.kill()


def test_it_is_found_by_name_with_the_time_it_truly_has(server: Served) -> None:
    made = deadstop.Sandbox.create(ttl=40, name="findme", detached=True, server=server.url)
    time.sleep(0.5)
    found = deadstop.Sandbox.connect("findme", server=server.url)
    assert (found.id, found.expires_at[:19]) == (made.id, made.expires_at[:19])
    assert found.time_left <= made.time_left + 0.4 and found.time_left < 39.6
    assert [each.id for each in deadstop.Sandbox.list(server=server.url) if each.name == "findme"] == [made.id]
    made.kill()
    with pytest.raises(NotFound, match="nobody"):
        deadstop.Sandbox.connect("nobody", server=server.url)


def test_listing_by_label(server: Served) -> None:
    with deadstop.Sandbox.create(ttl=40, metadata={"kind": "labelled"}, server=server.url) as made:
        found = deadstop.Sandbox.list("live", {"kind": "labelled"}, server=server.url)
        assert [each.id for each in found] == [made.id]
    assert deadstop.Sandbox.list("live", {"kind": "labelled"}, server=server.url) == []


def test_only_an_extension_gives_more_time(server: Served) -> None:
    with deadstop.Sandbox.create(ttl=30, server=server.url) as sandbox:
        before = sandbox.time_left
        sandbox.exec("true")
        assert sandbox.refresh().time_left < before
        answer = sandbox.extend(100)
        assert answer["added_s"] == 100 and before + 99 < sandbox.time_left < before + 101
        extended = sandbox.time_left
        assert sandbox.refresh().time_left < extended
        sandbox.set_ttl(10)
        assert sandbox.time_left <= 10
        for nonsense in (0, -1, float("nan"), float("inf")):
            with pytest.raises(deadstop.InvalidLimit):
                sandbox.extend(nonsense)


def test_what_is_left_never_grows_by_being_asked_again() -> None:
    view = View()
    now = boottime()
    view.take({"id": "sbx_1", "ttl_seconds": 60, "time_left_s": 30.0}, now)
    view.take({"id": "sbx_1", "ttl_seconds": 60, "time_left_s": 50.0}, now)
    assert 29 < view.time_left <= 30
    view.extended(10, 45)  # heard late: it says what was left then
    assert 39 < view.time_left <= 40
    view.take({"id": "sbx_1", "ttl_seconds": 90, "time_left_s": 55.0}, now)
    assert 54 < view.time_left <= 55


def test_paused_it_says_so_and_goes_on_with_resume(server: Served) -> None:
    with deadstop.Sandbox.create(ttl=60, server=server.url) as sandbox:
        process = sandbox.start("sleep 0.2; echo done")
        assert sandbox.pause().status == "paused"
        with pytest.raises(SandboxPaused):
            sandbox.exec("true")
        assert process.wait(0.5) is None
        assert deadstop.Sandbox.connect(sandbox.id, resume=True, server=server.url).status == "running"
        result = process.wait(5)
        assert result is not None and result.ok


def test_an_ended_one_comes_back_from_its_snapshot(server: Served) -> None:
    with deadstop.Sandbox.create(ttl=60, server=server.url) as sandbox:
        sandbox.files.write("/home/agent/state", "kept")
        made = sandbox.snapshot("mine")
    assert made["id"] in [each["id"] for each in deadstop.Sandbox.snapshots(sandbox.id, server=server.url)]
    back = deadstop.Sandbox.connect(sandbox.id, resume=True, server=server.url)
    assert back.id != sandbox.id and back.status == "running"
    assert back.files.read_text("/home/agent/state") == "kept"
    back.kill()


def test_events_tell_what_happens(server: Served) -> None:
    with deadstop.Sandbox.create(ttl=60, server=server.url) as sandbox:
        events = sandbox.events()
        kinds: list[str] = []
        threading.Timer(0.3, sandbox.extend, (5,)).start()
        threading.Timer(0.6, sandbox.kill).start()
        kinds += [event["type"] for event in events]
    assert "extended" in kinds and kinds[-1] == "ended"


# -- hooks ---------------------------------------------------------------------------------------------------------


def test_callables_are_called_and_hanging_ones_delay_nothing(server: Served) -> None:
    heard: list[object] = []
    release = threading.Event()

    def on_extended(sandbox: deadstop.Sandbox, seconds: float) -> None:
        heard.append((sandbox.id, seconds))
        raise ZeroDivisionError

    def before_stop(sandbox: deadstop.Sandbox) -> None:
        heard.append(sandbox.exec("echo last").stdout.tail)
        release.wait(30)

    sandbox = deadstop.Sandbox.create(
        ttl=60, on_extended=on_extended, before_stop=before_stop, hook_seconds=0.5, server=server.url
    )
    sandbox.extend(7)
    within(3, lambda: heard == [(sandbox.id, 7.0)])
    begin = time.monotonic()
    sandbox.kill()
    release.set()
    assert time.monotonic() - begin < 2
    assert heard[1:] == ["last\n"] and sandbox.status == "ended"


def test_on_timeout_comes_before_the_end(server: Served) -> None:
    heard: list[str] = []
    sandbox = deadstop.Sandbox.create(
        ttl=2.0, buffer=1.0, on_timeout=lambda sandbox: heard.append(sandbox.exec("echo alive").stdout.tail),
        server=server.url,
    )  # fmt: skip
    within(6, lambda: sandbox.status == "ended")
    assert heard == ["alive\n"]
    assert sandbox.refresh().end is not None and sandbox.end["reason"] == "ttl"  # type: ignore[index]


def test_before_stop_comes_before_the_ttl_and_is_called_off_by_an_extension() -> None:
    heard: list[str] = []

    async def main() -> None:
        hooks = Hooks(1.0, on_timeout=lambda _: heard.append("timeout"), before_stop=lambda _: heard.append("stop"))
        hooks.heard("expiring", {"time_left_s": 0.4}, None)
        await asyncio.sleep(0.1)
        hooks.heard("extended", {"added_s": 5.0}, None)
        await asyncio.sleep(0.5)
        assert heard == ["timeout"]
        hooks.heard("expiring", {"time_left_s": 0.2}, None)
        await asyncio.sleep(0.5)
        assert hooks.stopping(None) is None  # once

    asyncio.run(main())
    assert heard == ["timeout", "timeout", "stop"]


def test_a_command_as_a_hook_runs_inside(server: Served) -> None:
    with deadstop.Sandbox.create(ttl=60, on_extended="echo > /tmp/extended", server=server.url) as sandbox:
        sandbox.extend(5)
        within(3, lambda: sandbox.files.exists("/tmp/extended"))


# -- what is sent again -------------------------------------------------------------------------------------------


class Cutting:
    """Between a client and the server: hands on a request, and cuts the connection before its answer, so often."""

    def __init__(self, target: str, folder: Path, cuts: int) -> None:
        self.path, self.target, self.cuts = str(folder / "cut.sock"), target.removeprefix("unix://"), cuts
        self.requests: list[bytes] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(near,), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        with suppress(OSError), near, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as far:
            far.connect(self.target)
            last = b""
            while True:
                ready, _, _ = select.select([near, far], [], [])
                data = ready[0].recv(1 << 16)
                if not data:
                    return
                if ready[0] is near:
                    last = data if data[:5] in (b"POST ", b"GET /", b"DELET") else last
                    self.requests.append(data)
                    far.sendall(data)
                elif last.startswith(b"POST") and self.cuts > 0:
                    self.cuts -= 1
                    return
                else:
                    near.sendall(data)

    def close(self) -> None:
        self._listener.close()


def test_a_create_whose_answer_is_lost_makes_one_sandbox(server: Served, tmp_path: Path) -> None:
    cutting = Cutting(server.url, tmp_path, 2)
    label = {"once": "yes"}
    sandbox = deadstop.Sandbox.create(ttl=30, metadata=label, detached=True, server=f"unix://{cutting.path}")
    assert len([each for each in cutting.requests if each.startswith(b"POST /v1/sandboxes ")]) == 3
    assert [each.id for each in deadstop.Sandbox.list("live", label, server=server.url)] == [sandbox.id]
    before = sandbox.time_left
    cutting.cuts = 1
    assert sandbox.extend(100)["added_s"] == 100
    assert sandbox.refresh().time_left < before + 101  # not twice
    sandbox.kill()
    cutting.close()


def test_a_command_whose_answer_is_lost_runs_once(server: Served, tmp_path: Path) -> None:
    cutting = Cutting(server.url, tmp_path, 0)
    with deadstop.Sandbox.create(ttl=30, server=f"unix://{cutting.path}") as sandbox:
        cutting.cuts = 2
        result = sandbox.exec("echo ran | tee -a /tmp/ran")
        assert cutting.cuts == 0
        assert result.unwrap() == "ran\n"
        assert sandbox.files.read_text("/tmp/ran") == "ran\n"
        cutting.cuts = 1
        again = sandbox.exec("echo streamed >> /tmp/streamed; sleep 0.5", on_output=lambda *_: None)
        assert again.status in ("completed", "cancelled")  # the server ends what has lost its client
        assert sandbox.exec("cat /tmp/streamed").stdout.tail in ("", "streamed\n")
    cutting.close()


def test_what_is_lost_again_and_again_is_given_up(server: Served, tmp_path: Path) -> None:
    cutting = Cutting(server.url, tmp_path, 100)
    begin = time.monotonic()
    with pytest.raises(ServerUnreachable, match="closed the connection"):
        deadstop.Sandbox.create(ttl=5, detached=True, server=f"unix://{cutting.path}")
    assert time.monotonic() - begin < 5
    cutting.close()


def test_without_a_server_the_error_says_what_to_do(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(ServerUnreachable, match="deadstop serve"):
        deadstop.Sandbox.create(server=f"unix://{tmp_path}/none.sock")
    assert time.monotonic() - begin < 1
    with pytest.raises(deadstop.UsageError, match="unix:///"):
        deadstop.Sandbox.create(server="ftp://here")


def test_what_the_server_refuses_is_an_error_of_ours(server: Served) -> None:
    with pytest.raises(deadstop.UsageError, match="name"):
        deadstop.Sandbox.create(name="no/name", server=server.url)
    with pytest.raises(NotFound) as caught:
        deadstop.Sandbox.create("no-such-template", server=server.url)
    assert caught.value.kind == "template"
    for options in ({"ttl": 0}, {"ttl": float("inf")}, {"cpus": -1}, {"metadata": {"a": 1}}, {"before_stop": 5}):
        with pytest.raises(deadstop.UsageError):
            deadstop.Sandbox.create(server=server.url, **options)


def test_nothing_of_http_is_loaded_before_it_is_needed() -> None:
    text = "import sys, deadstop; deadstop.Sandbox; deadstop.AsyncSandbox; print('httpx2' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", text], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, timeout=20
    )
    assert done.stdout == b"False\n", done.stderr


# -- the async face ------------------------------------------------------------------------------------------------


def test_the_async_face(server: Served) -> None:
    async def main() -> None:
        heard: list[float] = []

        async def on_extended(_: deadstop.AsyncSandbox, seconds: float) -> None:
            heard.append(seconds)

        async with await deadstop.AsyncSandbox.create(ttl=60, on_extended=on_extended, server=server.url) as sandbox:
            results = await asyncio.gather(*(sandbox.exec(f"sleep 0.3; echo {number}") for number in range(5)))
            assert [result.unwrap() for result in results] == [f"{number}\n" for number in range(5)]
            running = asyncio.create_task(sandbox.exec("sleep 64"))
            await asyncio.sleep(0.3)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            process = next(each for each in await sandbox.processes() if "sleep 64" in each.cmd)
            result = await process.wait(3)
            assert result is not None and result.status is deadstop.Status.CANCELLED
            items = [item async for item in sandbox.exec_stream("echo streamed")]
            assert items[0] == ("stdout", b"streamed\n") and len(items) == 2
            async with await sandbox.session("bash") as shell:
                await shell.run("x=5")
                assert (await shell.run("echo $x")).stdout == "5\n"
            await sandbox.extend(3)
            for _ in range(100):
                if heard:
                    break
                await asyncio.sleep(0.02)
            assert heard == [3.0]
        assert sandbox.status == "ended" and sandbox.receipt is not None

    asyncio.run(main())
