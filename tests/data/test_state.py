"""An iterator's state continues at exactly the next element: anywhere, in any pipeline."""

import contextlib
import copy
import gzip
import itertools
import json

import jax
import numpy as np
import pytest

import jaxtribute as jt
from tests.data._support import (
    Counted,
    check_resumes,
    plain,
    read,
    rest,
    saved,
    stream_of,
    streamed,
    write_lines,
    write_records,
)

Dataset, TextLineDataset = jt.data.Dataset, jt.data.TextLineDataset
TFRecordDataset = jt.data.TFRecordDataset


def rand(x, key):
    return x, jax.random.key_data(key)


def odd(x):
    return x % 2 == 1


def tens(x):
    return Dataset.range(x * 10, x * 10 + x % 4)


TABLES = {
    "range": lambda: Dataset.range(7),
    "empty": lambda: Dataset.range(0),
    "slices": lambda: Dataset.from_tensor_slices(
        {"x": np.arange(8).reshape(4, 2), "y": list("abcd")}
    ),
    "tensors": lambda: Dataset.from_tensors((1, b"x")).repeat(3),
    "map": lambda: Dataset.range(7).map(lambda x: x * 2),
    "random map": lambda: Dataset.range(5).map(rand, seed=1),
    "parallel map": lambda: Dataset.range(9).map(lambda x: x * 2, 2),
    "enumerate": lambda: Dataset.range(5, 9).enumerate(3),
    "shuffle": lambda: Dataset.range(9).shuffle(9, seed=1),
    "shuffle in windows": lambda: Dataset.range(11).shuffle(4, seed=1),
    "shuffle without a seed": lambda: Dataset.range(9).shuffle(9),
    "two shuffles without seeds": lambda: Dataset.range(6).shuffle(6).batch(2).shuffle(3),
    "shuffle once": lambda: Dataset.range(6).shuffle(6, reshuffle_each_iteration=False).repeat(2),
    "shuffle, repeat, batch": lambda: Dataset.range(5).shuffle(5, seed=1).repeat(3).batch(4),
    "shuffle, repeat, random map": lambda: (
        Dataset.range(3).shuffle(3).repeat(2).map(rand, seed=1).shuffle(4)
    ),
    "repeat": lambda: Dataset.range(3).repeat(3),
    "repeat in repeat": lambda: Dataset.range(2).shuffle(2, seed=1).repeat(2).repeat(3),
    "take and skip": lambda: Dataset.range(12).skip(2).take(7),
    "shard": lambda: Dataset.range(12).shard(3, 1),
    "batch": lambda: Dataset.range(7).batch(3),
    "batch, drop": lambda: Dataset.range(7).batch(3, drop_remainder=True),
    "batch of batch": lambda: Dataset.range(12).batch(2).batch(2),
    "concatenate": lambda: Dataset.range(3).concatenate(Dataset.range(4).shuffle(4)),
    "zip": lambda: Dataset.zip(Dataset.range(4), {"b": Dataset.range(3).repeat().shuffle(3)}),
    "cache": lambda: Dataset.range(5).cache().repeat(2),
    "prefetch": lambda: Dataset.range(5).batch(2).prefetch(2),
    "options": lambda: Dataset.range(5).with_options(jt.data.Options()).batch(2),
}

