# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 (one case per line reads best as a table)
"""The zoo: commands that do not end, each with the kinds a diagnosis may give and the program it must blame.

`{silent}`, `{headers_only}`, `{websocket}`, `{asks_for_login}` become ports of loopback servers, `{tmp}` a
folder of the case's own, `{zoo}` the folder of payloads, `{python}` this interpreter. The lists
HELD_OUT and HELD_OUT_LATER were written before the rules had been run on them.
"""

from __future__ import annotations

from dataclasses import dataclass

INPUT, NETWORK = "waiting_for_input", "network_wait"


@dataclass(frozen=True)
class Zoo:
    name: str
    kinds: str | tuple[str, ...]
    command: str | list[str]
    blamed: str = ""
    stdin: str = "null"
    needs: tuple[str, ...] = ()
    busy: bool = False  # it never goes quiet: look after a fixed time
    root: bool = False  # it needs namespaces or control groups made here
    ordinary: bool = False  # it is only asked for something when it is not root
    ready: bytes = b""  # it has settled when it has printed this: for programs whose own threads never rest
    limits: tuple[tuple[str, int], ...] = ()  # control group limits: ("pids", n), ("memory", MiB)


def payload(name: str, *arguments: str) -> list[str]:
    return ["{python}", "{zoo}/" + name, *arguments]


def inline(code: str) -> list[str]:
    return ["{python}", "-c", code]


URL = "http://127.0.0.1:{silent}/"
# Swallows every packet: a pair of devices with nobody behind, in a network namespace that ends with the
# command.
NOWHERE = [
    "unshare", "-n", "-m", "sh", "-c",
    "ip link set lo up; ip link add d0 type veth peer name d1; ip addr add 10.66.0.1/24 dev d0; "
    "ip link set d0 up; ip link set d1 up; ip neigh add 10.66.0.2 lladdr 02:00:00:00:00:99 dev d0; "
    "ip neigh add 10.66.0.53 lladdr 02:00:00:00:00:98 dev d0; "
    'echo nameserver 10.66.0.53 > {tmp}/resolv; mount --bind {tmp}/resolv /etc/resolv.conf; exec "$@"', "x",
]  # fmt: skip

INPUT_CASES = [
    Zoo("bash read", INPUT, "read -p 'Go on? ' x", "bash", "open"),
    Zoo("bash read terminal", INPUT, "read -p 'Go on? ' x", "bash", "tty"),
    Zoo("python input", INPUT, inline("input('name: ')"), "python", "open"),
    Zoo("python input terminal", INPUT, inline("input('name: ')"), "python", "tty"),
    Zoo("python getpass", INPUT, inline("import getpass; getpass.getpass()"), "python", "tty"),
    Zoo("python prompt", INPUT, ["{python}", "-i"], "python", "tty"),
    Zoo("su password", INPUT, ["su", "-c", "true"], "su", "tty", ("su",), ordinary=True),
    Zoo("cat", INPUT, ["cat"], "cat", "open"),
    Zoo("cat in a pipeline", INPUT, "cat | wc -l", "cat", "open"),
    Zoo("perl question", INPUT, ["perl", "-e", '$|=1;print "Continue? [Y/n] ";<STDIN>'], "perl", "open", ("perl",)),
    Zoo("git asks for a login", INPUT, ["git", "ls-remote", "http://127.0.0.1:{asks_for_login}/x.git"],
        "git-remote-http", "tty", ("git",)),
    Zoo("npm init", INPUT, "cd {tmp} && npm init", "npm", "tty", ("npm",)),
    Zoo("less", INPUT, ["less", "/etc/services"], "less", "tty", ("less",)),
    Zoo("vi", INPUT, ["vi", "{tmp}/x"], "vi", "tty", ("vi",)),
    Zoo("psql password", INPUT, ["psql", "-W", "-h", "127.0.0.1", "-p", "{silent}"], "psql", "tty", ("psql",)),
    Zoo("sqlite3 shell", INPUT, ["sqlite3"], "sqlite3", "tty", ("sqlite3",)),
    Zoo("select on stdin", INPUT, payload("poller.py", "select"), "python", "open"),
    Zoo("poll on stdin", INPUT, payload("poller.py", "poll"), "python", "open"),
    Zoo("epoll on stdin", INPUT, payload("poller.py", "epoll"), "python", "open"),
    Zoo("select on stdin every 0.5 s", INPUT, payload("poller.py", "select_again"), "python", "open"),
    Zoo("node readline", INPUT, ["node", "{zoo}/readline.js"], "node", "open", ("node",)),
    Zoo("node readline terminal", INPUT, ["node", "{zoo}/readline.js"], "node", "tty", ("node",)),
    Zoo("asyncio stdin", INPUT, payload("asyncio_stdin.py"), "python", "open"),
    Zoo("asyncio stdin in a thread", INPUT, payload("asyncio_thread_stdin.py"), "python", "open"),
    Zoo("java reads", INPUT, ["java", "{zoo}/Reads.java"], "java", "open", ("java",), ready=b"Enter: "),
    Zoo("bash asks /dev/null again", INPUT,
        'while [ -z "$a" ]; do printf "* Project name: "; read -r a; echo "* Please enter some text."; done',
        "bash", busy=True),
]  # fmt: skip

