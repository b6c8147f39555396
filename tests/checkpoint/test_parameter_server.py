"""What is on parameter servers, saved from any number of shards and restored into any other."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute.testing import LocalCluster
from tests.checkpoint._support import strategy as plain_strategy

Checkpoint = jt.train.Checkpoint
# Another strategy takes over the servers right afterwards.
AT_ONCE = jt.train.CheckpointOptions(enable_async=False)
Fixed = jt.experimental.partitioners.FixedShardsPartitioner
X = np.random.default_rng(0).normal(size=(16, 7)).astype(np.float32)
Y = (X @ np.arange(7, dtype=np.float32)[:, None]).astype(np.float32)


@pytest.fixture(scope="module")
def cluster():
    gc.store(object())  # starts the thread of pyzmq that frees what was sent; it stays for ever
    with LocalCluster(workers=1, ps=3) as cluster:
        yield cluster


@pytest.fixture
def make(cluster):
    """Return a function that makes a strategy: "3 shards", or the name of one of one process."""

    def strategy(name):
        if name.endswith(("shard", "shards")):
            return cluster.strategy(Fixed(int(name.split()[0])))
        return plain_strategy(name)

    return strategy


class Model(jt.Module):
    """A model of which one variable can be divided and one cannot."""

    def __init__(self):
        super().__init__("model")
        self.w = jt.Variable(np.ones((7, 1), np.float32), name="w")
        self.b = jt.Variable(0.0, name="b")

    def __call__(self, x):
        return x @ jnp.asarray(self.w) + jnp.asarray(self.b)


class Training:
    """A program that can be saved; `by_shard` is how the reference has it."""

    def __init__(self, strategy, transformation=None, by_shard=True):
        with strategy.scope():
            self.model = Model()
            self.optimizer = jt.Optimizer(transformation or optax.adam(0.1))
            self.metric = jt.metrics.Mean("loss")
        self.strategy = strategy
        self.checkpoint = Checkpoint(
            model=self.model, optimizer=self.optimizer, metric=self.metric, epoch=0
        )
        model, optimizer, metric = self.model, self.optimizer, self.metric

        def replica_step(x, y):
            variables = model.trainable_variables if by_shard else [model.b, model.w]
            loss, gradients = jt.value_and_grad(lambda: jnp.mean((model(x) - y) ** 2), variables)()
            number = strategy.num_replicas_in_sync
            gradients = [g / number for g in gradients]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            metric.update_state(loss)

        self._step = jt.function(lambda x, y: strategy.run(replica_step, args=(x, y)))

    def train(self, steps):
        for _ in range(steps):
            self._step(X, Y)

    def state(self):
        """Return everything, slots in the order in which whole variables have them."""
        model = {"w": self.model.w.numpy(), "b": self.model.b.numpy()}
        slots = {}
        for slot in self.optimizer.variables:
            name, _, part = slot.name.partition("/part_")
            slots.setdefault(name + part[1:], []).append(np.atleast_1d(slot.numpy()))
        return model | {name: np.concatenate(parts) for name, parts in slots.items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


PLACES = ["1 shard", "2 shards", "3 shards", "one device", "2"]


class TestVariables:
    """R106."""

    @pytest.mark.parametrize("restored", PLACES)
    @pytest.mark.parametrize("saved", PLACES)
    def test_of_any_strategy_are_restored_in_any_other(self, make, saved, restored, tmp_path):
        value = np.arange(21, dtype=np.float32).reshape(7, 3)
        with make(saved).scope():
            v = jt.Variable(value, name="v")
        path = Checkpoint(v=v).save(tmp_path / "checkpoint", AT_ONCE)
        with make(restored).scope():
            w = jt.Variable(np.zeros((7, 3), np.float32), name="v")
        Checkpoint(v=w).restore(path).assert_consumed()
        np.testing.assert_array_equal(w.numpy(), value)

    @pytest.mark.parametrize("restored", ["1 shard", "2 shards", "one device"])
    def test_created_later_are_restored_when_they_are_there(self, make, restored, tmp_path):
        value = np.arange(21, dtype=np.float32).reshape(7, 3)
        with make("3 shards").scope():
            v = jt.Variable(value)
        path = Checkpoint(v=v).save(tmp_path / "checkpoint", AT_ONCE)
        checkpoint = Checkpoint()
        status = checkpoint.restore(path)
        with make(restored).scope():
            checkpoint.v = jt.Variable(np.zeros((7, 3), np.float32))
        status.assert_consumed()
        np.testing.assert_array_equal(checkpoint.v.numpy(), value)

    def test_of_another_shape_are_refused_and_nothing_is_changed(self, make, tmp_path):
        strategy = make("2 shards")
        with strategy.scope():
            v, w = jt.Variable(np.ones((4, 2), np.float32)), jt.Variable(1.0)
        path = Checkpoint(v=v, w=w).save(tmp_path / "checkpoint", AT_ONCE)
        with strategy.scope():
            v, w = jt.Variable(np.zeros((5, 2), np.float32)), jt.Variable(0.0)
        with pytest.raises(jt.errors.InvalidArgumentError, match=r"\(4, 2\).*\(5, 2\)"):
            Checkpoint(v=v, w=w).restore(path)
        assert w.numpy() == 0
        assert not v.numpy().any()

    @pytest.mark.parametrize("dtype", ["bfloat16", "int32", "bool"])
    def test_of_any_type(self, make, dtype, tmp_path):
        strategy = make("2 shards")
        with strategy.scope():
            v = jt.Variable(np.arange(4) % 2, dtype=dtype)
        path = Checkpoint(v=v).save(tmp_path / "checkpoint", AT_ONCE)
        v.assign(jnp.zeros(4, dtype))
        Checkpoint(v=v).restore(path)
        assert v.dtype == dtype
        assert v.numpy().astype(int).tolist() == [0, 1, 0, 1]


def saved_and_trained(training, path):
    """Train, save and train on; return the states that were, as another will take its place."""
    training.train(2)
    saved = training.checkpoint.save(path / "checkpoint", AT_ONCE)
    then = training.state()
    training.train(2)
    return saved, then, training.state()


class TestTraining:
    @pytest.mark.parametrize("restored", ["1 shard", "2 shards", "2"])
    @pytest.mark.parametrize("saved", ["1 shard", "3 shards", "one device"])
    def test_goes_on_under_any_other_strategy(self, make, saved, restored, tmp_path):
        path, then, later = saved_and_trained(Training(make(saved)), tmp_path)
        training = Training(make(restored))
        training.checkpoint.restore(path).assert_consumed()
        assert_same(then, training.state())
        training.train(2)
        assert_same(later, training.state())
        assert int(training.optimizer.iterations) == 4

    @pytest.mark.parametrize(
        "transformation",
        [
            optax.sgd(0.1),
            optax.sgd(0.1, momentum=0.9),
            optax.chain(optax.clip(1.0), optax.adamw(0.1)),
            optax.adam(optax.exponential_decay(0.1, 2, 0.5)),
        ],
        ids=["sgd", "momentum", "chain", "schedule"],
    )
    def test_with_any_optimizer(self, make, transformation, tmp_path):
        path, _, later = saved_and_trained(Training(make("3 shards"), transformation), tmp_path)
        training = Training(make("2 shards"), transformation)
        training.checkpoint.restore(path).assert_consumed()
        training.train(2)
        assert_same(later, training.state())

    @pytest.mark.parametrize("second", [True, False], ids=["by shard", "whole"])
    @pytest.mark.parametrize("first", [True, False], ids=["by shard", "whole"])
    def test_with_gradients_of_shards_or_of_the_whole(self, make, first, second, tmp_path):
        path, _, later = saved_and_trained(Training(make("3 shards"), by_shard=first), tmp_path)
        training = Training(make("2 shards"), by_shard=second)
        training.checkpoint.restore(path).assert_consumed()
        training.train(2)
        assert_same(later, training.state())

    def test_of_a_worker_is_saved_by_the_coordinator(self, cluster, make, tmp_path):
        first = Training(make("2 shards"))
        coordinator = cluster.coordinator(first.strategy)
        for _ in range(3):
            coordinator.schedule(first._step, args=(X, Y))
        coordinator.join()
        path = first.checkpoint.save(tmp_path / "checkpoint", AT_ONCE)
        coordinator.close()
        second = Training(make("one device"))
        second.checkpoint.restore(path).assert_consumed()
        assert_same(first.state(), second.state())
        assert float(second.metric.result()) == pytest.approx(float(first.metric.result()))

    def test_is_restored_while_a_worker_has_the_old_state(self, cluster, make, tmp_path):
        training = Training(make("2 shards"))
        coordinator = cluster.coordinator(training.strategy)
        states = []
        for _ in range(2):
            coordinator.schedule(training._step, args=(X, Y))
            coordinator.join()
            states.append(training.state())
            if len(states) == 1:
                path = training.checkpoint.save(tmp_path / "checkpoint", AT_ONCE)
        training.checkpoint.restore(path)
        assert_same(training.state(), states[0])
        coordinator.schedule(training._step, args=(X, Y))
        coordinator.join()
        assert_same(training.state(), states[1])
        coordinator.close()
