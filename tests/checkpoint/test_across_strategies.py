"""Saved under one strategy, restored under another: parameters, optimizers, metrics and input."""

from contextlib import ExitStack

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from tests.checkpoint._support import STRATEGIES, Dense, copies, on_read, same_bits, strategy

Checkpoint = jt.train.Checkpoint
BATCH, STEPS = 12, 6


@pytest.fixture
def begin():
    """Return a function that begins a training program, which is ended after the test."""
    with ExitStack() as stack:

        def begin_and_end(name: str) -> "Training":
            training = Training(name)
            stack.callback(training.iterator.close)
            return training

        yield begin_and_end


class Training:
    """A small training program with everything that has state."""

    def __init__(self, name: str) -> None:
        self.strategy = strategy(name)
        with self.strategy.scope():
            self.model = Dense(3, 2, fill=0.1)
            self.optimizer = jt.Optimizer(optax.adam(0.1))
            self.metric = jt.metrics.Sum("loss")
        rng = np.random.default_rng(0)
        x = rng.normal(size=(BATCH * STEPS, 3)).astype(np.float32)
        data = jt.data.Dataset.from_tensor_slices((x, x[:, :2] * 2 + 1))
        data = data.shuffle(BATCH * STEPS, seed=1).batch(BATCH)
        self.iterator = iter(self.strategy.experimental_distribute_dataset(data))
        self.checkpoint = Checkpoint(
            model=self.model,
            optimizer=self.optimizer,
            metric=self.metric,
            iterator=self.iterator,
            step=0,
        )

        def replica_step(batch):
            x, y = batch

            def loss_fn():
                losses = jnp.mean((self.model(x) - y) ** 2, axis=-1)
                return jt.nn.compute_average_loss(losses, global_batch_size=BATCH)

            variables = self.model.trainable_variables
            loss, gradients = jt.value_and_grad(loss_fn, variables)()
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            self.metric.update_state(loss)
            return loss

        self._step = jt.function(lambda batch: self.strategy.run(replica_step, args=(batch,)))

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = self._step(next(self.iterator))
            losses.append(float(self.strategy.reduce("SUM", loss, axis=None)))
            self.checkpoint.step += 1
        return losses

    def state(self) -> dict[str, np.ndarray]:
        variables = [*self.model.variables, *self.optimizer.variables]
        return {f"{i} {v.name}": v.numpy() for i, v in enumerate(variables)}


@pytest.mark.parametrize("restored_by", STRATEGIES)
@pytest.mark.parametrize("saved_by", STRATEGIES)
def test_any_strategy_restores_what_any_other_saved(tmp_path, saved_by, restored_by):
    with strategy(saved_by).scope():
        mirrored = jt.Variable(jnp.arange(6.0) / 7, aggregation=jt.VariableAggregation.MEAN)
        count = on_read(jnp.int32(17), "SUM")
        mean = on_read(jnp.float32(0.1), "MEAN")
        first = on_read(jnp.float32(0.3), "ONLY_FIRST_REPLICA")
        count.assign(17)
    path = Checkpoint(a=mirrored, b=count, c=mean, d=first).save(tmp_path / "ckpt")
    saved = [v.numpy() for v in (mirrored, count, mean, first)]
    with strategy(restored_by).scope():
        others = [
            jt.Variable(jnp.zeros(6)),
            on_read(jnp.int32(0), "SUM"),
            on_read(jnp.float32(0), "MEAN"),
            on_read(jnp.float32(0), "ONLY_FIRST_REPLICA"),
        ]
    Checkpoint(**dict(zip("abcd", others, strict=True))).restore(path).assert_consumed()
    # A sum is whole again whatever it is divided by, and the mean of equal copies is that of one.
    assert same_bits(others[0].numpy(), saved[0])
    assert same_bits(others[1].numpy(), saved[1])
    np.testing.assert_allclose(others[2].numpy(), saved[2], rtol=1e-6)
    assert same_bits(others[3].numpy(), saved[3])
    assert len({str(copy) for copy in copies(others[0])}) == 1


@pytest.mark.parametrize(
    ("aggregation", "saved", "restored"),
    [("SUM", 7.0, [3.5, 3.5]), ("MEAN", 3.5, [3.5, 3.5]), ("ONLY_FIRST_REPLICA", 3.0, [3.0, 3.0])],
)
def test_what_is_combined_when_read_is_saved_combined(tmp_path, aggregation, saved, restored):
    with strategy("2").scope():
        v = on_read(0.0, aggregation)
    strategy("2").run(lambda: v.assign(jt.get_replica_context().replica_id_in_sync_group + 3.0))
    assert copies(v) == [3.0, 4.0]
    path = Checkpoint(v=v).save(tmp_path / "ckpt")
    plain = jt.Variable(0.0)
    Checkpoint(v=plain).restore(path).assert_consumed()
    assert float(plain) == saved
    Checkpoint(v=v).restore(path).assert_consumed()
    assert copies(v) == restored


def test_whole_numbers_are_dealt_out(tmp_path):
    path = Checkpoint(v=jt.Variable(jnp.int32(7))).save(tmp_path / "ckpt")
    with strategy("4").scope():
        v = on_read(jnp.int32(0), "SUM")
    Checkpoint(v=v).restore(path)
    assert copies(v) == [2, 2, 2, 1]


