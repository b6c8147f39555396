"""What is random depends on the seed, the epoch and the element, and on nothing else."""

import jax
import numpy as np
import pytest

import jaxtribute as jt
from tests.data._support import read, rest, stream_of, write_lines, write_records

Dataset, TextLineDataset = jt.data.Dataset, jt.data.TextLineDataset
TFRecordDataset = jt.data.TFRecordDataset


def draw(x, key):
    """Return an element, and what its key stands for: two different keys share no value."""
    return x, jax.random.key_data(key)


def draws(dataset, limit=None):
    """Return what was drawn, element by element; one that comes twice is an error."""
    found = {}
    for x, value in read(dataset, limit):
        assert x not in found
        found[x] = tuple(value)
    return found


def values(dataset, limit=None):
    return [tuple(value) for _, value in read(dataset, limit)]


SIZE = 24
EVERYTHING = Dataset.range(SIZE).map(draw, seed=7)


@pytest.fixture(scope="module")
def expected():
    return draws(Dataset.range(SIZE).map(draw, seed=7))


class TestTheKey:
    def test_is_a_key_of_jax_and_the_last_argument(self):
        def use(a, b, key):
            assert jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
            return jax.random.uniform(key) + a - b

        dataset = Dataset.range(4).map(lambda x: (x, x)).map(use, seed=1)
        found = read(dataset)
        assert all(0 <= value < 1 for value in found) and len(set(found)) == 4

    def test_draws_are_spread_evenly(self):
        found = read(Dataset.range(400).map(lambda x, key: jax.random.uniform(key), seed=3))
        counts = np.histogram(found, bins=4, range=(0, 1))[0]
        assert counts.min() > 65 and counts.max() < 135  # 100 each; four standard deviations

    def test_neighbouring_seeds_have_nothing_in_common(self):
        found = [
            value for seed in range(8) for value in values(Dataset.range(8).map(draw, seed=seed))
        ]
        assert len(set(found)) == 64

    def test_is_the_same_in_every_program(self):
        """A change here changes everybody's experiments."""
        first = values(Dataset.range(2).map(draw, seed=0))
        assert first == values(Dataset.range(2).map(draw, seed=0))

    @pytest.mark.parametrize("seed", [0, -1, 2**63, 2**100, np.int64(3), np.uint32(7)])
    def test_any_integer_is_a_seed(self, seed):
        found = values(Dataset.range(3).map(draw, seed=seed))
        assert len(set(found)) == 3
        assert found == values(Dataset.range(3).map(draw, seed=int(seed)))
        assert found == values(stream_of(3).map(draw, seed=seed))

    def test_a_seed_that_is_no_integer_is_refused_at_once(self):
        for seed in (1.5, "7", jax.random.key(0)):
            with pytest.raises((TypeError, jt.errors.InvalidArgumentError), match="seed"):
                Dataset.range(3).map(draw, seed=seed)

    def test_no_seed_means_no_key(self):
        assert read(Dataset.range(2).map(lambda *args: len(args))) == [1, 1]