STREAMS = {
    "generator": lambda: stream_of(6),
    "generator of nothing": lambda: stream_of(0),
    "generator of structures": lambda: streamed(*[{"a": i, "b": ("x", [i])} for i in range(3)]),
    "generator repeated": lambda: stream_of(3).repeat(2),
    "map": lambda: stream_of(6).map(lambda x: x * 2),
    "random map": lambda: stream_of(4).repeat(2).map(rand, seed=1),
    "parallel map": lambda: stream_of(11).map(lambda x: x * 2, 2),
    "parallel map, batch": lambda: stream_of(11).map(lambda x: x * 2, 2).batch(3).repeat(2),
    "filter": lambda: Dataset.range(9).filter(odd),
    "filter of a stream": lambda: stream_of(9).filter(odd),
    "filter that ends early": lambda: Dataset.range(9).filter(lambda x: x < 3),
    "filter of everything": lambda: Dataset.range(9).filter(lambda x: False),
    "filter, batch": lambda: Dataset.range(9).filter(odd).batch(3),
    "filter, batch, drop": lambda: Dataset.range(11).filter(odd).batch(3, drop_remainder=True),
    "filter, shuffle": lambda: Dataset.range(12).filter(odd).shuffle(6, seed=1),
    "filter, shuffle in windows": lambda: Dataset.range(16).filter(odd).shuffle(3),
    "shuffle, filter, repeat": lambda: Dataset.range(8).shuffle(8).filter(odd).repeat(3),
    "enumerate": lambda: Dataset.range(8).filter(odd).enumerate(2),
    "take": lambda: stream_of(8).take(3),
    "take and skip": lambda: stream_of(12).skip(3).take(5),
    "skip everything": lambda: stream_of(4).skip(9),
    "shard": lambda: stream_of(10).shard(3, 2),
    "unbatch": lambda: Dataset.range(7).batch(3).unbatch(),
    "unbatch of ragged": lambda: Dataset.range(5).map(lambda x: np.arange((x * 2) % 5)).unbatch(),
    "unbatch, batch": lambda: Dataset.range(10).batch(4).unbatch().batch(3),
    "unbatch, shuffle": lambda: Dataset.range(8).batch(4).unbatch().shuffle(3, seed=1),
    "unbatch of unbatch": lambda: Dataset.range(8).batch(2).batch(2).unbatch().unbatch(),
    "repeat of unbatch": lambda: Dataset.range(4).batch(3).unbatch().repeat(2),
    "concatenate": lambda: Dataset.range(3).concatenate(stream_of(3)),
    "concatenate three": lambda: stream_of(2).concatenate(stream_of(0)).concatenate(stream_of(2)),
    "zip": lambda: Dataset.zip(stream_of(4), Dataset.range(9).filter(odd), Dataset.range(9)),
    "zip with repeat": lambda: Dataset.zip(stream_of(5), stream_of(2).shuffle(2).repeat()),
    "flat_map": lambda: Dataset.range(5).flat_map(tens),
    "interleave": lambda: Dataset.range(6).interleave(tens, cycle_length=2),
    "interleave in blocks": lambda: stream_of(7).interleave(tens, cycle_length=3, block_length=2),
    "interleave wide": lambda: Dataset.range(3).interleave(tens, cycle_length=8),
    "interleave of shuffled": lambda: (
        Dataset.range(4).shuffle(4).interleave(lambda x: Dataset.range(3).shuffle(3), 2)
    ),
    "interleave of streams": lambda: Dataset.range(4).interleave(
        lambda x: stream_of(5).filter(odd).map(lambda y: y + x), 2
    ),
    "interleave of interleave": lambda: Dataset.range(3).interleave(
        lambda x: Dataset.range(1, 4).interleave(tens, 2).map(lambda y: y + x * 100), 2
    ),
    "interleave, shuffle, repeat": lambda: (
        Dataset.range(4).interleave(tens, 3).shuffle(4, seed=1).repeat(2)
    ),
    "interleave of prefetched": lambda: Dataset.range(3).interleave(
        lambda x: stream_of(3).prefetch(2), 2
    ),
    "prefetch": lambda: stream_of(6).prefetch(2),
    "prefetch of map": lambda: Dataset.range(6).map(lambda x: x + 1).prefetch(3).batch(2),
    "prefetch twice": lambda: stream_of(6).prefetch(1).map(lambda x: x).prefetch(4),
    "prefetch of unbatch": lambda: Dataset.range(6).batch(4).unbatch().prefetch(2),
    "prefetch, shuffle, repeat": lambda: stream_of(4).prefetch(2).shuffle(3).repeat(2).prefetch(2),
    "cache": lambda: stream_of(5).cache(),
    "cache, map": lambda: stream_of(5).cache().map(lambda x: x * 2),
    "cache of map, batch": lambda: Dataset.range(5).map(lambda x: x * 2).cache().batch(2),
    "cache, repeat": lambda: stream_of(3).cache().repeat(3),
    "cache, shuffle, repeat, batch": lambda: (
        stream_of(5).map(lambda x: x).cache().shuffle(5, seed=1).repeat(3).batch(4)
    ),
    "cache, filter, repeat": lambda: stream_of(6).cache().filter(odd).repeat(2),
    "cache of shuffle": lambda: stream_of(6).shuffle(6).cache().repeat(2).batch(4),
    "cache of cache": lambda: stream_of(4).cache().map(lambda x: x).cache().repeat(2),
    "cache, prefetch": lambda: stream_of(4).cache().prefetch(2).repeat(2),
    "prefetch, cache": lambda: stream_of(4).prefetch(2).cache().repeat(2),
    "cache in zip": lambda: Dataset.zip(stream_of(4).cache(), Dataset.range(2).repeat()).repeat(2),
    "cache in interleave": lambda: Dataset.range(3).interleave(
        lambda x: stream_of(2).cache().repeat(2), 2
    ),
    "random map of filter": lambda: Dataset.range(8).filter(odd).map(rand, seed=2).repeat(2),
    "everything": lambda: (
        Dataset.range(4)
        .shuffle(4)
        .interleave(tens, cycle_length=2)
        .cache()
        .map(rand, seed=3)
        .filter(lambda x, _: x != 20)
        .shuffle(4)
        .repeat(2)
        .batch(2)
        .unbatch()
        .enumerate()
        .prefetch(2)
    ),
}

