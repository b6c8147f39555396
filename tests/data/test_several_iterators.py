"""One dataset, read by several iterators at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jaxtribute as jt
from tests.data._support import read, rest, stream_of

Dataset = jt.data.Dataset


class TestSeveralIterators:
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
        assert read(dataset) == [0, 10, 20, 30, 40]
        assert not counted.calls

    def test_iterators_may_move_to_another_thread(self):
        iterator = iter(stream_of(10).map(lambda x: x).prefetch(2))
        assert rest(iterator, 3) == [0, 1, 2]
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(rest, iterator).result() == list(range(3, 10))
