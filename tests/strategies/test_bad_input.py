"""Bad input gets a typed, helpful error, and changes nothing."""

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxtribute as jt
from tests.strategies._values import copies, parts, per_replica, replica_id

SUM = jt.VariableAggregation.SUM


@pytest.fixture
def v(two):
    with two.scope():
        return jt.Variable(1.0, name="v", aggregation=SUM)


@pytest.fixture
def theirs(other):
    with other.scope():
        return jt.Variable(7.0, name="theirs", aggregation=SUM)


def assert_unharmed(two, v):
    assert not jt.has_strategy()
    assert copies(v) == [1.0, 1.0]
    assert parts(two, two.run(lambda: jt.get_replica_context().all_reduce("SUM", v))) == [2.0, 2.0]


class TestMixingStrategies:
    """R86 and the issue: variables of two strategies."""

    ACCESSES = pytest.mark.parametrize(
        "access",
        [
            pytest.param(lambda t: t.value(), id="value"),
            pytest.param(lambda t: t.numpy(), id="numpy"),
            pytest.param(lambda t: t + 1, id="operator"),
            pytest.param(lambda t: jnp.asarray(t), id="conversion"),
            pytest.param(lambda t: t.assign(0.0), id="assign"),
            pytest.param(lambda t: t.assign_add(0.0), id="assign_add"),
            pytest.param(lambda t: t.assign_sub(0.0), id="assign_sub"),
        ],
    )

    @ACCESSES
    def test_in_the_scope_of_the_other(self, two, theirs, access):
        with two.scope(), pytest.raises(RuntimeError, match="Mixing different") as raised:
            access(theirs)
        assert "theirs" in str(raised.value)
        assert copies(theirs) == [7.0, 7.0]

    @ACCESSES
    def test_in_a_replica_of_the_other(self, two, v, theirs, way, access):
        def replica_fn():
            v.assign_add(jnp.ones(()))
            access(theirs)

        with pytest.raises(RuntimeError, match="Mixing different"):
            two.run(way(replica_fn))
        assert copies(theirs) == [7.0, 7.0]
        assert_unharmed(two, v)

    def test_in_one_compiled_function(self, two, other, v, theirs):
        @jt.function
        def step():
            two.run(lambda: v.assign_add(jnp.ones(())))
            other.run(lambda: theirs.assign_add(jnp.ones(())))

        with pytest.raises(RuntimeError, match="strateg"):
            step()
        assert copies(theirs) == [7.0, 7.0]
        assert_unharmed(two, v)

    def test_in_an_optimizer(self, two, v, theirs, way):
        with two.scope():
            optimizer = jt.Optimizer(optax.sgd(0.1))

        def replica_fn():
            optimizer.apply_gradients([(jnp.ones(()), v), (jnp.ones(()), theirs)])

        with pytest.raises((ValueError, RuntimeError), match="theirs"):
            two.run(way(replica_fn))
        assert copies(theirs) == [7.0, 7.0]
        assert int(optimizer.iterations) == 0
        assert_unharmed(two, v)

    def test_as_an_argument_of_run(self, two, theirs, way):
        with pytest.raises(RuntimeError, match="Mixing different"):
            two.run(way(lambda t: t + 1), args=(theirs,))

    def test_outside_of_scopes_each_is_used_under_its_own(self, v, theirs):
        v.assign(theirs.value())
        assert copies(v) == [7.0, 7.0]
        assert float(v) + float(theirs) == 14.0


class TestMixingValues:
    """Per-replica values of a strategy with another number of replicas."""

    @pytest.mark.parametrize(
        "use",
        [
            pytest.param(lambda s, x: s.run(lambda x: x, args=(x,)), id="run"),
            pytest.param(lambda s, x: s.run(jt.function(lambda x: x), args=(x,)), id="compiled"),
            pytest.param(lambda s, x: s.experimental_local_results(x), id="local results"),
        ],
    )
    def test_too_few_components(self, two, three, use):
        value = per_replica(two, jnp.ones(()), jnp.ones(()))
        with pytest.raises((ValueError, RuntimeError), match="replica"):
            use(three, value)
        assert not jt.has_strategy()

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_too_many_components(self, two, three, compiled):
        value = per_replica(three, *[jnp.float32(i) for i in range(3)])
        fn = jt.function(lambda x: x * 2) if compiled else lambda x: x * 2
        with pytest.raises((ValueError, RuntimeError), match="replica"):
            two.run(fn, args=(value,))


