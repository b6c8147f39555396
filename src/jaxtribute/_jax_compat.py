"""The one place that leans on parts of JAX outside its stable API.

`jax.extend.core.get_opaque_trace_state` tells which trace is being built. Nothing in `jax.*`
does, and without it a write to a variable inside `jax.lax.scan` could not be refused at the
line that makes it. `set_current_trace` and `Primitive`, from there as well, give a program inputs
that turn up while it is traced, and `jax.interpreters.partial_eval.dce_jaxpr` tells which of them
it needs. Traced programs are searched for the functions of Python that they call while they run.
The constructor of arrays makes one that JAX may move, of the memory of one that it may not.
`tests/test_jax_compat.py` notices when this changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray, Tracer
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


def movable(value: Any) -> Any:
    """Return an array that JAX may move to other devices, to combine it with what is there.

    It shares the memory of the one given. Anything but an array of one device is returned as it is.
    """
    if not isinstance(value, jax.Array) or isinstance(value, Tracer) or not value.committed:
        return value
    if len(value.sharding.device_set) > 1:
        return value
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = movable(jax.random.key_data(value))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    array: Any = value
    return type(array)(array.aval, array.sharding, [array], committed=False)


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


def runs_without_python(jitted: Any) -> bool:
    """Tell whether a call of a jitted function like the last one is a single call into C++."""
    return jitted._cache_size() > 0


def is_tracing() -> bool:
    """Tell whether a JAX transformation is being traced in this thread."""
    return current_trace() != _no_trace()


def is_no_trace(token: object) -> bool:
    """Tell whether a token of `current_trace` is from outside every trace."""
    return token == _no_trace()


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


def trace_in_progress() -> Any:
    """Return the trace that is being built, for `on_trace`."""
    from jax.extend.core import take_current_trace

    with take_current_trace() as trace:
        return trace


def is_within(trace: Any) -> bool:
    """Tell whether a trace, or one inside it, is being built.

    Not while JAX evaluates a function with rules of its own for gradients, inside a gradient.
    """
    current = trace_in_progress()
    while current is not None and current is not trace:
        current = getattr(current, "parent_trace", None)
    return current is trace


def belongs_to(value: Any, trace: Any) -> bool:
    """Tell whether a tracer is of a trace itself, not of one inside or around it."""
    return isinstance(value, Tracer) and getattr(value, "_trace", None) is trace


def on_trace(trace: Any) -> AbstractContextManager[Any]:
    """Have operations become part of a trace that is still being built, further out."""
    from jax.extend.core import set_current_trace

    return set_current_trace(trace)


class CannotBeInput(Exception):
    """A value is needed at once, as under `jax.ensure_compile_time_eval`."""


def new_input(number: int, shape: Sequence[int], dtype: Any, *operands: Any) -> Any:
    """Return a tracer for an input that turned up while a program is traced.

    Args:
      number: by which `TracedProgram` knows it.
      shape: of the input.
      dtype: of the input.
      operands: what has to be known to provide it.

    Raises:
      CannotBeInput: where JAX asks for a value instead of a tracer.
    """
    aval = ShapedArray(tuple(shape), dtype)
    return _input_primitive().bind(*operands, number=number, aval=aval)


@functools.cache
def _input_primitive() -> Any:
    from jax.extend.core import Primitive

    def evaluate(*operands: Any, number: int, aval: Any) -> Any:
        raise CannotBeInput

    primitive = Primitive("jaxtribute_input")
    primitive.def_abstract_eval(lambda *operands, number, aval: aval)
    primitive.def_impl(evaluate)
    return primitive


class TracedProgram:
    """A traced function, some inputs of which turned up while it was traced.

    Args:
      closed: the function as `jax.make_jaxpr` returned it.
      last: how many of its results are wanted, from the end; then it does nothing but compute them.
    """

    def __init__(self, closed: Any, last: int | None = None) -> None:
        count = len(closed.jaxpr.outvars)
        wanted = [last is None or index >= count - last for index in range(count)]
        self._jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, wanted, instantiate=True)
        self._consts = closed.consts
        self._inputs: dict[int, Any] = {}
        self._operands: dict[int, Any] = {}
        self._equations: list[Any] = []
        equations = self._jaxpr.eqns
        for equation in equations if last is None else _needed(equations, self._jaxpr.outvars)[0]:
            if equation.primitive is not _input_primitive():
                self._equations.append(equation)
                continue
            (self._inputs[equation.params["number"]],) = equation.outvars
            self._operands[equation.params["number"]] = equation.invars

    @property
    def numbers(self) -> list[int]:
        """The numbers of the inputs that turned up and are needed, in order."""
        return list(self._inputs)

    def type_of(self, number: int) -> jax.ShapeDtypeStruct:
        """Return the type of an input that turned up."""
        aval = self._inputs[number].aval
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)

    def function(self, numbers: Sequence[int]) -> Callable[..., list[Any]]:
        """Return the function, with these inputs before those that it had from the start."""
        return self._closed(self._equations, self._jaxpr.outvars, numbers)

    def operands(
        self, of: Sequence[int], numbers: Sequence[int]
    ) -> tuple[Callable[..., list[Any]], list[bool]]:
        """Return a function that computes the one operand of each of some inputs.

        Args:
          of: the inputs.
          numbers: other inputs that it is given, before those that there were from the start.

        Returns:
          The function, and for each of its inputs that turned up whether it depends on it.
        """
        results = [self._operands[number][0] for number in of]
        equations, needed = _needed(self._equations, results)
        function = self._closed(equations, results, numbers)
        return function, [id(self._inputs[number]) in needed for number in numbers]

    def _closed(
        self, equations: list[Any], results: Sequence[Any], numbers: Sequence[int]
    ) -> Callable[..., list[Any]]:
        from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

        invars = [*(self._inputs[number] for number in numbers), *self._jaxpr.invars]
        names = self._jaxpr.debug_info._replace(arg_names=None, result_paths=None)
        effects = self._jaxpr.effects
        jaxpr = Jaxpr(self._jaxpr.constvars, invars, results, equations, effects, names)
        return jaxpr_as_fun(ClosedJaxpr(jaxpr, self._consts))


def _needed(equations: Sequence[Any], results: Sequence[Any]) -> tuple[list[Any], set[int]]:
    """Return the equations that results are computed by, and the identities of what they use."""
    needed = set(map(id, results))
    found: list[Any] = []
    for equation in reversed(equations):
        if not needed.isdisjoint(map(id, equation.outvars)):
            needed.update(map(id, equation.invars))
            found.append(equation)
    return found[::-1], needed


# The operations that call functions of Python while a program runs.
_CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})


def calls_back(jaxpr: Any) -> bool:
    """Tell whether a traced program calls functions of Python while it runs."""
    return any(
        equation.primitive.name in _CALLBACKS or any(map(calls_back, _inner(equation.params)))
        for equation in _open(jaxpr).eqns
    )


def with_callbacks(
    jaxpr: Any, wrap: Callable[[Callable[..., Any], list[Any]], Callable[..., Any]]
) -> Any:
    """Return a traced program with other functions in the place of those it calls back.

    Args:
      jaxpr: the program.
      wrap: returns the other function, given one that takes and returns flat arrays, and the types
        of those that it is to return.
    """

    def rewritten(jaxpr: Any) -> Any:
        if not calls_back(jaxpr):
            return jaxpr
        new = _open(jaxpr).replace(eqns=list(map(changed, _open(jaxpr).eqns)))
        return jaxpr.replace(jaxpr=new) if hasattr(jaxpr, "consts") else new

    def changed(equation: Any) -> Any:
        if equation.primitive.name == "debug_print":
            equation = _printed_by_callback(equation)
        if equation.primitive.name in _CALLBACKS:
            results = [output.aval for output in equation.outvars]
            callback = wrap(equation.params["callback"], results)
            return equation.replace(params=equation.params | {"callback": callback})
        if not _inner(equation.params):
            return equation
        return equation.replace(params={k: inside(v) for k, v in equation.params.items()})

    def inside(value: Any) -> Any:
        if isinstance(value, (tuple, list)) and any(map(_is_jaxpr, value)):
            return type(value)(rewritten(one) if _is_jaxpr(one) else one for one in value)
        return rewritten(value) if _is_jaxpr(value) else value

    return rewritten(jaxpr)


def _printed_by_callback(equation: Any) -> Any:
    """Return a `jax.debug.print` as the `jax.debug.callback` that it amounts to."""
    (callback,) = jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().eqns
    primitive, params = equation.primitive, equation.params

    def printing(*args: Any) -> tuple[()]:
        primitive.impl(*args, **params)
        return ()

    (effect,) = equation.effects
    known = {"callback": printing, "effect": effect, "partitioned": params["partitioned"]}
    return equation.replace(primitive=callback.primitive, params=callback.params | known)


def _inner(params: dict[str, Any]) -> list[Any]:
    """Return the programs among the parameters of an operation."""
    found: list[Any] = []
    for value in params.values():
        found += filter(_is_jaxpr, value if isinstance(value, (tuple, list)) else (value,))
    return found


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns")  # Jaxpr, and ClosedJaxpr


def _open(jaxpr: Any) -> Any:
    return jaxpr.jaxpr if hasattr(jaxpr, "consts") else jaxpr