class TestWhoeverReadsIt:
    """The value of an element does not depend on how it came to be read."""

    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda d: d, id="as it is"),
            pytest.param(lambda d: d.shuffle(SIZE, seed=1), id="shuffled"),
            pytest.param(lambda d: d.shuffle(SIZE), id="shuffled without a seed"),
            pytest.param(lambda d: d.shuffle(5, seed=1), id="shuffled in windows"),
            pytest.param(lambda d: d.filter(lambda x: x % 3 != 1), id="filtered"),
            pytest.param(lambda d: d.take(5), id="taken"),
            pytest.param(lambda d: d.skip(5), id="skipped"),
            pytest.param(lambda d: d.skip(5).shuffle(9, seed=1).take(7), id="all of that"),
            pytest.param(lambda d: d.prefetch(3), id="prefetched"),
            pytest.param(lambda d: d.cache(), id="cached"),
            pytest.param(lambda d: d.map(lambda x: x).cache(), id="cached after map"),
            pytest.param(lambda d: d.filter(lambda x: True).cache().shuffle(9), id="cached stream"),
            pytest.param(lambda d: d.enumerate().map(lambda i, x: x), id="enumerated"),
            pytest.param(lambda d: d.map(lambda x: x, 3), id="mapped in parallel"),
            pytest.param(lambda d: d.with_options(jt.data.Options()), id="with options"),
            pytest.param(
                lambda d: Dataset.zip(d, Dataset.range(100, 200)).map(lambda a, b: a), id="zipped"
            ),
        ],
    )
    @pytest.mark.parametrize("source", [Dataset.range, stream_of], ids=["table", "stream"])
    @pytest.mark.parametrize("parallel", [None, 2], ids=["", "parallel"])
    def test_one_source_any_pipeline(self, expected, make, source, parallel):
        found = draws(make(source(SIZE)).map(draw, parallel, seed=7))
        assert found and found == {x: expected[x] for x in found}

    @pytest.mark.parametrize("workers", [1, 2, 5])
    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda d, w, i: d.shard(w, i).map(draw, seed=7), id="before"),
            pytest.param(lambda d, w, i: d.map(draw, seed=7).shard(w, i), id="after"),
            pytest.param(
                lambda d, w, i: d.shuffle(SIZE, seed=1).shard(w, i).map(draw, seed=7), id="shuffle"
            ),
            pytest.param(
                lambda d, w, i: d.filter(lambda x: True).shard(w, i).map(draw, seed=7), id="filter"
            ),
            pytest.param(
                lambda d, w, i: (
                    d.shard(w, i).shuffle(4, seed=i).map(draw, seed=7).batch(3).unbatch()
                ),
                id="own shuffle",
            ),
        ],
    )
    def test_any_number_of_workers(self, expected, workers, make):
        found = [draws(make(Dataset.range(SIZE), workers, index)) for index in range(workers)]
        assert sum(map(len, found)) == SIZE, "each element on one worker"
        assert {x: value for part in found for x, value in part.items()} == expected

    def test_a_shuffle_with_a_seed_is_dealt_to_any_number_of_workers(self):
        whole = read(Dataset.range(SIZE).shuffle(SIZE, seed=3))
        for workers in (1, 2, 5):
            dealt = [
                read(Dataset.range(SIZE).shuffle(SIZE, seed=3).shard(workers, index))
                for index in range(workers)
            ]
            assert [dealt[i % workers][i // workers] for i in range(SIZE)] == whole

    def test_reading_only_some_elements_changes_nothing(self, expected):
        iterator = iter(EVERYTHING.skip(10))
        assert rest(iterator, 1)[0][0] == 10
        dataset = Dataset.range(SIZE).map(draw, seed=7)
        assert draws(dataset.skip(20)) == {x: expected[x] for x in range(20, SIZE)}

    def test_other_randomness_in_between_changes_nothing(self):
        once = Dataset.range(6).map(draw, seed=1).map(lambda x, first, key: (x, first), seed=2)
        assert read(once) == read(Dataset.range(6).map(draw, seed=1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for i in range(6):
        lines = [f"{i}-{j}" for j in range(i)]
        write_lines(folder / f"{i}.txt", lines)
        write_records(folder / f"{i}.tfrecord", [line.encode() for line in lines])
    return folder


class TestFilesBetweenWorkers:
    """Each line has one value, whichever worker reads its file, and in which order."""

    @pytest.mark.parametrize("workers", [1, 2, 5])
    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize(
        ("pattern", "reader"), [("*.txt", TextLineDataset), ("*.tfrecord", TFRecordDataset)]
    )
    def test_one_after_the_other(self, folder, workers, shuffle, pattern, reader):
        files = Dataset.list_files(folder / pattern, shuffle=False)
        whole = draws(reader(files).map(draw, seed=7))
        assert len(set(whole.values())) == len(whole) == 15
        found = {}
        for index in range(workers):
            own = Dataset.list_files(folder / pattern, shuffle, seed=3).shard(workers, index)
            found |= draws(reader(own).map(draw, seed=7))
        assert found == whole

    @pytest.mark.parametrize("workers", [1, 2, 5])
    @pytest.mark.parametrize("cycle_length", [1, 3])
    def test_interleaved(self, folder, workers, cycle_length):
        def lines(index, workers, cycle_length):
            return (
                Dataset.list_files(folder / "*.txt", seed=1)
                .shard(workers, index)
                .interleave(lambda name: TextLineDataset(name), cycle_length)
                .shuffle(5, seed=2)
                .map(draw, seed=7)
            )

        whole = draws(lines(0, 1, 2))
        assert len(set(whole.values())) == len(whole) == 15
        found = {}
        for index in range(workers):
            found |= draws(lines(index, workers, cycle_length))
        assert found == whole

    def test_a_map_inside_an_interleave_draws_for_each_file(self, folder):
        """The same line number in two files is not the same element."""
        dataset = Dataset.list_files(folder / "*.txt", shuffle=False).interleave(
            lambda name: TextLineDataset(name).map(draw, seed=7), cycle_length=2
        )
        found = draws(dataset)
        assert len(found) == 15
        assert len(set(found.values())) == 15


class TestEpochs:
    SOURCES = pytest.mark.parametrize("source", [Dataset.range, stream_of], ids=["table", "stream"])

    @SOURCES
    def test_each_pass_draws_anew(self, source):
        dataset = source(8).map(draw, seed=7)
        passes = [values(dataset) for _ in range(3)]
        assert len({value for drawn in passes for value in drawn}) == 24
        again = source(8).map(draw, seed=7)
        assert [values(again) for _ in range(3)] == passes, "and the same in the next program"

    @SOURCES
    def test_each_repetition_draws_anew(self, source):
        before = values(source(8).map(draw, seed=7).repeat(3))
        after = values(source(8).repeat(3).map(draw, seed=7))
        assert len(set(before)) == len(set(after)) == 24

    @SOURCES
    def test_repetitions_of_passes_and_repetitions_draw_anew(self, source):
        for make in (
            lambda d: d.map(draw, seed=7).repeat(2).repeat(3),
            lambda d: d.repeat(2).map(draw, seed=7).repeat(3),
            lambda d: d.repeat(2).repeat(3).map(draw, seed=7),
        ):
            dataset = make(source(4))
            found = values(dataset) + values(dataset)
            assert len(set(found)) == 48

    @SOURCES
    def test_what_is_cached_is_drawn_once(self, source):
        dataset = source(8).map(draw, seed=7).cache()
        assert values(dataset) == values(dataset)
        assert values(dataset.repeat(2)) == values(dataset) * 2

    @SOURCES
    def test_what_follows_a_cache_is_drawn_anew(self, source):
        dataset = source(8).map(lambda x: x).cache().map(draw, seed=7)
        assert len(set(values(dataset) + values(dataset))) == 16
        assert len(set(values(dataset.repeat(2)))) == 16

    def test_several_iterators_are_several_passes(self):
        dataset = Dataset.range(4).map(draw, seed=7)
        first, second = iter(dataset), iter(dataset)
        assert rest(first)[0] != rest(second)[0]


def _thrice(d):
    return d.concatenate(d).concatenate(d)


class TestDifferentElements:
    """No two elements of a pass share a key, wherever they come from."""

    @pytest.mark.parametrize(
        ("make", "size"),
        [
            pytest.param(lambda r: r(12), 12, id="one source"),
            pytest.param(lambda r: r(4).concatenate(r(4)), 8, id="two"),
            pytest.param(lambda r: _thrice(r(4)), 12, id="three, from the left"),
            pytest.param(
                lambda r: r(4).concatenate(r(4).concatenate(r(4))), 12, id="three, from the right"
            ),
            pytest.param(lambda r: _thrice(_thrice(r(3))), 27, id="nine"),
            pytest.param(lambda r: r(4).repeat(3), 12, id="repeat"),
            pytest.param(lambda r: r(4).repeat(2).repeat(2), 16, id="repeat of repeat"),
            pytest.param(lambda r: r(4).repeat(2).concatenate(r(4)), 12, id="repeat, then another"),
            pytest.param(lambda r: r(4).concatenate(r(4)).repeat(3), 24, id="both repeated"),
            pytest.param(lambda r: r(8).batch(2).unbatch(), 8, id="unbatch"),
            pytest.param(
                lambda r: r(4).batch(1).unbatch().concatenate(r(4)), 8, id="unbatch, then another"
            ),
            pytest.param(
                lambda r: r(8).batch(4).unbatch().batch(2).unbatch(), 8, id="unbatch of unbatch"
            ),
            pytest.param(
                lambda r: r(4).interleave(lambda x: Dataset.range(3)), 12, id="interleave"
            ),
            pytest.param(
                lambda r: r(4).interleave(lambda x: stream_of(3).repeat(2)), 24, id="with repeat"
            ),
            pytest.param(
                lambda r: r(3).interleave(lambda x: Dataset.range(3)).concatenate(r(9)),
                18,
                id="interleave, then another",
            ),
            pytest.param(
                lambda r: r(2).interleave(
                    lambda x: Dataset.range(2).interleave(lambda y: Dataset.range(2))
                ),
                8,
                id="interleave of interleave",
            ),
            pytest.param(
                lambda r: r(3).flat_map(lambda x: r(2).concatenate(r(2))), 12, id="flat_map"
            ),
            pytest.param(lambda r: Dataset.zip(r(3).repeat(2), r(6)), 6, id="zip"),
        ],
    )
    @pytest.mark.parametrize("source", [Dataset.range, stream_of], ids=["table", "stream"])
    def test_have_different_keys(self, make, size, source):
        dataset = make(source).map(lambda *args: jax.random.key_data(args[-1]), seed=7)
        found = [tuple(value) for value in read(dataset)]
        assert len(found) == size
        assert len(set(found)) == size

    def test_lines_and_what_is_concatenated_to_them(self, folder):
        lines = TextLineDataset(Dataset.list_files(folder / "*.txt", shuffle=False))
        dataset = lines.concatenate(lines).concatenate(Dataset.range(15))
        found = values(dataset.map(draw, seed=7))
        assert len(set(found)) == len(found) == 45

    def test_a_random_map_of_each_part_draws_for_each_part(self):
        """Oversampling: the same dataset twice is twice as many elements, all of them new."""
        dataset = Dataset.range(4).map(draw, seed=7)
        found = values(dataset.concatenate(dataset))
        assert len(set(found)) == 8
        interleaved = Dataset.range(3).interleave(lambda i: Dataset.range(4).map(draw, seed=7))
        assert len(set(values(interleaved))) == 12

    def test_tables_and_streams_give_the_same_keys(self):
        """So that adding a `filter` to a pipeline does not change what is drawn after it."""
        for make in (
            lambda r: _thrice(r(4)),
            lambda r: r(4).repeat(2).repeat(2),
            lambda r: r(8).batch(2).unbatch(),
            lambda r: r(8).batch(2),
            lambda r: Dataset.zip(r(3).repeat(2), r(6)),
        ):
            keys = [
                read(make(source).map(lambda *args: jax.random.key_data(args[-1]), seed=7))
                for source in (Dataset.range, stream_of)
            ]
            assert keys[0] == keys[1]
