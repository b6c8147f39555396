"""Objects that own variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .sharded import ShardedVariable
from .variables import Variable, _awaited

__all__ = ["Module"]


class Module:
    """A base class that finds the variables held by its attributes.

    Attributes may hold variables, other modules, and lists, tuples or dictionaries of them. Of a
    `ShardedVariable` it finds the shards.

    >>> class Dense(jt.Module):
    ...     def __init__(self):
    ...         super().__init__(name="dense")
    ...         self.w = jt.Variable(jnp.ones((3, 2)), name="w")
    ...         self.calls = jt.Variable(0, name="calls", trainable=False)
    >>> dense = Dense()
    >>> [v.name for v in dense.variables], [v.name for v in dense.trainable_variables]
    (['calls', 'w'], ['w'])

    Args:
      name: the name; by default that of the class, in lower case.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name or type(self).__name__.lower()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if _awaited.is_waiting() and not isinstance(value, (str, bool, int, float, type(None))):
            _awaited.attached()

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables, each once, sorted by attribute."""
        return tuple(found for found in _owned(self) if isinstance(found, Variable))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The variables that training is to change."""
        return tuple(variable for variable in self.variables if variable.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """The variables that training is not to change."""
        return tuple(variable for variable in self.variables if not variable.trainable)

    @property
    def submodules(self) -> tuple[Module, ...]:
        """All modules inside this one, each once."""
        return tuple(f for f in _owned(self) if isinstance(f, Module) and f is not self)


def _owned(module: Module) -> Iterator[Any]:
    """Yield `module` and the variables and modules it holds, each once."""
    seen: set[int] = set()

    def visit(value: Any) -> Iterator[Any]:
        if id(value) in seen:
            return
        if isinstance(value, Module):
            seen.add(id(value))
            yield value
            for name in sorted(vars(value)):
                yield from visit(vars(value)[name])
        elif isinstance(value, Variable):
            seen.add(id(value))
            yield value
        elif isinstance(value, ShardedVariable):
            for shard in value.variables:
                yield from visit(shard)
        elif isinstance(value, (list, tuple)):
            for item in value:
                yield from visit(item)
        elif isinstance(value, dict):
            for item in value.values():
                yield from visit(item)

    return visit(module)
