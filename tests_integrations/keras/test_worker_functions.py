"""Keras models, optimizers and metrics in functions that workers run, against parameter servers."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.experimental.partitioners import FixedShardsPartitioner
from jaxtribute.remote import Session

BATCH = 8
X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int32)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.1)]
        self.heads = {"class": keras.layers.Dense(2)}

    def call(self, x, training=False):
        for layer in self.hidden:
            x = layer(x, training=training) if isinstance(layer, keras.layers.Dropout) else layer(x)
        return self.heads["class"](x)


def sequential():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)]
    )


def functional():
    inputs = keras.Input((4,))
    x = inputs
    for _ in range(60):  # deeper than pickle would go, one layer leading to the next
        x = keras.layers.Identity()(x)
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, activation="relu")(x))
    return keras.Model(inputs, keras.layers.Dense(2)(hidden + keras.ops.mean(inputs)))


def subclassed():
    model = Subclassed()
    model(X[:1])
    return model


@pytest.fixture
def cluster():
    with jt.testing.LocalCluster(workers=2, ps=2) as cluster:
        yield cluster


class Loop:
    """The reference's custom loop, as one would write it."""

    def __init__(self, strategy, make_model, seen=None):
        with strategy.scope():
            model = self.model = make_model()
            optimizer = self.optimizer = keras.optimizers.Adam(0.01)
            accuracy = self.accuracy = keras.metrics.SparseCategoricalAccuracy()
            mean = self.mean = keras.metrics.Mean()
            loss_object = keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="none"
            )

        @jt.function
        def step(iterator):
            if seen is not None:
                with open(seen, "a") as file:
                    file.write("traced\n")

            def replica_fn(inputs):
                x, y = inputs

                def loss_fn():
                    logits = model(x, training=True)
                    losses = loss_object(y, logits)
                    return jt.nn.compute_average_loss(losses, global_batch_size=BATCH), logits

                variables = model.trainable_variables
                (loss, logits), grads = jt.value_and_grad(loss_fn, variables, has_aux=True)()
                optimizer.apply_gradients(zip(grads, variables, strict=True))
                accuracy.update_state(y, logits)
                mean.update_state(loss)
                return loss

            per_replica = strategy.run(replica_fn, args=(next(iterator),))
            return strategy.reduce("SUM", per_replica, axis=None)

        self.step = step


def dataset_fn():
    return jt.data.Dataset.from_tensor_slices((X, Y)).shuffle(64).repeat().batch(BATCH)


@pytest.mark.parametrize("make_model", [sequential, functional, subclassed])
def test_a_custom_loop_trains(cluster, make_model, tmp_path):
    strategy = cluster.strategy(FixedShardsPartitioner(2))
    coordinator = cluster.coordinator(strategy)
    loop = Loop(strategy, make_model, tmp_path / "seen")
    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    means = []
    for _ in range(3):
        loop.accuracy.reset_state()
        loop.mean.reset_state()
        for _ in range(20):
            coordinator.schedule(loop.step, args=(iterator,))
        coordinator.join()
        means.append(float(loop.mean.result()))
    assert means[-1] < means[0]
    # What two workers added at the same time is all there.
    assert int(loop.optimizer.iterations) == 60
    assert int(loop.accuracy.count.numpy()) == 20 * BATCH
    assert float(loop.accuracy.result()) > 0.7
    # Compiled once on each worker, however many closures there are. A function is traced once more
    # where it uses variables for the first time.
    assert len((tmp_path / "seen").read_text().splitlines()) <= 2 * 2


def test_several_replicas_on_each_worker_add_up_their_gradients(cluster):
    strategy = cluster.strategy(replicas_per_worker=2)
    coordinator = cluster.coordinator(strategy)
    with strategy.scope():
        w = keras.Variable(np.zeros(2, np.float32))
        optimizer = keras.optimizers.SGD(1.0)
        total = keras.metrics.Sum()

    @jt.function
    def step():
        def replica_fn():
            replica = jt.get_replica_context().replica_id_in_sync_group
            optimizer.apply([jnp.full(2, 1.0) * (1 + replica)], [w])
            total.update_state(jnp.float32(1.0))

        strategy.run(replica_fn)

    for _ in range(3):
        coordinator.schedule(step)
    coordinator.join()
    np.testing.assert_allclose(w.numpy(), [-9.0, -9.0])  # 1 + 2 for each step
    assert float(total.result()) == 6.0
    assert int(optimizer.iterations) == 3


# --- Layers with a state of their own ------------------------------------------------------


