"""`input` in Grain, followed by `jax.device_put`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
from absl import flags

from benchmarks.peers.input_device_put import DevicePut, use_devices
from benchmarks.peers.input_work import BATCH, SEED, Arrays, Work, augment, parse
from benchmarks.peers.serve import serve

# Two worker processes were faster than none, one, or any number of threads in all three cases:
# an element costs Grain some 10 us of Python, which threads only pass to and fro.
_WORKERS = grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=4)
_NO_THREADS = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


class Rows:
    """A random access source of examples."""

    def __init__(self, arrays: Arrays) -> None:
        self.x, self.y = arrays

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Arrays:
        return self.x[index], self.y[index]


class Gather:
    """The examples of a batch of indices: faster than `Rows`, if nothing is done to each."""

    def __init__(self, arrays: Arrays) -> None:
        self.x, self.y = arrays

    def __call__(self, indices: np.ndarray) -> Arrays:
        return self.x[indices], self.y[indices]


class Lines(grain.IterDataset):
    """The lines of a file; of several workers, each keeps its share."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.share = path, slice(0, None, 1)

    def set_slice(self, share: slice, sequential_slice: bool = False) -> None:
        self.share = share

    def __iter__(self) -> LinesIterator:
        return LinesIterator(self.path, self.share)


class LinesIterator(grain.DatasetIterator):
    """Reads a share of the lines of a file."""

    def __init__(self, path: str, share: slice) -> None:
        super().__init__()
        self.path, self.share = path, share
        self.set_state({"read": 0})

    def __next__(self) -> bytes:
        line = next(self.lines)
        self.read += 1
        return line

    def get_state(self) -> dict[str, int]:
        return {"read": self.read}

    def set_state(self, state: dict[str, int]) -> None:
        self.read = state["read"]
        start = self.share.start + self.read * self.share.step
        file = Path(self.path).open("rb")  # noqa: SIM115 - it is read as long as this lives
        self.lines = itertools.islice(file, start, None, self.share.step)


def augment_pair(example: Arrays) -> Arrays:
    """What `augment` does, as Grain passes a pair as one argument."""
    return augment(*example)


def single(x: np.ndarray) -> tuple[np.ndarray]:
    """A batch of one component, as a tuple like the others."""
    return (x,)


def dataset(work: Work) -> grain.IterDataset:
    """Batches without end."""
    if work.kind == "text":
        lines = grain.experimental.RepeatIterDataset(Lines(work.lines())).map(parse)
        return lines.batch(BATCH, drop_remainder=True).map(single)
    arrays = work.arrays()
    if work.kind == "arrays":
        indices = grain.MapDataset.range(len(arrays[0])).shuffle(SEED).repeat()
        batches = indices.batch(BATCH, drop_remainder=True).map(Gather(arrays))
    else:
        rows = grain.MapDataset.source(Rows(arrays)).shuffle(SEED).repeat()
        batches = rows.map(augment_pair).batch(BATCH, drop_remainder=True)
    return batches.to_iter_dataset(_NO_THREADS)


def batches(work: Work) -> Iterator[Any]:
    """Batches without end, as NumPy arrays made by worker processes."""
    return iter(dataset(work).mp_prefetch(_WORKERS))


if __name__ == "__main__":
    flags.FLAGS(sys.argv[:1])  # or Grain refuses to start worker processes
    use_devices()
    kind = sys.argv[1]
    serve(lambda case: DevicePut(batches(Work(kind, **case))), ("grain", "jax", "jaxlib", "numpy"))
