# SPDX-License-Identifier: Apache-2.0
"""Payload of test_escapes.py: tries to get out and prints, as one JSON object, what each attempt gave.

Run inside as `python3 -I -c SOURCE CONFIG`. It only looks for what the test planted and changes nothing
outside: files are opened for writing, not written; calls get arguments that do no harm where they succeed.
"""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time

CONFIG = json.loads(sys.argv[1])
CANARY = CONFIG["canary"]
RESULTS = {}
libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, NEWNS, NEWNET = 0x10000000, 0x20000, 0x40000000


def attempt(work, *arguments):
    """`work`'s value, or the name of the error it ended with."""
    try:
        return work(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, repr(error))
    except subprocess.TimeoutExpired:
        return "TIMEOUT"


def trick(function):
    RESULTS[function.__name__] = attempt(function)
    return function


def call(number, *arguments):
    if number is None:
        return "ENOSYS"
    ctypes.set_errno(0)
    words = [ctypes.c_ulong(a & (1 << 64) - 1) if isinstance(a, int) else a for a in arguments]
    return "done" if libc.syscall(ctypes.c_long(number), *words) >= 0 else errno.errorcode[ctypes.get_errno()]


def opened(path, flags=os.O_WRONLY):
    os.close(os.open(path, flags))
    return "opened"


def read(path, size=65536):
    with open(path, "rb") as file:
        return file.read(size).decode("latin-1")


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    return [done.returncode, (done.stdout + done.stderr)[:300]]


def in_child(work):
    """Exit status of `work` in a fork: a positive number, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os._exit(work() or 0)
        os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


@trick
def kernel_settings():
    paths = "vm/swappiness kernel/hostname kernel/core_pattern kernel/modprobe net/ipv4/ip_forward"
    files = [f"/proc/sys/{path}" for path in [*paths.split(), "user/max_user_namespaces"]]
    files += ["/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/cgroup.procs"]
    return {path: attempt(opened, path) for path in files}


@trick
def same_root_everywhere():
    """The folders of other processes that are no part of this sandbox's tree."""
    own = os.stat("/")
    other = []
    for pid in processes():
        with contextlib.suppress(OSError):
            seen = os.stat(f"/proc/{pid}/root/")
            if (seen.st_dev, seen.st_ino) != (own.st_dev, own.st_ino):
                other.append(f"{pid}/root")
            if "(unreachable)" in os.readlink(f"/proc/{pid}/cwd") or os.path.exists(f"/proc/{pid}/cwd/../etc/shadow"):
                other.append(f"{pid}/cwd")
    return other


@trick
def descriptors_of_everybody():
    found = {}
    for pid in processes():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found[f"{pid}/{fd}"] = os.readlink(f"/proc/{pid}/fd/{fd}")
    return found


@trick
def environments_of_everybody():
    hits = []
    for pid in processes():
        for name in ("environ", "cmdline", "maps"):
            with contextlib.suppress(OSError):
                if pid != os.getpid() and CANARY in read(f"/proc/{pid}/{name}", 1 << 20):
                    hits.append(f"{pid}/{name}")
    return hits


@trick
def own_environment():
    return dict(os.environ)


@trick
def own_descriptors():
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


@trick
def shadow_and_secrets():
    def seen(path):
        os.stat(path)
        return "seen"

    paths = [
        "/etc/shadow",
        "/proc/1/root/etc/shadow",
        "/root",
        CONFIG["secret"],
        "/proc/1/root" + CONFIG["secret"],
    ]
    paths += [
        "/proc/1/cwd/.." + CONFIG["secret"],
        "/project/../../.." + CONFIG["secret"],
        "/project/planted-link",
    ]
    return {path: attempt(seen, path) for path in paths}


@trick
def devices():
    def made(kind, path):
        os.mknod(path, kind | 0o666, os.makedev(1, 5) if kind == 0o20000 else os.makedev(7, 0))
        return read(path, 4)

    paths = "vda sda nvme0n1 mem kmsg port fuse kvm net/tun loop-control loop0 vhost-vsock userfaultfd".split()
    found = {f"/dev/{path}": attempt(opened, f"/dev/{path}", os.O_RDONLY) for path in paths}
    found["mknod character"] = attempt(made, 0o20000, "/tmp/char")
    found["mknod block"] = attempt(made, 0o60000, "/tmp/block")
    return found


