"""`input` in PyTorch's `DataLoader`, followed by `jax.device_put`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    TensorDataset,
)

from benchmarks.peers.input_device_put import DevicePut, use_devices
from benchmarks.peers.input_work import BATCH, SEED, Arrays, Work, augment, parse
from benchmarks.peers.serve import serve


class Endless(Sampler[int]):
    """Shuffled indices, epoch after epoch."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.generator = torch.Generator().manual_seed(SEED)

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self.size, generator=self.generator).tolist()


class Augmented(Dataset[Arrays]):
    """The examples of `map`."""

    def __init__(self, arrays: Arrays) -> None:
        self.x, self.y = arrays

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Arrays:
        return augment(self.x[index], self.y[index])


class Lines(IterableDataset[tuple[np.ndarray]]):
    """The parsed lines of a file, again and again."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __iter__(self) -> Iterator[tuple[np.ndarray]]:
        while True:
            with Path(self.path).open("rb") as file:
                for line in file:
                    yield (parse(line),)


def stack(examples: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """Stay with NumPy, as JAX's documentation advises: faster than by way of tensors."""
    return tuple(np.stack(component) for component in zip(*examples, strict=True))


def loader(work: Work) -> DataLoader[Any]:
    """Batches without end; without worker processes, as two of them were slower in every case."""
    if work.kind == "text":
        return DataLoader(Lines(work.lines()), BATCH, drop_last=True, collate_fn=stack)
    x, y = work.arrays()
    indices = Endless(len(x))
    if work.kind == "map":
        rows = Augmented((x, y))
        return DataLoader(rows, BATCH, sampler=indices, drop_last=True, collate_fn=stack)
    # Whole batches are asked of the dataset: three times as fast as collecting examples.
    tensors = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return DataLoader(tensors, batch_size=None, sampler=BatchSampler(indices, BATCH, True))


def batches(work: Work) -> Iterator[tuple[np.ndarray, ...]]:
    """Batches without end, as NumPy arrays."""
    for batch in loader(work):
        yield tuple(np.asarray(component) for component in batch)


if __name__ == "__main__":
    use_devices()
    torch.set_num_threads(1)  # a second one gains little, and loses much if its core is busy
    kind = sys.argv[1]
    serve(lambda case: DevicePut(batches(Work(kind, **case))), ("torch", "jax", "jaxlib", "numpy"))
