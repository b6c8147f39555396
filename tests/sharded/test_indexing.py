"""Indices into sharded variables mean what they mean to NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import jaxtribute as jt
from jaxtribute.sharded import ShardedVariable
from jaxtribute.variables import Variable


def sharded(array, sizes):
    parts = np.split(np.asarray(array), np.cumsum(sizes)[:-1])
    return ShardedVariable([jt.Variable(part, name=f"w/part_{i}") for i, part in enumerate(parts)])


TEN = np.arange(10, dtype=np.float32)
EIGHT = np.arange(16, dtype=np.float32).reshape(8, 2)
LAYOUTS = [(8,), (3, 3, 2), (1, 6, 1), (2, 0, 6)]
KEPT = {sizes: sharded(EIGHT, sizes) for sizes in LAYOUTS}


class TestRows:
    """R182."""

    @pytest.mark.parametrize(
        ("index", "expected"),
        [
            (slice(2, 8, 3), [2, 5]),
            (slice(9, 3, -2), [9, 7, 5]),
            (slice(None, None, -1), list(range(9, -1, -1))),
            (slice(-100, 2), [0, 1]),
            (slice(8, 2), []),
            (slice(2, 100), list(range(2, 10))),
            (slice(None), list(range(10))),
            (5, 5),
            (-1, 9),
            (np.int64(4), 4),
            (np.array(4), 4),
            (..., list(range(10))),
            (TEN > 6, [7, 8, 9]),
            ([8, -1, 0, 8], [8, 9, 0, 8]),
            ([], []),
            (np.array([[0, 9], [5, 5]]), [[0, 9], [5, 5]]),
        ],
        ids=str,
    )
    def test_of_ten(self, index, expected):
        result = sharded(TEN, [3, 3, 4])[index]
        assert isinstance(result, jax.Array)
        assert result.dtype == jnp.float32
        assert result.tolist() == expected

    def test_negative_bounds_of_negative_steps(self):
        table = sharded(EIGHT, [3, 3, 2])
        assert table[2:-8:-1].tolist() == EIGHT[[2, 1]].tolist()
        assert table[2:-10:-1].tolist() == EIGHT[[2, 1, 0]].tolist()

    def test_a_mask_of_jax(self):
        mask = jnp.asarray(TEN) > 6
        assert sharded(TEN, [3, 3, 4])[mask].tolist() == [7, 8, 9]


class TestErrors:
    """R181."""

    @pytest.mark.parametrize(
        ("index", "error"),
        [
            (8, IndexError),
            (-9, IndexError),
            ((0, 2), IndexError),
            ((0, -3), IndexError),
            ((0, 0, 0), IndexError),
            ((..., 0, ...), IndexError),
            ([0, 8], IndexError),
            (slice(None, None, 0), ValueError),
            (np.ones(7, bool), IndexError),
            (1.5, IndexError),
            ("a", IndexError),
            ([0.5], IndexError),
            (jnp.array(1), TypeError),
            (jnp.array([1, 2]), TypeError),
            ((0, jnp.array(1)), TypeError),
            (slice(jnp.array(1), None), TypeError),
            (slice(None, jnp.array(1)), TypeError),
            (slice(None, None, jnp.array(1)), TypeError),
        ],
        ids=str,
    )
    def test_that_say_why(self, index, error):
        with pytest.raises(error) as caught:
            KEPT[3, 3, 2][index]
        assert str(caught.value)

    def test_a_variable_is_no_index(self):
        with pytest.raises(TypeError, match="embedding_lookup"):
            KEPT[3, 3, 2][jt.Variable(1)]

    def test_nor_is_a_mask_known_too_late(self):
        with pytest.raises(TypeError, match="known at once"):
            jax.jit(lambda mask: KEPT[3, 3, 2][mask])(jnp.ones(8, bool))


@given(hnp.basic_indices((8, 2), allow_newaxis=True), st.sampled_from(LAYOUTS))
def test_every_basic_index_is_that_of_numpy(index, sizes):
    result = KEPT[sizes][index]
    expected = EIGHT[index]
    assert result.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(result), expected)


@given(
    st.one_of(
        hnp.arrays(bool, (8,)),
        hnp.arrays(bool, (8, 2)),
        hnp.arrays(np.int64, hnp.array_shapes(max_dims=2), elements=st.integers(-8, 7)),
        st.tuples(hnp.arrays(np.int64, (3,), elements=st.integers(-8, 7)), st.integers(-2, 1)),
        st.tuples(hnp.arrays(bool, (8,)), st.slices(2)),
        st.tuples(st.slices(8), hnp.arrays(np.int64, (3,), elements=st.integers(-2, 1))),
        st.tuples(st.none(), hnp.arrays(bool, (8,))),
        st.tuples(st.just(...), hnp.arrays(bool, (2,))),
        st.booleans(),
    ),
    st.sampled_from(LAYOUTS),
)
def test_arrays_as_indices_are_those_of_numpy(index, sizes):
    result = KEPT[sizes][index]
    expected = EIGHT[index]
    assert result.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(result), expected)


class TestReading:
    @pytest.mark.parametrize(
        ("index", "read"),
        [
            (0, ["w/part_0"]),
            (-1, ["w/part_2"]),
            (slice(2, 5), ["w/part_0", "w/part_1"]),
            (slice(7, None, -8), ["w/part_2"]),
            (slice(0, 0), []),
            ((slice(3, 4), 1), ["w/part_1"]),
            (None, ["w/part_0", "w/part_1", "w/part_2"]),
        ],
        ids=str,
    )
    def test_only_the_shards_that_are_needed(self, index, read, monkeypatch):
        seen = []
        value = Variable.value
        monkeypatch.setattr(Variable, "value", lambda self: seen.append(self.name) or value(self))
        KEPT[3, 3, 2][index]
        assert seen == read

    def test_inside_a_compiled_function(self):
        table = sharded(EIGHT, [3, 3, 2])
        step = jt.function(lambda x: table[2:7:2].sum() * x + table[-1, 0])
        assert step(jnp.float32(2.0)) == EIGHT[2:7:2].sum() * 2 + 14
        table.variables[2].assign([[0, 0], [100, 0]])
        assert step(jnp.float32(2.0)) == (EIGHT[2:5:2].sum() + 0) * 2 + 100