@trick
def becoming_root():
    status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines() if ":\t" in line)
    capabilities = {key: int(status[key], 16) for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    ids = {name: attempt(getattr(os, name), 0) or "done" for name in ("setuid", "setgid", "seteuid", "setegid")}
    groups = attempt(lambda: os.setgroups([0]) or "done")
    return {
        "capabilities": capabilities,
        "ids": ids,
        "setgroups": groups,
        "no_new_privs": status["NoNewPrivs"],
        "uids": status["Uid"].split(),
        "gids": status["Gid"].split(),
        "seccomp": status["Seccomp"],
    }


@trick
def setuid_programs():
    found = {}
    for path in ("/usr/bin/su", "/usr/bin/sudo", "/usr/bin/mount", "/usr/bin/newgrp", "/usr/bin/passwd"):
        if os.access(path, os.X_OK):
            found[path] = bool(os.statvfs(path).f_flag & 2)  # ST_NOSUID
    su = attempt(run, "/usr/bin/su", "-c", "id -u")
    return {"nosuid": found, "su": su}


@trick
def namespaces():
    clone3 = struct.pack("<11Q", NEWUSER, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
    numbers = CONFIG["calls"]
    found = {f"unshare {flag:#x}": call(numbers["unshare"], flag) for flag in (NEWUSER, NEWNS, NEWNET, 0x20000000)}
    found["clone"] = call(numbers["clone"], NEWUSER | 17, 0, 0, 0, 0)
    found["clone3"] = call(435, clone3, 88)
    for kind in ("user", "mnt", "net", "pid"):
        with contextlib.suppress(OSError):
            fd = os.open(f"/proc/1/ns/{kind}", os.O_RDONLY)
            found[f"setns {kind}"] = call(numbers["setns"], fd, 0)
            os.close(fd)
    found["unshare program"] = attempt(run, "/usr/bin/unshare", "-Ur", "id")[0]
    found["bwrap program"] = attempt(run, "/usr/bin/bwrap", "--ro-bind", "/", "/", "true")[0]
    return found


@trick
def terminal_input():
    found = {}
    master, slave = os.openpty()
    tty = attempt(os.open, "/dev/tty", os.O_RDWR)
    for name, fd in {"0": 0, "1": 1, "2": 2, "tty": tty, "own": slave}.items():
        if isinstance(fd, int):
            for request in (0x5412, 0x5412 | 1 << 32, 0x541C, 0x541D, 0x5423):
                found[f"{name} {request:#x}"] = call(CONFIG["calls"]["ioctl"], fd, request, ctypes.c_char_p(b"x"))
    os.close(master)
    return {"controlling terminal": tty if isinstance(tty, str) else "there is one", "pushed": found}


@trick
def other_processes_memory():
    numbers = CONFIG["calls"]
    return {
        "ptrace seize": call(numbers["ptrace"], 0x4206, 1, 0, 0),
        "ptrace attach": call(numbers["ptrace"], 16, 1, 0, 0),
        "process_vm_readv": call(numbers["process_vm_readv"], 1, 0, 0, 0, 0, 0),
        "pidfd_getfd": call(438, attempt(os.pidfd_open, 1), 0, 0),
    }


@trick
def memory_of_helpers_is_no_more_than_ours():
    """What can be opened for writing has the payload's own namespaces, the filter, and no rights."""
    more = []
    own = {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}
    for pid in processes():
        try:
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
        except OSError:
            continue
        status = dict(line.split(":\t", 1) for line in read(f"/proc/{pid}/status").splitlines() if ":\t" in line)
        capable = any(int(status[f"Cap{kind}"], 16) for kind in ("Eff", "Prm", "Bnd"))
        if status["Seccomp"] != "2" or status["NoNewPrivs"] != "1" or capable:
            more.append(f"{pid} has rights")
        for name, link in own.items():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/{name}") != link:
                    more.append(f"{pid} is in another {name}")
    return more


@trick
def signals():
    sent = {}
    for name in "SIGKILL SIGSTOP SIGINT SIGTERM SIGHUP SIGUSR1 SIGSEGV".split():
        sent[name] = attempt(os.kill, 1, getattr(signal, name)) or "sent"
    time.sleep(0.1)  # to show that nothing came of it later
    state = read("/proc/1/stat").rpartition(")")[2].split()[0]
    visible = CONFIG["host_pid"] in processes()
    return {
        "pid 1 is": state,
        "host pid": "visible" if visible else attempt(os.kill, CONFIG["host_pid"], 0),
        "sent": sent,
    }


@trick
def host_sockets():
    def connected(name):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            client.connect(name)
            return "connected"

    paths = {"abstract": "\0" + CONFIG["abstract"], "path": CONFIG["socket"]}
    paths |= {path: path for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket")}
    return {name: attempt(connected, path) for name, path in paths.items()}


@trick
def network():
    def connected(host, port):
        with socket.create_connection((host, port), timeout=2):
            return "connected"

    found = {"loopback": attempt(connected, "127.0.0.1", CONFIG["port"])}
    found["outside"] = attempt(connected, "192.0.2.1", 80)
    found["name"] = attempt(lambda: socket.getaddrinfo("example.com", 80) and "resolved")
    found["interfaces"] = sorted(name for _, name in socket.if_nameindex())
    return found


@trick
def shared_memory():
    found = {"files": os.listdir("/dev/shm"), "mqueue": attempt(os.listdir, "/dev/mqueue")}
    found["sysv"] = "found" if libc.shmget(CONFIG["shm_key"], 0, 0) >= 0 else "absent"
    rt = ctypes.CDLL("librt.so.1", use_errno=True)
    found["posix queue"] = "found" if rt.mq_open(CONFIG["queue"].encode(), os.O_RDONLY) >= 0 else "absent"
    return found


@trick
def mounting():
    n = CONFIG["calls"]
    none, tmp = ctypes.c_char_p(b"none"), ctypes.c_char_p(b"/tmp")
    root, kind = ctypes.c_char_p(b"/"), ctypes.c_char_p(b"tmpfs")
    return {
        "mount": call(n["mount"], none, tmp, kind, 0, 0),
        "propagation": call(n["mount"], none, root, 0, 1 << 20, 0),
        "remount": call(n["mount"], none, root, 0, 32 | 4096, 0),
        "bind": call(n["mount"], root, tmp, 0, 4096, 0),
        "fsopen": call(430, kind, 0),
        "open_tree": call(428, -100, root, 1),
        "mount_setattr": call(442, -100, root, 0, 0, 0),
        "umount": call(n["umount2"], ctypes.c_char_p(b"/proc/sys"), 2),
        "pivot_root": call(n["pivot_root"], tmp, tmp),
        "chroot": call(n["chroot"], tmp),
        "cgroup": call(n["mount"], none, tmp, ctypes.c_char_p(b"cgroup2"), 0, 0),
    }


@trick
def control_groups():
    names = [line.split(":", 2)[2] for line in read("/proc/self/cgroup").splitlines()]
    return {"mounted": os.path.exists("/sys/fs/cgroup"), "names": names}


@trick
def kernel_interfaces():
    n, buffer = CONFIG["calls"], ctypes.create_string_buffer(120)
    text = ctypes.c_char_p(b"deadstop")
    return {
        "add_key": call(n["add_key"], ctypes.c_char_p(b"user"), text, text, 1, -4),
        "request_key": call(n["request_key"], ctypes.c_char_p(b"user"), text, 0, -4),
        "keyctl": call(n["keyctl"], 0, -4, 0),
        "bpf": call(n["bpf"], 0, buffer, 72),
        "perf": call(n["perf_event_open"], buffer, 0, -1, -1, 0),
        "userfaultfd": call(n["userfaultfd"], 0),
        "io_uring": call(425, 8, buffer),
        "kexec": call(n["kexec_load"], 0, 0, 0, 0),
        "module": call(n["init_module"], 0, 0, text),
        "open_by_handle": call(n["open_by_handle_at"], -100, buffer, 0),
        "fanotify": call(n["fanotify_init"], 0, 0),
        "syslog": call(n["syslog"], 10, 0, 0),
        "memfd_secret": call(447, 0),
        "reboot": call(n["reboot"], 0, 0, 0, 0),
        "swapon": call(n["swapon"], text, 0),
        "unknown": call(700),
        "personality": call(n["personality"], 0x40000),
        "settimeofday": call(n["settimeofday"], 0, 0),
        "sethostname": call(n["sethostname"], text, 3),
    }


@trick
def socket_families():
    def made(*kind):
        socket.socket(*kind).close()
        return "made"

    closed = {
        "vsock": (40, 1, 0),
        "packet": (17, 3, 0),
        "alg": (38, 5, 0),
        "xdp": (44, 3, 0),
        "audit": (16, 3, 9),
        "kobject": (16, 3, 15),
        "key": (15, 3, 2),
        "rds": (21, 5, 0),
        "raw": (2, 3, 1),
        "bluetooth": (31, 3, 1),
    }
    usual = {"unix": (1, 1, 0), "tcp": (2, 1, 0), "udp6": (10, 2, 0), "route": (16, 3, 0)}
    return {
        "closed": {name: attempt(made, *kind) for name, kind in closed.items()},
        "usual": {name: attempt(made, *kind) for name, kind in usual.items()},
    }


@trick
def foreign_calls():
    if os.uname().machine != "x86_64":
        return {}

    def compatible():
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()

    def x32():
        libc.syscall(ctypes.c_long(0x40000000 | 39))

    return {"int 0x80": in_child(compatible), "x32": in_child(x32)}


@trick
def writing_system_files():
    new = ["/x", "/dev/x", "/etc/x", "/usr/x", "/usr/bin/x", "/home/x", "/var/x", "/proc/x"]
    old = ["/etc/passwd", "/etc/hosts", "/usr/bin/env", "/lib/os-release"]
    found = {path: attempt(opened, path, os.O_CREAT | os.O_WRONLY) for path in new}
    return found | {path: attempt(opened, path) for path in old}


@trick
def kernel_knowledge():
    names = "kallsyms cmdline config.gz kmsg kcore iomem modules timer_list keys key-users interrupts".split()
    return {name: attempt(lambda n=name: "told" if read(f"/proc/{n}", 64) else "empty") for name in names}


@trick
def set_id_bits():
    program = "/project/program"
    os.close(os.open(program, os.O_CREAT | os.O_WRONLY, 0o755))
    found = {f"{mode:o}": attempt(os.chmod, program, mode) for mode in (0o4755, 0o2755, 0o6755)}
    found["created"] = attempt(os.open, "/project/b", os.O_CREAT | os.O_WRONLY, 0o4755)
    raising = struct.pack("<5I", 0x2000001, 1, 0, 0, 0)
    found["capability"] = attempt(os.setxattr, program, "security.capability", raising)
    found["owner"] = attempt(os.chown, program, 12345, 12345)
    return {name: value if isinstance(value, str) else "given" for name, value in found.items()}


def until_refused(make, most):
    kept = []
    try:
        while len(kept) < most:
            kept.append(make())
    except OSError as error:
        return len(kept), errno.errorcode.get(error.errno), kept
    return len(kept), "never", kept


@trick
def descriptor_limit():
    count, why, kept = until_refused(lambda: os.open("/dev/null", os.O_RDONLY), 20000)
    for fd in kept:
        os.close(fd)
    return [count, why]


@trick
def inotify_limit():
    def instance():
        fd = libc.inotify_init1(0)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        return fd

    count, why, kept = until_refused(instance, 1000)
    for fd in kept:
        os.close(fd)
    return [count, why]


@trick
def process_limit():
    reading, writing = os.pipe()

    def sleeper():
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        return child

    count, why, kept = until_refused(sleeper, CONFIG["most_processes"])
    os.close(writing)
    for child in kept:
        os.waitpid(child, 0)
    return [count, why]


print(json.dumps(RESULTS))
