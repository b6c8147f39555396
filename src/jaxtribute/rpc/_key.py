"""The secret that makes processes a cluster, and what is derived from it.

The secret itself is never sent, printed or compared: each purpose has a key of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path

from .. import _job
from ..cluster._address import Address
from ..errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from ._zmq import zmq

_SHORTEST = 16
_HOW_TO_MAKE_ONE = 'python -c "import secrets; print(secrets.token_hex(32))"'


class ClusterKey:
    """The secret of a cluster: whoever knows it may do anything in it.

    Args:
      secret: some bytes that cannot be guessed.

    Raises:
      InvalidArgumentError: when there are none.
    """

    def __init__(self, secret: bytes) -> None:
        if not secret:
            raise InvalidArgumentError("The secret of a cluster is empty; it needs 16 bytes or so.")
        self._root = hmac.digest(b"jaxtribute cluster key", secret, "sha256")

    @classmethod
    def load(cls, public_address: str | None = None) -> ClusterKey:
        """Return the key of this process: from `JAXTRIBUTE_CLUSTER_KEY`, or from the user's file.

        Args:
          public_address: where this process will listen, if other machines can reach it there.

        Raises:
          FailedPreconditionError: when there is no key and the address needs one, or when the
            file cannot be made.
          InvalidArgumentError: when the variable holds too short a secret.
          PermissionDeniedError: when other users can read the file.
          UnauthenticatedError: when the file holds no key.
        """
        if text := os.environ.get(_job.CLUSTER_KEY, "").strip():
            if len(text) < _SHORTEST:
                raise InvalidArgumentError(
                    f"{_job.CLUSTER_KEY} has {len(text)} characters, which can be guessed; it "
                    f"needs {_SHORTEST} or more. Make one with: {_HOW_TO_MAKE_ONE}"
                )
            return cls(text.encode())
        file = _key_file()
        if public_address is not None and _is_public(public_address) and not file.exists():
            raise FailedPreconditionError(
                f"{public_address} can be reached from other machines, and there is no cluster key "
                f"to tell who may connect. Set {_job.CLUSTER_KEY} to the same secret for all tasks "
                f"of the cluster, or give all machines the same {file}, readable by you alone. "
                f"Make a secret with: {_HOW_TO_MAKE_ONE}"
            )
        return cls(_read_or_make(file))

    def derive(self, purpose: str) -> bytes:
        """Return 32 bytes that nobody can know who does not know the secret."""
        return hmac.digest(self._root, purpose.encode() + b"\x01", hashlib.sha256)

    @cached_property
    def server_pair(self) -> tuple[bytes, bytes]:
        """The public and the private key with which servers encrypt."""
        return _pair(self.derive("curve server"))

    @cached_property
    def client_pair(self) -> tuple[bytes, bytes]:
        """The public and the private key with which clients encrypt."""
        return _pair(self.derive("curve client"))


def _pair(private: bytes) -> tuple[bytes, bytes]:
    from zmq.utils import z85  # not before it is needed, as ZeroMQ itself

    encoded = z85.encode(private)
    return zmq.curve_public(encoded), encoded


def _is_public(address: str) -> bool:
    try:
        parsed = Address.parse(address)
    except ValueError as error:
        raise InvalidArgumentError(
            f"An address is a host and a port, as in 'host0:2222'; {address!r} is not: {error}."
        ) from error
    try:
        if ip_address(parsed.host).is_unspecified:  # every address of this machine
            return True
    except ValueError:  # a name
        pass
    return not parsed.is_loopback


def _key_file() -> Path:
    configuration = os.environ.get("XDG_CONFIG_HOME") or Path("~", ".config").expanduser()
    return Path(configuration, "jaxtribute", "cluster_key")


def _read_or_make(file: Path) -> bytes:
    try:
        if not file.exists():
            _make(file)
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC), "rb") as opened:
            _check_private(os.fstat(opened.fileno()), file)
            secret = opened.read(4096).strip()
    except PermissionDeniedError:
        raise
    except OSError as error:
        raise FailedPreconditionError(
            f"The key of the cluster cannot be kept in {file}: {error.strerror or error}. Set "
            f"{_job.CLUSTER_KEY} instead, to the same secret for all tasks of the cluster."
        ) from error
    if len(secret) < _SHORTEST:
        raise UnauthenticatedError(
            f"{file} holds no cluster key. Remove it, and a new one will be made."
        )
    return secret


@contextmanager
def key_in_environment(secret: str) -> Generator[None]:
    """Let strategies that are made inside find the secret of their cluster."""
    before = os.environ.get(_job.CLUSTER_KEY)
    os.environ[_job.CLUSTER_KEY] = secret
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_job.CLUSTER_KEY, None)
        else:
            os.environ[_job.CLUSTER_KEY] = before


def _make(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(secrets.token_hex(32).encode() + b"\n")
    try:
        os.link(draft, file)
    except FileExistsError:  # another process of the cluster was faster: its key counts
        pass
    finally:
        draft.unlink()


def _check_private(status: os.stat_result, file: Path) -> None:
    if status.st_uid != os.getuid():
        raise PermissionDeniedError(
            f"{file} belongs to another user, who would know the key of the cluster. Remove it, or "
            f"set {_job.CLUSTER_KEY}."
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionDeniedError(
            f"{file} can be read by other users of this machine, who could then run anything as "
            f"you. If nobody has, run: chmod 600 {file}; otherwise remove it."
        )
