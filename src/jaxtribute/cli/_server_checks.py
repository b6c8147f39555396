"""What `jaxtribute doctor` checks for a cluster with parameter servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import zmq

from ..cluster._address import Address
from ..errors import FailedPreconditionError, JaxtributeError
from ..rpc import ClusterKey
from ._findings import Finding, Verdict

__all__ = ["check_encryption", "check_key"]

_EVERYWHERE = "0.0.0.0:1"


def check_key(addresses: Sequence[str]) -> Iterator[Finding]:
    """Check that there is a key that nobody else can read. None is made.

    Args:
      addresses: where workers and parameter servers listen.
    """
    is_local = all(Address.parse(address).is_loopback for address in addresses)
    try:
        ClusterKey.load(_EVERYWHERE)  # for such an address a key is never made
    except FailedPreconditionError as error:
        if is_local:
            yield Finding(Verdict.OK, "cluster key", "there is none: the first task makes one")
        else:
            detail = str(error).replace(_EVERYWHERE, "The cluster")
            yield Finding(Verdict.PROBLEM, "cluster key", detail)
    except JaxtributeError as error:
        yield Finding(Verdict.PROBLEM, "cluster key", str(error))
    else:
        same = "" if is_local else "; all machines must have the same"
        yield Finding(Verdict.OK, "cluster key", f"there is one{same}")


def check_encryption() -> Iterator[Finding]:
    """Check that ZeroMQ can encrypt."""
    version = f"ZeroMQ {zmq.zmq_version()}"
    if zmq.has("curve"):
        yield Finding(Verdict.OK, "encryption", f"{version} can encrypt")
    else:
        fix = "install pyzmq from a wheel (pip install --force-reinstall pyzmq), or serve with "
        yield Finding(
            Verdict.PROBLEM,
            "encryption",
            f"{version} was built without CURVE, and cannot encrypt",
            fix + "--no-encryption in a network that is trusted",
        )
