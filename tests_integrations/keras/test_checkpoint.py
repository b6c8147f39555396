"""`jt.train.Checkpoint` keeps Keras objects, and restores them under any strategy."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.testing import LocalCluster
from tests.processes import _workers
from tests_integrations.keras._plain import X, Y
from tests_integrations.keras.conftest import STRATEGIES

SYMBOLIC = keras.KerasTensor((8, 4))  # of which models create their variables, and compute nothing
STEPS = {"batch_size": 8, "shuffle": False, "verbose": 0}


@contextlib.contextmanager
def scope_of(name: str) -> Iterator[Any]:
    """Open the scope of a strategy, or none; `ps_3` divides every variable into up to 3 parts."""
    if name == "plain":
        yield None
        return
    if not name.startswith("ps"):
        strategy = STRATEGIES[name]()
        with strategy.scope():
            yield strategy
        return
    partitioner = jt.experimental.partitioners.FixedShardsPartitioner(int(name[-1]))
    with LocalCluster(workers=1, ps=2, variable_partitioner=partitioner) as cluster:
        strategy = cluster.coordinator().strategy
        with strategy.scope():
            yield strategy


def small(optimizer: Any = "adam") -> keras.Model:
    """Make a model with a table, statistics and random seeds."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5)(inputs)
    hidden = keras.layers.BatchNormalization()(hidden)
    outputs = keras.layers.Dense(3)(keras.layers.Dropout(0.4)(hidden))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model


class Lazy(keras.Model):
    """Creates its variables when it is called."""

    def __init__(self, units: int = 5) -> None:
        super().__init__()
        self.blocks = [keras.layers.Dense(units), keras.layers.Dropout(0.4)]
        self.heads = {"main": keras.layers.Dense(3)}

    def call(self, inputs, training=False):
        for block in self.blocks:
            inputs = block(inputs)
        return self.heads["main"](inputs)


def lazy(units: int = 5) -> keras.Model:
    model = Lazy(units)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss)
    return model


def variables_of(model: keras.Model) -> list[Any]:
    return [*model.variables, *model.optimizer.variables]


def fill(model: keras.Model, seed: int) -> None:
    """Give everything a value of its own."""
    rng = np.random.default_rng(seed)
    model.optimizer.build(model.trainable_variables)
    for variable in variables_of(model):
        value = rng.integers(1, 100, variable.shape) + (0.1 if "float" in variable.dtype else 0)
        variable.assign(value.astype(variable.dtype))


def state(model: keras.Model) -> list[bytes]:
    return [np.asarray(variable.value).tobytes() for variable in variables_of(model)]


def losses(model: keras.Model, epochs: int) -> list[float]:
    return model.fit(X, Y, epochs=epochs, **STEPS).history["loss"]


# --- From any strategy to any other --------------------------------------------------------

EVERY = ["plain", "one_device", "mirrored_2", "ps_1", "ps_2", "ps_3"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, tuple[str, list[bytes]]]:
    """A checkpoint from each strategy, and what is in it."""
    found = {}
    for seed, name in enumerate(EVERY):
        with scope_of(name):
            model = small()
            fill(model, seed)
            checkpoint = jt.train.Checkpoint(model=model)
            path = checkpoint.save(tmp_path_factory.mktemp(name) / "ckpt")
            checkpoint.wait_until_finished()  # before the servers are gone
            found[name] = path, state(model)
    return found


@pytest.mark.parametrize("name", EVERY)
def test_what_any_strategy_has_saved_is_restored_bit_for_bit(name, saved):
    for path, expected in saved.values():
        with scope_of(name):
            model = small()
            jt.train.Checkpoint(model=model).restore(path).assert_consumed()
            assert model.optimizer.built
            assert state(model) == expected


def test_servers_go_on_with_the_learning_rate_and_the_count_that_were_saved(tmp_path):
    model = small(keras.optimizers.SGD(0.0))
    model.optimizer.iterations.assign(41)
    path = jt.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    weights = model.trainable_variables[0].numpy()

    with scope_of("ps_2"):
        other = small(keras.optimizers.SGD(1.0))
        jt.train.Checkpoint(model=other).restore(path).assert_consumed()
        losses(other, 1)
        assert other.optimizer.iterations.numpy() == 41 + 3
        np.testing.assert_array_equal(other.trainable_variables[0].numpy(), weights)


