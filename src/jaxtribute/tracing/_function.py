"""Functions compiled for the strategy they run under."""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, overload

import jax.numpy as jnp

from .. import _context, _integrations, _tree, config
from .._jax_compat import is_tracing
from .._reduce import VariableAggregation
from .._specs import PerReplicaSpec, TensorSpec, as_tensor_spec
from ..sharded import ShardedVariable
from ..values import PerReplica
from ..values._regroup import check_numbers
from ..variables import SyncOnReadVariable, Variable, _adopted, _frames
from ..variables._distributed import Component
from ..variables._storage import settle
from ._compiled_runs import CompiledRuns
from ._feeding import FeedingPlan, LoopsInPython, Reading, ended, unread
from ._program import Outdated, Program
from ._signature import Call, RaggedValue, as_array, check_no_text, sort_arguments

__all__ = ["Function", "function"]

_MAX_PASSES = 5
_MANY_PROGRAMS = 12
_BOUND = "_jaxtribute_bound_functions"


class Function:
    """A Python function that is traced once and then runs as one compiled program.

    Made by `jt.function`. Arrays among the arguments are inputs of the program; Python values are
    constants in it, so that a new value, shape or type is traced anew. Variables that the function
    reads become inputs, those it assigns outputs as well.

    >>> double = jt.function(lambda x: x * 2)
    >>> [double(x).tolist() for x in (jnp.ones(2), jnp.zeros(2), jnp.ones(3))]
    [[2.0, 2.0], [0.0, 0.0], [2.0, 2.0, 2.0]]
    >>> double.experimental_get_tracing_count()
    2

    A call whose per-replica arguments differ in shape between replicas, such as the last batch of
    an epoch, runs as plain Python, with the same result. So does a call inside an eager replica
    or inside another JAX transformation, where it becomes part of that.
    """

    def __init__(
        self,
        python_function: Callable[..., Any],
        input_signature: Sequence[Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, python_function)
        self._python_function = python_function
        self._name = getattr(python_function, "__name__", None) or type(python_function).__name__
        self._input_signature = input_signature
        self._programs: dict[Hashable, Program] = {}
        self._tracing = threading.RLock()
        self._runs: dict[int, tuple[Any, Function]] = {}
        self._plans: dict[Hashable, FeedingPlan] = {}
        self._looping: set[Hashable] = set()
        self._compiled_runs = CompiledRuns(Function)
        self._captured = _tree.Captured(python_function)

    @property
    def python_function(self) -> Callable[..., Any]:
        """The function as it was written."""
        return self._python_function

    @property
    def input_signature(self) -> Sequence[Any] | None:
        """The descriptions arguments have to fit, if any were given."""
        return self._input_signature

    def experimental_get_tracing_count(self) -> int:
        """Return how many programs were made of this function so far."""
        return len(self._programs) + sum(
            run.experimental_get_tracing_count() for _, run in self._runs.values()
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _integrations.load()  # which tell what their objects among the arguments are
        if self._input_signature is not None:
            args = _fitted(self._name, self._input_signature, args, kwargs)
        if is_tracing() or isinstance(_frames.current(), _frames.EagerReplicaFrame):
            return self.inline(*args, **kwargs)
        if config.functions_run_eagerly():
            return self._inline_eagerly(args, kwargs)
        side = _context.current()
        context = (
            side.strategy,
            side.replica_context is None,
            config.functions_check_ids(),
            self._captured.key(),
        )
        try:
            return self._run(_Arguments(self._python_function, args, kwargs, context))
        except RaggedValue:
            pass
        except ValueError as error:
            _context.note_mesh(error)
            raise
        except LoopsInPython:
            with self._compiled_runs.opened():
                return self._inline_eagerly(args, kwargs)
        leaves, structure = _tree.flatten((args, kwargs))
        args, kwargs = structure.unflatten([as_array(leaf) for leaf in leaves])
        return self._inline_eagerly(args, kwargs)

    def _run(self, arguments: _Arguments) -> Any:
        call = arguments.sorted()
        program = self._programs.get(call.key)
        readings: list[Reading] = []
        if program is None:
            if call.key in self._looping:
                raise LoopsInPython
            if call.key in self._plans:
                readings = self._plans[call.key].read(call.feeders)
                call = self._sorted(arguments, readings)
                program = self._programs.get(call.key)
        if program is not None:
            try:
                return self._carry_out(program, call, readings)
            except Outdated:
                pass
        return self._trace(arguments, readings)

    def _carry_out(self, program: Program, call: Call, readings: list[Reading]) -> Any:
        """Run a program with elements that were read for it; if it does not, they go back."""
        used, others = readings[: program.elements_used], readings[program.elements_used :]
        try:
            result = program(call.inputs, used)
        except Outdated:
            raise
        except BaseException:
            settle()  # after which it is known whether the program has run
            unread(others)
            unread(used)
            raise
        unread(others)
        return result

    def _sorted(self, arguments: _Arguments, readings: list[Reading]) -> Call:
        try:
            return arguments.sorted(readings)
        except RaggedValue:
            unread(readings)
            raise

    def inline(self, *args: Any, **kwargs: Any) -> Any:
        """Run as plain Python, as part of whatever is being traced or run."""
        check_numbers((args, kwargs), "A jt.function")
        check_no_text(*_tree.flatten((args, kwargs)), self._python_function)
        return _tree.map_leaves(as_output, self._python_function(*args, **kwargs))

    def _on_replica(self, *args: Any, **kwargs: Any) -> Any:
        """Run as plain Python, and leave numbers and variables, which all replicas share, alone."""
        check_numbers((args, kwargs), "A jt.function")
        return self._python_function(*args, **kwargs)

    def run_under(self, strategy: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run on each replica of `strategy`, as one compiled program."""
        if id(strategy) not in self._runs:

            @functools.wraps(self._python_function, updated=())
            def run(*args: Any, **kwargs: Any) -> Any:
                return strategy.run(self._on_replica, args=args, kwargs=kwargs)

            run.__name__ = self._name
            self._runs[id(strategy)] = (strategy, Function(run))
        return self._runs[id(strategy)][1](*args, **kwargs)

    def _inline_eagerly(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return self.inline(*args, **kwargs)
        except StopIteration:  # of an iterator, as it would be in a compiled program
            raise ended() from None

    def _trace(self, arguments: _Arguments, readings: list[Reading]) -> Any:
        with self._tracing:
            for _ in range(_MAX_PASSES):
                call = self._sorted(arguments, readings)
                program = Program(self._name, self.inline, call)
                try:
                    is_complete = program.trace(call.inputs)
                    if program.readings:
                        readings += program.readings
                        program.readings = []
                        call = arguments.sorted(readings)
                    if not is_complete and not program.starts_variables:
                        continue
                    # Before the call, which keeps other threads from the variables.
                    program.compile(call.inputs)
                    if program.starts_variables:  # which it can be traced with then
                        program.meet_workers()
                        program(call.inputs, [])
                        continue
                except BaseException as error:
                    unread([*readings, *program.readings])
                    if isinstance(error, LoopsInPython) and error.always:
                        self._looping.add(arguments.sorted().key)
                    raise
                program.meet_workers()
                self._programs[call.key] = program
                if readings:
                    # Not replaced: the first holds stand-ins for iterators that are arguments.
                    self._plans.setdefault(arguments.sorted().key, FeedingPlan.of(readings))
                self._warn_of_many_programs()
                return self._carry_out(program, call, readings)
        unread(readings)
        raise ValueError(
            f"{self._name!r} creates new variables each time it is traced. A "
            "jt.function may create variables on its first call only: keep them outside of it, and "
            "create them `if not created`."
        )

    def _warn_of_many_programs(self) -> None:
        if len(self._programs) == _MANY_PROGRAMS:
            warnings.warn(
                f"{self._name!r} has been traced for {_MANY_PROGRAMS} "
                "different calls, which is slow. Python numbers and other objects are constants of "
                "the program: pass numbers that change as arrays, such as jnp.float32(x), keep the "
                "same objects, and pad arrays to few shapes.",
                stacklevel=5,
            )

    # --- As a method -----------------------------------------------------------------------

    def __get__(self, instance: Any, owner: type | None = None) -> Function:
        if instance is None:
            return self
        # Each instance keeps its own programs. A copy of it starts with the original's entries,
        # which are told apart by what they are bound to.
        kept: dict[Any, Any] = _kept_for(instance)
        bound = kept.get((self, id(instance)))
        if bound is None or bound.python_function.__self__ is not instance:
            method = self._python_function.__get__(instance, owner)
            bound = kept[self, id(instance)] = Function(method, self._input_signature)
        return bound

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies, and what is sent to another process, start without programs.
        return Function, (self._python_function, self._input_signature)

    def __repr__(self) -> str:
        return f"<jt.function {self._name}>"


# The functions bound to objects whose attributes their library compares.
_kept_elsewhere: dict[int, tuple[weakref.ref[Any], dict[Any, Function]]] = {}


def _kept_for(instance: Any) -> dict[Any, Function]:
    """Return where functions that were bound to an object are kept."""
    if not hasattr(instance, "__dict__"):
        return {}
    if not _tree.is_reference(instance):
        return vars(instance).setdefault(_BOUND, {})
    key = id(instance)
    if key not in _kept_elsewhere:
        forget = _kept_elsewhere.pop
        _kept_elsewhere[key] = weakref.ref(instance, lambda _: forget(key, None)), {}
    return _kept_elsewhere[key][1]


class _Arguments:
    """What a function is called with, and where."""

    def __init__(
        self, function: Callable[..., Any], args: Any, kwargs: Any, context: Hashable
    ) -> None:
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._context = context

    def sorted(self, readings: Sequence[Reading] = ()) -> Call:
        """Sort the arguments, together with the elements that were read for the program."""
        fed = [reading.elements for reading in readings]
        leaves, structure = _tree.flatten((self._args, self._kwargs, *fed))
        return sort_arguments(leaves, structure, self._context, self._function)


@overload
def function(
    func: Callable[..., Any], *, input_signature: Sequence[Any] | None = None
) -> Function: ...
@overload
def function(
    func: None = None, *, input_signature: Sequence[Any] | None = None
) -> Callable[[Callable[..., Any]], Function]: ...
def function(
    func: Callable[..., Any] | None = None, *, input_signature: Sequence[Any] | None = None
) -> Any:
    """Compile a function, together with the variables it uses and the replicas it runs.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     v = jt.Variable(0.0, aggregation=jt.VariableAggregation.MEAN)
    >>> @jt.function
    ... def step(x):
    ...     strategy.run(
    ...         lambda: v.assign_add(x + jt.get_replica_context().replica_id_in_sync_group)
    ...     )
    ...     return v * 2
    >>> step(jnp.float32(1.0))
    Array(3., dtype=float32)

    Args:
      func: the function; without it, a decorator is returned.
      input_signature: a `TensorSpec`, `jax.ShapeDtypeStruct` or `PerReplicaSpec` for each
        argument, which calls have to fit.

    Returns:
      A `Function`.

    Raises:
      TypeError: when `func` cannot be called.
    """
    if func is None:
        return functools.partial(function, input_signature=input_signature)
    if not callable(func):
        raise TypeError(f"jt.function compiles functions, got {func!r}.")
    return Function(func, input_signature)


def as_output(leaf: Any) -> Any:
    """Return what a compiled function returns for `leaf`.

    Numbers become arrays, and variables the value they have by then, as the next call changes it.
    """
    if isinstance(leaf, (bool, int, float, complex)):
        return jnp.asarray(leaf)
    leaf = _adopted.of(leaf)
    if not isinstance(leaf, (Variable, Component, ShardedVariable)):
        return leaf
    is_none = getattr(leaf, "aggregation", None) is VariableAggregation.NONE
    if is_none and isinstance(leaf, SyncOnReadVariable) and not _frames.current().local:
        # It has no value as a whole.
        return PerReplica.from_stacked(_frames.current().read(leaf), leaf.topology)
    return leaf.value()


def _fitted(
    name: str, signature: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments, in which numbers have become arrays of the type asked for."""
    if kwargs or len(args) != len(signature):
        raise TypeError(
            f"{name!r} has an input signature of {len(signature)} positional arguments, got "
            f"{len(args)} and the keywords {sorted(kwargs)}."
        )
    return tuple(
        _fitted_argument(name, position, spec, arg)
        for position, (spec, arg) in enumerate(zip(signature, args, strict=True))
    )


def _fitted_argument(name: str, position: int, spec_tree: Any, arg: Any) -> Any:
    specs, expected = _tree.flatten(_tree.map_leaves(as_tensor_spec, spec_tree))
    leaves, given = _tree.flatten(arg)
    if expected != given:
        raise ValueError(
            f"Argument {position} of {name!r} has the structure {given.treedef}, its input "
            f"signature {expected.treedef}."
        )
    fitted: list[Any] = []
    for spec, leaf in zip(specs, leaves, strict=True):
        if not isinstance(spec, (TensorSpec, PerReplicaSpec)):
            raise TypeError(f"Expected a jt.TensorSpec in the input signature, got {spec!r}.")
        if isinstance(leaf, (bool, int, float, complex)) and isinstance(spec, TensorSpec):
            leaf = jnp.asarray(leaf, spec.dtype)
        if not spec.is_compatible_with(leaf):
            raise ValueError(
                f"Argument {position} of {name!r} does not fit its input signature: expected "
                f"{spec}, got {leaf!r}."
            )
        fitted.append(leaf)
    return expected.unflatten(fitted)
