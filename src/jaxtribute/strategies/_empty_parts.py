"""Replicas that got no examples: what they make of nothing must not spoil the others' results.

Sums over no examples are 0, and add nothing. A mean over none is not a number; combined with what
the other replicas have, it would make that, and then the weights, not a number either.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from .. import _tree
from .._topology import Topology
from ..errors import InvalidArgumentError
from ..values import PerReplica


def without_examples(arguments: Any, topology: Topology) -> list[bool]:
    """Tell of each local replica whether its part is empty, while that of another is not."""
    found = [False] * topology.num_local
    for leaf in _tree.flatten(arguments)[0]:
        if isinstance(leaf, PerReplica):
            sizes = [_size(value) for value in leaf.components]
            if 0 in sizes and (any(sizes) or leaf.may_differ_elsewhere(topology)):
                found = [was or size == 0 for was, size in zip(found, sizes, strict=True)]
    return found


def check(what: str, values: Sequence[Any], empty: Sequence[bool], topology: Topology) -> None:
    """Refuse to combine what is not a number only because a replica had no examples.

    Args:
      what: what it is, for the message.
      values: a structure of each local replica.
      empty: whether each of them has no examples.
      topology: the replicas.

    Raises:
      InvalidArgumentError: when there is such a value.
    """
    replica = _spoilt(values, empty)
    if replica is not None:
        raise InvalidArgumentError(
            f"{what} of replica {topology.first_local + replica} is nan: the replica has no "
            f"examples in this step, and a mean over none is not a number. {_ADVICE}"
        )


def warn(results: Sequence[Any], empty: Sequence[bool], topology: Topology) -> None:
    """Say that a replica returned what is not a number only because it had no examples."""
    replica = _spoilt(results, empty)
    if replica is not None:
        warnings.warn(
            f"What replica {topology.first_local + replica} returned from `run` is nan: it has no "
            f"examples in this step, and a mean over none is not a number. {_ADVICE}",
            RuntimeWarning,
            stacklevel=2,
        )


@contextmanager
def explained(context: Any, is_empty: bool) -> Generator[None]:
    """Add to what a replica raises that it has no examples, if that is so."""
    try:
        yield
    except Exception as error:
        if is_empty:
            error.add_note(
                f"Replica {context.replica_id_in_sync_group} has no examples in this step: the "
                "batch has fewer than there are replicas, and its part has shape (0, ...). What "
                "raised this may not be able to do with none: a reshape to (..., -1) has to name "
                "all sizes, an index or a maximum needs an element. Or leave out a last batch that "
                "is not full, with batch(..., drop_remainder=True)."
            )
        raise


_ADVICE = (
    "Divide a sum by the number of examples on all replicas, as jt.nn.compute_average_loss does; "
    "return losses one by one and combine them with strategy.reduce('MEAN', losses, axis=0), or "
    "count them in a jt.metrics.Mean; or leave out a last batch that is not full, with "
    "batch(..., drop_remainder=True)."
)


def _spoilt(values: Sequence[Any], empty: Sequence[bool]) -> int | None:
    """Return a replica without examples that has nan where those with examples have numbers."""
    if not any(empty):
        return None
    columns = zip(*(_tree.flatten(value)[0] for value in values), strict=False)
    for column in columns:
        nan = [_has_nan(leaf) for leaf in column]
        with_examples = [n for n, is_empty in zip(nan, empty, strict=True) if not is_empty]
        if any(nan) and not any(with_examples):
            return nan.index(True)
    return None


def _has_nan(leaf: Any) -> bool:
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, float)) or isinstance(leaf, Tracer):
        return False
    array = np.asarray(leaf)
    return jax.numpy.issubdtype(array.dtype, np.inexact) and bool(np.isnan(array).any())


def _size(value: Any) -> int | None:
    shape = np.shape(value) if isinstance(value, (jax.Array, np.ndarray)) else ()
    return shape[0] if shape else None
