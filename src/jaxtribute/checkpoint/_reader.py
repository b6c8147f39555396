"""Reading single values of a checkpoint, without the objects they are of."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..errors import NotFoundError
from . import _background, _foreign, _sources
from ._latest import latest_checkpoint
from ._sources import ARRAYS, Array

__all__ = ["CheckpointReader", "list_variables", "load_checkpoint", "load_variable"]

PathLike = str | os.PathLike[str]
_Type = tuple[tuple[int, ...], np.dtype[Any]]


class CheckpointReader:
    """The values of a checkpoint, by name; made by `jt.train.load_checkpoint`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = jt.train.Checkpoint(v=jt.Variable([1.0, 2.0])).save(directory + "/ckpt")
    ...     reader = jt.train.load_checkpoint(path)
    ...     reader.has_tensor("v"), reader.has_tensor("w"), reader.get_variable_to_dtype_map()
    (True, False, {'v': dtype('float32')})
    """

    def __init__(self, path: str, types: Mapping[str, _Type], read: Callable[[str], Array]) -> None:
        self._path = path
        self._types = types
        self._read = read

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Return the shape of each value, by name."""
        return {name: list(shape) for name, (shape, _) in self._types.items()}

    def get_variable_to_dtype_map(self) -> dict[str, np.dtype[Any]]:
        """Return the type of each value, by name."""
        return {name: dtype for name, (_, dtype) in self._types.items()}

    def has_tensor(self, tensor_str: str) -> bool:
        """Tell whether there is a value of a name.

        Args:
          tensor_str: the name.
        """
        return tensor_str in self._types

    def get_tensor(self, tensor_str: str) -> Array:
        """Return a value.

        Args:
          tensor_str: its name.

        Raises:
          NotFoundError: when there is none of that name.
          DataLossError: when it is damaged.
        """
        if tensor_str not in self._types:
            raise NotFoundError(
                f"The checkpoint {self._path!r} has no {tensor_str!r}. It has "
                f"{sorted(self._types)}."
            )
        return self._read(tensor_str)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._types)} values in {self._path!r}>"


def load_checkpoint(ckpt_dir_or_file: PathLike) -> CheckpointReader:
    """Open a checkpoint to read single values: one of ours, of TensorFlow, or a file of Keras.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     checkpoint = jt.train.Checkpoint(v=jt.Variable([1.0, 2.0]))
    ...     checkpoint.save(directory + "/ckpt")
    ...     reader = jt.train.load_checkpoint(directory)
    ...     reader.get_variable_to_shape_map(), reader.get_tensor("v")
    '...ckpt-1'
    ({'v': [2]}, array([1., 2.], dtype=float32))

    TensorFlow need not be installed for its checkpoints; names are those it gives. Files of Keras,
    such as `.keras` and `.weights.h5`, are read by h5py.

    Args:
      ckpt_dir_or_file: the path of a checkpoint or a file, or a directory, for the newest
        checkpoint in it.

    Raises:
      NotFoundError: when there is none.
      DataLossError: when it is damaged.
    """
    path = os.fspath(ckpt_dir_or_file)
    foreign = _foreign.open_foreign(path)
    if foreign is not None:
        types = {
            name: (shape, dtype)
            for name, (shape, dtype) in foreign.stored.items()
            if dtype is not None
        }
        return CheckpointReader(foreign.path, types, foreign.read_stored)
    _background.finish_beside(path)
    path = latest_checkpoint(path) or path
    saved = _sources.opened(path, _sources.find(path))
    scalars = {name: np.asarray(value) for name, value in saved.index["scalars"].items()}
    types = {
        name: (tuple(described["shape"]), np.dtype(jnp.dtype(described["dtype"])))
        for name, described in saved.index[ARRAYS].items()
    } | {name: (value.shape, value.dtype) for name, value in scalars.items()}

    def read(name: str) -> Array:
        return scalars[name] if name in scalars else saved.load([name])[name]

    return CheckpointReader(path, types, read)


def list_variables(ckpt_dir_or_file: PathLike) -> list[tuple[str, list[int]]]:
    """Return the names and shapes of the values of a checkpoint, sorted by name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     checkpoint = jt.train.Checkpoint(v=jt.Variable([1.0, 2.0]), step=3)
    ...     jt.train.list_variables(checkpoint.save(directory + "/ckpt"))
    [('step', []), ('v', [2])]

    Args:
      ckpt_dir_or_file: as for `load_checkpoint`.

    Raises:
      NotFoundError: when there is none.
      DataLossError: when it is damaged.
    """
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: PathLike, name: str) -> Array:
    """Return one value of a checkpoint.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     checkpoint = jt.train.Checkpoint(v=jt.Variable([1.0, 2.0]))
    ...     jt.train.load_variable(checkpoint.save(directory + "/ckpt"), "v")
    array([1., 2.], dtype=float32)

    Args:
      ckpt_dir_or_file: as for `load_checkpoint`.
      name: the name of the value.

    Raises:
      NotFoundError: when there is no checkpoint, or no value of that name.
      DataLossError: when it is damaged.
    """
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name)
