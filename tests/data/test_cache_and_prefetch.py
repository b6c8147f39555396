"""How datasets are executed: cache in memory and in a file, prefetch, several iterators at once."""

import dataclasses
import gc
import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute._topology import Topology
from jaxtribute.input import InputSetting, distribute
from tests.data._support import plain, read, rest, stream_of, streamed, write_lines

Dataset = jt.data.Dataset


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Example:
    x: Any


class Counted:
    """A function for `map` that counts its calls, and can be made to fail."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.fails_at: int | None = None

    def __call__(self, x: Any) -> Any:
        self.calls[int(x)] += 1
        if x == self.fails_at:
            raise ValueError("told to fail")
        return x * 10


@pytest.fixture
def counted():
    return Counted()


@pytest.fixture(params=["memory", "file"])
def filename(request, tmp_path):
    return "" if request.param == "memory" else tmp_path / "cache"


TENS = [0, 10, 20, 30, 40]


class TestAnyCache:
    def test_computes_each_element_once(self, counted, filename):
        dataset = Dataset.range(5).map(counted).cache(filename)
        assert not counted.calls
        assert [read(dataset) for _ in range(3)] == [TENS] * 3
        assert read(dataset.repeat(2)) == TENS * 2
        assert counted.calls == dict.fromkeys(range(5), 1)

    def test_within_repeat(self, counted, filename):
        assert read(Dataset.range(5).map(counted).cache(filename).repeat(3)) == TENS * 3
        assert counted.calls == dict.fromkeys(range(5), 1)

    def test_is_shared_by_what_is_made_of_it(self, counted, filename):
        cached = Dataset.range(5).map(counted).cache(filename)
        assert read(cached) == TENS
        assert read(cached.take(2)) + read(cached.skip(2)) == TENS
        assert read(Dataset.zip(cached, cached)) == [(x, x) for x in TENS]
        assert counted.calls == dict.fromkeys(range(5), 1)

    def test_zipped_with_itself_computes_once(self, counted, filename):
        cached = Dataset.range(5).map(counted).cache(filename)
        assert read(Dataset.zip(cached, cached)) == [(x, x) for x in TENS]
        assert counted.calls == dict.fromkeys(range(5), 1)

    def test_keeps_the_order_of_a_shuffle_before_it(self, filename):
        dataset = Dataset.range(20).shuffle(20, seed=1).map(lambda x: x).cache(filename)
        first = read(dataset)
        assert sorted(first) == list(range(20))
        assert read(dataset) == first

    def test_a_shuffle_after_it_mixes_each_pass_anew(self, filename):
        dataset = Dataset.range(20).map(lambda x: x).cache(filename).shuffle(20, seed=1)
        assert len({tuple(read(dataset)) for _ in range(3)}) == 3

    def test_of_nothing(self, filename):
        dataset = Dataset.range(0).map(lambda x: x).cache(filename)
        assert read(dataset) == read(dataset) == []

    def test_of_a_stream(self, filename):
        dataset = stream_of(10).filter(lambda x: x % 2).cache(filename).batch(2)
        assert read(dataset) == read(dataset) == [[1, 3], [5, 7], [9]]

    def test_of_a_cache(self, counted, tmp_path, filename):
        dataset = Dataset.range(5).map(counted).cache(tmp_path / "inner").cache(filename)
        assert read(dataset) == read(dataset) == TENS
        assert counted.calls == dict.fromkeys(range(5), 1)

    def test_of_what_has_no_end(self, filename):
        dataset = Dataset.range(2).map(lambda x: x).repeat().cache(filename)
        assert read(dataset, 5) == read(dataset, 5) == [0, 1, 0, 1, 0]

    def test_asking_what_elements_look_like_leaves_it_alone(self, counted, filename):
        dataset = Dataset.range(5).map(counted).cache(filename)
        assert dataset.element_spec == jt.TensorSpec((), np.int64)
        assert dataset.cardinality() == 5
        counted.calls.clear()
        assert read(dataset) == TENS
        assert counted.calls == dict.fromkeys(range(5), 1)

    def test_what_is_done_to_its_elements_does_not_change_it(self, filename):
        def add_one(x):
            x = np.require(x, requirements="W")  # a copy, if it may not be written
            x += 1
            return x

        cached = stream_of(3).map(lambda x: np.full(2, float(x))).cache(filename)
        assert read(cached.map(add_one).repeat(3)) == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]] * 3
        for element in cached:
            if element.flags.writeable:
                element += 100
        assert read(cached) == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]


class TestInterruptedCache:
    def test_abandoned_half_way_it_is_completed_by_a_later_pass(self, counted, filename):
        dataset = Dataset.range(5).map(counted).cache(filename)
        assert read(dataset.take(2)) == [0, 10]
        assert read(dataset, 3) == [0, 10, 20]
        assert read(dataset) == TENS
        counted.calls.clear()
        assert read(dataset) == TENS
        assert not counted.calls, "now it is complete"

    def test_an_error_does_not_make_it_complete(self, counted, filename):
        dataset = Dataset.range(5).map(counted).cache(filename)
        counted.fails_at = 3
        for _ in range(2):
            with pytest.raises(ValueError, match="told to fail"):
                read(dataset)
        counted.fails_at = None
        assert read(dataset) == read(dataset) == TENS

    @pytest.mark.parametrize("source", [Dataset.range, stream_of], ids=["table", "stream"])
    def test_reading_on_after_an_error_leaves_no_gap_in_it(self, counted, filename, source):
        dataset = source(5).map(counted).cache(filename)
        counted.fails_at = 3
        iterator = iter(dataset)
        assert rest(iterator, 3) == [0, 10, 20]
        with pytest.raises(ValueError, match="told to fail"):
            next(iterator)
        counted.fails_at = None
        for _ in range(3):  # whatever it delivers now
            try:
                rest(iterator)
            except ValueError:
                continue
        iterator.close()
        assert read(dataset) == TENS

    def test_a_full_disk_or_unwritable_file_is_reported(self, tmp_path):
        (tmp_path / "folder").mkdir()
        with pytest.raises((OSError, jt.errors.JaxtributeError), match="folder"):
            read(Dataset.range(3).map(lambda x: x).cache(tmp_path / "folder"))


class TestFileCache:
    def test_is_found_again_by_another_dataset(self, tmp_path):
        assert read(Dataset.range(5).map(lambda x: x * 10).cache(tmp_path / "cache")) == TENS

        def never(x):
            raise AssertionError("computed again")

        again = Dataset.range(5).map(never).cache(tmp_path / "cache")
        assert read(again) == read(again) == TENS
        assert read(again.shuffle(5, seed=1).batch(5).map(np.sum)) == [100]
        assert read(Dataset.range(5).map(never).cache(str(tmp_path / "cache"))) == TENS

    def test_is_not_found_before_it_is_complete(self, counted, tmp_path):
        dataset = Dataset.range(5).map(counted).cache(tmp_path / "cache")
        iterator = iter(dataset)
        rest(iterator, 3)
        assert not (tmp_path / "cache").exists()
        iterator.close()
        del iterator, dataset
        other = Counted()
        assert read(Dataset.range(5).map(other).cache(tmp_path / "cache")) == TENS
        assert other.calls == dict.fromkeys(range(5), 1), "nothing incomplete was used"
        assert (tmp_path / "cache").exists()

    def test_leaves_nothing_else_behind(self, tmp_path):
        read(Dataset.range(5).map(lambda x: x).cache(tmp_path / "complete"))
        abandoned = Dataset.range(5).map(lambda x: x).cache(tmp_path / "abandoned")
        assert read(abandoned, 2) == [0, 1]
        del abandoned
        gc.collect()
        assert [path.name for path in tmp_path.iterdir()] == ["complete"]

    def test_what_a_killed_process_left_is_ignored(self, tmp_path):
        for leftover in ("cache.1.partial", "cache.partial", "cache.lock"):
            (tmp_path / leftover).write_bytes(b"half an elem")
        assert read(Dataset.range(5).map(lambda x: x * 10).cache(tmp_path / "cache")) == TENS

    def test_two_datasets_may_fill_one_file_at_once(self, tmp_path):
        """As train and eval pipelines do that are made by the same function."""

        def make():
            return Dataset.range(5).map(lambda x: np.full(1000, x * 10)).cache(tmp_path / "cache")

        first, second = iter(make()), iter(make())
        delivered = [(int(a[0]), int(b[-1])) for a, b in zip(first, second, strict=True)]
        assert delivered == [(x, x) for x in TENS]
        assert rest(first) == rest(second) == []
        assert [element[0] for element in read(make())] == TENS

    def test_folders_are_made(self, tmp_path):
        dataset = Dataset.range(3).map(lambda x: x).cache(tmp_path / "new" / "folder" / "cache")
        assert read(dataset) == read(dataset) == [0, 1, 2]

    def test_nothing_is_written_before_it_is_read(self, tmp_path):
        Dataset.range(5).cache(tmp_path / "cache").batch(2)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        "element",
        [
            pytest.param(np.int64(2**40), id="int64"),
            pytest.param(np.float32(0.1), id="float32"),
            pytest.param(jnp.bfloat16(1.5), id="bfloat16"),
            pytest.param(jnp.arange(3, dtype=jnp.bfloat16), id="bfloat16 array"),
            pytest.param(np.bool_(True), id="bool"),
            pytest.param(np.array([[True, False]]), id="bool array"),
            pytest.param(b"a\0b\0", id="bytes"),
            pytest.param("thrée", id="str"),
            pytest.param(np.array([[b"x\0"], [b""]], object), id="array of bytes"),
            pytest.param(np.zeros((0, 3), np.float16), id="empty"),
            pytest.param(np.complex64(1j), id="complex"),
            pytest.param(np.arange(3).astype(">i4"), id="big-endian"),
            pytest.param(np.arange(6).reshape(2, 3).T, id="transposed"),
            pytest.param(np.array("2020-01-01", "datetime64[D]"), id="date"),
            pytest.param((np.int64(1), (b"x", {"b": [1.5], "a": [[2]]})), id="nested"),
            pytest.param({"z": 1, "a": 2, "é": 3}, id="dict"),
            pytest.param((1,), id="single"),
            pytest.param(((), 1), id="empty tuple inside"),
        ],
    )
    def test_elements_come_back_as_they_were(self, tmp_path, element):
        """Types included, from the file that was just written and from one that was found."""
        (expected,) = Dataset.from_tensors(element)

        def check(dataset):
            (found,) = dataset
            assert plain(found) == plain(expected)
            assert _types(found) == _types(expected)

        source = Dataset.from_tensors(element).map(lambda *parts: _as_given(parts, element))
        dataset = source.cache(tmp_path / "cache")
        check(dataset)
        check(dataset)
        check(source.cache(tmp_path / "cache"))

    @pytest.mark.parametrize(
        "element",
        [
            pytest.param(Point(np.int64(1), np.int64(2)), id="named tuple"),
            pytest.param(Example(np.int64(1)), id="dataclass"),
            pytest.param({2: np.int64(1), 10: np.int64(2)}, id="numbers as keys"),
        ],
    )
    def test_other_structures_are_kept_or_refused_but_not_changed(self, tmp_path, element):
        dataset = streamed(element).cache(tmp_path / "cache")
        try:
            found = [*dataset, *dataset]
        except jt.errors.FailedPreconditionError as error:
            assert "cache()" in str(error)  # what would work
        else:
            assert found == [element, element]

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"x", id="one byte"),
            pytest.param(b"jaxtribute cache 1\n", id="beginning only"),
            pytest.param(b"x" * 500, id="something else"),
            pytest.param(b"jaxtribute cache 1\n" + bytes(100), id="zeros"),
            pytest.param(b"jaxtribute cache 1\n" + b"\xff" * 100, id="ones"),
        ],
    )
    def test_a_file_that_is_no_cache_is_refused_by_name(self, tmp_path, content):
        (tmp_path / "cache").write_bytes(content)
        with pytest.raises(jt.errors.DataLossError, match="cache'"):
            read(Dataset.range(3).cache(tmp_path / "cache"))

    def test_a_cut_file_is_refused_by_name(self, tmp_path):
        def make():
            return Dataset.range(5).map(lambda x: np.full(10, x)).cache(tmp_path / "cache")

        read(make())
        whole = (tmp_path / "cache").read_bytes()
        for length in (len(whole) - 1, len(whole) - 9, len(whole) // 2, 30):
            (tmp_path / "cache").write_bytes(whole[:length])
            with pytest.raises(jt.errors.DataLossError, match="cache'"):
                read(make())


def _as_given(parts: tuple[Any, ...], element: Any) -> Any:
    return parts if type(element) is tuple else parts[0]


def _types(element: Any) -> Any:
    if isinstance(element, tuple):
        return tuple(_types(part) for part in element)
    if isinstance(element, dict):
        return {key: _types(part) for key, part in element.items()}
    if isinstance(element, bytes):
        return bytes
    # Values decide; whether the bytes of a number are swapped is nobody's business.
    return type(element) if element.ndim else np.generic, element.dtype.newbyteorder("=")


class TestCachesOfWorkers:
    """Workers that read different files must not find each other's elements in a cache."""

    @pytest.mark.parametrize("policy", ["FILE", "DATA"])
    def test_each_worker_delivers_its_own_part(self, tmp_path, filename, policy):
        for i in range(2):
            write_lines(tmp_path / f"{i}.txt", range(i * 4, i * 4 + 4))
        options = jt.data.Options()
        options.experimental_distribute.auto_shard_policy = jt.data.AutoShardPolicy[policy]
        dataset = (
            jt.data.TextLineDataset(Dataset.list_files(tmp_path / "*.txt", shuffle=False))
            .map(int)
            .cache(filename)
            .batch(4)
            .with_options(options)
        )
        for _ in range(2):  # with the cache empty, and filled
            delivered = []
            for worker in range(2):
                setting = InputSetting(
                    Topology(jax.devices()[:1]), jt.InputContext(2, worker, 2), peers=None
                )
                for element in distribute(dataset, setting, None):
                    delivered += np.asarray(element.values[0]).tolist()
            assert sorted(delivered) == list(range(8))


