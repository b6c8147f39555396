"""`input` in tf.data, distributed by `MirroredStrategy`: as its guides advise, or `--tuned`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.peers.input_work import (
    BATCH,
    BATCHES,
    DEVIATION,
    EXAMPLES,
    MEAN,
    REPLICAS,
    SEED,
    Proof,
    Work,
)
from benchmarks.peers.serve import serve

AUTOTUNE = tf.data.AUTOTUNE
Tensors = tuple[tf.Tensor, ...]


def parse(lines: tf.Tensor, features: int) -> Tensors:
    """A batch of lines; `tf.io.decode_csv` was slower."""
    numbers = tf.strings.to_number(tf.strings.split(lines, ",").flat_values)
    return (tf.reshape(numbers, (BATCH, features)),)


def augment(x: tf.Tensor, y: tf.Tensor) -> Tensors:
    """A batch of what `input_work.augment` does to each example."""
    x = (x - MEAN) / DEVIATION
    return tf.where((y % 2 == 1)[:, None], x[:, ::-1], x), y


def shuffled(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of all examples, without end."""
    return dataset.shuffle(EXAMPLES, SEED).repeat().batch(BATCH, drop_remainder=True)


def batches(work: Work) -> tf.data.Dataset:
    """Mapping whole batches, as the guide on performance advises: ten times as fast."""
    if work.kind == "text":
        lines = tf.data.TextLineDataset([work.lines()]).repeat().batch(BATCH, drop_remainder=True)
        return lines.map(lambda batch: parse(batch, work.features), num_parallel_calls=AUTOTUNE)
    rows = shuffled(tf.data.Dataset.from_tensor_slices(work.arrays()))
    return rows.map(augment, num_parallel_calls=AUTOTUNE) if work.kind == "map" else rows


def gathered(work: Work) -> tf.data.Dataset:
    """Shuffling indices instead of examples."""
    if work.kind == "text":
        return batches(work)
    arrays = [tf.constant(array) for array in work.arrays()]

    def of_indices(indices: tf.Tensor) -> Tensors:
        batch = tuple(tf.gather(array, indices) for array in arrays)
        return augment(*batch) if work.kind == "map" else batch

    indices = tf.data.Dataset.range(EXAMPLES)
    return shuffled(indices).map(of_indices, num_parallel_calls=AUTOTUNE)


class TfData:
    """The session of one case."""

    def __init__(self, dataset: tf.data.Dataset, strategy: tf.distribute.Strategy) -> None:
        distributed = strategy.experimental_distribute_dataset(dataset.prefetch(AUTOTUNE))
        self.iterator = iter(distributed)
        proof = Proof()
        for _ in range(BATCHES):
            batch = [strategy.experimental_local_results(part) for part in next(self.iterator)]
            for of_replica in zip(*batch, strict=True):
                proof.add(*(part.numpy() for part in of_replica))
        self.outcome = proof.total

    def reset(self) -> None:
        """Do nothing: the data has no end."""

    def run(self, steps: int) -> float:
        """Read so many batches, and return what whole epochs of them added up to."""
        for _ in range(steps):
            next(self.iterator)
        return self.outcome


class Tuned(TfData):
    """Reads all batches within one call of a compiled function."""

    def __init__(self, dataset: tf.data.Dataset, strategy: tf.distribute.Strategy) -> None:
        super().__init__(dataset, strategy)

        @tf.function
        def read(iterator: object, steps: tf.Tensor) -> None:
            for _ in tf.range(steps):
                next(iterator)

        self.read = read

    def run(self, steps: int) -> float:
        """Read so many batches, and return what whole epochs of them added up to."""
        self.read(self.iterator, tf.constant(steps))
        return self.outcome


def main(kind: str, tuned: bool) -> None:
    """Make the strategy on two logical CPU devices, and serve."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(REPLICAS)]
    tf.config.set_logical_device_configuration(cpu, logical)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(REPLICAS)])

    def make(case: Mapping[str, int]) -> TfData:
        work = Work(kind, **case)
        return Tuned(gathered(work), strategy) if tuned else TfData(batches(work), strategy)

    serve(make, ("tensorflow-cpu", "numpy"))


if __name__ == "__main__":
    main(sys.argv[1], "--tuned" in sys.argv[2:])
