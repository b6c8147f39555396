"""Lookups of rows of tables, and losses of replicas that add up to that of the whole batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from . import _context
from ._wide import asarray
from .sharded import RaggedIds, embedding_lookup, safe_embedding_lookup_sparse

__all__ = [
    "RaggedIds",
    "compute_average_loss",
    "embedding_lookup",
    "safe_embedding_lookup_sparse",
    "scale_regularization_loss",
]


def compute_average_loss(
    per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
) -> jax.Array:
    """Return this replica's share of the mean loss over the global batch.

    The shares of all replicas add up to the mean, and so do their gradients, which is what
    `Optimizer.apply_gradients` computes.

    >>> float(jt.nn.compute_average_loss(jnp.array([1.0, 2.0, 3.0]), global_batch_size=6))
    1.0

    Args:
      per_example_loss: a loss for each example of this replica.
      sample_weight: a weight for each example, or one for all.
      global_batch_size: the number of examples on all replicas. By default they are counted, also
        where parts differ in size or are empty, as in a last batch; replicas that run as Python
        then wait here for each other, so that all of them have to make the call.

    Returns:
      A scalar; 0 on a replica without examples.

    Raises:
      ValueError: when the loss is a scalar, or the batch size is not positive though there are
        losses.
      TypeError: when the batch size is not a whole number.
      RuntimeError: when the batch size is not given outside the replicas, or inside a `jax.jit` of
        the replica's own while parts differ in size.
    """
    losses = asarray(per_example_loss, "per_example_loss")
    if losses.ndim == 0:
        raise ValueError(
            "compute_average_loss needs a loss for each example, got a scalar. Leave the losses "
            "unreduced, such as optax.softmax_cross_entropy(...) without jnp.mean."
        )
    dtype = losses.dtype
    if sample_weight is not None:
        weights = asarray(sample_weight, "sample_weight")
        weights = weights.reshape(weights.shape + (1,) * (losses.ndim - weights.ndim))
        losses = losses * weights
    if global_batch_size is None:
        context = _context.get_replica_context()
        if context is None:
            raise RuntimeError(
                "compute_average_loss was called outside the replicas without global_batch_size, "
                "so it cannot know the size of the batch. Pass it, or call inside `run`."
            )
        sizes = context.sizes(losses.shape[0])
        if sizes is None:
            raise RuntimeError(
                "compute_average_loss was called without global_batch_size inside a JAX "
                "transformation that compiles, such as jax.jit or jax.lax.scan, which began inside "
                "the replica, and the replicas have different numbers of examples, as in a last "
                "batch. It cannot ask the others for theirs there: pass global_batch_size."
            )
        global_batch_size = sum(sizes)
    size = _checked_batch_size(global_batch_size, at_least=1 if losses.size else 0)
    total = jnp.sum(losses)
    if isinstance(size, Tracer):  # of no examples at all the loss is 0
        size = jnp.where((total == 0) & (size == 0), 1, size)
    return (total / (1 if isinstance(size, int) and size == 0 else size)).astype(dtype)


def scale_regularization_loss(regularization_loss: Any) -> jax.Array:
    """Return this replica's share of a loss that every replica computes in full.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> shares = strategy.run(lambda: jt.nn.scale_regularization_loss(jnp.float32(3.0)))
    >>> float(strategy.reduce("SUM", shares, axis=None))
    3.0

    Args:
      regularization_loss: the loss, such as the norm of the weights.

    Raises:
      RuntimeError: in cross-replica context.
    """
    context = _context.get_replica_context()
    if context is None:
        raise RuntimeError(
            "scale_regularization_loss was called in cross-replica context. Call it inside the "
            "function given to `run`, whose results are added up."
        )
    return jnp.sum(jnp.asarray(regularization_loss)) / context.num_replicas_in_sync


def _checked_batch_size(size: Any, at_least: int) -> Any:
    if isinstance(size, (jax.Array, np.ndarray)):
        if size.ndim:
            raise ValueError(f"global_batch_size must be a scalar, got shape {size.shape}.")
        if not jnp.issubdtype(size.dtype, jnp.integer):
            raise TypeError(f"global_batch_size must be a whole number, got dtype {size.dtype}.")
        if isinstance(size, Tracer):
            return size
        size = int(size)
    if not isinstance(size, (int, np.integer)):
        raise TypeError(f"global_batch_size must be a whole number, got {size!r}.")
    if size < at_least:
        raise ValueError(f"global_batch_size must be positive, got {size}.")
    return int(size)