NETWORK_CASES = [
    Zoo("curl, silent server", NETWORK, ["curl", "-s", URL], "curl", needs=("curl",)),
    Zoo("curl with stdin open", NETWORK, ["curl", "-s", URL], "curl", "open", ("curl",)),
    Zoo("curl TLS stalled", NETWORK, ["curl", "-sk", "https://127.0.0.1:{silent}/"], "curl", needs=("curl",)),
    Zoo("http long poll", NETWORK, ["curl", "-sN", "http://127.0.0.1:{headers_only}/"], "curl", needs=("curl",)),
    Zoo("python TLS stalled", NETWORK, payload("connect.py", "127.0.0.1", "{silent}", "tls"), "python"),
    Zoo("send to one who does not read", NETWORK, payload("connect.py", "127.0.0.1", "{silent}", "send"), "python"),
    Zoo("websocket idle", NETWORK, payload("websocket_idle.py", "{websocket}"), "python"),
    Zoo("node fetch", NETWORK, ["node", "-e", "fetch('" + URL + "')"], "node", needs=("node",)),
    Zoo("thread pool on the network", NETWORK, payload("pool_network.py", "{silent}"), "python"),
    Zoo("git ls-remote", NETWORK, ["git", "ls-remote", URL + "x.git"], "git-remote-http", needs=("git",), busy=True),
    Zoo("curl blackhole", NETWORK, [*NOWHERE, "curl", "-s", "http://10.66.0.2/"], "curl",
        needs=("curl", "ip", "unshare"), root=True),
    Zoo("python blackhole", NETWORK, [*NOWHERE, *payload("connect.py", "10.66.0.2", "443")], "python",
        needs=("ip", "unshare"), root=True),
    Zoo("dead DNS", NETWORK, [*NOWHERE, *payload("connect.py", "a.example", "80")], "python",
        needs=("ip", "unshare"), root=True),
]  # fmt: skip

QUIET_CASES = [
    Zoo("sleep", "sleeping", ["sleep", "1000"], "sleep"),
    Zoo("python sleep", "sleeping", inline("import time; time.sleep(1000)"), "python"),
    Zoo("asyncio sleep", "sleeping", inline("import asyncio; asyncio.run(asyncio.sleep(1000))"), "python"),
    Zoo("node timer", "sleeping", ["node", "-e", "setTimeout(()=>{},1e6)"], "node", needs=("node",)),
    Zoo("waits for a sleeping child", "sleeping", "sleep 1000 & wait", "sleep"),
    Zoo("chain of shells", "sleeping", "bash -c 'bash -c \"sleep 1000; true\"; true'; true", "sleep"),
    Zoo("process pool", "sleeping", payload("process_pool.py"), "python"),
    Zoo("two locks", "lock_wait", payload("two_locks.py"), "python"),
    Zoo("own lock", "lock_wait", inline("import threading as t; a=t.Lock(); a.acquire(); a.acquire()"), "python"),
    Zoo("event never set", "lock_wait", inline("import threading; threading.Event().wait()"), "python"),
    Zoo("flock", "lock_wait", payload("file_lock.py", "{tmp}/lock", "flock"), "python"),
    Zoo("sqlite busy", "lock_wait", payload("sqlite_busy.py", "{tmp}/db"), "python", busy=True),
    Zoo("stopped", "stopped", "kill -STOP $$", "bash"),
    Zoo("terminal read from the background", "stopped",
        inline("import subprocess; subprocess.Popen(['cat'], process_group=0).wait()"), "cat", "tty"),
    Zoo("full pipe", "pipe_wait", "yes | sleep 1000", "sleep"),
    Zoo("unread output", "pipe_wait", payload("unread_output.py"), "python"),
    Zoo("own pipe", "pipe_wait", inline("import os; os.read(os.pipe()[0], 1)"), "python"),
    Zoo("pipe end leaked to a child", ("pipe_wait", "sleeping"), payload("leaked_pipe.py"), "python"),
    Zoo("named pipe", "pipe_wait", "mkfifo {tmp}/fifo; cat {tmp}/fifo", "cat"),
    Zoo("idle server", "serving", inline("import socket; socket.create_server(('127.0.0.1', 0)).accept()"), "python"),
    Zoo("http.server", "serving", ["{python}", "-m", "http.server", "-b", "127.0.0.1", "0"], "python"),
    Zoo("asyncio server, stdin open", "serving", payload("asyncio_server.py"), "python", "open"),
    Zoo("node server", "serving", ["node", "-e", "require('http').createServer().listen(0, '127.0.0.1')"], "node",
        needs=("node",)),
    Zoo("tail -f", "event_wait", ["tail", "-f", "/etc/passwd"], "tail"),
    Zoo("zombie", "zombie_wait",
        inline("import os, signal\nif os.fork() == 0: os._exit(0)\nsignal.pause()"), "python"),
]  # fmt: skip

