"""Sparse, optional and small inputs, and models of no scope that are given a `jt.data.Dataset`."""

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from jax.experimental import sparse

import jaxtribute as jt
from jaxtribute.keras import _iterables

_RNG = np.random.default_rng(0)
X = (_RNG.normal(size=(20, 6)) * (_RNG.random((20, 6)) < 0.3)).astype(np.float32)
Y = X @ np.arange(6, dtype=np.float32)[:, None]

SPARSE = {
    "csr": scipy.sparse.csr_matrix,
    "coo": scipy.sparse.coo_array,
    "bcoo": lambda x: sparse.BCOO.fromdense(x, nse=x.size),  # filled up out of bounds
    "bcsr": sparse.BCSR.fromdense,
    "tensorflow": tf.sparse.from_dense,
}


def linear() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def trained(strategy, *data, **options):
    with strategy.scope():
        model = linear()
    history = model.fit(*data, epochs=2, verbose=0, **options).history
    return [history["loss"], *model.get_weights(), model.predict(X[:5], verbose=0)]


def same(results, others) -> None:
    for result, other in zip(results, others, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_matrices_are_what_dense_ones_are(mirrored, kind):
    options = {"batch_size": 4, "validation_split": 0.2}
    same(trained(mirrored, SPARSE[kind](X), Y, **options), trained(mirrored, X, Y, **options))


@pytest.mark.parametrize("kind", SPARSE)
def test_generators_of_sparse_batches(mirrored, kind):
    def batches():
        for _ in range(2):
            for start in range(0, 20, 4):
                yield SPARSE[kind](X[start : start + 4]), Y[start : start + 4]

    expected = trained(mirrored, X, Y, batch_size=4, shuffle=False)
    same(trained(mirrored, batches(), steps_per_epoch=5), expected)


def test_other_sources_of_sparse_batches(mirrored):
    class Source(keras.utils.PyDataset):
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return scipy.sparse.csr_matrix(X[4 * i : 4 * i + 4]), Y[4 * i : 4 * i + 4]

    expected = trained(mirrored, X, Y, batch_size=4, shuffle=False)
    same(trained(mirrored, Source(), shuffle=False), expected)
    of_tensorflow = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(X), Y)).batch(4)
    same(trained(mirrored, of_tensorflow), expected)


def test_numbers_of_a_sparse_matrix_at_one_place_are_added_up(mirrored):
    twice = scipy.sparse.coo_matrix(([1.0, 2.0], ([0, 0], [3, 3])), shape=(2, 6))
    with mirrored.scope():
        model = linear()
    np.testing.assert_allclose(
        model.predict(twice, verbose=0), model.predict(twice.toarray(), verbose=0)
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_batches_smaller_than_the_replicas(size):
    strategy = jt.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    options = {"batch_size": size, "shuffle": False}
    same(
        trained(strategy, X[:6], Y[:6], **options),
        trained(jt.OneDeviceStrategy("CPU:0"), X[:6], Y[:6], **options),
    )


class Optional(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="zeros")

    def call(self, inputs):
        x, more = inputs
        return self.dense(x) if more is None else self.dense(x) + more


def _generated(batch):
    return (batch for _ in range(2))


class _Repeated(keras.utils.PyDataset):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return self.batch


@pytest.mark.parametrize("source", [_generated, _Repeated])
def test_inputs_that_are_none_in_batches(mirrored, source):
    with mirrored.scope():
        model = Optional()
        model.compile("sgd", "mse")
    history = model.fit(source(((X[:4], None), Y[:4])), verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert model.predict((X, None), verbose=0).shape == (20, 1)


def test_batches_of_another_structure_than_the_first():
    batches = iter([((X[:4], None), Y[:4]), ((X[:4], Y[:4]), Y[:4])])
    _, dataset = _iterables.read_once(batches)
    with pytest.raises(ValueError, match="same structure"):
        list(dataset)


def test_predictions_of_several_steps_in_one_go(mirrored):
    noted = []
    note = keras.callbacks.LambdaCallback()
    note.on_predict_batch_begin = lambda batch, logs=None: noted.append(batch)
    with mirrored.scope():
        model = linear()
        model.compile("sgd", "mse", steps_per_execution=3)
    predicted = model.predict(X, batch_size=3, verbose=0, callbacks=[note])
    np.testing.assert_allclose(predicted, model(X), rtol=1e-5, atol=1e-6)
    assert noted == [0, 3, 6]


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model(X),
        lambda model: model.build((None, 6)),
        lambda model: model.layers[0](X),
    ],
    ids=["called", "built", "layer called"],
)
def test_a_model_that_is_first_used_outside_of_its_scope(mirrored, use):
    with mirrored.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    use(model)
    model.fit(X, Y, verbose=0)
    assert all(variable.strategy is mirrored for variable in model.variables)


def test_metrics_start_with_their_initial_value(mirrored):
    with mirrored.scope():
        metric = keras.metrics.Mean()
        counts = metric.add_variable((2,), lambda shape, dtype: np.array([3, 18729665]), "int32")
    np.testing.assert_array_equal(counts, [3, 18729665])


# --- Models that were created in no scope --------------------------------------------------


DATA = jt.data.Dataset.from_tensor_slices((X, Y)).batch(4)


def test_models_of_no_scope_take_datasets(tmp_path):
    ours, theirs = linear(), linear()
    history = ours.fit(DATA, epochs=2, validation_data=DATA, verbose=0).history
    expected = theirs.fit(
        X, Y, batch_size=4, shuffle=False, epochs=2, validation_data=(X, Y), verbose=0
    ).history
    same(history.values(), expected.values())
    same([ours.predict(DATA, verbose=0)], [theirs.predict(X, verbose=0)])
    ours.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    same([loaded.evaluate(DATA, verbose=0)], [theirs.evaluate(X, Y, batch_size=4, verbose=0)])
    loaded.fit(DATA.repeat(), steps_per_epoch=3, verbose=0)


def test_weights_of_classes_count_in_datasets_of_models_of_no_scope():
    labels = (Y > 0).astype(np.float32)
    ours, theirs = linear(), linear()
    dataset = jt.data.Dataset.from_tensor_slices((X, labels)).batch(4)
    ours.fit(dataset, class_weight={0: 1.0, 1: 5.0}, verbose=0)
    theirs.fit(X, labels, batch_size=4, shuffle=False, class_weight={0: 1.0, 1: 5.0}, verbose=0)
    same(ours.get_weights(), theirs.get_weights())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": jt.keras.DatasetCreator(lambda context: DATA)}, "DatasetCreator.*strategy.scope"),
        ({"x": DATA, "y": Y}, "y cannot be given together"),
        ({"x": DATA, "sample_weight": Y}, "sample_weight cannot be given together"),
        ({"x": DATA.repeat()}, "no end"),
        ({"x": DATA, "validation_data": DATA.repeat()}, "no end"),
        ({"x": DATA, "validation_split": 0.5}, "validation_split"),
    ],
)
def test_what_models_of_no_scope_refuse(given, message):
    with pytest.raises(ValueError, match=message):
        linear().fit(**given, verbose=0)


def test_models_of_no_scope_refuse_datasets_of_a_strategy(mirrored):
    with pytest.raises(ValueError, match=r"DistributedDataset.*created outside of every scope"):
        linear().predict(mirrored.experimental_distribute_dataset(DATA), verbose=0)
