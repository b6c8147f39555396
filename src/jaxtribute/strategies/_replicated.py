"""What strategies have in common whose variables have a copy for each of several replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _context, config
from .._jax_compat import is_tracing
from .._reduce import VariableSynchronization
from ..tracing import Function
from ..variables import MirroredVariable, SyncOnReadVariable, Variable
from ..variables._spec import VariableSpec
from ._base import Strategy
from ._eager import run_eagerly
from ._spmd import run_spmd


class ReplicatedStrategy(Strategy):
    """Runs replicas on all devices of its topology, and keeps a copy of variables on each."""

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_tracing():
            return run_spmd(self, fn, args, kwargs)
        if isinstance(fn, Function) and not config.functions_run_eagerly():
            return fn.run_under(self, args, kwargs)
        return run_eagerly(self, fn, args, kwargs)

    def create_variable(self, **spec: Any) -> Variable:
        context = _context.get_replica_context()
        if context is None:
            return super().create_variable(**spec)
        # All replicas ask for the variable at the same time, and share the one that is made.
        name = spec.get("name")
        return context.merge_call(
            lambda strategy, initial_value: strategy.create_variable(
                **(spec | {"initial_value": initial_value, "name": name})
            ),
            args=(spec.get("initial_value"),),
        )

    def _create_variable(self, spec: VariableSpec) -> Variable:
        if spec.synchronization is VariableSynchronization.NONE:
            raise ValueError(
                f"The variable {spec.name!r} was asked for with VariableSynchronization.NONE, "
                f"which {type(self).__name__} does not have: use AUTO, ON_WRITE or ON_READ, or "
                "create it outside the scope."
            )
        if spec.synchronization is VariableSynchronization.ON_READ:
            return SyncOnReadVariable(spec, self, self.topology)
        return MirroredVariable(spec, self, self.topology)