BUSY_CASES = [
    Zoo("shell spin", "cpu_spin", "while true; do :; done", "bash", busy=True),
    Zoo("regular expression", "cpu_spin", inline("import re; re.match(r'(a+)+$', 'a'*60+'b')"), "python", busy=True),
    Zoo("big integer", "cpu_spin", inline("pow(3, 10**9)"), "python", busy=True),
    Zoo("node spin", "cpu_spin", ["node", "-e", "for(;;);"], "node", needs=("node",), busy=True),
    Zoo("work beside a thread on stdin", "cpu_spin", payload("stdin_thread_work.py"), "python", "open", busy=True),
    Zoo("until false", "retry_loop", "until false; do sleep 0.2; done", busy=True),
    Zoo("until curl", "retry_loop", "until curl -sS http://127.0.0.1:9/; do sleep 0.3; done", needs=("curl",),
        busy=True),
    Zoo("python retries", "retry_loop", payload("retry.py"), "python", busy=True),
    Zoo("yes", "output_flood", ["yes"], "yes", busy=True),
    Zoo("node prints", ("output_flood", "cpu_spin"), ["node", "-e", "for(;;)console.log('x'.repeat(200))"], "node",
        needs=("node",), busy=True),
    Zoo("fork storm", "fork_storm", payload("storm.py"), busy=True, root=True, limits=(("pids", 100),)),
    Zoo("memory thrash", "memory_pressure", payload("thrash.py", "{tmp}/big"), "python", busy=True, root=True,
        limits=(("memory", 40),)),
    # It meets its limit as often as the one above, but only because the page cache does: it waits for nothing.
    Zoo("reads more than its memory", "cpu_spin",
        inline("import os; f = os.open('{tmp}/big', os.O_RDWR | os.O_CREAT); "
               "os.ftruncate(f, 300 << 20)\nwhile True:\n for n in range(300): os.pread(f, 1 << 20, n << 20)"),
        "python", busy=True, root=True, limits=(("memory", 40),)),
]  # fmt: skip