@pytest.mark.parametrize(
    "names",
    [("2", "4", "one device", "default"), ("default", "3", "2", "1")],
    ids=" -> ".join,
)
def test_training_goes_on_under_other_strategies_as_if_nothing_had_happened(tmp_path, begin, names):
    whole = begin("default")
    expected = whole.train(5)
    losses, path = [], None
    for number, name in enumerate(names):
        training = begin(name)
        if path is not None:
            training.checkpoint.restore(path).assert_consumed()
        assert training.checkpoint.step == number
        losses += training.train(1)
        path = training.checkpoint.save(tmp_path / "ckpt")
    assert path == str(tmp_path / "ckpt-4")
    np.testing.assert_allclose(losses, expected[:4], rtol=1e-5)
    np.testing.assert_allclose(training.metric.result(), np.sum(expected[:4]), rtol=1e-5)


@pytest.mark.parametrize("name", ["default", "2"])
@pytest.mark.parametrize("built", [False, True], ids=["before the first step", "after a step"])
def test_going_on_under_the_same_strategy_is_exact(tmp_path, begin, name, built):
    whole = begin(name)
    expected = whole.train(5)
    first = begin(name)
    first.train(2)
    path = first.checkpoint.save(tmp_path / "ckpt")
    second = begin(name)
    if built:
        second.train(1)
    second.checkpoint.restore(path).assert_consumed()
    assert all(same_bits(second.state()[k], v) for k, v in first.state().items())
    assert int(second.optimizer.iterations) == 2
    assert second.train(3) == expected[2:]
    assert all(same_bits(second.state()[k], v) for k, v in whole.state().items())


def test_the_state_of_an_optimizer_belongs_to_variables_whatever_their_order(tmp_path):
    def make():
        return [jt.Variable(jnp.zeros(2), name="same") for _ in range(2)]

    a, b = make()
    optimizer = jt.Optimizer(optax.chain(optax.clip(9.0), optax.adam(0.1)))
    optimizer.apply_gradients([(jnp.ones(2), a), (2 * jnp.ones(2), b)])
    path = Checkpoint(a=a, b=b, optimizer=optimizer).save(tmp_path / "ckpt")

    c, d = make()
    other = jt.Optimizer(optax.chain(optax.clip(9.0), optax.adam(0.1)))
    other.build([d, c])
    Checkpoint(a=c, b=d, optimizer=other).restore(path).assert_consumed()
    for each, first, second in ((optimizer, a, b), (other, c, d)):
        order = [(jnp.ones(2), first), (jnp.ones(2), second)]
        each.apply_gradients(order if each is optimizer else order[::-1])
    assert same_bits(a.numpy(), c.numpy())
    assert same_bits(b.numpy(), d.numpy())


def test_an_optimizer_without_its_variables_is_restored_once_it_is_built(tmp_path, caplog):
    v = jt.Variable(jnp.zeros(2))
    optimizer = jt.Optimizer(optax.adam(0.1))
    optimizer.apply_gradients([(jnp.ones(2), v)])
    path = Checkpoint(optimizer=optimizer).save(tmp_path / "ckpt")

    other = jt.Optimizer(optax.adam(0.1))
    status = Checkpoint(optimizer=other).restore(path)
    assert "optimizer.build(variables)" in caplog.text
    other.build([v])
    status.assert_consumed()
    assert [s.numpy().tolist() for s in other.variables] == [
        s.numpy().tolist() for s in optimizer.variables
    ]


class TestIterators:
    def test_iterators_over_datasets_go_on_where_they_were(self, tmp_path):
        dataset = jt.data.Dataset.range(10).shuffle(10, seed=3).batch(3)
        iterator = iter(dataset)
        next(iterator)
        path = Checkpoint(iterator=iterator).save(tmp_path / "ckpt")
        expected = [x.tolist() for x in iterator]
        other = iter(jt.data.Dataset.range(10).shuffle(10, seed=3).batch(3))
        Checkpoint(iterator=other).restore(path).assert_consumed()
        assert [x.tolist() for x in other] == expected
        Checkpoint(iterator=iterator).restore(path)  # also after its end
        assert [x.tolist() for x in iterator] == expected

    @pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 4), (4, 1), (1, 3)])
    def test_distributed_iterators_go_on_with_other_replicas(self, tmp_path, before, after):
        def begin(replicas):
            data = jt.data.Dataset.range(24).shuffle(24).batch(12)  # an order of its own
            return iter(strategy(str(replicas)).experimental_distribute_dataset(data))

        iterator = begin(before)
        next(iterator)
        path = Checkpoint(iterator=iterator).save(tmp_path / "ckpt")
        expected = _flat(next(iterator))
        other = begin(after)
        Checkpoint(iterator=other).restore(path).assert_consumed()
        assert _flat(next(other)) == expected
        assert next(other, None) is None


def _flat(element):
    parts = getattr(element, "values", (element,))
    return np.concatenate([np.asarray(part) for part in parts]).tolist()


def test_only_one_value_is_saved_of_a_mirrored_variable(tmp_path):
    with strategy("4").scope():
        v = jt.Variable(jax.random.normal(jax.random.key(0), (256, 256)))
    Checkpoint(v=v).save(tmp_path / "ckpt")
    size = sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file())
    assert size < 1.5 * v.size * 4
