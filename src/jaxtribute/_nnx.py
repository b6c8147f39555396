"""Flax NNX inside functions, replicas and gradients: its variables are lifted as those here are.

NNX keeps the value of a variable in one attribute, and every read and every assignment, also those
of `nnx.grad`, `nnx.split` or `nnx.Optimizer`, is one of that attribute. Where a program is traced,
a replica runs or a gradient is taken, the attribute is that of an adopted variable. Variables that
are created there are NNX's own, and so is everything elsewhere.

The names that are replaced are not part of NNX's public interface; tests/test_nnx.py notices when
they change.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import errors as flax_errors
from flax import nnx
from jax.core import Tracer

from . import _context, _tree
from ._jax_compat import is_no_trace
from ._reduce import ReduceOp
from .variables import _adopted, _frames

_OWN: Any = vars(nnx.Variable)["_raw_value"]  # the slot
_NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)

# --- Which variables are whose -------------------------------------------------------------

# What was created while a frame was open, and is NNX's own there.
_born: weakref.WeakKeyDictionary[_frames.Frame, dict[int, Any]] = weakref.WeakKeyDictionary()


def _note_birth(variable: Any) -> None:
    frames = _frames.opened_here()
    if frames:
        _born.setdefault(frames[-1], {})[id(variable)] = variable


def _is_born_here(variable: Any) -> bool:
    return any(id(variable) in _born.get(frame, ()) for frame in _frames.opened_here())


def _is_of_a_trace(variable: Any) -> bool:
    """Tell whether a variable was made in a trace, or in a replica, that has not ended."""
    own = jax.tree.leaves(_OWN.__get__(variable))
    return _is_born_here(variable) or any(isinstance(leaf, Tracer) for leaf in own)


def _is_adopted(variable: Any, own: Any) -> bool:
    """Tell whether a variable, with a value of its own, is to be read and written by frames."""
    # JAX itself lifts references.
    is_open = bool(_frames.opened_here()) and not isinstance(own, jax.Ref)
    return is_open and not _is_of_a_trace(variable)


class _Keeper:
    """One array in the value of an NNX variable, which mostly is that array."""

    def __init__(self, variable: Any, number: int) -> None:
        self._variable = variable
        self._number = number
        self.trainable = isinstance(variable, nnx.Param)

    library = "NNX"
    advice = (
        "Compute gradients, or other values, in `run`; combine what it returns, as by "
        '`grads = strategy.reduce("SUM", grads, axis=None)`; and assign, as by '
        "`optimizer.update(model, grads)`, after it, in the same jt.function. Or pass the state "
        "that nnx.split returns to `run`, and return the new one."
    )

    @property
    def name(self) -> str:
        kind = f"nnx.{type(self._variable).__name__}"
        paths = (_paths.get(frame, {}).get(id(self._variable)) for frame in _frames.opened_here())
        path = next(filter(None, paths), None)
        return f"{path} ({kind})" if path else f"{kind} of shape {np.shape(self.get())}"

    def get(self) -> Any:
        return jax.tree.leaves(_OWN.__get__(self._variable))[self._number]

    def set(self, value: Any) -> None:
        leaves, structure = jax.tree.flatten(_OWN.__get__(self._variable))
        leaves[self._number] = value
        _OWN.__set__(self._variable, jax.tree.unflatten(structure, leaves))


# What variables of modules among the arguments are called, for messages.
_paths: weakref.WeakKeyDictionary[_frames.Frame, dict[int, str]] = weakref.WeakKeyDictionary()


def _parts(variable: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a variable's value, arrays among them adopted, and the structure."""
    leaves, structure = jax.tree.flatten(_OWN.__get__(variable))
    return [
        _adopted.adopted((id(variable), number), functools.partial(_Keeper, variable, number))
        if isinstance(leaf, (jax.Array, *_NUMBERS))
        else leaf
        for number, leaf in enumerate(leaves)
    ], structure


def _of(value: Any) -> Any:
    if not _is_kind(value, nnx.Variable):
        return None
    own = _OWN.__get__(value)
    return _parts(value)[0][0] if isinstance(own, (jax.Array, *_NUMBERS)) else None


# --- Reading and writing -------------------------------------------------------------------


class _RawValue:
    """The attribute in which NNX keeps the value of a variable."""

    def __get__(self, variable: Any, owner: type | None = None) -> Any:
        if variable is None:
            return self
        own = _OWN.__get__(variable, owner)
        if not _is_adopted(variable, own):
            return own
        parts, structure = _parts(variable)
        return jax.tree.unflatten(
            structure, [p.value() if isinstance(p, _adopted.Adopted) else p for p in parts]
        )

    def __set__(self, variable: Any, value: Any) -> None:
        try:
            own = _OWN.__get__(variable)
        except AttributeError:
            _note_birth(variable)
            _OWN.__set__(variable, value)
            return
        if not _is_adopted(variable, own):
            if _frames.is_journaling() and not _frames.opened_here():
                _note(variable)
            _OWN.__set__(variable, value)
            return
        parts, structure = _parts(variable)
        leaves, given = jax.tree.flatten(value)
        if given != structure or not all(isinstance(p, _adopted.Adopted) for p in parts):
            raise ValueError(
                f"An nnx.{type(variable).__name__} that holds {structure} was assigned {given} "
                "inside a jt.function, `run` or gradient. There it keeps its structure: assign "
                "it before, or after with what the function returns."
            )
        for part, leaf in zip(parts, leaves, strict=True):
            _put(variable, part, leaf)


