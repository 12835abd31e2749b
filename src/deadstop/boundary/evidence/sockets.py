# SPDX-License-Identifier: Apache-2.0
"""What a socket inode is: peer, state, queues, retries, bytes each way and silence.

sock_diag answers for our own network namespace, and for another one where setns is allowed (CAP_SYS_ADMIN
there and here). Otherwise /proc/PID/net is read, which works for everybody but is twice as slow and does not
count bytes.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from dataclasses import dataclass

from . import proc

STATES = (
    "? ESTABLISHED SYN_SENT SYN_RECV FIN_WAIT1 FIN_WAIT2 TIME_WAIT CLOSE CLOSE_WAIT LAST_ACK LISTEN CLOSING "
    "NEW_SYN_RECV"
).split()
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_CLONE_NEWNET = 0x40000000
_DUMP_LIMIT = 4 << 20  # bytes of answer per table: on a host with 100000 sockets the look ends instead of the budget


@dataclass
class Socket:
    """protocol: tcp, udp or unix. peer_inode: the other end of a unix socket, 0 if not known.

    acked and received are bytes of a TCP connection, silent seconds since its last byte came; None if not
    known.
    """

    protocol: str
    local: str
    peer: str
    state: str
    unsent: int = 0
    retries: int = 0
    peer_inode: int = 0
    acked: int | None = None
    received: int | None = None
    silent: float | None = None


class Sockets:
    """Socket tables by network namespace, each read at most once per look."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}
        self._kept: set[str] = set()

    def find(self, pid: int, inode: int) -> Socket | None:
        """The socket with this inode in the network namespace of `pid`; None if it is of another family or
        gone.
        """
        try:
            name = os.readlink(f"/proc/{pid}/ns/net")
        except OSError:
            name = f"of {pid}"
        if name not in self._tables:
            self._tables[name] = _Table(pid, name)
        found = self._tables[name].find(inode)
        if found is None and name in self._kept:
            self._kept.discard(name)
            self._tables.pop(name).close()
            return self.find(pid, inode)
        return found

    def keep(self) -> None:
        """Use what was read for a second look as well; a socket that is not among it is younger: then read anew."""
        self._kept = set(self._tables)

    def close(self) -> None:
        """Let go of the kernel's sockets."""
        for table in self._tables.values():
            table.close()

    def other_end(self, pid: int, known: Socket) -> int:
        """The inode of the other end of a connection within the same namespace, or 0."""
        for table in self._tables.values():
            if known in table.entries.values():
                for inode, entry in table.entries.items():
                    if entry.local == known.peer and entry.peer == known.local and entry.protocol == known.protocol:
                        return inode
        return 0


class _Table:
    def __init__(self, pid: int, name: str) -> None:
        self._pid = pid
        self.entries: dict[int, Socket] = {}
        self._read_files = False
        self._pending = [
            (socket.AF_INET, socket.IPPROTO_TCP),
            (socket.AF_INET6, socket.IPPROTO_TCP),
            (socket.AF_INET, socket.IPPROTO_UDP),
            (socket.AF_INET6, socket.IPPROTO_UDP),
        ]
        self._netlink = _netlink_in(pid, name)

    def find(self, inode: int) -> Socket | None:
        if inode in self.entries:
            return self.entries[inode]
        if self._netlink is None:
            return self._find_in_files(inode)
        try:
            if found := _unix_socket(self._netlink, inode):
                self.entries[inode] = found
            while inode not in self.entries and self._pending:
                self.entries.update(_inet_sockets(self._netlink, *self._pending.pop(0)))
        except OSError:
            self.close()
            return self._find_in_files(inode)
        return self.entries.get(inode)

    def close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def _find_in_files(self, inode: int) -> Socket | None:
        if not self._read_files:
            self._read_files = True
            self.entries.update(_from_files(self._pid))
        return self.entries.get(inode)


def _netlink_in(pid: int, namespace: str) -> socket.socket | None:
    """A sock_diag socket that sees the namespace of `pid`. It keeps the namespace it was made in, so we step
    in and out.
    """
    try:
        own = os.readlink("/proc/self/ns/net")
        if own == namespace:
            return _netlink()
        with open("/proc/self/ns/net", "rb") as home, open(f"/proc/{pid}/ns/net", "rb") as there:
            if not _enter(there.fileno()):
                return None
            try:
                return _netlink()
            finally:
                _enter(home.fileno())
    except OSError:
        return None


