"""fit, evaluate, predict and saving when variables are on parameter servers."""

import gc
import weakref

import keras
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.coordinator._coordinator import known_coordinator
from jaxtribute.experimental.partitioners import FixedShardsPartitioner
from jaxtribute.keras import _worker_memory
from tests_integrations.keras._plain import X, Y, classifier, close, pair, same_fit

layers = keras.layers
WEIGHTS = np.linspace(0, 1, len(X)).astype(np.float32)


@pytest.fixture(scope="module")
def cluster():
    with jt.testing.LocalCluster(workers=2, ps=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def strategy(cluster):
    """Two workers, which take steps in any order."""
    return cluster.coordinator().strategy


@pytest.fixture(scope="module")
def in_order():
    """One worker, so that the order of steps is that of the batches, and divided variables."""
    with jt.testing.LocalCluster(
        workers=1, ps=2, variable_partitioner=FixedShardsPartitioner(2)
    ) as cluster:
        yield cluster.coordinator().strategy


# --- One worker does what one device does --------------------------------------------------


class Active(layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


class Lazy(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(4, activation="relu")
        self.out = layers.Dense(3)

    def call(self, x):
        return self.out(self.hidden(x))


def lazy():
    model = Lazy()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss, metrics=["accuracy"], steps_per_execution=3)
    return model


def two_outputs():
    x = keras.Input((4,))
    hidden = layers.Dense(5, activation="relu")(x)
    model = keras.Model(x, {"a": layers.Dense(3)(hidden), "b": layers.Dense(1)(hidden)})
    loss = {"a": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "b": "mse"}
    model.compile("adam", loss, loss_weights={"a": 1.0, "b": 0.5}, metrics={"a": ["accuracy"]})
    return model


def eventful():
    dense = layers.Dense(5, activation="relu", kernel_regularizer="l2")
    return classifier(dense, Active(), layers.BatchNormalization(), layers.Dropout(0.3))


@pytest.mark.parametrize(
    ("make", "y", "options"),
    [
        (
            two_outputs,
            {"a": Y, "b": X[:, :1]},
            {"sample_weight": WEIGHTS, "validation_data": (X[:7], {"a": Y[:7], "b": X[:7, :1]})},
        ),
        (eventful, Y, {"class_weight": {0: 1.0, 1: 3.0, 2: 0.5}}),
        (lazy, Y, {"validation_split": 0.3, "validation_freq": 2, "initial_epoch": 1}),
    ],
    ids=["two_outputs", "eventful", "lazy"],
)
def test_one_worker_gives_what_one_device_gives(in_order, make, y, options):
    both = same_fit(in_order, make, X, y, batch_size=6, epochs=2, **options)
    measured = [m.evaluate(X, y, batch_size=5, verbose=0, return_dict=True) for m in both]
    close(measured[1], measured[0])
    outputs = [m.predict(X, batch_size=5, verbose=0) for m in both]
    close(outputs[1], outputs[0])


def test_methods_for_one_batch(in_order):
    both = pair(in_order, classifier)
    for name, data in (("train", (X, Y)), ("test", (X, Y)), ("predict", (X,))):
        plain, ours = (getattr(model, f"{name}_on_batch")(*data) for model in both)
        close(ours, plain)


def test_several_replicas_on_a_worker():
    with jt.testing.LocalCluster(workers=1, ps=1) as cluster:
        strategy = cluster.strategy(replicas_per_worker=2)
        same_fit(strategy, classifier, X, Y, batch_size=6, sample_weight=WEIGHTS)


# --- Several workers -----------------------------------------------------------------------


def counting():
    class Count(keras.metrics.Metric):  # here, so that it is sent along to other processes
        def __init__(self):
            super().__init__(name="count")
            self.total = self.add_weight(shape=(), initializer="zeros", name="total")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.total.assign(self.total + keras.ops.shape(y_true)[0])

        def result(self):
            return self.total.value

    return classifier(metrics=[Count()])


def test_every_example_counts_once_in_each_epoch(strategy):
    with strategy.scope():
        model = counting()
    history = model.fit(
        X, Y, batch_size=3, epochs=3, verbose=0, validation_data=(X[:7], Y[:7])
    ).history
    assert history["count"] == [22, 22, 22]
    assert history["val_count"] == [7, 7, 7]
    assert int(model.optimizer.iterations) == 3 * 8
    assert model.predict(X, batch_size=3, verbose=0).shape == (22, 3)


def test_outputs_are_in_the_order_of_the_batches(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), layers.Rescaling(2.0)])
    x = np.arange(40, dtype=np.float32)[:, None]
    seen = []
    follow = keras.callbacks.LambdaCallback(
        on_predict_batch_end=lambda batch, logs: seen.append(batch)
    )
    np.testing.assert_array_equal(
        model.predict(x, batch_size=3, verbose=0, callbacks=[follow]), 2 * x
    )
    assert seen == list(range(14))


