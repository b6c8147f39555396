"""Everything that can be distributed, as a dataset of ours.

None of the packages whose objects are recognised here is imported: an object of a package exists
only when somebody else has imported it.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from .. import _tree
from .._specs import TensorSpec
from ..data import AutoShardPolicy, Dataset, Options, _ops
from ..data._elements import as_element
from ..errors import InvalidArgumentError
from ..values import DistributedValues


def as_op(value: Any) -> _ops.Op:
    """Return the operations that read `value`.

    Raises:
      TypeError: when it is nothing that can be read, or can be read only once.
    """
    if isinstance(value, Dataset):
        return value.op
    for recognise in (_from_grain, _from_tensorflow, _from_torch):
        op = recognise(value)
        if op is not None:
            return op
    if isinstance(value, (Distributed, DistributedValues)):
        raise TypeError(f"{value!r} is distributed already. Pass the dataset it was made from.")
    if isinstance(value, Iterator):
        raise TypeError(
            f"{value!r} can be read only once, so there could be no second epoch. Pass what it was "
            "made from, or Dataset.from_generator with the function that makes it."
        )
    if _is_structure_of_arrays(value):
        return Dataset.from_tensors(value).op
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(
            f"Expected a dataset, got {value!r}: a jt.data.Dataset, an iterable of (nested) arrays "
            "that can be read again, arrays, a dataset of Grain or tf.data, or a DataLoader of "
            "PyTorch."
        )
    return _ops.External(_IterableSource(value))


class Distributed:
    """Marks what is divided between replicas already."""


def _is_structure_of_arrays(value: Any) -> bool:
    if isinstance(value, list):  # of elements
        return False
    leaves, _ = _tree.flatten(value)
    return bool(leaves) and all(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves)


class _IterableSource:
    """Anything that can be iterated again and again."""

    spec = None

    def __init__(self, iterable: Iterable[Any], name: str = "") -> None:
        self._iterable = iterable
        self.name = name or f"the iterable {type(iterable).__name__}"
        try:
            self.size = len(iterable)  # pyright: ignore[reportArgumentType]
        except TypeError:
            self.size = _ops.UNKNOWN_CARDINALITY

    def open(self) -> Iterator[Any]:
        """Start reading."""
        return _Converted(iter(self._iterable))


class _Converted:
    """An iterator whose elements become NumPy arrays, with the state of the original, if any."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        if hasattr(iterator, "get_state") and hasattr(iterator, "set_state"):
            self.get_state = iterator.get_state
            self.set_state = iterator.set_state
        if hasattr(iterator, "close"):
            self.close = iterator.close

    def __iter__(self) -> _Converted:
        return self

    def __next__(self) -> Any:
        return _tree.map_leaves(_as_numpy, next(self._iterator), _is_text)


def _is_text(node: Any) -> bool:
    """Tell a list of texts, which is what PyTorch makes of a batch of them: one array."""
    return isinstance(node, list) and bool(node) and all(isinstance(t, (str, bytes)) for t in node)


def _as_numpy(leaf: Any) -> Any:
    if type(leaf).__module__.partition(".")[0] == "torch":
        return _from_tensor(leaf.detach().cpu())
    return as_element(leaf)


# --- Grain -----------------------------------------------------------------------------------


def _from_grain(value: Any) -> _ops.Op | None:
    grain = sys.modules.get("grain")
    if grain is None:
        return None
    if isinstance(value, grain.MapDataset):
        source = _IterableSource(value.to_iter_dataset(), "the Grain MapDataset")
        source.size = _length_in_grain(value)
        return _ops.External(source)
    if isinstance(value, grain.IterDataset):
        return _ops.External(_IterableSource(value, "the Grain IterDataset"))
    if isinstance(value, grain.DataLoader):
        return _ops.External(_GrainLoaderSource(value, "the Grain DataLoader"))
    return None


def _length_in_grain(dataset: Any) -> int:
    def all_of(part: Any) -> Iterator[Any]:
        yield part
        for parent in part.parents:
            yield from all_of(parent)

    if any(type(part).__name__.startswith("Filter") for part in all_of(dataset)):
        return _ops.UNKNOWN_CARDINALITY  # its length counts what is left out as well
    # Grain has no end at sys.maxsize elements, which may then form batches.
    return _ops.INFINITE_CARDINALITY if len(dataset) > 1 << 40 else len(dataset)


class _GrainLoaderSource(_IterableSource):
    """A loader of Grain, whose states are bytes that hold JSON."""

    def open(self) -> Iterator[Any]:
        iterator: Any = iter(self._iterable)
        converted = _Converted(iterator)
        converted.get_state = lambda: {"loader": iterator.get_state().decode()}
        converted.set_state = lambda state: iterator.set_state(state["loader"].encode())
        return converted


