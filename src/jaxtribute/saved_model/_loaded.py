"""What `load` returns: objects with variables, and functions that are programs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jax import export

from .. import _context
from .._reduce import VariableAggregation, VariableSynchronization
from .._specs import TensorSpec
from ..errors import InvalidArgumentError, NotFoundError
from ..module import Module
from ..sharded import ShardedVariable
from ..tracing import Function
from ..variables import Variable
from ._signatures import Signature
from ._specs import Described, Empty, fitted, rebuilt, shown


class LoadedFunction:
    """A function of a saved model.

    It is called like the function that was saved, with arrays for the arguments it has specs for;
    each can be passed by name. It reads and assigns variables of the loaded model. So it can be
    trained, called inside `strategy.run` and be part of a `jt.function`.

    >>> import tempfile
    >>> v = jt.Variable([1.0, 2.0])
    >>> signature = jt.saved_model.Signature(lambda x: v * x, jt.TensorSpec([]))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     jt.saved_model.save({"v": v}, directory + "/model", signature)
    ...     loaded = jt.saved_model.load(directory + "/model")
    >>> f = loaded.signatures["serving_default"]
    >>> f
    <LoadedFunction serving_default(x: float32()) -> float32(2,)>
    >>> jt.grad(lambda: jnp.sum(f(3.0)), loaded["v"])().tolist()
    [3.0, 3.0]
    """

    def __init__(
        self,
        name: str,
        record: Mapping[str, Any],
        data: bytes,
        variables: Mapping[str, Variable | ShardedVariable],
    ) -> None:
        self._name = name
        self._record = record
        self._data = data
        self._variables = variables
        self._arguments: dict[str, Described] = dict(record["arguments"])
        self._program = export.deserialize(bytearray(data))
        self._compiled = Function(self._run)

    @property
    def name(self) -> str:
        """What it is called by."""
        return self._name

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms it can run on."""
        return tuple(self._record["platforms"])

    def signature(self) -> Signature:
        """Return what to save the function with once more."""
        specs = {name: rebuilt(described, _spec) for name, described in self._arguments.items()}
        positional = self._record["positional"]
        named = {name: spec for name, spec in specs.items() if name not in positional}
        return Signature(self, *(specs[name] for name in positional), **named)

    @property
    def __signature__(self) -> inspect.Signature:
        kinds = inspect.Parameter
        positional = self._record["positional"]
        return inspect.Signature(
            [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in positional]
            + [kinds(n, kinds.KEYWORD_ONLY) for n in self._arguments if n not in positional]
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(fitted(repr(self._name), self._arguments, self._bound(args, kwargs)))

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = self._record["positional"] or list(self._arguments)
        given = dict(zip(names, args, strict=False)) | kwargs
        twice = sorted(set(names[: len(args)]) & kwargs.keys())
        if len(args) > len(names) or twice or given.keys() != self._arguments.keys():
            raise InvalidArgumentError(
                f"{self._name!r} takes the arguments {', '.join(self._arguments) or 'none'}, each "
                f"once; got {len(args)} positional ones and {', '.join(kwargs) or 'none'} by name."
            )
        return given

    def _run(self, arguments: Mapping[str, Any]) -> Any:
        empty = Empty(self._arguments, arguments)
        if not empty.names:
            return self._call(arguments)
        outputs = self._record["outputs"]
        if self._record["assigns"] or not empty.leaves_no_doubt(outputs):
            raise InvalidArgumentError(
                f"{self._name!r} was called with no elements in the dimension "
                f"{', '.join(sorted(empty.names))}, and its results would still have some, or it "
                "would assign variables: saved programs are for sizes from 1 on. Leave out such "
                "batches; datasets can be batched with drop_remainder=True."
            )
        return empty.cut(outputs, self._call(empty.filled(arguments)))

    def _call(self, arguments: Mapping[str, Any]) -> Any:
        read = {path: self._variables[path].value() for path in self._record["variables"]}
        result, assigned = self._program.call(read, arguments)
        for path, value in assigned.items():
            _assign(self._variables[path], value)
        return result

    def __getstate__(self) -> tuple[Any, ...]:
        # Sent to a worker, or copied: programs of JAX cannot be, but what they are made of can.
        return self._name, self._record, self._data, dict(self._variables)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        LoadedFunction.__init__(self, *state)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{n}: {_text(d)}" for n, d in self._arguments.items())
        return f"<LoadedFunction {self._name}({arguments}) -> {_text(self._record['outputs'])}>"


def _spec(described: Any) -> TensorSpec:
    return TensorSpec(described["shape"], described["dtype"])


def _assign(variable: Variable | ShardedVariable, value: Any) -> None:
    first: Any = variable.variables[0] if isinstance(variable, ShardedVariable) else variable
    context = _context.get_replica_context()
    if (
        context is not None
        and context.num_replicas_in_sync > 1
        and first.aggregation is VariableAggregation.SUM
        and first.synchronization is not VariableSynchronization.ON_READ
    ):
        # What replicas add is added up; what the variable had before counts once.
        variable.assign_add(value - variable.value())
    else:
        variable.assign(value)


def _text(described: Described) -> str:
    found = rebuilt(described, lambda leaf: _Shown(f"{leaf['dtype']}{shown(leaf['shape'])}"))
    return repr(found)


class _Shown:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class LoadedObject(Module):
    """A part of a loaded model, with the variables and functions of the object that was saved."""

    _functions: Mapping[str, LoadedFunction] = MappingProxyType({})
    _left_out: Mapping[str, str] = MappingProxyType({})

    @property
    def functions(self) -> Mapping[str, LoadedFunction]:
        """The functions that were saved with the object, by name."""
        return self._functions

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also while it is copied, and has no attributes yet
            raise AttributeError(name)
        if name in self._functions:
            return self._functions[name]
        if name in self._left_out:
            raise AttributeError(f"The function {name!r} was not saved: {self._left_out[name]}")
        kept = [*(n for n in vars(self) if not n.startswith("_")), *self._functions]
        raise AttributeError(
            f"The loaded {self.name!r} has no {name!r}. Of an object, variables and functions with "
            f"an input_signature are saved; there is {', '.join(kept) or 'nothing'}."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function `__call__` of the object that was saved."""
        function = self._functions.get("__call__")
        if function is None:
            why = self._left_out.get("__call__", "it is no jt.function.")
            raise TypeError(
                f"The loaded {self.name!r} cannot be called, as its __call__ was not saved: {why}"
            )
        return function(*args, **kwargs)


class LoadedModule(LoadedObject):
    """A loaded model.

    Its attributes are those of the object that was saved, as far as they lead to variables and
    functions; the items of a dict or list are found by their keys.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     jt.saved_model.save({"a": jt.Variable(1.0), "b": [jt.Variable(2)]}, directory + "/m")
    ...     loaded = jt.saved_model.load(directory + "/m")
    >>> float(loaded["a"]), int(loaded["b"][0]), len(loaded.variables), dict(loaded.signatures)
    (1.0, 2, 2, {})
    """

    _root: Any = None  # a dict or a list that was saved

    def __init__(self, name: str, signatures: Mapping[str, LoadedFunction]) -> None:
        super().__init__(name or None)
        self._signatures = Signatures(signatures)

    @property
    def signatures(self) -> Mapping[str, LoadedFunction]:
        """The functions that were saved with a name to call them by."""
        return self._signatures

    def __getitem__(self, key: Any) -> Any:
        """Return an item of the dict, list or tuple that was saved."""
        if self._root is None:
            raise TypeError(
                f"{key!r} cannot be looked up: no dict or list was saved, but an object. Use its "
                "attributes."
            )
        return self._root[key]

    def __len__(self) -> int:
        """Return the number of items of the dict, list or tuple that was saved."""
        return 0 if self._root is None else len(self._root)

    @property
    def root(self) -> Any:
        """The dict, list or tuple that was saved; None if it was an object."""
        return self._root

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        names = ", ".join(self._signatures) or "none"
        return (
            f"<LoadedModule {self.name} with {len(self.variables)} variables, signatures: {names}>"
        )


class Signatures(dict[str, LoadedFunction]):
    """Functions by name."""

    def __missing__(self, name: Any) -> Any:
        raise NotFoundError(
            f"The saved model has no signature {name!r}; it has "
            f"{', '.join(map(repr, self)) or 'none'}."
        )
