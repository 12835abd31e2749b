# SPDX-License-Identifier: Apache-2.0
"""What a sandbox is made of, seen from inside and, where it matters, from the host at the same time."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deadstop.boundary.covers import FILES, FOLDERS
from deadstop.boundary.policy import BASE_ENVIRONMENT
from deadstop.boundary.sandbox import FIRST_HOST_UID, HOST_UIDS
from hosts import MARK, Host

OWNER = 54_321  # of a project that belongs to somebody else than root


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    if shutil.which("bwrap", path=f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/usr/local/bin") is None:
        pytest.skip("bubblewrap is not installed")


@pytest.fixture
def project(namespace_host: Host) -> Iterator[Path]:
    """A folder of the host's user, and of somebody else's where the host is root."""
    folder = Path(tempfile.mkdtemp(prefix="project-", dir=namespace_host.folder))
    folder.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(folder, owner_of(namespace_host), owner_of(namespace_host))
    yield folder
    shutil.rmtree(folder)


def owner_of(host: Host) -> int:
    return OWNER if host.uid == 0 else host.uid


def sandbox(host: Host, *words: str, options: tuple[str, ...] = ("--no-bind-cwd",), **more: Any) -> dict[str, Any]:
    return host.run("--isolation", "sandbox", "--timeout", "20", *options, "--", *words, **more)


def said(result: dict[str, Any]) -> str:
    """What a command that has to succeed wrote to standard output."""
    assert (result["status"], result["exit_code"], result["stderr"]["tail"]) == ("completed", 0, ""), result
    return str(result["stdout"]["tail"])


def python(host: Host, code: str, *arguments: str, **more: Any) -> str:
    return said(sandbox(host, "/usr/bin/python3", "-I", "-c", code, *arguments, **more))


# Places that can be written, and those that cannot.

WRITE = """
import errno, os, sys
for folder in sys.argv[1:]:
    try: os.close(os.open(os.path.join(folder, "deadstop-new"), os.O_CREAT | os.O_WRONLY))
    except OSError as error: print(folder, errno.errorcode[error.errno])
    else: print(folder, "written")
"""
OPEN_FOLDERS = ["/dev/shm", "/run", "/tmp", "/home/agent"]
CLOSED_FOLDERS = [
    "/", "/dev", "/etc", "/etc/ssl", "/etc/ssl/certs", "/etc/alternatives", "/usr", "/usr/bin", "/usr/local/bin",
    "/home", "/var", "/proc", "/proc/sys", "/proc/sys/kernel", "/proc/acpi", "/proc/bus", "/deep", "/deep/down",
]  # fmt: skip


def test_system_folders_cannot_be_written(namespace_host: Host, project: Path) -> None:
    options = ("--no-bind-cwd", "--bind", f"{project}:/deep/down/project")
    lines = python(namespace_host, WRITE, *CLOSED_FOLDERS, options=options).splitlines()
    assert [line.split()[0] for line in lines] == CLOSED_FOLDERS
    assert not [line for line in lines if line.split()[1] not in ("EROFS", "EACCES", "EPERM", "ENOENT")]


def test_system_files_cannot_be_changed(namespace_host: Host) -> None:
    code = """
import os, sys
for path in sys.argv[1:]:
    for name, change in (("open", lambda: os.open(path, os.O_WRONLY)), ("chmod", lambda: os.chmod(path, 0o777)),
                         ("unlink", lambda: os.unlink(path)), ("rename", lambda: os.rename(path, path + "2"))):
        try: change()
        except OSError: continue
        print(path, name)
"""
    assert python(namespace_host, code, "/etc/passwd", "/etc/hosts", "/usr/bin/env", "/proc/sys/kernel/hostname") == ""


def test_the_rooms_can_be_written(namespace_host: Host) -> None:
    lines = python(namespace_host, WRITE, *OPEN_FOLDERS, "/var/tmp", "/var/run").splitlines()
    assert [line.split()[1] for line in lines[:4]] == ["written"] * 4
    assert [line.split()[1] for line in lines[4:]] == ["written"] * 2  # the same folders, by their old names


def test_all_rooms_are_one_file_system_of_the_size_asked_for(namespace_host: Host) -> None:
    code = """