def _note(variable: Any) -> None:
    for part in _parts(variable)[0]:
        if isinstance(part, _adopted.Adopted):
            _frames.note(part)


def _put(variable: Any, part: _adopted.Adopted, value: Any) -> None:
    if value is part.value():
        return
    value = jnp.asarray(value)
    context = _several_replicas()
    if context is not None and isinstance(variable, nnx.BatchStat):
        value = context.all_reduce(ReduceOp.MEAN, value)
    # Replicas draw equally often, so their counts stay equal.
    part.put(value, synchronized=isinstance(variable, (nnx.BatchStat, nnx.RngState)))


def _several_replicas() -> Any | None:
    context = _context.get_replica_context()
    return context if context is not None and context.num_replicas_in_sync > 1 else None


def _is_lifted_here(made_in: Any) -> bool:
    """Tell whether something made outside of every trace may be assigned to, through a frame."""
    return bool(_frames.opened_here()) and _frames.current().here and is_no_trace(made_in)


def _check_can_update(own: Callable[..., Any], variable: Any) -> None:
    if not _is_lifted_here(variable._trace_state.jax_trace) or _is_born_here(variable):
        own(variable)


def _can_update(own: Callable[..., Any], variable: Any) -> bool:
    made_in = variable._trace_state.jax_trace
    return (_is_lifted_here(made_in) and not _is_born_here(variable)) or own(variable)


def _check_valid_context(own: Callable[..., Any], module: Any, message: Any) -> None:
    try:
        own(module, message)
    except flax_errors.TraceContextError as error:
        if _frames.opened_here():
            error.add_note(_CAPTURED)
        raise


_CAPTURED = (
    "Pass the module to the jt.function, or through the `args` of `run`, as to nnx.jit: the "
    "function captured it. Variables of a captured module can be read and assigned; its attributes "
    "cannot be set, nor can transformations of NNX, such as nnx.grad, be given it."
)


def _draw(own: Callable[..., Any], stream: Any) -> Any:
    """Draw a random key that differs between replicas, and is NNX's own on the first."""
    key = own(stream)
    context = _several_replicas()
    if context is None:
        return key
    number = jnp.asarray(context.replica_id_in_sync_group, jnp.uint32)
    return jnp.where(number == 0, key, jax.random.fold_in(key, number))


# --- As arguments and results --------------------------------------------------------------


@functools.cache
def _kind(cls: type) -> type | None:
    kinds = (nnx.Variable, nnx.State, nnx.Pytree)
    return next((kind for kind in kinds if kind in cls.__mro__), None)


def _is_kind(value: Any, kind: type) -> bool:
    return _kind(type(value)) is kind


def _leaves(value: Any) -> list[Any]:
    if _is_kind(value, nnx.Variable):
        return [value]
    return [held for _, held in nnx.iter_graph(value)]  # which reads none of them


def _is_reference(value: Any) -> bool:
    kind = _kind(type(value))
    if kind is None or kind is nnx.State:
        return False
    variables = [held for held in _leaves(value) if _is_kind(held, nnx.Variable)]
    return bool(variables) and not any(map(_is_of_a_trace, variables))


def _key(value: Any) -> Hashable:
    if _is_kind(value, nnx.Variable):
        return _Same(value)
    structure, state = nnx.split(value)
    # Its attributes are constants of a program, and so are arrays that are no variables.
    held = tuple(_Same(each) for _, each in nnx.to_flat_state(state))
    return _Same(value), structure, held


