"""Gradients with respect to variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .. import _context, _tree
from ..variables import Variable, _frames

__all__ = ["grad", "value_and_grad"]


def value_and_grad(
    fn: Callable[..., Any], variables: Any, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that computes `fn` and its gradients with respect to variables.

    The variables are those `fn` captures, not its arguments. What `fn` assigns to variables is
    carried out. Inside `run`, the gradients are those of the replica; `Optimizer.apply_gradients`
    adds them up over all replicas. A loss with several elements is differentiated as their sum.

    >>> w = jt.Variable(3.0)
    >>> loss, (dw,) = jt.value_and_grad(lambda x: w * w * x, [w])(2.0)
    >>> float(loss), float(dw)
    (18.0, 12.0)

    Args:
      fn: the function; returns the loss, or the loss and something else if `has_aux`.
      variables: a variable, or a list, tuple or other structure of them.
      has_aux: whether `fn` returns a pair.

    Returns:
      A function with the arguments of `fn` that returns the value and the gradients, which have
      the structure of `variables`.

    Raises:
      TypeError: when `variables` holds something else, or a variable of whole numbers.
    """
    leaves, structure = _tree.flatten(variables)
    targets = [_checked(leaf) for leaf in leaves]

    def with_gradients(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        parent = _frames.current()
        outcome = _Outcome()

        def total(values: list[Any]) -> tuple[Any, Any]:
            frame = _frames.GradientFrame(parent, zip(targets, values, strict=True))
            with _frames.opened(frame):
                result = fn(*args, **kwargs)
            loss = jnp.asarray(result[0] if has_aux else result)
            return jnp.sum(loss), outcome.take_apart((loss, result), frame.written)

        values = [_differentiable(target) for target in targets]
        (_, arrays), gradients = jax.value_and_grad(total, has_aux=True)(values)
        (loss, result), written = outcome.put_together(arrays)
        for variable, value in written:
            parent.write(variable, value)
        context = _context.get_replica_context()
        if context is not None and loss.ndim == 0:
            context.expect_sum(loss)
        return (loss, result[1]) if has_aux else loss, structure.unflatten(gradients)

    return with_gradients


def grad(fn: Callable[..., Any], variables: Any, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the gradients of `fn`; see `value_and_grad`.

    >>> w = jt.Variable([1.0, 2.0])
    >>> jt.grad(lambda: jnp.sum(w**2), w)()
    Array([2., 4.], dtype=float32)

    Args:
      fn: the function; returns the loss, or the loss and something else if `has_aux`.
      variables: a variable, or a list, tuple or other structure of them.
      has_aux: whether `fn` returns a pair.

    Returns:
      A function with the arguments of `fn` that returns the gradients, or the gradients and the
      something else.
    """
    with_gradients = value_and_grad(fn, variables, has_aux)

    def gradients_only(*args: Any, **kwargs: Any) -> Any:
        value, gradients = with_gradients(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return gradients_only


class _Outcome:
    """Passes results out of a differentiated function, the arrays among them through JAX."""

    def take_apart(self, result: Any, written: list[tuple[Variable, Any]]) -> list[Any]:
        leaves, self._structure = _tree.flatten(result)
        self._template = [None if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        self._is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
        self._variables = [variable for variable, _ in written]
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        return arrays + [value for _, value in written]

    def put_together(self, arrays: list[Any]) -> tuple[Any, list[tuple[Variable, Any]]]:
        remaining = iter(arrays)
        leaves = [
            next(remaining) if is_array else leaf
            for leaf, is_array in zip(self._template, self._is_array, strict=True)
        ]
        return self._structure.unflatten(leaves), list(zip(self._variables, remaining, strict=True))


def _checked(leaf: Any) -> Variable:
    if not isinstance(leaf, Variable):
        raise TypeError(
            f"Gradients are taken with respect to variables, got {leaf!r} of type "
            f"{type(leaf).__name__}. For arrays, use jax.value_and_grad."
        )
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        raise TypeError(
            f"The variable {leaf.name!r} has dtype {leaf.dtype}, by which nothing can be "
            "differentiated. Leave it out, or create it with a floating-point dtype."
        )
    return leaf


def _differentiable(variable: Variable) -> Any:
    if variable.differs_between_replicas and not _frames.current().local:
        raise TypeError(
            f"The variable {variable.name!r} has a value of its own on each replica; gradients "
            "with respect to it can only be taken inside `run`."
        )
    return variable.value()