def _enter(descriptor: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is newer than Python 3.11
    return bool(libc.setns(descriptor, _CLONE_NEWNET) == 0)


def _netlink() -> socket.socket:
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    made.settimeout(0.5)
    return made


def _ask(netlink: socket.socket, body: bytes, flags: int) -> list[bytes]:
    """Payloads of the answer, to its end or to _DUMP_LIMIT. Raises OSError where the kernel refuses."""
    netlink.send(struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, flags, 1, 0) + body)
    found: list[bytes] = []
    taken = 0
    while taken < _DUMP_LIMIT:
        data = netlink.recv(1 << 17)
        taken += len(data)
        at = 0
        while at + 16 <= len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind == 3:  # NLMSG_DONE
                return found
            if kind == 2:  # NLMSG_ERROR
                code = -struct.unpack_from("=i", data, at + 16)[0]
                if code in (0, 2):  # ENOENT: no such socket
                    return found
                raise OSError(code, "sock_diag")
            if kind == _SOCK_DIAG_BY_FAMILY:
                found.append(data[at + 16 : at + length])
                if not flags & 0x300:
                    return found
            at += (max(length, 16) + 3) & ~3
    raise OSError("too many sockets")


def _attributes(data: bytes, at: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        found[kind] = data[at + 4 : at + length]
        at += (max(length, 4) + 3) & ~3
    return found


def _inet_sockets(netlink: socket.socket, family: int, protocol: int) -> dict[int, Socket]:
    extension = 1 << 1  # INET_DIAG_INFO: struct tcp_info
    body = struct.pack("=BBBxI", family, protocol, extension, 0xFFF) + bytes(48)
    found: dict[int, Socket] = {}
    for message in _ask(netlink, body, 0x301):  # NLM_F_REQUEST | NLM_F_DUMP
        if len(message) < 72:
            continue
        inode = struct.unpack_from("=I", message, 68)[0]
        state, retries = message[1], message[3]
        size = 4 if family == socket.AF_INET else 16
        local_port, peer_port = struct.unpack_from(">HH", message, 4)
        entry = Socket(
            protocol="tcp" if protocol == socket.IPPROTO_TCP else "udp",
            local=_address(family, message[8 : 8 + size], local_port),
            peer=_address(family, message[24 : 24 + size], peer_port),
            state=STATES[state] if state < len(STATES) else "?",
            unsent=struct.unpack_from("=I", message, 60)[0],
            retries=retries,
        )
        _add_tcp_info(entry, _attributes(message, 72).get(2, b""))
        found[inode] = entry
    return found


def _add_tcp_info(entry: Socket, info: bytes) -> None:
    if entry.protocol != "tcp" or len(info) < 136:
        return
    entry.silent = struct.unpack_from("=I", info, 52)[0] / 1000
    acked, entry.received = struct.unpack_from("=QQ", info, 120)
    entry.acked = max(acked - 1, 0)  # the first one acknowledged is the SYN


def _unix_socket(netlink: socket.socket, inode: int) -> Socket | None:
    show = 0x1 | 0x4  # UDIAG_SHOW_NAME, UDIAG_SHOW_PEER
    body = struct.pack("=BBxxIII", socket.AF_UNIX, 0, 0xFFFFFFFF, inode, show) + b"\xff" * 8
    try:
        answers = _ask(netlink, body, 0x1)
    except OSError as error:
        if error.errno in (2, 22, 93, 97):  # this kernel has no unix_diag: the other tables may still answer
            return None
        raise
    for message in answers:
        if len(message) < 16:
            continue
        parts = _attributes(message, 16)
        name = parts.get(0, b"").rstrip(b"\0").replace(b"\0", b"@").decode("utf-8", "replace")
        peer = struct.unpack("=I", parts[2][:4])[0] if len(parts.get(2, b"")) >= 4 else 0
        state = "LISTEN" if message[2] == 10 else "CONNECTED"
        return Socket("unix", name, "", state, peer_inode=peer)
    return None


def _address(family: int, raw: bytes, port: int) -> str:
    text = socket.inet_ntop(family, raw)
    return f"{text}:{port}" if family == socket.AF_INET else f"[{text}]:{port}"


def _from_files(pid: int) -> dict[int, Socket]:
    found: dict[int, Socket] = {}
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in proc.read_whole(f"/proc/{pid}/net/{name}", 1 << 19).splitlines()[1:]:
            words = line.split()
            if len(words) < 10:
                continue
            state = int(words[3], 16)
            found[int(words[9])] = Socket(
                protocol=name[:3],
                local=_hex_address(words[1]),
                peer=_hex_address(words[2]),
                state=STATES[state] if state < len(STATES) else "?",
                unsent=int(words[4].split(b":")[0], 16),
                retries=int(words[6], 16),
            )
    for line in proc.read_whole(f"/proc/{pid}/net/unix", 1 << 19).splitlines()[1:]:
        words = line.split()
        if len(words) >= 7 and words[6].isdigit():
            state_name = "LISTEN" if int(words[3], 16) & 0x10000 else "CONNECTED"
            path = words[7].decode("utf-8", "replace") if len(words) > 7 else ""
            found[int(words[6])] = Socket("unix", path, "", state_name)
    return found


def _hex_address(word: bytes) -> str:
    address, port = word.split(b":")
    raw = bytes.fromhex(address.decode())
    raw = b"".join(struct.pack(">I", *struct.unpack_from("=I", raw, at)) for at in range(0, len(raw), 4))
    return _address(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw, int(port, 16))
