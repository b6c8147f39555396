"""Reading ahead in a thread: how far, what becomes of errors, and when the thread ends."""

import dataclasses
import gc
import subprocess
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.data import _background
from jaxtribute.input import distribute, distribute_from_function
from tests._interpreter import STRICT_PYTHON
from tests.input import _workers
from tests.input._threads import input_threads
from tests.input._workers import meet, mirrored, parts, run_workers, setting, with_policy
from tests.variables._support import aligned

Dataset = jt.data.Dataset

PATIENCE = 30.0
"""How long something that happens in the background may take before a test fails."""

ON_HOST = jt.InputOptions(experimental_fetch_to_device=False)
PER_REPLICA = jt.InputOptions(
    experimental_replication_mode=jt.InputReplicationMode.PER_REPLICA,
)


@pytest.fixture(autouse=True)
def _short_meetings(monkeypatch):
    """Do not wait long for a worker that has failed."""
    monkeypatch.setattr(_workers, "MEETING_SECONDS", 10.0)


class Source:
    """Batches of two numbers, which knows how far it was read."""

    def __init__(self, steps: int = 50) -> None:
        self.steps = steps
        self.read = 0
        self.delivered = 0
        self.furthest = 0
        self.closed = 0
        self._changed = threading.Condition()

    def __call__(self) -> Iterator[Any]:
        try:
            for step in range(self.steps):
                self.note()
                yield np.arange(2 * step, 2 * step + 2)
        finally:
            self.closed += 1

    def note(self) -> None:
        """Note that one more batch was read."""
        with self._changed:
            self.read += 1
            self.furthest = max(self.furthest, self.read - self.delivered)
            self._changed.notify_all()

    def wait_until_read(self, count: int) -> bool:
        """Wait until as many batches were read, and return whether they were."""
        with self._changed:
            return self._changed.wait_for(lambda: self.read >= count, PATIENCE)

    def take(self, iterator: Any) -> Any:
        """Return the next element, and note that it was delivered."""
        element = next(iterator)
        with self._changed:
            self.delivered += 1
        return element


def from_generator(source: Source) -> Dataset:
    return Dataset.from_generator(source)


# --- How far ---------------------------------------------------------------------------------


def _counted_map(source: Source) -> Dataset:
    def counted(x: Any) -> Any:
        source.note()
        return x

    return Dataset.range(2 * source.steps).batch(2).map(counted)


def _counted_iterable(source: Source) -> Any:
    class Batches:
        def __iter__(self) -> Iterator[Any]:
            return source()

    return Batches()


KINDS: dict[str, Callable[[Source], Any]] = {
    "generator": from_generator,
    "iterable": _counted_iterable,
    "map": _counted_map,
    "without sharding": lambda source: with_policy(from_generator(source), "OFF"),
    "prefetched": lambda source: from_generator(source).prefetch(8),
}


@pytest.mark.parametrize("kind", list(KINDS.values()), ids=list(KINDS))
@pytest.mark.parametrize("replicas", [1, 2])
class TestHowFar:
    def test_one_step_waits_on_the_devices(self, kind, replicas):
        source = Source()
        iterator = iter(mirrored(replicas).experimental_distribute_dataset(kind(source)))
        for step in range(20):
            element = source.take(iterator)
            assert [n for part in parts(element) for n in part] == [2 * step, 2 * step + 1]
            assert source.wait_until_read(step + 2), "it reads ahead"
        # One is waiting, one is ready to wait, and one may be on its way to the reader.
        assert source.furthest <= 3
        iterator.close()

    def test_as_many_as_asked_for(self, kind, replicas):
        source = Source()
        options = jt.InputOptions(experimental_per_replica_buffer_size=4)
        strategy = mirrored(replicas)
        iterator = iter(strategy.experimental_distribute_dataset(kind(source), options))
        for step in range(20):
            source.take(iterator)
            assert source.wait_until_read(step + 5)
        assert source.furthest <= 6
        iterator.close()

    def test_nothing_before_the_first_element_is_asked_for(self, kind, replicas):
        source = Source()
        dataset = mirrored(replicas).experimental_distribute_dataset(kind(source))
        iterators = [iter(dataset) for _ in range(3)]
        assert not input_threads()
        read_to_know_the_structure = source.read
        assert read_to_know_the_structure <= 1
        assert parts(next(iterators[1])) is not None
        assert len(input_threads()) == 1
        iterators[1].close()


