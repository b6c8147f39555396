"""Small option records that are passed through public calls."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["RunOptions", "ValueContext"]


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

    >>> context = jt.experimental.ValueContext(1, 2)
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
