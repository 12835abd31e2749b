# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a table: one case a line
"""What agents usually run works in a sandbox, and what cannot work by design fails clearly."""

from __future__ import annotations

import os
import shutil
from typing import Any, NamedTuple

import pytest

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


class Case(NamedTuple):
    name: str
    needs: str  # programs and, with a leading /, files that the host has to have
    script: str  # bash
    says: str


MULTIPROCESSING = """
import multiprocessing as mp
from multiprocessing import shared_memory
def square(x): return x * x
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with mp.get_context(method).Pool(2) as pool: print(method, pool.map(square, range(4)))
    block = shared_memory.SharedMemory(create=True, size=1000); block.close(); block.unlink()
    with mp.Manager() as manager: print(manager.dict(a=1))
"""
ASYNCIO = """
import asyncio
async def main():
    child = await asyncio.create_subprocess_exec("echo", "from a child", stdout=-1)
    print((await child.communicate())[0].decode())
    server = await asyncio.start_server(lambda r, w: (w.write(b"from a server"), w.close()), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    print((await reader.read()).decode()); writer.close()
asyncio.run(main())
"""
SQLITE = """
import sqlite3
base = sqlite3.connect("a.db")
print(base.execute("pragma journal_mode=wal").fetchone()[0])
base.execute("create table t(x)"); base.execute("insert into t values(42)"); base.commit()
print(sqlite3.connect("a.db").execute("select x from t").fetchone()[0])
"""
THREADS = '#include <thread>\n#include <cstdio>\nint main(){std::thread t([]{puts("from a thread");});t.join();}'
NODE_SERVER = """
const http = require("http");
const server = http.createServer((q, r) => r.end("ok")).listen(0, "127.0.0.1", () =>
  http.get({port: server.address().port, host: "127.0.0.1"}, r => { console.log("status", r.statusCode); process.exit(); }));
"""
NODE_WORKER = 'new (require("worker_threads").Worker)("console.log(6*7)", {eval: true})'
KERNEL_OBJECTS = """
import ctypes, fcntl, os, select, signal, tempfile, threading
libc = ctypes.CDLL(None)
fds = [libc.inotify_init1(0), os.memfd_create("a"), os.eventfd(1), os.pidfd_open(os.getpid()), libc.timerfd_create(1, 0)]
assert min(fds) > 2, fds
with tempfile.NamedTemporaryFile() as file: fcntl.flock(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_EX)
os.mkfifo("fifo"); select.epoll(); os.sched_getaffinity(0); signal.pthread_sigmask(signal.SIG_BLOCK, [10])
print("made")
"""
JAVA = "-Xmx128m -XX:CompressedClassSpaceSize=32m -XX:ReservedCodeCacheSize=32m"

CASES = [
    Case("python", "python3", 'python3 -c "import ssl, sqlite3, ctypes, hashlib; print(hashlib.sha1().name)"', "sha1"),
    Case("venv", "python3", "python3 -m venv --without-pip ve && ve/bin/python -c 'import sys; print(sys.prefix)'", "/home/agent/ve"),
    Case("venv with pip", "python3 ensurepip", "python3 -m venv ve && ve/bin/pip --version", "pip "),
    Case("sqlite", "python3", f"python3 - <<'END'\n{SQLITE}END", "wal\n42"),
    Case("multiprocessing", "python3", f"cat > m.py <<'END'\n{MULTIPROCESSING}END\npython3 m.py", "forkserver [0, 1, 4, 9]\n{'a': 1}"),
    Case("asyncio", "python3", f"python3 - <<'END'\n{ASYNCIO}END", "from a server"),
    Case("kernel objects", "python3", f"python3 - <<'END'\n{KERNEL_OBJECTS}END", "made"),
    Case("localhost by name", "python3", 'python3 -c "import socket; print(socket.gethostbyname(\'localhost\'))"', "127.0.0.1"),
    Case("time zones", "python3 /usr/share/zoneinfo/Europe/Paris",
         "python3 -c \"import zoneinfo; print(zoneinfo.ZoneInfo('Europe/Paris'))\" && TZ=Europe/Paris date +%Z", "Europe/Paris\nCE"),
    Case("node", "node", "node -e 'console.log(require(\"os\").cpus().length > 0)'", "true"),
    Case("node worker", "node", f"node -e '{NODE_WORKER}'", "42"),
    Case("node server", "node", f"cat > s.js <<'END'\n{NODE_SERVER}END\nnode s.js", "status 200"),
    Case("npm offline", "node npm",
         "mkdir pk app && echo '{\"name\":\"leftp\",\"version\":\"1.0.0\",\"main\":\"i.js\"}' > pk/package.json && "
         "echo 'module.exports=42' > pk/i.js && cd pk && npm pack --silent --offline && cd ../app && npm init -y >/dev/null && "
         "npm install --offline --no-audit --no-fund ../pk/leftp-1.0.0.tgz && node -e 'console.log(require(\"leftp\"))'", "42"),
    Case("git", "git", "git init -q r && cd r && git -c user.email=a@b -c user.name=a commit -q --allow-empty -m first && "
         "cd .. && git clone -q r c && git -C c log --oneline", "first"),
    Case("gcc", "gcc", "printf '#include <stdio.h>\\nint main(){puts(\"compiled\");}' > h.c && gcc -O2 h.c -o h && ./h", "compiled"),
    Case("g++ with threads", "g++", f"cat > h.cc <<'END'\n{THREADS}\nEND\ng++ h.cc -o h -pthread && ./h", "from a thread"),
    Case("make", "make", "printf 'all:\\n\\t@echo made\\n' > Makefile && make", "made"),
    Case("perl", "perl", "perl -MPOSIX -e 'print 6*7'", "42"),
    Case("java", "java", f"java {JAVA} -version 2>&1", "version"),
    Case("curl on loopback", "curl python3", "python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 & "
         "curl -sS --retry 20 --retry-delay 1 --retry-connrefused -o /dev/null -w '%{http_code}' http://127.0.0.1:8123/; kill $!", "200"),
    Case("ps", "ps", "ps -e -o comm= | sort | tail -20", "bash"),
    Case("free and df", "free df", "free -m >/dev/null && df /tmp /home/agent | tail -1", "/home/agent"),
    Case("job control", "bash sleep", "bash -ic 'set -m; sleep 0.1 & jobs; fg; echo continued' 2>/dev/null", "continued"),
    Case("background wait", "sleep", "for i in 1 2 3; do sleep 0.1 & done; wait; echo waited", "waited"),
    Case("own terminal", "script", "script -qec 'bash -c \"tty; stty size; sleep 0.1 & wait; echo okpty\"' /dev/null", "okpty"),
    Case("locale", "locale", "locale | head -1", "C.UTF-8"),
    Case("who am I", "id getent", "id -un && getent passwd agent | cut -d: -f6 && whoami && pwd", "agent\n/home/agent\nagent\n/home/agent"),
    Case("temporary files", "mktemp", 'f=$(mktemp) && echo kept > $f && cat $f && ls -d /var/tmp/', "kept"),
    Case("tar and install", "tar install", "echo x > f && tar czf a.tgz f && rm f && tar xzf a.tgz && install -m 755 f g && test -x g && cat g", "x"),
    Case("script without #!", "", "printf 'echo plain\\n' > s && chmod +x s && ./s", "plain"),
    Case("unix tools", "sed awk find xargs sort", "seq 9 | awk '{s+=$1} END {print s}' && find /etc -maxdepth 1 -name passwd | xargs wc -l", "45\n3"),
    Case("openssl", "openssl", "openssl rand -hex 4 | wc -c", "9"),
    Case("certificates", "/etc/ssl/certs/ca-certificates.crt python3",
         "python3 -c 'import ssl; print(ssl.create_default_context().cert_store_stats()[\"x509_ca\"] > 9)'", "True"),
]  # fmt: skip