def test_two_workers_learn_as_well_as_one_device(strategy):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(600, 4)).astype(np.float32)
    y = np.argmax(x[:, :3], axis=1)
    accuracies = []
    for model in pair(strategy, lambda: classifier(optimizer=keras.optimizers.Adam(0.02))):
        model.fit(x[:500], y[:500], batch_size=20, epochs=6, verbose=0)
        accuracies.append(model.evaluate(x[500:], y[500:], verbose=0)[1])
    plain, ours = accuracies
    assert plain > 0.85
    assert ours > plain - 0.05


def test_few_batches_are_read_before_workers_need_them(cluster, strategy):
    with strategy.scope():
        model = classifier()
    before = sum(cluster.status(f"worker:{i}").finished for i in range(2))
    most = 2 * 32 + 1  # for each of two workers, and the one in hand

    def batches():
        for read in range(1, 301):
            finished = sum(cluster.status(f"worker:{i}").finished for i in range(2)) - before
            assert read - finished <= most
            yield X[:2], Y[:2]

    model.fit(batches(), verbose=0)
    assert int(model.optimizer.iterations) == 300


# --- Datasets of workers -------------------------------------------------------------------


def repeated(context):
    size = context.get_per_replica_batch_size(6)
    return jt.data.Dataset.from_tensor_slices((X, Y)).shuffle(22).repeat().batch(size)


def test_workers_make_datasets(strategy):
    with strategy.scope():
        model = counting()
    creator = jt.keras.DatasetCreator(repeated)
    history = model.fit(
        creator,
        steps_per_epoch=5,
        epochs=2,
        verbose=0,
        validation_data=creator,
        validation_steps=2,
    ).history
    assert history["count"] == [30, 30]
    assert history["val_count"] == [12, 12]
    assert model.evaluate(repeated, steps=3, verbose=0, return_dict=True)["count"] == 18
    distributed = strategy.distribute_datasets_from_function(repeated)
    assert model.fit(distributed, steps_per_epoch=4, verbose=0).history["count"] == [24]


def test_an_epoch_of_datasets_of_workers_has_so_many_steps(strategy):
    with strategy.scope():
        model = classifier()
    with pytest.raises(ValueError, match=r"steps_per_epoch=\.\.\."):
        model.fit(jt.keras.DatasetCreator(repeated))
    with pytest.raises(ValueError, match=r"steps_per_epoch=\.\.\."):
        model.fit(strategy.distribute_datasets_from_function(repeated))


def test_a_dataset_of_a_worker_that_ends(strategy):
    with strategy.scope():
        model = classifier()

    def once(context):
        return jt.data.Dataset.from_tensor_slices((X, Y)).batch(11)

    with pytest.raises(jt.errors.OutOfRangeError, match=r"repeat\(\)"):
        model.fit(once, steps_per_epoch=9, verbose=0)
    assert model.fit(X, Y, verbose=0).epoch == [0]


# --- Saving --------------------------------------------------------------------------------


def test_a_trained_model_is_saved_and_loaded_anywhere(in_order, tmp_path):
    with in_order.scope():
        model = classifier()
    model.fit(X, Y, batch_size=6, verbose=0)
    outputs = model.predict(X, verbose=0)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    plain = keras.saving.load_model(tmp_path / "model.keras")
    close(plain.predict(X, verbose=0), outputs)
    assert type(plain.weights[0]) is keras.Variable
    with in_order.scope():
        loaded, fresh = keras.saving.load_model(tmp_path / "model.keras"), classifier()
        fresh.optimizer.build(fresh.trainable_variables)
    fresh.load_weights(tmp_path / "model.weights.h5")
    for other in (loaded, fresh, plain):
        close(other.get_weights(), model.get_weights())
        close(
            [np.asarray(v) for v in other.optimizer.variables],
            [np.asarray(v) for v in model.optimizer.variables],
        )
    assert isinstance(loaded.weights[0].stored, jt.ShardedVariable)
    histories = [m.fit(X, Y, batch_size=22, shuffle=False, verbose=0) for m in (plain, loaded)]
    close(histories[1].history, histories[0].history)
    loaded.set_weights(plain.get_weights())
    close(loaded.predict(X, verbose=0), plain.predict(X, verbose=0))


