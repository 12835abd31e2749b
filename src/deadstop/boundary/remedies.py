# SPDX-License-Identifier: Apache-2.0
"""What would change a host that gives less: a fix is named only where the host itself shows that it is the one."""

from __future__ import annotations

import errno
import os

from .cgroup import denied, read

SETTINGS = (  # name, the value that refuses namespaces, a value that allows them
    ("user/max_user_namespaces", "0", "15000"),
    ("user/max_pid_namespaces", "0", "15000"),
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
)


def namespace_fix(number: int) -> str:
    """What would allow namespaces here, as far as the host's settings tell; "" where they do not."""
    if os.geteuid() == 0 and not has_sys_admin():
        other = "" if status("Seccomp") == "2" else ", or run as an ordinary user"
        return f"give root CAP_SYS_ADMIN (in a container: --cap-add SYS_ADMIN){other}"
    for name, refusing, allowing in SETTINGS:
        if setting(name) == refusing:
            return f"as root: sysctl -w {name.replace('/', '.')}={allowing}"
    if number in (errno.ENOSPC, errno.EUSERS):
        return "raise user.max_user_namespaces and user.max_pid_namespaces; at most 32 may be nested"
    if number and status("Seccomp") == "2":
        return "a system call filter refuses them: start the container with --security-opt seccomp=unconfined"
    if number == errno.ENOSYS:
        return "a kernel of 5.7 or newer"
    if number == errno.EINVAL:
        return "a kernel of 5.7 or newer, built with CONFIG_USER_NS and CONFIG_PID_NS"
    return ""


def proc_fix() -> str:
    """What would allow a new /proc: the kernel refuses it while parts of the one we have are covered."""
    if not any(point.startswith("/proc/") for point, _, _ in _mounts()):
        return namespace_fix(0)
    if _container():
        return "start the container with --security-opt systempaths=unconfined (Podman: unmask=ALL)"
    return "unmount what covers parts of /proc"


def cgroup_fix(controller: str) -> str:
    """How to be given a control group with this controller, on a host like this one."""
    if "cgroup" in denied():
        return "unset DEADSTOP_DENY"
    user, (folder, is_v2, writable) = os.geteuid(), _cgroup_mount(controller)
    if not folder:
        return f"a kernel with the {controller} controller, mounted below /sys/fs/cgroup"
    if not writable and _container():
        return "start the container with --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:rw"
    if not is_v2 or not os.path.isdir("/run/systemd/system"):
        return _own_group(folder, user, controller, is_v2)
    manager = f"{folder}/user.slice/user-{user}.slice/user@{user}.service/cgroup.controllers"
    scope = f"run it as: systemd-run {'--user ' if user else ''}--scope -p Delegate=yes deadstop ..."
    if user and os.path.exists(manager) and controller not in read(manager).split():
        return f"as root: systemctl edit user@.service, [Service] Delegate=cpu memory pids; then {scope}"
    return scope


def _own_group(folder: str, user: int, controller: str, is_v2: bool) -> str:
    """A line for root. deadstop has to be alone in its group: v2 gives no controllers on from a shared one."""
    group = f"{folder}/agents"
    steps = [f"echo +{controller} > {folder}/cgroup.subtree_control"] if is_v2 else []
    steps += [f"mkdir -p {group}", f"chown -R {user} {group}"]
    become = f"setpriv --reuid {user} --regid {os.getegid()} --clear-groups " if user else ""
    start = f"sh -c 'echo $$ > {group}/cgroup.procs && exec {become}deadstop ...'"
    return f"as root: {' && '.join([*steps, start])}"


def _mounts() -> list[tuple[str, str, list[str]]]:
    """(mount point, type, options) of every mount."""
    rows = [line.split() for line in read("/proc/self/mounts", 1 << 20).splitlines()]
    return [(row[1], row[2], row[3].split(",")) for row in rows if len(row) > 3]


def _cgroup_mount(controller: str) -> tuple[str, bool, bool]:
    """(mount point of the hierarchy with the controller, whether it is v2, whether it is writable)."""
    for point, kind, options in _mounts():
        if kind == "cgroup" and controller in options:
            return point, False, "rw" in options
        if kind == "cgroup2" and controller in read(f"{point}/cgroup.controllers").split():
            return point, True, "rw" in options
    return "", False, False


def kernel_version() -> tuple[int, ...]:
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


def setting(name: str) -> str:
    return read(f"/proc/sys/{name}").strip()


def status(name: str) -> str:
    lines = read("/proc/self/status").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "")


def has_sys_admin() -> bool:
    return bool(int(status("CapEff") or "0", 16) >> 21 & 1)


def _container() -> bool:
    """Whether this is a container of Docker or Podman: they leave a file."""
    return any(os.path.exists(path) for path in ("/.dockerenv", "/run/.containerenv"))
