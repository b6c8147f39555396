"""`jt.Optimizer` against Optax by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from tests.variables._support import (
    MEAN,
    ON_READ,
    both_ways,
    call,
    components,
    create,
    mirrored,
    one_device,
    replica_id,
    run,
)

TRANSFORMATIONS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(0.05),
    "adamw with a schedule": lambda: optax.adamw(
        optax.warmup_cosine_decay_schedule(0.01, 0.1, 2, 6), weight_decay=0.1
    ),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.05)),
    "injected": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=0.05, b1=0.8),
}

STEPS = 4
BATCH = 8


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS, BATCH, 3)).astype(np.float32)
    y = rng.normal(size=(STEPS, BATCH)).astype(np.float32)
    w = rng.normal(size=3).astype(np.float32)
    return x, y, [w, np.float32(0.5)]


def losses(w, b, x, y):
    return (x @ w + b - y) ** 2


def by_optax(transformation):
    """Return the parameters after each step."""
    x, y, parameters = data()
    state = transformation.init(parameters)
    history = []
    for i in range(STEPS):
        gradients = jax.grad(lambda p, i=i: jnp.mean(losses(*p, x[i], y[i])))(parameters)
        updates, state = transformation.update(gradients, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        history.append([np.asarray(p) for p in parameters])
    return history


def same(variables, expected):
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=2e-4, atol=1e-6)


class TestAgainstOptax:
    @pytest.mark.parametrize(
        ("name", "strategy"),
        [
            *((name, "none") for name in TRANSFORMATIONS),
            ("adam", "one device"),
            ("adam", "mirrored"),
        ],
    )
    @both_ways
    def test_outside_replicas(self, name, strategy, way):
        transformation = TRANSFORMATIONS[name]
        strategy = {
            "none": jt.get_strategy,
            "one device": lambda: one_device("CPU:1"),
            "mirrored": lambda: mirrored(2),
        }[strategy]()
        x, y, parameters = data()
        with strategy.scope():
            variables = [jt.Variable(p) for p in parameters]
            optimizer = jt.Optimizer(transformation())

        def step(x, y):
            gradients = jt.grad(
                lambda: jnp.mean(losses(*(v.value() for v in variables), x, y)), variables
            )()
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        step = step if way == "eager" else jt.function(step)
        for i, expected in enumerate(by_optax(transformation())):
            step(x[i], y[i])
            same(variables, expected)
        assert optimizer.iterations.numpy() == STEPS

    @pytest.mark.parametrize(
        ("name", "replicas"),
        [*((name, 2) for name in TRANSFORMATIONS), ("adam", 1), ("clipped", 4)],
    )
    @both_ways
    def test_inside_replicas(self, name, replicas, way):
        transformation = TRANSFORMATIONS[name]
        strategy = mirrored(replicas)
        x, y, parameters = data()
        with strategy.scope():
            variables = [jt.Variable(p) for p in parameters]
            optimizer = jt.Optimizer(transformation())

        def replica_fn(x, y):
            def loss():
                each = losses(*(v.value() for v in variables), x, y)
                return jt.nn.compute_average_loss(each, global_batch_size=BATCH)

            loss, gradients = jt.value_and_grad(loss, variables)()
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        def step(x, y):
            return strategy.reduce("SUM", strategy.run(replica_fn, args=(x, y)), axis=None)

        step = step if way == "eager" else jt.function(step)
        share = BATCH // replicas

        def distribute(array):
            return strategy.experimental_distribute_values_from_function(
                lambda ctx: array[ctx.replica_id_in_sync_group * share :][:share]
            )

        for i, expected in enumerate(by_optax(transformation())):
            step(distribute(x[i]), distribute(y[i]))
            same(variables, expected)
        for variable in (*variables, *optimizer.variables):
            copies = components(variable)
            assert all(copy == copies[0] for copy in copies)
        assert optimizer.iterations.numpy() == STEPS

    @both_ways
    def test_ragged_batches(self, way):
        strategy = mirrored(2)
        x, y, parameters = data()
        with strategy.scope():
            variables = [jt.Variable(p) for p in parameters]
            optimizer = jt.Optimizer(optax.adam(0.05))

        def replica_fn(x, y):
            def loss():
                each = losses(*(v.value() for v in variables), x, y)
                return jt.nn.compute_average_loss(each, global_batch_size=BATCH)

            gradients = jt.grad(loss, variables)()
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        def step(x, y):
            strategy.run(replica_fn, args=(x, y))

        step = step if way == "eager" else jt.function(step)
        for i, expected in enumerate(by_optax(optax.adam(0.05))):
            cut = (3, 4, 8, 5)[i]  # the third leaves nothing for the second replica
            batch = [
                strategy.experimental_distribute_values_from_function(
                    lambda ctx, a=a, cut=cut: np.split(a, [cut])[ctx.replica_id_in_sync_group]
                )
                for a in (x[i], y[i])
            ]
            step(*batch)
            same(variables, expected)

    @pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
    def test_small_types(self, dtype):
        w = jt.Variable([1.0, 2.0], dtype=dtype)
        optimizer = jt.Optimizer(optax.sgd(0.5))
        optimizer.apply_gradients([(jnp.ones(2), w)])
        assert w.dtype == w.value().dtype == dtype
        assert w.numpy().tolist() == [0.5, 1.5]

    def test_a_changed_hyperparameter(self):
        w = jt.Variable(1.0)
        optimizer = jt.Optimizer(optax.inject_hyperparams(optax.sgd)(learning_rate=0.5))
        step = jt.function(lambda: optimizer.apply_gradients([(jnp.float32(1.0), w)]))
        step()
        assert w.numpy() == 0.5
        (rate,) = [v for v in optimizer.variables if "learning_rate" in v.name]
        rate.assign(0.25)
        step()
        assert w.numpy() == 0.25


class TestState:
    def test_is_built_by_the_first_step(self):
        w = jt.Variable([1.0, 2.0], name="w")
        optimizer = jt.Optimizer(optax.adam(0.1))
        assert [v.name for v in optimizer.variables] == ["optimizer/iterations"]
        optimizer.apply_gradients([(jnp.ones(2), w)])
        names = {v.name for v in optimizer.variables}
        assert names == {"optimizer/iterations", "optimizer/count", "w/mu", "w/nu"}
        by_name = {v.name: v for v in optimizer.variables}
        assert by_name["w/mu"].shape == (2,)
        np.testing.assert_allclose(by_name["w/mu"].numpy(), [0.1, 0.1], rtol=1e-5)
        assert by_name["optimizer/count"].numpy() == 1

    def test_can_be_built_before(self):
        strategy = mirrored(2)
        with strategy.scope():
            w, b = jt.Variable([1.0, 2.0], name="w"), jt.Variable(0.0, name="b")
            optimizer = jt.Optimizer(optax.adam(0.1), name="adam")
        optimizer.build([w, b])
        assert [type(v) for v in optimizer.variables] == [jt.MirroredVariable] * 6
        assert {v.name for v in optimizer.variables} == {
            "adam/iterations",
            "adam/count",
            "w/mu",
            "w/nu",
            "b/mu",
            "b/nu",
        }
        assert optimizer.iterations.numpy() == 0
        optimizer.apply_gradients([(jnp.ones(2), w), (jnp.float32(1.0), b)])
        assert len(optimizer.variables) == 6
        assert optimizer.iterations.numpy() == 1

    @pytest.mark.parametrize("name", TRANSFORMATIONS)
    def test_every_part_has_a_name_of_its_own(self, name):
        variables = [jt.Variable([1.0], name="w"), jt.Variable(1.0, name="b")]
        optimizer = jt.Optimizer(TRANSFORMATIONS[name]())
        optimizer.build(variables)
        names = [v.name for v in optimizer.variables]
        assert len(set(names)) == len(names), names

    def test_is_not_trained(self):
        w = jt.Variable(1.0)
        optimizer = jt.Optimizer(optax.adam(0.1))
        optimizer.build([w])
        assert optimizer.trainable_variables == ()
        assert not any(v.trainable for v in optimizer.variables)

    @both_ways
    def test_lives_with_the_variables(self, way):
        """Also when the first step is outside the scope, or inside the replicas."""
        strategy = mirrored(2)
        with strategy.scope():
            w = jt.Variable([1.0, 2.0], name="w")
            optimizer = jt.Optimizer(optax.adam(0.1))
        run(way, strategy, lambda: optimizer.apply_gradients([(jnp.ones(2), w)]))
        for variable in optimizer.variables:
            assert type(variable) is jt.MirroredVariable
            assert variable.distribute_strategy is strategy
            copies = components(variable)
            assert copies[0] == copies[1]
        assert optimizer.iterations.numpy() == 1
        np.testing.assert_allclose(w.numpy(), [0.9, 1.9], rtol=1e-5)

    def test_lives_with_the_variables_outside_the_scope(self):
        strategy = mirrored(2)
        with strategy.scope():
            w = jt.Variable([1.0, 2.0], name="w")
            optimizer = jt.Optimizer(optax.adam(0.1))
        optimizer.apply_gradients([(jnp.ones(2), w)])
        assert {type(v) for v in optimizer.variables} == {jt.MirroredVariable}

    @both_ways
    def test_an_optimizer_made_outside_the_scope(self, way):
        strategy = mirrored(2)
        w = create(strategy, [1.0, 2.0], name="w")
        optimizer = jt.Optimizer(optax.sgd(0.5))
        for i in (1, 2):
            run(way, strategy, lambda: optimizer.apply_gradients([(jnp.ones(2), w)]))
            assert components(w) == [[1.0 - i, 2.0 - i]] * 2
            assert optimizer.iterations.numpy() == i

    def test_in_the_first_call_of_a_function(self):
        made = {}

        @jt.function
        def step(x):
            if not made:
                made["w"] = jt.Variable(lambda: jnp.ones(2))
                made["optimizer"] = jt.Optimizer(optax.adam(0.1))
            made["optimizer"].apply_gradients([(x, made["w"])])

        step(jnp.ones(2))
        step(jnp.ones(2))
        assert made["optimizer"].iterations.numpy() == 2
        np.testing.assert_allclose(made["w"].numpy(), [0.8, 0.8], rtol=1e-5)

    def test_a_failing_step_changes_nothing(self):
        strategy = mirrored(2)
        with strategy.scope():
            w = jt.Variable(1.0)
            optimizer = jt.Optimizer(optax.adam(0.1))
        optimizer.build([w])

        def step():
            optimizer.apply_gradients([(jnp.float32(1.0), w)])
            raise ZeroDivisionError("mine")

        before = [v.numpy().tolist() for v in optimizer.variables]
        for way in ("eager", "compiled"):
            with pytest.raises(ZeroDivisionError):
                run(way, strategy, step)
            assert w.numpy() == 1
            assert [v.numpy().tolist() for v in optimizer.variables] == before

    def test_does_not_grow(self):
        w = jt.Variable(jnp.ones(100))
        optimizer = jt.Optimizer(optax.adam(0.1))
        step = jt.function(lambda x: optimizer.apply_gradients([(x, w)]))
        for _ in range(3):
            step(np.ones(100, np.float32))
        before = len(jax.live_arrays())
        for _ in range(10):
            step(np.ones(100, np.float32))
        assert len(jax.live_arrays()) <= before

    def test_is_traced_once(self):
        strategy = mirrored(2)
        with strategy.scope():
            w = jt.Variable(1.0)
            optimizer = jt.Optimizer(optax.adam(0.1))
        traces = []

        @jt.function
        def step(x):
            traces.append(1)
            strategy.run(lambda x: optimizer.apply_gradients([(x * 1, w)]), args=(x,))

        step(jnp.float32(1.0))
        first = len(traces)
        for _ in range(3):
            step(jnp.float32(1.0))
        assert len(traces) == first


class TestGradients:
    @both_ways
    def test_are_added_up_over_replicas(self, way):
        strategy = mirrored(2)
        w = create(strategy, 10.0)
        with strategy.scope():
            optimizer = jt.Optimizer(optax.sgd(1.0))
        run(
            way,
            strategy,
            lambda: optimizer.apply_gradients([(jnp.float32(replica_id() + 1), w)]),
        )
        assert components(w) == [7, 7]

    @both_ways
    def test_are_added_up_outside_as_well(self, way):
        strategy = mirrored(2)
        w = create(strategy, 10.0)
        with strategy.scope():
            optimizer = jt.Optimizer(optax.sgd(1.0))

        def step():
            each = strategy.run(lambda: jnp.float32(replica_id() + 1))
            optimizer.apply_gradients([(each, w)])

        with strategy.scope():
            call(way, step)
        assert components(w) == [7, 7]

    @both_ways
    @pytest.mark.parametrize("replicas", [None, 2])
    def test_sparse(self, way, replicas):
        rows = jt.IndexedSlices(jnp.ones((2, 2)), jnp.array([0, 0]))
        if replicas is None:
            w = jt.Variable(jnp.zeros((3, 2)))
            optimizer = jt.Optimizer(optax.sgd(1.0))
            call(way, lambda: optimizer.apply_gradients([(rows, w)]))
            assert w.numpy().tolist() == [[-2, -2], [0, 0], [0, 0]]
            return
        strategy = mirrored(replicas)
        with strategy.scope():
            w = jt.Variable(jnp.zeros((3, 2)))
            optimizer = jt.Optimizer(optax.sgd(1.0))

        def replica_fn():
            indices = jnp.asarray([1, 1]) * replica_id()
            optimizer.apply_gradients([(jt.IndexedSlices(jnp.ones((2, 2)), indices), w)])

        run(way, strategy, replica_fn)
        assert components(w) == [[[-2, -2], [-2, -2], [0, 0]]] * 2

    def test_numbers_and_numpy(self):
        w, b = jt.Variable(1.0), jt.Variable([1.0, 1.0])
        optimizer = jt.Optimizer(optax.sgd(1.0))
        optimizer.apply_gradients([(0.5, w), (np.array([0.5, 1.0]), b)])
        assert w.numpy() == 0.5
        assert b.numpy().tolist() == [0.5, 0.0]

    def test_a_generator_of_pairs(self):
        w = jt.Variable(1.0)
        jt.Optimizer(optax.sgd(1.0)).apply_gradients((g, v) for g, v in [(jnp.float32(1.0), w)])
        assert w.numpy() == 0


class TestMistakes:
    @pytest.fixture
    def optimizer(self):
        return jt.Optimizer(optax.adam(0.1))

    @pytest.mark.parametrize("thing", [0.1, "adam", None, optax.adam])
    def test_what_is_no_transformation(self, thing):
        with pytest.raises(TypeError, match="GradientTransformation"):
            jt.Optimizer(thing)

    def test_no_gradients(self, optimizer):
        with pytest.raises(ValueError, match="No gradients"):
            optimizer.apply_gradients([])

    def test_missing_gradients(self, optimizer):
        w, b = jt.Variable(1.0, name="w"), jt.Variable(1.0, name="b")
        with pytest.raises(ValueError, match=r"No gradients provided .* \['w', 'b'\]"):
            optimizer.apply_gradients([(None, w), (None, b)])
        assert w.numpy() == 1
        assert optimizer.iterations.numpy() == 0
        assert len(optimizer.variables) == 1

    def test_other_variables_than_before(self, optimizer):
        w, b = jt.Variable(1.0, name="w"), jt.Variable(1.0, name="b")
        one = jnp.float32(1.0)
        optimizer.apply_gradients([(one, w), (one, b)])
        for pairs in ([(one, w)], [(one, b), (one, w)], [(one, w), (one, jt.Variable(1.0))]):
            before = (w.numpy(), b.numpy())
            with pytest.raises(ValueError, match=r"\['w', 'b'\]"):
                optimizer.apply_gradients(pairs)
            assert (w.numpy(), b.numpy()) == before
        assert optimizer.iterations.numpy() == 1

    def test_gradients_that_do_not_fit(self, optimizer):
        w = jt.Variable([1.0, 2.0], name="w")
        for gradient in (jnp.ones(3), jnp.ones((2, 2)), jnp.ones(())):
            with pytest.raises((TypeError, ValueError)):
                optimizer.apply_gradients([(gradient, w)])
            assert w.numpy().tolist() == [1, 2]
            assert optimizer.iterations.numpy() == 0
        optimizer.apply_gradients([(jnp.ones(2), w)])
        assert optimizer.iterations.numpy() == 1

    @both_ways
    def test_variables_from_outside_the_scope(self, way):
        strategy = mirrored(2)
        w = jt.Variable(1.0, name="lonely")
        with strategy.scope():
            optimizer = jt.Optimizer(optax.sgd(0.1))
        with pytest.raises(ValueError, match=r"\['lonely'\].*scope"):
            run(way, strategy, lambda: optimizer.apply_gradients([(jnp.float32(1.0), w)]))
        assert w.numpy() == 1

    def test_variables_of_another_strategy(self):
        w = create(mirrored(3), 1.0, name="w")
        with mirrored(2).scope():
            optimizer = jt.Optimizer(optax.sgd(0.1))
            with pytest.raises((ValueError, RuntimeError), match="w"):
                optimizer.apply_gradients([(jnp.float32(1.0), w)])
        assert w.numpy() == 1

    def test_a_variable_whose_copies_differ(self):
        strategy = mirrored(2)
        w = create(strategy, 1.0, name="w", synchronization=ON_READ, aggregation=MEAN)
        with strategy.scope():
            optimizer = jt.Optimizer(optax.sgd(0.1))
        step = jt.function(
            lambda: strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(1.0), w)]))
        )
        try:
            step()
        except (TypeError, ValueError):
            assert components(w) == [1, 1]
        else:  # the same update everywhere
            np.testing.assert_allclose(components(w), [0.8, 0.8], rtol=1e-6)

    def test_what_is_no_variable(self, optimizer):
        with pytest.raises(TypeError, match="variables"):
            optimizer.apply_gradients([(jnp.ones(2), jnp.ones(2))])
        assert optimizer.iterations.numpy() == 0

    def test_nothing_to_build_for(self, optimizer):
        with pytest.raises(ValueError, match="variables"):
            optimizer.build([])


def test_a_transformation_may_look_at_the_initial_values():
    def init(params):
        return {"largest": max(float(jnp.max(p)) for p in params)}

    looking = optax.GradientTransformation(init, lambda updates, state, params: (updates, state))
    v = jt.Variable([1.0, 3.0])
    optimizer = jt.Optimizer(looking)
    jt.function(lambda: optimizer.apply_gradients([(jnp.ones(2), v)]))()
    assert float(optimizer.variables[1]) == 3.0