# --- Training goes on ----------------------------------------------------------------------

IN_STEP = ["plain", "one_device", "mirrored_2"]


@pytest.mark.parametrize("make", [small, lazy], ids=["functional", "created by fit"])
@pytest.mark.parametrize("name", IN_STEP)
def test_training_goes_on_as_if_it_had_not_been_interrupted(name, make, tmp_path):
    with scope_of(name):
        model = make()
    losses(model, 1)
    checkpoint = jt.train.Checkpoint(model=model, epoch=1)
    path = checkpoint.save(tmp_path / "ckpt")
    expected = losses(model, 2)

    keras.backend.clear_session()
    keras.utils.set_random_seed(99)
    with scope_of(name):
        again = make()
    checkpoint = jt.train.Checkpoint(model=again, epoch=0)
    status = checkpoint.restore(path)
    assert losses(again, 2) == expected
    assert state(again) == state(model)
    status.assert_consumed()
    assert checkpoint.epoch == 1


def test_parameter_servers_go_on_from_what_another_strategy_has_learned(tmp_path):
    with scope_of("mirrored_2"):
        model = lazy()
    losses(model, 2)
    path = jt.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    expected = model.predict(X, batch_size=8, verbose=0)
    with scope_of("ps_2"):
        other = lazy()
        status = jt.train.Checkpoint(model=other).restore(path)
        np.testing.assert_allclose(other.predict(X, batch_size=8, verbose=0), expected, atol=1e-5)
        losses(other, 1)  # whose optimizer is built here
        status.assert_consumed()
        assert other.optimizer.iterations.numpy() == 9


@pytest.mark.parametrize("name", ["plain", "mirrored_2"])
def test_callbacks_may_save_after_any_batch(name, tmp_path):
    with scope_of(name):
        model = small()
    manager = jt.train.CheckpointManager(jt.train.Checkpoint(model=model), tmp_path)

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            manager.save()

    model.fit(X, Y, callbacks=[Save()], **STEPS)
    manager.wait_until_finished()
    assert len(manager.checkpoints) == 3
    with scope_of(name):
        other = small()
    jt.train.Checkpoint(model=other).restore(manager.latest_checkpoint).assert_consumed()
    assert state(other) == state(model)


# --- Variables that are created later ------------------------------------------------------


def sequential() -> keras.Model:
    return keras.Sequential([keras.layers.Dense(5), keras.layers.Dense(3)])


def trained(make, tmp_path) -> tuple[Any, str, Any]:
    """Return a model that has its variables, a checkpoint, and what it answers."""
    model = make()
    answers = np.asarray(model(X))
    return model, jt.train.Checkpoint(model=model).save(tmp_path / "ckpt"), answers


