"""Every example is delivered exactly once in an epoch, whatever shares the input.

Sizes, batch sizes, numbers of workers and replicas, policies and sources are drawn at random.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import jaxtribute as jt
from jaxtribute.data.experimental import SHARD_HINT
from jaxtribute.input import InputSetting, distribute, distribute_from_function
from tests.input import _workers
from tests.input._workers import mirrored, run_workers, with_policy

Dataset = jt.data.Dataset

# Elements stay in host memory: what is brought to the devices is the same, and takes longer.
ON_HOST = jt.InputOptions(experimental_fetch_to_device=False)

FEATURES = np.linspace(-1, 1, 60 * 3, dtype=np.float32).reshape(60, 3)


@pytest.fixture(autouse=True)
def _short_meetings(monkeypatch):
    """Do not wait long for a worker that has failed."""
    monkeypatch.setattr(_workers, "MEETING_SECONDS", 10.0)


def settings(max_examples: int) -> Any:
    # Not shrunk: in an example that fails, workers may wait for each other in vain.
    return hypothesis_settings(
        max_examples=max_examples,
        phases=(Phase.explicit, Phase.generate),
        report_multiple_bugs=False,
    )


class Case(NamedTuple):
    """A dataset, and the workers that share it."""

    size: int
    batch: int
    workers: int
    replicas: int  # of each worker
    drop_remainder: bool
    source: str
    shuffle: int  # the size of its buffer; 0 for none
    repeat: str  # before the batches are made, after it, or not at all

    @property
    def times(self) -> int:
        """How often each example is in a pass."""
        return 1 if self.repeat == "not" else 2

    def batched(self, examples: Dataset) -> Dataset:
        """Return examples as the rest of the case wants them."""
        if self.shuffle:
            examples = examples.shuffle(self.shuffle, seed=3)
        if self.repeat == "before":
            examples = examples.repeat(2)
        batches = examples.batch(self.batch, self.drop_remainder)
        return batches.repeat(2) if self.repeat == "after" else batches

    def examples(self) -> Dataset:
        """Return numbered examples, from memory or from something that has to be read in order."""
        if self.source == "table":
            return Dataset.from_tensor_slices(_examples(self.size))
        if self.source == "generator":
            return Dataset.from_generator(
                lambda: ({"x": FEATURES[i], "i": np.int64(i)} for i in range(self.size)),
                output_signature={
                    "x": jt.TensorSpec((3,), np.float32),
                    "i": jt.TensorSpec((), np.int64),
                },
            )
        return Dataset.from_tensor_slices(_examples(self.size)).filter(lambda example: True)


def _examples(size: int) -> dict[str, Any]:
    return {"x": FEATURES[:size], "i": np.arange(size)}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    workers = draw(st.integers(1, 4))
    return Case(
        size=draw(st.integers(0, 60)),
        batch=draw(st.integers(1, 20)),
        workers=workers,
        replicas=draw(st.integers(1, 8 // workers)),
        drop_remainder=draw(st.booleans()),
        source=draw(st.sampled_from(["table", "filter", "generator"])),
        shuffle=draw(st.sampled_from([0, 7, 60])),
        repeat=draw(st.sampled_from(["not", "before", "after"])),
    )


# --- What is delivered -----------------------------------------------------------------------

Steps = list[list[dict[str, np.ndarray]]]  # of one worker: step, replica


def delivered(case: Case, distributed: Any) -> list[Steps]:
    """Return what each worker gets in one pass, worker by worker."""

    def read(setting: InputSetting) -> Steps:
        dataset = distributed(setting)
        for element in (steps := list(dataset)):
            _check_spec(dataset.element_spec, element)
        return [_pieces(element) for element in steps]

    return run_workers(case.workers, case.replicas, read)


def _check_spec(spec: Any, element: Any) -> None:
    for name in ("x", "i"):
        assert spec[name].is_compatible_with(element[name])


def _pieces(element: dict[str, Any]) -> list[dict[str, np.ndarray]]:
    components = [
        leaf.values if isinstance(leaf, jt.PerReplica) else (leaf,) for leaf in element.values()
    ]
    return [dict(zip(element, piece, strict=True)) for piece in zip(*components, strict=True)]


def ids(steps: Steps) -> list[int]:
    """Return the numbers of the examples a worker gets, in order."""
    return [number for step in steps for piece in step for number in piece["i"].tolist()]


def loss_of(x: Any) -> Any:
    """Return a loss for each example."""
    return (x * x).sum(axis=1) + x[:, 0]


def mean_loss(workers: list[Steps]) -> float:
    """Return the mean loss of a pass, as the reduction of sums over all replicas gives it."""
    pieces = [piece for steps in workers for step in steps for piece in step]
    total = sum(loss_of(piece["x"].astype(np.float64)).sum() for piece in pieces)
    return total / max(1, sum(len(piece["x"]) for piece in pieces))


def ids_of(batches: Dataset) -> list[int]:
    """Return the numbers of the examples of a dataset that is not distributed."""
    return [number for batch in batches for number in batch["i"].tolist()]


def check_pieces(case: Case, workers: list[Steps]) -> None:
    """Check what holds for every policy: equally many steps, and parts that fit each other."""
    assert len({len(steps) for steps in workers}) == 1, "the workers make equally many steps"
    for steps in workers:
        for step in steps:
            assert len(step) == case.replicas
            for piece in step:
                count = len(piece["i"])
                assert (piece["x"].shape, piece["x"].dtype) == ((count, 3), np.float32)
                assert (piece["i"].shape, piece["i"].dtype) == ((count,), np.int64)
                assert np.array_equal(piece["x"], FEATURES[piece["i"]])
    for number in range(len(workers[0])):
        sizes = [len(piece["i"]) for steps in workers for piece in steps[number]]
        # One replica gets the batches as they are; several share one.
        assert sum(sizes) <= case.batch


def check_losses(workers: list[Steps], expected: list[int]) -> None:
    """Check that the mean loss is what one replica would find for these examples."""
    alone = loss_of(FEATURES[expected].astype(np.float64))
    assert np.isclose(mean_loss(workers), alone.mean() if expected else 0.0, rtol=1e-12)


# --- The policies ----------------------------------------------------------------------------


@settings(max_examples=100)
@given(case=cases())
@example(Case(0, 4, 2, 2, False, "table", 0, "not"))
@example(Case(1, 8, 4, 2, False, "generator", 0, "not"))
@example(Case(60, 1, 4, 2, False, "table", 60, "before"))
def test_data_sharding_delivers_each_example_once(case):
    dataset = case.batched(case.examples())
    workers = delivered(case, lambda setting: distribute(dataset, setting, ON_HOST))
    check_pieces(case, workers)
    expected = ids_of(case.batched(case.examples()))
    found = [number for steps in workers for number in ids(steps)]
    assert Counter(found) == Counter(expected)
    if not case.drop_remainder:
        assert Counter(found) == Counter(list(range(case.size)) * case.times)
    check_losses(workers, expected)
    # All workers together get each global batch, in the step in which one worker would.
    replicas = case.workers * case.replicas
    for number, batch in enumerate(case.batched(case.examples())):
        dealt = [workers[i % case.workers][number][i // case.workers] for i in range(replicas)]
        assert np.array_equal(np.concatenate([piece["i"] for piece in dealt]), batch["i"])


@settings(max_examples=100)
@given(case=cases())
@example(Case(0, 4, 3, 2, False, "table", 0, "not"))
@example(Case(1, 2, 4, 2, True, "generator", 0, "not"))
def test_hint_sharding_delivers_each_example_once(case):
    hinted = case.batched(case.examples().shard(SHARD_HINT, SHARD_HINT))
    dataset = with_policy(hinted, "HINT")
    workers = delivered(case, lambda setting: distribute(dataset, setting, ON_HOST))
    check_pieces(case, workers)
    own = [
        ids_of(case.batched(case.examples().shard(case.workers, worker)))
        for worker in range(case.workers)
    ]
    assert [ids(steps) for steps in workers] == own
    if not case.drop_remainder:
        found = Counter(number for numbers in own for number in numbers)
        assert found == Counter(list(range(case.size)) * case.times)
    check_losses(workers, [number for numbers in own for number in numbers])


@contextmanager
def files(case: Case, more_files: int, seed: int) -> Iterator[list[str]]:
    """Write the numbers of the examples to text files, some of which may be empty."""
    count = case.workers + more_files
    numbers = np.random.default_rng(seed).integers(0, count, case.size)
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder) / f"{number}.txt") for number in range(count)]
        for number, name in enumerate(names):
            lines = [f"{i}\n" for i in np.flatnonzero(numbers == number)]
            Path(name).write_text("".join(lines))
        yield names


def parsed(line: bytes) -> dict[str, Any]:
    return {"x": FEATURES[int(line)], "i": np.int64(line)}


@settings(max_examples=100)
@given(
    case=cases(),
    more_files=st.integers(0, 3),
    seed=st.integers(0, 100),
    policy=st.sampled_from(["FILE", "AUTO"]),
)
@example(Case(0, 4, 3, 2, False, "table", 0, "not"), 0, 0, "FILE")
@example(Case(1, 2, 4, 2, False, "table", 7, "after"), 0, 0, "FILE")
def test_file_sharding_delivers_each_example_once(case, more_files, seed, policy):
    with files(case, more_files, seed) as names:

        def read(names: list[str]) -> Dataset:
            return case.batched(jt.data.TextLineDataset(names).map(parsed))

        dataset = with_policy(read(names), policy)
        workers = delivered(case, lambda setting: distribute(dataset, setting, ON_HOST))
        check_pieces(case, workers)
        own = [ids_of(read(names[worker :: case.workers])) for worker in range(case.workers)]
    assert [ids(steps) for steps in workers] == own
    if not case.drop_remainder:
        found = Counter(number for numbers in own for number in numbers)
        assert found == Counter(list(range(case.size)) * case.times)
    check_losses(workers, [number for numbers in own for number in numbers])


@settings(max_examples=40)
@given(case=cases())
def test_without_sharding_each_worker_gets_each_example_once(case):
    dataset = with_policy(case.batched(case.examples()), "OFF")
    workers = delivered(case, lambda setting: distribute(dataset, setting, ON_HOST))
    check_pieces(case, workers)
    expected = ids_of(case.batched(case.examples()))
    assert [ids(steps) for steps in workers] == [expected] * case.workers


@settings(max_examples=60)
@given(case=cases())
def test_datasets_from_a_function_are_delivered_once(case):
    def made(context: jt.InputContext) -> Dataset:
        own = case.examples().shard(context.num_input_pipelines, context.input_pipeline_id)
        return case.batched(own)

    workers = delivered(case, lambda setting: distribute_from_function(made, setting, ON_HOST))
    assert len({len(steps) for steps in workers}) == 1
    contexts = [jt.InputContext(case.workers, worker) for worker in range(case.workers)]
    assert [ids(steps) for steps in workers] == [ids_of(made(context)) for context in contexts]


@given(case=cases())
@settings(max_examples=40)
def test_each_epoch_delivers_each_example_once(case):
    dataset = case.batched(case.examples())

    def read(setting: InputSetting) -> list[Steps]:
        shared = distribute(dataset, setting, ON_HOST)
        return [[_pieces(element) for element in shared] for _ in range(3)]

    workers = run_workers(case.workers, case.replicas, read)
    for epoch in range(3):
        found = Counter(number for epochs in workers for number in ids(epochs[epoch]))
        assert len(found) <= case.size
        assert sum(found.values()) == len(ids_of(dataset))
        assert set(found.values()) <= {1, case.times}
        if not case.drop_remainder:
            assert set(found.values()) <= {case.times}


# --- Empty parts -----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["DATA", "FILE", "HINT", "OFF"])
@pytest.mark.parametrize("on_devices", [True, False])
def test_empty_parts_keep_type_and_shape(policy, on_devices, tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("7\n" if number == 0 else "")
    lines = jt.data.TextLineDataset([tmp_path / f"{number}.txt" for number in range(3)])

    def parse(line: bytes) -> tuple[Any, ...]:
        value = int(line)
        return (
            np.full((2, 3), value, np.float32),
            {"half": np.float16(value), "flags": np.array([True, False])},
            line,
        )

    examples = lines.map(parse)
    if policy == "HINT":
        examples = examples.shard(SHARD_HINT, SHARD_HINT)
    dataset = with_policy(examples.batch(2), policy)
    options = None if on_devices else ON_HOST

    def read(setting: InputSetting) -> list[Any]:
        return list(distribute(dataset, setting, options))

    sizes: list[int] = []
    for steps in run_workers(3, 2, read):
        for grid, leaves, lines in steps:
            for replica in range(2):
                x, text = grid.values[replica], lines.values[replica]
                size = len(x)
                sizes.append(size)
                assert (x.shape, x.dtype) == ((size, 2, 3), np.float32)
                half, flags = (leaves[name].values[replica] for name in ("half", "flags"))
                assert (half.shape, half.dtype) == ((size,), np.float16)
                assert (flags.shape, flags.dtype) == ((size, 2), bool)
                assert (text.shape, text.dtype) == ((size,), object)
    assert sum(sizes) == (3 if policy == "OFF" else 1)
    assert 0 in sizes


# --- Through a strategy ----------------------------------------------------------------------


def epoch_mean(strategy: jt.Strategy, dataset: Any) -> float:
    """Return the mean loss of an epoch, computed as users do."""
    total, count = 0.0, 0
    for element in strategy.experimental_distribute_dataset(dataset):
        losses = strategy.run(loss_of, args=(element["x"],))
        size = sum(len(part) for part in strategy.experimental_local_results(element["i"]))
        total += float(strategy.reduce("MEAN", losses, axis=0)) * size
        count += size
    return total / count


@pytest.mark.parametrize("replicas", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("size", "batch", "drop_remainder"), [(24, 8, False), (13, 5, False), (13, 5, True)]
)
@pytest.mark.parametrize("source", ["table", "filter"])
def test_the_mean_loss_of_an_epoch_is_that_of_one_replica(
    replicas, size, batch, drop_remainder, source
):
    case = Case(size, batch, 1, replicas, drop_remainder, source, 60, "not")
    expected = loss_of(FEATURES[ids_of(case.batched(case.examples()))]).mean()
    found = epoch_mean(mirrored(replicas), case.batched(case.examples()))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("replicas", [2, 3])
def test_training_ends_where_one_replica_ends(replicas):
    """Gradient descent over two epochs with short last batches."""

    def train(strategy: jt.Strategy) -> np.ndarray:
        with strategy.scope():
            w = jt.Variable(jnp.zeros(3), aggregation=jt.VariableAggregation.SUM)
        examples = Dataset.from_tensor_slices((FEATURES[:10], FEATURES[:10].sum(axis=1)))
        dataset = examples.shuffle(10, seed=1).batch(4)

        def step(x, y, size):
            w.assign_sub(0.1 * ((x @ w.value() - y) @ x) / size)

        distributed = strategy.experimental_distribute_dataset(dataset)
        for _ in range(2):
            for x, y in distributed:
                parts = strategy.experimental_local_results(x)
                strategy.run(step, args=(x, y, jnp.float32(sum(map(len, parts)))))
        return np.asarray(w.value())

    np.testing.assert_allclose(train(mirrored(replicas)), train(mirrored(1)), rtol=1e-5)
