"""A plain iterator goes on where a distributed one was, and the other way round."""

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import jaxtribute as jt
from jaxtribute.errors import InvalidArgumentError
from jaxtribute.input import distribute, distribute_from_function
from tests.input import _workers
from tests.input._workers import mirrored, run_workers, setting, with_policy

Dataset = jt.data.Dataset
Make = Callable[[], Dataset]

ON_HOST = jt.InputOptions(experimental_fetch_to_device=False)

PLAIN = (0, 0)
"""In place of the number of workers and of replicas: an iterator of the dataset itself."""

PLACES = [PLAIN, (1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]

ALL = 100  # steps: more than any dataset here has


@pytest.fixture(autouse=True)
def _short_meetings(monkeypatch):
    """Do not wait long for a worker that has failed."""
    monkeypatch.setattr(_workers, "MEETING_SECONDS", 10.0)


# --- Reading in some place -------------------------------------------------------------------


def in_json(state: Any) -> Any:
    """Return a state as it comes back from a file."""
    return json.loads(json.dumps(state))


def go_on(iterator: Any, state: Any, steps: int) -> tuple[list[Any], Any]:
    """Return the parts of each step after a state, and the state after them."""
    if state is not None:
        iterator.set_state(state)
    found: list[Any] = []
    for element in islice(iterator, steps):
        parts = element.values if isinstance(element, jt.PerReplica) else (element,)
        found.append([np.asarray(part).tolist() for part in parts])
    state = in_json(iterator.get_state())
    iterator.close()
    return found, state


def read(
    place: tuple[int, int], make: Make, state: Any, steps: int = ALL, passes: int = 0
) -> tuple[list[list[int]], Any]:
    """Return the global batches of some steps in one place, and the state after them.

    Args:
      place: the workers and the replicas of each.
      make: makes the dataset, anew on each worker.
      state: from which to go on; None at the start.
      steps: how many.
      passes: how many were begun before.
    """

    def program(place: Any) -> tuple[list[Any], Any]:
        dataset: Any = make() if place is None else distribute(make(), place, ON_HOST)
        for _ in range(passes):
            iter(dataset).close()
        return go_on(iter(dataset), state, steps)

    workers, replicas = place
    if place == PLAIN:
        found = [program(None)]
    elif workers == 1:
        found = [program(setting(1, 0, replicas))]
    else:
        found = run_workers(workers, replicas, program)
    batches = [
        # The first parts of all workers come before the second ones.
        [number for parts in zip(*of_workers, strict=True) for part in parts for number in part]
        for of_workers in zip(*[steps for steps, _ in found], strict=True)
    ]
    return batches, found[-1][1]  # where all states are good, that of the last worker is


def batches(dataset: Any, state: Any = None) -> list[list[int]]:
    """Return the global batches of a pass, or of the rest of one, on one worker."""
    found, _ = go_on(iter(dataset), state, ALL)
    return [[number for part in parts for number in part] for parts in found]


def chained(places: list[tuple[int, int]], make: Make, cuts: list[int], passes: int) -> Any:
    """Return the global batches of one place after the other, each of which reads some steps."""
    batches, state = read(places[0], make, None, cuts[0], passes)
    for place, steps in zip(places[1:], [*cuts[1:], ALL], strict=True):
        more, state = read(place, make, state, steps)
        batches += more
    return batches


# --- The same batches everywhere -------------------------------------------------------------

SOURCES = {
    "in memory": lambda size: Dataset.range(size),
    "filtered": lambda size: Dataset.range(size).filter(lambda x: x % 5 != 3),
    "generated": lambda size: Dataset.from_generator(lambda: iter(np.arange(size))),
    "unbatched": lambda size: Dataset.range(size).batch(3).unbatch(),
}
BETWEEN = {
    "mapped": lambda dataset: dataset.map(lambda x: x + 1),
    "cached": lambda dataset: dataset.map(lambda x: x).cache(),
    "shuffled": lambda dataset: dataset.shuffle(50, seed=1),
    "shuffled in windows": lambda dataset: dataset.shuffle(4, seed=1),
    "repeated": lambda dataset: dataset.repeat(2),
}
AFTER = {
    "nothing": lambda dataset: dataset,
    "mapped": lambda dataset: dataset.map(lambda x: x * 10),
    "shuffled": lambda dataset: dataset.shuffle(3, seed=2),
    "repeated": lambda dataset: dataset.repeat(2),
    "prefetched": lambda dataset: dataset.prefetch(2),
}


@st.composite
def journeys(draw: st.DrawFn) -> Any:
    size, batch = draw(st.integers(0, 20)), draw(st.integers(1, 7))
    drop = draw(st.booleans())
    source = SOURCES[draw(st.sampled_from(sorted(SOURCES)))]
    names = draw(st.lists(st.sampled_from(sorted(BETWEEN)), max_size=3))
    after = AFTER[draw(st.sampled_from(sorted(AFTER)))]

    def make() -> Dataset:
        dataset = source(size)
        for name in names:
            dataset = BETWEEN[name](dataset)
        return after(dataset.batch(batch, drop_remainder=drop))

    places = draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=2))
    places.insert(draw(st.integers(0, len(places))), PLAIN)
    cuts = [draw(st.integers(0, 4)) for _ in places[1:]]
    return make, places, cuts, draw(st.integers(0, 1))