ENDLESS = {
    "table": lambda: Dataset.range(3).shuffle(3).repeat().batch(2),
    "stream": lambda: stream_of(3).filter(odd).repeat(),
    "cache": lambda: stream_of(3).cache().shuffle(3).repeat().batch(2),
    "cache of repeat": lambda: stream_of(3).repeat().cache().map(lambda x: x),
    "shuffle of repeat": lambda: stream_of(3).repeat().shuffle(4).prefetch(2),
    "interleave": lambda: Dataset.range(4).interleave(
        lambda x: Dataset.from_tensors(x).repeat(), cycle_length=3
    ),
}


def every(pipelines):
    return pytest.mark.parametrize("make", [pytest.param(m, id=n) for n, m in pipelines.items()])


@pytest.mark.parametrize("first_pass", [0, 1], ids=["first pass", "second pass"])
class TestEveryPipeline:
    @every(TABLES)
    def test_of_tables(self, make, first_pass):
        check_resumes(make, first_pass=first_pass)

    @every(STREAMS)
    def test_of_streams(self, make, first_pass):
        check_resumes(make, first_pass=first_pass)

    @every(ENDLESS)
    def test_without_end(self, make, first_pass):
        check_resumes(make, limit=9, first_pass=first_pass)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for i, lines in enumerate([3, 0, 1, 4]):
        write_lines(folder / f"{i}.txt", [f"{i}-{j}" for j in range(lines)])
        write_records(folder / f"{i}.tfrecord", [b"%d-%d" % (i, j) for j in range(lines)])
        write_records(folder / f"{i}.gz", [b"%d-%d" % (i, j) for j in range(lines)], gzip.compress)
    (folder / "crlf").write_bytes(b"one\r\n\r\ntwo\r\nthree")
    return folder


FILES = {
    "lines": lambda f: TextLineDataset(sorted(map(str, f.glob("*.txt")))),
    "lines of one file": lambda f: TextLineDataset(f / "crlf"),
    "lines of shuffled files": lambda f: TextLineDataset(Dataset.list_files(f / "*.txt")),
    "lines repeated": lambda f: TextLineDataset(Dataset.list_files(f / "*.txt")).repeat(2),
    "lines, batch": lambda f: TextLineDataset(Dataset.list_files(f / "*.txt")).batch(3),
    "lines of prefetched names": lambda f: TextLineDataset(
        Dataset.list_files(f / "*.txt").map(lambda name: name).prefetch(2)
    ),
    "interleaved lines": lambda f: Dataset.list_files(f / "*.txt").interleave(
        TextLineDataset, cycle_length=2
    ),
    "interleaved and shuffled": lambda f: (
        Dataset.list_files(f / "*.txt")
        .interleave(lambda name: TextLineDataset(name).shuffle(2), cycle_length=3)
        .shuffle(3)
        .repeat(2)
        .prefetch(2)
    ),
    "records": lambda f: TFRecordDataset(sorted(map(str, f.glob("*.tfrecord")))),
    "compressed records": lambda f: TFRecordDataset(Dataset.list_files(f / "*.gz"), "GZIP"),
    "sharded files": lambda f: TextLineDataset(Dataset.list_files(f / "*.txt").shard(2, 1)),
    "zip of files": lambda f: Dataset.zip(
        TextLineDataset(f / "3.txt"), TFRecordDataset(f / "3.tfrecord")
    ),
    "cache of lines": lambda f: TextLineDataset(f / "3.txt").cache().shuffle(4).repeat(2),
}