def test_no_two_seeds_are_the_same_on_whatever_worker(cluster):
    coordinator = cluster.coordinator()
    strategy = coordinator.strategy
    with strategy.scope():
        generator = keras.random.SeedGenerator(1)

    @jt.function
    def seeds():
        return [strategy.run(generator.next) for _ in range(2)]

    def step():
        return strategy.worker, np.asarray(seeds())

    drawn = {0: [], 1: []}
    while not all(drawn.values()):  # any worker may get a closure
        for worker, pair in coordinator.fetch([coordinator.schedule(step) for _ in range(16)]):
            drawn[worker] += pair.tolist()
    everything = [tuple(seed) for own in drawn.values() for seed in own]
    assert len(set(everything)) == len(everything)
    assert generator.state.numpy().tolist() == [1, len(everything)]


def test_a_metric_is_whole_on_one_server_and_loses_nothing(cluster):
    strategy = cluster.strategy(FixedShardsPartitioner(2))
    coordinator = cluster.coordinator(strategy)
    with strategy.scope():
        area = keras.metrics.AUC(num_thresholds=20)
    own = keras.metrics.AUC(num_thresholds=20)
    rng = np.random.default_rng(0)

    @jt.function
    def step(y, p):
        strategy.run(area.update_state, args=(y, p))

    for _ in range(20):
        y, p = rng.integers(0, 2, 16), rng.random(16).astype(np.float32)
        coordinator.schedule(step, args=(y, p))
        own.update_state(y, p)
    coordinator.join()
    assert len({variable.stored.device for variable in area.variables}) == 1
    assert float(area.result()) == pytest.approx(float(own.result()), rel=1e-6)


def test_batch_normalization_keeps_its_statistics_on_the_servers(cluster):
    coordinator = cluster.coordinator()
    strategy = coordinator.strategy
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.0)
        layer.build((None, 2))
    batch = np.float32([[1, 2], [3, 6]])

    @jt.function
    def step():
        return strategy.run(lambda: layer(batch, training=True))

    coordinator.schedule(step)
    coordinator.join()
    np.testing.assert_allclose(layer.moving_mean.numpy(), [2, 4])
    np.testing.assert_allclose(layer.moving_variance.numpy(), [1, 4])


# --- Embeddings ----------------------------------------------------------------------------


@pytest.fixture
def tables_read(monkeypatch):
    """Collect the names of tables that are read as a whole, by anybody."""
    names = []
    for method in ("read", "read_cached"):
        own = getattr(Session, method)

        def read(self, variables, own=own):
            names.extend(v.name for v in variables if len(v.shape) == 2 and v.shape[0] >= 25)
            return own(self, variables)

        monkeypatch.setattr(Session, method, read)
    return names


@pytest.mark.parametrize("shards", [1, 2])
def test_a_recommender_of_two_towers_never_reads_its_tables(cluster, tables_read, shards):
    strategy = cluster.strategy(FixedShardsPartitioner(shards))
    coordinator = cluster.coordinator(strategy)
    with strategy.scope():
        users = keras.Sequential([keras.Input((), dtype="int32"), keras.layers.Embedding(100, 4)])
        items = keras.Sequential([keras.Input((), dtype="int32"), keras.layers.Embedding(50, 4)])
        optimizer = keras.optimizers.Adagrad(0.5)
        mean = keras.metrics.Mean()
    users.summary(print_fn=lambda line: None)
    repr(users.layers[0].embeddings)
    rng = np.random.default_rng(0)
    pairs = {"user": rng.integers(0, 100, 64), "item": rng.integers(0, 50, 64)}
    ratings = ((pairs["user"] + pairs["item"]) % 2).astype(np.float32)

    @jt.function
    def step(iterator):
        def replica_fn(inputs):
            ids, rating = inputs
            variables = [*users.trainable_variables, *items.trainable_variables]

            def loss_fn():
                scores = jnp.sum(users(ids["user"]) * items(ids["item"]), axis=-1)
                return jnp.mean((scores - rating) ** 2)

            loss, grads = jt.value_and_grad(loss_fn, variables)()
            assert all(isinstance(g, jt.IndexedSlices) for g in grads)
            optimizer.apply_gradients(zip(grads, variables, strict=True))
            mean.update_state(loss)

        strategy.run(replica_fn, args=(next(iterator),))

    def dataset_fn():
        return jt.data.Dataset.from_tensor_slices((pairs, ratings)).repeat().batch(32)

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    means = []
    for _ in range(2):
        mean.reset_state()
        for _ in range(60):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        means.append(float(mean.result()))
    assert means[1] < means[0] / 2
    assert users(np.array([3, -1])).shape == (2, 4)  # on the coordinator, too
    assert tables_read == []
    # Rows that nobody has looked up are as they were, also in the optimizer's state.
    never = sorted(set(range(100)) - set(pairs["user"].tolist()))
    slots = next(v for v in optimizer.variables if v.shape == (100, 4))
    np.testing.assert_allclose(slots.numpy()[never], 0.1)


