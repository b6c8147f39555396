"""Loading models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from .. import _context
from .._reduce import VariableAggregation, VariableSynchronization
from ..checkpoint._together import refuse_inside, together
from ..errors import DataLossError, FailedPreconditionError
from ..sharded import ShardedVariable
from ..variables import Variable
from . import _arrays, _files
from ._loaded import LoadedFunction, LoadedModule, LoadedObject

__all__ = ["load"]

Stored = Variable | ShardedVariable


def load(export_dir: str | os.PathLike[str]) -> LoadedModule:
    """Load a model that `jt.saved_model.save` saved.

    >>> import tempfile
    >>> v = jt.Variable([1.0, 2.0], name="v")
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     jt.saved_model.save({"v": v}, directory + "/model")
    ...     with jt.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    ...         loaded = jt.saved_model.load(directory + "/model")
    >>> type(loaded["v"]).__name__, loaded["v"].numpy().tolist()
    ('MirroredVariable', [1.0, 2.0])

    Its variables are created anew: in the scope of a strategy they become what the strategy makes
    of variables, whichever it was when the model was saved. Checksums of all files are compared
    before the first is. No code is loaded, only programs of JAX.

    With several workers, all of them load.

    Args:
      export_dir: the path of the model.

    Returns:
      An object with the variables and functions of the one that was saved, and its `signatures`.

    Raises:
      NotFoundError: when there is no saved model.
      DataLossError: when a file is missing or damaged.
      FailedPreconditionError: when a later version of jaxtribute or JAX is needed.
      RuntimeError: inside a replica or a compiled function.
      AbortedError: when another worker failed.
    """
    refuse_inside("A model", "loaded")
    path = _files.local_path(export_dir)
    contents: list[_Contents] = []
    together(
        _context.get_strategy().topology.group,
        "read a saved model",
        lambda: contents.append(_Contents.read(path)),
    )
    return contents[0].built()


class _Contents:
    """A saved model as it was read, before anything is made of it."""

    def __init__(
        self, index: dict[str, Any], weights: dict[str, _arrays.Array], programs: list[bytes]
    ) -> None:
        self._index = index
        self._weights = weights
        self._programs = programs

    @classmethod
    def read(cls, path: Path) -> _Contents:
        """Read a model, and verify all of it."""
        while True:
            index = _files.read_index(path)
            try:
                return cls._verified(path, index)
            except (DataLossError, FileNotFoundError):  # whose files may go at any moment
                if _files.read_index(path) == index:  # it was not replaced meanwhile
                    raise

    @classmethod
    def _verified(cls, path: Path, index: dict[str, Any]) -> _Contents:
        programs: list[bytes] = []
        for number, record in enumerate(index["programs"]):
            file = _files.verified(path, f"The program {_users(index, number)}", record)
            programs.append(file.read_bytes())
            _check_readable(programs[-1], index, _users(index, number))
        weights = {
            name: _arrays.read(
                _files.verified(path, f"The weights of the variable {name!r}", record), name, record
            )
            for name, record in index["variables"].items()
        }
        return cls(index, weights, programs)

    def built(self) -> LoadedModule:
        """Return the objects, with variables of the strategy in force."""
        variables = {
            name: _created(record, self._weights[name])
            for name, record in self._index["variables"].items()
        }
        nodes = self._index["nodes"]
        functions = {
            name: LoadedFunction(
                name, self._index["programs"][number], self._programs[number], variables
            )
            for name, number in self._index["signatures"].items()
        }
        made: dict[int, Any] = {}
        root = LoadedModule(nodes[0].get("name", ""), functions)
        if "object" in nodes[0]:
            made[0] = root
            self._fill(0, root, made, variables)
        else:
            root._root = self._make(0, made, variables)  # pyright: ignore[reportPrivateUsage]
        return root

    def _make(self, number: int | None, made: dict[int, Any], variables: Mapping[str, Any]) -> Any:
        if number is None or number in made:
            return None if number is None else made[number]
        node = self._index["nodes"][number]
        if "variable" in node:
            made[number] = variables[node["variable"]]
        elif "dict" in node:
            made[number] = {}  # before what is in it, which may lead back here
            made[number].update((k, self._make(c, made, variables)) for k, c in node["dict"])
        elif "list" in node:
            made[number] = []
            made[number].extend(self._make(child, made, variables) for child in node["list"])
        elif "tuple" in node:
            made[number] = tuple(self._make(child, made, variables) for child in node["tuple"])
        else:
            made[number] = LoadedObject(node["name"] or None)
            self._fill(number, made[number], made, variables)
        return made[number]

    def _fill(
        self, number: int, target: LoadedObject, made: dict[int, Any], variables: Mapping[str, Any]
    ) -> None:
        node = self._index["nodes"][number]
        for name, child in node["object"].items():
            vars(target)[name] = self._make(child, made, variables)
        vars(target)["_left_out"] = node["left_out"]
        vars(target)["_functions"] = {
            name: LoadedFunction(
                name, self._index["programs"][program], self._programs[program], variables
            )
            for name, program in node["functions"].items()
        }


def _check_readable(data: bytes, index: Mapping[str, Any], users: str) -> None:
    try:
        jax.export.deserialize(bytearray(data))
    except Exception as error:  # whatever JAX makes of a program of another version
        raise FailedPreconditionError(
            f"JAX {jax.__version__} cannot read the program {users}, which JAX {index['jax']} "
            "wrote. JAX reads programs that are up to six months old, and those of versions that "
            "are up to three weeks newer. Save the model again with this version, or install that "
            f"one: {error}"
        ) from error


def _users(index: Mapping[str, Any], number: int) -> str:
    """Return how messages call a program."""
    names = [name for name, own in index["signatures"].items() if own == number]
    for node in index["nodes"]:
        names += [name for name, own in node.get("functions", {}).items() if own == number]
    return " and ".join(dict.fromkeys(map(repr, names))) or f"number {number}"


class _Initial:
    """The initial value of a variable, as a whole or in parts, for strategies that divide it."""

    def __init__(self, array: _arrays.Array) -> None:
        self._array = array

    def __call__(
        self,
        partition_shape: tuple[int, ...] | None = None,
        partition_offset: tuple[int, ...] | None = None,
    ) -> _arrays.Array:
        if not partition_shape or not partition_offset:  # also a number, which has no rows
            return self._array
        start = partition_offset[0]
        return np.asarray(self._array[start : start + partition_shape[0]])


def _created(record: Mapping[str, Any], array: _arrays.Array) -> Stored:
    synchronization = VariableSynchronization[record["synchronization"]]
    variable = cast(Any, Variable)(
        _Initial(array),
        trainable=record["trainable"],
        name=record["name"],
        dtype=array.dtype,
        synchronization=synchronization,
        aggregation=VariableAggregation[record["aggregation"]],
        shape=array.shape,
    )
    if synchronization is VariableSynchronization.ON_READ:
        variable.assign(np.asarray(array))  # a sum is divided between the replicas
    return variable
