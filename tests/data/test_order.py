"""Which elements, and in which order: shuffle, repeat, take, skip, shard."""

import numpy as np
import pytest

import jaxtribute as jt
from tests.data._support import read, stream_of

Dataset = jt.data.Dataset

SOURCES = pytest.mark.parametrize("source", [Dataset.range, stream_of], ids=["table", "stream"])


@SOURCES
class TestShuffle:
    @pytest.mark.parametrize("size", [0, 1, 2, 10, 300])
    @pytest.mark.parametrize("buffer_size", [1, 3, 256, 1000])
    def test_delivers_each_element_once(self, source, size, buffer_size):
        dataset = source(size).shuffle(buffer_size, seed=3)
        assert sorted(read(dataset)) == list(range(size))

    def test_mixes_all_of_a_small_dataset(self, source):
        order = read(source(100).shuffle(100, seed=3))
        moved = [abs(position - x) for position, x in enumerate(order)]
        assert 20 < np.mean(moved) < 50  # a third of the size, on average

    def test_a_buffer_mixes_windows_of_its_size(self, source):
        order = read(source(10).shuffle(4, seed=3))
        windows = [order[:4], order[4:8], order[8:]]
        assert [sorted(w) for w in windows] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert order != list(range(10))

    def test_different_windows_have_different_orders(self, source):
        order = read(source(64).shuffle(8, seed=3))
        relative = {tuple(x % 8 for x in order[i : i + 8]) for i in range(0, 64, 8)}
        assert len(relative) == 8

    def test_a_buffer_of_one_changes_nothing(self, source):
        assert read(source(20).shuffle(1)) == list(range(20))

    def test_every_order_comes_up_equally_often(self, source):
        orders = [tuple(read(source(3).shuffle(3, seed=seed))) for seed in range(600)]
        counts = [orders.count(order) for order in set(orders)]
        assert len(counts) == 6
        assert min(counts) > 60 and max(counts) < 140  # 100 each; four standard deviations

    def test_a_seed_gives_one_order(self, source):
        def order(seed):
            return read(source(20).shuffle(20, seed=seed))

        assert order(5) == order(5)
        assert order(5) != order(6)

    @pytest.mark.parametrize(
        "seed", [0, -1, 2**63, 2**100, np.int64(3), np.int32(-3), np.uint64(2**63), True]
    )
    def test_any_integer_is_a_seed(self, source, seed):
        assert sorted(read(source(6).shuffle(6, seed=seed))) == list(range(6))
        assert read(source(6).shuffle(6, seed=seed)) == read(source(6).shuffle(6, seed=int(seed)))

    def test_without_a_seed_each_dataset_has_its_own_order(self, source):
        assert read(source(50).shuffle(50)) != read(source(50).shuffle(50))

    def test_each_pass_has_its_own_order(self, source):
        dataset = source(20).shuffle(20, seed=1)
        passes = [read(dataset) for _ in range(3)]
        assert len({tuple(p) for p in passes}) == 3
        again = source(20).shuffle(20, seed=1)
        assert [read(again) for _ in range(3)] == passes

    def test_each_repetition_has_its_own_order(self, source):
        order = read(source(20).shuffle(20, seed=1).repeat(3))
        parts = order[:20], order[20:40], order[40:]
        assert len({tuple(part) for part in parts}) == 3
        assert all(sorted(part) == list(range(20)) for part in parts)

    def test_reshuffling_can_be_turned_off(self, source):
        dataset = source(20).shuffle(20, seed=1, reshuffle_each_iteration=False)
        assert read(dataset) == read(dataset)
        assert read(dataset.repeat(2)) == read(dataset) * 2
        unseeded = source(20).shuffle(20, reshuffle_each_iteration=False)
        assert read(unseeded) == read(unseeded)

    def test_shuffling_before_repeating_keeps_epochs_apart(self, source):
        order = read(source(10).shuffle(10, seed=1).repeat(3))
        assert [sorted(order[i : i + 10]) for i in (0, 10, 20)] == [list(range(10))] * 3

    def test_shuffling_after_repeating_mixes_epochs(self, source):
        order = read(source(10).repeat(3).shuffle(30, seed=1))
        assert sorted(order) == sorted([*range(10)] * 3)
        assert sorted(order[:10]) != list(range(10))

    def test_what_has_no_end_is_shuffled_in_windows(self, source):
        order = read(source(3).repeat().shuffle(6, seed=1), 12)
        assert sorted(order[:6]) == sorted(order[6:]) == [0, 0, 1, 1, 2, 2]

    def test_two_shuffles_in_a_row(self, source):
        assert sorted(read(source(30).shuffle(5, seed=1).shuffle(7, seed=1))) == list(range(30))

    @pytest.mark.parametrize("buffer_size", [0, -1, 2.5, None, "10"])
    def test_refuses_a_buffer_without_room(self, source, buffer_size):
        with pytest.raises((jt.errors.InvalidArgumentError, TypeError), match="buffer_size"):
            source(3).shuffle(buffer_size)

    @pytest.mark.parametrize("seed", [1.5, "7"])
    def test_refuses_a_seed_that_is_no_integer_at_once(self, source, seed):
        with pytest.raises((jt.errors.InvalidArgumentError, TypeError), match="seed"):
            source(3).shuffle(3, seed=seed)


