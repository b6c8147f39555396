"""An iterator goes on exactly where its state was saved, whoever goes on."""

import json
import subprocess
import textwrap
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import jaxtribute as jt
from jaxtribute.data.experimental import SHARD_HINT
from jaxtribute.errors import InvalidArgumentError
from jaxtribute.input import distribute, distribute_from_function
from tests._interpreter import STRICT_PYTHON
from tests.input import _workers
from tests.input._workers import mirrored, run_workers, setting, with_policy

Dataset = jt.data.Dataset

# Elements stay in host memory, which is faster, where it does not matter where they are.
ON_HOST = jt.InputOptions(experimental_fetch_to_device=False)

POLICIES = ["DATA", "FILE", "HINT", "OFF", "FUNCTION"]


@pytest.fixture(autouse=True)
def _short_meetings(monkeypatch):
    """Do not wait long for a worker that has failed."""
    monkeypatch.setattr(_workers, "MEETING_SECONDS", 10.0)


# --- Elements, states, workers ---------------------------------------------------------------


def ids(element: Any) -> list[int]:
    """Return the examples of an element; an example is a number here."""
    parts = element.values if isinstance(element, jt.PerReplica) else (element,)
    return [number for part in parts for number in np.atleast_1d(part).tolist()]


def rest(iterator: Any) -> list[list[int]]:
    """Return the examples of each step to come."""
    return [ids(element) for element in iterator]


def in_json(state: Any) -> Any:
    """Return a state as it comes back from a file, in a form that is one of its own."""
    return json.loads(json.dumps(state))


def states_of_a_pass(iterator: Any) -> tuple[list[Any], list[list[int]]]:
    """Return the state before each step and at the end, and the examples of each step."""
    states, steps = [in_json(iterator.get_state())], []
    for element in iterator:
        steps.append(ids(element))
        states.append(in_json(iterator.get_state()))
    return states, steps


def together(workers: list[list[list[int]]]) -> list[list[int]]:
    """Return the examples that all workers get in each step."""
    return [
        sorted(number for step in steps for number in step) for steps in zip(*workers, strict=True)
    ]


def alone(dataset: Any, replicas: int = 2) -> jt.DistributedDataset:
    """Return a dataset as the only worker gets it."""
    return distribute(dataset, setting(1, 0, replicas), ON_HOST)


class Input:
    """Makes a dataset anew for each worker, as each process does; 21 examples, batches of 4."""

    def __init__(self, policy: str, files: list[str]) -> None:
        self.policy = policy
        self._files = files

    def __call__(self, place: Any) -> jt.DistributedDataset:
        if self.policy == "FUNCTION":
            return distribute_from_function(self._of_worker, place, ON_HOST)
        return distribute(with_policy(self._dataset(), self.policy), place, ON_HOST)

    def _dataset(self) -> Dataset:
        if self.policy == "FILE":
            examples = jt.data.TextLineDataset(self._files).map(lambda line: np.int64(int(line)))
        else:
            examples = Dataset.range(21)
        if self.policy == "HINT":
            examples = examples.shard(SHARD_HINT, SHARD_HINT)
        return examples.shuffle(8, seed=3).batch(4)

    def _of_worker(self, context: jt.InputContext) -> Dataset:
        own = Dataset.range(21).shard(context.num_input_pipelines, context.input_pipeline_id)
        return own.shuffle(8, seed=3).batch(2)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    numbers = iter(range(21))
    names = []
    for index, length in enumerate([4, 0, 7, 1, 3, 6]):
        names.append(str(folder / f"{index}.txt"))
        (folder / f"{index}.txt").write_text("".join(f"{next(numbers)}\n" for _ in range(length)))
    return names


@pytest.fixture(params=POLICIES)
def source(request, files):
    return Input(request.param, files)


def read_and_save(source: Any, workers: int, replicas: int) -> tuple[list[Any], list[list[int]]]:
    """Return the states of all workers before each step and at the end, and all they get."""
    found = run_workers(workers, replicas, lambda place: states_of_a_pass(iter(source(place))))
    states = [list(of_a_step) for of_a_step in zip(*[states for states, _ in found], strict=True)]
    return states, together([steps for _, steps in found])


