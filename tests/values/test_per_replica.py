"""Values that may differ between replicas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt


@pytest.fixture(scope="module")
def two():
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


def per_replica(strategy, *values):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: values[ctx.replica_id_in_sync_group]
    )


@pytest.fixture
def value(two):
    return per_replica(two, jnp.float32(1.0), jnp.float32(2.0))


class TestParts:
    def test_are_in_the_order_of_the_replicas(self, value):
        assert [float(x) for x in value.values] == [1.0, 2.0]

    def test_are_distributed_values(self, value):
        assert isinstance(value, jt.PerReplica)
        assert isinstance(value, jt.DistributedValues)
        assert not isinstance(value, jt.Mirrored)

    def test_of_a_compiled_step_are_on_their_devices(self, two):
        result = two.run(jt.function(lambda x: x + 1), args=(jnp.ones(2),))
        assert [x.devices() for x in result.values] == [{d} for d in jax.devices("cpu")[:2]]
        assert [x.shape for x in result.values] == [(2,), (2,)]

    def test_survive_being_passed_through_a_step(self, two, value):
        step = jt.function(lambda x: x * 2)
        for expected in ([2.0, 4.0], [4.0, 8.0], [8.0, 16.0]):
            value = two.run(step, args=(value,))
            assert [float(x) for x in value.values] == expected
        assert step.experimental_get_tracing_count() == 1

    def test_may_be_made_by_hand(self, two):
        by_hand = jt.PerReplica([jnp.float32(1.0), jnp.float32(2.0)])
        assert float(two.reduce("SUM", by_hand, axis=None)) == 3.0
        for wrap in (jt.function, lambda fn: fn):
            result = two.run(wrap(lambda x: x * 2), args=(by_hand,))
            assert [float(x) for x in result.values] == [2.0, 4.0]


class TestRepr:
    def test_is_that_of_the_reference(self, value):
        assert repr(value) == (
            "PerReplica:{\n  0: Array(1., dtype=float32),\n  1: Array(2., dtype=float32)\n}"
        )
        assert str(value) == repr(value)

    def test_of_objects(self, two):
        assert repr(per_replica(two, "a", b"b")) == "PerReplica:{\n  0: 'a',\n  1: b'b'\n}"


class TestOutsideOfReplicas:
    """R95: it is no array there."""

    @pytest.mark.parametrize(
        "convert",
        [
            pytest.param(lambda x: jnp.asarray(x), id="jnp.asarray"),
            pytest.param(lambda x: np.asarray(x), id="np.asarray"),
            pytest.param(lambda x: jax.jit(lambda: jnp.asarray(x))(), id="jit"),
        ],
    )
    @pytest.mark.parametrize("in_scope", [False, True], ids=["no strategy", "scope"])
    def test_conversion_is_refused(self, two, value, convert, in_scope):
        def check():
            with pytest.raises(ValueError, match="one value for each replica") as raised:
                convert(value)
            for remedy in ("strategy.reduce", "strategy.gather", "experimental_local_results"):
                assert remedy in str(raised.value)

        if in_scope:
            with two.scope():
                check()
        else:
            check()

    @pytest.mark.parametrize(
        "operate",
        [
            pytest.param(lambda x: x + 1, id="+"),
            pytest.param(lambda x: 1 - x, id="reverse -"),
            pytest.param(lambda x: x * x, id="*"),
            pytest.param(lambda x: x < 1, id="<"),
            pytest.param(lambda x: -x, id="negation"),
            pytest.param(lambda x: abs(x), id="abs"),
            pytest.param(lambda x: x @ x, id="@"),
            pytest.param(lambda x: x == 1, id="=="),
        ],
    )
    def test_operators_are_refused(self, two, value, operate):
        with pytest.raises(TypeError, match="one value for each replica"):
            operate(value)
        with two.scope(), pytest.raises(TypeError, match="one value for each replica"):
            operate(value)

    def test_it_has_no_truth(self, two):
        with pytest.raises((TypeError, ValueError)):
            bool(per_replica(two, jnp.float32(0.0), jnp.float32(0.0)))

    def test_none_may_be_a_component(self, two):
        value = per_replica(two, jnp.float32(1.0), None)
        assert isinstance(value, jt.PerReplica)
        assert value.values[1] is None

    def test_it_may_be_a_key(self, value):
        assert {value: 1}[value] == 1


class TestInsideReplicas:
    """R95: captured, it is the running replica's own."""

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    @pytest.mark.parametrize(
        ("use", "expected"),
        [
            pytest.param(lambda x: jnp.asarray(x), [1.0, 2.0], id="conversion"),
            pytest.param(lambda x: x + 1, [2.0, 3.0], id="+"),
            pytest.param(lambda x: 1 - x, [0.0, -1.0], id="reverse -"),
            pytest.param(lambda x: x * x, [1.0, 4.0], id="*"),
            pytest.param(lambda x: jnp.where(x > 1, 2.0, 0.0), [0.0, 2.0], id=">"),
            pytest.param(lambda x: jnp.float32(5.0) - x, [4.0, 3.0], id="array -"),
        ],
    )
    def test_it_is_an_array(self, two, value, compiled, use, expected):
        def replica_fn():
            return use(value)

        result = two.run(jt.function(replica_fn) if compiled else replica_fn)
        assert [float(x) for x in result.values] == expected

    def test_its_truth_is_that_of_the_replica(self, two):
        value = per_replica(two, jnp.float32(0.0), jnp.float32(1.0))
        truths = two.run(lambda: bool(value))
        assert two.experimental_local_results(truths) == (False, True)

    def test_captured_by_a_step_that_is_called_again(self, two, value):
        step = jt.function(lambda x: value + x)
        for x in (1.0, 2.0):
            result = two.run(step, args=(jnp.float32(x),))
            assert [float(y) for y in result.values] == [1.0 + x, 2.0 + x]

    def test_of_different_shapes_captured_by_eager_replicas(self, two):
        ragged = per_replica(two, jnp.ones(2), jnp.ones(3))
        result = two.run(lambda: jnp.sum(jnp.asarray(ragged)))
        assert [float(x) for x in result.values] == [2.0, 3.0]

    def test_of_different_shapes_captured_by_a_compiled_step(self, two):
        ragged = per_replica(two, jnp.ones(2), jnp.ones(3))
        with pytest.raises(ValueError, match="args"):
            two.run(jt.function(lambda: jnp.sum(jnp.asarray(ragged))))


