"""Randomness that differs between replicas."""

from __future__ import annotations

import jax

from . import _context

__all__ = ["replica_key"]


def replica_key(key: jax.Array) -> jax.Array:
    """Return a random key of the running replica's own, derived from one that all share.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> def dropout_mask(key):
    ...     return jax.random.bernoulli(jt.random.replica_key(key), 0.5, (16,))
    >>> masks = strategy.run(dropout_mask, args=(jax.random.key(0),))
    >>> first, second = strategy.experimental_local_results(masks)
    >>> bool((np.asarray(first) == np.asarray(second)).all())
    False

    Args:
      key: a key from `jax.random.key`, the same on all replicas.

    Returns:
      `key` folded with the replica's id; with one replica, too, so that a program has the same
      randomness on its first replica however many there are.

    Raises:
      RuntimeError: outside the replicas.
    """
    context = _context.get_replica_context()
    if context is None:
        raise RuntimeError(
            "replica_key was called outside the replicas, where there is no replica to derive a "
            "key for. Call it inside the function given to `run`."
        )
    return jax.random.fold_in(key, context.replica_id_in_sync_group)