def resume(source: Any, workers: int, replicas: int, states: list[Any]) -> list[list[int]]:
    """Return what workers get that go on from states, of which there may be more or fewer."""

    def go_on(place: Any) -> list[list[int]]:
        iterator = iter(source(place))
        iterator.set_state(states[place.context.input_pipeline_id % len(states)])
        return rest(iterator)

    return together(run_workers(workers, replicas, go_on))


# --- The same workers ------------------------------------------------------------------------

PIPELINES = {
    "memory": lambda: Dataset.range(14).batch(4),
    "memory, shuffled": lambda: Dataset.range(14).shuffle(14, seed=1).repeat(2).batch(4),
    "memory, in windows": lambda: Dataset.range(14).shuffle(5, seed=1).batch(4).repeat(2),
    "batches mapped": lambda: Dataset.range(14).batch(4).map(lambda x: x + 1),
    "filter": lambda: Dataset.range(20).filter(lambda x: x % 3).shuffle(5, seed=1).batch(4),
    "repeated stream": lambda: Dataset.range(7).filter(lambda x: x % 3).repeat(3).batch(4),
    "map in threads": lambda: Dataset.range(14).filter(bool).map(lambda x: x, 3).batch(4),
    "generator": lambda: Dataset.from_generator(lambda: iter(range(14))).batch(4),
    "iterable": lambda: [np.arange(4), np.arange(4, 8), np.arange(8, 10)],
    "unbatched": lambda: Dataset.range(14).batch(3).unbatch().batch(4),
    "interleaved": lambda: (
        Dataset.range(4).interleave(lambda x: Dataset.range(x, 4 * x), cycle_length=3).batch(4)
    ),
    "zipped": lambda: Dataset.zip(Dataset.range(14), Dataset.range(14)).map(max).batch(4),
    "concatenated": lambda: Dataset.range(6).concatenate(Dataset.range(9)).batch(4),
    "part": lambda: Dataset.range(30).filter(bool).skip(3).take(20).shard(2, 1).batch(4),
    "prefetched": lambda: (
        Dataset.range(14).map(lambda x: x).prefetch(3).map(lambda x: x).batch(4).prefetch(2)
    ),
    "cached": lambda: Dataset.range(14).filter(bool).cache().map(lambda x: x).batch(4),
    "cached and repeated": lambda: Dataset.range(6).map(lambda x: x).cache().repeat(2).batch(4),
    "remainder dropped": lambda: Dataset.range(14).filter(bool).batch(4, drop_remainder=True),
}


@pytest.mark.parametrize("pipeline", list(PIPELINES.values()), ids=list(PIPELINES))
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_goes_on_from_each_step(pipeline, replicas):
    states, steps = states_of_a_pass(iter(alone(pipeline(), replicas)))
    for done, state in enumerate(states):
        iterator = iter(alone(pipeline(), replicas))
        iterator.set_state(state)
        assert iterator.get_state() == state
        assert rest(iterator) == steps[done:]


@pytest.mark.parametrize("layout", [(1, 2), (2, 1), (2, 2), (3, 1)], ids=str)
def test_goes_on_from_each_step_on_the_same_workers(source, layout):
    states, steps = read_and_save(source, *layout)
    for done, state in enumerate(states):
        assert resume(source, *layout, state) == steps[done:]


def test_every_worker_can_go_on_from_the_state_of_the_first(source):
    """As from a checkpoint that the first worker has written."""
    states, steps = read_and_save(source, 3, 1)
    for done in (1, 3):
        assert resume(source, 3, 1, states[done][:1]) == steps[done:]


def test_one_dataset_for_each_replica():
    options = jt.InputOptions(
        experimental_replication_mode=jt.InputReplicationMode.PER_REPLICA,
        experimental_fetch_to_device=False,
    )

    def make(context: jt.InputContext) -> Dataset:
        return Dataset.range(10 * context.input_pipeline_id, 35).shuffle(40, seed=1).batch(4)

    dataset = distribute_from_function(make, setting(1, 0, 3), options)
    states, steps = states_of_a_pass(iter(dataset))
    for done, state in enumerate(states):
        iterator = iter(distribute_from_function(make, setting(1, 0, 3), options))
        iterator.set_state(state)
        assert rest(iterator) == steps[done:]


