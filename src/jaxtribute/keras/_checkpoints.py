"""Keras in checkpoints: models, layers, metrics, optimizers, random seeds and variables.

Names are those of attributes, without leading underscores: `model/head/kernel`. Layers that a
Sequential or functional model was given are named by their class, counted in the order of the
model: `model/layers/dense`, `model/layers/dense_1`. Keras's own names are not used: they count what
a program has created before, so that they differ from one model to the next.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from .._jax_compat import is_tracing
from ..checkpoint import _adapters
from ..checkpoint._adapters import Adapter, Array, OtherOptimizer, OtherVariable, Parts
from ..variables import _awaited
from . import _private
from ._server_optimizer import server_optimizer
from ._variables import StrategyVariable

# The models that were compiled with an optimizer.
_trainers: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()


class _PlainVariable(OtherVariable):
    """A variable, which Keras reads and writes; it was created outside of any scope."""

    def __init__(self, variable: keras.Variable) -> None:
        self._variable: Any = variable

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._variable.shape)

    @property
    def dtype(self) -> Any:
        return jnp.dtype(self._variable.dtype)

    def value(self) -> Array:
        return np.asarray(self._variable.value)  # to which Keras writes in the next step

    def share(self) -> Any:
        return self._variable.value

    def store(self, data: Any, shared: bool = False) -> None:
        self._variable.assign(data)


class _Finalized(_PlainVariable):
    """A variable of a layer that computes something from it once, such as Normalization."""

    def __init__(self, variable: keras.Variable, layer: Any) -> None:
        super().__init__(variable)
        self._layer = layer
        self.distribute_strategy = getattr(variable, "strategy", None)

    def store(self, data: Any, shared: bool = False) -> None:
        super().store(data)
        self._layer.finalize_state()


def _as_variable(variable: Any) -> Any:
    return variable.stored if isinstance(variable, StrategyVariable) else _PlainVariable(variable)


# --- Layers and metrics --------------------------------------------------------------------


def parts_of(owner: Any) -> Parts:
    """Return what a layer, model or metric consists of."""
    if isinstance(owner, keras.Model):
        owner.jax_state_sync()  # as a `fit` of Keras's own keeps the values to itself
    seen: set[int] = set()
    if _private.has_ordered_layers(owner):
        for name, layer in _by_class(owner.layers):
            seen.add(id(layer))
            yield ("layers", name), layer
    for name, held in _attributes(owner):
        seen.update(id(each) for each in _flat(held))
        if isinstance(held, keras.optimizers.Optimizer):
            _trainers[held] = weakref.ref(owner)
        is_used_once = isinstance(held, keras.Variable) and hasattr(owner, "finalize_state")
        yield (name,), _Finalized(held, owner) if is_used_once else held
    # What Keras knows of, and no attribute holds.
    for kind, tracked in _private.tracked(owner).items():
        rest = [each for each in tracked if id(each) not in seen]
        for name, each in _by_class(rest) if kind == "layers" else enumerate(rest):
            yield (kind, str(name)), each


def _attributes(owner: Any) -> list[tuple[str, Any]]:
    """Return what an object holds, by name; names that would be the same keep underscores."""
    held = _private.attributes(owner)
    short = [name.lstrip("_") for name in held]
    named = {name: own for name, own in zip(held, short, strict=True) if short.count(own) == 1}
    return [(named.get(name, name), held[name]) for name in sorted(held)]


def _flat(held: Any) -> Iterator[Any]:
    if isinstance(held, (list, tuple, dict)):
        for each in held.values() if isinstance(held, dict) else held:
            yield from _flat(each)
    else:
        yield held


def _by_class(layers: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Name layers by their classes, counting those of each."""
    taken: set[str] = set()
    for layer in layers:
        name = own = _private.class_name(layer)
        count = 0
        while name in taken:
            count += 1
            name = f"{own}_{count}"
        taken.add(name)
        yield name, layer


# --- Optimizers ----------------------------------------------------------------------------


