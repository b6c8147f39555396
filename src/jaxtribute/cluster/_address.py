"""The address of a task: a host and a port, as text and in parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

__all__ = ["Address"]

_BRACKETED = re.compile(r"\[(?P<host>[^\[\]]*)\](?::(?P<port>.*))?")
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")


@dataclass(frozen=True)
class Address:
    """A host, by name or by number, and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the parts of `host:port`; the number of an IPv6 host stands in brackets.

        Raises:
          ValueError: when it is something else; the text says what, as part of a sentence.
        """
        bracketed = _BRACKETED.fullmatch(text)
        host, port = (bracketed["host"], bracketed["port"]) if bracketed else _split(text)
        if bracketed and not _is_ipv6(host):
            raise ValueError(f"{host!r} in the brackets is no IPv6 address")
        if not bracketed and not _NAME.fullmatch(host):
            raise ValueError("it names no host" if not host else f"{host!r} is no name of a host")
        if port is None:
            raise ValueError("it has no port")
        # Of the digits of other scripts, which `isdecimal` takes too, nobody else knows.
        if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
            raise ValueError(f"its port is {port!r}, and ports are numbers from 1 to 65535")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether it means this machine on every machine."""
        name = self.host.lower().rstrip(".")
        if name in ("localhost", "localhost.localdomain") or name.endswith(".localhost"):
            return True
        try:
            number = ip_address(self.host)
        except ValueError:
            return False
        return number.is_loopback or number.is_unspecified

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _split(text: str) -> tuple[str, str | None]:
    if _is_ipv6(text) or (text.count(":") > 1 and "://" not in text):
        raise ValueError("it has several colons; IPv6 needs brackets, as in '[fe80::1]:2222'")
    if "://" in text:
        raise ValueError("it begins with a protocol, and should be only a host and a port")
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True
