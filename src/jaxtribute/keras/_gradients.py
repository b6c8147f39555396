"""What is done with whole gradients, before they are divided between parameter servers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..errors import InvalidArgumentError
from ..values import IndexedSlices


def prepared(optimizer: Any, gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Return gradients, unscaled and clipped as the optimizer says.

    Args:
      optimizer: an optimizer of Keras.
      gradients: arrays, or rows of them.
      variables: what they belong to.

    Raises:
      InvalidArgumentError: for rows, where an optimizer needs all of them.
    """
    for gradient, variable in zip(gradients, variables, strict=True):
        if isinstance(gradient, IndexedSlices):
            _check_rows(optimizer, variable)
        elif jnp.shape(gradient) != tuple(variable.shape):
            raise ValueError(
                f"The gradient for {variable.path!r} has shape {jnp.shape(gradient)}, and the "
                f"variable {tuple(variable.shape)}. Pass each gradient with its own variable."
            )
    if optimizer.loss_scale_factor is not None:
        gradients = [_scaled(g, 1 / optimizer.loss_scale_factor) for g in gradients]
    if optimizer.gradient_accumulation_steps:  # servers clip the sum
        return [_scaled(g, None) for g in gradients]
    if optimizer.clipnorm:
        return [_clipped(g, _norm_squared(g), optimizer.clipnorm) for g in gradients]
    if optimizer.global_clipnorm:
        total = sum(_norm_squared(g) for g in gradients)
        return [_clipped(g, total, optimizer.global_clipnorm) for g in gradients]
    return [_scaled(g, None) for g in gradients]


def _check_rows(optimizer: Any, variable: Any) -> None:
    used = "gradient_accumulation_steps" if optimizer.gradient_accumulation_steps else "use_ema"
    if optimizer.use_ema or optimizer.gradient_accumulation_steps:
        raise InvalidArgumentError(
            f"The optimizer {optimizer.name!r} has {used} set, which changes all rows at each "
            f"step, and the gradient of {variable.path!r} consists of those rows only that were "
            "looked up. Train this variable with another optimizer, which has it not set."
        )


def _scaled(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, IndexedSlices):
        values = jnp.asarray(gradient.values)
        scaled = values if factor is None else values * factor
        return IndexedSlices(scaled, gradient.indices, gradient.dense_shape)
    array = jnp.asarray(gradient)
    return array if factor is None else array * factor


def _norm_squared(gradient: Any) -> Any:
    if not isinstance(gradient, IndexedSlices):
        return jnp.sum(jnp.square(gradient))
    # Rows that occur several times are added up first, as they are when they are applied.
    ids = jnp.ravel(gradient.indices)
    rows = jnp.reshape(gradient.values, (ids.size, -1))
    _, places = jnp.unique(ids, return_inverse=True, size=ids.size)
    return jnp.sum(jnp.square(jnp.zeros_like(rows).at[places].add(rows)))


def _clipped(gradient: Any, norm_squared: Any, limit: float) -> Any:
    norm = jnp.sqrt(jnp.where(norm_squared > 0, norm_squared, 1))
    return _scaled(gradient, limit / jnp.maximum(norm, limit))