# (name, needs, script): it has to end by itself, with a failure
REFUSED = [
    Case("sudo", "sudo", "sudo -n id", ""),
    Case("su", "su", "su -c id", ""),
    Case("installing packages", "apt-get", "apt-get install -y hello", ""),
    Case("another owner", "chown", "touch f && chown 12345:12345 f", ""),
    Case("root as owner", "chown", "touch f && chown 0:0 f", ""),
    Case("setuid bit", "chmod", "touch f && chmod u+s f", ""),
    Case("setgid bit", "chmod", "mkdir d && chmod g+s d", ""),
    Case("mount", "mount", "mount -t tmpfs none /tmp", ""),
    Case("new user namespace", "unshare", "unshare -Ur true", ""),
    Case("tracing", "strace", "strace true", ""),
    Case("names outside", "getent", "getent hosts example.com", ""),
    Case("connecting outside", "curl", "curl -sS -m 5 http://192.0.2.1/", ""),
    Case("kernel log", "dmesg", "dmesg", ""),
    Case("changing the system", "", "echo x > /etc/motd", ""),
    Case("setting the clock", "date", "date -s 12:00", ""),
]  # fmt: skip


def missing(case: Case) -> list[str]:
    """What the host lacks for this case."""
    lacking = []
    for need in case.needs.split():
        if need == "ensurepip":
            found = any(os.path.isdir(f"/usr/lib/python3.{minor}/ensurepip") for minor in range(8, 20))
        elif need.startswith("/"):
            found = os.path.exists(need)
        else:
            found = shutil.which(need, path=SYSTEM_PATH) is not None
        if not found:
            lacking.append(need)
    return lacking


def require(case: Case) -> None:
    if lacking := missing(case):
        pytest.skip(f"this host has no {', '.join(lacking)} in {SYSTEM_PATH}")


# Of root's the same room is used by every test of a kept sandbox.
@pytest.mark.parametrize("starter", ["user"], indirect=True)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_works(starter: Any, case: Case) -> None:
    require(case)
    assert case.says in starter.output("/bin/bash", "-c", case.script)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_it_is_refused_by_design(starter: Any, case: Case) -> None:
    require(case)
    result = starter.run("/bin/bash", "-c", case.script)
    assert result["status"] == "completed", result
    assert result["exit_code"] != 0, result
    assert result["stderr"]["tail"] or result["stdout"]["tail"] or case.name == "names outside"


def test_a_command_can_clean_up_at_its_deadline(starter: Any) -> None:
    script = "trap 'echo cleaned up; exit 0' TERM; sleep 30 & wait"
    result = starter.run("/bin/bash", "-c", script, options=["--timeout", "500ms", "--grace", "5s"])
    assert result["status"] == "timeout"
    assert result["stdout"]["tail"] == "cleaned up\n"
    assert result["receipt"]["survivors"] == 0
