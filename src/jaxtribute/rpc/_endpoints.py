"""Where the sockets of a task are.

Each task listens on its address over TCP, and for peers of the same user on the same machine on a
unix socket, which is faster and needs no encryption: it is in a directory that nobody else can
enter. The name of the socket follows from the address and the key, so that both sides find it.
"""

from __future__ import annotations

import hmac
import os
import socket
import stat
import tempfile
import time
from pathlib import Path

from ..cluster._address import Address
from ..errors import InvalidArgumentError
from ._key import ClusterKey

_LONGEST_PATH = 100  # bytes; the system's own limit is 104 or 108
_LEFT_BEHIND = 3600.0  # seconds; a younger socket may be about to be listened on


def parsed(address: str, task: str) -> Address:
    """Return the parts of the address of a task.

    Raises:
      InvalidArgumentError: when it is none.
    """
    try:
        return Address.parse(address)
    except ValueError as error:
        raise InvalidArgumentError(
            f"An address is a host and a port, as in 'host0:2222'. That of {task} is {address!r}: "
            f"{error}."
        ) from error


def tcp_endpoint(address: Address) -> str:
    """Return what ZeroMQ calls an address."""
    return f"tcp://{address}"


def unix_socket(address: Address, key: ClusterKey) -> Path | None:
    """Return where the unix socket of a task is, or would be; None if there is no place for one."""
    name = hmac.digest(key.derive("unix socket"), str(address).lower().encode(), "sha256").hex()
    for directory in _directories():
        path = directory / name[:32]
        if len(os.fsencode(path)) < _LONGEST_PATH:
            return path
    return None


def make_directory(directory: Path) -> str | None:
    """Make the directory of the unix sockets, and return why it cannot be used, if so."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        return f"{directory} cannot be made: {error.strerror or error}"
    if not _is_private(directory):
        return f"{directory} is open to other users of this machine, or belongs to one"
    return None


def sweep(directory: Path) -> None:
    """Remove the sockets of processes that were killed some time ago."""
    for path in directory.iterdir():
        try:
            status = path.lstat()
            if stat.S_ISSOCK(status.st_mode) and time.time() - status.st_mtime > _LEFT_BEHIND:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.setblocking(False)
                    connection.connect(str(path))
        except ConnectionRefusedError:  # nobody listens on it, nor is about to
            path.unlink(missing_ok=True)
        except OSError:  # somebody does, or it has gone by itself
            continue


def can_be_trusted(path: Path) -> bool:
    """Tell whether a unix socket is there that only a process of this user can have made."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return (
        stat.S_ISSOCK(status.st_mode) and status.st_uid == os.getuid() and _is_private(path.parent)
    )


def _is_private(directory: Path) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)  # no link to one
        and status.st_uid == os.getuid()
        and not stat.S_IMODE(status.st_mode) & 0o077
    )


def _directories() -> list[Path]:
    own = f"jaxtribute-{os.getuid()}"
    found = [Path(place, own) for place in (tempfile.gettempdir(), "/tmp")]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        found.insert(0, Path(runtime, own))
    return found
