"""Variables that functions create when they are first called."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from tests.variables._support import ON_READ, SUM, components, mirrored, one_device

X = jnp.array([1.0, 3.0])


class Scale(jt.Module):
    """Multiplies by a variable, created from what it is first called with."""

    def __init__(self, initial):
        super().__init__()
        self.built = False
        self.initial = initial

    def __call__(self, x):
        if not self.built:
            self.built = True  # before the variable, which is there all the same
            self.w = jt.Variable(self.initial(x), name="w")
        return x * self.w


COMPUTED = [
    pytest.param(lambda x: jnp.mean(x), id="an array"),
    pytest.param(lambda x: lambda: jnp.mean(x), id="a function"),
]
STRATEGIES = [
    pytest.param(jt.get_strategy, id="default"),
    pytest.param(one_device, id="one device"),
    pytest.param(lambda: mirrored(2), id="mirrored"),
]


class TestFromComputedValues:
    @pytest.mark.parametrize("make", STRATEGIES)
    @pytest.mark.parametrize("initial", COMPUTED)
    def test_in_a_function(self, make, initial):
        with make().scope():
            model = Scale(initial)
            step = jt.function(model.__call__)
            assert [step(X).tolist() for _ in range(2)] == [[2, 6], [2, 6]]
            assert model.w.numpy() == 2
            assert step(X * 10).tolist() == [20, 60]  # and not from another mean
            assert step.experimental_get_tracing_count() == 1

    @pytest.mark.parametrize("initial", COMPUTED)
    def test_in_replicas_the_first_decides(self, initial):
        strategy = mirrored(2)
        model = Scale(initial)
        step = jt.function(lambda x: strategy.run(model, args=(x,)))
        xs = strategy.experimental_distribute_values_from_function(
            lambda context: X + context.replica_id_in_sync_group
        )
        assert [v.tolist() for v in step(xs).values] == [[2, 6], [4, 8]]
        assert components(model.w) == [2, 2]

    def test_with_a_copy_for_each_replica(self):
        strategy, made = mirrored(2), []

        @jt.function
        def step(x):
            if not made:
                with strategy.scope():
                    made.append(jt.Variable(jnp.sum(x), synchronization=ON_READ, aggregation=SUM))
            strategy.run(lambda: made[0].assign_add(1.0))

        step(X)
        assert components(made[0]) == [5, 5]

    def test_what_the_first_trace_assigns_does_not_count(self):
        made = []

        @jt.function
        def step(x):
            if not made:
                made.append(jt.Variable(jnp.sum(x)))
            made[0].assign_add(1.0)
            return made[0].value()

        assert [step(X).item(), step(X).item()] == [5, 6]

    def test_one_from_another(self):
        made = []

        @jt.function
        def step(x):
            if not made:
                made.append(jt.Variable(jnp.sum(x)))
                made.append(jt.Variable(made[0] * 2))
            return made[0] + made[1]

        assert step(X) == 12
        assert [v.numpy().item() for v in made] == [4, 8]

    @pytest.mark.parametrize("compiled", [False, True])
    def test_inside_a_gradient(self, compiled):
        v, model = jt.Variable(2.0), Scale(jnp.mean)

        def gradient(x):
            return jt.grad(lambda: jnp.sum(model(x * v)), lambda: v)()

        gradient = jt.function(gradient) if compiled else gradient
        assert [gradient(X).item(), gradient(X).item()] == [16, 16]
        assert model.w.numpy() == 4  # of which no gradient is known

    def test_callbacks_run_once_a_step(self):
        model, seen = Scale(jnp.mean), []

        @jt.function
        def step(x):
            jax.debug.callback(lambda: seen.append(1))
            return model(x)

        step(X)
        jax.effects_barrier()
        assert seen == [1]

    def test_elements_of_a_dataset(self):
        batches = iter(jt.data.Dataset.from_tensor_slices(np.array([[1.0, 3.0], [5.0, 7.0]])))
        model = Scale(jnp.mean)
        step = jt.function(lambda: model(next(batches)))
        assert [step().tolist(), step().tolist()] == [[2, 6], [10, 14]]

    def test_an_optimizer_is_built_with_it(self):
        model = Scale(jnp.mean)
        optimizer = jt.optimizers.Optimizer(optax.adam(0.1))

        @jt.function
        def step(x):
            loss, gradients = jt.value_and_grad(lambda: jnp.sum(model(x)), model)()
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        assert step(X) == 8
        assert model.w.numpy() == pytest.approx(1.9)

    def test_the_device_is_the_one_asked_for(self):
        model = Scale(jnp.mean)

        @jt.function
        def step(x):
            with jt.device("CPU:1"):
                return model(x)

        step(X)
        assert model.w.device.endswith("CPU:1")

    def test_a_value_that_never_came(self):
        model = Scale(jnp.mean)

        @jt.function
        def step(x):
            model(x)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            step(X)
        assert not model.w.is_initialized()
        with pytest.raises(jt.errors.FailedPreconditionError, match="has no value yet"):
            model.w.numpy()
        model.w.assign(3.0)
        assert model.w.is_initialized()
        assert jt.function(model.__call__)(X).tolist() == [3, 9]

    @pytest.mark.parametrize(
        "inside",
        [
            lambda model: jax.lax.map(model, X),
            lambda model: jax.lax.cond(X[0] > 0, model, lambda x: x, X * 1),
            lambda model: jax.vmap(model)(X),
            lambda model: jax.jit(model)(X),
        ],
        ids=["scan", "cond", "vmap", "jit"],
    )
    def test_is_refused_inside_of_jax(self, inside):
        model = Scale(jnp.mean)
        with pytest.raises(jt.errors.TracerLeakError, match=r"'w'.*Compute it outside"):
            jt.function(lambda: inside(model))()


class TestKeeping:
    def test_a_list_that_grows_with_each_trace(self):
        made = []

        @jt.function
        def step(x):
            made.append(jt.Variable(jnp.sum(x)))
            return made[-1].value()

        with pytest.raises(ValueError, match="first call only"):
            step(X)

    def test_one_that_nobody_keeps(self):
        with pytest.raises(ValueError, match="has to keep them"):
            jt.function(lambda x: jt.Variable(jnp.sum(x)).value())(X)


FORMS = [
    pytest.param(lambda model: model, id="the model"),
    pytest.param(lambda model: lambda: model.trainable_variables, id="a function"),
    pytest.param(lambda model: lambda: [model.w], id="an attribute that is not there yet"),
    pytest.param(lambda model: [model, ()], id="in a structure"),
]


class TestGradientsOfUnbuiltModels:
    """TensorFlow asks for the variables after the forward pass."""

    @pytest.mark.parametrize("variables", FORMS)
    @pytest.mark.parametrize("compiled", [False, True])
    def test_are_taken(self, variables, compiled):
        model = Scale(lambda x: 2.0)

        def gradient(x):
            gradients = jt.grad(lambda: jnp.sum(model(x)), variables(model))()
            return jax.tree.leaves(gradients)

        gradient = jt.function(gradient) if compiled else gradient
        for _ in range(2):
            assert [g.item() for g in gradient(X)] == [4]

    @pytest.mark.parametrize("compiled", [False, True])
    def test_on_replicas(self, compiled):
        strategy = mirrored(2)
        models = {}

        def step(x):
            key = 0 if compiled else int(jt.get_replica_context().replica_id_in_sync_group)
            model = models.setdefault(key, Scale(lambda x: 2.0))
            return jt.grad(lambda: jnp.sum(model(x)), model)()

        run = jt.function(step) if compiled else step
        (gradients,) = strategy.run(run, args=(X,))
        assert [g.item() for g in gradients.values] == [4, 4]

    def test_a_list_made_in_a_function_is_made_again(self):
        model = Scale(jnp.mean)

        @jt.function
        def step(x):
            _, (gradient,) = jt.value_and_grad(lambda: jnp.sum(model(x)), model.variables)()
            return gradient

        assert step(X) == 4

    def test_a_list_that_lacks_some_of_them_is_made_again(self):
        first, second = Scale(lambda x: 2.0), Scale(lambda x: 3.0)
        first(X)

        @jt.function
        def step(x):
            variables = [*first.trainable_variables, *second.trainable_variables]
            return jt.grad(lambda: jnp.sum(second(first(x))), variables)()

        assert [g.item() for g in step(X)] == [12, 8]

    @pytest.mark.parametrize("compiled", [False, True])
    def test_a_list_made_too_early_is_refused(self, compiled):
        model = Scale(lambda x: 2.0)
        gradient = jt.grad(lambda x: jnp.sum(model(x)), model.trainable_variables)
        step = jt.function(gradient) if compiled else gradient
        for _ in range(2):
            with pytest.raises(ValueError, match=r"variables w, .*lambda: model.trainable_var"):
                step(X)

    @pytest.mark.parametrize("compiled", [False, True])
    def test_others_are_warned_of(self, compiled):
        first, second = Scale(lambda x: 2.0), Scale(lambda x: 3.0)
        first(X)
        gradient = jt.grad(lambda x: jnp.sum(second(first(x))), first.trainable_variables)
        with pytest.warns(RuntimeWarning, match="has created the variables w"):
            assert (jt.function(gradient) if compiled else gradient)(X)[0] == 12

    def test_variables_that_are_not_trained_are_of_no_concern(self):
        v, made = jt.Variable(2.0), []

        def loss():
            made.append(jt.Variable(1.0, trainable=False))
            return v * made[-1]

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert jt.grad(loss, v)() == 1
