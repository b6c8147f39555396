"""Everything of JAX that takes a function, applied to functions that read or assign a variable.

JAX remembers many of these functions, by their identity, with what they read. So each is applied to
a function that is made once and lives on, and to one that is made for each use.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxtribute as jt

Scalar = Callable[[Any], Any]  # of one number


def _custom_jvp(fn: Scalar) -> Scalar:
    @jax.custom_jvp
    def custom(x: Any) -> Any:
        return fn(x)

    custom.defjvp(lambda primals, tangents: (custom(*primals), fn(tangents[0])))
    return custom


def _custom_vjp(fn: Scalar) -> Scalar:
    @jax.custom_vjp
    def custom(x: Any) -> Any:
        return fn(x)

    custom.defvjp(lambda x: (fn(x), None), lambda _, cotangent: (fn(cotangent),))
    return custom


def _custom_vmap(fn: Scalar) -> Scalar:
    @jax.custom_batching.custom_vmap
    def custom(x: Any) -> Any:
        return fn(x)

    custom.def_vmap(lambda size, batched, x: (fn(x), True))
    return lambda x: jnp.sum(jax.vmap(custom)(jnp.stack([x, x])))


def _while(fn: Scalar) -> Scalar:
    def body(carry: Any) -> Any:
        return carry[0] + 1, fn(carry[1])

    return lambda x: jax.lax.while_loop(lambda carry: carry[0] < 2, body, (0, x))[1]


def _scan(fn: Scalar) -> Scalar:
    def body(carry: Any, _: Any) -> Any:
        return fn(carry), carry

    return lambda x: jax.lax.scan(body, x, length=2)[0]


def _fori(fn: Scalar) -> Scalar:
    def body(_: Any, x: Any) -> Any:
        return fn(x)

    return lambda x: jax.lax.fori_loop(0, 2, body, x)


def _associative_scan(fn: Scalar) -> Scalar:
    def combine(a: Any, b: Any) -> Any:
        return fn(a) + b

    return lambda x: jax.lax.associative_scan(combine, jnp.stack([x, x]))[1]


def _zero(x: Any) -> Any:
    return x * 0.0


def _solve(fn: Scalar) -> Scalar:
    def solution(matvec: Scalar, b: Any) -> Any:
        return b / matvec(jnp.ones_like(b))

    return lambda x: jax.lax.custom_linear_solve(fn, x, solution, solution)


# From a function of one number to another that calls it within the transformation.
TRANSFORMATIONS: dict[str, Callable[[Scalar], Scalar]] = {
    "jit": jax.jit,
    "jit of jit": lambda fn: jax.jit(jax.jit(fn)),
    "grad": jax.grad,
    "value_and_grad": lambda fn: lambda x: sum(jax.value_and_grad(fn)(x)),
    "jit of grad": lambda fn: jax.jit(jax.grad(fn)),
    "jvp": lambda fn: lambda x: sum(jax.jvp(fn, (x,), (x,))),
    "vjp": lambda fn: lambda x: jax.vjp(fn, x)[1](x)[0],
    "linearize": lambda fn: lambda x: jax.linearize(fn, x)[1](x),
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "vmap": lambda fn: lambda x: jnp.sum(jax.vmap(fn)(jnp.stack([x, x]))),
    "scan": _scan,
    "map": lambda fn: lambda x: jnp.sum(jax.lax.map(fn, jnp.stack([x, x]))),
    "associative_scan": _associative_scan,
    "while_loop": _while,
    "fori_loop": _fori,
    "cond": lambda fn: lambda x: jax.lax.cond(x > 0, fn, _zero, x),
    "switch": lambda fn: lambda x: jax.lax.switch(jnp.int32(x > 0), [_zero, fn], x),
    "checkpoint": jax.checkpoint,
    "jit of checkpoint": lambda fn: jax.jit(jax.checkpoint(fn)),
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
    "custom_vmap": _custom_vmap,
    "custom_linear_solve": _solve,
    "closure_convert": lambda fn: lambda x: _converted(*jax.closure_convert(fn, x), x),
    "named_call": jax.named_call,
    "eval_shape": lambda fn: lambda x: x + jax.eval_shape(fn, x).size,
}


def _converted(fn: Any, captured: Any, x: Any) -> Any:
    return fn(x, *captured)


class User:
    """Uses a transformation of a function that multiplies by a variable.

    Args:
      transformation: its name.
      variable: the variable.
      fresh: whether the function is made for each use.
    """

    def __init__(self, transformation: str, variable: Any, fresh: bool) -> None:
        self._transformation = transformation
        self._variable = variable
        self._fresh = fresh
        self._function: Scalar | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_function": None}  # JAX's functions cannot all be sent to workers

    @property
    def _make(self) -> Callable[[Scalar], Scalar]:
        return TRANSFORMATIONS[self._transformation]

    def _multiply(self, x: Any) -> Any:
        return x * self._variable

    def __call__(self, x: Any) -> Any:
        if self._fresh:
            return self._make(lambda x: x * self._variable)(x)
        if self._function is None:
            self._function = self._make(self._multiply)
        return self._function(x)

    def expected(self, value: float, x: float = 3.0) -> float:
        """Return what it is, where the variable has this value."""
        return float(_on_plain_arrays(self._transformation)(value, x))

    def gradient(self, value: float, x: float = 3.0) -> float:
        """Return the derivative by the variable, where it has this value."""
        return float(_derivative(self._transformation)(value, x))


@functools.cache
def _on_plain_arrays(transformation: str) -> Callable[[float, float], Any]:
    return jax.jit(lambda value, x: TRANSFORMATIONS[transformation](lambda x: x * value)(x))


@functools.cache
def _derivative(transformation: str) -> Callable[[float, float], Any]:
    return jax.jit(jax.grad(_on_plain_arrays(transformation)))


def numbers(values: Any) -> Any:
    """Return arrays, and what has one for each replica, as lists of Python numbers."""
    if isinstance(values, jt.PerReplica):
        values = values.values
    if isinstance(values, (list, tuple)):
        return [numbers(value) for value in values]
    return np.asarray(values).tolist()
