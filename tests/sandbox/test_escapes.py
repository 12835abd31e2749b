# SPDX-License-Identifier: Apache-2.0
"""Known ways out of a sandbox, tried from inside. The test plants all there is to find."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pty
import secrets
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Row = Any
PROBE = Path(__file__).with_name("probe_escape.py").read_text()
GRANTED = {"done", "opened", "seen", "connected", "made", "given", "told", "resolved", "found", "visible", 0}
libc = ctypes.CDLL(None, use_errno=True)
CALLS = {
    "x86_64": {
        "unshare": 272, "clone": 56, "setns": 308, "ioctl": 16, "ptrace": 101, "process_vm_readv": 310,
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "add_key": 248, "request_key": 249,
        "keyctl": 250, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "kexec_load": 246,
        "init_module": 175, "open_by_handle_at": 304, "fanotify_init": 300, "syslog": 103, "reboot": 169,
        "swapon": 167,
        "personality": 135, "settimeofday": 164, "sethostname": 170,
    },
    "aarch64": {
        "unshare": 97, "clone": 220, "setns": 268, "ioctl": 29, "ptrace": 117, "process_vm_readv": 270,
        "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "add_key": 217, "request_key": 218,
        "keyctl": 219, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "kexec_load": 104,
        "init_module": 105, "open_by_handle_at": 265, "fanotify_init": 262, "syslog": 116, "reboot": 142,
        "swapon": 224,
        "personality": 92, "settimeofday": 170, "sethostname": 161,
    },
}  # fmt: skip


SECRET_NAMES = [
    "DEADSTOP_TEST_CANARY",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "SSH_AUTH_SOCK",
    "npm_config__auth",
]


class Planted:
    """Things of the host that a sandbox must not reach, and what was left of them afterwards."""

    def __init__(self, starter: Any, stack: contextlib.ExitStack) -> None:
        self.canary = f"DEADSTOP-CANARY-{secrets.token_hex(8)}"
        self.folder = Path(tempfile.mkdtemp(prefix="deadstop-planted-", dir="/tmp"))
        stack.callback(shutil.rmtree, self.folder)
        self.folder.chmod(0o755)
        self.secret = self.folder / "secret"
        self.secret.write_text(self.canary)
        self.secret.chmod(0o666)
        self.project = self.folder / "project"
        self.project.mkdir()
        os.chown(self.project, starter.uid, starter.gid)
        (self.project / "planted-link").symlink_to(self.secret)
        self._sockets(stack)
        self._shared(stack)
        self.environment = starter.environment(**dict.fromkeys(SECRET_NAMES, self.canary))
        sleeper = [*starter.prefix, "/usr/bin/sleep", "120"]
        self.bystander = subprocess.Popen(sleeper, env=self.environment, stdin=subprocess.DEVNULL)
        stack.callback(self.bystander.wait)
        stack.callback(self.bystander.kill)
        self.terminal, self.slave = pty.openpty()
        stack.callback(os.close, self.terminal)
        stack.callback(os.close, self.slave)
        os.fchmod(self.slave, 0o666)
        self.leaked = os.open(self.secret, os.O_RDWR)
        stack.callback(os.close, self.leaked)

    def _sockets(self, stack: contextlib.ExitStack) -> None:
        self.abstract = f"deadstop-{secrets.token_hex(6)}"
        self.path = str(self.folder / "host.sock")
        for name in ("\0" + self.abstract, self.path):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(name)
            listener.listen()
        os.chmod(self.path, 0o777)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port = tcp.getsockname()[1]

    def _shared(self, stack: contextlib.ExitStack) -> None:
        self.shm = Path(f"/dev/shm/deadstop-{secrets.token_hex(6)}")
        self.shm.write_text(self.canary)
        self.shm.chmod(0o666)
        stack.callback(self.shm.unlink)
        self.shm_key = secrets.randbelow(1 << 30) + 1
        segment = libc.shmget(self.shm_key, ctypes.c_size_t(4096), 0o1666)
        assert segment >= 0
        stack.callback(libc.shmctl, segment, 0, None)
        self.queue = f"/deadstop-{secrets.token_hex(6)}"
        rt = ctypes.CDLL("librt.so.1")
        queue = rt.mq_open(self.queue.encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
        if queue >= 0:
            os.close(queue)
            stack.callback(rt.mq_unlink, self.queue.encode())

    def config(self, most_processes: int) -> str:
        return json.dumps({
            "canary": self.canary, "secret": str(self.secret), "calls": CALLS[os.uname().machine],
            "host_pid": self.bystander.pid, "abstract": self.abstract, "socket": self.path, "port": self.port,
            "shm_key": self.shm_key, "queue": self.queue, "most_processes": most_processes,
        })  # fmt: skip

    def own_terminal(self) -> None:
        os.setsid()
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def typed(self) -> int:
        """Bytes that somebody pushed into the terminal's input."""
        answer = fcntl.ioctl(self.slave, termios.FIONREAD, b"\0\0\0\0")
        return int(struct.unpack("i", answer)[0])


