# SPDX-License-Identifier: Apache-2.0
"""The argument list for bubblewrap, read as text, and the /etc of a sandbox, made from a made-up one of the host."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from deadstop.boundary import covers, etc, policy, syscalls
from deadstop.boundary.policy import BASE_ENVIRONMENT, HOME, Bind, Rooms, bwrap_arguments

OPERANDS = {
    "--ro-bind": 2, "--bind": 2, "--symlink": 2, "--proc": 1, "--dev": 1, "--dir": 1, "--remount-ro": 1, "--perms": 1,
    "--hostname": 1, "--uid": 1, "--gid": 1, "--cap-drop": 1, "--chdir": 1, "--add-seccomp-fd": 1,
}  # fmt: skip
SWITCHES = {
    "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--unshare-net",
    "--disable-userns", "--new-session", "--clearenv",
}  # fmt: skip
ROOMS = Rooms(home="/r/home", tmp="/r/tmp", shm="/r/shm", run="/r/run", etc="/r/etc")

Operation = tuple[str, ...]


def arguments(*binds: Bind, net: bool = False, filter_fds: tuple[int, ...] = (5, 6), uid: int = 1000) -> list[str]:
    return bwrap_arguments(rooms=ROOMS, binds=binds, net=net, filter_fds=filter_fds, uid=uid)


def operations(flat: list[str]) -> list[Operation]:
    """Options with their operands. Fails at a word that is no known option."""
    found, position = [], 0
    while position < len(flat):
        assert flat[position] in OPERANDS or flat[position] in SWITCHES, flat[position:]
        width = 1 + OPERANDS.get(flat[position], 0)
        found.append(tuple(flat[position : position + width]))
        position += width
    return found


def mounts(flat: list[str]) -> list[Operation]:
    return [operation for operation in operations(flat) if operation[0] in ("--bind", "--ro-bind")]


# The argument list.


def test_every_word_is_a_known_option_or_its_operand() -> None:
    assert operations(arguments(Bind("/r/b0", "/project", True)))


def test_namespaces_identity_and_privileges() -> None:
    given = operations(arguments(uid=4242))
    for switch in SWITCHES:
        assert (switch,) in given
    for operation in (("--uid", "4242"), ("--gid", "4242"), ("--cap-drop", "ALL"), ("--hostname", "sandbox")):
        assert operation in given


def test_network_is_closed_unless_asked() -> None:
    assert "--unshare-net" in arguments()
    assert "--unshare-net" not in arguments(net=True)
    assert [word for word in arguments() if word != "--unshare-net"] == arguments(net=True)


def test_every_filter_is_handed_over_in_order() -> None:
    given = operations(arguments(filter_fds=(9, 4)))
    assert [o for o in given if o[0] == "--add-seccomp-fd"] == [("--add-seccomp-fd", "9"), ("--add-seccomp-fd", "4")]


def test_only_the_rooms_and_what_was_asked_for_are_writable() -> None:
    flat = arguments(Bind("/r/b0", "/project", True), Bind("/r/b1", "/data", False))
    writable = {o[1:] for o in operations(flat) if o[0] == "--bind"}
    rooms = {("/r/shm", "/dev/shm"), ("/r/run", "/run"), ("/r/tmp", "/tmp"), ("/r/home", HOME)}
    assert writable == rooms | {("/r/b0", "/project")}


def test_no_tmpfs_is_left_writable() -> None:
    """bubblewrap's own have no size: none is asked for, and those of / and /dev end read-only, after the last mount."""
    given = operations(arguments(Bind("/r/b0", "/project", True)))
    assert "--tmpfs" not in {o[0] for o in given}
    changing = [number for number, o in enumerate(given) if o[0] in ("--bind", "--ro-bind", "--symlink", "--dir")]
    assert given.index(("--remount-ro", "/")) > max(changing)
    assert given.index(("--remount-ro", "/dev")) > given.index(("--bind", "/r/shm", "/dev/shm"))