def test_datasets_from_a_function_are_read_ahead_as_far():
    source = Source()
    strategy = mirrored(2)
    dataset = strategy.distribute_datasets_from_function(lambda context: from_generator(source))
    iterator = iter(dataset)
    for step in range(10):
        element = source.take(iterator)
        assert parts(element)[0] == [4 * step, 4 * step + 1]
        assert source.wait_until_read(2 * step + 4)
    assert source.read <= 2 * 10 + 2 * 2
    iterator.close()


def test_each_iterator_reads_for_itself():
    dataset = mirrored(2).experimental_distribute_dataset(Dataset.range(100).batch(2))
    one, two = iter(dataset), iter(dataset)
    assert [parts(next(one)) for _ in range(3)][-1] == [[4], [5]]
    assert parts(next(two)) == [[0], [1]]
    assert parts(next(one)) == [[6], [7]]


def test_several_threads_share_an_iterator():
    dataset = mirrored(2).experimental_distribute_dataset(Dataset.range(400).batch(2))
    iterator = iter(dataset)
    found: list[list[int]] = [[] for _ in range(4)]

    def consume(own: list[int]) -> None:
        for element in iterator:
            own.extend(number for part in parts(element) for number in part)

    threads = [threading.Thread(target=consume, args=(own,), daemon=True) for own in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert sorted(number for own in found for number in own) == list(range(400))


# --- Errors ----------------------------------------------------------------------------------


class TestErrors:
    @pytest.mark.parametrize("error", [ValueError, KeyError, MemoryError, SystemExit])
    def test_come_where_the_element_was_due(self, error):
        def broken() -> Iterator[Any]:
            for step in range(5):
                yield np.arange(2 * step, 2 * step + 2)
            raise error("the disk is gone")

        options = jt.InputOptions(experimental_per_replica_buffer_size=3)
        strategy = mirrored(2)
        dataset = Dataset.from_generator(broken)
        iterator = iter(strategy.experimental_distribute_dataset(dataset, options))
        for step in range(5):
            assert parts(next(iterator)) == [[2 * step], [2 * step + 1]]
        for _ in range(3):
            with pytest.raises(error, match="the disk is gone"):
                next(iterator)
        assert not input_threads()

    def test_come_in_each_pass(self):
        def broken(x: Any) -> Any:
            if x == 4:
                raise ValueError("broken")
            return x

        dataset = mirrored(2).experimental_distribute_dataset(Dataset.range(8).map(broken).batch(2))
        for _ in range(2):
            found = []
            with pytest.raises(ValueError, match="broken") as caught:
                for element in dataset:
                    found.append(parts(element))
            assert found == [[[0], [1]], [[2], [3]]]
            assert any("element 4" in note for note in caught.value.__notes__)

    def test_keep_their_place_in_the_code(self):
        def broken() -> Iterator[Any]:
            yield np.arange(2)
            raise ValueError("broken")

        dataset = mirrored(2).experimental_distribute_dataset(Dataset.from_generator(broken))
        iterator = iter(dataset)
        next(iterator)
        with pytest.raises(ValueError, match="broken") as caught:
            next(iterator)
        assert "broken" in [entry.name for entry in caught.traceback]

    def test_are_those_of_optionals_as_well(self):
        def broken() -> Iterator[Any]:
            yield np.arange(2)
            raise ValueError("broken")

        dataset = mirrored(2).experimental_distribute_dataset(Dataset.from_generator(broken))
        iterator = iter(dataset)
        assert iterator.get_next_as_optional().has_value()
        with pytest.raises(ValueError, match="broken"):
            iterator.get_next_as_optional()
        with pytest.raises(ValueError, match="broken"):
            iterator.get_next()

    @pytest.mark.parametrize(
        ("second", "what"),
        [
            pytest.param((np.arange(2), np.arange(2)), "built differently", id="structure"),
            pytest.param(np.arange(2.0), "built differently", id="type"),
            pytest.param(np.int64(3), "batch dimension", id="no batch"),
        ],
    )
    def test_tell_which_element_is_built_differently(self, second, what):
        batches = [np.arange(2), second]
        iterator = iter(mirrored(2).experimental_distribute_dataset(batches))
        next(iterator)
        with pytest.raises(ValueError, match=what):
            next(iterator)

    def test_of_one_worker_come_on_all_of_them(self):
        """Also those that occur after the workers have told each other that they go on."""

        def batches(context: jt.InputContext) -> Dataset:
            first, broken = np.arange(2), (np.arange(2), np.arange(2))
            yields = [first, broken if context.input_pipeline_id == 1 else first, first]
            return Dataset.from_generator(lambda: iter(yields))

        def read(place: Any) -> str:
            iterator = iter(distribute_from_function(batches, place, None))
            next(iterator)
            with pytest.raises((ValueError, jt.errors.AbortedError)) as caught:
                while True:
                    next(iterator)
            return str(caught.value)

        for message in run_workers(2, 1, read):
            assert "built differently" in message


# --- Ends ------------------------------------------------------------------------------------


class TestTheThreadEnds:
    def test_with_the_dataset(self):
        source = Source(steps=3)
        iterator = iter(mirrored(2).experimental_distribute_dataset(from_generator(source)))
        assert len(list(iterator)) == 3
        assert not input_threads()
        assert source.closed == 1
        with pytest.raises(StopIteration):
            next(iterator)

    def test_when_the_iterator_is_closed(self):
        source = Source()
        iterator = iter(mirrored(2).experimental_distribute_dataset(from_generator(source)))
        next(iterator)
        iterator.close()
        assert not input_threads()
        assert source.closed == 1
        iterator.close()
        with pytest.raises(StopIteration):
            next(iterator)
        assert not iterator.get_next_as_optional().has_value()

    def test_when_the_iterator_is_dropped(self):
        source = Source()
        iterator = iter(mirrored(2).experimental_distribute_dataset(from_generator(source)))
        next(iterator)
        (thread,) = input_threads()
        dropped = weakref.ref(iterator)
        del iterator
        assert dropped() is None
        assert not thread.is_alive()
        assert source.closed == 1

    def test_when_an_iterator_that_has_ended_is_dropped(self):
        """It is not kept by the error it ended with, nor are the elements."""
        iterator = iter(mirrored(2).experimental_distribute_dataset(Dataset.range(4).batch(2)))
        for _ in iterator:
            pass
        dropped = weakref.ref(iterator)
        ahead = weakref.ref(iterator._ahead)
        del iterator, _
        assert dropped() is None
        assert ahead() is None

    def test_when_an_iterator_that_has_failed_is_dropped(self):
        """The error has its traceback, and so holds on to whoever caught it, but not for ever."""

        def broken() -> Iterator[Any]:
            yield np.arange(2)
            raise ValueError("broken")

        def fail() -> list[weakref.ref[Any]]:
            dataset = mirrored(2).experimental_distribute_dataset(Dataset.from_generator(broken))
            other = iter(mirrored(2).experimental_distribute_dataset(Dataset.range(99).batch(2)))
            next(other)
            iterator = iter(dataset)
            with pytest.raises(ValueError, match="broken"):
                for _ in iterator:
                    pass
            return [weakref.ref(iterator), weakref.ref(dataset), weakref.ref(other)]

        dropped = fail()
        gc.collect()
        assert [one() for one in dropped] == [None] * 3
        assert not input_threads()

    def test_when_a_loop_is_left(self):
        source = Source()
        dataset = mirrored(2).experimental_distribute_dataset(from_generator(source))
        for _ in range(20):
            for _element in dataset:
                break
        assert not input_threads()
        assert source.closed == 20

    def test_when_a_state_is_set(self):
        source = Source()
        iterator = iter(mirrored(2).experimental_distribute_dataset(from_generator(source)))
        next(iterator)
        state = iterator.get_state()
        for _ in range(5):
            next(iterator)
            iterator.set_state(state)
        assert not input_threads()
        assert parts(next(iterator)) == [[2], [3]]
        assert len(input_threads()) == 1
        iterator.close()

    def test_with_the_threads_of_the_dataset(self):
        dataset = Dataset.range(400).filter(lambda x: True).map(lambda x: x, 3).prefetch(2).batch(2)
        before = set(threading.enumerate())
        for element in mirrored(2).experimental_distribute_dataset(dataset):
            assert parts(element) == [[0], [1]]
            break
        iterator = iter(mirrored(2).experimental_distribute_dataset(dataset))
        next(iterator)
        iterator.close()
        left = [thread for thread in threading.enumerate() if thread not in before]
        for thread in left:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in left)

    def test_with_a_source_that_is_in_the_middle_of_reading(self, monkeypatch):
        """Closing does not wait for it for ever, and raises nothing."""
        monkeypatch.setattr(_background, "_SECONDS_TO_END", 0.01)
        reading, go_on = threading.Event(), threading.Event()

        def slow() -> Iterator[Any]:
            yield np.arange(2)
            reading.set()
            assert go_on.wait(PATIENCE)
            yield np.arange(2)

        dataset = mirrored(2).experimental_distribute_dataset(Dataset.from_generator(slow))
        iterator = iter(dataset)
        next(iterator)
        (thread,) = input_threads()
        assert reading.wait(PATIENCE)
        try:
            iterator.close()
        finally:
            go_on.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        with pytest.raises(StopIteration):
            next(iterator)

    def test_of_workers_that_leave_a_pass_together(self, monkeypatch):
        """What one worker asks for a pass it has left is not taken for the next one's."""
        monkeypatch.setattr(_background, "_SECONDS_TO_END", 0.1)
        dataset = with_policy(Dataset.range(60).batch(2), "OFF")
        asks = [threading.Event(), threading.Event()]
        leaves = threading.Event()

        class Watched:
            """The first worker asks for its third step; the second leaves during its second."""

            def __init__(self, worker: int, peers: Any) -> None:
                self._worker = worker
                self._peers = peers
                self._asked = 0

            def exchange(self, *question: Any) -> Any:
                self._asked += 1
                if self._asked == 3 - self._worker:
                    asks[self._worker].set()
                    if self._worker == 1:
                        leaves.wait(PATIENCE)
                return self._peers.exchange(*question)

        def read(place: Any) -> list[int]:
            worker = place.context.input_pipeline_id
            place = dataclasses.replace(place, peers=Watched(worker, place.peers))
            shared = distribute(dataset, place, ON_HOST)
            iterator = iter(shared)
            next(iterator)
            asks[worker].wait(1.0)  # in vain, if it asks only when the next element is due
            if worker == 1:
                leaves.set()
            iterator.close()
            return [len(list(shared)), len(list(shared))]

        assert run_workers(2, 1, read) == [[60, 60], [60, 60]]

    def test_of_a_worker_that_made_an_iterator_the_others_did_not_make(self):
        """It has read nothing, so it has asked nobody."""
        dataset = with_policy(Dataset.range(12).batch(2), "OFF")

        def read(place: Any) -> int:
            shared = distribute(dataset, place, ON_HOST)
            if place.context.input_pipeline_id == 0:
                iter(shared)
            return len(list(shared))

        assert run_workers(2, 1, read) == [12, 12]

    def test_of_workers_that_leave_passes_again_and_again(self):
        dataset = with_policy(Dataset.range(60).batch(2), "OFF")

        def read(place: Any) -> list[int]:
            shared = distribute(dataset, place, ON_HOST)
            found = []
            for last in range(12):
                steps = 0
                for _ in shared:
                    steps += 1
                    if steps == last:
                        break
                found.append(steps)
            return found

        assert run_workers(2, 1, read) == [[60, *range(1, 12)]] * 2