class TestTypes:
    @pytest.mark.parametrize(
        "dtype", ["bool", "int8", "int32", "uint8", "float16", "bfloat16", "float32", "complex64"]
    )
    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_are_kept(self, two, dtype, compiled):
        value = per_replica(two, np.ones(2, dtype), np.zeros(2, dtype))

        def replica_fn(x):
            return jnp.reshape(x, (2, 1))

        result = two.run(jt.function(replica_fn) if compiled else replica_fn, args=(value,))
        assert [x.dtype for x in result.values] == [jnp.dtype(dtype)] * 2
        assert [jnp.real(x).astype("float32").tolist() for x in result.values] == [
            [[1.0], [1.0]],
            [[0.0], [0.0]],
        ]

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_that_differ_run_all_the_same(self, two, compiled):
        value = per_replica(two, jnp.ones(2, "int32"), jnp.ones(2, "float32"))

        def replica_fn(x):
            return jnp.sum(x * 2)

        result = two.run(jt.function(replica_fn) if compiled else replica_fn, args=(value,))
        assert [float(x) for x in result.values] == [4.0, 4.0]

    def test_random_keys(self, two):
        keys = per_replica(two, jax.random.key(0), jax.random.key(1))
        for wrap in (jt.function, lambda fn: fn):
            result = two.run(wrap(lambda key: jax.random.uniform(key)), args=(keys,))
            assert [float(x) for x in result.values] == [
                float(jax.random.uniform(jax.random.key(i))) for i in range(2)
            ]

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_python_numbers(self, two, compiled):
        value = per_replica(two, 1, 2)

        def replica_fn(x):
            return x * 2

        result = two.run(jt.function(replica_fn) if compiled else replica_fn, args=(value,))
        assert [int(x) for x in result.values] == [2, 4]

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_equal_python_values_stay_python_values(self, two, compiled):
        value = per_replica(two, "mode", "mode")

        def replica_fn(mode):
            assert mode == "mode"
            return jnp.ones(())

        result = two.run(jt.function(replica_fn) if compiled else replica_fn, args=(value,))
        assert [float(x) for x in result.values] == [1.0, 1.0]

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_different_python_values_run_as_well(self, two, compiled):
        value = per_replica(two, "a", "bb")

        def replica_fn(text):
            return jnp.float32(len(text))

        result = two.run(jt.function(replica_fn) if compiled else replica_fn, args=(value,))
        assert [float(x) for x in result.values] == [1.0, 2.0]
