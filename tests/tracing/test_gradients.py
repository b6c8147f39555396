"""`jt.value_and_grad` and `jt.grad`."""

import dataclasses

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
    call,
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
    "one device": lambda *a, **k: create(one_device("CPU:1"), *a, **k),
    "mirrored": lambda *a, **k: create(mirrored(2), *a, aggregation=MEAN, **k),
    "mirrored on one": lambda *a, **k: create(mirrored(1), *a, aggregation=MEAN, **k),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
main_kinds = pytest.mark.parametrize(
    "make", [KINDS["plain"], KINDS["mirrored"]], ids=["plain", "mirrored"]
)


@pytest.fixture
def strategy():
    return mirrored(2)


def numbers(tree):
    return jax.tree.map(lambda x: np.asarray(x).tolist(), tree)


class TestStructures:
    @both_ways
    @every_kind
    def test_one_variable(self, make, way):
        w = make([1.0, 2.0])
        loss, gradient = call(way, lambda: jt.value_and_grad(lambda x: (w**2 * x).sum(), w)(3.0))
        assert loss == 15
        assert gradient.tolist() == [6, 12]
        assert call(way, lambda: jt.grad(lambda x: (w**2 * x).sum(), w)(3.0)).tolist() == [6, 12]

    @both_ways
    @main_kinds
    def test_lists_tuples_and_dictionaries(self, make, way):
        w, b = make(2.0), make(3.0)

        def loss():
            return w**2 * b

        for structure, expected in [
            ([w, b], [12, 4]),
            ((w, b), (12, 4)),
            ({"w": w, "more": [b]}, {"w": 12, "more": [4]}),
            ([], []),
        ]:
            value, gradients = call(way, lambda s=structure: jt.value_and_grad(loss, s)())
            assert value == 12
            assert numbers(gradients) == expected

    def test_dataclasses(self):
        @dataclasses.dataclass
        class Parameters:
            w: object
            b: object

        w, b = jt.Variable(2.0), jt.Variable(3.0)
        gradients = jt.grad(lambda: w**2 * b, Parameters(w, b))()
        assert type(gradients) is Parameters
        assert (gradients.w, gradients.b) == (12, 4)

    def test_module_variables(self):
        class Dense(jt.Module):
            def __init__(self):
                super().__init__()
                self.w, self.b = jt.Variable(2.0), jt.Variable(3.0)

        dense = Dense()
        gradients = jt.grad(lambda x: dense.w * x + dense.b, dense.trainable_variables)(5.0)
        assert isinstance(gradients, tuple)
        assert sorted(map(float, gradients)) == [1, 5]

    def test_one_that_is_not_used(self):
        w, unused = jt.Variable(2.0), jt.Variable([1.0, 1.0])
        gradients = jt.grad(lambda: w * 3, [w, unused])()
        assert gradients[0] == 3
        assert gradients[1] is None

    @pytest.mark.parametrize(
        ("mistake", "advice"),
        [
            pytest.param(jax.tree.leaves, r"array of shape \(2,\).*pass the variable", id="leaves"),
            pytest.param(lambda d: jax.tree.map(jnp.copy, d), r"list\(d.values\(\)\)", id="map"),
            pytest.param(lambda d: [d["w"].numpy()], "pass the variable itself", id="numpy"),
            pytest.param(list, "the text 'w'. Pass the variable itself", id="names"),
            pytest.param(lambda d: d["w"].ref(), "of type VariableReference", id="reference"),
        ],
    )
    def test_what_is_no_variable_is_refused_with_what_to_pass(self, mistake, advice):
        variables = {"w": jt.Variable([2.0, 3.0])}
        with pytest.raises(TypeError, match=advice):
            jt.value_and_grad(lambda: jnp.sum(variables["w"]), mistake(variables))

    def test_the_same_twice(self):
        w = jt.Variable(2.0)
        first, second = jt.grad(lambda: w**2, [w, w])()
        assert float(first) + float(second) in (4, 8)  # the whole gradient, once or in each place

    def test_arguments_and_keywords(self):
        w = jt.Variable(2.0)

        def loss(x, *, scale=1.0):
            return w * x * scale

        assert jt.grad(loss, w)(3.0, scale=2.0) == 6
        assert jt.grad(loss, w)(x=jnp.float32(3.0)) == 3