import os, sys
for folder in sys.argv[1:]:
    space = os.statvfs(folder)
    print(os.stat(folder).st_dev, space.f_blocks * space.f_frsize, space.f_files)
"""
    lines = python(namespace_host, code, *OPEN_FOLDERS, options=("--no-bind-cwd", "--disk", "8M")).splitlines()
    assert len(lines) == 4
    assert len(set(lines)) == 1
    _, size, files = map(int, lines[0].split())
    assert size == 8 << 20
    assert 100 <= files <= 1024


FILL = """
import errno, os, sys
total, block = 0, bytes(1 << 18)
files = [open(folder + "/fill", "wb", buffering=0) for folder in sys.argv[1:]]
try:
    while total < 64 << 20:
        for file in files:
            os.write(1, b"%d\\n" % (total + len(block)))
            total += file.write(block)
except OSError as error: os.write(1, errno.errorcode[error.errno].encode() + b"\\n")
"""
MAKE = """
import errno, os, sys
made = 0
try:
    while made < 20000:
        for folder in sys.argv[1:]:
            os.close(os.open(f"{folder}/{made}", os.O_CREAT | os.O_WRONLY))
            made += 1
except OSError as error: os.write(1, b"%d\\n%s\\n" % (made, errno.errorcode[error.errno].encode()))
"""


def test_all_rooms_together_end_at_the_size_asked_for(namespace_host: Host) -> None:
    """The command meets ENOSPC; the supervisor may end it for that, too."""
    command = ("/usr/bin/python3", "-I", "-c", FILL, *OPEN_FOLDERS)
    result = sandbox(namespace_host, *command, options=("--no-bind-cwd", "--disk", "8M"))
    lines = result["stdout"]["tail"].split()
    assert 4 << 20 < max(int(line) for line in lines if line.isdigit()) <= (8 << 20) + (1 << 18), result
    if result["status"] == "resource_limit":
        assert result["limit"]["which"] == "disk"
    else:
        assert (result["status"], lines[-1]) == ("completed", "ENOSPC")


def test_all_rooms_together_are_bounded_in_files(namespace_host: Host) -> None:
    command = ("/usr/bin/python3", "-I", "-c", MAKE, *OPEN_FOLDERS)
    result = sandbox(namespace_host, *command, options=("--no-bind-cwd", "--disk", "8M"))
    lines = result["stdout"]["tail"].split()
    if result["status"] == "resource_limit":
        assert result["limit"]["which"] == "disk"
    else:
        assert (result["status"], lines[1:]) == ("completed", ["ENOSPC"]), result
        assert 100 < int(lines[0]) <= 1024


def test_no_writable_mount_is_without_a_size(namespace_host: Host) -> None:
    code = """
import json, os, stat
rows = []
for line in open("/proc/self/mountinfo"):
    fields = line.split(); dash = fields.index("-")
    device = stat.S_ISCHR(os.stat(fields[4]).st_mode) if os.path.exists(fields[4]) else False
    rows.append([fields[4], fields[5].split(","), fields[dash + 1], fields[dash + 3].split(","), device])
print(json.dumps(rows))
"""
    rows = json.loads(python(namespace_host, code, options=("--no-bind-cwd", "--disk", "8M")))
    writable = [row for row in rows if "rw" in row[1]]
    sized = {target for target, _, kind, options, _ in writable if kind == "tmpfs" and "size=8192k" in options}
    devices = {target for target, _, _, _, device in writable if device}
    assert sized == set(OPEN_FOLDERS)
    assert {target for target, *_ in writable} - sized - devices == {"/proc", "/dev/pts"}
    assert devices <= {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "console")}
    assert not [row for row in rows if "nosuid" not in row[1]]


# Who one is inside.


def test_the_identity_inside(namespace_host: Host) -> None:
    code = """
