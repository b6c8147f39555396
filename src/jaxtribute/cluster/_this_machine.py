"""What this machine knows of itself: its addresses, and who listens on a port.

Linux tells it in /proc. Elsewhere less is known, which makes messages shorter and nothing else.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterator
from ipaddress import IPv6Address
from pathlib import Path

__all__ = ["addresses", "free_ports", "port_holder"]

_LISTENING = "0A"
_FIRST_PORT = 10_000  # below, there are many that are known to belong to some program
_ATTEMPTS = 100


def addresses() -> list[str]:
    """Return the numbers under which this machine is known on its networks."""
    found = [*_ipv4_addresses(), *_ipv6_addresses()]
    if not found:
        try:
            found = socket.gethostbyname_ex(socket.gethostname())[2]
        except OSError:  # a machine that does not know its own name
            return []
    return list(dict.fromkeys(found))


def port_holder(port: int) -> str | None:
    """Return which process listens on a port, such as `process 123 (python)`, if it can be seen."""
    sockets = {f"socket:[{inode}]" for inode in _listening_on(port)}
    if not sockets:
        return None
    for process in _processes():
        if sockets & set(_open_files(process)):
            pid = int(process.name)
            return (
                "this process itself" if pid == os.getpid() else f"process {pid} ({_name(process)})"
            )
    return None


def _listening_on(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        for line in _lines(Path("/proc/net", table))[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                yield inode


def _processes() -> list[Path]:
    return [p for p in Path("/proc").iterdir() if p.name.isdecimal()]


def _open_files(process: Path) -> Iterator[str]:
    try:
        for file in (process / "fd").iterdir():
            yield os.readlink(file)
    except OSError:  # it has ended, or belongs to another user
        return


def _name(process: Path) -> str:
    command = "".join(_lines(process / "cmdline")).replace("\0", " ").strip()
    return command[:80] or "".join(_lines(process / "comm")).strip() or "unknown"


def _ipv4_addresses() -> Iterator[str]:
    address = ""
    for line in _lines(Path("/proc/net/fib_trie")):
        if named := re.search(r"\|-- (\S+)", line):
            address = named[1]
        elif "host LOCAL" in line:
            yield address


def _ipv6_addresses() -> Iterator[str]:
    for line in _lines(Path("/proc/net/if_inet6")):
        yield str(IPv6Address(int(line.split()[0], 16)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:  # not on Linux, or not ours to read
        return []


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that are free at the moment, all different.

    None that the system might give to the next connection that anybody opens, where there are
    others: whoever is told the port would find it taken.
    """
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in sockets:  # all bound at the same time, so that no port is given twice
            _bind_somewhere(each)
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _bind_somewhere(unbound: socket.socket) -> None:
    given_away = _lines(Path("/proc/sys/net/ipv4/ip_local_port_range"))
    first = int(given_away[0].split()[0]) if given_away else 0
    attempts = _ATTEMPTS if first - _FIRST_PORT > _ATTEMPTS else 0
    for _ in range(attempts):
        try:
            unbound.bind(("127.0.0.1", _FIRST_PORT + secrets.randbelow(first - _FIRST_PORT)))
            return
        except OSError:  # it is in use
            continue
    unbound.bind(("127.0.0.1", 0))