class TestWrongSide:
    """R5."""

    def test_run_inside_a_replica(self, two, v, way):
        def replica_fn():
            v.assign_add(jnp.ones(()))
            two.run(lambda: None)

        with pytest.raises(RuntimeError, match="requires being in cross-replica context") as raised:
            two.run(way(replica_fn))
        assert "merge_call" in str(raised.value)
        assert_unharmed(two, v)

    @pytest.mark.parametrize(
        "call",
        [
            pytest.param(lambda s: s.reduce("SUM", 1.0, axis=None), id="reduce"),
            pytest.param(lambda s: s.gather(jnp.ones(1), axis=0), id="gather"),
            pytest.param(lambda s: s.scope().__enter__(), id="scope"),
            pytest.param(lambda s: s.extended.reduce_to("SUM", 1.0, "CPU:0"), id="reduce_to"),
            pytest.param(lambda s: s.extended.batch_reduce_to("SUM", []), id="batch_reduce_to"),
            pytest.param(lambda s: s.extended.broadcast_to(1.0, "CPU:0"), id="broadcast_to"),
            pytest.param(lambda s: s.extended.call_for_each_replica(lambda: 1), id="call_for_each"),
        ],
    )
    def test_cross_replica_calls_inside_a_replica(self, two, v, way, call):
        def replica_fn():
            v.assign_add(jnp.ones(()))
            call(two)

        with pytest.raises(RuntimeError, match="requires being in cross-replica context"):
            two.run(way(replica_fn))
        assert_unharmed(two, v)

    def test_there_is_no_context_to_all_reduce_with_outside(self, two):
        with two.scope():
            assert jt.get_replica_context() is None


class TestAssigning:
    """A mirrored variable never diverges (decision 1; R88, R93)."""

    @pytest.fixture
    def plain_aggregation(self, two):
        with two.scope():
            return jt.Variable(1.0, name="w")

    @pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
    def test_in_a_replica_without_aggregation(self, two, v, plain_aggregation, way, method):
        w = plain_aggregation

        def replica_fn():
            v.assign_add(jnp.ones(()))
            getattr(w, method)(jnp.float32(replica_id() + 1))

        with pytest.raises(ValueError, match="aggregation") as raised:
            two.run(way(replica_fn))
        message = str(raised.value)
        assert "'w'" in message
        for name in ("SUM", "MEAN", "ONLY_FIRST_REPLICA"):
            assert name in message
        assert copies(w) == [1.0, 1.0]
        assert_unharmed(two, v)

    @pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
    def test_values_that_differ_outside_of_the_replicas(self, two, v, method):
        with pytest.raises(ValueError, match="differs between replicas") as raised:
            getattr(v, method)(per_replica(two, 2.0, 4.0))
        assert "jt.VariableAggregation" in str(raised.value)
        assert_unharmed(two, v)

    @pytest.mark.parametrize(
        ("aggregation", "expected"), [("SUM", 6.0), ("MEAN", 3.0), ("ONLY_FIRST_REPLICA", 2.0)]
    )
    def test_a_captured_value_of_each_replica(self, two, way, aggregation, expected):
        """R93: captured, it is each replica's own."""
        with two.scope():
            v = jt.Variable(1.0, aggregation=jt.VariableAggregation[aggregation])
        value = per_replica(two, jnp.float32(2.0), jnp.float32(4.0))
        two.run(way(lambda: v.assign(value)))
        assert copies(v) == [expected, expected]

    def test_a_variable_of_no_strategy_in_a_replica(self, two, v, way):
        outside = jt.Variable(1.0, name="outside")

        def replica_fn():
            v.assign_add(jnp.ones(()))
            outside.assign(2.0)

        with pytest.raises(ValueError, match="outside") as raised:
            two.run(way(replica_fn))
        assert "strategy.scope()" in str(raised.value)
        assert float(outside) == 1.0
        assert_unharmed(two, v)

    @pytest.mark.parametrize("value", [[1.0, 2.0], jnp.ones((1,))], ids=repr)
    def test_another_shape(self, two, v, value):
        with pytest.raises(ValueError, match="shape"):
            v.assign(value)
        with pytest.raises(ValueError, match="shape"):
            two.run(lambda: v.assign(jnp.asarray(value) * 2))
        with pytest.raises(ValueError, match="shape"):
            two.run(jt.function(lambda: v.assign(jnp.asarray(value) * 2)))
        assert_unharmed(two, v)


