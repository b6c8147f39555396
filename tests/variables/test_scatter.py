"""Changes of some rows: what indices are taken, and what becomes of repeated ones."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jt
from jaxtribute.errors import InvalidArgumentError
from jaxtribute.ps._cell import Cell
from jaxtribute.ps._operations import carry_out
from jaxtribute.variables import _scatter

KINDS = ["add", "sub", "mul", "div", "min", "max", "update"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def mirrored():
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


def made_in(strategy):
    with strategy.scope():
        return jt.Variable([1.0, 2.0, 3.0], name="v")


VARIABLES = {
    "plain": lambda: jt.Variable([1.0, 2.0, 3.0], name="v"),
    "one device": lambda: made_in(jt.OneDeviceStrategy("CPU:1")),
    "mirrored": lambda: made_in(mirrored()),
    "sharded": lambda: jt.ShardedVariable([jt.Variable([1.0, 2.0]), jt.Variable([3.0])], "v"),
}
every_variable = pytest.mark.parametrize("make", VARIABLES.values(), ids=VARIABLES.keys())


@pytest.fixture
def checking():
    jt.config.check_ids_in_functions(True)
    yield
    jt.config.check_ids_in_functions(False)


def scatter(variable, kind, values, indices):
    getattr(variable, f"scatter_{kind}")(jt.IndexedSlices(values, indices))


class TestIndicesThatAreKnown:
    @every_variable
    @every_kind
    @pytest.mark.parametrize("bad", [3, -1, -3, 2**33 + 1])
    def test_out_of_range_are_refused_and_nothing_is_changed(self, make, kind, bad):
        v = make()
        for indices in ([0, bad], np.array([0, bad])):
            with pytest.raises(InvalidArgumentError, match=rf"'v' has 3 rows.* {bad}\."):
                scatter(v, kind, [5.0, 5.0], indices)
        assert v.numpy().tolist() == [1, 2, 3]

    def test_of_an_array_on_a_device(self):
        v = VARIABLES["plain"]()
        with pytest.raises(InvalidArgumentError, match="-1"):
            v.scatter_add(jt.IndexedSlices(jnp.ones(1), jnp.array([-1])))

    def test_of_one_of_two_replicas(self):
        strategy = mirrored()
        with strategy.scope():
            v = jt.Variable([1.0, 2.0, 3.0], name="v", aggregation=jt.VariableAggregation.SUM)

        def replica_fn():
            v.assign_add(jnp.ones(3))
            index = 2 + jt.get_replica_context().replica_id_in_sync_group
            v.scatter_add(jt.IndexedSlices([1.0], [index]))

        with pytest.raises(InvalidArgumentError, match="3"):
            strategy.run(replica_fn)
        assert v.numpy().tolist() == [1, 2, 3]

    def test_what_is_no_index_is_refused(self):
        v = VARIABLES["plain"]()
        for indices in ([0.0], [True, False, True], np.array(["0"])):
            with pytest.raises(TypeError, match="whole numbers"):
                v.scatter_add(jt.IndexedSlices(1.0, indices))
        for values in ([1.0], [[1.0], [1.0]], [1.0, 1.0, 1.0]):
            with pytest.raises(ValueError, match="shape"):
                v.scatter_add(jt.IndexedSlices(values, [0, 1]))
        with pytest.raises(InvalidArgumentError, match="scalar"):
            jt.Variable(1.0).scatter_add(jt.IndexedSlices([1.0], [0]))
        assert v.numpy().tolist() == [1, 2, 3]

    def test_one_value_for_all_and_indices_of_any_shape(self):
        v = VARIABLES["plain"]()
        v.scatter_add(jt.IndexedSlices(10.0, [0, 2]))
        v.scatter_add(jt.IndexedSlices([[1.0], [2.0]], [[1], [2]]))
        assert v.numpy().tolist() == [11, 3, 15]


class TestIndicesOfCompiledFunctions:
    @every_variable
    @every_kind
    def test_out_of_range_write_nothing(self, make, kind):
        v, other = make(), jt.Variable([1.0, 2.0, 3.0])
        step = jt.function(lambda values, indices: scatter(v, kind, values, indices))
        step(jnp.full(5, 4.0), jnp.array([-1, 0, 3, -3, 2**31 - 1]))
        scatter(other, kind, [4.0], [0])
        assert v.numpy().tolist() == other.numpy().tolist()

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "int16"])
    def test_of_few_bits(self, dtype):
        v = jt.Variable(np.zeros(1000, np.float32))
        step = jt.function(lambda i: scatter(v, "add", jnp.ones(2), i))
        step(np.array([3, np.iinfo(dtype).max], dtype))
        expected = np.zeros(1000)
        expected[3] = 1
        if np.iinfo(dtype).max < 1000:
            expected[np.iinfo(dtype).max] = 1
        assert v.numpy().tolist() == expected.tolist()

    def test_out_of_range_write_nothing_in_replicas(self):
        strategy = mirrored()
        with strategy.scope():
            v = jt.Variable([1.0, 2.0, 3.0], aggregation=jt.VariableAggregation.SUM)

        def replica_fn():
            index = jt.get_replica_context().replica_id_in_sync_group * 4 - 1
            v.scatter_add(jt.IndexedSlices(jnp.ones(2), jnp.stack([index, 0])))

        jt.function(lambda: strategy.run(replica_fn))()
        assert v.numpy().tolist() == [3, 2, 3]


class TestChecking:
    @every_variable
    def test_raises_and_changes_nothing(self, checking, make):
        v, count = make(), jt.Variable(0)

        @jt.function
        def step(indices):
            count.assign_add(1)
            v.scatter_add(jt.IndexedSlices(jnp.ones(2), indices))

        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match=r"3 rows.* -1"):
                step(jnp.array([0, -1]))
            assert v.numpy().tolist() == [1, 2, 3]
            assert int(count) == 0
        step(jnp.array([0, 2]))
        assert v.numpy().tolist() == [2, 2, 4]
        assert int(count) == 1

    def test_in_replicas(self, checking):
        strategy = mirrored()
        with strategy.scope():
            v = jt.Variable([1.0, 2.0, 3.0], name="v", aggregation=jt.VariableAggregation.SUM)

        def replica_fn(index):
            row = index + jt.get_replica_context().replica_id_in_sync_group
            v.scatter_add(jt.IndexedSlices(jnp.ones(1), row.reshape(1)))

        step = jt.function(lambda index: strategy.run(replica_fn, args=(index,)))
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match=r"'v' has 3 rows.* 3"):
                step(jnp.array(2))
            assert v.numpy().tolist() == [1, 2, 3]
        step(jnp.array(1))
        assert v.numpy().tolist() == [1, 3, 4]

    def test_lookups_also_inside_scan_and_gradients(self, checking):
        table = jt.Variable(np.ones((3, 2), np.float32), name="table")

        def total(ids):
            return jax.lax.scan(
                lambda c, id: (c + jnp.sum(jt.nn.embedding_lookup(table, id)), None), 0.0, ids
            )[0]

        step = jt.function(total)
        with pytest.raises(InvalidArgumentError, match=r"'table' has 3 rows.* 7"):
            step(jnp.array([0, 7]))
        assert float(step(jnp.array([0, 2]))) == 4

        def loss(ids):
            return jt.grad(lambda: jnp.sum(jt.nn.embedding_lookup(table, ids)), table)().values

        with pytest.raises(InvalidArgumentError, match="-2"):
            jt.function(loss)(jnp.array([-2]))

    def test_can_be_switched_on_and_off(self):
        v = jt.Variable([1.0, 2.0])
        step = jt.function(lambda i: scatter(v, "add", jnp.ones(1), i))
        step(jnp.array([-1]))
        jt.config.check_ids_in_functions(True)
        try:
            with pytest.raises(InvalidArgumentError):
                step(jnp.array([-1]))
        finally:
            jt.config.check_ids_in_functions(False)
        step(jnp.array([-1]))
        assert v.numpy().tolist() == [1, 2]


# --- The form of JAX, and that of parameter servers ------------------------------------------


def _one_by_one(kind, old, indices, values):
    """Return what comes out when rows are changed one after the other, in numbers of any size."""
    info = None if old.dtype.kind == "f" else np.iinfo(old.dtype)
    rows = [x.item() for x in old]
    for index, value in zip(indices, values, strict=True):
        x, y = rows[index], value.item()
        x = {
            "add": lambda x, y: x + y,
            "sub": lambda x, y: x - y,
            "mul": lambda x, y: x * y,
            "div": lambda x, y: x / y if info is None else int(Fraction(x, y)),  # towards zero
            "min": min,
            "max": max,
            "update": lambda x, y: y,
        }[kind](x, y)
        if info is not None:
            bits = 8 * old.dtype.itemsize
            x = (x - info.min) % 2**bits + info.min
        rows[index] = x
    return np.array(rows, old.dtype)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int32"])
@every_kind
@settings(max_examples=12)
@given(data=st.data())
def test_both_forms_agree_also_on_repeated_indices(kind, dtype, data):
    size = data.draw(st.integers(1, 4))
    count = data.draw(st.integers(0, 6))
    if dtype == "float32":
        numbers = st.integers(1, 8).map(lambda x: x / 4) | st.integers(-8, -1).map(lambda x: x / 2)
    else:
        info = np.iinfo(dtype)
        numbers = st.integers(max(info.min, -9), 9) | st.sampled_from([info.min, info.max])
        numbers = numbers if kind != "div" else numbers.filter(bool)
    old = np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), dtype)
    values = np.array(data.draw(st.lists(numbers, min_size=count, max_size=count)), dtype)
    indices = np.array(
        data.draw(st.lists(st.integers(0, size - 1), min_size=count, max_size=count)), np.int64
    )
    rows = jt.IndexedSlices(jnp.asarray(values), jnp.asarray(indices, jnp.int32))
    by_jax = np.asarray(_scatter.combine(kind)(jnp.asarray(old), rows))
    cell = Cell("v", old.copy())
    carry_out(cell, f"scatter_{kind}", [values, indices])
    expected = _one_by_one(kind, old, indices, values)
    assert by_jax.dtype == cell.peek().dtype == expected.dtype
    np.testing.assert_allclose(by_jax, expected, rtol=1e-6)
    np.testing.assert_allclose(cell.peek(), expected, rtol=1e-6)


@pytest.mark.parametrize("way", [lambda f: f, jt.function], ids=["eager", "compiled"])
def test_whole_numbers_are_divided_towards_zero_one_divisor_after_the_other(way):
    v = jt.Variable(np.array([-7, 7, -8, 100, -128], np.int8))
    divisors, rows = np.array([2, -2, 2, 16, 16, 64, 2], np.int8), np.array([0, 1, 2, 3, 3, 4, 4])
    way(lambda d, i: scatter(v, "div", d, i))(divisors, rows)
    assert v.numpy().tolist() == [-3, -3, -4, 0, -1]


def test_whole_numbers_are_not_divided_by_zero():
    v = jt.Variable([1, 2])
    with pytest.raises(InvalidArgumentError, match="zeros"):
        v.scatter_div(jt.IndexedSlices([1, 0], [0, 1]))
    assert v.numpy().tolist() == [1, 2]
