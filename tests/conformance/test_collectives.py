"""`reduce`, `gather`, `all_reduce` and `all_gather`, and gradients through them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.conformance._strategies import (
    Setup,
    every_kind,
    every_strategy,
    replica_id,
    several_replicas,
)

DTYPES = ["float32", "bfloat16", "int32", "complex64"]


def rows(setup: Setup, dtype: str = "float32") -> list[np.ndarray]:
    """Return four numbers for each replica, the same for any number of replicas before it."""
    return [np.arange(4 * i, 4 * i + 4).astype(jnp.dtype(dtype)) for i in range(setup.replicas)]


def uneven(setup: Setup) -> list[np.ndarray]:
    """Return 3 rows for the first replica, 2 for the second, none for the third, and so on."""
    sizes = [(3, 2, 0, 1)[i % 4] for i in range(setup.replicas)]
    start = np.cumsum([0, *sizes])
    return [np.arange(a, b, dtype=np.float32) for a, b in itertools.pairwise(start)]


# --- reduce --------------------------------------------------------------------------------


@pytest.mark.parametrize("setup", every_strategy())
def test_reduce_over_replicas_and_along_axes(setup: Setup):
    parts = rows(setup)
    cases = [(op, axis) for op in ("SUM", "MEAN") for axis in (None, 0, -1)]

    def program(x):
        reduce = setup.strategy.reduce
        return [reduce(op, x, axis=axis) for op, axis in cases]

    results = setup.call(program, setup.deal(parts))
    everything = np.stack(parts)
    for (op, axis), result in zip(cases, results, strict=True):
        combine = np.sum if op == "SUM" else np.mean
        expected = combine(everything, axis=0 if axis is None else None)
        assert not isinstance(result, jt.DistributedValues)
        assert result.dtype == np.float32
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6)


@pytest.mark.parametrize("setup", every_kind())
def test_reduce_of_every_type(setup: Setup):
    values = {dtype: setup.deal(rows(setup, dtype)) for dtype in DTYPES}

    def program(values):
        return (
            setup.strategy.reduce("SUM", values, axis=None),
            setup.strategy.reduce("MEAN", values, axis=0),
        )

    sums, means = setup.call(program, values)
    for dtype in DTYPES:
        everything = np.stack(rows(setup, dtype))
        assert sums[dtype].dtype == dtype
        np.testing.assert_array_equal(
            np.asarray(sums[dtype]).astype(complex), everything.astype(complex).sum(0)
        )
        # Whole numbers are divided truly, never truncated.
        assert means[dtype].dtype == ("float32" if dtype == "int32" else dtype)
        np.testing.assert_allclose(
            np.asarray(means[dtype]).astype(complex), everything.astype(complex).mean(), rtol=1e-2
        )


@pytest.mark.parametrize("setup", every_kind())
def test_a_sum_of_truths_counts_them(setup: Setup):
    truths = setup.deal([np.array([True, i % 2 == 0]) for i in range(setup.replicas)])
    n = setup.replicas

    def program(x):
        def fn(x):
            return jt.get_replica_context().all_reduce("SUM", x)

        return setup.strategy.reduce("SUM", x, axis=0), setup.strategy.run(fn, args=(x,))

    total, each = setup.call(program, truths)
    assert int(total) == n + (n + 1) // 2
    if n > 1:  # one replica has nothing to add up
        for part in setup.parts(each):
            np.testing.assert_array_equal(np.asarray(part), [n, (n + 1) // 2])


@pytest.mark.parametrize("setup", every_kind())
def test_the_mean_of_whole_numbers_is_not_truncated(setup: Setup):
    values = setup.deal([np.array([i, i + 1], np.int32) for i in range(setup.replicas)])

    def program(x):
        def fn(x):
            return jt.get_replica_context().all_reduce("MEAN", x)

        return setup.strategy.reduce("MEAN", x, axis=None), setup.strategy.run(fn, args=(x,))

    mean, each = setup.call(program, values)
    expected = np.array([0.0, 1.0]) + (setup.replicas - 1) / 2
    np.testing.assert_allclose(np.asarray(mean), expected)
    for part in setup.parts(each):
        np.testing.assert_allclose(np.asarray(part), expected)


@pytest.mark.parametrize("setup", every_kind())
def test_reduce_along_several_axes(setup: Setup):
    n = setup.replicas
    blocks = [np.arange(6, dtype=np.float32).reshape(2, 3) + 6 * i for i in range(n)]

    def program(x):
        reduce = setup.strategy.reduce
        return [
            reduce("MEAN", x, axis=(0, 1)),
            reduce("SUM", x, axis=[0, 1]),
            reduce("MEAN", x, axis=-1),
            reduce("SUM", x, axis=1),
        ]

    results = setup.call(program, setup.deal(blocks))
    everything = np.stack(blocks)
    expected = [
        everything.mean(),
        everything.sum(),
        everything.mean(axis=(0, 2)),
        everything.sum(axis=(0, 2)),
    ]
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), value, rtol=1e-6)


@pytest.mark.parametrize("setup", every_kind())
def test_structures_are_reduced_leaf_by_leaf(setup: Setup):
    def program():
        result = setup.strategy.run(
            lambda: {"a": jnp.float32(1.0) + replica_id(), "b": [jnp.ones((2,))]}
        )
        return setup.strategy.reduce("SUM", result, axis=None)

    n = setup.replicas
    total = setup.call(program)
    assert float(total["a"]) == n * (n + 1) / 2
    np.testing.assert_array_equal(np.asarray(total["b"][0]), [n, n])


@pytest.mark.parametrize("setup", every_strategy())
def test_uneven_batches_are_reduced_by_their_true_count(setup: Setup):
    parts = uneven(setup)

    def program(x):
        squared = setup.strategy.run(lambda x: x * x, args=(x,))
        return (
            setup.strategy.reduce("SUM", squared, axis=0),
            setup.strategy.reduce("MEAN", squared, axis=0),
            setup.strategy.gather(squared, axis=0),
        )

    total, mean, gathered = setup.call(program, setup.deal(parts))
    everything = np.concatenate(parts) ** 2
    assert float(total) == everything.sum()
    np.testing.assert_allclose(float(mean), everything.mean(), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(gathered), everything)


@pytest.mark.parametrize("setup", several_replicas())
def test_uneven_shapes_cannot_be_reduced_over_replicas_only(setup: Setup):
    with pytest.raises(ValueError, match="shape"):
        setup.call(lambda x: setup.strategy.reduce("SUM", x, axis=None), setup.deal(uneven(setup)))


@pytest.mark.parametrize("setup", several_replicas())
def test_a_value_common_to_all_replicas(setup: Setup):
    reduce = setup.strategy.reduce
    n = setup.replicas
    x = np.array([1.0, 2.0], np.float32)

    def program(x):
        return reduce("MEAN", x, axis=None), reduce("SUM", x, axis=0), reduce("MEAN", x, axis=0)

    mean, total, mean_along = setup.call(program, x)
    np.testing.assert_array_equal(np.asarray(mean), x)
    assert float(total) == 3.0 * n
    assert float(mean_along) == 1.5
    with pytest.raises(ValueError, match="cannot be reduced with the given reduce op"):
        setup.call(lambda x: reduce("SUM", x, axis=None), x)


@pytest.mark.parametrize("setup", every_kind())
@pytest.mark.parametrize(
    ("op", "axis", "error"),
    [
        ("MAX", None, ValueError),
        (None, None, ValueError),
        ("SUM", 7, ValueError),
        ("SUM", -2, ValueError),
        ("SUM", 0.5, TypeError),
        ("SUM", "0", TypeError),
    ],
)
def test_bad_arguments_of_reduce(setup: Setup, op, axis, error):
    with pytest.raises(error):
        setup.call(lambda x: setup.strategy.reduce(op, x, axis=axis), setup.deal(rows(setup)))


# --- gather --------------------------------------------------------------------------------


@pytest.mark.parametrize("setup", every_strategy())
def test_gather_concatenates_in_the_order_of_the_replicas(setup: Setup):
    blocks = [np.full((1, 2), i, np.int32) for i in range(setup.replicas)]

    def program(x):
        return [setup.strategy.gather({"x": x}, axis=axis)["x"] for axis in (0, 1)]

    for axis, result in enumerate(setup.call(program, setup.deal(blocks))):
        np.testing.assert_array_equal(np.asarray(result), np.concatenate(blocks, axis))


@pytest.mark.parametrize("setup", every_strategy())
def test_gather_concatenates_the_copies_of_variables(setup: Setup):
    with setup.strategy.scope():
        common = jt.Variable([[1.0, 2.0]])
        own = jt.Variable(
            [[1.0, 2.0]],
            synchronization=jt.VariableSynchronization.ON_READ,
            aggregation=jt.VariableAggregation.SUM,
        )
    copies = setup.replicas if setup.has_copies else 1
    if setup.has_copies:
        setup.run(lambda: own.assign(jnp.array([[1.0, 2.0]]) * (replica_id() + 1)))

    def program():
        return [setup.strategy.gather((common, own), axis=axis) for axis in (0, 1)]

    one = np.array([[1, 2]], np.float32)
    for axis, gathered in enumerate(setup.call(program)):
        assert all(isinstance(result, jax.Array) for result in gathered)
        np.testing.assert_array_equal(gathered[0], np.concatenate([one] * copies, axis))
        blocks = [one * (i + 1) for i in range(copies)]
        np.testing.assert_array_equal(gathered[1], np.concatenate(blocks, axis))


@pytest.mark.parametrize("setup", several_replicas())
def test_gather_refuses_what_does_not_fit(setup: Setup):
    def gather(x, axis):
        return setup.call(lambda x: setup.strategy.gather(x, axis=axis), x)

    scalars = setup.deal([np.float32(i) for i in range(setup.replicas)])
    with pytest.raises(ValueError, match="expand_dims"):
        gather(scalars, 0)
    with pytest.raises(ValueError, match="range"):
        gather(setup.deal(rows(setup)), -1)
    with pytest.raises(ValueError, match="range"):
        gather(setup.deal(rows(setup)), 1)
    with pytest.raises(ValueError, match="shapes"):
        gather(setup.deal([np.ones((1, 1 + i), "f4") for i in range(setup.replicas)]), 0)
    with pytest.raises(ValueError, match="shapes"):
        gather(setup.deal([np.ones((1,) * (1 + i), "f4") for i in range(setup.replicas)]), 0)


# --- all_reduce and all_gather -------------------------------------------------------------


@pytest.mark.parametrize("setup", every_strategy())
def test_all_reduce_gives_the_whole_to_each_replica(setup: Setup):
    def fn():
        context = jt.get_replica_context()
        i = jnp.float32(1.0) * replica_id()
        value = {"a": i, "b": [10 * i, jnp.ones((2,)) * i]}
        return context.all_reduce("SUM", value), context.all_reduce(jt.ReduceOp.MEAN, value)

    n = setup.replicas
    for sums, means in setup.parts(setup.run(fn)):
        total = n * (n - 1) / 2
        for result, scale in (sums, 1), (means, n):
            assert float(result["a"]) == total / scale
            assert float(result["b"][0]) == 10 * total / scale
            np.testing.assert_array_equal(np.asarray(result["b"][1]), [total / scale] * 2)


@pytest.mark.parametrize("setup", every_kind())
def test_all_reduce_and_all_gather_of_every_type(setup: Setup):
    values = {dtype: setup.deal(rows(setup, dtype)) for dtype in DTYPES}
    truths = [np.array([i % 2 == 0]) for i in range(setup.replicas)]

    def fn(values, truths):
        context = jt.get_replica_context()
        return (
            context.all_reduce("SUM", values),
            context.all_gather({"truths": truths, **values}, axis=0),
        )

    for sums, gathered in setup.parts(setup.run(fn, values, setup.deal(truths))):
        np.testing.assert_array_equal(np.asarray(gathered["truths"]), np.concatenate(truths))
        assert gathered["truths"].dtype == bool
        for dtype in DTYPES:
            assert sums[dtype].dtype == gathered[dtype].dtype == dtype
            parts = np.stack(rows(setup, dtype)).astype(complex)
            np.testing.assert_array_equal(np.asarray(sums[dtype]).astype(complex), parts.sum(0))
            np.testing.assert_array_equal(
                np.asarray(gathered[dtype]).astype(complex), parts.reshape(-1)
            )


@pytest.mark.parametrize("setup", every_strategy(eager_on_many=False))
def test_all_gather_concatenates_leaves_of_different_rank(setup: Setup):
    def fn():
        i = jnp.int32(1) * replica_id()
        value = {"vector": jnp.full((1,), i), "matrix": [jnp.full((1, 2), i)]}
        return jt.get_replica_context().all_gather(value, axis=0)

    ids = np.arange(setup.replicas)
    for part in setup.parts(setup.run(fn)):
        np.testing.assert_array_equal(np.asarray(part["vector"]), ids)
        np.testing.assert_array_equal(np.asarray(part["matrix"][0]), np.stack([ids, ids], 1))


@pytest.mark.parametrize("setup", every_strategy(eager_on_many=False))
def test_all_gather_of_uneven_batches(setup: Setup):
    parts = uneven(setup)

    def fn(x):
        return jt.get_replica_context().all_gather(x, axis=0)

    for part in setup.parts(setup.run(fn, setup.deal(parts))):
        np.testing.assert_array_equal(np.asarray(part), np.concatenate(parts))


@pytest.mark.parametrize("setup", several_replicas())
def test_collectives_are_refused_outside_their_replica(setup: Setup):
    kept = []

    def fn():
        kept.append(jt.get_replica_context())

    setup.run(fn)
    with pytest.raises(RuntimeError, match="Mismatching"):
        kept[0].all_reduce("SUM", jnp.ones(()))
    with setup.strategy.scope(), pytest.raises(RuntimeError, match="Need to be inside"):
        kept[0].all_gather(jnp.ones((1,)), axis=0)
    with pytest.raises(RuntimeError, match="Mismatching"):
        setup.run(lambda: kept[0].merge_call(lambda strategy: None))


@pytest.mark.parametrize("setup", several_replicas())
@pytest.mark.parametrize(
    ("call", "error"),
    [
        pytest.param(lambda c: c.all_reduce("MAX", jnp.ones(())), ValueError, id="op"),
        pytest.param(lambda c: c.all_gather(jnp.ones(()), axis=0), ValueError, id="scalar"),
        pytest.param(lambda c: c.all_gather(jnp.ones((1,)), axis=-1), ValueError, id="axis"),
        pytest.param(
            lambda c: c.all_gather(jt.IndexedSlices(jnp.ones((1,)), jnp.array([0])), axis=0),
            NotImplementedError,
            id="slices",
        ),
    ],
)
def test_bad_arguments_of_collectives(setup: Setup, call, error):
    with pytest.raises(error):
        setup.run(lambda: call(jt.get_replica_context()))


# --- Sparse values -------------------------------------------------------------------------


@pytest.mark.parametrize("setup", several_replicas())
def test_sparse_rows_are_added_up(setup: Setup):
    """R66, with further replicas that hold a zero for row 0."""
    n = setup.replicas
    zero = (np.zeros((2, 2), np.float32), np.array([0, 0]))
    first = (np.array([[1, 2], [0, 0]], np.float32), np.array([1, 0]))
    second = (np.array([[3, 4], [5, 6]], np.float32), np.array([1, 3]))
    held = [first, second, *[zero] * (n - 2)]
    values = setup.deal([values for values, _ in held])
    indices = setup.deal([indices for _, indices in held])

    def fn(values, indices):
        slices = jt.IndexedSlices(values, indices, dense_shape=(4, 2))
        context = jt.get_replica_context()
        total, mean = context.all_reduce("SUM", slices), context.all_reduce("MEAN", [slices])[0]
        assert isinstance(total, jt.IndexedSlices)
        return total.to_dense(), mean.to_dense()

    expected = np.array([[0, 0], [4, 6], [0, 0], [5, 6]], np.float32)
    for total, mean in setup.parts(setup.run(fn, values, indices)):
        np.testing.assert_array_equal(np.asarray(total), expected)
        np.testing.assert_allclose(np.asarray(mean), expected / n)


@pytest.mark.parametrize("setup", several_replicas())
def test_sparse_rows_may_be_more_on_one_replica_than_on_another(setup: Setup):
    """R66: one row on the first replica, two on the second, none on the others."""
    n = setup.replicas
    held_values = [np.array([[1, 2]], "f4"), np.array([[3, 4], [5, 6]], "f4")]
    held_indices = [np.array([1]), np.array([1, 3])]
    held_values += [np.zeros((0, 2), "f4")] * (n - 2)
    held_indices += [np.zeros((0,), int)] * (n - 2)

    def fn(values, indices):
        slices = jt.IndexedSlices(values, indices, dense_shape=(4, 2))
        context = jt.get_replica_context()
        return (
            context.all_reduce("SUM", slices).to_dense(),
            context.all_reduce("MEAN", slices).to_dense(),
        )

    result = setup.run(fn, setup.deal(held_values), setup.deal(held_indices))
    expected = np.array([[0, 0], [4, 6], [0, 0], [5, 6]], np.float32)
    for total, mean in setup.parts(result):
        np.testing.assert_array_equal(np.asarray(total), expected)
        np.testing.assert_allclose(np.asarray(mean), expected / n)


# --- Gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize("setup", every_strategy(eager_on_many=False))
def test_gradients_of_all_reduce_are_all_reduced(setup: Setup):
    """R64."""

    def fn():
        x = jnp.float32(1.0) + replica_id()

        def reduced(op):
            return jax.value_and_grad(
                lambda x: jt.get_replica_context().all_reduce(op, {"x": x**2})["x"]
            )(x)

        return reduced("SUM"), reduced("MEAN")

    n = setup.replicas
    squares = sum((i + 1) ** 2 for i in range(n))
    for i, ((total, d_total), (mean, d_mean)) in enumerate(setup.parts(setup.run(fn))):
        assert float(total) == squares
        assert float(d_total) == n * 2 * (i + 1)
        np.testing.assert_allclose(float(mean), squares / n, rtol=1e-6)
        np.testing.assert_allclose(float(d_mean), 2 * (i + 1), rtol=1e-6)


@pytest.mark.parametrize("setup", every_strategy(eager_on_many=False))
def test_gradients_of_all_gather_are_summed_and_sliced(setup: Setup):
    """R73: with upstream coefficients i + 1, every element's gradient is n (n + 1) / 2."""

    def fn():
        i = jnp.float32(1.0) * replica_id()
        x = jnp.ones((2, 2)) * i

        def loss(x):
            return jnp.sum(jt.get_replica_context().all_gather(x, axis=1)) * (i + 1)

        return jax.grad(loss)(x)

    n = setup.replicas
    for part in setup.parts(setup.run(fn)):
        np.testing.assert_allclose(np.asarray(part), np.full((2, 2), n * (n + 1) / 2))


