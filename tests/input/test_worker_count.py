"""What is random does not depend on how many workers share the input."""

from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.data.experimental import SHARD_HINT
from jaxtribute.input import distribute
from tests.input._workers import run_workers, setting, with_policy

Dataset = jt.data.Dataset

ON_HOST = jt.InputOptions(experimental_fetch_to_device=False)
WORKERS = [1, 2, 5]


def noisy(x: Any, key: jax.Array) -> Any:
    """Return an example with a number drawn for it."""
    drawn = np.asarray(jax.random.key_data(key))[-1]
    return np.array([int(x), int(drawn)], np.int64)


def shuffled(examples: Dataset, buffer_size: int = 100) -> Dataset:
    return examples.shuffle(buffer_size, seed=5)


def random_map(examples: Dataset) -> Dataset:
    return examples.map(noisy, seed=7)


# --- DATA: the same global batches -----------------------------------------------------------


def global_batches(dataset: Dataset, workers: int, replicas: int = 1) -> list[list[Any]]:
    """Return what all workers together get in each step, in the order of the global batch."""
    shared = [
        list(distribute(dataset, setting(workers, w, replicas), ON_HOST)) for w in range(workers)
    ]
    batches = []
    for step in zip(*shared, strict=True):
        pieces = [_components(element) for element in step]
        dealt = [pieces[i % workers][i // workers] for i in range(workers * replicas)]
        batches.append(np.concatenate(dealt).tolist())
    return batches


def _components(element: Any) -> tuple[Any, ...]:
    return element.values if isinstance(element, jt.PerReplica) else (element,)


PIPELINES = {
    "shuffle": lambda: shuffled(Dataset.range(23)).batch(4),
    "shuffle in windows": lambda: shuffled(Dataset.range(23), 6).batch(4),
    "shuffle, again each time": lambda: shuffled(Dataset.range(11)).repeat(2).batch(4),
    "shuffle batches": lambda: shuffled(Dataset.range(23).batch(4)),
    "shuffle a stream": lambda: shuffled(Dataset.range(23).filter(lambda x: x % 3), 6).batch(4),
    "shuffle a stream again": lambda: (
        shuffled(Dataset.range(11).filter(lambda x: x % 3)).repeat(2).batch(4)
    ),
    "map": lambda: random_map(Dataset.range(23)).batch(4),
    "map in threads": lambda: Dataset.range(23).map(noisy, 3, seed=7).batch(4),
    "map a stream": lambda: random_map(Dataset.range(23).filter(lambda x: x % 3)).batch(4),
    "map, again each time": lambda: random_map(Dataset.range(11)).repeat(2).batch(4),
    "map in both parts": lambda: (
        random_map(Dataset.range(9).concatenate(Dataset.range(9))).shuffle(18, seed=1).batch(4)
    ),
    "map, then shuffle": lambda: shuffled(random_map(Dataset.range(23))).batch(4),
    "shuffle, then map": lambda: random_map(shuffled(Dataset.range(23))).batch(4),
    "map what is unbatched": lambda: random_map(Dataset.range(23).batch(5).unbatch()).batch(
        4, drop_remainder=True
    ),
    "map what is interleaved": lambda: random_map(
        Dataset.range(4).interleave(lambda x: Dataset.range(x, x + 5), cycle_length=3)
    ).batch(4),
    "cache": lambda: shuffled(random_map(Dataset.range(11)).cache()).repeat(2).batch(4),
}


@pytest.mark.parametrize("pipeline", list(PIPELINES.values()), ids=list(PIPELINES))
class TestDataSharding:
    def test_every_number_of_workers_gets_the_same_batches(self, pipeline):
        alone = global_batches(pipeline(), 1)
        assert alone == [batch.tolist() for batch in pipeline()]
        assert global_batches(pipeline(), 2) == alone
        assert global_batches(pipeline(), 5) == alone

    def test_every_number_of_replicas_does_too(self, pipeline):
        alone = global_batches(pipeline(), 1)
        assert global_batches(pipeline(), 1, replicas=3) == alone
        assert global_batches(pipeline(), 2, replicas=2) == alone


def test_each_epoch_is_the_same_for_every_number_of_workers():
    """And different from the epoch before it."""

    def epochs(workers: int) -> list[Any]:
        pipeline = random_map(shuffled(Dataset.range(12))).batch(4)
        shared = [distribute(pipeline, setting(workers, w, 1), ON_HOST) for w in range(workers)]
        found = []
        for _ in range(3):
            steps = zip(*shared, strict=True)
            found.append(
                [np.concatenate([np.asarray(x) for x in _flat(s)]).tolist() for s in steps]
            )
        return found

    def _flat(step: Any) -> list[Any]:
        return [part for element in step for part in _components(element)]

    first, second, third = epochs(1)
    assert epochs(2) == epochs(5) == [first, second, third]
    assert first != second != third


def test_examples_are_given_different_numbers():
    batches = global_batches(random_map(Dataset.range(23)).repeat(2).batch(4), 5)
    drawn = [number for batch in batches for _, number in batch]
    assert len(set(drawn)) == len(drawn)


# --- FILE and HINT: the same examples --------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """Write six files of different lengths, one of them empty."""
    numbers = iter(range(100))
    names = []
    for index, length in enumerate([4, 0, 7, 1, 3, 5]):
        path = tmp_path / f"part-{index}.txt"
        path.write_text("".join(f"{next(numbers)}\n" for _ in range(length)))
        names.append(str(path))
    return names


def examples(dataset: Dataset, workers: int) -> list[tuple[Any, ...]]:
    """Return what all workers together get in a pass, sorted."""

    def read(place: Any) -> list[Any]:
        found = []
        for element in distribute(dataset, place, ON_HOST):
            found += [tuple(row) for part in _components(element) for row in part.tolist()]
        return found

    return sorted(example for found in run_workers(workers, 1, read) for example in found)


def _by_file(lines: Dataset) -> Dataset:
    return with_policy(random_map(lines).batch(4), "FILE")


FILE_PIPELINES = {
    "a list of files": lambda names: _by_file(jt.data.TextLineDataset(names)),
    "files in random order": lambda names: _by_file(
        jt.data.TextLineDataset(shuffled(Dataset.list_files(names, shuffle=False)))
    ),
    "list_files": lambda names: _by_file(
        jt.data.TextLineDataset(Dataset.list_files(names, shuffle=True, seed=4))
    ),
    "names in memory": lambda names: _by_file(
        Dataset.from_tensor_slices(names).interleave(jt.data.TextLineDataset, cycle_length=1)
    ),
    "files in turn": lambda names: _by_file(
        Dataset.list_files(names, shuffle=False).interleave(jt.data.TextLineDataset, cycle_length=3)
    ),
    "shuffled lines": lambda names: _by_file(shuffled(jt.data.TextLineDataset(names), 6)),
    "repeated lines": lambda names: _by_file(jt.data.TextLineDataset(names).repeat(2)),
    "two lists of files": lambda names: _by_file(
        jt.data.TextLineDataset(names).concatenate(jt.data.TextLineDataset(names))
    ),
}


@pytest.mark.parametrize("pipeline", list(FILE_PIPELINES.values()), ids=list(FILE_PIPELINES))
def test_file_sharding_gives_every_number_of_workers_the_same_examples(pipeline, files):
    alone = examples(pipeline(files), 1)
    assert set(number for number, _ in alone) == set(range(20))
    assert examples(pipeline(files), 2) == alone
    assert examples(pipeline(files), 5) == alone


def test_the_lines_of_all_files_are_given_different_numbers(files):
    drawn = [number for _, number in examples(FILE_PIPELINES["a list of files"](files), 5)]
    assert len(set(drawn)) == len(drawn) == 20


HINT_PIPELINES = {
    "map after it": lambda hint: random_map(hint(Dataset.range(23))),
    "map before it": lambda hint: hint(random_map(Dataset.range(23))),
    "shuffle before it": lambda hint: random_map(hint(shuffled(Dataset.range(23)))),
    "shuffle after it": lambda hint: random_map(shuffled(hint(Dataset.range(23)))),
    "a stream": lambda hint: random_map(hint(Dataset.range(23).filter(lambda x: x % 3))),
    "repeated": lambda hint: random_map(hint(Dataset.range(11)).repeat(2)),
}


@pytest.mark.parametrize("pipeline", list(HINT_PIPELINES.values()), ids=list(HINT_PIPELINES))
def test_hint_sharding_gives_every_number_of_workers_the_same_examples(pipeline):
    dataset = with_policy(pipeline(lambda d: d.shard(SHARD_HINT, SHARD_HINT)).batch(4), "HINT")
    alone = examples(dataset, 1)
    assert examples(dataset, 2) == alone
    assert examples(dataset, 5) == alone


def test_without_sharding_every_worker_gets_the_same_examples():
    dataset = with_policy(random_map(shuffled(Dataset.range(11))).batch(4), "OFF")
    alone = Counter(examples(dataset, 1))
    for workers in (2, 5):
        assert Counter(examples(dataset, workers)) == Counter(
            {example: workers for example in alone}
        )


# --- Orders nobody chose ---------------------------------------------------------------------


def test_workers_agree_on_an_order_that_has_no_seed():
    """Each of them makes the dataset itself, as processes do."""

    def read(place: Any) -> list[Any]:
        dataset = Dataset.range(30).shuffle(30).batch(6)
        shared = distribute(dataset, place, ON_HOST)
        return [_components(element)[0].tolist() for _ in range(2) for element in shared]

    for workers in (2, 3):
        first, second = np.split(np.array(run_workers(workers, 1, read)), 2, axis=1)
        assert sorted(first.flatten().tolist()) == list(range(30))
        assert sorted(second.flatten().tolist()) == list(range(30))
