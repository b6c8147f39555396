"""A last batch leaves replicas with fewer examples, or none: results are those of one replica."""

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jt
from tests.variables._support import MEAN, ON_READ, both_ways, mirrored, one_device, run

BATCH = 4  # of a full batch, for losses that are divided by that

rng = np.random.default_rng(3)
X = rng.normal(size=(8, 3)).astype(np.float32)
Y = (X @ np.float32([1, 2, 3]) + 4).astype(np.float32)
IDS = rng.integers(0, 5, size=(8, 2))
TABLE = rng.normal(size=(5, 3)).astype(np.float32)


class Linear(nnx.Module):
    def __init__(self) -> None:
        self.kernel = nnx.Param(jnp.ones(3))

    def __call__(self, x: Any) -> Any:
        return x @ self.kernel[...]


# Each documented way to write a loss: from losses, inputs and variables to a replica's share of it.
LOSSES = {
    "average": lambda losses, x, w: jt.nn.compute_average_loss(losses),
    "of a full batch": lambda losses, x, w: jt.nn.compute_average_loss(
        losses, global_batch_size=BATCH
    ),
    "weighted": lambda losses, x, w: jt.nn.compute_average_loss(losses, sample_weight=x[:, 0] ** 2),
    "with decay": lambda losses, x, w: (
        jt.nn.compute_average_loss(losses) + jt.nn.scale_regularization_loss(jnp.sum(w**2))
    ),
    "counted by all_reduce": lambda losses, x, w: (
        jnp.sum(losses) / jt.get_replica_context().all_reduce("SUM", jnp.float32(losses.shape[0]))
    ),
    "of gathered losses": lambda losses, x, w: (
        jnp.mean(jt.get_replica_context().all_gather(losses, axis=0))
        / jt.get_replica_context().num_replicas_in_sync
    ),
}