@pytest.mark.parametrize("setup", every_kind())
def test_each_row_gets_its_own_gradient_back_from_all_gather(setup: Setup):
    parts = uneven(setup)
    size = sum(map(len, parts))
    weights = jnp.arange(1.0, size + 1)

    def fn(x, weights):
        def loss(x):
            return jnp.sum(jt.get_replica_context().all_gather(x, axis=0) * weights)

        return jax.grad(loss)(x)

    result = setup.run(fn, setup.deal(parts), weights)
    start = 0
    for part, given in zip(setup.parts(result), parts, strict=True):
        expected = np.asarray(weights)[start : start + len(given)] * setup.replicas
        np.testing.assert_allclose(np.asarray(part), expected)
        start += len(given)


@pytest.mark.parametrize("setup", every_kind())
def test_gradients_with_respect_to_variables_flow_through_all_reduce(setup: Setup):
    with setup.strategy.scope():
        w = jt.Variable(2.0)

    def fn():
        i = jnp.float32(1.0) + replica_id()
        return jt.value_and_grad(lambda: jt.get_replica_context().all_reduce("SUM", w * i), [w])()

    n = setup.replicas
    total = n * (n + 1) / 2
    for i, (loss, (dw,)) in enumerate(setup.parts(setup.run(fn))):
        assert float(loss) == 2 * total
        assert float(dw) == n * (i + 1)
