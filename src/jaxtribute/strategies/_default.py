"""The strategy in force when there is no other: everything runs where it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from .. import _context
from .._options import ValueContext
from .._topology import Topology
from ..collectives import ReductionToOneDevice
from ..values._regroup import check_numbers
from ..variables import Variable, _frames
from ..variables._spec import VariableSpec
from ._base import Strategy
from ._extended import StrategyExtended
from ._replica_context import ReplicaContext
from ._scope import Scope


class _DefaultExtended(StrategyExtended):
    """The default strategy has no devices of its own."""

    @property
    def worker_devices(self) -> tuple[str, ...]:
        raise RuntimeError("The default strategy has no worker devices; JAX places everything.")

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        raise RuntimeError("The default strategy has no parameter devices; JAX places everything.")


class DefaultStrategy(Strategy):
    """Runs everything once, where it is called, with plain variables."""

    def __init__(self) -> None:
        super().__init__(_WhereverJaxPuts(), ReductionToOneDevice())
        self._extended = _DefaultExtended(self)
        self.context = ReplicaContext(self, 0)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        check_numbers((args, kwargs), "A replica")
        with _context.opened(_context.Side(self, self.context)), _frames.all_or_nothing():
            return fn(*args, **kwargs)

    def scope(self) -> Scope:
        return Scope(self, _context.DefaultScope(self, self.context))

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        return value_fn(ValueContext())

    def _create_variable(self, spec: VariableSpec) -> Variable:
        return _plain_variable(spec, _context.device_in_scope())

    def owns(self, variable: Any) -> bool:
        return isinstance(variable, Variable) and variable.distribute_strategy is None

    def __deepcopy__(self, memo: dict[int, Any]) -> Strategy:
        raise RuntimeError("There is one default strategy, which must not be copied.")

    def __reduce__(self) -> str:
        return "DEFAULT"  # the one of the process, by its name in this module

    def __repr__(self) -> str:
        return "<default strategy>"


class _WhereverJaxPuts(Topology):
    """One replica on JAX's default device, which is not asked for before it is needed."""

    def __init__(self) -> None:
        pass

    @property
    def devices(self) -> tuple[jax.Device, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (jax.local_devices()[0],)

    @property
    def num_replicas(self) -> int:
        return 1


def _plain_variable(spec: VariableSpec, device: jax.Device | None) -> Variable:
    return type.__call__(Variable, spec, device)


DEFAULT = DefaultStrategy()
_context.install_default(DEFAULT, DEFAULT.context)
