"""Keras optimizers whose state parameter servers keep do what they do in one process."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.experimental.partitioners import FixedShardsPartitioner

STEPS = 4
TARGET = np.arange(12, dtype=np.float32).reshape(6, 2) / 7

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1, amsgrad=True),
    "nadam": lambda: keras.optimizers.Nadam(0.05),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=1, decay_rate=0.5)
    ),
    "accumulating": lambda: keras.optimizers.Adam(0.05, gradient_accumulation_steps=2),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.2),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.3),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.3),
    "average": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
    "scaled": lambda: keras.optimizers.SGD(0.1, loss_scale_factor=2.0),
}


def variables():
    return keras.Variable(np.ones((6, 2), np.float32)), keras.Variable(np.float32([1, 2]))


def loss_of(w, b):
    return jnp.sum((w.value + b.value - TARGET) ** 2)


def plain(optimizer, steps=STEPS):
    w, b = variables()
    for _ in range(steps):
        residue = w.value + b.value - TARGET
        optimizer.apply([2 * residue, 2 * residue.sum(axis=0)], [w, b])
    return w, b


def assert_equal(variables, expected, **tolerances):
    for variable, other in zip(variables, expected, strict=True):
        np.testing.assert_allclose(
            variable.numpy(), other.numpy(), err_msg=other.path, **(tolerances or {"rtol": 1e-5})
        )


@pytest.fixture
def cluster():
    with jt.testing.LocalCluster(workers=1, ps=2) as cluster:
        yield cluster


@pytest.fixture
def coordinator(cluster):
    return cluster.coordinator(cluster.strategy(FixedShardsPartitioner(2)))


@pytest.fixture
def strategy(coordinator):
    return coordinator.strategy


@pytest.mark.parametrize(
    ("name", "shards"), [*((name, 2) for name in OPTIMIZERS), ("adamw", 1), ("clipnorm", 1)]
)
def test_servers_do_what_the_optimizer_does(cluster, name, shards):
    strategy = cluster.strategy(FixedShardsPartitioner(shards))
    coordinator = cluster.coordinator(strategy)
    with strategy.scope():
        w, b = variables()
        optimizer = OPTIMIZERS[name]()

    @jt.function
    def scheduled():
        grads = jt.grad(lambda: loss_of(w, b), [w, b])()
        optimizer.apply_gradients(zip(grads, [w, b], strict=True))

    for _ in range(STEPS):
        coordinator.schedule(scheduled)
    coordinator.join()
    own = OPTIMIZERS[name]()
    expected = plain(own)
    assert_equal([w, b], expected)
    # A worker has built it; after `join` the coordinator knows of the state, too.
    assert [v.path.split("/")[1] for v in optimizer.variables[:1]] == ["iteration"]
    assert_equal(optimizer.variables, own.variables, rtol=1e-5, atol=1e-6)
    optimizer.finalize_variable_values([w, b])  # with the averages, where there are some
    own.finalize_variable_values(expected)
    assert_equal([w, b], expected)


# --- Its variables on the coordinator ------------------------------------------------------


def stepping(coordinator, optimizer, w, b):
    @jt.function
    def scheduled():
        grads = jt.grad(lambda: loss_of(w, b), [w, b])()
        optimizer.apply_gradients(zip(grads, [w, b], strict=True))

    def steps(count):
        for _ in range(count):
            coordinator.schedule(scheduled)
        coordinator.join()

    return steps


def test_a_learning_rate_assigned_on_the_coordinator_is_what_servers_use(coordinator, strategy):
    with strategy.scope():
        w, b = variables()
        optimizer = keras.optimizers.SGD(0.1)
    steps = stepping(coordinator, optimizer, w, b)
    optimizer.learning_rate = 0.05  # before servers know of it
    steps(2)
    optimizer.learning_rate = 0.0
    before = w.numpy()
    steps(2)
    np.testing.assert_array_equal(w.numpy(), before)
    assert float(optimizer.learning_rate) == 0.0
    assert int(optimizer.iterations) == 4
    assert_equal([w, b], plain(keras.optimizers.SGD(0.05), steps=2))


def test_a_state_can_be_read_and_restored_on_the_coordinator(coordinator, strategy):
    with strategy.scope():
        w, b = variables()
        optimizer = keras.optimizers.Adam(0.05)
    optimizer.build([w, b])  # also before it was ever used
    steps = stepping(coordinator, optimizer, w, b)
    steps(2)
    saved = [v.numpy() for v in [w, b, *optimizer.variables]]
    steps(2)
    expected = [w.numpy(), b.numpy()]
    for variable, value in zip([w, b, *optimizer.variables], saved, strict=True):
        variable.assign(value)
    assert int(optimizer.iterations) == 2
    steps(2)  # with the count of steps as well, without which Adam would do something else
    np.testing.assert_allclose([*w.numpy(), b.numpy()], [*expected[0], expected[1]], rtol=1e-6)


def test_a_schedule_that_servers_would_not_know_of_is_refused(coordinator, strategy):
    with strategy.scope():
        w, b = variables()
        optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([w, b])
    optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    with pytest.raises(jt.errors.InvalidArgumentError, match="create the optimizer with the sched"):
        stepping(coordinator, optimizer, w, b)(1)


# --- Rows ----------------------------------------------------------------------------------


def test_rows_of_a_gradient_change_only_those_rows(coordinator, strategy):
    with strategy.scope():
        table = keras.Variable(np.ones((6, 2), np.float32))
        optimizer = keras.optimizers.Adagrad(0.1, global_clipnorm=1.0)

    @jt.function
    def scheduled(rows, ids):
        optimizer.apply([jt.IndexedSlices(rows, ids, (6, 2))], [table])

    rows = np.full((3, 2), 2.0, np.float32)
    coordinator.schedule(scheduled, args=(rows, np.array([4, 1, 4])))
    coordinator.join()
    dense = np.zeros((6, 2), np.float32)
    np.add.at(dense, [4, 1, 4], rows)
    own, optimizer = (
        keras.Variable(np.ones((6, 2), np.float32)),
        keras.optimizers.Adagrad(0.1, global_clipnorm=1.0),
    )
    optimizer.apply([dense], [own])
    np.testing.assert_allclose(table.numpy(), own.numpy(), rtol=1e-6)


@pytest.mark.parametrize("option", [{"use_ema": True}, {"gradient_accumulation_steps": 2}])
def test_what_changes_all_rows_is_refused_for_some(coordinator, strategy, option):
    with strategy.scope():
        table = keras.Variable(np.ones((6, 2), np.float32))
        optimizer = keras.optimizers.SGD(0.1, **option)
    rows = jt.IndexedSlices(np.ones((1, 2), np.float32), np.array([3]), (6, 2))
    with pytest.raises(jt.errors.InvalidArgumentError, match=next(iter(option))):
        optimizer.apply([rows], [table])


# --- What cannot be done -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mixed_bfloat16"),
        (keras.optimizers.Adafactor, "whole matrices"),
        (keras.optimizers.Muon, "whole matrices"),
        (
            lambda: keras.optimizers.SGD(global_clipnorm=1.0, gradient_accumulation_steps=2),
            "larger batches",
        ),
    ],
)
def test_what_servers_cannot_do_is_refused_when_it_is_built(strategy, make, message):
    with strategy.scope():
        w, b = variables()
        optimizer = make()
    with pytest.raises(jt.errors.InvalidArgumentError, match=message):
        optimizer.build([w, b])


def test_variables_that_are_not_decayed_are_refused(strategy):
    with strategy.scope():
        w, b = variables()
        optimizer = keras.optimizers.AdamW(0.1)
    optimizer.exclude_from_weight_decay(var_list=[b])
    with pytest.raises(jt.errors.InvalidArgumentError, match="one optimizer for those"):
        optimizer.build([w, b])


def test_a_constraint_is_refused(strategy):
    with strategy.scope():
        layer = keras.layers.Dense(2, kernel_constraint="non_neg")
        layer.build((None, 3))
        optimizer = keras.optimizers.SGD(0.1)
    with pytest.raises(jt.errors.InvalidArgumentError, match="has a constraint"):
        optimizer.build(layer.trainable_variables)


class Together(keras.optimizers.SGD):
    """Looks at all gradients at once."""

    def apply(self, grads, trainable_variables=None):
        total = sum(jnp.sum(g) for g in grads)
        super().apply([g / total for g in grads], trainable_variables)


class Momentum(keras.optimizers.Optimizer):
    """As somebody would write it."""

    def build(self, variables):
        super().build(variables)
        self.momenta = self.add_optimizer_variables(variables, "m")

    def update_step(self, gradient, variable, learning_rate):
        m = self.momenta[self._get_variable_index(variable)]
        self.assign(m, 0.5 * m + gradient)
        self.assign_sub(variable, learning_rate * m)


def test_an_optimizer_of_ones_own_runs_on_servers(coordinator, strategy):
    with strategy.scope():
        w, b = variables()
        optimizer = Momentum(0.1)
    stepping(coordinator, optimizer, w, b)(STEPS)
    own = Momentum(0.1)
    assert_equal([w, b], plain(own))
    assert_equal(optimizer.variables, own.variables, rtol=1e-5)


def test_an_optimizer_that_looks_at_all_gradients_is_refused(strategy):
    with strategy.scope():
        w, b = variables()
        optimizer = Together(0.1)
    with pytest.raises(jt.errors.InvalidArgumentError, match="all variables together"):
        optimizer.build([w, b])


def test_other_variables_than_those_it_was_built_for_are_refused(strategy):
    with strategy.scope():
        w, b = variables()
        optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([w])
    with pytest.raises(ValueError, match="built for other variables"):
        optimizer.apply([np.ones(2, np.float32)], [b])