class TestSeveralIterators:
    """One dataset, read by several iterators at once."""

    DATASETS = pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda f: Dataset.range(40).map(lambda x: x), id="table"),
            pytest.param(lambda f: stream_of(40).filter(lambda x: True), id="stream"),
            pytest.param(lambda f: stream_of(40).map(lambda x: x, 3), id="parallel map"),
            pytest.param(lambda f: Dataset.range(40).map(lambda x: x, 3), id="parallel table"),
            pytest.param(lambda f: stream_of(40).prefetch(3), id="prefetch"),
            pytest.param(lambda f: stream_of(40).cache(), id="cache"),
            pytest.param(lambda f: stream_of(40).map(lambda x: x).cache(f), id="file cache"),
            pytest.param(lambda f: stream_of(40).prefetch(2).cache().prefetch(2), id="mixed"),
            pytest.param(
                lambda f: Dataset.range(4).interleave(
                    lambda x: Dataset.range(x * 10, x * 10 + 10), 1
                ),
                id="interleave",
            ),
        ],
    )

    @DATASETS
    def test_taking_turns(self, make, tmp_path):
        dataset = make(tmp_path / "cache")
        first, second = iter(dataset), iter(dataset)
        delivered = [], []
        for turn in [0, 0, 0, 1, 1, 0, 1, 1, 1, 1] * 8:
            delivered[turn].extend(rest((first, second)[turn], 1))
        assert delivered[0] + rest(first) == list(range(40))
        assert delivered[1] + rest(second) == list(range(40))
        first.close()
        second.close()
        assert read(dataset) == list(range(40))

    @DATASETS
    def test_in_threads(self, make, tmp_path):
        dataset = make(tmp_path / "cache")
        together = threading.Barrier(4, timeout=20)

        def read_all(_):
            together.wait()
            return read(dataset)

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(read_all, range(4))) == [list(range(40))] * 4
        assert read(dataset) == list(range(40))

    def test_passes_in_threads_are_different_epochs(self):
        dataset = Dataset.range(30).shuffle(30, seed=1)
        expected = {tuple(read(Dataset.range(30).shuffle(30, seed=1)))}
        again = Dataset.range(30).shuffle(30, seed=1)
        expected = {tuple(read(again)) for _ in range(4)}
        with ThreadPoolExecutor(4) as pool:
            found = set(pool.map(lambda _: tuple(read(dataset)), range(4)))
        assert found == expected

    def test_a_cache_abandoned_by_one_is_completed_by_the_other(self, counted, filename):
        dataset = Dataset.range(5).map(counted).cache(filename)
        first, second = iter(dataset), iter(dataset)
        assert rest(first, 3) == [0, 10, 20]
        assert rest(second, 1) == [0]
        first.close()
        del first
        assert rest(second) == [10, 20, 30, 40]
        counted.calls.clear()
        assert read(dataset) == TENS
        assert not counted.calls

    def test_iterators_may_move_to_another_thread(self):
        iterator = iter(stream_of(10).map(lambda x: x).prefetch(2))
        assert rest(iterator, 3) == [0, 1, 2]
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(rest, iterator).result() == list(range(3, 10))