class TestUnseededShufflesInsideInterleave:
    def test_differ_from_dataset_to_dataset(self):
        def orders():
            inner = Dataset.range(3).interleave(lambda x: Dataset.range(30).shuffle(30), 1)
            order = read(inner)
            return [tuple(order[i : i + 30]) for i in (0, 30, 60)]

        first, second = orders(), orders()
        assert len(set(first)) == 3, "each element has an order of its own"
        assert first != second, "without a seed, each dataset has an order of its own"


@SOURCES
class TestRepeat:
    def test_several_times(self, source):
        assert read(source(3).repeat(3)) == [0, 1, 2] * 3
        assert read(source(3).repeat(1)) == [0, 1, 2]
        assert read(source(3).repeat(0)) == []

    @pytest.mark.parametrize("count", [None, -1])
    def test_without_end(self, source, count):
        assert read(source(2).repeat(count), 7) == [0, 1, 0, 1, 0, 1, 0]
        assert read(source(2).repeat(count).take(5)) == [0, 1, 0, 1, 0]

    def test_nothing_repeated_is_nothing(self, source):
        assert read(source(0).repeat()) == []
        assert read(source(0).repeat(3)) == []

    def test_nested(self, source):
        assert read(source(2).repeat(2).repeat(2)) == [0, 1] * 4
        assert read(source(2).repeat().repeat(3), 5) == [0, 1, 0, 1, 0]
        assert read(source(2).repeat().repeat(0), 5) == []

    def test_batches_straddle_repetitions(self, source):
        assert read(source(3).repeat(2).batch(2)) == [[0, 1], [2, 0], [1, 2]]
        assert read(source(3).batch(2).repeat(2)) == [[0, 1], [2], [0, 1], [2]]
        assert read(source(3).repeat().batch(5), 3) == [
            [0, 1, 2, 0, 1], [2, 0, 1, 2, 0], [1, 2, 0, 1, 2],
        ]  # fmt: skip

    def test_a_batch_may_hold_many_repetitions(self, source):
        assert read(source(1).repeat(5).batch(10)) == [[0] * 5]
        assert read(source(2).shuffle(2, seed=1).repeat(4).batch(100).map(np.sum)) == [4]


@SOURCES
class TestTakeAndSkip:
    @pytest.mark.parametrize(("count", "expected"), [(0, 0), (3, 3), (5, 5), (9, 5), (-1, 5)])
    def test_take(self, source, count, expected):
        assert read(source(5).take(count)) == list(range(expected))

    @pytest.mark.parametrize(("count", "expected"), [(0, 0), (3, 3), (5, 5), (9, 5), (-1, 5)])
    def test_skip(self, source, count, expected):
        assert read(source(5).skip(count)) == list(range(expected, 5))

    def test_together_they_split(self, source):
        dataset = source(10)
        assert read(dataset.take(4)) + read(dataset.skip(4)) == list(range(10))
        assert read(dataset.skip(3).take(4)) == [3, 4, 5, 6]
        assert read(dataset.take(7).skip(5)) == [5, 6]

    def test_take_reads_no_more_than_it_takes(self, source):
        read_elements = []
        dataset = source(10).map(lambda x: read_elements.append(int(x)) or x)
        read(dataset.take(3))
        assert read_elements == [0, 1, 2]

    def test_numpy_counts(self, source):
        assert read(source(10).skip(np.int64(8)).take(np.int32(1))) == [8]


@SOURCES
class TestShard:
    def test_deals_in_turn(self, source):
        shards = [read(source(10).shard(3, index)) for index in range(3)]
        assert shards == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]

    def test_one_shard_is_everything(self, source):
        assert read(source(5).shard(1, 0)) == list(range(5))

    def test_more_shards_than_elements(self, source):
        assert [read(source(2).shard(4, index)) for index in range(4)] == [[0], [1], [], []]

    def test_shards_of_shards(self, source):
        assert read(source(12).shard(2, 1).shard(3, 2)) == [5, 11]

    def test_of_what_has_no_end(self, source):
        assert read(source(3).repeat().shard(2, 1), 4) == [1, 0, 2, 1]

    def test_batches_are_elements(self, source):
        assert read(source(10).batch(2).shard(2, 1)) == [[2, 3], [6, 7]]

    @pytest.mark.parametrize(("num_shards", "index"), [(2, 2), (2, -1), (0, 0), (-1, 0), (-2, -2)])
    def test_refuses_an_index_that_does_not_exist(self, source, num_shards, index):
        with pytest.raises(jt.errors.InvalidArgumentError, match=r"shard\("):
            source(4).shard(num_shards, index)

    def test_a_hint_can_only_be_distributed(self, source):
        hint = jt.data.experimental.SHARD_HINT
        dataset = source(4).shard(hint, hint).batch(2)
        with pytest.raises(jt.errors.InvalidArgumentError, match=r"AutoShardPolicy\.HINT"):
            read(dataset)
