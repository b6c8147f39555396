"""Small option records that are passed through public calls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

__all__ = [
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "RunOptions",
    "ValueContext",
]


class RunOptions(NamedTuple):
    """Options of `Strategy.run`; accepted for compatibility, as XLA needs none of them.

    >>> jt.get_strategy().run(lambda: 1, options=jt.RunOptions())
    1

    Attributes:
      experimental_enable_dynamic_batch_size: shapes may differ between steps; always true here.
      experimental_bucketizing_dynamic_shape: pad shapes to a few sizes; not needed here.
      experimental_xla_options: XLA compile options of TPU strategies.
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Any = None


class ValueContext:
    """What a `value_fn` is told about the replica it makes a value for.

    >>> context = jt.ValueContext(1, 2)
    >>> context.replica_id_in_sync_group, context.num_replicas_in_sync
    (1, 2)
    """

    def __init__(self, replica_id_in_sync_group: int = 0, num_replicas_in_sync: int = 1) -> None:
        self._replica_id = replica_id_in_sync_group
        self._num_replicas = num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> int:
        """The replica's index, from 0."""
        return self._replica_id

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are."""
        return self._num_replicas

    def __repr__(self) -> str:
        return (
            f"ValueContext(replica_id_in_sync_group={self._replica_id}, "
            f"num_replicas_in_sync={self._num_replicas})"
        )


class CommunicationImplementation(Enum):
    """What carries values between workers.

    XLA has one way for each kind of device: NCCL between GPUs, ICI between TPUs, Gloo between CPUs.

    >>> jt.experimental.CommunicationImplementation("RING").name
    'RING'
    """

    AUTO = "AUTO"
    """Whatever suits the devices."""

    RING = "RING"
    """Rings over TCP: Gloo, between CPUs. On other devices the same as AUTO."""

    NCCL = "NCCL"
    """NVIDIA's library, for which all workers need GPUs."""


CollectiveCommunication = CommunicationImplementation
"""The name that `CommunicationImplementation` had first."""


@dataclass(frozen=True)
class CommunicationOptions:
    """How values are sent between workers, for a whole strategy or for one call.

    >>> jt.experimental.CommunicationOptions(timeout_seconds=60.0).bytes_per_pack
    0

    Args:
      bytes_per_pack: how much is sent at once; 0 sends small arrays together and large ones alone.
      timeout_seconds: how long to wait for other workers before `DeadlineExceededError` is raised,
        which names them; None waits as long as they are alive.
      implementation: what carries the values, or its name.

    Raises:
      ValueError: for a negative number, or an unknown implementation.
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation = CommunicationImplementation.AUTO

    def __post_init__(self) -> None:
        if self.bytes_per_pack < 0:
            raise ValueError(
                f"bytes_per_pack must be 0 or more, got {self.bytes_per_pack}. 0 leaves it to the "
                "library."
            )
        if self.timeout_seconds is not None and self.timeout_seconds <= 0:
            raise ValueError(
                f"timeout_seconds must be positive, got {self.timeout_seconds}. None waits as long "
                "as the others are alive."
            )
        if isinstance(self.implementation, str):
            name = self.implementation.upper()
            known = [one.name for one in CommunicationImplementation]
            if name not in known:
                raise ValueError(
                    f"Unknown implementation {self.implementation!r}; there is {', '.join(known)}."
                )
            object.__setattr__(self, "implementation", CommunicationImplementation[name])
        elif not isinstance(self.implementation, CommunicationImplementation):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                "implementation must be a CommunicationImplementation or the name of one, got "
                f"{self.implementation!r}."
            )

    def overridden_by(self, other: CommunicationOptions | None) -> CommunicationOptions:
        """Return these options, in which what `other` says goes first."""
        if other is None:
            return self
        return CommunicationOptions(
            other.bytes_per_pack or self.bytes_per_pack,
            self.timeout_seconds if other.timeout_seconds is None else other.timeout_seconds,
            self.implementation if other.implementation is _AUTO else other.implementation,
        )


CollectiveHints = CommunicationOptions
"""The name that `CommunicationOptions` had first."""

_AUTO = CommunicationImplementation.AUTO