def test_on_devices_through_a_strategy():
    strategy = mirrored(2)
    dataset = strategy.experimental_distribute_dataset(Dataset.range(14).batch(4))
    states, steps = states_of_a_pass(iter(dataset))
    iterator = iter(dataset)
    for done, state in reversed(list(enumerate(states))):
        iterator.set_state(state)
        assert rest(iterator) == steps[done:]


# --- Other workers ---------------------------------------------------------------------------

CHANGES = [
    ((1, 1), (1, 3)),
    ((1, 4), (1, 2)),
    ((1, 2), (2, 1)),
    ((1, 2), (3, 2)),
    ((2, 1), (1, 1)),
    ((2, 2), (1, 2)),
    ((2, 2), (4, 1)),
    ((3, 1), (2, 2)),
    ((4, 1), (3, 1)),
]


@pytest.mark.parametrize(("earlier", "later"), CHANGES, ids=str)
def test_goes_on_from_each_step_on_other_workers(source, earlier, later):
    """Each step has the examples that the earlier workers would have got together."""
    states, steps = read_and_save(source, *earlier)
    for done, state in enumerate(states):
        assert resume(source, *later, state) == steps[done:]


@pytest.mark.parametrize(
    "layouts",
    [
        [(1, 2), (1, 3), (1, 2)],
        [(2, 1), (1, 1), (2, 1)],
        [(2, 1), (1, 2), (3, 1)],
        [(1, 2), (3, 1), (2, 2)],
        [(3, 1), (2, 1), (2, 1)],
    ],
    ids=str,
)
def test_goes_on_twice(source, layouts):
    """Two steps, one step on other workers, and the rest on yet others, or on the first ones."""
    first, second, third = layouts
    states, steps = read_and_save(source, *first)

    def go_on(place: Any) -> tuple[list[Any], list[Any]]:
        iterator = iter(source(place))
        iterator.set_state(states[2][place.context.input_pipeline_id % len(states[2])])
        return states_of_a_pass(iterator)

    found = run_workers(*second, go_on)
    assert together([own for _, own in found]) == steps[2:]
    later = [own[1] for own, _ in found]  # after one step
    assert resume(source, *third, later) == steps[3:]


