"""Keras models that are saved as programs and weights."""

import keras
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.testing import LocalCluster

Signature, Spec = jt.saved_model.Signature, jt.TensorSpec
X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
IDS = np.int32([[0, 4], [6, 1], [2, 2]])


def make_model():
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, activation="relu", name="hidden"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dropout(0.5, name="dropout"),
            keras.layers.Dense(2, name="out"),
        ],
        name="model",
    )


def make_embedding():
    return keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(7, 3, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dense(1, name="out"),
        ]
    )


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves and loads."""

    def save_and_load(obj, signatures=None):
        jt.saved_model.save(obj, tmp_path / "model", signatures)
        return jt.saved_model.load(tmp_path / "model")

    return save_and_load


def check_same(loaded, model, x):
    """Compare a loaded model with the one it was saved from."""
    answer = loaded.signatures["serving_default"](inputs=x)
    np.testing.assert_allclose(answer, model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(answer, loaded(x))
    values = {v.name: v.numpy() for v in loaded.variables}
    assert values.keys() == {v.path for v in model.variables}
    for variable in model.variables:
        np.testing.assert_array_equal(values[variable.path], np.asarray(variable.value))
    trainable = {v.name for v in loaded.trainable_variables}
    assert trainable == {v.path for v in model.trainable_variables}


@pytest.mark.parametrize("devices", [0, 2])
def test_a_model_is_saved_with_its_call(saved, devices, tmp_path):
    strategy = jt.MirroredStrategy([f"CPU:{i}" for i in range(devices)]) if devices else None
    if strategy is None:
        model = make_model()
    else:
        with strategy.scope():
            model = make_model()
            model.compile(optimizer="sgd", loss="mse")
        model.fit(X, X[:, :2], batch_size=6, epochs=1, verbose=0)  # so that statistics move
    loaded = saved(model)
    check_same(loaded, model, X)
    assert loaded.hidden.kernel.shape == (3, 4)
    other = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    with other.scope():
        mirrored = jt.saved_model.load(tmp_path / "model")
    assert isinstance(mirrored.norm.moving_mean, jt.MirroredVariable)
    assert mirrored.norm.moving_mean.aggregation is jt.VariableAggregation.MEAN
    np.testing.assert_array_equal(mirrored.out.kernel.numpy(), loaded.out.kernel.numpy())


def test_tables_of_parameter_servers_are_saved_as_one(saved, tmp_path):
    partitioner = jt.experimental.partitioners.FixedShardsPartitioner(2)
    with LocalCluster(workers=1, ps=2) as cluster:
        strategy = cluster.strategy(partitioner)
        with strategy.scope():
            model = make_embedding()
        values = [np.asarray(v.value) for v in model.variables]
        loaded = saved(model)
        with strategy.scope():
            divided = jt.saved_model.load(tmp_path / "model")
        assert isinstance(divided.table.embeddings, jt.ShardedVariable)
        np.testing.assert_array_equal(divided.table.embeddings.numpy(), values[0])
        answers = divided(IDS)
    np.testing.assert_array_equal(loaded.table.embeddings.numpy(), values[0])
    plain = make_embedding()
    plain.set_weights(values)
    np.testing.assert_allclose(loaded(IDS), plain.predict(IDS, verbose=0), rtol=1e-5)
    np.testing.assert_allclose(answers, loaded(IDS), rtol=1e-6)


def test_what_training_calls_moves_statistics_and_seeds(saved):
    model = make_model()
    training = Signature(lambda x: model(x, training=True), Spec([None, 3]))
    loaded = saved(model, {"train": training})
    f = loaded.signatures["train"]
    for _ in range(2):
        np.testing.assert_allclose(f(X), model(X, training=True), rtol=1e-5, atol=1e-6)
    values = {v.name: v.numpy() for v in loaded.variables}
    for variable in model.variables:
        np.testing.assert_allclose(values[variable.path], variable.value, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(loaded.norm.moving_mean.numpy(), np.zeros(4))


def test_inputs_may_be_named(saved):
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    model = keras.Model({"a": a, "b": b}, {"sum": keras.layers.Dense(2)(a) + b[:, :2]})
    loaded = saved(model)
    answer = loaded.signatures["serving_default"](inputs={"a": X, "b": 2 * X})
    expected = model.predict({"a": X, "b": 2 * X}, verbose=0)
    np.testing.assert_allclose(answer["sum"], expected["sum"], rtol=1e-5)


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)


def test_a_model_of_ones_own_class_is_saved_once_it_is_built(saved):
    model = Own()
    with pytest.raises(ValueError, match=r"has no variables yet.* Call it on a batch"):
        saved(model)
    with pytest.warns(UserWarning, match="unbuilt state"):
        model.build((None, 3))
    with pytest.raises(ValueError, match=r"some of its layers have not. Call it on a batch"):
        saved(model)
    model(X)
    loaded = saved(model)
    np.testing.assert_allclose(loaded(X), model(X), rtol=1e-6)
    assert loaded.dense.kernel.shape == (3, 2)


def test_models_are_part_of_modules_and_dicts(saved):
    class Scaled(jt.Module):
        def __init__(self):
            super().__init__()
            self.model = make_model()
            self.factor = jt.Variable(2.0)

        @jt.function(input_signature=[Spec([None, 3])])
        def __call__(self, x):
            return self.factor * self.model(x)

    module = Scaled()
    loaded = saved({"module": module, "seed": keras.Variable(7, dtype="int32")})
    assert int(loaded["seed"]) == 7
    np.testing.assert_allclose(
        loaded["module"](X), 2 * module.model.predict(X, verbose=0), rtol=1e-5
    )
    gradient = jt.grad(lambda: loaded["module"](X).sum(), loaded["module"].model.out.bias)()
    np.testing.assert_allclose(gradient, [12.0, 12.0], rtol=1e-6)


def test_models_that_are_not_saved_do_not_become_constants(saved):
    model, other = make_model(), make_model()
    with pytest.raises(ValueError, match=r"uses the Keras variable 'model/hidden/kernel', which"):
        saved(model, Signature(lambda x: other(model(x) @ np.ones((2, 3))), Spec([None, 3])))