class Own(keras.Model):
    """Creates a variable in a `build` of its own."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 3))

    def call(self, inputs):
        return inputs @ self.w


USES = {
    "called": lambda model: model(X),
    "built": lambda model: model.build(X.shape),
    "predict": lambda model: model.predict(X, verbose=0),
    "predict_on_batch": lambda model: model.predict_on_batch(X),
}
CASES = [(make, use) for make in (sequential, Own) for use in USES] + [(Lazy, "predict")]


@pytest.mark.parametrize("name", ["plain", "mirrored_2"])
@pytest.mark.parametrize(("make", "use"), CASES)
def test_values_wait_until_a_model_is_used(make, use, name, tmp_path):
    before, path, answers = trained(make, tmp_path)
    with scope_of(name):
        model = make()
    status = jt.train.Checkpoint(model=model).restore(path)
    with pytest.raises(AssertionError, match="no object was there for"):
        status.assert_consumed()
    result = USES[use](model)
    if result is not None:
        np.testing.assert_allclose(result, answers, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.get_weights()[0], before.get_weights()[0])
    status.assert_consumed()


def test_a_compiled_function_that_creates_a_model_is_told_that_values_wait(mirrored, tmp_path):
    _, path, _ = trained(sequential, tmp_path)
    with mirrored.scope():
        model = sequential()
    checkpoint = jt.train.Checkpoint(model=model)
    checkpoint.restore(path)
    step = jt.function(lambda x: mirrored.run(model, args=(x,)))
    with pytest.raises(jt.errors.FailedPreconditionError, match="model/layers/dense/kernel"):
        step(X[:8])
    with pytest.raises(jt.errors.FailedPreconditionError, match="model/layers/dense/kernel"):
        checkpoint.save(tmp_path / "other")


def test_frozen_layers_have_no_state_in_the_new_optimizer(tmp_path):
    model = small()
    fill(model, 1)
    path = jt.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    other = small()
    other.layers[1].trainable = False
    other.compile(optimizer="adam", loss="mse")
    status = jt.train.Checkpoint(model=other).restore(path)
    status.assert_existing_objects_matched()
    with pytest.raises(AssertionError, match="optimizer/state/momentums/model/layers/dense/"):
        status.assert_consumed()
    other.fit(X, np.ones((len(X), 3)), **STEPS)


# --- Names ---------------------------------------------------------------------------------


def test_names_do_not_depend_on_what_a_program_has_made_before(tmp_path):
    first = small()
    fill(first, 1)
    path = jt.train.Checkpoint(model=first).save(tmp_path / "ckpt")
    second, third = small(), small()  # layers of which Keras counts on: dense_2, dense_4
    checkpoint = jt.train.Checkpoint(model=second)
    checkpoint.restore(path).assert_consumed()
    assert state(second) == state(first)
    fill(third, 2)
    both = jt.train.Checkpoint(a=second, b=third)
    path = both.save(tmp_path / "both")
    swapped = jt.train.Checkpoint(a=(a := small()), b=(b := small()))
    swapped.restore(path).assert_consumed()
    assert (state(a), state(b)) == (state(second), state(third))


def test_layers_may_be_renamed_and_take_others_between_them(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5), keras.layers.Dense(3)])
    path = jt.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    other = keras.Sequential(
        [
            keras.Input((4,), name="features"),
            keras.layers.Dense(5, name="body"),
            keras.layers.ReLU(),
            keras.layers.Dense(3, name="head"),
        ],
        name="renamed",
    )
    jt.train.Checkpoint(model=other).restore(path).assert_consumed()
    np.testing.assert_array_equal(other.get_weights()[2], model.get_weights()[2])


def test_what_is_missing_or_left_over_has_a_name_that_users_know(tmp_path):
    model = Lazy()
    model(SYMBOLIC)
    path = jt.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    other = Lazy()
    other.extra = keras.layers.Dense(2)
    other.extra(SYMBOLIC)
    other(SYMBOLIC)
    with pytest.raises(AssertionError, match="no values for 'model/extra/bias', 'model/extra/ke"):
        jt.train.Checkpoint(model=other).restore(path).assert_existing_objects_matched()
    less = sequential()
    less(SYMBOLIC)
    with pytest.raises(AssertionError, match="'model/blocks/0/bias', 'model/blocks/0/kernel', 'mo"):
        jt.train.Checkpoint(only=less).restore(path).assert_existing_objects_matched()


@pytest.mark.parametrize("name", ["plain", "mirrored_2", "ps_2"])
def test_a_value_of_another_shape_changes_nothing(name, tmp_path):
    model = lazy()
    model(SYMBOLIC)
    fill(model, 1)
    path = jt.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    with scope_of(name):
        other = lazy(units=6)
        other(SYMBOLIC)
        before = state(other)
        with pytest.raises(jt.errors.InvalidArgumentError, match=r"'model/blocks/0/kernel' has"):
            jt.train.Checkpoint(model=other).restore(path)
        assert state(other) == before
        assert not other.optimizer.built


class Branches(keras.Model):
    """Has layers in every place where Keras finds them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        self.tied = self.inner
        self._hidden = keras.layers.LSTM(2)
        self.attention = keras.layers.MultiHeadAttention(1, 2)
        self.seen = keras.metrics.Mean()
        self.noise = keras.random.SeedGenerator(3)
        self.pairs = [(keras.layers.Dense(1), keras.layers.Dense(2))]
        self.add_weight(shape=(2,), name="of_nobody")

    def call(self, inputs):
        x = self.inner(inputs)[:, None, :]
        x = self.attention(x, x) + keras.random.normal(x.shape, seed=self.noise)
        for pair in self.pairs:
            for layer in pair:
                x = layer(x)
        return self._hidden(x)