import json, os, pwd, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "ids": [os.getresuid(), os.getresgid()], "groups": os.getgroups(), "name": pwd.getpwuid(os.getuid()).pw_name,
    "host": socket.gethostname(), "home": pwd.getpwuid(os.getuid()).pw_dir,
    "entries": [entry.pw_name for entry in pwd.getpwall() if entry.pw_uid == os.getuid()],
    "people": [entry.pw_name for entry in pwd.getpwall() if not entry.pw_shell.endswith("nologin")],
    "capabilities": [int(value, 16) for name, value in status.items() if name.startswith("Cap")],
    "confined": [status[name].strip() for name in ("NoNewPrivs", "Seccomp", "Seccomp_filters") if name in status],
    "map": [open(f"/proc/self/{name}").read().split() for name in ("uid_map", "gid_map")],
}))
"""
    inside = json.loads(python(namespace_host, code))
    assert inside["ids"] == [[1000] * 3, [1000] * 3]
    assert inside["groups"] in ([], [1000], [65534])
    assert (inside["name"], inside["home"], inside["host"]) == ("agent", "/home/agent", "sandbox")
    assert inside["entries"] == inside["people"] == ["agent"]
    assert len(inside["capabilities"]) == 5
    assert not any(inside["capabilities"])
    assert inside["confined"] in (["1", "2", "2"], ["1", "2"])  # kernels before 5.9 do not count filters
    assert [(row[0], row[2]) for row in inside["map"]] == [("1000", "1")] * 2


def test_the_environment_has_nothing_of_the_hosts(namespace_host: Host) -> None:
    """Neither in the command nor in any process it can see."""
    code = """
import glob, json, os
seen = []
for path in glob.glob("/proc/[0-9]*/environ"):
    try: seen.append(open(path).read())
    except OSError: pass
print(json.dumps([dict(os.environ), seen]))
"""
    host = {"AWS_SECRET_ACCESS_KEY": "canary-of-the-host", "LD_LIBRARY_PATH": "/canary-of-the-host", "PS4": "canary"}
    options = ("--no-bind-cwd", "--no-env-defaults", "--env", "ADDED=canary-added")
    own, seen = json.loads(python(namespace_host, code, options=options, env=host))
    assert float(own.pop("DEADSTOP_DEADLINE")) > 0
    own.pop("LC_CTYPE", None)  # Python's own
    assert own == {**BASE_ENVIRONMENT, "ADDED": "canary-added"}
    assert [text for text in seen if "ADDED=canary-added" in text]
    for word in (namespace_host.mark, MARK, "canary-of-the-host", "PYTHONPATH", str(namespace_host.folder)):
        assert not [text for text in seen if word in text], word


def test_a_setuid_bit_is_refused(namespace_host: Host, project: Path) -> None:
    code = """
import os
for name in ("/tmp/program", "/home/agent/program", "program"):
    open(name, "w").close()
    for mode in (0o4755, 0o2755, 0o6711):
        try: os.chmod(name, mode)
        except PermissionError: continue
        print(name, oct(mode))
    for mode in (0o755, 0o1777): os.chmod(name, mode)
try: os.close(os.open("born", os.O_CREAT | os.O_WRONLY, 0o4755))
except PermissionError: pass
"""
    assert python(namespace_host, code, cwd=project, options=()) == ""
    for made in project.iterdir():
        assert not made.stat().st_mode & (stat.S_ISUID | stat.S_ISGID), made


def host_ids_of(token: str) -> set[tuple[str, ...]]:
    """Uid and Gid lines of the real /proc for each process whose environment has this word."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"DEADSTOP_ROOM={token}".encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                lines = Path(f"/proc/{name}/status").read_text().splitlines()
                found.add(tuple(word for line in lines if line[:4] in ("Uid:", "Gid:") for word in line.split()[1:]))
        except OSError:
            continue
    return found