class TestResults:
    @both_ways
    def test_something_else_besides(self, way):
        w = jt.Variable(2.0)
        thing = object()

        def loss(x):
            return w * x, {"twice": w * 2, "text": "a", "thing": thing, "none": None, "n": 3}

        (value, aux), gradient = call(
            way, lambda: jt.value_and_grad(loss, w, has_aux=True)(jnp.float32(3.0))
        )
        assert (value, gradient) == (6, 3)
        assert aux["twice"] == 4
        assert (aux["text"], aux["thing"], aux["none"], aux["n"]) == ("a", thing, None, 3)
        gradient, aux = call(way, lambda: jt.grad(loss, w, has_aux=True)(jnp.float32(3.0)))
        assert gradient == 3
        assert aux["twice"] == 4

    def test_a_variable_besides(self):
        w = jt.Variable(2.0)
        (_, aux), _ = jt.value_and_grad(lambda: (w * 2, w), w, has_aux=True)()
        assert aux is w

    @both_ways
    def test_several_elements_count_as_their_sum(self, way):
        w = jt.Variable([1.0, 2.0])
        loss, gradient = call(way, lambda: jt.value_and_grad(lambda: w**2, w)())
        assert loss.tolist() == [1, 4]
        assert gradient.tolist() == [2, 4]

    def test_a_number_as_loss(self):
        w = jt.Variable(2.0)
        loss, gradient = jt.value_and_grad(lambda: 3.0, w)()
        assert (loss, gradient) == (3, None)

    def test_types_of_gradients(self):
        for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
            w = jt.Variable([1.0, 2.0], dtype=dtype)
            assert jt.grad(lambda w=w: (w * w).sum(), w)().dtype == dtype

    @pytest.mark.parametrize("initial", [1, True, np.uint8(1)])
    def test_whole_numbers_are_refused(self, initial):
        w = jt.Variable(initial, name="count")
        with pytest.raises(TypeError, match="'count'"):
            jt.value_and_grad(lambda: w * 1.0, [w])
        with pytest.raises(TypeError, match="'count'"):
            jt.grad(lambda: w * 1.0, w)

    @pytest.mark.parametrize("thing", [jnp.ones(2), 1.0, "w"], ids=repr)
    def test_what_is_no_variable_is_refused(self, thing):
        with pytest.raises(TypeError, match="variables"):
            jt.grad(lambda: 1.0, [thing])

    def test_a_loss_that_is_no_number(self):
        w = jt.Variable(2.0)
        with pytest.raises(TypeError):
            jt.grad(lambda: w > 1.0, w)()
        with pytest.raises((TypeError, ValueError)):
            jt.grad(lambda: None, w)()
        assert jt.grad(lambda: w * 1, w)() == 1