def test_every_variable_is_found_once_wherever_it_is(tmp_path):
    model, other = Branches(), Branches()
    for each in (model, other):
        each(SYMBOLIC)
    everything = [*model.variables, *model.seen.variables]
    for number, variable in enumerate(everything):
        variable.assign(np.full(variable.shape, number, variable.dtype))
    path = jt.train.Checkpoint(net=model).save(tmp_path / "ckpt")
    jt.train.Checkpoint(net=other).restore(path).assert_consumed()
    for ours, theirs in zip([*other.variables, *other.seen.variables], everything, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    saved = {name for name, _ in jt.train.list_variables(path)}
    assert len(saved) == len(everything)
    assert saved >= {
        "net/attention/key_dense/kernel",
        "net/hidden/cell/recurrent_kernel",
        "net/inner/layers/dense/kernel",
        "net/noise/state",
        "net/pairs/0/1/kernel",
        "net/seen/total",
        "net/variables/0",
    }


@pytest.mark.parametrize("name", ["plain", "mirrored_2", "ps_2"])
def test_a_layer_that_was_adapted_normalizes_as_it_did(name, tmp_path):
    layer = keras.layers.Normalization()
    layer.adapt(X)
    path = jt.train.Checkpoint(layer=layer).save(tmp_path / "ckpt")
    with scope_of(name):
        other = keras.layers.Normalization()
        other.build((None, 4))
        jt.train.Checkpoint(layer=other).restore(path).assert_consumed()
        np.testing.assert_array_equal(other(X), layer(X))


# --- Optimizers ----------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nadam": lambda: keras.optimizers.Nadam(0.1),
    "adafactor": lambda: keras.optimizers.Adafactor(0.1),
    "muon": lambda: keras.optimizers.Muon(0.1),
    "amsgrad": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    "average": lambda: keras.optimizers.Adam(0.1, use_ema=True),
    "accumulation": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9)),
    "scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_all_that_an_optimizer_has_is_restored(kind, tmp_path):
    with scope_of("mirrored_2"):
        model = small(OPTIMIZERS[kind]())
    fill(model, 1)
    path = jt.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "ckpt")
    with scope_of("one_device"):
        other = small(OPTIMIZERS[kind]())
    jt.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path).assert_consumed()
    assert state(other) == state(model)


@pytest.mark.parametrize("kind", ["momentum", "nadam", "average", "accumulation", "schedule"])
def test_state_that_servers_keep_is_that_of_any_other_optimizer(kind, tmp_path):
    model = small(OPTIMIZERS[kind]())
    fill(model, 1)
    path = jt.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    with scope_of("ps_2"):
        other = small(OPTIMIZERS[kind]())
        jt.train.Checkpoint(model=other).restore(path).assert_consumed()
        assert state(other) == state(model)
        checkpoint = jt.train.Checkpoint(model=other)
        path = checkpoint.save(tmp_path / "again")
        checkpoint.wait_until_finished()  # before the servers are gone
    with scope_of("mirrored_2"):
        last = small(OPTIMIZERS[kind]())
    jt.train.Checkpoint(model=last).restore(path).assert_consumed()
    assert state(last) == state(model)


def test_an_optimizer_given_besides_its_model_is_the_same_object(tmp_path):
    model = small()
    fill(model, 1)
    path = jt.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "ckpt")
    for objects in (
        lambda model: {"model": model},
        lambda model: {"model": model, "optimizer": model.optimizer},
    ):
        other = small()
        jt.train.Checkpoint(**objects(other)).restore(path).assert_consumed()
        assert state(other) == state(model)