HELD_OUT = [
    Zoo("ssh-keygen overwrite", INPUT, "touch {tmp}/key; ssh-keygen -q -N '' -f {tmp}/key", "ssh-keygen", "tty",
        ("ssh-keygen",)),
    Zoo("script runs cat", INPUT, ["script", "-qc", "cat", "/dev/null"], "cat", "tty", ("script",)),
    Zoo("timeout runs cat", INPUT, ["timeout", "1000", "cat"], "cat", "open", ("timeout",)),
    Zoo("xargs", INPUT, ["xargs", "-n1", "echo"], "xargs", "open", ("xargs",)),
    Zoo("while read line", INPUT, "while read -r line; do echo $line; done", "bash", "open"),
    Zoo("sort | head", INPUT, "sort | head -1", "sort", "open"),
    Zoo("dd from stdin", INPUT, ["dd", "if=/dev/stdin", "of=/dev/null"], "dd", "open"),
    Zoo("openssl passphrase", INPUT, ["openssl", "enc", "-aes-256-cbc", "-pbkdf2", "-in", "/etc/passwd"], "openssl",
        "tty", ("openssl",)),
    Zoo("bash select", INPUT, "select x in a b; do break; done", "bash", "open"),
    Zoo("pdb", INPUT, inline("breakpoint(); x = 1"), "python", "open"),
    Zoo("node runs cat", INPUT,
        ["node", "-e", "require('child_process').spawnSync('cat', {stdio: 'inherit'})"], "cat", "open", ("node",)),
    Zoo("python asks /dev/null again", INPUT, payload("ask_again.py"), "python", busy=True),
    Zoo("shell confirms for ever", INPUT,
        "while true; do printf 'Continue? [y/N] '; read -r x; [ \"$x\" = y ] && break; done", "bash", busy=True),
    Zoo("ls fails for ever", ("retry_loop", "output_flood", "zombie_wait"), "while true; do ls /nonexistent; done", busy=True),
    Zoo("queue without producer", ("pipe_wait", "lock_wait"), payload("queue_without_producer.py"), "python"),
    Zoo("input of a child not closed", "pipe_wait", payload("unclosed_input.py")),
    Zoo("socket pair", "pipe_wait", payload("socket_pair.py"), "python"),
    Zoo("loopback circle", NETWORK, payload("loopback_circle.py", "reads"), "python"),
    Zoo("loopback server sleeps", ("sleeping", NETWORK), payload("loopback_circle.py", "sleeps"), "python"),
    Zoo("barrier", "lock_wait", payload("barrier.py"), "python"),
    Zoo("lockf", "lock_wait", payload("file_lock.py", "{tmp}/lock", "lockf"), "python"),
    Zoo("named pipe to itself", "pipe_wait", "mkfifo {tmp}/fifo; exec 3<>{tmp}/fifo; read -r x <&3", "bash"),
    Zoo("ssh to a silent server", NETWORK,
        ["ssh", "-F", "/dev/null", "-o", "BatchMode=yes", "-p", "{silent}", "127.0.0.1"], "ssh", needs=("ssh",)),
    Zoo("openssl s_client", NETWORK, ["openssl", "s_client", "-connect", "127.0.0.1:{silent}"], "openssl",
        needs=("openssl",)),
    Zoo("wget", NETWORK, ["wget", "-q", "-O", "-", URL], "wget", needs=("wget",)),
    Zoo("psql to a silent server", NETWORK, ["psql", "-w", "-h", "127.0.0.1", "-p", "{silent}"], "psql",
        needs=("psql",)),
    Zoo("until a port opens", "retry_loop", "until (echo > /dev/tcp/127.0.0.1/9) 2>/dev/null; do sleep 0.3; done",
        busy=True),
    Zoo("sha256sum /dev/zero", "cpu_spin", ["sha256sum", "/dev/zero"], "sha256sum", busy=True),
    Zoo("cat /dev/zero", "cpu_spin", "cat /dev/zero > /dev/null", "cat", busy=True),
    Zoo("sigwait", "event_wait", inline("import signal; signal.sigwait([signal.SIGUSR1])"), "python"),
    Zoo("tail -f | grep", "event_wait", "tail -f /etc/passwd | grep nobody-is-there", "tail"),
    Zoo("inotify", "event_wait", payload("inotify.py"), "python"),
    Zoo("stopped child", "stopped", "sleep 1000 & kill -STOP $!; wait", "sleep"),
    Zoo("stopped and continued", "sleeping", "sleep 1000 & kill -STOP $!; sleep 0.05; kill -CONT $!; wait", "sleep"),
    Zoo("thread pool sleeps", "sleeping", payload("pool_sleep.py"), "python"),
    Zoo("main thread gone", "sleeping", payload("main_thread_gone.py"), "python"),
    Zoo("udp server", "serving", payload("udp_server.py"), "python"),
    Zoo("waits for a file", "retry_loop",
        inline("import os, time\nwhile not os.path.exists('/nonexistent'): time.sleep(0.1)"), "python", busy=True),
    Zoo("stdin thread beside the network", NETWORK, payload("stdin_thread_network.py", "{silent}"), "python", "open"),
]  # fmt: skip

UNSHARED = [
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--net",
    "--mount",
    "--fork",
    "--kill-child",
    "--mount-proc",
]