@pytest.fixture
def threads():
    """A function that waits for the threads started during the test, and returns those left."""
    before = set(threading.enumerate())

    def left() -> list[threading.Thread]:
        started = [thread for thread in threading.enumerate() if thread not in before]
        deadline = time.monotonic() + 5
        for thread in started:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread for thread in started if thread.is_alive()]

    def running() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in before]

    left.running = running
    return left


def _fails_at_three(x):
    if x == 3:
        raise ValueError("three")
    return x


class TestPrefetch:
    @pytest.mark.parametrize("buffer_size", [0, 1, 2, 100, jt.data.AUTOTUNE, np.int64(2)])
    def test_changes_nothing(self, buffer_size):
        assert read(Dataset.range(10).prefetch(buffer_size)) == list(range(10))
        assert read(stream_of(10).prefetch(buffer_size)) == list(range(10))
        assert read(stream_of(10).prefetch(buffer_size).batch(4)) == [
            [0, 1, 2, 3], [4, 5, 6, 7], [8, 9],
        ]  # fmt: skip

    def test_several_in_a_row_and_nested(self):
        dataset = stream_of(10).prefetch(1).map(lambda x: x).prefetch(3).prefetch(2)
        assert read(dataset.repeat(2)) == [*range(10)] * 2
        nested = Dataset.range(3).interleave(lambda x: stream_of(3).prefetch(2), cycle_length=2)
        assert read(nested) == [0, 0, 1, 1, 2, 2, 0, 1, 2]
        zipped = Dataset.zip(stream_of(5).prefetch(1), stream_of(3).prefetch(4))
        assert read(zipped) == [(0, 0), (1, 1), (2, 2)]

    def test_reads_ahead_of_the_reader_but_not_further_than_its_buffer(self):
        furthest, delivered = threading.Semaphore(0), 0
        too_far = []

        def note(x):
            if x > delivered + 3 + 2:  # the buffer, one in work, one just taken
                too_far.append(int(x))
            furthest.release()
            return x

        iterator = iter(Dataset.range(100).map(note).prefetch(3))
        for _ in range(50):
            next(iterator)
            delivered += 1
        for _ in range(53):  # 50 delivered, and 3 that nobody has asked for
            assert furthest.acquire(timeout=20)
        iterator.close()
        assert not too_far

    def test_starts_with_the_first_element(self, threads):
        iterator = iter(stream_of(5).repeat().prefetch(2))
        assert not threads.running()
        next(iterator)
        assert threads.running()
        iterator.close()
        assert not threads()

    ENDLESS = pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda d: d.prefetch(2), id="last"),
            pytest.param(lambda d: d.prefetch(2).batch(2), id="before batch"),
            pytest.param(lambda d: d.prefetch(2).prefetch(2), id="twice"),
            pytest.param(lambda d: d.prefetch(2).repeat(2), id="in repeat"),
            pytest.param(lambda d: Dataset.zip(d.prefetch(1), d.prefetch(2)), id="zip"),
            pytest.param(
                lambda d: Dataset.range(9).interleave(lambda x: d.prefetch(1), 3), id="interleave"
            ),
            pytest.param(lambda d: d.prefetch(1).cache(), id="cache"),
            pytest.param(lambda d: d.map(lambda x: x, 3), id="parallel map of a stream"),
            pytest.param(lambda d: d.map(lambda x: x, 2).prefetch(2), id="parallel map, prefetch"),
            pytest.param(
                lambda d: Dataset.range(5).repeat().map(lambda x: x, 3),
                id="parallel map of a table",
            ),
        ],
    )

    @ENDLESS
    def test_threads_end_when_the_iterator_is_closed(self, threads, make):
        iterator = iter(make(stream_of(5).repeat()))
        rest(iterator, 7)
        iterator.close()
        assert not threads()
        iterator.close()  # harmless

    @ENDLESS
    def test_threads_end_when_the_iterator_is_dropped(self, threads, make):
        iterator = iter(make(stream_of(5).repeat()))
        rest(iterator, 7)
        del iterator
        gc.collect()
        assert not threads()

    def test_threads_end_at_the_end(self, threads):
        iterator = iter(stream_of(5).prefetch(2))
        assert rest(iterator) == list(range(5))
        assert not threads()
        assert rest(iterator) == [], "the end is final"

    def test_threads_end_with_an_error(self, threads):
        iterator = iter(stream_of(5).map(_fails_at_three).prefetch(2))
        with pytest.raises(ValueError, match="three"):
            rest(iterator)
        assert not threads()

    def test_breaking_out_of_a_loop_leaves_no_thread(self, threads):
        for element in stream_of(5).repeat().prefetch(2):
            if element == 3:
                break
        gc.collect()
        assert not threads()

    @pytest.mark.processes
    def test_a_program_ends_although_it_reads_ahead(self):
        program = (
            "import jaxtribute as jt\n"
            "endless = jt.data.Dataset.range(5).repeat().map(lambda x: x + 1, 3).prefetch(2)\n"
            "iterator = iter(endless)\n"
            "print(next(iterator))\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")

    @pytest.mark.parametrize("buffer_size", [-2, 1.5, None, "2"])
    def test_refuses_a_buffer_that_is_no_number(self, buffer_size):
        with pytest.raises(jt.errors.InvalidArgumentError, match="buffer_size"):
            Dataset.range(3).prefetch(buffer_size)