class TestLeakingTracers:
    TRANSFORMATIONS = pytest.mark.parametrize(
        "transform",
        [
            pytest.param(lambda f: jax.jit(f)(jnp.float32(2.0)), id="jit"),
            pytest.param(lambda f: jax.grad(f)(jnp.float32(2.0)), id="grad"),
            pytest.param(lambda f: jax.vmap(f)(jnp.ones(2)), id="vmap"),
            pytest.param(
                lambda f: jax.lax.scan(lambda c, x: (c, f(x)), 0.0, jnp.ones(2)), id="scan"
            ),
            pytest.param(
                lambda f: jax.lax.cond(jnp.bool_(True), f, lambda x: x, jnp.float32(1.0)), id="cond"
            ),
            pytest.param(lambda f: jax.checkpoint(f)(jnp.float32(2.0)), id="checkpoint"),
        ],
    )

    @TRANSFORMATIONS
    @pytest.mark.parametrize("use_tracer", [True, False], ids=["tracer", "constant"])
    def test_assigning_in_a_transformation(self, two, v, transform, use_tracer):
        def fn(x):
            v.assign(x if use_tracer else 5.0)
            return x

        with pytest.raises(jt.errors.TracerLeakError) as raised:
            transform(fn)
        message = str(raised.value)
        assert "'v'" in message
        assert "jt.function" in message
        assert_unharmed(two, v)

    @TRANSFORMATIONS
    def test_assigning_in_a_transformation_in_a_replica(self, two, v, way, transform):
        with two.scope():
            w = jt.Variable(1.0, name="w", aggregation=jt.VariableAggregation.ONLY_FIRST_REPLICA)

        def fn(x):
            w.assign(5.0)
            return x

        def replica_fn():
            v.assign_add(jnp.ones(()))
            transform(fn)

        with pytest.raises(RuntimeError) as raised:
            two.run(way(replica_fn))
        assert "transformation" in str(raised.value)
        assert copies(w) == [1.0, 1.0]
        assert_unharmed(two, v)

    @TRANSFORMATIONS
    def test_assigning_a_plain_variable_in_a_transformation(self, transform):
        plain = jt.Variable(1.0, name="plain")

        def fn(x):
            plain.assign(x)
            return x

        with pytest.raises(jt.errors.TracerLeakError, match="plain"):
            transform(fn)
        assert float(plain) == 1.0

    LEAKS = pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda f: jt.function(f)(jnp.float32(2.0)), id="function"),
            pytest.param(lambda f: jax.jit(f)(jnp.float32(2.0)), id="jit"),
        ],
    )
    LEAK_ERRORS = (jt.errors.TracerLeakError, jax.errors.UnexpectedTracerError)

    @LEAKS
    def test_using_a_tracer_after_its_function(self, two, v, make):
        leaked = []
        make(lambda x: leaked.append(x))
        with pytest.raises(self.LEAK_ERRORS):
            leaked[-1] + 1
        with pytest.raises(self.LEAK_ERRORS):
            v.assign(leaked[-1])
        with pytest.raises(self.LEAK_ERRORS):
            v.assign_add(leaked[-1])
        assert_unharmed(two, v)

    @LEAKS
    def test_passing_a_tracer_on_after_its_function(self, two, v, make):
        leaked = []
        make(lambda x: leaked.append(x))
        with pytest.raises(self.LEAK_ERRORS):
            two.run(lambda x: x + 1, args=(leaked[-1],))
        with pytest.raises(self.LEAK_ERRORS):
            two.run(lambda: v.assign_add(leaked[-1]))
        with pytest.raises(self.LEAK_ERRORS):
            two.run(jt.function(lambda: v.assign_add(leaked[-1])))
        with pytest.raises(self.LEAK_ERRORS):
            two.run(jt.function(lambda x: x + 1), args=(leaked[-1],))
        assert_unharmed(two, v)

    def test_a_tracer_as_initial_value(self, two):
        def fn(x):
            return jt.Variable(x, name="new").value()

        with two.scope(), pytest.raises(jt.errors.TracerLeakError, match="lambda") as raised:
            jax.jit(fn)(jnp.float32(1.0))
        assert "'new'" in str(raised.value)

    def test_a_replica_value_kept_by_a_compiled_step(self, two, v):
        leaked = []

        @jt.function
        def step(x):
            result = two.run(lambda x: x * 2, args=(x,))
            leaked.append(result)
            return two.reduce("SUM", result, axis=None)

        assert float(step(per_replica(two, jnp.float32(1.0), jnp.float32(2.0)))) == 6.0
        with pytest.raises(self.LEAK_ERRORS):
            two.reduce("SUM", leaked[-1], axis=None)
        with pytest.raises(self.LEAK_ERRORS):
            two.run(lambda x: x + 1, args=(leaked[-1],))
        assert_unharmed(two, v)

    def test_a_failed_step_may_be_repeated(self, two, v):
        fail = [True]

        @jt.function
        def step():
            v.assign_add(jnp.ones(()))
            if fail.pop() if fail else False:
                raise KeyError("first time")

        with pytest.raises(KeyError):
            two.run(step)
        assert copies(v) == [1.0, 1.0]
        two.run(step)
        assert copies(v) == [3.0, 3.0]
