"""Reading ahead, and errors: threads end, and an error is raised where its element was due."""

import gc
import itertools
import subprocess
import threading
import time

import numpy as np
import pytest

import jaxtribute as jt
from tests._interpreter import STRICT_PYTHON
from tests.data._support import read, rest, stream_of

Dataset = jt.data.Dataset


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
            [*STRICT_PYTHON, "-c", program],
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
