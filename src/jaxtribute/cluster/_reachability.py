"""Whether the addresses of a cluster work from here. Nothing in it waits without a limit."""

from __future__ import annotations

import errno
import socket
import threading
from dataclasses import dataclass
from ipaddress import ip_address

from ..errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnavailableError,
)
from . import _this_machine
from ._address import Address
from ._task import Task

__all__ = ["Reached", "can_connect", "check_can_bind", "resolve_host"]

_Endpoint = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]


def resolve_host(
    address: str, task: Task | str | None = None, timeout: float = 20.0
) -> tuple[str, ...]:
    """Return the numbers of the host of an address.

    Args:
      address: a host and a port.
      task: whose address it is, for the message.
      timeout: how many seconds looking it up may take.

    Raises:
      InvalidArgumentError: when it is no address.
      UnavailableError: when the host is not known.
      DeadlineExceededError: when nobody answers who would know.
    """
    endpoints = _look_up(_parsed(address, task), _called(task, address), timeout)
    return tuple(dict.fromkeys(str(number[0]) for _, number in endpoints))


def check_can_bind(task: Task | str, address: str, timeout: float = 20.0) -> None:
    """Make sure that this process could listen on its own address.

    Args:
      task: the task of this process.
      address: its address.
      timeout: how many seconds looking up the host may take.

    Raises:
      FailedPreconditionError: when the port is in use.
      InvalidArgumentError: when it is no address, or not one of this machine.
      PermissionDeniedError: when the port is not for everybody.
      UnavailableError: when the host is not known.
      DeadlineExceededError: when nobody answers who would know.
    """
    parsed = _parsed(address, task)
    endpoints = _look_up(parsed, _called(task, address), timeout)
    outcomes = [_try_to_bind(*endpoint) for endpoint in endpoints]
    if errno.EADDRINUSE in outcomes:
        holder = _this_machine.port_holder(parsed.port) or "a process that cannot be seen from here"
        raise FailedPreconditionError(
            f"{task} cannot listen on {address}: port {parsed.port} is in use by {holder}. Free "
            f"it, or give {task} another port, in the description of the cluster on all machines."
        )
    if errno.EACCES in outcomes or errno.EPERM in outcomes:
        raise PermissionDeniedError(
            f"{task} may not listen on {address}: ports below 1024 are usually reserved for the "
            f"administrator. Give {task} another port, such as 2222."
        )
    if None not in outcomes:
        numbers = ", ".join(dict.fromkeys(str(number[0]) for _, number in endpoints))
        shown = parsed.host if parsed.host == numbers else f"{parsed.host} ({numbers})"
        raise InvalidArgumentError(
            f"{task}'s address is {shown}, which is none of this machine's"
            f"{_known_here()}. Is this the machine of {task}? If it is, correct its address; if "
            f"not, correct the task that this process is told to be."
        )


@dataclass(frozen=True)
class Reached:
    """Whether somebody answers at an address, and why not."""

    ok: bool
    why: str = ""

    def __bool__(self) -> bool:
        return self.ok


def can_connect(address: str, timeout: float = 5.0) -> Reached:
    """Tell whether something listens at an address, and if not, why; true if it does.

    Args:
      address: a host and a port.
      timeout: how many seconds it may take, all in all.

    Raises:
      InvalidArgumentError: when it is no address.
    """
    parsed = _parsed(address, None)
    try:
        endpoints = _look_up(parsed, address, timeout)
    except (UnavailableError, DeadlineExceededError) as error:
        return Reached(False, str(error))
    whys: list[str] = []
    for family, number in endpoints:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.settimeout(timeout / len(endpoints))
                connection.connect(number)
            return Reached(True)
        except OSError as error:
            whys.append(_why_no_connection(error, str(number[0]), timeout))
    return Reached(False, " ".join(dict.fromkeys(whys)))


def _why_no_connection(error: OSError, number: str, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return (
            f"{number} has not answered for {timeout:g} s: the machine is down, the address is "
            "wrong, or a firewall is in between."
        )
    if isinstance(error, ConnectionRefusedError):
        return (
            f"{number} answers, and nothing listens on the port: the task has not started, has "
            "ended, or listens elsewhere."
        )
    return f"{number} cannot be reached: {error.strerror or error}."


def _try_to_bind(
    family: socket.AddressFamily, number: tuple[str, int] | tuple[str, int, int, int]
) -> int | None:
    """Return None, or the number of the error."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            # Connections of an earlier run that are not quite over do no harm.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(number)
            listener.listen(1)
    except OSError as error:
        return error.errno
    return None


def _look_up(address: Address, called: str, timeout: float) -> list[_Endpoint]:
    """Ask for the numbers of a host, in a thread, since the system's own limit may be minutes."""
    found: list[_Endpoint] = []
    failed: list[OSError] = []

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except OSError as error:
            failed.append(error)
        else:
            found.extend((family, number) for family, _, _, _, number in answers)  # pyright: ignore[reportArgumentType]

    asking = threading.Thread(target=ask, name=f"look up {address.host}", daemon=True)
    asking.start()
    asking.join(timeout)
    if asking.is_alive():
        raise DeadlineExceededError(
            f"The host {address.host!r} of {called} has been looked up for {timeout:g} s without "
            f"an answer. Do the name servers of this machine work? Try: getent hosts {address.host}"
        )
    if failed:
        raise UnavailableError(
            f"The host {address.host!r} of {called} is not known here: "
            f"{failed[0].strerror or failed[0]}. Is it spelled rightly? Does this machine know it? "
            f"Try: getent hosts {address.host}. In Kubernetes a pod has a name once it runs, and "
            "if there is a headless Service for it."
        ) from failed[0]
    return found


def _parsed(address: str, task: Task | str | None) -> Address:
    try:
        return Address.parse(address)
    except ValueError as error:
        raise InvalidArgumentError(
            f"An address is a host and a port, as in 'host0:2222'. That of "
            f"{_called(task, address)} is not: {error}."
        ) from error


def _called(task: Task | str | None, address: str) -> str:
    return address if task is None else f"{task} ({address})"


def _known_here() -> str:
    known = [number for number in _this_machine.addresses() if not ip_address(number).is_loopback]
    return f" ({', '.join(known)})" if known else ""
