"""Variables inside JAX's own transformations: reading works, assigning is refused at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.variables._support import (
    FIRST,
    MEAN,
    ON_READ,
    SUM,
    both_ways,
    components,
    create,
    local,
    mirrored,
    one_device,
    replica_id,
    run,
)

KINDS = {
    "plain": jt.Variable,
    "one device": lambda x: create(one_device("CPU:1"), x),
    "mirrored": lambda x: create(mirrored(2), x, aggregation=MEAN),
    "sync on read": lambda x: create(mirrored(2), x, synchronization=ON_READ, aggregation=MEAN),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


@pytest.fixture
def strategy():
    return mirrored(2)


class TestReading:
    @every_kind
    def test_jit_sees_later_assignments(self, make):
        v = make([1.0, 2.0])
        traces = []

        @jax.jit
        def read(x):
            traces.append(1)
            return v * x

        assert read(2.0).tolist() == [2, 4]
        v.assign([3.0, 4.0])
        assert read(2.0).tolist() == [6, 8]
        v.assign_add([1.0, 1.0])
        assert read(2.0).tolist() == [8, 10]
        jt.function(lambda: v.assign_add([1.0, 1.0]))()
        assert read(2.0).tolist() == [10, 12]
        assert len(traces) == 1

    @pytest.mark.parametrize("kind", ["mirrored", "sync on read"])
    def test_jit_sees_what_replicas_assign(self, strategy, kind):
        v = KINDS[kind](1.0)
        read = jax.jit(lambda: v + 0)
        assert read() == 1
        for way in ("eager", "compiled"):
            run(way, strategy, lambda: v.assign_add(jnp.float32(replica_id())))
        assert read() == 2

    @every_kind
    def test_one_jit_for_many_variables(self, make):
        v, w = make(1.0), make(10.0)
        read = jax.jit(lambda x: v + w + x)
        assert read(1.0) == 12
        w.assign(20.0)
        assert read(1.0) == 22

    @every_kind
    def test_results_mix_with_other_arrays(self, make):
        v = make([1.0, 2.0])
        x = jnp.ones(2)
        assert (jax.jit(lambda: v + 1)() + x).tolist() == [3, 4]

    @every_kind
    def test_with_arguments_on_a_device(self, make):
        v = make([1.0, 2.0])
        x = jax.device_put(jnp.ones(2), next(iter(v.value().devices())))
        assert jax.jit(lambda x: v + x)(x).tolist() == [2, 3]

    @every_kind
    def test_grad_and_vmap(self, make):
        v = make(3.0)
        for _ in range(2):
            value = float(v)
            assert jax.grad(lambda x: v * x**2)(2.0) == 4 * value
            assert jax.vmap(lambda x: v * x)(jnp.arange(3.0)).tolist() == [0, value, 2 * value]
            assert jax.jit(jax.grad(lambda x: v * x**2))(2.0) == 4 * value
            assert jax.jit(jax.vmap(lambda x: v * x))(jnp.arange(3.0)).tolist() == [
                0,
                value,
                2 * value,
            ]
            v.assign(5.0)

    @every_kind
    def test_control_flow(self, make):
        v = make(3.0)
        for _ in range(2):
            value = float(v)
            total, each = jax.lax.scan(lambda c, x: (c + v * x, v * x), 0.0, jnp.arange(3.0))
            assert total == 3 * value
            assert each.tolist() == [0, value, 2 * value]
            assert jax.lax.cond(True, lambda: v + 1, lambda: v - 1) == value + 1
            assert jax.lax.fori_loop(0, 3, lambda i, c: c + v, 0.0) == 3 * value
            v.assign(5.0)

    @every_kind
    def test_inside_a_function(self, make):
        v = make(3.0)

        @jt.function
        def step(x):
            v.assign_add(x)
            inner = jax.jit(lambda y: v * y)(2.0)
            total, _ = jax.lax.scan(lambda c, x: (c + v, None), 0.0, jnp.arange(3.0))
            return inner, total, jax.grad(lambda y: v * y**2)(1.0), jax.checkpoint(lambda: v * 1)()

        for value in (4, 5):
            assert [float(x) for x in step(jnp.float32(1.0))] == [
                2 * value,
                3 * value,
                2 * value,
                value,
            ]

    @both_ways
    @pytest.mark.parametrize("kind", ["mirrored", "sync on read", "plain"])
    def test_inside_replicas(self, strategy, way, kind):
        v = KINDS[kind](3.0)

        def step():
            x = jnp.float32(replica_id() + 1)
            total, _ = jax.lax.scan(lambda c, y: (c + v * y, None), 0.0, jnp.arange(3.0))
            return jax.jit(lambda y: v * y)(x), total, jax.grad(lambda y: v * y**2)(x)

        for value in (3.0, 5.0):
            v.assign(value)
            first, second, third = run(way, strategy, step)
            assert local(strategy, first) == [value, 2 * value]
            assert local(strategy, second) == [3 * value] * 2
            assert local(strategy, third) == [2 * value, 4 * value]

    @pytest.mark.parametrize("kind", ["mirrored", "sync on read"])
    def test_run_inside_jit(self, strategy, kind):
        v = KINDS[kind](3.0)

        @jax.jit
        def step(x):
            each = strategy.run(lambda x: v * x + replica_id(), args=(x,))
            return strategy.reduce("SUM", each, axis=None)

        assert step(jnp.float32(1.0)) == 7
        v.assign(5.0)
        assert step(jnp.float32(1.0)) == 11

    def test_run_inside_grad(self, strategy):
        v = create(strategy, 3.0)

        def loss(x):
            each = strategy.run(lambda x: v * x**2 * (replica_id() + 1), args=(x,))
            return strategy.reduce("SUM", each, axis=None)

        assert jax.grad(jax.jit(loss))(jnp.float32(2.0)) == 3 * 4 * 3

    def test_the_gradient_by_a_value(self, strategy):
        """Plain `jax.grad` on `variable.value()`."""
        for v in (jt.Variable([1.0, 2.0]), create(strategy, [1.0, 2.0])):
            gradient = jax.grad(lambda w: jnp.sum(w**3))(v.value())
            assert gradient.tolist() == [3, 12]
            assert v.assign_sub(gradient).numpy().tolist() == [-2, -10]

    def test_a_program_for_inspection(self):
        v = jt.Variable(1.0)
        jax.make_jaxpr(lambda x: v * x)(1.0)
        assert jax.eval_shape(lambda x: v * x, 1.0).shape == ()
        assert jax.jit(lambda x: v * x).lower(1.0).compile()(2.0) == 2
        assert v.numpy() == 1


ASSIGNING = {
    "jit": lambda change: jax.jit(change)(1.0),
    "grad": lambda change: jax.grad(lambda x: (change(x), x)[1])(1.0),
    "vmap": lambda change: jax.vmap(change)(jnp.ones(2)),
    "scan": lambda change: jax.lax.scan(lambda c, x: (change(x), (c, None))[1], 0.0, jnp.ones(2)),
    "cond": lambda change: jax.lax.cond(True, change, lambda x: None, jnp.float32(1.0)),
    "fori_loop": lambda change: jax.lax.fori_loop(0, 2, lambda i, c: (change(c), c)[1], 1.0),
    "checkpoint": lambda change: jax.checkpoint(change)(1.0),
    "jit in grad": lambda change: jax.grad(jax.jit(lambda x: (change(x), x)[1]))(1.0),
    "make_jaxpr": lambda change: jax.make_jaxpr(change)(1.0),
    "eval_shape": lambda change: jax.eval_shape(change, 1.0),
}
every_transformation = pytest.mark.parametrize(
    "transformed", ASSIGNING.values(), ids=ASSIGNING.keys()
)


class TestAssigning:
    @pytest.mark.parametrize(
        ("kind", "transformation"),
        [
            *(("plain", name) for name in ASSIGNING),
            *(("mirrored", name) for name in ("jit", "grad", "scan", "vmap")),
            ("one device", "jit"),
            ("sync on read", "scan"),
        ],
    )
    def test_is_refused_where_it_is_done(self, kind, transformation):
        v, transformed = KINDS[kind](1.0), ASSIGNING[transformation]
        reached = []

        def change(x):
            reached.append("before")
            v.assign(x * 1.0)
            reached.append("after")

        with pytest.raises(jt.errors.TracerLeakError, match="'Variable'"):
            transformed(change)
        assert reached == ["before"]
        assert v.numpy() == 1
        assert v.assign_add(1.0).numpy() == 2
        assert jt.function(lambda: v.assign_add(1.0))().numpy() == 3
        assert jax.jit(lambda: v + 1)() == 4

    @every_transformation
    @pytest.mark.parametrize("value", [5.0, jnp.float32(5.0)], ids=["number", "array"])
    def test_of_something_that_is_no_tracer(self, transformed, value):
        """When it happens would depend on when JAX traces."""
        v = jt.Variable(1.0)
        with pytest.raises(jt.errors.TracerLeakError):
            transformed(lambda x: (v.assign(value), None)[1])
        assert v.numpy() == 1

    @every_transformation
    @pytest.mark.parametrize("kind", ["plain", "mirrored"])
    def test_inside_a_function(self, kind, transformed):
        v = KINDS[kind](1.0)

        @jt.function
        def step(x, bad):
            v.assign_add(x)
            if bad:
                transformed(lambda x: (v.assign_add(x * 1.0), None)[1])
            return v * 1

        with pytest.raises(jt.errors.TracerLeakError):
            step(jnp.float32(1.0), True)
        assert v.numpy() == 1
        assert step(jnp.float32(1.0), False) == 2

    @both_ways
    @every_transformation
    def test_inside_replicas(self, strategy, way, transformed):
        v = create(strategy, 1.0, aggregation=FIRST)
        w = create(strategy, 1.0, synchronization=ON_READ, aggregation=SUM)

        def step():
            w.assign_add(1.0)
            transformed(lambda x: (w.assign_add(x * 1.0), None)[1])

        with pytest.raises(jt.errors.TracerLeakError):
            run(way, strategy, step)
        assert components(w) == [1, 1]
        run(way, strategy, lambda: (w.assign_add(1.0), v.assign_add(1.0)))
        assert components(w) == components(v) == [2, 2]

    @pytest.mark.parametrize("operation", ["assign", "assign_add", "assign_sub"])
    def test_every_way_to_assign(self, operation):
        v = jt.Variable([1.0, 2.0])
        with pytest.raises(jt.errors.TracerLeakError):
            jax.jit(lambda x: getattr(v, operation)(x))(jnp.ones(2))
        with pytest.raises(jt.errors.TracerLeakError):
            jax.jit(lambda x: v.scatter_add(jt.IndexedSlices(x, [0])))(jnp.ones(1))
        assert v.numpy().tolist() == [1, 2]

    def test_run_inside_jit(self, strategy):
        v = create(strategy, 1.0, aggregation=SUM)
        with pytest.raises(jt.errors.TracerLeakError):
            jax.jit(lambda x: strategy.run(lambda x: v.assign(x + 0), args=(x,)))(1.0)
        assert components(v) == [1, 1]

    def test_a_function_inside_jit(self):
        v = jt.Variable(1.0)
        with pytest.raises(jt.errors.TracerLeakError):
            jax.jit(jt.function(lambda x: v.assign(x)))(1.0)
        assert v.numpy() == 1

    def test_the_advice(self):
        v = jt.Variable(1.0, name="w")
        with pytest.raises(jt.errors.TracerLeakError, match=r"'w'.*jt\.function") as caught:
            jax.jit(lambda x: v.assign(x))(1.0)
        assert isinstance(caught.value, (jt.errors.FailedPreconditionError, RuntimeError))

    def test_passing_through_the_transformation_instead(self):
        v = jt.Variable(0.0)

        @jt.function
        def step(xs):
            total, _ = jax.lax.scan(lambda c, x: (c + x, None), v.value(), xs)
            v.assign(total)

        step(jnp.arange(4.0))
        step(jnp.arange(4.0))
        assert v.numpy() == 12


class TestRandomness:
    @both_ways
    def test_optimised_away_or_not_the_result_is_the_same(self, strategy, way):
        """A step with jit, scan and grad inside is what NumPy computes."""
        rng = np.random.default_rng(3)
        x = rng.normal(size=(2, 4)).astype(np.float32)
        w = rng.normal(size=4).astype(np.float32)
        v = create(strategy, w, aggregation=MEAN)
        values = strategy.experimental_distribute_values_from_function(
            lambda ctx: x[ctx.replica_id_in_sync_group]
        )

        def replica_fn(x):
            gradient = jax.jit(jax.grad(lambda w: jnp.sum((w * x) ** 2)))(v.value())
            total, _ = jax.lax.scan(lambda c, y: (c + y * v[0], None), 0.0, x)
            v.assign_sub(gradient * 0.1)
            return total

        total = run(way, strategy, replica_fn, (values,))
        np.testing.assert_allclose(local(strategy, total), x.sum(1) * w[0], rtol=1e-5)
        expected = w - 0.1 * (2 * w * x**2).mean(0)
        np.testing.assert_allclose(v.numpy(), expected, rtol=1e-5)