class TestAgainstJax:
    @both_ways
    @main_kinds
    def test_a_small_network(self, make, way):
        rng = np.random.default_rng(0)
        parameters = {
            "w1": rng.normal(size=(4, 8)).astype(np.float32),
            "b1": rng.normal(size=8).astype(np.float32),
            "w2": rng.normal(size=(8, 3)).astype(np.float32),
        }
        x = rng.normal(size=(5, 4)).astype(np.float32)
        y = rng.integers(0, 3, size=5)

        def loss(p, x, y):
            logits = jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"]
            return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(5), y])

        variables = {name: make(value) for name, value in parameters.items()}
        value, gradients = call(
            way, lambda x, y: jt.value_and_grad(lambda: loss(variables, x, y), variables)(), x, y
        )
        expected_value, expected = jax.value_and_grad(loss)(parameters, x, y)
        np.testing.assert_allclose(value, expected_value, rtol=1e-5)
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-6)

    @both_ways
    def test_complex(self, way):
        w = jt.Variable(1.0 + 2.0j)
        gradient = call(way, lambda: jt.grad(lambda: jnp.abs(w.value()) ** 2, w)())
        expected = jax.grad(lambda w: jnp.abs(w) ** 2)(jnp.complex64(1 + 2j))
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)

    @both_ways
    @main_kinds
    def test_twice(self, make, way):
        w = make(2.0)

        def slope():
            return jt.grad(lambda: w**3, w)()

        value, curvature = call(way, lambda: jt.value_and_grad(slope, w)())
        assert (value, curvature) == (12, 12)

    @both_ways
    def test_mixed_second_order(self, way):
        w, u = jt.Variable(2.0), jt.Variable(5.0)
        mixed = call(way, lambda: jt.grad(lambda: jt.grad(lambda: w**2 * u**3, w)(), u)())
        assert mixed == 2 * 2 * 3 * 25

    def test_around_and_inside_jax_grad(self):
        w = jt.Variable(2.0)
        assert jax.grad(lambda x: jt.grad(lambda: w**2 * x**3, w)())(3.0) == 4 * 27
        assert jt.grad(lambda: jax.grad(lambda x: w**2 * x**3)(3.0), w)() == 4 * 27

    def test_inside_jit_and_vmap(self):
        w = jt.Variable(2.0)
        gradient = jax.jit(lambda x: jt.grad(lambda: w**2 * x, w)())
        assert gradient(3.0) == 12
        w.assign(3.0)
        assert gradient(3.0) == 18
        rows = jax.vmap(lambda x: jt.grad(lambda: w**2 * x, w)())(jnp.arange(3.0))
        assert rows.tolist() == [0, 6, 12]

    def test_with_jit_scan_and_checkpoint_inside(self):
        w = jt.Variable(2.0)

        def loss():
            inner = jax.jit(lambda x: w * x)(3.0)
            total, _ = jax.lax.scan(lambda c, x: (c + w * x, None), 0.0, jnp.arange(3.0))
            return inner + total + jax.checkpoint(lambda: w**2)()

        assert jt.grad(loss, w)() == 3 + 3 + 4

    def test_of_a_function(self):
        w = jt.Variable(2.0)
        loss = jt.function(lambda x: w**2 * x)
        assert jt.grad(loss, w)(3.0) == 12
        assert jt.function(jt.grad(loss, w))(3.0) == 12

    @both_ways
    @every_kind
    def test_other_variables_are_constants(self, make, way):
        w, other, count = make(2.0), make(5.0), make(1, dtype=jnp.float32)
        value, gradient = call(way, lambda: jt.value_and_grad(lambda: w * other * count, w)())
        assert (value, gradient) == (10, 5)
        other.assign(7.0)
        assert call(way, lambda: jt.grad(lambda: w * other, w)()) == 7

    def test_plain_and_mirrored_together(self, strategy):
        w, v = jt.Variable(2.0), create(strategy, 3.0)
        for way in ("eager", "compiled"):
            gradients = call(way, lambda: jt.grad(lambda: w**2 * v, [w, v])())
            assert numbers(gradients) == [12, 4]


class TestAssignments:
    @both_ways
    @every_kind
    def test_are_carried_out(self, make, way):
        w, total, count = make(2.0), make(0.0), jt.Variable(0)

        def loss(x):
            total.assign_add(w * x)
            count.assign_add(1)
            return w * x + total

        step = jt.value_and_grad(loss, w)
        step = step if way == "eager" else jt.function(step)
        for i in (1, 2):
            value, gradient = step(jnp.float32(3.0))
            assert value == 6 + 6 * i
            assert gradient == 6
            assert total.numpy() == 6 * i
            assert count.numpy() == i
        assert w.numpy() == 2

    @both_ways
    @every_kind
    def test_of_the_variable_itself(self, make, way):
        w = make(2.0)

        def loss():
            before = w**2
            w.assign(w * 10)
            return before + w

        value, gradient = call(way, lambda: jt.value_and_grad(loss, w)())
        assert (value, gradient) == (24, 14)
        assert w.numpy() == 20

    @both_ways
    def test_in_replicas(self, strategy, way):
        w = create(strategy, 2.0)
        moving = create(strategy, 0.0, aggregation=MEAN)
        seen = create(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)

        def step(x):
            def loss():
                moving.assign(w * x)
                seen.assign_add(x)
                return w * x

            return jt.value_and_grad(loss, w)()

        values = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.float32(ctx.replica_id_in_sync_group + 1)
        )
        for i in (1, 2):
            loss, gradient = run(way, strategy, step, (values,))
            assert local(strategy, loss) == [2, 4]
            assert local(strategy, gradient) == [1, 2]
            assert components(moving) == [3, 3]
            assert components(seen) == [i, 2 * i]

    @both_ways
    def test_an_error_inside(self, strategy, way):
        for make in (jt.Variable, lambda x: create(strategy, x)):
            w, total = make(2.0), make(0.0)

            def loss(w=w, total=total):
                total.assign_add(w)
                raise ZeroDivisionError("mine")

            with pytest.raises(ZeroDivisionError, match="mine"):
                call(way, lambda w=w, loss=loss: jt.grad(loss, w)())
            assert total.numpy() == 0
            assert total.assign_add(1.0).numpy() == 1  # no frame is left open
            assert jt.grad(lambda w=w: w * 3, w)() == 3

    @both_ways
    def test_nested(self, way):
        w, calls = jt.Variable(2.0), jt.Variable(0)

        def inner():
            calls.assign_add(1)
            return w**3

        curvature = call(way, lambda: jt.grad(lambda: jt.grad(inner, w)(), w)())
        assert curvature == 12
        assert calls.numpy() == 1

    def test_creating_variables_inside(self, strategy):
        w = create(strategy, 2.0)
        made = []

        @jt.function
        def step(x):
            def loss():
                if not made:
                    with strategy.scope():
                        made.append(jt.Variable(lambda: jnp.float32(5.0)))
                return w * made[0] * x

            return jt.grad(loss, w)()

        assert step(jnp.float32(2.0)) == 10
        assert step(jnp.float32(3.0)) == 15