class _Optimizer(OtherOptimizer):
    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer: Any = optimizer

    @property
    def name(self) -> str:
        return self._optimizer.name

    def optimized(self) -> list[Any]:
        return _private.trained_by(self._optimizer)

    def parts(self) -> Parts:
        own = {id(variable) for variable in _private.own_variables(self._optimizer)}
        own -= {id(slot) for _, _, slot in self.slots()}
        for name, held in _attributes(self._optimizer):
            # What is around an optimizer, as a LossScaleOptimizer, has that as an attribute.
            if id(held) in own or isinstance(held, keras.optimizers.Optimizer):
                own.discard(id(held))
                yield (name,), held
        rest = [v for v in _private.own_variables(self._optimizer) if id(v) in own]
        for position, variable in enumerate(rest):
            yield ("variables", str(position)), variable

    def slots(self) -> Iterable[tuple[str, Any, Any]]:
        """Return what is in lists with one element for each variable, as Keras's optimizers do."""
        own = {id(variable) for variable in _private.own_variables(self._optimizer)}
        trained = self.optimized()
        for name, held in _attributes(self._optimizer):
            if not isinstance(held, list) or len(held) != len(trained):
                continue
            for owner, slot in zip(trained, held, strict=True):
                if id(slot) in own:
                    yield name, owner, slot

    def build(self, variables: Sequence[Any]) -> None:
        if self._optimizer.built:  # with the one around it
            return
        trainer = _trainers.get(self._optimizer, lambda: None)()
        if trainer is not None:  # of which some layers may be frozen now
            variables = trainer.trainable_variables
        first = self._optimizer.variables[0]
        strategy = first.strategy if isinstance(first, StrategyVariable) else None
        with nullcontext() if strategy is None else strategy.scope():
            self._optimizer.build(list(variables))


# --- Objects that come into being later ----------------------------------------------------


def after_building(own: Callable[..., Any], layer: Any) -> None:
    """Restore what waits for the variables of a layer, which exist now."""
    own(layer)
    _are_created()


def _are_created() -> None:
    if not _private.in_stateless_scope():
        _adapters.variables_were_created()


class _Thread(threading.local):
    builds = 0  # that are under way, as a class calls that of its base


_thread = _Thread()


def build_optimizer(own: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> None:
    """Build an optimizer, and restore what waits for its state."""
    _thread.builds += 1
    try:
        own(optimizer, *args, **kwargs)
    finally:
        _thread.builds -= 1
    if not _thread.builds and server_optimizer(optimizer) is None:  # there it is not complete yet
        _is_attached()


def set_attribute(own: Callable[..., Any], layer: Any, name: str, value: Any) -> None:
    """Set an attribute of a layer, and restore what waits for what it holds."""
    own(layer, name, value)
    if _awaited.is_waiting() and isinstance(value, _WITH_STATE) and hasattr(layer, "_tracker"):
        _is_attached()


def _is_attached() -> None:
    if not _private.in_stateless_scope() and not is_tracing():
        _awaited.attached()


_WITH_STATE = (
    keras.layers.Layer,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.random.SeedGenerator,
    keras.Variable,
    list,
    tuple,
    dict,
)


def make_function(own: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Make what runs a step of a model outside of scopes, when all its variables are there."""
    made = own(model, *args, **kwargs)
    _adapters.variables_were_created()
    return made


def register() -> None:
    """Let checkpoints know of Keras."""
    _adapters.register(keras.Variable, Adapter(variable=_as_variable))
    for cls in (keras.layers.Layer, keras.metrics.Metric, keras.random.SeedGenerator):
        _adapters.register(cls, Adapter(parts=parts_of, has_room=True))
    _adapters.register(keras.optimizers.Optimizer, Adapter(optimizer=_Optimizer, has_room=True))
    for cls in _private.CONTAINERS:  # lists and dicts that are attributes of layers
        _adapters.register(cls, Adapter(parts=lambda _: ()))
