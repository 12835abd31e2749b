# SPDX-License-Identifier: Apache-2.0
"""The /etc of a sandbox: a few generated files, and what programs below /usr cannot start without."""

from __future__ import annotations

import os
import stat

from . import syscalls
from .policy import HOME

# Never a whole host folder that may hold secrets (/etc, /etc/ssl, /etc/pki), and nothing in which people keep tokens or
# proxy passwords (/etc/apt, gitconfig, npmrc, pip.conf). A name that ends in * stands for every name that begins so.
NAMES = """
ld.so.cache ld.so.conf ld.so.conf.d alternatives localtime timezone mime.types protocols services rpc gai.conf host.conf
debian_version os-release inputrc bash.bashrc terminfo magic magic.mime
ssl/certs ssl/cert.pem ssl/openssl.cnf ca-certificates crypto-policies
pki/tls/certs pki/tls/cert.pem pki/tls/openssl.cnf pki/ca-trust/extracted
python3* perl perl5 java java-* fonts chromium.d
""".split()
COPY_BYTES = 1 << 20


def build(folder: str, uid: int, net: bool, host: str = "/etc") -> None:
    """Fill `folder`: small files are copied, folders bound. Needs the right to mount in this mount namespace."""
    for name in _present(host):
        source, target = f"{host}/{name}", f"{folder}/{name}"
        _make_folders(folder, os.path.dirname(name))
        if os.path.islink(source) and os.readlink(source).startswith("/usr/"):
            os.symlink(os.readlink(source), target)
        elif os.path.isdir(source):
            _make_folders(folder, name)
            syscalls.mount(source, target, None, syscalls.MS_BIND)
        else:
            _copy(source, target)
    for name, content in etc_content(uid, net).items():
        _write(f"{folder}/{name}", content)


def _make_folders(folder: str, path: str) -> None:
    """Like makedirs, but readable whatever the caller's umask is."""
    for part in path.split("/") if path else ():
        folder = f"{folder}/{part}"
        if not os.path.isdir(folder):
            os.mkdir(folder)
            os.chmod(folder, 0o755)


def _present(host: str) -> list[str]:
    everything = os.listdir(host)
    found: dict[str, None] = {}
    for name in NAMES:
        if name.endswith("*"):
            found.update(dict.fromkeys(sorted(entry for entry in everything if entry.startswith(name[:-1]))))
        elif os.path.exists(f"{host}/{name}"):
            found[name] = None
    return list(found)


def _copy(source: str, target: str) -> None:
    """A regular file of sane size that anyone may read; anything else is left out."""
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        facts = os.fstat(fd)
        if stat.S_ISREG(facts.st_mode) and facts.st_mode & stat.S_IROTH and facts.st_size <= COPY_BYTES:
            _write(target, os.read(fd, COPY_BYTES))
    finally:
        os.close(fd)


def _write(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(fd, 0o644)
        os.write(fd, content)
    finally:
        os.close(fd)


def etc_content(uid: int, net: bool) -> dict[str, bytes]:
    """Return the generated files of /etc by name: one user, one host name, the resolvers only with `net`."""
    return {
        "passwd": (
            f"root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nagent:x:{uid}:{uid}:agent:{HOME}:/bin/bash\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ).encode(),
        "group": f"root:x:0:\ntty:x:5:\nagent:x:{uid}:\nnogroup:x:65534:\n".encode(),
        "hosts": b"127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost sandbox\n",
        "nsswitch.conf": f"passwd: files\ngroup: files\nhosts: files{' dns' if net else ''}\n".encode(),
        "resolv.conf": _host_resolvers() if net else b"",
    }


def _host_resolvers() -> bytes:
    try:
        with open("/etc/resolv.conf", "rb") as file:
            return file.read(65536)
    except OSError:
        return b""