def test_a_divided_table_is_made_part_by_part(cluster, tables_read):
    made = []

    class Uniform(keras.initializers.RandomUniform):
        def __call__(self, shape, dtype=None):
            made.append(shape)
            return super().__call__(shape, dtype)

    with cluster.strategy(FixedShardsPartitioner(3)).scope():
        layer = keras.layers.Embedding(90, 2, embeddings_initializer=Uniform(seed=1))
        layer.build()
        assert tables_read == []
    assert made == [(30, 2)] * 3
    parts = np.split(layer.embeddings.numpy(), 3)
    assert not np.array_equal(parts[0], parts[1])
    assert not np.array_equal(parts[1], parts[2])


def test_rows_and_masks_are_those_of_keras(cluster):
    strategy = cluster.strategy(FixedShardsPartitioner(2))
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    ids = np.array([[0, 5], [3, -2]])
    with strategy.scope():
        layer = keras.layers.Embedding(6, 2, mask_zero=True, weights=[values])
    own = keras.layers.Embedding(6, 2, mask_zero=True, weights=[values])
    np.testing.assert_array_equal(layer(ids), own(ids))
    np.testing.assert_array_equal(layer.compute_mask(ids), own.compute_mask(ids))
    taken = keras.ops.take(layer.embeddings, np.array([1, 0]), axis=1)
    np.testing.assert_array_equal(taken, values[:, ::-1])


# --- What cannot be sent -------------------------------------------------------------------


def test_a_model_created_outside_of_the_scope_cannot_be_sent(cluster):
    coordinator = cluster.coordinator()
    model = sequential()
    with pytest.raises(TypeError, match=r"'sequential/dense/kernel' was created outside of the"):
        coordinator.schedule(lambda: model(X))


def test_a_model_that_is_not_built_cannot_create_variables_on_a_worker(cluster):
    coordinator = cluster.coordinator()
    with coordinator.strategy.scope():
        layer = keras.layers.Dense(2)
    coordinator.schedule(lambda: layer(X))
    with pytest.raises(ValueError, match="created in a function that runs on a worker"):
        coordinator.join()


# --- Processes -----------------------------------------------------------------------------


@pytest.mark.processes
def test_a_killed_worker_neither_loses_nor_repeats_updates(monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND")  # nobody sets it on workers and servers
    with jt.testing.ProcessCluster(workers=2, ps=2) as cluster:
        coordinator = cluster.coordinator()
        strategy = coordinator.strategy
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")]
            )
            optimizer = keras.optimizers.SGD(1.0)
            total = keras.metrics.Sum()

        @jt.function
        def step():
            def replica_fn():
                variables = model.trainable_variables
                grads = jt.grad(lambda: jnp.sum(model(jnp.ones((1, 2)))), variables)()
                optimizer.apply_gradients(zip(grads, variables, strict=True))
                total.update_state(jnp.float32(1.0))

            strategy.run(replica_fn)

        coordinator.schedule(step).fetch()
        for _ in range(400):
            coordinator.schedule(step)
        cluster.kill("worker:0")
        cluster.start("worker:0")
        coordinator.join()
        for variable in model.trainable_variables:
            np.testing.assert_array_equal(variable.numpy(), np.full(variable.shape, -401.0))
        assert int(optimizer.iterations) == 401
        assert float(total.result()) == 401.0


@pytest.mark.processes
def test_another_backend_on_workers_and_servers_is_reported():
    with jt.testing.ProcessCluster(
        workers=1, ps=1, environment={"KERAS_BACKEND": "numpy"}
    ) as cluster:
        coordinator = cluster.coordinator()
        with coordinator.strategy.scope():
            total = keras.metrics.Sum()
            optimizer = keras.optimizers.SGD(0.1)
            variable = keras.Variable([1.0])
        coordinator.schedule(lambda: total.update_state(1.0))
        with pytest.raises(jt.errors.FailedPreconditionError, match="Keras runs on numpy"):
            coordinator.join()
        with pytest.raises(jt.errors.InvalidArgumentError, match="Keras runs on numpy"):
            optimizer.build([variable])