HELD_OUT_LATER = [
    Zoo("hundred cats", INPUT, "cat" + " | cat" * 99 + " > /dev/null", "cat", "open"),
    Zoo("read | tee", INPUT, "(read -r a; echo $a) | tee {tmp}/log", "bash", "open"),
    Zoo("asyncio waits for sleep", "sleeping", payload("asyncio_child.py", "sleep", "1000"), "sleep"),
    Zoo("asyncio waits for cat", INPUT, payload("asyncio_child.py", "cat"), "cat", "open"),
    Zoo("node waits for sleep", "sleeping", ["node", "-e", "require('child_process').exec('sleep 1000')"], "sleep", needs=("node",)),
    Zoo("captured child reads", INPUT, inline("import subprocess; subprocess.run(['cat'], capture_output=True)"), "cat", "open"),
    Zoo("background jobs", "sleeping", "sleep 1000 & sleep 1001 & wait", "sleep"),
    Zoo("git commit opens vi", INPUT, "cd {tmp} && git init -q . && git -c user.name=x -c user.email=x@example.com -c core.editor=vi commit --allow-empty", "vi", "tty", ("git", "vi")),
    Zoo("top", INPUT, ["top"], "top", "tty", ("top",)),
    Zoo("cat /dev/tty", INPUT, "cat /dev/tty", "cat", "tty"),
    Zoo("read with a time limit, again", INPUT, "while ! read -r -t 1 x; do :; done", "bash", "open"),
    Zoo("getpass below script", INPUT, ["script", "-qc", "{python} -c 'import getpass; getpass.getpass()'", "/dev/null"], "python", "tty", ("script",)),
    Zoo("flock tool", "lock_wait", "flock {tmp}/l sleep 1000 & sleep 0.3; flock {tmp}/l true", "flock", needs=("flock",)),
    Zoo("gzip of zeros", "cpu_spin", "cat /dev/zero | gzip > /dev/null", "gzip", busy=True),
    Zoo("openssl s_server", ("serving", INPUT), ["openssl", "s_server", "-accept", "0", "-nocert"], "openssl", "open", ("openssl",)),
    Zoo("unix server", "serving", inline("import socket; s = socket.socket(socket.AF_UNIX); s.bind('{tmp}/s'); s.listen(); s.accept()"), "python"),
    Zoo("pool worker dies", ("lock_wait", "pipe_wait"), payload("pool_worker_dies.py"), "python", busy=True),
    Zoo("queue never filled", "lock_wait", payload("queue_join.py"), "python"),
    Zoo("unread errors", "pipe_wait", payload("unread_errors.py"), "python"),
    Zoo("curl retries", ("retry_loop", "sleeping"), ["curl", "--retry", "100", "--retry-connrefused", "--retry-delay", "1", "-sS", "http://127.0.0.1:9/"], "curl", needs=("curl",), busy=True),
    Zoo("wget retries", ("retry_loop", "sleeping"), ["wget", "-t", "0", "--retry-connrefused", "http://127.0.0.1:9/"], "wget", needs=("wget",), busy=True),
    Zoo("many threads, one on the network", NETWORK, payload("many_threads.py", "{silent}"), "python"),
    Zoo("tail -f /dev/null", ("event_wait", "sleeping"), ["tail", "-f", "/dev/null"], "tail"),
    Zoo("in namespaces of its own: read", INPUT, [*UNSHARED, "bash", "-c", "read x"], "bash", "open", ("unshare",)),
    Zoo("in namespaces of its own: server", "serving", [*UNSHARED, "{python}", "-m", "http.server", "-b", "127.0.0.1", "0"], "python", "null", ("unshare",)),
    Zoo("in namespaces of its own: pipe", "pipe_wait", [*UNSHARED, *payload("unread_output.py")], "python", "null", ("unshare",)),
    Zoo("in namespaces of its own: loopback", NETWORK, [*UNSHARED, "sh", "-c", 'ip link set lo up; exec "$@"', "x", *payload("loopback_circle.py", "reads")], "python", "null", ("unshare", "ip")),
    Zoo("dash asks /dev/null again", INPUT, ["dash", "-c", "while :; do printf 'Port number: '; read x; [ -n \"$x\" ] && break; done"], "dash", needs=("dash",), busy=True),
    Zoo("ends of input beside real work", "cpu_spin", "printf 'Total: '; while read -r x; do :; done; while :; do :; done", "bash", busy=True),
]  # fmt: skip

ALL = [*INPUT_CASES, *NETWORK_CASES, *QUIET_CASES, *BUSY_CASES, *HELD_OUT, *HELD_OUT_LATER]