@pytest.mark.parametrize("make", [pytest.param(m, id=n) for n, m in FILES.items()])
def test_of_files(folder, make):
    check_resumes(lambda: make(folder))
    check_resumes(lambda: make(folder), first_pass=1)


class TestOfFileCaches:
    MAKERS = pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda f: stream_of(5).cache(f), id="cache"),
            pytest.param(lambda f: stream_of(5).cache(f).map(lambda x: x).repeat(2), id="map"),
            pytest.param(
                lambda f: stream_of(5).cache(f).shuffle(5, seed=1).repeat(2).batch(2), id="shuffle"
            ),
        ],
    )

    @MAKERS
    def test_where_the_file_is_found_again(self, tmp_path, make):
        check_resumes(lambda: make(tmp_path / "cache"))

    @MAKERS
    def test_where_the_file_is_gone(self, tmp_path, make):
        numbers = itertools.count()
        check_resumes(lambda: make(tmp_path / f"cache{next(numbers)}"))
        check_resumes(lambda: make(tmp_path / f"cache{next(numbers)}"), first_pass=1)


class TestAcrossConditions:
    """What may be different when a state is restored."""

    def test_a_cache_that_was_filled_in_another_order_is_not_mixed_with_it(self):
        def make():
            return stream_of(8).shuffle(8).map(lambda x: x).cache().batch(2)

        iterator = iter(make())
        before = rest(iterator, 2)
        state, left = saved(iterator), rest(iterator)
        other = make()
        read(other)  # another seed, so another order, which its cache keeps
        resumed = iter(other)
        try:
            resumed.set_state(state)
            found = rest(resumed)
        except jt.errors.JaxtributeError:
            return  # to say so is as good as to do it
        assert found == left, f"after {before}"

    def test_a_source_that_got_shorter_is_reported(self):
        size = 8

        def make():
            return Dataset.from_generator(lambda: range(size)).batch(2)

        iterator = iter(make())
        rest(iterator, 3)
        state = saved(iterator)
        size = 4
        fresh = iter(make())
        with pytest.raises(jt.errors.InvalidArgumentError, match="element 6"):
            fresh.set_state(state)

    def test_an_interleaved_source_that_got_shorter_is_reported(self):
        size = 8

        def make():
            return Dataset.from_generator(lambda: range(size)).interleave(tens, 2)

        iterator = iter(make())
        rest(iterator, 7)
        state = saved(iterator)
        size = 2
        fresh = iter(make())
        with pytest.raises(jt.errors.InvalidArgumentError):
            fresh.set_state(state)

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (lambda: Dataset.range(5), lambda: stream_of(5).filter(odd)),
            (lambda: stream_of(5).filter(odd), lambda: Dataset.range(5)),
            (lambda: stream_of(5).batch(2), lambda: stream_of(5).shuffle(3, seed=1)),
            (lambda: Dataset.range(5).shuffle(5), lambda: Dataset.range(5)),
            (lambda: Dataset.range(5), lambda: Dataset.range(5).shuffle(5)),
        ],
    )
    def test_a_state_of_another_dataset_is_refused(self, first, second):
        state = saved(iter(first()))
        with pytest.raises(jt.errors.InvalidArgumentError, match="state"):
            iter(second()).set_state(state)

    @pytest.mark.parametrize(
        "make",
        [
            lambda fn: Dataset.range(200).map(fn).batch(2),
            lambda fn: stream_of(200).map(fn).batch(2),
            lambda fn: stream_of(200).map(fn, 3).batch(2),
            lambda fn: stream_of(200).map(fn).cache().batch(2),
            lambda fn: stream_of(200).batch(2).map(lambda batch: [fn(x) for x in batch]),
            lambda fn: stream_of(200).shuffle(3, seed=1).map(fn).batch(2).prefetch(2),
        ],
    )
    @pytest.mark.parametrize("before", [0, 30])
    def test_a_state_saved_after_an_error_is_before_what_could_not_be_read(self, make, before):
        fn = Counted()
        expected = read(make(fn))
        iterator = iter(make(fn))
        rest(iterator, before)
        iterator.set_state(saved(iterator))
        fn.fails_at = 151
        with pytest.raises(ValueError, match="told to fail"):
            rest(iterator)
        state = saved(iterator)
        with pytest.raises(ValueError, match="told to fail"):
            next(iterator)
        fn.fails_at = None
        assert state == saved(iterator)
        iterator.set_state(state)
        done = state["steps"]
        assert done > 70
        assert rest(iterator) == expected[done:]

    @pytest.mark.parametrize("state", [{}, {"pass": 0}, None, []])
    def test_what_is_no_state_is_refused(self, state):
        with pytest.raises((jt.errors.InvalidArgumentError, TypeError), match="state"):
            iter(Dataset.range(5)).set_state(state)

    def test_a_later_pass_is_restored_as_that_pass(self):
        def make():
            return Dataset.range(10).shuffle(10, seed=1)

        dataset = make()
        passes = [read(dataset) for _ in range(3)]
        iterator = iter(dataset)
        begun = rest(iterator, 4)
        fresh = iter(make())
        fresh.set_state(saved(iterator))
        left = rest(fresh)
        assert sorted(begun + left) == list(range(10))
        assert begun + left not in passes

    def test_the_passes_after_a_restored_one_follow_it(self):
        """So that a loop over epochs goes on as it would have without the interruption."""

        def make():
            return Dataset.range(10).shuffle(10, seed=1)

        dataset = make()
        passes = [read(dataset) for _ in range(5)]
        interrupted = make()
        read(interrupted)
        read(interrupted)
        iterator = iter(interrupted)
        rest(iterator, 4)

        resumed = make()
        restored = iter(resumed)
        restored.set_state(saved(iterator))
        assert rest(restored) == passes[2][4:]
        assert [read(resumed), read(resumed)] == passes[3:]


