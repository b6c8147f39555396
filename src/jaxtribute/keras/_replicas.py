"""What Keras has to know of the replicas it runs on: gradients, randomness, means.

Each function here is Keras's own with one thing added. Outside of replicas, and where there is one
only, it is Keras's own.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import keras
from jax import lax

from .. import _context
from .._reduce import ReduceOp
from ..variables import _adopted, _frames
from . import _models, _private
from ._variables import synchronized

_GOLDEN_RATIO = 0x9E3779B9  # spreads replica ids over all bits of a seed


class _Thread(threading.local):
    op = ReduceOp.SUM
    whole = False
    reduced = False


_thread = _Thread()


def context() -> Any | None:
    """Return the context of the replica that is running, if there are others."""
    found = _context.get_replica_context()
    return found if found is not None and found.num_replicas_in_sync > 1 else None


@contextmanager
def averaging(whole: bool) -> Generator[None]:
    """Have replicas' gradients averaged: each replica's loss is the mean of its own examples.

    In a program of one's own they are added up, as the loss is divided by the global batch there.

    Args:
      whole: whether each replica has all examples of the batch.
    """
    before = _thread.op, _thread.whole
    _thread.op, _thread.whole = ReduceOp.MEAN, whole
    try:
        yield
    finally:
        _thread.op, _thread.whole = before


def is_averaging() -> bool:
    """Tell whether the step that is running is one of `fit`."""
    return _thread.op is ReduceOp.MEAN


@contextmanager
def reducing(gradients: Sequence[Any]) -> Generator[list[Any]]:
    """Combine the replicas' gradients, once, however many optimizers are inside one another."""
    here = context()
    if _thread.reduced or here is None:
        yield list(gradients)
        return
    known = [g for g in gradients if g is not None]
    combined = iter(here.all_reduce(_thread.op, known) if known else [])
    _thread.reduced = True
    try:
        yield [None if g is None else next(combined) for g in gradients]
    finally:
        _thread.reduced = False


@contextmanager
def alone() -> Generator[None]:
    """Take gradients as they are: those of all replicas are in them already."""
    before = _thread.reduced
    _thread.reduced = True
    try:
        yield
    finally:
        _thread.reduced = before


# --- Building ------------------------------------------------------------------------------


def build_once(own: Callable[..., Any], layer: Any, call_spec: Any) -> None:
    """Create the variables of a layer, once for all replicas, which get here together."""
    if layer.built:
        own(layer, call_spec)
        return
    here = context()
    if here is None:
        _models.building_in_scope(functools.partial(own, layer), layer)(call_spec)
    else:
        here.merge_call(lambda strategy: own(layer, call_spec))
    for variable in layer.trainable_variables:  # which another thread may have created
        _frames.current().was_created(_adopted.of(variable))


# --- Randomness ----------------------------------------------------------------------------


def next_seed(own: Callable[..., Any], generator: Any, ordered: bool = True) -> Any:
    """Draw a seed that differs between replicas, and is Keras's own on the first."""
    with synchronized(counting=ordered):  # all replicas go on to the same state
        seed = own(generator, ordered)
    here = _context.get_replica_context()
    if here is None:
        return seed
    worker = getattr(here.strategy, "worker", None) or 0
    if here.num_replicas_in_sync == 1 and worker == 0:
        return seed
    number = here.replica_id_in_sync_group + worker * here.num_replicas_in_sync
    return seed.at[0].add(jnp.asarray(number, seed.dtype) * jnp.asarray(_GOLDEN_RATIO, seed.dtype))


# --- Means over the batches of all replicas ------------------------------------------------


def new_batch_normalization(
    own: Callable[..., Any], layer: Any, *args: Any, synchronized: bool = False, **kwargs: Any
) -> None:
    """Create the layer with `synchronized`, which Keras refuses where it has not got it."""
    own(layer, *args, **kwargs)
    layer.synchronized = synchronized