def test_two_sandboxes_of_root_are_two_users_of_the_host(namespace_host: Host) -> None:
    """An ordinary user's are that user, as nothing else can be had."""
    started, seen = [], []
    try:
        for token in ("one", "two"):
            options = ("--timeout", "20", "--stdin", "--no-bind-cwd", "--env", f"DEADSTOP_ROOM={token}")
            words = ("run", "--isolation", "sandbox", *options, "--", "sh", "-c", "echo ready; cat; true")
            started.append(namespace_host.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for token, process in zip(("one", "two"), started, strict=True):
            assert process.stdout.readline() == b"ready\n"
            (ids,) = host_ids_of(token)
            assert len(set(ids)) == 1, ids
            seen.append(int(ids[0]))
    finally:
        codes = [_end(process) for process in started]
    assert codes == [0, 0]
    if namespace_host.uid == 0:
        assert len(set(seen)) == 2
        assert all(FIRST_HOST_UID <= uid < FIRST_HOST_UID + HOST_UIDS for uid in seen), seen
    else:
        assert seen == [namespace_host.uid] * 2


def _end(process: subprocess.Popen[bytes]) -> int:
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate(timeout=10)
    return process.returncode


# What the kernel would tell.


def test_kernel_files_tell_nothing(namespace_host: Host) -> None:
    """Some are covered, some rest on their mode alone: either way there is nothing to read."""
    code = """
import json, os, sys
told = {}
for name in json.loads(sys.argv[1]):
    try: told[name] = open("/proc/" + name, "rb").read(1 << 16).decode("latin-1")
    except OSError as error: told[name] = type(error).__name__
print(json.dumps(told))
"""
    names = [*FILES.split(), "pagetypeinfo", "sysrq-trigger", "tty/driver", "sys/kernel/cad_pid"]
    told = json.loads(python(namespace_host, code, json.dumps(names)))
    addresses = {line.split()[0].strip("0") for line in told.pop("kallsyms").splitlines() if " " in line}
    assert addresses <= {""}
    silent = {"", "PermissionError", "FileNotFoundError", "IsADirectoryError"}
    assert {name: text[:80] for name, text in told.items() if text not in silent} == {}


def test_kernel_folders_are_empty(namespace_host: Host) -> None:
    code = """
import json, os, sys
print(json.dumps({name: os.listdir("/proc/" + name) for name in sys.argv[1:] if os.path.exists("/proc/" + name)}))
"""
    names = FOLDERS.split()
    listed = json.loads(python(namespace_host, code, *names))
    assert set(listed) == {name for name in names if os.path.isdir(f"/proc/{name}")}
    assert not any(listed.values()), listed


def test_kernel_settings_and_other_kernel_file_systems_are_out_of_reach(namespace_host: Host) -> None:
    code = """
import os
for folder, _, names in os.walk("/proc/sys"):
    for name in names:
        try: os.close(os.open(os.path.join(folder, name), os.O_WRONLY))
        except OSError: continue
        print("writable", folder, name)
for path in ("/sys", "/boot", "/root", "/srv", "/opt", "/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/net", "/dev/mqueue"):
    if os.path.exists(path): print("exists", path)
for path in ("/proc/sysrq-trigger", "/proc/kcore", "/proc/mtrr", "/proc/1/oom_score_adj"):
    try: os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    except OSError: continue
    if path.startswith("/proc/1/"): continue
    print("writable", path)
"""
    assert python(namespace_host, code) == ""


def test_etc_can_be_read_whatever_the_callers_umask(namespace_host: Host) -> None:
    code = """
import os
for folder in ("/etc", "/etc/ssl", "/etc/ssl/certs", "/etc/pki", "/etc/pki/tls", "/etc/alternatives"):
    if os.path.exists(folder) and not os.access(folder, os.R_OK | os.X_OK): print("closed", folder)
for name in ("passwd", "group", "hosts", "nsswitch.conf", "resolv.conf"): open("/etc/" + name).close()
for name in ("shadow", "gshadow", "sudoers", "apt", "ssh", "ssl/private", "machine-id", "gitconfig"):
    if os.path.lexists("/etc/" + name): print("there is", name)
"""
    assert python(namespace_host, code, umask=0o077) == ""


# Bound folders.


def test_the_current_folder_is_shown_and_what_is_made_belongs_to_its_owner(namespace_host: Host, project: Path) -> None:
    script = (
        "pwd; mkdir -p made/deeper && echo inside > made/deeper/file && ln -s file made/link && stat -c %u:%g . made"
    )
    lines = said(sandbox(namespace_host, "sh", "-c", script, cwd=project, options=())).split()
    assert lines == [str(project), "1000:1000", "1000:1000"]
    owner = owner_of(namespace_host)
    for path in (
        project,
        project / "made",
        project / "made/deeper",
        project / "made/deeper/file",
        project / "made/link",
    ):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (owner, owner), path
    assert (project / "made/deeper/file").read_text() == "inside\n"


def test_a_project_of_root_is_worked_on_without_being_root(namespace_host: Host, project: Path) -> None:
    if namespace_host.uid != 0:
        pytest.skip("only root has projects of root")
    os.chown(project, 0, 0)
    project.chmod(0o700)
    (project / "old").write_text("old\n")
    (project / "old").chmod(0o600)
    script = "cat old; echo new >> old; echo made > made; id -u"
    assert said(sandbox(namespace_host, "sh", "-c", script, cwd=project, options=())) == "old\n1000\n"
    assert (project / "old").read_text() == "old\nnew\n"
    assert [(path.stat().st_uid, path.stat().st_gid) for path in project.iterdir()] == [(0, 0)] * 2


def test_a_bind_has_the_name_it_was_given(namespace_host: Host, project: Path) -> None:
    options = ("--no-bind-cwd", "--bind", f"{project}:/deep/down/project", "--cwd", "/deep/down/project")
    assert said(sandbox(namespace_host, "sh", "-c", "pwd; echo x > y", options=options)) == "/deep/down/project\n"
    assert (project / "y").stat().st_uid == owner_of(namespace_host)


def test_a_read_only_bind_is_read_only(namespace_host: Host, project: Path) -> None:
    (project / "file").write_text("kept")
    (project / "file").chmod(0o666)
    project.chmod(0o777)
    changes = "'echo x > file' 'touch new' 'rm -f file' 'chmod 7 file' 'mv file g'"
    script = f'cd /data && cat file && for c in {changes}; do (eval "$c") 2>/dev/null && echo " could $c"; done; true'
    options = ("--no-bind-cwd", "--ro-bind", f"{project}:/data")
    assert said(sandbox(namespace_host, "sh", "-c", script, options=options)) == "kept"
    assert [path.name for path in project.iterdir()] == ["file"]


def test_a_later_bind_may_lie_in_an_earlier_one(namespace_host: Host, project: Path) -> None:
    (project / "inner").mkdir()
    if os.geteuid() == 0:
        os.chown(project / "inner", owner_of(namespace_host), owner_of(namespace_host))
    options = ("--no-bind-cwd", "--ro-bind", f"{project}:/data", "--bind", f"{project}/inner:/data/inner")
    script = "touch /data/inner/made && ! touch /data/made 2>/dev/null && echo so"
    assert said(sandbox(namespace_host, "sh", "-c", script, options=options)) == "so\n"


def test_without_the_current_folder_one_is_at_home(namespace_host: Host, project: Path) -> None:
    (project / "file").write_text("not to be seen")
    script = f"pwd; ls -A; test -e '{project}' && echo there is the current folder; true"
    assert said(sandbox(namespace_host, "sh", "-c", script, cwd=project)) == "/home/agent\n"


@pytest.mark.parametrize("writable", [True, False])
def test_a_single_file_is_bound(namespace_host: Host, project: Path, writable: bool) -> None:
    file = project / "file"
    file.write_text("before\n")
    (project / "other").write_text("other")
    if os.geteuid() == 0:
        os.chown(file, owner_of(namespace_host), owner_of(namespace_host))
    options = ("--no-bind-cwd", "--bind" if writable else "--ro-bind", f"{file}:/data/one")
    script = "cat /data/one; ls /data; (echo after >> /data/one) 2>/dev/null; true"
    assert said(sandbox(namespace_host, "sh", "-c", script, options=options)) == "before\none\n"
    assert file.read_text() == ("before\nafter\n" if writable else "before\n")
    assert file.stat().st_uid == owner_of(namespace_host)


def test_a_folder_behind_one_that_is_closed(namespace_host: Host, project: Path) -> None:
    """The way to it is closed to the user inside; the folder itself was given."""
    if namespace_host.uid == 0:
        os.chown(project, 0, 0)
    (project / "given").mkdir()
    (project / "secret").write_text("secret")
    if os.geteuid() == 0:
        os.chown(project / "given", owner_of(namespace_host), owner_of(namespace_host))
    project.chmod(0o700)
    script = "pwd; echo x > made; ls ..; cat ../secret 2>/dev/null; true"
    assert said(sandbox(namespace_host, "sh", "-c", script, cwd=project / "given", options=())) == (
        f"{project}/given\ngiven\n"
    )
    assert (project / "given/made").stat().st_uid == owner_of(namespace_host)


# A virtual environment in the current folder.

IMPORTING = "import installed, sys; print(installed.WORD, sys.prefix, sys.executable)"


def virtual_environment(host: Host, interpreter: str, project: Path) -> Path:
    """`.venv` of the project, made by the host's user, with one module in its site-packages."""
    if host.uid == 0:
        os.chown(project, 0, 0)  # who made it is who runs it
    make = [interpreter, "-m", "venv", "--without-pip", str(project / ".venv")]
    process = host.popen(make, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=40)
    if process.returncode != 0:
        pytest.skip(f"{interpreter} makes no virtual environment: {out.decode()[-200:]}")
    (folder,) = project.glob(".venv/lib/python3*/site-packages")
    (folder / "installed.py").write_text("WORD = 'installed here'\n")
    return project / ".venv"


def check_virtual_environment(host: Host, interpreter: str, project: Path) -> None:
    folder = virtual_environment(host, interpreter, project)
    command = ("python", "-c", IMPORTING)
    assert said(sandbox(host, *command, cwd=project, options=())) == f"installed here {folder} {folder}/bin/python\n"
    again = sandbox(host, "bash", "-c", "command -v python; echo $VIRTUAL_ENV; test -w /usr", cwd=project, options=())
    assert again["stdout"]["tail"].split() == [f"{folder}/bin/python", str(folder)]
    assert again["exit_code"] == 1


def test_python_is_that_of_the_virtual_environment(namespace_host: Host, project: Path) -> None:
    check_virtual_environment(namespace_host, "/usr/bin/python3", project)


def interpreter_outside_usr(host: Host) -> str:
    """One that this user may execute, or a skip."""
    code = "import os, sys; print(os.path.realpath(sys._base_executable))"
    folders = os.environ.get("PATH", os.defpath).split(":")
    names = ["python3", *(f"python3.{minor}" for minor in range(9, 16))]
    candidates = [f"{folder}/{name}" for folder in folders for name in names]
    for candidate in dict.fromkeys([sys.executable, *candidates]):
        if not os.path.exists(candidate):
            continue
        try:
            process = host.popen([candidate, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError:
            continue
        found = process.communicate(timeout=20)[0].decode().strip()
        if process.returncode == 0 and found.startswith("/") and not found.startswith(("/usr/", "/bin/")):
            return found
    pytest.skip("this user has no Python whose files lie outside /usr")


def test_a_virtual_environment_on_a_python_outside_usr(namespace_host: Host, project: Path) -> None:
    check_virtual_environment(namespace_host, interpreter_outside_usr(namespace_host), project)


def test_a_virtual_environment_on_a_python_copied_outside_usr(namespace_host: Host, project: Path) -> None:
    """As above, where the host has none: the system's program with the system's library."""
    base = Path(tempfile.mkdtemp(prefix="base-", dir=namespace_host.folder.parent))
    try:
        base.chmod(0o755)
        program = Path(os.path.realpath("/usr/bin/python3"))
        (base / "bin").mkdir()
        (base / "lib").mkdir()
        shutil.copy(program, base / "bin" / program.name)
        (base / "bin/python3").symlink_to(program.name)
        for library in Path("/usr/lib").glob("python3.*"):
            (base / "lib" / library.name).symlink_to(library)
        check_virtual_environment(namespace_host, f"{base}/bin/python3", project)
    finally:
        shutil.rmtree(base)


def test_no_virtual_environment_without_its_folder(namespace_host: Host, project: Path) -> None:
    virtual_environment(namespace_host, "/usr/bin/python3", project)
    script = "command -v python3; echo ${VIRTUAL_ENV-none}"
    lines = said(sandbox(namespace_host, "bash", "-c", script, cwd=project)).split()
    assert lines == ["/usr/bin/python3", "none"] or lines == ["/usr/local/bin/python3", "none"]