@pytest.fixture(scope="module")
def planted(starter: Any) -> Iterator[Planted]:
    if os.uname().machine not in CALLS:
        pytest.skip("no system call numbers for this architecture")
    with contextlib.ExitStack() as stack:
        yield Planted(starter, stack)


@pytest.fixture(scope="module")
def results(starter: Any, planted: Planted, binding: Callable[..., list[str]]) -> dict[str, Row]:
    """What every attempt gave: the probe is run once per kind of user."""
    options = ["--pids", "64", "--disk", "32M", *binding(planted.project, "/project")]
    result = starter.run(
        "/usr/bin/python3", "-I", "-c", PROBE, planted.config(200), options=options, env=planted.environment,
        pass_fds=[planted.leaked], stdin=planted.slave, preexec_fn=planted.own_terminal,
    )  # fmt: skip
    assert (result["status"], result["exit_code"]) == ("completed", 0), result
    found: dict[str, Row] = json.loads(result["stdout"]["tail"])
    return found


def granted(row: Row) -> list[str]:
    """Names of the attempts that were let through; a row that was not tried at all is no answer."""
    assert isinstance(row, dict), row
    assert row
    return [f"{name}: {value}" for name, value in row.items() if value in GRANTED]


ROWS = [
    "kernel_settings", "shadow_and_secrets", "devices", "namespaces", "other_processes_memory",
    "host_sockets",
    "network", "mounting", "kernel_interfaces", "writing_system_files", "kernel_knowledge", "set_id_bits",
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_nothing_is_granted(results: dict[str, Row], row: str) -> None:
    tried = {name: value for name, value in results[row].items() if not isinstance(value, list)}
    assert granted(tried) == []


LEADS = ["same_root_everywhere", "environments_of_everybody", "memory_of_helpers_is_no_more_than_ours"]


@pytest.mark.parametrize("row", LEADS)
def test_other_processes_lead_nowhere(results: dict[str, Row], row: str) -> None:
    assert results[row] == []


def test_the_environment_is_the_sandboxs_own(results: dict[str, Row], planted: Planted) -> None:
    inside = results["own_environment"]
    assert planted.canary not in "".join(inside.values())
    assert not set(inside) & {*SECRET_NAMES, "PYTHONPATH"}
    assert inside["HOME"] == "/home/agent"


def test_only_the_three_standard_descriptors_arrive(results: dict[str, Row]) -> None:
    arrived = {fd: link for fd, link in results["own_descriptors"].items() if not link.startswith("/proc/")}
    assert set(arrived) == {"0", "1", "2"}, arrived


def test_no_output_is_a_file_of_the_host(results: dict[str, Row]) -> None:
    links = {link for link in results["descriptors_of_everybody"].values() if not link.startswith("/proc/")}
    assert links
    assert [link for link in links if not link.startswith(("pipe:", "anon_inode:", "socket:", "/dev/null"))] == []


def test_no_way_to_root(results: dict[str, Row]) -> None:
    row = results["becoming_root"]
    assert row["no_new_privs"] == "1"
    assert row["seccomp"] == "2"
    assert set(row["uids"]) == set(row["gids"]) == {"1000"}
    assert not any(row["capabilities"].values())
    assert granted(row["ids"]) == []
    assert row["setgroups"] not in GRANTED


def test_setuid_programs_are_inert(results: dict[str, Row]) -> None:
    row = results["setuid_programs"]
    assert all(row["nosuid"].values()), row
    if isinstance(row["su"], list):
        assert row["su"][0] != 0


def test_a_terminal_takes_no_input_from_inside(results: dict[str, Row], planted: Planted) -> None:
    row = results["terminal_input"]
    assert granted(row["pushed"]) == []
    assert row["controlling terminal"] != "there is one"
    assert planted.typed() == 0


def test_pid_1_and_the_host_survive_signals(results: dict[str, Row], planted: Planted) -> None:
    row = results["signals"]
    assert row["pid 1 is"] in "SDR"
    assert row["host pid"] == "ESRCH"
    assert planted.bystander.poll() is None


def test_shared_memory_is_not_shared(results: dict[str, Row], planted: Planted) -> None:
    row = results["shared_memory"]
    assert row["files"] == []
    assert row["sysv"] == row["posix queue"] == "absent"
    assert planted.shm.name not in str(row)


def test_only_a_loopback_interface(results: dict[str, Row]) -> None:
    assert results["network"]["interfaces"] == ["lo"]


def test_control_groups_are_out_of_sight(results: dict[str, Row]) -> None:
    row = results["control_groups"]
    assert not row["mounted"]
    assert not [name for name in row["names"] if "deadstop" in name or ".." in name], row


def test_socket_families(results: dict[str, Row]) -> None:
    row = results["socket_families"]
    assert granted(row["closed"]) == []
    assert {name for name, value in row["usual"].items() if value == "made"} >= {"unix", "tcp", "route"}


def test_foreign_system_call_tables_kill(results: dict[str, Row]) -> None:
    assert set(results["foreign_calls"].values()) <= {-signal.SIGSYS}


def test_counts_are_bounded(results: dict[str, Row]) -> None:
    processes, descriptors, inotify = (results[f"{name}_limit"] for name in ("process", "descriptor", "inotify"))
    assert processes[1] == "EAGAIN"
    assert 16 <= processes[0] <= 70
    assert descriptors[1] == "EMFILE"
    assert inotify[1] == "EMFILE"
    assert inotify[0] <= 128


def test_with_net_the_hosts_network_is_shared(starter: Any, planted: Planted) -> None:
    code = f"import socket; socket.create_connection(('127.0.0.1', {planted.port}), 5); print('connected')"
    assert starter.output("/usr/bin/python3", "-I", "-c", code, options=["--net"]) == "connected\n"
    assert starter.run("/usr/bin/python3", "-I", "-c", code)["exit_code"] == 1


@pytest.mark.parametrize("folder", ["/tmp", "/home/agent", "/run", "/dev/shm"])
def test_private_files_are_bounded(starter: Any, folder: str) -> None:
    """The supervisor ends a sandbox whose private files are full, if the payload does not end first."""
    fill = f"dd if=/dev/zero of={folder}/fill bs=1M count=256; ls -s --block-size=1M {folder}/fill; exit 7"
    result = starter.run("/bin/sh", "-c", fill, options=["--disk", "32M"])
    assert (result["status"], result["exit_code"]) in (("resource_limit", None), ("completed", 7)), result
    if result["status"] == "resource_limit":
        assert result["limit"]["which"] == "disk"
    else:
        assert int(result["stdout"]["tail"].split()[0]) <= 32


def test_the_bound_folder_holds_no_set_id_file(results: dict[str, Row], starter: Any, planted: Planted) -> None:
    """Seen from the host: what the payload made belongs to the folder's owner and gives nobody any rights."""
    assert granted(results["set_id_bits"]) == []
    made = planted.project / "program"
    seen = made.stat()
    assert not seen.st_mode & (stat.S_ISUID | stat.S_ISGID)
    assert (seen.st_uid, seen.st_gid) == (starter.uid, starter.gid)
    assert "security.capability" not in os.listxattr(made)
    assert planted.secret.read_text() == planted.canary


def test_ending_the_holder_of_the_room_is_no_success(starter: Any) -> None:
    """The payload may end its own room. It must not end as completed, and nothing may be left."""
    code = "import os, signal, time\nfor pid in (2, 1): os.kill(pid, signal.SIGKILL)\ntime.sleep(40)"
    result = starter.run("/usr/bin/python3", "-I", "-c", code)
    assert result["status"] in ("signaled", "crashed", "unknown"), result
    assert result["receipt"] is None or result["receipt"]["survivors"] == 0


def test_a_corrupted_pid_1_is_no_success(starter: Any) -> None:
    code = """
import os, time
for pid in (1, 2):
    try:
        maps = [line.split() for line in open(f"/proc/{pid}/maps")]
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            for span, mode, *_ in maps:
                start, end = (int(point, 16) for point in span.split("-"))
                for page in range(start, end, 4096) if "x" in mode and end < 1 << 47 else ():
                    memory.seek(page); memory.write(b"\\xcc" * 4096)
    except OSError as error: print(error)
try: os.write(os.open("/proc/2/fd/0", os.O_WRONLY), b"x")
except OSError as error: print(error)
print("alive", flush=True)
time.sleep(1)
"""
    result = starter.run("/usr/bin/python3", "-I", "-c", code)
    assert result["receipt"] is None or result["receipt"]["survivors"] == 0
    assert result["status"] in ("completed", "signaled", "crashed", "unknown"), result
    if result["status"] == "completed":  # pid 1 could not be harmed
        assert result["exit_code"] == 0
        assert "alive" in result["stdout"]["tail"]


def test_private_files_do_not_outlive_their_sandbox(starter: Any) -> None:
    starter.output("/bin/sh", "-c", "echo left > /tmp/left; echo left > ~/left; echo left > /dev/shm/left")
    assert starter.output("/bin/sh", "-c", "ls -A /tmp ~ /dev/shm | grep left || echo clean") == "clean\n"


def test_a_read_only_bind_is_read_only(starter: Any, planted: Planted, binding: Callable[..., list[str]]) -> None:
    options = binding(planted.folder, "/data", writable=False)
    script = "cd /data; cat secret; echo changed >secret; touch new; rm -f secret; chmod 7 secret"
    result = starter.run("/bin/sh", "-c", script, options=options)
    assert planted.canary in result["stdout"]["tail"]
    assert planted.secret.read_text() == planted.canary
    assert sorted(os.listdir(planted.folder)) == ["host.sock", "project", "secret"]