@st.composite
def changes(draw: st.DrawFn) -> tuple[Any, ...]:
    layouts = []
    for _ in range(2):
        workers = draw(st.integers(1, 4))
        layouts.append((workers, draw(st.integers(1, 8 // workers))))
    return (
        *layouts,
        draw(st.sampled_from(["DATA", "HINT", "FUNCTION"])),
        draw(st.integers(0, 40)),
        draw(st.integers(1, 9)),
        draw(st.floats(0, 1)),
    )


# Not shrunk: in an example that fails, workers may wait for each other in vain.
@settings(max_examples=60, phases=(Phase.explicit, Phase.generate), report_multiple_bugs=False)
@given(change=changes())
def test_nothing_is_lost_or_repeated_by_a_change(change):
    earlier, later, policy, size, batch, when = change

    def source(place: Any) -> jt.DistributedDataset:
        def own(shards: int, index: int) -> Dataset:
            return Dataset.range(size).shard(shards, index).shuffle(9, seed=2).batch(batch)

        if policy == "FUNCTION":
            return distribute_from_function(
                lambda c: own(c.num_input_pipelines, c.input_pipeline_id), place, ON_HOST
            )
        dataset = own(SHARD_HINT, SHARD_HINT) if policy == "HINT" else own(1, 0)
        return distribute(with_policy(dataset, policy), place, ON_HOST)

    states, steps = read_and_save(source, *earlier)
    done = int(when * len(steps))
    remaining = resume(source, *later, states[done])
    assert remaining == steps[done:]
    delivered = Counter(number for step in steps[:done] + remaining for number in step)
    assert delivered == Counter(range(size))


def test_numbers_without_a_batch_go_on_on_other_replicas():
    """Datasets from a function need not be batched."""

    def source(place: Any) -> jt.DistributedDataset:
        return distribute_from_function(lambda context: Dataset.range(11), place, ON_HOST)

    states, steps = read_and_save(source, 1, 2)
    delivered = Counter(number for step in steps[:2] for number in step)
    delivered += Counter(number for step in resume(source, 1, 3, states[2]) for number in step)
    assert delivered == Counter(range(11))


def test_an_element_of_many_components_goes_on_on_other_replicas():
    table = {"x": np.arange(39.0).reshape(13, 3), "y": (np.arange(13), np.arange(13) % 2 == 0)}

    def steps(iterator: Any) -> list[Any]:
        found = []
        for element in iterator:
            x, (y, even) = element["x"].values, (part.values for part in element["y"])
            found.append([np.concatenate(parts).tolist() for parts in (x, y, even)])
            for replica in range(len(x)):
                assert x[replica].shape == (len(y[replica]), 3)
                assert (even[replica].dtype, y[replica].dtype) == (bool, np.int64)
        return found

    dataset = with_policy(Dataset.from_tensor_slices(table).batch(4), "OFF")
    iterator = iter(alone(dataset, 2))
    next(iterator)
    state = iterator.get_state()
    expected = steps(iterator)
    for replicas in (3, 8):
        other = iter(alone(dataset, replicas))
        other.set_state(state)
        assert steps(other) == expected


def test_the_pass_after_a_change_is_an_ordinary_one(source):
    states, steps = read_and_save(source, 2, 1)

    def go_on(place: Any) -> tuple[list[Any], list[Any]]:
        dataset = source(place)
        iterator = iter(dataset)
        iterator.set_state(states[2][0])
        return rest(iterator), rest(dataset)

    resumed, after = zip(*run_workers(3, 1, go_on), strict=True)
    assert together(list(resumed)) == steps[2:]
    copies = 3 if source.policy == "OFF" else 1
    delivered = Counter(number for step in together(list(after)) for number in step)
    assert delivered == Counter({number: copies for number in range(21)})


# --- Epochs and random orders ----------------------------------------------------------------


def shuffled(seed: int | None) -> Dataset:
    return Dataset.range(20).shuffle(20, seed=seed).batch(4)


@pytest.mark.parametrize("seed", [1, None])
def test_goes_on_in_the_second_epoch(seed):
    dataset = alone(shuffled(seed))
    first = rest(dataset)
    states, second = states_of_a_pass(iter(dataset))
    assert first != second
    for done, state in enumerate(states):
        iterator = iter(alone(shuffled(seed)))
        iterator.set_state(state)
        assert rest(iterator) == second[done:]


def test_the_epochs_after_it_are_those_that_would_have_followed():
    dataset = alone(shuffled(1))
    epochs = [rest(dataset) for _ in range(4)]

    dataset = alone(shuffled(1))
    rest(dataset)
    iterator = iter(dataset)
    next(iterator)
    state = in_json(iterator.get_state())

    dataset = alone(shuffled(1))
    iterator = iter(dataset)
    iterator.set_state(state)
    assert rest(iterator) == epochs[1][1:]
    assert [rest(dataset), rest(dataset)] == epochs[2:]


def test_the_epochs_after_it_have_an_order_nobody_chose_as_well():
    """A dataset made anew draws another seed; that of the state holds from then on."""
    dataset = alone(shuffled(None))
    iterator = iter(dataset)
    next(iterator)
    state = in_json(iterator.get_state())
    second = rest(dataset)

    dataset = alone(shuffled(None))
    iterator = iter(dataset)
    iterator.set_state(state)
    rest(iterator)
    assert rest(dataset) == second


def test_a_repeated_dataset_goes_on_in_a_later_repetition():
    states, steps = states_of_a_pass(
        iter(alone(Dataset.range(7).shuffle(7, seed=1).repeat(5).batch(4)))
    )
    assert len(steps) == 9
    for done in (3, 6, 8):
        iterator = iter(alone(Dataset.range(7).shuffle(7, seed=1).repeat(5).batch(4)))
        iterator.set_state(states[done])
        assert rest(iterator) == steps[done:]


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("policy", ["DATA", "OFF"])
def test_an_endless_dataset_goes_on(replicas, policy):
    def make() -> Dataset:
        return with_policy(Dataset.range(7).shuffle(7, seed=1).repeat().batch(4), policy)

    iterator = iter(alone(make(), 2))
    steps = [sorted(ids(next(iterator))) for _ in range(30)]
    state = in_json(iterator.get_state())
    steps += [sorted(ids(next(iterator))) for _ in range(5)]
    other = iter(alone(make(), replicas))
    other.set_state(state)
    assert [sorted(ids(next(other))) for _ in range(5)] == steps[30:]


@pytest.mark.parametrize("policy", ["DATA", "FILE", "HINT", "OFF"])
@pytest.mark.parametrize("later", [(2, 1), (3, 1), (1, 2)], ids=str)
def test_an_order_nobody_chose_goes_on(policy, later, files):
    def source(place: Any) -> jt.DistributedDataset:
        if policy == "FILE":
            names = Dataset.list_files(files)
            examples = jt.data.TextLineDataset(names).map(lambda line: np.int64(int(line)))
        else:
            examples = Dataset.range(21)
        if policy == "HINT":
            examples = examples.shard(SHARD_HINT, SHARD_HINT)
        dataset = examples.shuffle(21).batch(4).shuffle(3)
        return distribute(with_policy(dataset, policy), place, ON_HOST)

    states, steps = read_and_save(source, 2, 1)
    for done in (1, 3):
        assert resume(source, *later, states[done]) == steps[done:]


@pytest.mark.parametrize("later", [(2, 1), (3, 1), (1, 2)], ids=str)
def test_an_order_nobody_chose_goes_on_in_datasets_from_a_function(later):
    def make(context: jt.InputContext) -> Dataset:
        own = Dataset.range(21).shard(context.num_input_pipelines, context.input_pipeline_id)
        return own.shuffle(21).batch(2)

    def source(place: Any) -> jt.DistributedDataset:
        return distribute_from_function(make, place, ON_HOST)

    states, steps = read_and_save(source, 2, 1)
    delivered = Counter(number for step in steps[:2] for number in step)
    delivered += Counter(number for step in resume(source, *later, states[2]) for number in step)
    assert delivered == Counter(range(21))


# --- A cache between -------------------------------------------------------------------------


def cached() -> Dataset:
    return Dataset.range(14).map(lambda x: x).cache().map(lambda x: x + 1).batch(4)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_state_of_a_full_cache_is_good_for_an_empty_one(replicas):
    dataset = alone(cached(), replicas)
    rest(dataset)
    states, steps = states_of_a_pass(iter(dataset))
    for done, state in enumerate(states):
        iterator = iter(alone(cached(), replicas))
        iterator.set_state(state)
        assert rest(iterator) == steps[done:]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_state_of_an_empty_cache_is_good_for_a_full_one(replicas):
    dataset = alone(cached(), replicas)
    states, steps = states_of_a_pass(iter(dataset))
    for done, state in enumerate(states):
        iterator = iter(dataset)
        iterator.set_state(state)
        assert rest(iterator) == steps[done:]


# --- States ----------------------------------------------------------------------------------


def test_what_was_read_ahead_is_not_in_the_state():
    far_ahead = threading.Event()

    def examples() -> Any:
        for number in range(40):
            if number == 20:
                far_ahead.set()
            yield number

    dataset = Dataset.from_generator(examples).prefetch(4).batch(4)
    options = jt.InputOptions(
        experimental_fetch_to_device=False, experimental_per_replica_buffer_size=3
    )
    iterator = iter(distribute(dataset, setting(1, 0, 2), options))
    assert ids(next(iterator)) == [0, 1, 2, 3]
    assert far_ahead.wait(30)
    state = in_json(iterator.get_state())
    iterator.close()
    iterator = iter(distribute(dataset, setting(1, 0, 2), options))
    iterator.set_state(state)
    assert ids(next(iterator)) == [4, 5, 6, 7]


def test_reading_the_state_changes_nothing():
    iterator = iter(alone(PIPELINES["filter"]()))
    expected = rest(alone(PIPELINES["filter"]()))
    found = []
    while True:
        assert iterator.get_state() == iterator.get_state()
        try:
            found.append(ids(next(iterator)))
        except StopIteration:
            break
    assert found == expected


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("policy", ["DATA", "OFF"])
def test_a_state_can_be_restored_again_and_again(policy, replicas):
    dataset = with_policy(PIPELINES["filter"](), policy)
    iterator = iter(alone(dataset, 2))
    next(iterator)
    state = iterator.get_state()
    expected = [sorted(step) for step in rest(iterator)]
    text = json.dumps(state)
    iterator = iter(alone(dataset, replicas))
    for _ in range(3):
        iterator.set_state(state)
        next(iterator)
    iterator.set_state(state)
    assert [sorted(step) for step in rest(iterator)] == expected
    iterator.set_state(state)  # also after the end
    assert [sorted(step) for step in rest(iterator)] == expected
    assert json.dumps(state) == text


def test_an_iterator_that_was_closed_can_go_on():
    dataset = alone(Dataset.range(14).batch(4))
    iterator = iter(dataset)
    next(iterator)
    state = iterator.get_state()
    iterator.close()
    iterator.set_state(state)
    assert rest(iterator) == [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13]]


def test_the_state_of_an_iterator_that_has_ended_ends():
    iterator = iter(alone(Dataset.range(6).batch(4)))
    rest(iterator)
    state = iterator.get_state()
    other = iter(alone(Dataset.range(6).batch(4)))
    other.set_state(state)
    assert rest(other) == []
    assert not other.get_next_as_optional().has_value()


def test_after_an_error_the_state_is_before_the_element_that_failed():
    fails = [True]

    def checked(x: Any) -> Any:
        if x == 6 and fails[0]:
            raise ValueError("the disk is full")
        return x

    dataset = alone(Dataset.range(10).filter(lambda x: True).map(checked).batch(2))
    iterator = iter(dataset)
    assert [ids(next(iterator)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="the disk is full"):
        next(iterator)
    state = in_json(iterator.get_state())
    fails[0] = False
    iterator.set_state(state)
    assert rest(iterator) == [[6, 7], [8, 9]]


# --- States of something else ----------------------------------------------------------------


def state_of(dataset: Any, replicas: int = 2) -> Any:
    iterator = iter(alone(dataset, replicas))
    next(iterator)
    return iterator.get_state()


def plain_state() -> Any:
    iterator = iter(Dataset.range(8).batch(4))
    next(iterator)
    return iterator.get_state()


FOREIGN = {
    "other sharding": lambda: state_of(with_policy(Dataset.range(8).batch(2), "OFF")),
    "other operations": lambda: state_of(Dataset.range(8).filter(lambda x: True).batch(2)),
    "other operations after it": lambda: state_of(Dataset.range(8).batch(2).map(lambda x: x)),
    "other batches": lambda: state_of(Dataset.range(8).batch(4)),
    "an order nobody chose": lambda: state_of(Dataset.range(8).shuffle(8).batch(2)),
    "other batches, not distributed": plain_state,
    "nothing": dict,
    "no state at all": lambda: "state",
}


@pytest.mark.parametrize("foreign", list(FOREIGN.values()), ids=list(FOREIGN))
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_state_of_something_else_is_refused(foreign, replicas):
    """And the iterator is as it was."""
    iterator = iter(alone(Dataset.range(8).batch(2), replicas))
    next(iterator)
    with pytest.raises(InvalidArgumentError, match="state"):
        iterator.set_state(foreign())
    assert rest(iterator) == [[2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_dataset_that_needs_a_seed_refuses_a_state_without_one(replicas):
    iterator = iter(alone(Dataset.range(8).shuffle(8).batch(2), replicas))
    with pytest.raises(InvalidArgumentError, match="state"):
        iterator.set_state(state_of(Dataset.range(8).batch(2)))


def test_a_state_of_a_function_is_refused_by_a_dataset():
    made = distribute_from_function(
        lambda context: Dataset.range(8).batch(2), setting(1, 0, 2), ON_HOST
    )
    state = iter(made).get_state()
    with pytest.raises(InvalidArgumentError, match="FUNCTION"):
        iter(alone(Dataset.range(8).batch(2))).set_state(state)


def test_a_source_that_has_become_shorter_is_told():
    iterator = iter(alone(Dataset.from_generator(lambda: iter(range(20))).batch(2)))
    for _ in range(5):
        next(iterator)
    other = iter(alone(Dataset.from_generator(lambda: iter(range(6))).batch(2)))
    with pytest.raises(InvalidArgumentError, match="only 6"):
        other.set_state(iterator.get_state())


# --- Other processes -------------------------------------------------------------------------

TRAIN = """
    import json, os, sys
    import numpy as np
    import jaxtribute as jt

    mode, progress_file, *files = sys.argv[1:]
    replicas = {"killed": 2, "resumed": 2, "resumed on three": 3}[mode]
    strategy = jt.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    lines = jt.data.TextLineDataset(jt.data.Dataset.list_files(files))
    dataset = lines.map(lambda line: np.int64(int(line))).shuffle(50).batch(4).prefetch(2)
    distributed = strategy.experimental_distribute_dataset(dataset)
    for _ in distributed:  # the first epoch
        pass
    iterator = iter(distributed)
    seen = []
    if mode != "killed":
        with open(progress_file) as file:
            progress = json.load(file)
        seen = progress["seen"]
        iterator.set_state(progress["state"])
    for element in iterator:
        parts = strategy.experimental_local_results(element)
        numbers = [int(number) for part in parts for number in part]
        if mode == "killed" and len(seen) >= 20:
            print("in the middle of a step", flush=True)
            sys.stdin.read()  # until it is killed
        seen += numbers
        with open(progress_file + ".new", "w") as file:
            json.dump({"seen": seen, "state": iterator.get_state()}, file)
        os.replace(progress_file + ".new", progress_file)
    print(json.dumps(seen))
"""


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["resumed", "resumed on three"])
def test_a_new_process_goes_on_after_a_kill(mode, tmp_path):
    numbers = iter(range(50))
    for index in range(4):
        lines = [f"{next(numbers)}\n" for _ in range([20, 5, 13, 12][index])]
        (tmp_path / f"part-{index}.txt").write_text("".join(lines))
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN))
    arguments = [str(tmp_path / "progress.json")]
    arguments += sorted(str(path) for path in tmp_path.glob("part-*.txt"))
    command = [*STRICT_PYTHON, str(script)]

    with subprocess.Popen(
        [*command, "killed", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            process.kill()
        _, errors = process.communicate()
        assert line == "in the middle of a step\n", errors

    seen = json.loads((tmp_path / "progress.json").read_text())["seen"]
    assert len(seen) == len(set(seen)) == 20
    done = subprocess.run(
        [*command, mode, *arguments], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    everything = json.loads(done.stdout)
    assert everything[:20] == seen
    assert sorted(everything) == list(range(50))


@pytest.mark.processes
def test_a_state_goes_on_in_a_new_process(tmp_path):
    """The state alone: the rest of an epoch is the same there."""
    program = tmp_path / "rest.py"
    program.write_text(
        textwrap.dedent(
            """
            import json, sys
            import jaxtribute as jt

            strategy = jt.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
            dataset = jt.data.Dataset.range(40).filter(lambda x: x % 3).shuffle(40).batch(5)
            iterator = iter(strategy.experimental_distribute_dataset(dataset))
            iterator.set_state(json.load(sys.stdin))
            steps = [strategy.experimental_local_results(element) for element in iterator]
            print(json.dumps([[part.tolist() for part in step] for step in steps]))
            """
        )
    )
    dataset = Dataset.range(40).filter(lambda x: x % 3).shuffle(40).batch(5)
    distributed = mirrored(3).experimental_distribute_dataset(dataset)
    rest(distributed)
    iterator = iter(distributed)
    next(iterator)
    state = json.dumps(iterator.get_state())
    done = subprocess.run(
        [*STRICT_PYTHON, str(program)],
        input=state,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    expected = [[part.tolist() for part in element.values] for element in iterator]
    assert json.loads(done.stdout) == expected