# --- The end of the program ------------------------------------------------------------------


def run_program(tmp_path: Any, program: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    return subprocess.run(
        [*STRICT_PYTHON, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


LIVE = """
    import threading
    import numpy as np
    import jaxtribute as jt

    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    Dataset = jt.data.Dataset
    kept = []

    def keep(dataset):
        iterator = iter(strategy.experimental_distribute_dataset(dataset))
        print(strategy.experimental_local_results(next(iterator))[1])
        kept.append(iterator)
        return iterator
"""


@pytest.mark.processes
class TestTheEndOfTheProgram:
    def test_with_live_iterators_is_clean(self, tmp_path):
        done = run_program(
            tmp_path,
            LIVE
            + """
    keep(Dataset.range(1000).batch(2))
    keep(Dataset.range(1000).repeat().shuffle(10).batch(2).take(1).repeat())
    keep(Dataset.range(1000).filter(lambda x: True).map(lambda x: x, 4).prefetch(2).batch(2))
    keep([np.arange(2)] * 50)
    keep(Dataset.from_generator(lambda: (np.arange(2) for _ in range(50))))
    ended = keep(Dataset.range(2).batch(2))
    assert not ended.get_next_as_optional().has_value()
    iterator = keep(Dataset.range(1000).batch(2))
    step = jt.function(lambda: next(iterator))
    step()
    """,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == 7

    def test_in_the_middle_of_reading_is_clean(self, tmp_path):
        done = run_program(
            tmp_path,
            LIVE
            + """
    from jaxtribute.data import _background

    _background._SECONDS_TO_END = 0.1
    reading = threading.Event()

    def slow():
        yield np.arange(2)
        reading.set()
        threading.Event().wait()  # for ever

    keep(Dataset.from_generator(slow))
    assert reading.wait(60)
    """,
        )
        assert (done.returncode, done.stderr) == (0, "")

    def test_by_an_error_is_that_of_the_error(self, tmp_path):
        done = run_program(
            tmp_path,
            LIVE
            + """
    keep(Dataset.range(1000).batch(2))
    raise SystemExit(3)
    """,
        )
        assert (done.returncode, done.stderr) == (3, "")


# --- Arrays of the user ----------------------------------------------------------------------


def reused(buffer: np.ndarray) -> Dataset:
    """Return batches that all are one array, filled anew for each."""

    def batches() -> Iterator[Any]:
        for step in range(6):
            buffer[:] = step
            yield buffer

    return Dataset.from_generator(batches)


@pytest.mark.parametrize("options", [None, ON_HOST], ids=["on devices", "on host"])
@pytest.mark.parametrize("replicas", [1, 2, 3])
class TestArraysOfTheUser:
    """Four examples a batch: for three replicas the parts differ in size."""

    def test_from_tensor_slices(self, options, replicas):
        array = aligned(np.arange(64 * 12).reshape(12, 64))
        dataset = Dataset.from_tensor_slices(array).batch(4)
        self.check(array, dataset, options, replicas)

    def test_from_tensors(self, options, replicas):
        array = aligned(np.arange(64 * 4).reshape(4, 64))
        self.check(array, Dataset.from_tensors(array).repeat(3), options, replicas)

    def test_one_global_batch(self, options, replicas):
        array = aligned(np.arange(64 * 4).reshape(4, 64))
        self.check(array, array, options, replicas)

    def test_an_iterable(self, options, replicas):
        array = aligned(np.arange(64 * 4).reshape(4, 64))
        self.check(array, [array] * 3, options, replicas)

    def test_a_generator(self, options, replicas):
        array = aligned(np.arange(64 * 4).reshape(4, 64))
        dataset = Dataset.from_generator(lambda: iter([array] * 3))
        self.check(array, dataset, options, replicas)

    @staticmethod
    def check(array: np.ndarray, dataset: Any, options: Any, replicas: int) -> None:
        distributed = distribute(dataset, setting(1, 0, replicas), options)
        elements = list(distributed)
        before = [np.concatenate(arrays_of(x)).copy() for x in elements]
        array[:] = -1
        for element, expected in zip(elements, before, strict=True):
            assert np.array_equal(np.concatenate(arrays_of(element)), expected)

    def test_a_buffer_that_is_filled_anew(self, options, replicas):
        dataset = reused(aligned(np.zeros((4, 64))))
        elements = list(distribute(dataset, setting(1, 0, replicas), options))
        for step, element in enumerate(elements):
            assert np.unique(np.concatenate(arrays_of(element))).tolist() == [step]

    def test_a_buffer_that_is_filled_anew_for_each_example(self, options, replicas):
        dataset = reused(aligned(np.zeros(64))).batch(2)
        elements = list(distribute(dataset, setting(1, 0, replicas), options))
        for step, element in enumerate(elements):
            values = np.unique(np.concatenate(arrays_of(element)))
            assert values.tolist() == [2 * step, 2 * step + 1]

    def test_are_not_changed(self, options, replicas):
        array = aligned(np.arange(64 * 4).reshape(4, 64))
        array.flags.writeable = False
        for element in distribute([array] * 3, setting(1, 0, replicas), options):
            assert np.array_equal(np.concatenate(arrays_of(element)), array)


def arrays_of(element: Any) -> list[np.ndarray]:
    """Return the components of an element as arrays."""
    values = element.values if isinstance(element, jt.PerReplica) else (element,)
    return [np.asarray(value) for value in values]


def test_a_delivered_element_outlives_its_iterator():
    dataset = mirrored(2).experimental_distribute_dataset(Dataset.range(40).batch(4))
    iterator = iter(dataset)
    elements = [next(iterator) for _ in range(3)]
    iterator.close()
    del iterator, dataset
    gc.collect()
    assert [parts(x) for x in elements] == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
        [[8, 9], [10, 11]],
    ]


# --- Where elements are ----------------------------------------------------------------------


class TestPlaces:
    @pytest.mark.parametrize("size", [12, 11, 9])
    def test_each_part_is_on_the_device_of_its_replica(self, size):
        dataset = Dataset.from_tensor_slices((np.arange(size), np.ones((size, 3)))).batch(6)
        for element in mirrored(3).experimental_distribute_dataset(dataset):
            for component in element:
                for replica, part in enumerate(component.values):
                    assert part.devices() == {jax.devices("cpu")[replica]}

    def test_the_only_part_is_on_the_only_device(self):
        strategy = jt.OneDeviceStrategy("CPU:3")
        for element in strategy.experimental_distribute_dataset(Dataset.range(6).batch(4)):
            assert element.devices() == {jax.devices("cpu")[3]}

    @pytest.mark.parametrize("replicas", [1, 2, 3])
    def test_elements_can_stay_in_host_memory(self, replicas):
        strategy = mirrored(replicas)
        dataset = Dataset.from_tensor_slices((np.arange(10), np.ones((10, 3)))).batch(4)
        distributed = strategy.experimental_distribute_dataset(dataset, ON_HOST)
        numbers, ones = [], 0.0
        for element in distributed:
            for component, dtype in zip(element, (np.int64, np.float64), strict=True):
                for part in strategy.experimental_local_results(component):
                    assert isinstance(part, np.ndarray)
                    assert part.dtype == dtype
            doubled = strategy.run(lambda x: x * 2, args=(element[0],))
            numbers += [n for part in parts(doubled) for n in part]
            ones += float(strategy.reduce("SUM", element[1], axis=0).sum())
        assert numbers == [2 * n for n in range(10)]
        assert ones == 30

    def test_the_spec_says_what_the_types_are(self):
        dataset = Dataset.from_tensor_slices((np.arange(8), np.ones((8, 3)))).batch(4)
        strategy = mirrored(2)
        on_host = strategy.experimental_distribute_dataset(dataset, ON_HOST)
        on_devices = strategy.experimental_distribute_dataset(dataset)
        assert [spec.value_specs[0].dtype.name for spec in on_host.element_spec] == [
            "int64",
            "float64",
        ]
        assert [spec.value_specs[0].dtype.name for spec in on_devices.element_spec] == [
            "int32",
            "float32",
        ]
        for distributed in (on_host, on_devices):
            for element in distributed:
                for spec, component in zip(distributed.element_spec, element, strict=True):
                    assert spec.is_compatible_with(component)

    def test_text_stays_in_host_memory(self):
        dataset = Dataset.from_tensor_slices((["a", "b", "c"], np.arange(3))).batch(2)
        for options in (None, ON_HOST):
            distributed = mirrored(2).experimental_distribute_dataset(dataset, options)
            assert [parts(text) for text, _ in distributed] == [[[b"a"], [b"b"]], [[b"c"], []]]

    def test_text_from_a_function_stays_in_host_memory(self):
        def make(context: jt.InputContext) -> Dataset:
            return Dataset.from_tensor_slices(["a", "b", "c", "d", "e"]).batch(2)

        for options in (None, ON_HOST):
            distributed = mirrored(2).distribute_datasets_from_function(make, options)
            assert [parts(text) for text in distributed] == [
                [[b"a", b"b"], [b"c", b"d"]],
                [[b"e"], []],
            ]


# --- A dataset for each replica --------------------------------------------------------------


class TestPerReplica:
    def test_each_replica_iterates_its_own(self):
        """R131."""
        contexts = []

        def make(context: jt.InputContext) -> Dataset:
            contexts.append(context)
            return Dataset.range(4).batch(2)

        dataset = mirrored(2).distribute_datasets_from_function(make, PER_REPLICA)
        found = [
            (c.num_input_pipelines, c.input_pipeline_id, c.num_replicas_in_sync) for c in contexts
        ]
        assert found == [(2, 0, 2), (2, 1, 2)]
        assert [parts(x) for x in dataset] == [[[0, 1], [0, 1]], [[2, 3], [2, 3]]]
        assert [parts(x) for x in dataset] == [[[0, 1], [0, 1]], [[2, 3], [2, 3]]]
        assert len(contexts) == 2

    @pytest.mark.parametrize("replicas", [1, 2, 3])
    def test_sharded_by_hand_delivers_each_example_once(self, replicas):
        def make(context: jt.InputContext) -> Dataset:
            shard = Dataset.range(13).shard(context.num_input_pipelines, context.input_pipeline_id)
            return shard.batch(2)

        dataset = mirrored(replicas).distribute_datasets_from_function(make, PER_REPLICA)
        for _ in range(2):
            found = [number for x in dataset for part in parts(x) for number in part]
            assert sorted(found) == list(range(13))

    def test_a_replica_that_ends_first_gets_empty_parts(self):
        def make(context: jt.InputContext) -> Dataset:
            rows = np.ones((2 + 4 * context.input_pipeline_id, 3), np.float32)
            return Dataset.from_tensor_slices(rows).batch(2)

        dataset = mirrored(2).distribute_datasets_from_function(make, PER_REPLICA)
        shapes = [[part.shape for part in x.values] for x in dataset]
        assert shapes == [[(2, 3), (2, 3)], [(0, 3), (2, 3)], [(0, 3), (2, 3)]]

    @pytest.mark.parametrize("fetch", [True, False])
    @pytest.mark.parametrize("place", [True, False])
    def test_where_elements_are(self, fetch, place):
        options = PER_REPLICA._replace(
            experimental_fetch_to_device=fetch, experimental_place_dataset_on_device=place
        )

        def make(context: jt.InputContext) -> Dataset:
            return Dataset.range(4).batch(2)

        strategy = mirrored(2)
        if fetch and place:
            with pytest.raises(ValueError, match="exclude"):
                strategy.distribute_datasets_from_function(make, options)
            return
        for element in strategy.distribute_datasets_from_function(make, options):
            for replica, part in enumerate(element.values):
                if fetch or place:
                    assert part.devices() == {jax.devices("cpu")[replica]}
                else:
                    assert isinstance(part, np.ndarray)

    def test_in_a_function(self):
        strategy = mirrored(2)

        def make(context: jt.InputContext) -> Dataset:
            first = 10 * context.input_pipeline_id
            return Dataset.range(first, first + 4).batch(2)

        dataset = strategy.distribute_datasets_from_function(make, PER_REPLICA)
        step = jt.function(lambda it: strategy.run(lambda x: x + 1, args=(next(it),)))
        for _ in range(2):
            iterator = iter(dataset)
            assert parts(step(iterator)) == [[1, 2], [11, 12]]
            assert parts(step(iterator)) == [[3, 4], [13, 14]]
        assert step.experimental_get_tracing_count() == 1


def test_peers_are_asked_once_a_step():
    """A worker that reads ahead asks no further ahead than it reads."""
    asked = [0]
    (peer,) = meet(1)

    class Counting:
        def exchange(self, *question: Any) -> Any:
            asked[0] += 1
            return peer.exchange(*question)

    place = setting(2, 0, 1, Counting())
    iterator = iter(distribute(with_policy(Dataset.range(60).batch(2), "OFF"), place, ON_HOST))
    for step in range(1, 10):
        next(iterator)
        assert step <= asked[0] <= step + 2
    iterator.close()