def test_nothing_of_the_host_but_the_system_folders() -> None:
    sources = {operation[1] for operation in mounts(arguments())}
    system = {source for source in sources if not source.startswith("/r/")}
    assert system <= {"/usr", *(f"/{name}" for name in policy._SYSTEM_FOLDERS)}


def test_binds_keep_their_order() -> None:
    flat = arguments(Bind("/r/b0", "/a", False), Bind("/r/b1", "/a/b", True), Bind("/r/b2", "/a/b/c", False))
    found = [operation for operation in mounts(flat) if operation[1].startswith("/r/b")]
    assert found == [("--ro-bind", "/r/b0", "/a"), ("--bind", "/r/b1", "/a/b"), ("--ro-bind", "/r/b2", "/a/b/c")]


def test_a_bind_covers_a_room_and_is_not_covered_by_one() -> None:
    given = operations(arguments(Bind("/r/b0", f"{HOME}/project", True), Bind("/r/b1", "/tmp/project", True)))
    assert given.index(("--bind", "/r/b0", f"{HOME}/project")) > given.index(("--bind", "/r/home", HOME))
    assert given.index(("--bind", "/r/b1", "/tmp/project")) > given.index(("--bind", "/r/tmp", "/tmp"))


BAD_TARGETS = ["/", "relative", "/a/../b", "/a/", "/a//b", "/./a", "//a", "/a\0b", "", "/proc/sys", "/dev", "/sys/x"]


@pytest.mark.parametrize("target", BAD_TARGETS)
def test_bind_refuses_targets_that_open_the_sandbox(target: str) -> None:
    with pytest.raises(ValueError):
        Bind("/r/b0", target, False)


@pytest.mark.parametrize("target", ["/a", "/process", "/device/x", "/system", "/a b", "/usr/local/x"])
def test_bind_takes_other_absolute_targets(target: str) -> None:
    assert Bind("/r/b0", target, False).target == target


