"""Caches, in memory and in files: computed once, complete or not there, never mixed up."""

import dataclasses
import gc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute._topology import Topology
from jaxtribute.input import InputSetting, distribute
from tests.data._support import Counted, plain, read, rest, stream_of, streamed, write_lines

Dataset = jt.data.Dataset

TENS = [0, 10, 20, 30, 40]


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Example:
    x: Any


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