WAYS = pytest.mark.parametrize(
    "way",
    [
        pytest.param(lambda d: d, id="plainly"),
        pytest.param(lambda d: d.prefetch(3), id="prefetched"),
        pytest.param(lambda d: d.cache(), id="cached"),
        pytest.param(lambda d: d.repeat(2), id="repeated"),
        pytest.param(lambda d: d.prefetch(2).prefetch(2), id="prefetched twice"),
        pytest.param(lambda d: d.concatenate(Dataset.range(1)), id="concatenated"),
        pytest.param(lambda d: Dataset.range(1).flat_map(lambda x: d), id="flat_map"),
    ],
)
SOURCES = pytest.mark.parametrize("source", [Dataset.range, stream_of], ids=["table", "stream"])
PARALLEL = pytest.mark.parametrize("parallel", [None, 2], ids=["", "parallel"])


@WAYS
@SOURCES
class TestErrors:
    """An error is raised where its element was due: nothing is lost, nothing comes twice."""

    @PARALLEL
    def test_elements_before_it_are_delivered(self, way, source, parallel):
        iterator = iter(way(source(8).map(_fails_at_three, parallel)))
        assert rest(iterator, 3) == [0, 1, 2]
        with pytest.raises(ValueError, match="three") as raised:
            next(iterator)
        assert any("element 3." in note for note in raised.value.__notes__)
        iterator.close()

    @PARALLEL
    def test_reading_on_delivers_nothing_twice_and_skips_nothing_else(self, way, source, parallel):
        iterator = iter(way(source(8).map(_fails_at_three, parallel)))
        delivered = []
        for _ in range(10):
            try:
                delivered += rest(iterator, 1)
            except ValueError as error:
                assert str(error) == "three"
            if delivered and delivered[-1] == 7:
                break
        iterator.close()
        assert delivered in ([0, 1, 2], [0, 1, 2, 4, 5, 6, 7])

    def test_a_state_saved_before_it_leads_to_it(self, way, source):
        dataset = way(source(8).map(_fails_at_three))
        iterator = iter(dataset)
        rest(iterator, 2)
        state = iterator.get_state()
        for _ in range(2):
            iterator.set_state(state)
            assert rest(iterator, 1) == [2]
            with pytest.raises(ValueError, match="three"):
                next(iterator)
        iterator.close()

    @PARALLEL
    def test_stop_iteration_in_a_function_does_not_end_the_data(self, way, source, parallel):
        def stops(x):
            if x == 3:
                raise StopIteration
            return x

        for dataset in (source(8).map(stops, parallel), source(8).filter(stops)):
            with pytest.raises(RuntimeError, match="StopIteration"):
                read(way(dataset))

    def test_an_empty_iterator_in_a_function_does_not_end_the_data(self, way, source):
        """The mistake behind most such bugs: `next` of something that has no next."""
        with pytest.raises(RuntimeError, match="StopIteration"):
            read(way(source(8).map(lambda x: next(iter(range(x - 3 and 1))))))
        with pytest.raises(RuntimeError, match="StopIteration"):
            read(way(source(8).interleave(lambda x: next(iter(())))))

    def test_generators_report_their_own(self, way, source):
        def numbers():
            yield 0
            next(iter(()))

        with pytest.raises(RuntimeError, match="StopIteration"):
            read(way(Dataset.from_generator(numbers)))


def test_an_error_in_the_midst_of_a_batch_is_raised_with_its_element():
    for source, parallel in itertools.product((Dataset.range, stream_of), (None, 2)):
        iterator = iter(source(8).map(_fails_at_three, parallel).batch(2).prefetch(1))
        assert rest(iterator, 1) == [[0, 1]]
        with pytest.raises(ValueError, match="three") as raised:
            next(iterator)
        assert any("element 3." in note for note in raised.value.__notes__)
        iterator.close()
