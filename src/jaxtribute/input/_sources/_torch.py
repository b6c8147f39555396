"""PyTorch's loaders."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...data import _ops
from ...errors import InvalidArgumentError
from ._iterables import Converted, IterableSource


def from_torch(value: Any) -> _ops.Op | None:
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(value, torch_data.DataLoader):
        return None
    return _ops.External(_TorchSource(value, "the PyTorch DataLoader"))


class _TorchSource(IterableSource):
    def open(self) -> Iterator[Any]:
        """Start reading."""
        return _TorchIterator(self._iterable)


class _TorchIterator(Converted):
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