class TestReplicas:
    @both_ways
    def test_gradients_are_the_replicas_own(self, strategy, way):
        w = create(strategy, [1.0, 2.0])

        def step():
            return jt.value_and_grad(lambda: (w**2).sum() * (replica_id() + 1), [w])()

        loss, (gradient,) = run(way, strategy, step)
        assert local(strategy, loss) == [5, 10]
        assert local(strategy, gradient) == [[2, 4], [4, 8]]

    @both_ways
    def test_through_all_reduce(self, strategy, way):
        """R64: the gradients are combined by the same op."""
        w = create(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)

        def step(op):
            w.assign(jnp.float32(replica_id() + 1))
            context = jt.get_replica_context()
            return jt.value_and_grad(lambda: context.all_reduce(op, w**2), w)()

        for op, value, gradients in (("SUM", 5, [4, 8]), ("MEAN", 2.5, [2, 4])):
            result = run(way, strategy, lambda op=op: step(op))
            assert local(strategy, result[0]) == [value, value]
            assert local(strategy, result[1]) == gradients

    @both_ways
    def test_sync_on_read_inside(self, strategy, way):
        v = create(strategy, 3.0, synchronization=ON_READ, aggregation=SUM)
        gradient = run(way, strategy, lambda: jt.grad(lambda: v**2 * (replica_id() + 1), v)())
        assert local(strategy, gradient) == [6, 12]

    @both_ways
    def test_sync_on_read_outside_is_refused(self, strategy, way):
        v = create(strategy, 3.0, name="w", synchronization=ON_READ, aggregation=SUM)
        with pytest.raises(TypeError, match="'w'"):
            call(way, lambda: jt.grad(lambda: v**2, v)())

    @both_ways
    def test_sync_on_read_as_a_constant_outside(self, strategy, way):
        w = create(strategy, 2.0)
        v = create(strategy, 3.0, synchronization=ON_READ, aggregation=SUM)
        assert call(way, lambda: jt.grad(lambda: w * v, w)()) == 6

    @both_ways
    def test_of_run(self, strategy, way):
        """Differentiating a whole step, from outside the replicas."""
        w = create(strategy, 2.0)

        def loss(x):
            each = strategy.run(lambda x: w**2 * x * (replica_id() + 1), args=(x,))
            return strategy.reduce("SUM", each, axis=None)

        step = jt.value_and_grad(loss, w)
        value, gradient = step(1.0) if way == "eager" else jt.function(step)(jnp.float32(1.0))
        assert (value, gradient) == (12, 12)

    @both_ways
    def test_averaged_over_replicas_they_are_those_of_the_whole_batch(self, way):
        strategy = mirrored(4)
        rng = np.random.default_rng(1)
        w0 = rng.normal(size=3).astype(np.float32)
        x = rng.normal(size=(4, 5, 3)).astype(np.float32)
        w = create(strategy, w0, aggregation=FIRST)
        batches = strategy.experimental_distribute_values_from_function(
            lambda ctx: x[ctx.replica_id_in_sync_group]
        )

        def step(x):
            gradient = jt.grad(lambda: jnp.mean((x @ w.value()) ** 2), w)()
            return jt.get_replica_context().all_reduce("MEAN", gradient)

        expected = jax.grad(lambda w: jnp.mean((x.reshape(20, 3) @ w) ** 2))(w0)
        for gradient in local(strategy, run(way, strategy, step, (batches,))):
            np.testing.assert_allclose(gradient, expected, rtol=1e-5)
