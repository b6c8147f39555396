"""The one place that leans on parts of JAX outside its stable API.

`jax.extend.core.get_opaque_trace_state` tells which trace is being built. Nothing in `jax.*`
does, and without it a write to a variable inside `jax.lax.scan` could not be refused at the
line that makes it. `jax.interpreters.partial_eval.dce_jaxpr` tells which variables a program needs.
`tests/test_jax_compat.py` notices when this changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.core import Tracer
from jax.interpreters import partial_eval


def current_trace() -> object:
    """Return a token that equals itself exactly while the same JAX trace is being built."""
    return _trace_state_getter()(convention="nnx")


@functools.cache
def _trace_state_getter() -> Callable[..., object]:
    # Not with the library: all of `jax.extend` comes along, Pallas too, which servers do without.
    from jax.extend.core import get_opaque_trace_state

    return get_opaque_trace_state


def outside_traces(fn: Callable[[], Any]) -> Any:
    """Call `fn` outside every trace, whatever is being traced here.

    Unlike `jax.ensure_compile_time_eval`, this also escapes `jax.grad` inside `jax.jit`.
    """
    with ThreadPoolExecutor(1) as thread:  # which has no trace yet
        return thread.submit(fn).result()


def has_collectives(compiled: jax.stages.Compiled) -> bool:
    """Tell whether devices wait for each other in a compiled program."""
    text = compiled.as_text() or ""
    return any(
        f"{operation}(" in text or f"{operation}-start(" in text for operation in _OPERATIONS
    )


_OPERATIONS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
    "collective-broadcast",
)


def is_tracing() -> bool:
    """Tell whether a JAX transformation is being traced in this thread."""
    return current_trace() != _no_trace()


@functools.cache
def _no_trace() -> object:
    return outside_traces(current_trace)


def is_staging() -> bool:
    """Tell whether what runs now becomes a program that runs later, as under `jax.jit`.

    Under `jax.grad` or `jax.vmap` alone, operations are carried out at once.
    """
    return is_tracing() and isinstance(jax.lax.full((), 0.0), Tracer)


def inputs_in_use(jaxpr: Any) -> list[bool]:
    """Tell of each input of a traced program whether its results depend on it."""
    return partial_eval.dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.jaxpr.outvars))[1]
