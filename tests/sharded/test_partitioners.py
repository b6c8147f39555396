"""How many shards variables get, and which rows."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute.experimental import partitioners
from jaxtribute.sharded import div_sizes, number_of_shards

K = 1 << 10


def named(case):
    return str(case).replace(" ", "")


class TestFixedShards:
    """R165."""

    @pytest.mark.parametrize(
        ("shards", "shape", "axis", "expected"),
        [
            (2, (10, 3), 0, [2, 1]),
            (4, (3,), 0, [3]),
            (2, (10, 3), 1, [1, 2]),
            (1, (10, 3), 0, [1, 1]),
            (5, (0, 3), 0, [1, 1]),
        ],
        ids=named,
    )
    def test_as_many_as_asked_for_or_rows(self, shards, shape, axis, expected):
        partitioner = partitioners.FixedShardsPartitioner(shards)
        assert partitioner(shape, jnp.float32, axis) == expected


class TestMinSize:
    """R166."""

    @pytest.mark.parametrize(
        ("arguments", "shape", "dtype", "expected"),
        [
            ((4, 2), (6, 1), np.float32, [2, 1]),
            ((4, 10), (6, 1), np.float32, [6, 1]),
            ((4,), (6, 1), np.float32, [1, 1]),
            ((), (1 << 20, 1), np.float32, [1, 1]),
            ((256 * K, 4), (1000, 100), np.float32, [2, 1]),
            ((256 * K, 3), (1000, 300), np.float32, [3, 1]),
            ((1000, 10), (100, 9), np.float32, [4, 1]),
            ((1000, 10), (100, 9), jnp.bfloat16, [2, 1]),
            ((64, 10), (6, 4), str, [6, 1]),
            ((64, 10), (6, 4), np.dtype("S3"), [6, 1]),
            ((64, 10, 4), (6, 4), str, [2, 1]),
            ((4, 10), (0, 4), np.float32, [1, 1]),
        ],
        ids=named,
    )
    def test_as_many_as_the_size_allows(self, arguments, shape, dtype, expected):
        assert partitioners.MinSizePartitioner(*arguments)(shape, dtype) == expected

    def test_another_axis(self):
        assert partitioners.MinSizePartitioner(4, 2)((6, 3), np.float32, axis=1) == [1, 2]


class TestMaxSize:
    """R167."""

    @pytest.mark.parametrize(
        ("arguments", "shape", "expected"),
        [
            ((4,), (6, 1), [6, 1]),
            ((4, 2), (6, 1), [2, 1]),
            ((1024,), (6, 1), [1, 1]),
            ((8,), (6, 1), [3, 1]),
            ((10,), (7, 1), [4, 1]),
            ((1000,), (100, 9), [4, 1]),
            ((2,), (6, 1), [6, 1]),
            ((4, 0), (6, 1), [6, 1]),
            ((4,), (0, 1), [1, 1]),
            ((4,), (5, 0), [1, 1]),
        ],
        ids=named,
    )
    def test_as_many_as_the_size_requires(self, arguments, shape, expected):
        assert partitioners.MaxSizePartitioner(*arguments)(shape, np.float32) == expected

    def test_strings(self):
        assert partitioners.MaxSizePartitioner(64)((6, 4), str) == [6, 1]
        assert partitioners.MaxSizePartitioner(64, bytes_per_string=8)((6, 4), str) == [3, 1]


class TestBadArguments:
    """R168."""

    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda: partitioners.FixedShardsPartitioner(0), id="num_shards"),
            pytest.param(lambda: partitioners.MinSizePartitioner(0), id="min_shard_bytes"),
            pytest.param(lambda: partitioners.MinSizePartitioner(4, 0), id="max_shards"),
            pytest.param(lambda: partitioners.MinSizePartitioner(4, 1, 0), id="bytes_per_string"),
            pytest.param(lambda: partitioners.MaxSizePartitioner(0), id="max_shard_bytes"),
            pytest.param(lambda: partitioners.MaxSizePartitioner(4, -1), id="max_shards, max size"),
            pytest.param(lambda: partitioners.MaxSizePartitioner(4, 1, -1), id="strings, max size"),
        ],
    )
    def test_are_refused_when_it_is_made(self, make):
        with pytest.raises(ValueError, match="must be positive, got"):
            make()

    @pytest.mark.parametrize(
        "partitioner",
        [
            partitioners.FixedShardsPartitioner(2),
            partitioners.MinSizePartitioner(),
            partitioners.MaxSizePartitioner(4),
        ],
        ids=lambda partitioner: type(partitioner).__name__,
    )
    @pytest.mark.parametrize(("shape", "axis"), [((), 0), ((3,), 1), ((3, 2), -1)], ids=named)
    def test_an_axis_that_does_not_exist(self, partitioner, shape, axis):
        with pytest.raises(ValueError, match="no axis"):
            partitioner(shape, np.float32, axis)

    def test_the_base_class_decides_nothing(self):
        with pytest.raises(TypeError):
            partitioners.Partitioner()


class TestDivision:
    """R171."""

    @pytest.mark.parametrize(
        ("rows", "shards", "expected"),
        [
            (13, 5, [3, 3, 3, 2, 2]),
            (10, 4, [3, 3, 2, 2]),
            (5, 2, [3, 2]),
            (2, 5, [1, 1]),
            (6, 3, [2, 2, 2]),
            (0, 3, [0]),
            (7, 1, [7]),
        ],
        ids=named,
    )
    def test_the_first_shards_get_one_more(self, rows, shards, expected):
        assert div_sizes(rows, shards) == expected

    @given(st.integers(0, 10**12), st.integers(1, 1000))
    def test_every_row_is_in_one_shard(self, rows, shards):
        sizes = div_sizes(rows, shards)
        assert sum(sizes) == rows
        assert len(sizes) == max(1, min(rows, shards))
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)


class TestAnswers:
    """R172, R173."""

    @pytest.mark.parametrize(
        ("answer", "shape", "expected"),
        [([2, 1], (5, 2), 2), ([1, 1], (5, 2), 1), ((3,), (5,), 3), ([9, 1], (5, 2), 5)],
        ids=named,
    )
    def test_that_divide_the_first_axis(self, answer, shape, expected):
        assert number_of_shards(lambda shape, dtype: answer, shape, np.float32) == expected

    @pytest.mark.parametrize("answer", [None, [], [0, 1], [-1, 1], [2, 2], [1, 2], 3], ids=named)
    def test_that_do_not_are_refused(self, answer):
        with pytest.raises(ValueError, match="variable_partitioner") as caught:
            number_of_shards(lambda shape, dtype: answer, (5, 2), np.float32)
        assert repr(answer) in str(caught.value)

    def test_a_scalar_is_never_divided_nor_asked_about(self):
        assert number_of_shards(lambda shape, dtype: 1 / 0, (), np.float32) == 1

    def test_a_partitioner_is_asked_with_shape_and_dtype(self):
        asked = {}
        number_of_shards(lambda **arguments: asked.update(arguments) or [1], (5,), np.int8)
        assert asked == {"shape": (5,), "dtype": np.int8}
