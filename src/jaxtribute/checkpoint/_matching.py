"""Which value of a checkpoint goes where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._reduce import VariableAggregation
from ..variables import SyncOnReadVariable
from ._objects import Found, Plain, all_names, is_random_key, is_scalar
from ._sources import ARRAYS

_KINDS = {ARRAYS: "an array", "scalars": "a number or text", "iterators": "an iterator"}


@dataclass(frozen=True)
class Match:
    """A part of the program, and the value it gets."""

    name: str
    saved: str  # the name in the checkpoint
    target: Any
    kind: str


class Contents:
    """What a checkpoint holds.

    Args:
      index: everything, by kind and name.
      finder: returns which of the names is meant by one, if they do not say it themselves.
    """

    def __init__(
        self, index: Mapping[str, Any], finder: Callable[[str], str | None] | None = None
    ) -> None:
        self.index = index
        self.kinds = {name: kind for kind in _KINDS for name in index[kind]}
        self._find = finder or (lambda name: name if name in self.kinds else None)

    def array_type(self, name: str) -> tuple[tuple[int, ...], Any]:
        """Return the shape and type of an array."""
        described = self.index[ARRAYS][name]
        return tuple(described["shape"]), jnp.dtype(described["dtype"])

    def match(self, found: Found) -> list[Match]:
        """Return the parts of a program that the checkpoint has a value for."""
        targets: dict[str, tuple[Any, str]] = {
            **{name: (iterator, "iterators") for name, iterator in found.iterators.items()},
            **{name: (variable, ARRAYS) for name, variable in found.variables.items()},
            **{name: (plain, _kind_of(plain)) for name, plain in found.plain.items()},
        }
        names = {name: self._saved_name(name, found) for name in targets}
        return [
            Match(name, saved, *targets[name]) for name, saved in names.items() if saved is not None
        ]

    def _saved_name(self, name: str, found: Found) -> str | None:
        for own in all_names(name, found.aliases):
            for other in all_names(own, self.index["aliases"]):
                if (saved := self._find(other)) is not None:
                    return saved
        return None

    def problems(self, matches: Sequence[Match]) -> list[str]:
        """Return why values cannot be put where they belong, a line for each."""
        lines = [(match, self._problem(match)) for match in matches]
        return [f"{match.name!r} {problem}." for match, problem in lines if problem]

    def _problem(self, match: Match) -> str | None:
        target, kind = match.target, self.kinds[match.saved]
        if kind != match.kind:
            return f"is {_KINDS[kind]} in the checkpoint, and {_KINDS[match.kind]} here"
        if kind == ARRAYS:
            return self._problem_of_array(match)
        if kind == "scalars":
            value = self.index["scalars"][match.saved]
            if type(value) is not type(target.value):
                return f"is {value!r} in the checkpoint, and {target.value!r} here: another type"
        return None

    def _problem_of_array(self, match: Match) -> str | None:
        if (
            isinstance(match.target, SyncOnReadVariable)
            and match.target.aggregation is VariableAggregation.NONE
        ):
            return (
                "is a variable with synchronization ON_READ and VariableAggregation.NONE, which "
                "does not say which replica is to get what"
            )
        impl = self.index[ARRAYS][match.saved].get("key")
        own_impl, own = None, match.target
        if isinstance(own, Plain):
            own = own.value
            if is_random_key(own):
                own_impl, own = str(jax.random.key_impl(own)), jax.random.key_data(own)
        if impl != own_impl:
            return f"is {_key(impl)} in the checkpoint, and {_key(own_impl)} here"
        shape, dtype = self.array_type(match.saved)
        if (shape, dtype) != (tuple(own.shape), np.dtype(own.dtype)):
            return (
                f"has shape {shape} and dtype {dtype} in the checkpoint, and shape "
                f"{tuple(own.shape)} and dtype {own.dtype} here"
            )
        return None

    def plain_value(self, match: Match, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        """Return what replaces an array or a number."""
        if match.saved in self.index["scalars"]:
            return self.index["scalars"][match.saved]
        old, array = match.target.value, arrays[match.saved]
        if is_random_key(old):
            return jax.random.wrap_key_data(jnp.array(array), impl=jax.random.key_impl(old))
        if isinstance(old, jax.Array):
            return jax.device_put(array, old.sharding) if old.committed else jnp.array(array)
        return np.array(array) if isinstance(old, np.ndarray) else array[()]

    def state_for(self, name: str, worker: int, workers: int) -> Any:
        """Return the state with which the iterator of a worker goes on."""
        states = self.index["iterators"][name]
        # On another number of workers each divides anew what any of the earlier ones can tell of.
        return states[worker] if len(states) == workers else states[0]


def _kind_of(plain: Plain) -> str:
    return "scalars" if is_scalar(plain.value) else ARRAYS


def _key(impl: str | None) -> str:
    return "no random key" if impl is None else f"a random key of {impl}"