class Program:
    """One step in which each way to write a loss trains variables of its own."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.variables = {name: [jt.Variable(jnp.ones(3)), jt.Variable(0.0)] for name in LOSSES}
            self.table = jt.Variable(TABLE)
            self.optimizer = jt.Optimizer(optax.sgd(0.1))
            self.metrics = [jt.metrics.Mean(), jt.metrics.Sum(), jt.metrics.Accuracy()]
        self.graph, self.state = nnx.split(Linear())
        self.step = jt.function(self.step_in_python)

    def step_in_python(self, x: Any, y: Any, ids: Any, state: Any) -> Any:
        shares, losses, state = self.strategy.run(self._on_replica, args=(x, y, ids, state))
        reduce = self.strategy.reduce
        outcome = {
            "shares": reduce("SUM", shares, axis=None),
            "sum": reduce("SUM", {"losses": losses, "x": x}, axis=0),
            "mean": reduce("MEAN", (losses, x), axis=0),
            "all": self.strategy.gather(losses, axis=0),
        }
        return outcome, state

    def _on_replica(self, x: Any, y: Any, ids: Any, state: Any) -> Any:
        def loss_fn():
            shares: dict[str, Any] = {}
            for name, loss in LOSSES.items():
                w, b = self.variables[name]
                losses = (x @ w + b - y) ** 2
                shares[name] = loss(losses, x, w)
            rows = jnp.sum(jt.nn.embedding_lookup(self.table, ids), axis=1)
            shares["table"] = jt.nn.compute_average_loss(jnp.sum((rows - x) ** 2, axis=1))
            return sum(shares.values()), (shares, losses)

        # Each way has variables of its own, and so a gradient of its own.
        trained = [*(v for pair in self.variables.values() for v in pair), self.table]
        compute = jt.value_and_grad(loss_fn, trained, has_aux=True)
        (_, (shares, losses)), gradients = compute()
        self.optimizer.apply_gradients(zip(gradients, trained, strict=True))
        for metric in self.metrics[:2]:
            metric.update_state(losses)
        self.metrics[2].update_state(losses > 1, y > 0)

        def module_loss(state):
            return jt.nn.compute_average_loss((nnx.merge(self.graph, state)(x) - y) ** 2)

        found = jax.value_and_grad(module_loss)(state)
        context = jt.get_replica_context()
        shares["module"], gradients = context.all_reduce("SUM", found)
        shares["module"] /= context.num_replicas_in_sync
        return shares, losses, jax.tree.map(lambda p, g: p - 0.1 * g, state, gradients)

    def outcome(self, batches: Any, compiled: bool = True) -> Any:
        """Train on batches, and return all there is to see afterwards."""
        step = self.step if compiled else self.step_in_python
        steps = []
        state = self.state
        for batch in batches:
            outcome, state = step(*batch, state)
            steps.append(outcome)
        return jax.tree.map(
            np.asarray,
            {
                "steps": steps,
                "variables": {k: [v.value() for v in vs] for k, vs in self.variables.items()},
                "table": self.table.value(),
                "metrics": [metric.result() for metric in self.metrics],
                "module": [
                    self.strategy.experimental_local_results(leaf)[-1]
                    for leaf in jax.tree.leaves(state, is_leaf=_is_per_replica)
                ],
            },
        )


def _is_per_replica(leaf: Any) -> bool:
    return isinstance(leaf, jt.DistributedValues)


def check_same(found: Any, expected: Any) -> None:
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-5), found, expected
    )


@functools.cache
def expected(size: int) -> Any:
    """What one replica makes of the first examples, in one batch."""
    return Program(one_device()).outcome([(X[:size], Y[:size], IDS[:size])], compiled=False)


@pytest.mark.parametrize("size", range(1, BATCH + 1))
@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_every_loss_and_every_remainder_trains_like_one_replica(replicas, size):
    strategy = mirrored(replicas)
    data = jt.data.Dataset.from_tensor_slices((X[:size], Y[:size], IDS[:size])).batch(BATCH)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        batches = strategy.experimental_distribute_dataset(data)
        # Parts of one size are one program, which takes long to compile; one replica's is enough.
        found = Program(strategy).outcome(batches, compiled=replicas > 1 or size == BATCH)
    check_same(found, expected(size))


@settings(max_examples=4)
@given(sizes=st.lists(st.integers(0, 2), min_size=2, max_size=4).filter(any))
def test_any_parts_train_like_one_replica(sizes):
    """Whichever replicas have none."""
    strategy = mirrored(len(sizes))
    total = sum(sizes)
    cuts = np.cumsum(sizes)[:-1]
    batch = [deal(strategy, np.split(array[:total], cuts)) for array in (X, Y, IDS)]
    check_same(Program(strategy).outcome([batch], compiled=False), expected(total))


def test_an_epoch_whose_last_batch_is_one_example():
    """A compiled program for full batches, and then a step in which replicas have none."""
    data = jt.data.Dataset.from_tensor_slices((X[:5], Y[:5], IDS[:5])).batch(BATCH).repeat(2)
    strategy = mirrored(2)
    found = Program(strategy).outcome(strategy.experimental_distribute_dataset(data))
    check_same(found, Program(one_device()).outcome(one_device_batches(data)))


def one_device_batches(data: Any) -> Any:
    return one_device().experimental_distribute_dataset(data)


def test_loops_and_iterators_in_a_compiled_function():
    strategy = mirrored(4)
    data = jt.data.Dataset.from_tensor_slices(np.arange(9, dtype=np.float32)).batch(4)
    batches = strategy.experimental_distribute_dataset(data)

    def mean(x):
        shares = strategy.run(jt.nn.compute_average_loss, args=(x,))
        return strategy.reduce("SUM", shares, axis=None)

    @jt.function
    def loop(batches):
        total = jnp.float32(0)
        for batch in batches:
            total += mean(batch)
        return total

    assert loop(batches) == 1.5 + 5.5 + 8
    iterator = iter(batches)
    step = jt.function(lambda iterator: mean(next(iterator)))
    assert [float(step(iterator)) for _ in range(3)] == [1.5, 5.5, 8]


@pytest.mark.parametrize("replicas", [2, 3])
def test_variables_and_optimizers_made_in_a_first_step_without_examples_for_all(replicas):
    strategy = mirrored(replicas)
    made: list[Any] = []
    with strategy.scope():
        optimizer = jt.Optimizer(optax.adam(0.1))

    def replica_step(x):
        if not made:
            made.append(jt.Variable(jnp.ones(x.shape[1])))
        (w,) = made[:1]
        loss_fn = lambda: jt.nn.compute_average_loss((x @ w) ** 2)  # noqa: E731
        gradients = jt.grad(loss_fn, [w])()
        optimizer.apply_gradients(zip(gradients, [w], strict=True))

    step = jt.function(lambda x: strategy.run(replica_step, args=(x,)))
    data = jt.data.Dataset.from_tensor_slices(X[:1]).batch(4)
    for x in strategy.experimental_distribute_dataset(data):
        step(x)
    w = jnp.ones(3)
    gradient = jax.grad(lambda w: jnp.mean((X[:1] @ w) ** 2))(w)
    transformation = optax.adam(0.1)
    updates, _ = transformation.update(gradient, transformation.init(w))
    np.testing.assert_allclose(made[0].numpy(), optax.apply_updates(w, updates), rtol=1e-5)


# --- The average itself --------------------------------------------------------------------


def deal(strategy: Any, parts: list[Any]) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )


@both_ways
@pytest.mark.parametrize("sizes", [(1, 0), (0, 1), (3, 2), (0, 0), (2, 2)])
def test_a_replica_without_examples_has_a_loss_of_zero(way, sizes):
    strategy = mirrored(2)
    parts = np.split(np.arange(1.0, 1 + sum(sizes), dtype=np.float32), [sizes[0]])
    shares = run(way, strategy, jt.nn.compute_average_loss, (deal(strategy, parts),))
    local = [float(share) for share in strategy.experimental_local_results(shares)]
    assert local == pytest.approx([part.sum() / max(1, sum(sizes)) for part in parts])


def test_no_examples_at_all():
    nothing = jnp.zeros(0)
    assert jt.nn.compute_average_loss(nothing) == 0
    assert jt.nn.compute_average_loss(nothing, global_batch_size=0) == 0
    assert jt.nn.compute_average_loss(nothing, sample_weight=nothing, global_batch_size=8) == 0
    counted = jt.function(lambda x, n: jt.nn.compute_average_loss(x, global_batch_size=n))
    assert counted(nothing, jnp.int32(0)) == 0
    assert counted(jnp.zeros(2), jnp.int32(0)) == 0  # all of them masked, say
    assert counted(jnp.ones(2), jnp.int32(0)) == np.inf  # not hidden
    gradient = jax.grad(lambda w: jt.nn.compute_average_loss(nothing * w))(1.0)
    assert gradient == 0


def test_replicas_that_leave_out_the_loss_are_named():
    strategy = mirrored(2)
    x = deal(strategy, [np.ones(2, np.float32), np.ones(0, np.float32)])

    def only_with_examples(x):
        return jt.nn.compute_average_loss(x) if x.shape[0] else jnp.float32(0)

    with pytest.raises(RuntimeError, match=r"compute_average_loss without global_batch_size"):
        strategy.run(only_with_examples, args=(x,))
    with pytest.raises(RuntimeError, match=r"replica 0 waits in counting.*replica 1 waits in all"):
        strategy.run(
            lambda x: jt.get_replica_context().all_reduce("SUM", only_with_examples(x)), args=(x,)
        )


def test_a_program_of_the_replicas_own_cannot_count_the_others_examples():
    """JAX uses it again for every part of its shape, whatever the others have then."""
    strategy = mirrored(2)
    average = jax.jit(jt.nn.compute_average_loss)
    even = deal(strategy, [np.ones(2, np.float32)] * 2)
    assert strategy.reduce("SUM", strategy.run(average, args=(even,)), axis=None) == 1
    uneven = deal(strategy, [np.ones(2, np.float32), np.ones(1, np.float32)])
    with pytest.raises(RuntimeError, match="pass global_batch_size"):
        strategy.run(average, args=(uneven,))


# --- Means over nothing --------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False], ids=["first-empty", "last-empty"])
class TestMeansOverNothing:
    """They are not a number, and must not make one of what the other replicas have."""

    @pytest.fixture
    def strategy(self):
        return mirrored(2)

    @pytest.fixture
    def x(self, strategy, first):
        parts = [np.float32([1, 2, 3]), np.float32([])]
        return deal(strategy, parts[::-1] if first else parts)

    @pytest.fixture
    def replica(self, first):
        return 0 if first else 1

    @both_ways
    def test_gradients_leave_the_weights_alone(self, strategy, x, replica, way):
        with strategy.scope():
            w = jt.Variable(2.0)
            optimizer = jt.Optimizer(optax.sgd(0.1))

        def replica_step(x):
            gradients = jt.grad(lambda: jnp.mean(x) * w, [w])()
            optimizer.apply_gradients(zip(gradients, [w], strict=True))

        with pytest.raises(ValueError, match=f"all_reduce of replica {replica} is nan: .* none"):
            run(way, strategy, replica_step, (x,))
        assert w.numpy() == 2

    @both_ways
    def test_metrics_and_statistics_stay_what_they_were(self, strategy, x, replica, way):
        with strategy.scope():
            metric = jt.metrics.Mean("seen")
            common = jt.Variable(1.0, trainable=False, aggregation=MEAN)
            own = jt.Variable(1.0, synchronization=ON_READ, aggregation=MEAN, name="own")
        with pytest.raises(ValueError, match=f"variable 'seen/total' of replica {replica} is nan"):
            run(way, strategy, lambda x: metric.update_state(jnp.mean(x)), (x,))
        with pytest.raises(ValueError, match=f"variable 'own' of replica {replica} is nan"):
            run(way, strategy, lambda x: own.assign(jnp.mean(x)), (x,))
        with pytest.raises(ValueError, match=f"assignment of replica {replica} is nan"):
            run(way, strategy, lambda x: common.assign(jnp.mean(x)), (x,))
        assert (float(metric.result()), common.numpy(), own.numpy()) == (0, 1, 1)

    def test_the_first_replica_does_not_decide_without_examples(self, strategy, x, replica):
        with strategy.scope():
            v = jt.Variable(
                1.0, trainable=False, aggregation=jt.VariableAggregation.ONLY_FIRST_REPLICA
            )
        with pytest.raises(ValueError, match=f"assignment of replica {replica} is nan"):
            strategy.run(lambda x: v.assign(jnp.mean(x)), args=(x,))
        assert v.numpy() == 1

    def test_merge_calls(self, strategy, x, replica):
        def replica_fn(x):
            return jt.get_replica_context().merge_call(
                lambda strategy, value: strategy.reduce("MEAN", value, axis=None),
                args=(jnp.mean(x),),
            )

        with pytest.raises(ValueError, match=f"merge_call of replica {replica} is nan"):
            strategy.run(replica_fn, args=(x,))

    @both_ways
    def test_what_is_returned_is_warned_of(self, strategy, x, replica, way):
        with pytest.warns(RuntimeWarning, match=f"replica {replica} returned .* is nan"):
            means = run(way, strategy, jnp.mean, (x,))
        assert np.isnan(strategy.experimental_local_results(means)[replica])

    def test_what_is_kept_apart_is_passed_on(self, strategy, x, replica):
        """By all_gather: each can see for itself which is none."""

        def replica_fn(x):
            means = jt.get_replica_context().all_gather(jnp.mean(x)[None], axis=0)
            return jnp.nanmean(means)

        found = strategy.experimental_local_results(strategy.run(replica_fn, args=(x,)))
        assert [float(each) for each in found] == [2, 2]

    def test_weights_that_are_no_numbers_already_are_not_blamed_on_it(self, strategy, x, replica):
        with strategy.scope():
            w = jt.Variable(np.float32(np.nan))
            optimizer = jt.Optimizer(optax.sgd(0.1))

        def replica_step(x):
            def loss_fn():
                decay = jt.nn.scale_regularization_loss(w**2)
                return jt.nn.compute_average_loss(w * x) + decay

            optimizer.apply_gradients(zip(jt.grad(loss_fn, [w])(), [w], strict=True))

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            strategy.run(replica_step, args=(x,))
        assert int(optimizer.iterations) == 1


# --- Meeting while gradients are taken -----------------------------------------------------


@both_ways
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
def test_rows_of_a_table_meet_those_of_other_replicas(way, collective):
    """Also where there are none, of which JAX itself would make a constant without a gradient."""

    def trained(strategy, ids):
        with strategy.scope():
            table = jt.Variable(TABLE)
            optimizer = jt.Optimizer(optax.sgd(0.1))

        def replica_step(ids):
            context = jt.get_replica_context()

            def loss_fn():
                rows = jt.nn.embedding_lookup(table, ids)
                if collective == "all_gather":
                    others = context.all_gather(rows, axis=0)
                    return jt.nn.compute_average_loss(jnp.sum((rows @ others.T) ** 2, axis=1))
                mean = context.all_reduce("SUM", jnp.sum(rows, axis=0)) / 3
                return jt.nn.compute_average_loss(jnp.sum((rows - mean) ** 2, axis=1))

            optimizer.apply_gradients([(jt.grad(loss_fn, table)(), table)])

        run(way, strategy, replica_step, (ids,))
        return table.numpy()

    ids = np.array([1, 4, 1])
    strategy = mirrored(2)
    expected = trained(one_device(), ids)
    for cut in (0, 3):
        found = trained(strategy, deal(strategy, np.split(ids, [cut])))
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@both_ways
def test_statistics_assigned_while_a_gradient_is_taken(way):
    """Where those of a replica without examples do not depend on what is differentiated by."""
    strategy = mirrored(2)
    with strategy.scope():
        table = jt.Variable(TABLE)
        seen = jt.Variable(jnp.zeros(3), trainable=False, aggregation=MEAN)

    def replica_step(ids):
        def loss_fn():
            rows = table.value()[ids]
            seen.assign(jnp.sum(rows, axis=0))
            return jt.nn.compute_average_loss(jnp.sum(rows, axis=1))

        return jt.grad(loss_fn, table)()

    ids = np.array([1, 4, 1])
    run(way, strategy, replica_step, (deal(strategy, [ids, ids[:0]]),))
    np.testing.assert_allclose(seen.numpy(), TABLE[ids].sum(axis=0) / 2, rtol=1e-5)


@both_ways
def test_replicas_never_meet_in_different_places(way):
    """One that takes no part in a gradient's exchange is named, and its next one is not taken."""
    strategy = mirrored(2)
    with strategy.scope():
        table = jt.Variable(TABLE)
        optimizer = jt.Optimizer(optax.sgd(0.1))

    def replica_step(ids):
        def loss_fn():
            total = jt.get_replica_context().all_reduce("SUM", jnp.sum(table.value()[ids]))
            return total * jnp.sum(table)  # of the same shape as the gradient that comes next

        optimizer.apply_gradients([(jt.grad(loss_fn, table)(), table)])

    ids = np.array([1, 4, 1])
    with pytest.raises(RuntimeError, match=r"replica 0 waits in the gradient of all_reduce"):
        run(way, strategy, replica_step, (deal(strategy, [ids, ids[:0]]),))
    np.testing.assert_array_equal(table.numpy(), TABLE)


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_what_cannot_be_done_with_no_examples_says_which_replica_has_none(way):
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    batches = jt.data.Dataset.from_tensor_slices(np.ones((1, 4), np.float32)).batch(2)
    (batch,) = strategy.experimental_distribute_dataset(batches)

    def step(x):
        return strategy.run(lambda x: x.reshape(x.shape[0], 2, -1), args=(x,))

    with pytest.raises(ZeroDivisionError) as raised:
        (step if way == "eager" else jt.function(step))(batch)
    assert any("Replica 1 has no examples" in note for note in raised.value.__notes__)