# --- What is refused -----------------------------------------------------------------------


def test_a_step_of_the_users_own_is_refused(strategy):
    class Own(keras.Sequential):
        def train_step(self, state, data):
            return super().train_step(state, data)

        def test_step(self, state, data):
            return super().test_step(state, data)

    with strategy.scope():
        model = Own([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"train_step of its own.*ClusterCoordinator"):
        model.fit(X, X[:, :1])
    with pytest.raises(ValueError, match="test_step of its own"):
        model.evaluate(X, X[:, :1])
    assert model.predict(X, verbose=0).shape == (22, 1)


def test_a_model_larger_than_a_worker_is_refused(strategy, monkeypatch):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((2,), dtype="int32"),
                layers.Embedding(1000, 4, name="table"),
                layers.Flatten(),
                layers.Dense(100, name="wide"),
            ]
        )
        model.compile("sgd", "mse")
    needed = 4 * (8 * 100 + 100)
    memory = 2 * needed - 1  # enough for the values alone, and without the table
    monkeypatch.setattr(_worker_memory, "memory_of_this_machine", lambda: memory)
    monkeypatch.setattr("jaxtribute.keras._server_trainer.memory_of_this_machine", lambda: memory)
    ids = np.zeros((4, 2), np.int32)
    message = r"2 variables as a whole.*wide/kernel.*keras\.layers\.Embedding"
    with pytest.raises(jt.errors.ResourceExhaustedError, match=message):
        model.fit(ids, np.zeros((4, 100)), verbose=0)
    assert model.predict(ids, verbose=0).shape == (4, 100)


def test_the_memory_of_a_machine_is_known():
    assert 2**27 < _worker_memory.memory_of_this_machine() < 2**50


# --- The end -------------------------------------------------------------------------------


def test_a_model_that_nobody_uses_is_forgotten(strategy):
    with strategy.scope():
        model = classifier()
    model.fit(X, Y, verbose=0)
    gone = weakref.ref(model)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert gone() is None


def test_a_coordinator_is_made_for_a_model_and_ends_with_it():
    with jt.testing.LocalCluster(workers=1, ps=1) as cluster:
        strategy = jt.experimental.ParameterServerStrategy(cluster.resolver)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        assert known_coordinator(strategy) is None
        model.predict(X, verbose=0)
        with strategy.scope():
            model.compile("sgd", "mse")
        gc.collect()
        made = weakref.ref(known_coordinator(strategy))
        assert made() is not None
        assert jt.experimental.coordinator.ClusterCoordinator(strategy) is made()
        del model, strategy
        keras.backend.clear_session()
        gc.collect()
        assert made() is None


def test_a_coordinator_of_the_users_own_is_used():
    with jt.testing.LocalCluster(workers=1, ps=1) as cluster:
        strategy = cluster.strategy()
        own = cluster.coordinator(strategy)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        model.predict(X, verbose=0)
        assert known_coordinator(strategy) is own


class _Composed(keras.metrics.Metric):
    """A metric of which some state is not made by `add_weight`."""

    def __init__(self):
        super().__init__(name="composed")
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")
        self.table = keras.Variable(np.arange(6.0, dtype=np.float32), trainable=False)
        self.mean = keras.metrics.Mean()
        self.other = keras.metrics.MeanIoU(num_classes=4)


@pytest.mark.parametrize("name", ["strategy", "in_order"], ids=["whole", "divided"])
def test_the_state_of_a_metric_or_optimizer_is_on_one_server(request, name):
    strategy = request.getfixturevalue(name)
    with strategy.scope():
        weight = keras.Variable(np.zeros(4, np.float32))
        metrics = [keras.metrics.Mean(), keras.metrics.AUC(num_thresholds=20), _Composed()]
        optimizers = [keras.optimizers.Adam(), keras.optimizers.SGD(0.1)]
    for owner in [*metrics, *optimizers]:
        held = [variable.stored for variable in owner.variables]
        assert len({each.device for each in held}) == 1, owner
        assert not any(hasattr(each, "variables") for each in held), owner
    np.testing.assert_array_equal(metrics[2].table.numpy(), np.arange(6.0))
    assert hasattr(weight.stored, "variables") == (name == "in_order")