def moments(
    own: Callable[..., Any], x: Any, axes: Any, keepdims: bool = False, synchronized: bool = False
) -> tuple[Any, Any]:
    """Return mean and variance; over all replicas, which Keras has not got on JAX, if asked to."""
    here = context() if synchronized else None
    if here is None:
        return own(x, axes, keepdims=keepdims)
    dtype = x.dtype
    x = x.astype(jnp.float32) if dtype in (jnp.float16, jnp.bfloat16) else x
    # Batches may differ in size, so what is divided by is counted as well.
    count = jnp.asarray(math.prod(x.shape[axis] for axis in axes), x.dtype)
    mean, variance = _moments_of_all(here, x, axes, count)
    if not keepdims:
        mean, variance = jnp.squeeze(mean, axes), jnp.squeeze(variance, axes)
    return mean.astype(dtype), variance.astype(dtype)


def masked_moments(own: Callable[..., Any], layer: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Return mean and variance of what a mask leaves; over all replicas, if the layer says so."""
    here = context()
    if here is not None and not layer.synchronized:
        return _moments_of_each(here, lambda: own(layer, inputs, mask), inputs)
    if here is None or mask is None:
        return own(layer, inputs, mask)
    axes = _private.reduced_axes(layer)
    kept = jnp.broadcast_to(mask[..., None], inputs.shape)
    count = jnp.sum(kept.astype(inputs.dtype), axes, keepdims=True)
    mean, variance = _moments_of_all(here, inputs, axes, count, kept, keras.config.epsilon())
    return jnp.squeeze(mean), jnp.squeeze(variance)


def _moments_of_each(here: Any, own: Callable[[], tuple[Any, Any]], x: Any) -> tuple[Any, Any]:
    """Return a replica's own moments; without examples, the average of those who have some.

    So moving statistics, which are averaged over replicas, are those of the replicas with examples.
    """
    sizes = here.sizes(x.shape[0])
    some = sum(size > 0 for size in sizes or ())
    if not some or some == here.num_replicas_in_sync:
        return own()
    moments = own()
    if x.shape[0] == 0:
        moments = (jnp.zeros_like(moments[0]), jnp.zeros_like(moments[1]))
    # Not differentiated: what is normalized by it has no elements.
    totals = here.all_reduce(ReduceOp.SUM, [lax.stop_gradient(value) for value in moments])
    return moments if x.shape[0] else (totals[0] / some, totals[1] / some)


def _moments_of_all(
    here: Any, x: Any, axes: Any, count: Any, kept: Any = None, epsilon: float = 0.0
) -> tuple[Any, Any]:
    total = jnp.sum(x, axes, keepdims=True, where=kept)
    total, count = here.all_reduce(ReduceOp.SUM, [total, count])
    mean = total / (count + epsilon)
    # Around the common mean: the difference of large squares would lose the variance.
    squares = jnp.sum(jnp.square(x - mean), axes, keepdims=True, where=kept)
    return mean, here.all_reduce(ReduceOp.SUM, [squares])[0] / (count + epsilon)


def reduce_values(
    own: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    reduction: str = "sum_over_batch_size",
) -> Any:
    """Reduce losses so that the mean over the replicas is what one device would have got."""
    here = context()
    if here is not None and tuple(values.shape) == (0,) and reduction not in (None, "none"):
        # Keras would not reduce it, and what is added to it, such as regularization, would be lost.
        values = jnp.reshape(values, (0, 1))
    loss = own(values, sample_weight, reduction)
    if here is None or not is_averaging() or loss.shape:
        return loss
    if reduction == "sum" and not _thread.whole:
        return loss * here.num_replicas_in_sync
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        return loss * _share(here, jnp.sum(sample_weight).astype(loss.dtype))
    return loss


def apply_mask(
    own: Callable[..., Any], sample_weight: Any, mask: Any, dtype: Any, reduction: str
) -> Any:
    """Weigh examples so that what is masked on any replica counts for nothing."""
    weight = own(sample_weight, mask, dtype=dtype, reduction=reduction)
    here = context()
    if mask is None or here is None or not is_averaging():
        return weight
    if reduction not in ("mean", "sum_over_batch_size"):
        return weight
    return weight * _share(here, jnp.sum(mask).astype(weight.dtype))


def _share(here: Any, weight: Any) -> Any:
    """Return how much a replica's mean counts in the mean over all, 1 being as much as others."""
    (average,) = here.all_reduce(ReduceOp.MEAN, [weight])
    return jnp.where(average == 0, 0, weight / jnp.where(average == 0, 1, average))