def test_a_host_without_merged_usr_gets_binds_and_a_merged_one_links(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").symlink_to("usr/lib")
    given = operations(policy._system(str(tmp_path)))
    assert given[0] == ("--ro-bind", f"{tmp_path}/usr", "/usr")
    assert ("--ro-bind", f"{tmp_path}/bin", "/bin") in given
    assert ("--symlink", "usr/lib", "/lib") in given
    assert len(given) == 3


def test_the_environment_names_only_the_sandbox() -> None:
    assert BASE_ENVIRONMENT["HOME"] == HOME
    assert BASE_ENVIRONMENT["PATH"] == "/usr/local/bin:/usr/bin:/bin"
    assert BASE_ENVIRONMENT["USER"] == BASE_ENVIRONMENT["LOGNAME"] == "agent"


# The /etc of a sandbox.

GENERATED = {"passwd", "group", "hosts", "nsswitch.conf", "resolv.conf"}
SECRETS = """
shadow shadow- gshadow passwd passwd- group sudoers sudoers.d/all machine-id hostname fstab crypttab environment
apt/auth.conf apt/auth.conf.d/token apt/apt.conf gitconfig npmrc pip.conf netrc krb5.keytab hosts resolv.conf
ssh/ssh_host_key ssl/private/key.pem pki/tls/private/key.pem docker/config.json kubernetes/admin.conf
""".split()
CANARY = b"only for the host"


@pytest.fixture
def host_etc(tmp_path: Path) -> Path:
    """A host's /etc without folders that would have to be mounted."""
    host = tmp_path / "host"
    for name in SECRETS:
        (host / name).parent.mkdir(parents=True, exist_ok=True)
        (host / name).write_bytes(CANARY)
    for name in ("services", "mime.types", "ssl/openssl.cnf", "pki/tls/openssl.cnf"):
        (host / name).write_text(f"content of {name}")
    (tmp_path / "made").mkdir()
    return host


def built(host: Path, *, uid: int = 1000, net: bool = False) -> dict[str, Path]:
    """Name below the made /etc -> path, for everything but folders."""
    made = host.parent / "made"
    etc.build(str(made), uid, net, str(host))
    return {str(path.relative_to(made)): path for path in made.rglob("*") if path.is_symlink() or not path.is_dir()}


def test_only_listed_names_and_generated_files_arrive(host_etc: Path) -> None:
    made = built(host_etc)
    assert set(made) == GENERATED | {"services", "mime.types", "ssl/openssl.cnf", "pki/tls/openssl.cnf"}
    assert made["services"].read_text() == "content of services"
    assert not [name for name, path in made.items() if CANARY in path.read_bytes()]


def test_the_list_holds_no_whole_folder_that_may_hold_secrets() -> None:
    assert not set(etc.NAMES) & {*SECRETS, "ssl", "pki", "pki/tls", "apt", "ssh", "sudoers.d", "ssl/private", "."}
    for name in etc.NAMES:
        assert not name.startswith(("/", "*")) and ".." not in name
        assert not [secret for secret in SECRETS if name.endswith("*") and secret.startswith(name[:-1])]


def test_a_star_stands_for_every_ending(host_etc: Path) -> None:
    for name in ("java-17", "java-21", "javascript"):
        (host_etc / name).write_text(name)
    assert {name for name in built(host_etc) if name.startswith("java")} == {"java-17", "java-21"}


def test_links_into_usr_stay_links_and_others_become_files(host_etc: Path) -> None:
    (host_etc / "localtime").symlink_to("/usr/share/zoneinfo/Etc/UTC")
    (host_etc / "os-release").symlink_to("services")
    (host_etc / "timezone").symlink_to("nowhere")
    made = built(host_etc)
    if os.path.exists("/usr/share/zoneinfo/Etc/UTC"):
        assert os.readlink(made["localtime"]) == "/usr/share/zoneinfo/Etc/UTC"
    assert not made["os-release"].is_symlink()
    assert made["os-release"].read_text() == "content of services"
    assert "timezone" not in made


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o000])
def test_what_not_everybody_may_read_is_left_out(host_etc: Path, mode: int) -> None:
    (host_etc / "services").chmod(mode)
    (host_etc / "rpc").symlink_to("services")
    made = built(host_etc)
    assert "services" not in made
    assert "rpc" not in made


def test_what_is_no_file_is_left_out_and_holds_nothing_up(host_etc: Path) -> None:
    os.mkfifo(host_etc / "magic", 0o644)
    (host_etc / "magic").chmod(0o644)
    assert "magic" not in built(host_etc)


def test_what_is_made_can_be_read_under_any_umask(host_etc: Path) -> None:
    before = os.umask(0o077)
    try:
        made = built(host_etc)
    finally:
        os.umask(before)
    for name, path in made.items():
        assert path.stat().st_mode & 0o777 == 0o644, name
    for folder in ("ssl", "pki", "pki/tls"):
        assert (host_etc.parent / "made" / folder).stat().st_mode & 0o777 == 0o755, folder


def test_an_empty_host_folder_gives_the_generated_files(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "made").mkdir()
    assert set(built(tmp_path / "host")) == GENERATED


def test_generated_files_have_one_user_and_resolvers_only_with_net() -> None:
    closed, opened = etc.etc_content(1000, False), etc.etc_content(4242, True)
    assert set(closed) == set(opened) == GENERATED
    assert closed["resolv.conf"] == b""
    assert b"dns" not in closed["nsswitch.conf"] and b"dns" in opened["nsswitch.conf"]
    if os.path.exists("/etc/resolv.conf"):
        assert opened["resolv.conf"] == Path("/etc/resolv.conf").read_bytes()
    assert b"\nagent:x:4242:4242:agent:/home/agent:/bin/bash\n" in opened["passwd"]
    people = [line.split(b":") for line in closed["passwd"].splitlines()]
    assert [person[0] for person in people] == [b"root", b"agent", b"nobody"]
    assert [person[0] for person in people if not person[-1].endswith(b"nologin")] == [b"agent"]


