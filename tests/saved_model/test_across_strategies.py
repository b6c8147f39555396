"""A model saved under any strategy is the same one under any other."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute.saved_model import _sources
from jaxtribute.testing import LocalCluster
from tests.saved_model._support import ROWS, Model, at, make_random, same_bits, strategy

Fixed = jt.experimental.partitioners.FixedShardsPartitioner
STRATEGIES = ["one device", "2", "1 shard", "2 shards", "3 shards"]
IDS = np.int32([3, 0, 6, 3])


@pytest.fixture(scope="module")
def make():
    """Return a function that makes a strategy by its name."""
    gc.store(object())  # starts the thread of pyzmq that frees what was sent; it stays for ever
    with LocalCluster(workers=1, ps=3) as cluster:

        def get(name):  # a new coordinator takes over from the last one
            is_sharded = "shard" in name
            return cluster.strategy(Fixed(int(name.split()[0]))) if is_sharded else strategy(name)

        yield get


@pytest.fixture(scope="module")
def saved(make, tmp_path_factory):
    """Return the values of a model, and the paths to which it was saved under each strategy."""
    directory = tmp_path_factory.mktemp("saved")
    paths, answers = {}, {}
    for name in STRATEGIES:
        with make(name).scope():
            model = Model()
        values = make_random(model)
        paths[name] = directory / name
        jt.saved_model.save(model, paths[name])
        answers[name] = np.asarray(model(IDS)["y"])
    assert all(np.array_equal(answers[name], answers["one device"]) for name in STRATEGIES)
    return values, answers["one device"], paths


@pytest.mark.parametrize("target", ["default", *STRATEGIES])
def test_loaded_under_any_strategy_it_has_the_same_bits_and_answers(make, saved, target):
    values, answer, paths = saved
    target = make(target)
    for path in paths.values():
        with target.scope():
            loaded = jt.saved_model.load(path)
        for name, value in values.items():
            assert same_bits(at(loaded, name).numpy(), value), name
    np.testing.assert_allclose(loaded(IDS)["y"], answer, rtol=1e-6)
    np.testing.assert_allclose(loaded.counted(ids=IDS), values["table"][IDS], rtol=1e-6)
    assert int(loaded.calls.numpy()) == values["calls"] + 1
    assert float(loaded.seen.numpy()) == pytest.approx(values["seen"] + 4, rel=1e-6)


@pytest.mark.parametrize("target", ["default", "2", "3 shards"])
def test_variables_are_what_the_strategy_makes_of_them(make, saved, target):
    with make(target).scope():
        expected = Model()
        loaded = jt.saved_model.load(saved[2]["2 shards"])
    for path in saved[0]:
        theirs, own = at(expected, path), at(loaded, path)
        for attribute in ("name", "shape", "dtype", "trainable"):
            assert getattr(own, attribute) == getattr(theirs, attribute), (path, attribute)
        assert type(own) is type(theirs)
    assert [v.name for v in loaded.variables] == [v.name for v in expected.variables]
    trainable = [v.name for v in loaded.trainable_variables]
    assert trainable == [v.name for v in expected.trainable_variables]
    assert len(trainable) == (9 if "shard" in target else 4)
    assert loaded.same is loaded.layers[0]
    assert loaded.layers[1] is None


def test_rows_of_servers_come_in_pieces_and_in_order(make):
    value = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
    with make("2 shards").scope():
        table = jt.Variable(value)
    pieces = list(_sources.pieces(table, at_once=2 * 3 * 4))
    assert [len(piece) for piece in pieces] == [2, 2, 2, 1]
    assert same_bits(np.concatenate(pieces), value)


# --- Training on ---------------------------------------------------------------------------


class Line(jt.Module):
    def __init__(self):
        super().__init__("line")
        self.w = jt.Variable(jnp.full((3, 1), 0.1), name="w")
        self.b = jt.Variable(jnp.zeros(1), name="b")

    @jt.function(input_signature=[jt.TensorSpec([None, 3])])
    def __call__(self, x):
        return jnp.tanh(x @ self.w.value() + self.b.value())


X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = np.tanh(X @ np.float32([[1], [2], [3]]))


def trained(strategy, model, optimizer, steps):
    """Train, and return the losses."""
    variables = [model.w, model.b]

    def replica_step(x, y):
        def loss_fn():
            return jt.nn.compute_average_loss((model(x) - y)[:, 0] ** 2)

        loss, gradients = jt.value_and_grad(loss_fn, variables)()
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @jt.function
    def step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    data = jt.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat(steps)
    return [float(step(x, y)) for x, y in strategy.experimental_distribute_dataset(data)]


@pytest.mark.parametrize("name", ["one device", "2"])
def test_training_goes_on_as_if_the_model_had_not_been_saved(name, tmp_path):
    own = strategy(name)
    with own.scope():
        model = Line()
        optimizer = jt.Optimizer(optax.adam(0.1))
    trained(own, model, optimizer, 2)
    jt.saved_model.save(model, tmp_path / "model")
    checkpoint = jt.train.Checkpoint(model=model, optimizer=optimizer)
    path = checkpoint.write(tmp_path / "checkpoint")
    losses = trained(own, model, optimizer, 3)
    with own.scope():
        loaded = jt.saved_model.load(tmp_path / "model")
        optimizer = jt.Optimizer(optax.adam(0.1))
    optimizer.build([loaded.w, loaded.b])
    restored = jt.train.Checkpoint(model=loaded, optimizer=optimizer)
    restored.restore(path).expect_partial()
    again = trained(own, loaded, optimizer, 3)
    np.testing.assert_allclose(again, losses, rtol=1e-6)
    assert again[-1] < again[0]


def test_workers_train_a_loaded_model(make, tmp_path):
    jt.saved_model.save(Line(), tmp_path / "model")
    own = make("1 shard")
    with own.scope():
        loaded = jt.saved_model.load(tmp_path / "model")
    coordinator = jt.coordinator.ClusterCoordinator(own)
    before = loaded.w.numpy()

    def step():
        loss, (gradient,) = jt.value_and_grad(lambda: jnp.mean(loaded(X) ** 2), [loaded.w])()
        loaded.w.assign_sub(0.1 * gradient)
        return loss

    results = [coordinator.schedule(step) for _ in range(3)]
    coordinator.join()
    losses = [float(result.fetch()) for result in results]
    assert losses == sorted(losses, reverse=True)
    assert not np.array_equal(loaded.w.numpy(), before)