# Not shrunk: in an example that fails, workers may wait for each other in vain.
@settings(max_examples=100, phases=(Phase.explicit, Phase.generate), report_multiple_bugs=False)
@given(journey=journeys())
def test_the_global_batches_that_follow_are_those_of_one_that_was_not_interrupted(journey):
    make, places, cuts, passes = journey
    expected, _ = read(PLAIN, make, None, ALL, passes)
    assert chained(places, make, cuts, passes) == expected


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    numbers = iter(range(21))
    names = [str(folder / f"{index}.txt") for index in range(6)]
    for name, length in zip(names, [4, 0, 7, 1, 3, 6], strict=True):
        with open(name, "w") as file:
            file.writelines(f"{next(numbers)}\n" for _ in range(length))
    return names


@pytest.mark.parametrize("policy", ["FILE", "OFF"])
@pytest.mark.parametrize("first", PLACES, ids=str)
@pytest.mark.parametrize("second", [PLAIN, (1, 2), (2, 1)], ids=str)
def test_also_those_of_workers_that_read_data_of_their_own(files, policy, first, second):
    """Each step has the examples it would have had where the pass began."""

    def make() -> Dataset:
        lines = jt.data.TextLineDataset(Dataset.list_files(files, shuffle=False))
        numbers = lines.map(lambda line: np.int64(int(line))).shuffle(8, seed=3)
        return with_policy(numbers.batch(4).repeat(2), policy)  # batches of one in the middle

    whole, _ = read(first, make, None)
    for cuts in ([3, 2], [0, 4], [3, 0], [20, 1]):
        steps = chained([first, second, PLAIN], make, cuts, 0)
        assert list(map(sorted, steps)) == list(map(sorted, whole))
        steps = chained([first, PLAIN, second], make, cuts, 0)
        assert list(map(sorted, steps)) == list(map(sorted, whole))


def test_a_state_of_another_worker_saved_before_anything_was_read(files):
    """As by a program that saves where it was restored."""

    def make() -> Dataset:
        return jt.data.TextLineDataset(files).map(lambda line: np.int64(int(line))).batch(4)

    def rest_of_both(place: Any) -> list[Any]:
        iterator = iter(distribute(make(), place, ON_HOST))
        iterator.set_state(state)
        again = iter(distribute(make(), place, ON_HOST))
        again.set_state(in_json(iterator.get_state()))
        return [go_on(each, None, ALL)[0] for each in (iterator, again)]

    _, state = read((2, 1), make, None, 2)
    for once, twice in run_workers(2, 1, rest_of_both):
        assert once == twice


@pytest.mark.parametrize("policies", [("DATA", "FILE"), ("OFF", "DATA"), ("FILE", "OFF")], ids=str)
def test_whole_batches_go_on_under_any_policy(files, policies):
    def make(policy: str) -> Make:
        lines = jt.data.TextLineDataset(files).map(lambda line: np.int64(int(line)))
        return lambda: with_policy(lines.batch(4), policy)

    first, second = policies
    expected, _ = read(PLAIN, make(first), None)
    for place in ((2, 1) if first == "DATA" else (1, 1), PLAIN):
        _, state = read(place, make(first), None, 2)
        assert list(map(sorted, read((2, 1), make(second), state)[0])) == expected[2:]


@pytest.mark.parametrize("place", [(1, 1), (1, 2), (2, 1)], ids=str)
def test_names_of_files_that_are_no_list(files, place):
    """FILE sharding divides what interleave reads, also when that is a stream."""

    def make() -> Dataset:
        names = Dataset.from_generator(lambda: iter([name.encode() for name in files]))
        lines = names.interleave(jt.data.TextLineDataset, cycle_length=2)
        return lines.map(lambda line: np.int64(int(line))).batch(4)

    expected, _ = read(PLAIN, make, None)
    assert list(map(sorted, chained([PLAIN, place], make, [2], 0))) == list(map(sorted, expected))


def test_a_dataset_without_end():
    def make() -> Dataset:
        return Dataset.range(7).shuffle(7).repeat().batch(4)

    _, state = read((1, 2), make, None, 9)
    expected, _ = read((1, 2), make, state, 5)
    middle, state = read(PLAIN, make, state, 2)
    assert middle + read((2, 1), make, state, 3)[0] == expected


# --- Epochs, and orders nobody chose ---------------------------------------------------------


def shuffled() -> Dataset:
    return Dataset.range(12).shuffle(12).batch(4)


def on_two(dataset: Dataset) -> Any:
    return distribute(dataset, setting(1, 0, 2), ON_HOST)


def itself(dataset: Dataset) -> Any:
    return dataset


KINDS = [(itself, on_two), (on_two, itself), (itself, itself)]