class _Entered:
    """Arguments in a trace or replica: other modules with the same variables, and own values.

    Modules remember in which trace they were made, and NNX's transformations take those of the
    current one only.
    """

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self._originals: dict[int, Any] = {}
        self._structures: list[tuple[Any, Any, Any]] = []
        self._given: list[tuple[Any, Any]] = []
        leaves, structure = _tree.flatten(tree)
        modules = [leaf for leaf in leaves if _is_module_reference(leaf)]
        self._is_needed = bool(modules) or structure.is_opened or _holds_modules(tree)
        if not self._is_needed:
            return
        inside = nnx.merge(*nnx.split(modules))  # together: they may have parts in common
        for module, other in zip(modules, inside, strict=True):
            self._structures.append((module, other, nnx.graphdef(other)))
            paths = _paths.setdefault(_frames.current(), {})
            paths |= {
                id(held): ".".join(map(str, (type(module).__name__, *path)))
                for path, held in nnx.iter_graph(module)
                if _is_kind(held, nnx.Variable)
            }
            pairs = zip(nnx.iter_graph(module), nnx.iter_graph(other), strict=True)
            self._originals |= {id(new): old for (_, old), (_, new) in pairs}
        entered = iter(inside)
        self.tree = structure.unflatten(
            [next(entered) if _is_module_reference(leaf) else leaf for leaf in leaves]
        )
        self._given = [(v, _OWN.__get__(v)) for v in _variables_by_value(self.tree)]

    def left(self, result: Any) -> Any:
        if not self._is_needed and not _holds_modules(result):
            return result
        for module, other, structure in self._structures:
            if nnx.graphdef(other) != structure:
                raise ValueError(
                    f"The function has changed the structure or the attributes of the NNX "
                    f"{type(module).__name__} that it was given, as `model.train()`, "
                    "`model.eval()`, `sow` or a new attribute does. A compiled function, and one "
                    "that runs on replicas, carries out assignments to variables only. Change the "
                    "object before the call, or keep what changes in an nnx.Variable."
                )
        for variable, value in self._given:
            if _OWN.__get__(variable) is not value:
                raise ValueError(
                    f"A function that runs on replicas has assigned an nnx."
                    f"{type(variable).__name__} of a module that was made in the surrounding "
                    "function, such as by nnx.merge. Replicas have a copy of it, and the value "
                    "would be lost. Return it; or pass the state that nnx.split returns, and "
                    "return the new one."
                )
        # What is returned by value, such as an nnx.State, has the values that count here.
        return _tree.map_leaves(lambda leaf: self._originals.get(id(leaf), leaf), result)


def _is_module_reference(leaf: Any) -> bool:
    return _is_kind(leaf, nnx.Pytree) and _is_reference(leaf)


def _of_nnx(tree: Any) -> list[Any]:
    found = jax.tree.leaves(
        tree, is_leaf=lambda value: isinstance(value, _tree.Leaf) or _kind(type(value)) is not None
    )
    return [value for value in found if _kind(type(value)) is not None]


def _holds_modules(tree: Any) -> bool:
    return bool(_of_nnx(tree))


def _variables_by_value(tree: Any) -> list[Any]:
    """Return the variables in arguments that are neither references nor in an `nnx.State`."""
    objects = [v for v in _of_nnx(tree) if not _is_kind(v, nnx.State) and not _is_reference(v)]
    return [held for each in objects for held in _leaves(each) if _is_kind(held, nnx.Variable)]


def _captured(function: Any) -> Callable[[], Hashable]:
    """Return what tells the modules that a function captures from what they become later."""
    places = list(_searched(function, set()))
    return lambda: tuple(
        _key(value) for value in (place() for place in places) if _is_kind(value, nnx.Pytree)
    )


def _searched(function: Any, seen: set[int]) -> Iterator[Callable[[], Any]]:
    """Return what reads each place in which a function, or one it calls, may find a module."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        held = [function.func, *function.args, *function.keywords.values()]
        places = [functools.partial(_itself, each) for each in held]
    elif inspect.ismethod(function):
        places = [
            functools.partial(_itself, each) for each in (function.__func__, function.__self__)
        ]
    elif inspect.isfunction(function):
        cells = function.__closure__ or ()
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        places = [
            *(functools.partial(_content, cell) for cell in cells),
            *(functools.partial(function.__globals__.get, name) for name in names),
            *(functools.partial(_itself, each) for each in function.__defaults__ or ()),
        ]
    else:
        places = [functools.partial(getattr, function, "python_function", None)]  # of jt.function
    for place in places:
        yield place
        value = place()
        own = getattr(value, "__module__", None) == getattr(function, "__module__", None)
        if callable(value) and (own or isinstance(function, functools.partial)):
            yield from _searched(value, seen)


def _itself(value: Any) -> Any:
    return value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


class _Same:
    """Equal to what holds the same object."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def __hash__(self) -> int:
        return id(self._held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._held is self._held


# --- What is replaced ----------------------------------------------------------------------


def _replace(owner: type, name: str, replacement: Callable[..., Any]) -> None:
    own = vars(owner)[name]
    is_property = isinstance(own, property)
    function: Any = own.fget if is_property else own

    @functools.wraps(function)
    def replaced(*args: Any) -> Any:
        return replacement(function, *args)

    setattr(owner, name, property(replaced) if is_property else replaced)


setattr(nnx.Variable, "_raw_value", _RawValue())  # noqa: B010
_replace(nnx.Variable, "_check_can_update", _check_can_update)
_replace(nnx.Variable, "_can_update", _can_update)
_replace(nnx.Pytree, "_check_valid_context", _check_valid_context)
_replace(nnx.RngStream, "__call__", _draw)
_adopted.register(_of)
_tree.register(
    _tree.References(
        _is_reference, lambda value: _is_kind(value, nnx.State), _key, _captured, _Entered
    )
)