# --- tf.data ---------------------------------------------------------------------------------


def _from_tensorflow(value: Any) -> _ops.Op | None:
    tf = sys.modules.get("tensorflow")
    if tf is None or not isinstance(value, tf.data.Dataset):
        return None
    policy = AutoShardPolicy[value.options().experimental_distribute.auto_shard_policy.name]
    if policy in (AutoShardPolicy.FILE, AutoShardPolicy.HINT):
        raise InvalidArgumentError(
            f"The tf.data.Dataset asks for AutoShardPolicy.{policy.name}, which needs to look "
            "inside it. Use DATA or OFF, a jt.data.Dataset, or divide it yourself with `shard` in "
            "distribute_datasets_from_function."
        )
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return _ops.WithOptions(_ops.External(_TensorFlowSource(value)), options)


class _TensorFlowSource:
    """A dataset of tf.data, read as NumPy arrays."""

    name = "the tf.data.Dataset"

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.size = int(dataset.cardinality())
        self.spec = _tree.map_leaves(_from_tensorflow_spec, dataset.element_spec)

    def open(self) -> Iterator[Any]:
        """Start reading."""
        return _TensorFlowIterator(self._dataset)


def _from_tensorflow_spec(spec: Any) -> TensorSpec:
    if type(spec).__name__ != "TensorSpec":
        raise InvalidArgumentError(
            f"The tf.data.Dataset has elements of the type {type(spec).__name__}, of which JAX has "
            "no counterpart. Convert them to dense tensors in a `map` first."
        )
    dtype = np.dtype(object) if spec.dtype.name == "string" else spec.dtype.as_numpy_dtype
    return TensorSpec(spec.shape.as_list() if spec.shape.rank is not None else None, dtype)


class _TensorFlowIterator:
    """The elements of a dataset of tf.data; a state is their number."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._taken = 0
        self._elements: Any = None  # not made yet: each new one has another order after `shuffle`

    def __iter__(self) -> _TensorFlowIterator:
        return self

    def __next__(self) -> Any:
        if self._elements is None:
            self.set_state({"taken": 0})
            assert self._elements is not None
        element = next(self._elements)
        self._taken += 1
        return _tree.map_leaves(_as_numpy, element)

    def get_state(self) -> dict[str, Any]:
        return {"taken": self._taken}

    def set_state(self, state: dict[str, Any]) -> None:
        self._taken = state["taken"]
        rest = self._dataset.skip(self._taken) if self._taken else self._dataset
        self._elements = rest.as_numpy_iterator()


# --- PyTorch ---------------------------------------------------------------------------------


def _from_torch(value: Any) -> _ops.Op | None:
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(value, torch_data.DataLoader):
        return None
    return _ops.External(_TorchSource(value, "the PyTorch DataLoader"))


class _TorchSource(_IterableSource):
    def open(self) -> Iterator[Any]:
        """Start reading."""
        return _TorchIterator(self._iterable)


class _TorchIterator(_Converted):
    """The batches of a loader, which draws their order from a generator when it is iterated.

    A state is that of the generator before that, and the number of batches.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._begin()

    def _begin(self) -> None:
        self._iterator: Any = None
        self._before = self._generator.get_state()
        self._taken = 0

    @property
    def _generator(self) -> Any:
        return self._loader.generator or sys.modules["torch"].default_generator

    def __next__(self) -> Any:
        if self._iterator is None:
            self._before = self._generator.get_state()
            self._iterator = iter(self._loader)
        element = super().__next__()
        self._taken += 1
        return element

    def get_state(self) -> dict[str, Any]:
        generator = base64.b64encode(self._before.numpy().tobytes()).decode()
        return {"taken": self._taken, "generator": generator}

    def set_state(self, state: dict[str, Any]) -> None:
        before = np.frombuffer(base64.b64decode(state["generator"]), np.uint8).copy()
        self._generator.set_state(sys.modules["torch"].from_numpy(before))
        self._begin()
        while self._taken < state["taken"]:
            try:
                next(self)
            except StopIteration:
                raise InvalidArgumentError(
                    f"The saved state is after batch {state['taken']} of the PyTorch DataLoader, "
                    f"which has only {self._taken} now."
                ) from None


def _from_tensor(tensor: Any) -> Any:
    if str(tensor.dtype) == "torch.bfloat16":  # NumPy has no such type of its own
        torch = sys.modules["torch"]
        return tensor.view(torch.int16).numpy().view(jax.numpy.bfloat16)
    return tensor.numpy()