@pytest.mark.parametrize(("first", "second"), KINDS)
def test_the_epochs_after_it_are_those_that_would_have_followed(first, second):
    """A dataset made anew draws another seed; that of the state holds from then on."""
    dataset = first(shuffled())
    go_on(iter(dataset), None, ALL)
    _, state = go_on(iter(dataset), None, 1)
    expected = batches(dataset)

    dataset = second(shuffled())
    go_on(iter(dataset), state, ALL)
    assert batches(dataset) == expected


# --- Inside functions ------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), KINDS)
def test_what_a_function_took_in_vain_follows(first, second):
    """What a function took before it failed is put back."""
    iterator = iter(first(Dataset.range(20).batch(4)))

    @jt.function
    def step(fails: bool) -> None:
        next(iterator)
        next(iterator)
        if fails:
            raise ValueError("not now")

    step(fails=False)
    with pytest.raises(ValueError, match="not now"):
        step(fails=True)
    next(iterator)  # one of the two that were put back
    state = in_json(iterator.get_state())
    assert state["steps"] == 3
    assert batches(second(Dataset.range(20).batch(4)), state) == [
        [12, 13, 14, 15],
        [16, 17, 18, 19],
    ]


# --- States ----------------------------------------------------------------------------------


def after_two(dataset: Any) -> Any:
    return go_on(iter(dataset), None, 2)[1]


@pytest.mark.parametrize("make", [lambda: Dataset.range(20), lambda: SOURCES["filtered"](25)])
def test_a_state_without_the_number_of_elements(make):
    """As versions before this one saved it."""
    state = after_two(make().batch(4))
    del state["steps"]
    for kind in (itself, on_two):
        assert batches(kind(make().batch(4)), state) == batches(make().batch(4))[2:]


def test_a_thread_that_reads_ahead_makes_no_other_dataset():
    ahead = Dataset.range(20).batch(4).prefetch(2)
    for first, second in [(ahead, on_two(Dataset.range(20).batch(4))), (on_two(ahead), ahead)]:
        assert batches(second, after_two(first))[0] == [8, 9, 10, 11]


def test_a_state_goes_back_and_forth_unchanged():
    plain = after_two(Dataset.range(20).batch(4))
    iterator = iter(on_two(Dataset.range(20).batch(4)))
    iterator.set_state(plain)
    distributed = iterator.get_state()
    iterator = iter(Dataset.range(20).batch(4))
    iterator.set_state(distributed)
    assert iterator.get_state() == plain


def from_function(dataset: Dataset) -> Any:
    return distribute_from_function(lambda context: dataset, setting(1, 0, 1), ON_HOST)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (from_function, itself, "distribute_datasets_from_function with that function"),
        (itself, from_function, "that is not distributed, and this one has FUNCTION"),
        (lambda dataset: dataset.map(lambda x: x), on_two, "Map"),
        (lambda dataset: on_two(dataset.map(lambda x: x)), itself, "Map"),
        (lambda dataset: on_two(with_policy(dataset, "OFF")), itself, "OFF sharding"),
    ],
)
def test_what_cannot_go_on_is_told(first, second, message):
    """And the iterator is as it was."""
    state = after_two(first(Dataset.range(20).batch(4)))
    iterator = iter(second(Dataset.range(20).batch(4)))
    next(iterator)
    before = iterator.get_state()
    with pytest.raises(InvalidArgumentError, match=message):
        iterator.set_state(state)
    assert iterator.get_state() == before
    assert np.concatenate(go_on(iterator, None, 1)[0][0]).tolist() == [4, 5, 6, 7]


# --- Checkpoints -----------------------------------------------------------------------------


def test_a_checkpoint_of_parameter_servers_goes_on_in_a_synchronous_strategy_and_back(tmp_path):
    """There the coordinator reads, and passes batches to its workers."""

    def sums(coordinator: Any, iterator: Any, steps: int) -> list[int]:
        values = [coordinator.schedule(jnp.sum, args=(batch,)) for batch in islice(iterator, steps)]
        return [int(value) for value in coordinator.fetch(values)]

    def made() -> Dataset:
        return Dataset.range(40).shuffle(40).batch(4)

    strategy = mirrored(2)
    with jt.testing.LocalCluster(workers=2, ps=1) as cluster:
        coordinator = cluster.coordinator()
        iterator = iter(made())
        with pytest.raises(ValueError, match=r"cannot keep 'iterator'.* `iter\(dataset\)`"):
            jt.train.Checkpoint(iterator=iter(coordinator.create_per_worker_dataset(made())))
        first = sums(coordinator, iterator, 3)
        path = jt.train.Checkpoint(iterator=iterator).save(str(tmp_path / "ps"))
        expected = sums(coordinator, iterator, ALL)

        checkpoint = jt.train.Checkpoint(
            iterator=iter(strategy.experimental_distribute_dataset(made()))
        )
        checkpoint.restore(path).assert_consumed()
        second = [int(strategy.reduce("SUM", next(checkpoint.iterator), axis=0)) for _ in range(3)]
        path = checkpoint.save(str(tmp_path / "mirrored"))
        checkpoint.iterator.close()

        checkpoint = jt.train.Checkpoint(iterator=iter(made()))
        checkpoint.restore(path).assert_consumed()
        assert second + sums(coordinator, checkpoint.iterator, ALL) == expected
    assert sum(first + expected) == sum(range(40))
