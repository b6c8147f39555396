"""Keras objects that were made outside of every scope, in `jt.function`, `run` and gradients."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxtribute as jt

X = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
Y = X @ np.float32([[1], [-2]])


def linear(**kwargs) -> keras.Model:
    dense = keras.layers.Dense(1, kernel_initializer="zeros", **kwargs)
    return keras.Sequential([keras.Input((2,)), dense])


def step(model, optimizer, metric, x, y):
    loss, gradients = jt.value_and_grad(
        lambda: jnp.mean((model(x, training=True) - y) ** 2), model.trainable_variables
    )()
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    metric.update_state(loss)
    return metric.result()


def same(objects, others) -> None:
    for a, b in zip(objects, others, strict=True):
        for value, other in zip(a.variables, b.variables, strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-6)


def test_later_weights_are_seen():
    model = linear()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    function = jt.function(lambda x: model(x))
    assert not function(X).any()
    model.layers[0].kernel.assign([[4.0], [0.0]])
    np.testing.assert_allclose(function(X), model(X), rtol=1e-6)
    model.fit(X, Y, verbose=0, epochs=2)
    np.testing.assert_allclose(function(X), model(X), rtol=1e-6)
    model.set_weights([np.ones((2, 1)), np.ones(1)])
    np.testing.assert_allclose(function(X), model(X), rtol=1e-6)
    assert function.experimental_get_tracing_count() == 1


def _in_run(strategy):
    return lambda *args: strategy.run(step, args=args)


WAYS = {
    "function": lambda: jt.function(step),
    "eager run": lambda: _in_run(jt.OneDeviceStrategy("CPU:1")),
    "compiled run": lambda: jt.function(_in_run(jt.OneDeviceStrategy("CPU:1"))),
    "run of the default strategy": lambda: jt.function(_in_run(jt.get_strategy())),
}


@pytest.mark.parametrize("way", WAYS)
def test_training_with_everything_from_outside(way):
    def begin():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((2,)),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(1),
            ]
        )
        return model, keras.optimizers.Adam(0.1), keras.metrics.Mean()

    objects, expected = begin(), begin()
    train = WAYS[way]()
    for _ in range(3):
        result = train(*objects, X, Y)
        np.testing.assert_allclose(result, step(*expected, X, Y), rtol=1e-4)
    same(objects, expected)
    assert int(objects[1].iterations.value) == 3
    objects[2].reset_state()
    expected[2].reset_state()
    np.testing.assert_allclose(train(*objects, X, Y), step(*expected, X, Y), rtol=1e-4)


def test_what_was_handed_out_stays():
    model = linear()
    function = jt.function(lambda: model.layers[0].bias.assign_add([1.0]))
    seen = []
    for _ in range(3):
        seen.append(model.layers[0].bias.value)
        function()
    assert [v.tolist() for v in seen] == [[0], [1], [2]]


def test_layers_that_are_built_by_the_function():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
    function = jt.function(lambda x: model(x))
    first = function(X)
    np.testing.assert_allclose(first, model(X), rtol=1e-5)
    model.layers[1].bias.assign([5.0])
    np.testing.assert_allclose(function(X), first + 5, rtol=1e-5)


def test_a_failure_changes_nothing():
    metric = keras.metrics.Mean()

    def fail():
        metric.update_state(1.0)
        raise KeyError("failed")

    for strategy in (jt.get_strategy(), jt.OneDeviceStrategy("CPU:0")):
        for call in (jt.function(fail), lambda strategy=strategy: strategy.run(fail)):
            with pytest.raises(KeyError):
                call()
            assert float(metric.count) == 0


@pytest.mark.parametrize("compiled", [True, False])
def test_replicas_read_and_are_refused_to_assign(compiled, mirrored):
    def run(fn):
        return (jt.function(mirrored.run) if compiled else mirrored.run)(fn)

    model, metric = linear(), keras.metrics.Mean(name="mine")
    norm, dropout = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)
    norm.build((None, 2))
    model.layers[0].kernel.assign([[4.0], [1.0]])
    for answer in mirrored.experimental_local_results(run(lambda: model(X))):
        np.testing.assert_allclose(answer, model(X), rtol=1e-6)
    for name, assign in {
        "mine/total": lambda: metric.update_state(1.0),
        "batch_normalization/moving_mean": lambda: norm(X, training=True),
        "sequential/dense/kernel": lambda: model.layers[0].kernel.assign([[0.0], [0.0]]),
    }.items():
        with pytest.raises(ValueError, match=rf"'{name}' was created outside .* 2 replicas"):
            run(assign)
    assert float(metric.count) == 0
    np.testing.assert_array_equal(model.layers[0].kernel, [[4.0], [1.0]])
    # Seeds go on alike on all replicas, and differ between them.
    before = int(dropout.seed_generator.state.value[1])
    ones = mirrored.experimental_local_results(run(lambda: dropout(np.ones(64), training=True)))
    assert not np.array_equal(*ones)
    assert int(dropout.seed_generator.state.value[1]) == before + 1


def test_an_optimizer_of_the_scope_trains_a_model_from_outside(mirrored):
    model, expected = linear(), linear()
    with mirrored.scope():
        optimizer = keras.optimizers.SGD(0.1)
    own = keras.optimizers.SGD(0.1)

    def replica(x, y):
        def loss():
            return jt.nn.compute_average_loss((model(x) - y)[:, 0] ** 2, global_batch_size=8)

        gradients = jt.grad(loss, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    train = jt.function(lambda *args: mirrored.run(replica, args=args))
    halves = [
        mirrored.experimental_distribute_values_from_function(
            lambda context, v=v: v[context.replica_id_in_sync_group :: 2]
        )
        for v in (X, Y)
    ]
    for _ in range(3):
        train(*halves)
        step(expected, own, keras.metrics.Mean(), X, Y)
    same([model], [expected])


def test_keras_alone_is_what_it_was():
    model = linear()
    jt.function(lambda: model(X))()
    baked = jax.jit(lambda x: model(x))
    first = baked(X)
    model.layers[0].bias.assign([3.0])
    np.testing.assert_array_equal(baked(X), first)
    trainable, others = model.trainable_variables, model.non_trainable_variables
    answer, _ = model.stateless_call([v.value for v in trainable], [v.value for v in others], X)
    np.testing.assert_array_equal(answer, model(X))


@pytest.mark.parametrize("backend", ["jax", "tensorflow", "torch"])
def test_imported_late_and_on_any_backend(backend):
    pytest.importorskip(backend)
    program = f"""
import os
os.environ["KERAS_BACKEND"] = "{backend}"
import jaxtribute as jt
import numpy as np
f = jt.function(lambda x: x + 1)
f(1.0)
import keras
variable = keras.Variable(np.zeros(2, "float32"))
f(1.0)
variable.assign([1, 2])
if "{backend}" == "jax":
    g = jt.function(lambda: variable * 1)
    g()
    variable.assign([3, 4])
    assert g().tolist() == [3, 4]
    variable.assign([1, 2])
print(keras.ops.convert_to_numpy(variable.value).tolist(), float(f(1.0)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[1.0, 2.0] 2.0\n", done.stderr