# Folders are mounted, which takes a right.


def in_own_mounts(work: Callable[[], None]) -> None:
    """Do `work` in a forked child with a mount namespace of its own; its failure is the test's."""
    if os.geteuid() != 0:
        pytest.skip("mounting in the initial user namespace needs root")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = b"did not come to its end"
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(syscalls.CLONE_NEWNS) != 0:
                raise OSError(ctypes.get_errno(), "unshare")
            syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
            work()
            said = b""
        except BaseException:
            said = traceback.format_exc().encode()
        finally:
            os.write(write, said)
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        problem = answer.read().decode()
    os.waitpid(pid, 0)
    assert not problem, problem


def test_folders_show_the_hosts_files(host_etc: Path) -> None:
    (host_etc / "ssl/certs").mkdir()
    (host_etc / "ssl/certs/one.pem").write_text("certificate")
    (host_etc / "alternatives").mkdir()
    (host_etc / "alternatives/awk").symlink_to("/usr/bin/mawk")

    def work() -> None:
        made = built(host_etc)
        assert made["ssl/certs/one.pem"].read_text() == "certificate"
        assert os.readlink(made["alternatives/awk"]) == "/usr/bin/mawk"
        assert "ssl/private/key.pem" not in made
        mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        assert str(host_etc.parent / "made/ssl/certs") in mounted
        assert not [name for name, path in made.items() if path.is_file() and CANARY in path.read_bytes()]

    in_own_mounts(work)
    assert sorted(os.listdir(host_etc.parent / "made/ssl/certs")) == []  # the mount went with the child


def test_a_link_to_a_folder_outside_usr_shows_that_folder(host_etc: Path) -> None:
    (host_etc / "pki/tls/certs").mkdir()
    (host_etc / "pki/tls/certs/one.pem").write_text("certificate")
    (host_etc / "ssl/certs").symlink_to("../pki/tls/certs")

    def work() -> None:
        assert built(host_etc)["ssl/certs/one.pem"].read_text() == "certificate"

    in_own_mounts(work)


def test_a_whole_real_etc_gives_away_no_secret(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()

    def work() -> None:
        etc.build(str(tmp_path / "made"), 1000, False)
        top = set(os.listdir(tmp_path / "made"))
        assert top <= GENERATED | {name.split("/")[0] for name in etc._present("/etc")}
        assert not top & {"shadow", "gshadow", "sudoers", "sudoers.d", "apt", "ssh", "machine-id", "hostname"}
        assert not (tmp_path / "made/ssl/private").exists()

    in_own_mounts(work)


# The covers of a sandbox's /proc.


def nothing_in(path: str) -> bool:
    """Empty, or refused even to root: the cover is a device on a mount without devices."""
    try:
        return Path(path).read_bytes() == b""
    except PermissionError:
        return True


def test_what_proc_tells_of_the_host_is_covered_and_its_settings_are_read_only() -> None:
    def work() -> None:
        assert not nothing_in("/proc/cmdline")  # there is something to cover
        covers.cover_proc()
        for name in covers.FILES.split():
            if os.path.exists(f"/proc/{name}") and os.stat(f"/proc/{name}").st_mode & 0o044:
                assert nothing_in(f"/proc/{name}"), name
        for name in covers.FOLDERS.split():
            assert not os.path.isdir(f"/proc/{name}") or os.listdir(f"/proc/{name}") == [], name
        with pytest.raises(OSError, match="Read-only"):
            os.open("/proc/sys/kernel/hostname", os.O_WRONLY)
        assert Path("/proc/self/stat").read_bytes() and Path("/proc/meminfo").read_bytes()

    in_own_mounts(work)