def test_a_loop_of_the_users_own(mirrored, tmp_path):
    def begin():
        with mirrored.scope():
            objects = {
                "layers": [keras.layers.Dense(3), keras.layers.Dense(1)],
                "optimizer": keras.optimizers.Adam(0.1),
                "metric": keras.metrics.MeanSquaredError(),
                "scale": keras.Variable(1.0, aggregation="mean"),
            }
        for layer, size in zip(objects["layers"], (4, 3), strict=True):
            with mirrored.scope():
                layer.build((None, size))
        return objects, jt.train.Checkpoint(**objects)

    def steps(objects, count):
        variables = [v for layer in objects["layers"] for v in layer.trainable_variables]

        def replica_step(x):
            def loss_fn():
                hidden = objects["layers"][0](x)
                return jt.nn.compute_average_loss((objects["layers"][1](hidden)[:, 0] - 1) ** 2)

            loss, gradients = jt.value_and_grad(loss_fn, variables)()
            objects["optimizer"].apply_gradients(zip(gradients, variables, strict=True))
            objects["metric"].update_state([1.0], [loss])
            objects["scale"].assign(objects["scale"] + 1)
            return loss

        step = jt.function(lambda x: mirrored.run(replica_step, args=(x,)))
        for _ in range(count):
            step(X[:4])
        return [np.asarray(v.value) for v in [*variables, objects["scale"]]] + [
            np.asarray(objects["metric"].result())
        ]

    objects, checkpoint = begin()
    steps(objects, 2)
    path = checkpoint.save(tmp_path / "ckpt")
    expected = steps(objects, 2)
    again, checkpoint = begin()
    checkpoint.restore(path).assert_consumed()
    for ours, theirs in zip(steps(again, 2), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# --- Several workers -----------------------------------------------------------------------

_PROGRAM = """
import keras, warnings
# Of every `variable.numpy()` of Keras itself.
warnings.filterwarnings("ignore", ".*accept a copy keyword", DeprecationWarning)
strategy = jt.MultiWorkerMirroredStrategy()
rows = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")

def begin(seed):
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Dense(5), keras.layers.Dropout(0.4), keras.layers.Dense(3)]
        )
        model.compile("adam", "mse")
    return model, jt.train.Checkpoint(model=model)

def losses(model):
    history = model.fit(rows, rows[:, :3], batch_size=8, epochs=2, shuffle=False, verbose=0)
    return [loss.hex() for loss in history.history["loss"]]

model, checkpoint = begin(1)
losses(model)
path = checkpoint.save({prefix!r})
checkpoint.wait_until_finished()
weights = [np.asarray(w).tolist() for w in model.get_weights()]
expected = losses(model)
again, checkpoint = begin(2)
status = checkpoint.restore(path)
resumed = losses(again)
status.assert_consumed()
say("done", path=path, weights=weights, expected=expected, resumed=resumed)
"""


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_workers_go_on_together_and_others_go_on_from_them(tmp_path, monkeypatch):
    monkeypatch.setattr(_workers, "SECONDS", 240.0)  # Keras takes long to start
    program = _PROGRAM.replace("{prefix!r}", repr(str(tmp_path / "saved" / "ckpt")))
    with _workers.Cluster(tmp_path, environment={"KERAS_BACKEND": "jax"}) as workers:
        workers.start(program)
        first, second = workers.until_all("done")
        workers.finish()
    assert first == second
    assert first["resumed"] == first["expected"]
    with scope_of("ps_2"):
        model = keras.Sequential(
            [keras.layers.Dense(5), keras.layers.Dropout(0.4), keras.layers.Dense(3)]
        )
        model.compile("adam", "mse")
        status = jt.train.Checkpoint(model=model).restore(first["path"])
        model.build((None, 4))
        status.assert_consumed()
        assert [np.asarray(w).tolist() for w in model.get_weights()] == first["weights"]