class TestTheStateItself:
    def test_does_not_change_when_the_iterator_goes_on(self):
        for make in (*TABLES.values(), *STREAMS.values()):
            with contextlib.closing(iter(make())) as iterator:
                rest(iterator, 2)
                state = iterator.get_state()
                before = copy.deepcopy(state)
                rest(iterator, 3)
                assert state == before

    def test_taking_it_changes_nothing(self):
        for make in (*TABLES.values(), *STREAMS.values()):
            dataset = make()
            with contextlib.closing(iter(dataset)) as iterator:
                with_states = []
                for element in iterator:
                    with_states.append(plain(element))
                    iterator.get_state()
            again = make()
            assert len(with_states) == len(read(again))

    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda d: d.shuffle(1000), id="shuffle"),
            pytest.param(lambda d: d.batch(500), id="batch"),
            pytest.param(lambda d: d.cache(), id="cache"),
            pytest.param(lambda d: d.prefetch(500), id="prefetch"),
            pytest.param(lambda d: d.batch(500).unbatch(), id="unbatch"),
            pytest.param(lambda d: d.map(lambda x: x, 8), id="parallel map"),
            pytest.param(lambda d: d.repeat(), id="repeat"),
        ],
    )
    def test_is_small(self, make):
        """It says where elements are found; it does not hold them."""
        with contextlib.closing(iter(make(stream_of(2000)))) as iterator:
            rest(iterator, 1500)
            assert len(json.dumps(iterator.get_state())) < 300

    def test_iterators_are_their_own_iterators(self):
        iterator = iter(stream_of(4))
        assert iter(iterator) is iterator
        assert rest(iterator, 2) == [0, 1]
        assert [plain(x) for x in iterator] == [2, 3]

    def test_grain_takes_it_for_one_of_its_own(self):
        grain = pytest.importorskip("grain")
        assert isinstance(iter(Dataset.range(3)), grain.DatasetIterator)
