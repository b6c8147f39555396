"""Objects of other libraries: what they consist of, as those who know the library say.

An adapter says one of three things of a class: how to see an object as a variable, what parts it
consists of, or that it is an optimizer. This module knows none of the libraries.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from .. import _context, _integrations
from .._jax_compat import is_tracing
from ..variables import _awaited, _frames

Array = np.ndarray[Any, Any]

# The way to each part, and the part. The names on the way must not depend on what else a program
# has created.
Parts = Iterable[tuple[tuple[str, ...], Any]]


class OtherVariable(ABC):
    """A variable of another library, which is read and assigned as one of ours is."""

    distribute_strategy: Any = None

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape."""

    @property
    @abstractmethod
    def dtype(self) -> Any:
        """The type of the elements."""

    @abstractmethod
    def value(self) -> Array:
        """Return the value, in memory that the library may write over."""

    def assign(self, value: Array) -> None:
        """Replace the value; what does so for several variables as a whole may put it back."""
        _frames.STORAGE.write(cast(Any, self), self.converted(value))

    def converted(self, value: Array) -> Any:
        """Return an array as what the library stores."""
        return value

    @abstractmethod
    def share(self) -> Any:
        """Return what the library has stored."""

    @abstractmethod
    def store(self, data: Any, shared: bool = False) -> None:
        """Have the library store something."""

    def remember(self) -> Callable[[], None]:
        """Return a function that puts back what is stored now."""
        data = self.share()
        return lambda: self.store(data, shared=True)


class OtherOptimizer(ABC):
    """An optimizer of another library; all variables are that library's."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How users know it."""

    @abstractmethod
    def optimized(self) -> list[Any]:
        """Return the variables it was built for; none if it was not built yet."""

    @abstractmethod
    def parts(self) -> Parts:
        """Return what belongs to no variable, such as the count of steps."""

    @abstractmethod
    def slots(self) -> Iterable[tuple[str, Any, Any]]:
        """Return each part that belongs to a variable: what it is, that variable, and the part."""

    @abstractmethod
    def build(self, variables: Sequence[Any]) -> None:
        """Create the state for variables."""


@dataclass(frozen=True)
class FoundOptimizer:
    """An optimizer of another library among what was found, with variables as they were found."""

    optimizer: OtherOptimizer
    originals: Mapping[int, Any]
    """What is behind each variable that was found, by its identity."""
    optimized: list[Any]

    @property
    def name(self) -> str:
        """How users know it."""
        return self.optimizer.name

    def build(self, variables: Sequence[Any]) -> None:
        """Create the state for variables."""
        self.optimizer.build([self.originals.get(id(v), v) for v in variables])


# --- Which there are -----------------------------------------------------------------------


@dataclass(frozen=True)
class Adapter:
    """How objects of a class are kept: as one of these."""

    variable: Callable[[Any], Any] | None = None
    """Returns an object as a variable, or None while it has no value."""
    parts: Callable[[Any], Parts] | None = None
    optimizer: Callable[[Any], OtherOptimizer] | None = None
    has_room: bool = False
    """Whether an object may be given an attribute that its library knows nothing of."""


_adapters: dict[type, Adapter] = {}

# Imported once the library is, by which a program shows that it may have objects of it.
_OWN = {"flax.nnx": f"{__package__}._nnx"}


def register(cls: type, adapter: Adapter) -> None:
    """Say how objects of a class, and of those derived from it, are kept."""
    _adapters[cls] = adapter


def load() -> None:
    """Load the adapters of all libraries that have been imported."""
    _integrations.load()
    for library, module in _OWN.items():
        if library in sys.modules and module not in sys.modules:
            importlib.import_module(module)


def adapter_of(value: Any) -> Adapter | None:
    """Return how an object is kept, or None if nobody has said so."""
    return next((_adapters[cls] for cls in type(value).__mro__ if cls in _adapters), None)


# --- Objects that come into being later ----------------------------------------------------


def variables_were_created() -> None:
    """Restore what has come into being.

    Raises:
      FailedPreconditionError: inside a compiled function, where values cannot be put in place.
    """
    if not _awaited.is_waiting():
        return
    if _context.has_strategy():
        strategy = _context.get_strategy()
        if _context.get_replica_context() is not None or getattr(strategy, "is_on_worker", False):
            return
    if not is_tracing():
        _awaited.attached()
        return
    for restorer in _awaited.restorers():
        restorer.check_nothing_missed()
