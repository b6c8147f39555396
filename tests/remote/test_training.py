"""Steps that workers run on variables of parameter servers: the same as in one process."""

from contextlib import ExitStack

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from jaxtribute.testing import LocalCluster

Fixed = jt.experimental.partitioners.FixedShardsPartitioner
Aggregation = jt.VariableAggregation


@pytest.fixture(scope="module")
def cluster():
    """One worker, so that steps follow each other, and two servers."""
    with LocalCluster(workers=1, ps=2) as cluster:
        yield cluster


@pytest.fixture
def begin(cluster):
    """Return a function that makes a strategy and its coordinator, which ends with the test."""
    with ExitStack() as stack:

        def make(shards=1, replicas=1):
            strategy = cluster.strategy(Fixed(shards), replicas_per_worker=replicas)
            coordinator = cluster.coordinator(strategy)
            stack.callback(coordinator.close)
            return strategy, coordinator

        yield make


@pytest.fixture
def coordinator(begin):
    return begin()[1]


@pytest.fixture
def strategy(coordinator):
    return coordinator.strategy


@pytest.fixture
def two_replicas(begin):
    """A strategy each of whose workers runs a step on two devices, and its coordinator."""
    return begin(replicas=2)


@pytest.fixture(params=["eager", "compiled"])
def way(request):
    """A function that makes another one run in the way under test."""
    return jt.function if request.param == "compiled" else lambda fn: fn


def run(coordinator, fn, *args):
    """Run a function on a worker, and return its result once all is done."""
    value = coordinator.schedule(fn, args=args).fetch()
    coordinator.join()
    return value


# --- As in one process -------------------------------------------------------------------------


class Model(jt.Module):
    def __init__(self):
        super().__init__("model")
        rng = np.random.default_rng(0)
        self.w = jt.Variable(rng.normal(size=(5, 3)).astype(np.float32), name="w")
        self.b = jt.Variable(np.zeros(3, np.float32), name="b")
        self.out = jt.Variable(rng.normal(size=(3, 1)).astype(np.float32), name="out")

    def __call__(self, x):
        return jnp.tanh(x @ jnp.asarray(self.w) + jnp.asarray(self.b)) @ jnp.asarray(self.out)

    @property
    def logical(self):
        return [self.w, self.b, self.out]


class Training:
    """A small program under a strategy."""

    def __init__(self, strategy, transformation, inner_steps=1):
        self.strategy = strategy
        with strategy.scope():
            self.model = Model()
            self.optimizer = jt.Optimizer(transformation)
            self.loss = jt.metrics.Mean("loss")
            self.error = jt.metrics.Sum("error")

        model, optimizer, losses, error = self.model, self.optimizer, self.loss, self.error

        def replica_step(x, y):
            loss, gradients = jt.value_and_grad(
                lambda: jnp.mean((model(x) - y) ** 2), model.logical
            )()
            optimizer.apply_gradients(zip(gradients, model.logical, strict=True))
            losses.update_state(loss)
            error.update_state(jnp.abs(y - model(x)))
            return loss

        def step(x, y):
            for _ in range(inner_steps):
                loss = strategy.run(replica_step, args=(x, y))
            return strategy.reduce("MEAN", loss, axis=None)

        self.step = step

    def state(self):
        variables = [*self.model.logical, *self.optimizer.variables]
        return [np.asarray(v.numpy()) for v in variables]

    def results(self):
        return [float(self.loss.result()), float(self.error.result())]


def batches(count=6):
    rng = np.random.default_rng(1)
    for _ in range(count):
        x = rng.normal(size=(8, 5)).astype(np.float32)
        yield x, (x[:, :1] * 2 - x[:, 1:2]).astype(np.float32)


OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "nesterov": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(0.05),
    "adamw": lambda: optax.adamw(0.05, weight_decay=0.1),
    "adagrad": lambda: optax.adagrad(0.1),
    "rmsprop": lambda: optax.rmsprop(0.01),
    "clipped": lambda: optax.chain(optax.clip(0.1), optax.adam(0.05)),
    "scheduled": lambda: optax.adam(optax.exponential_decay(0.1, 2, 0.5)),
}
every_optimizer = pytest.mark.parametrize("transformation", OPTIMIZERS.values(), ids=OPTIMIZERS)


class TestEquality:
    """One worker computes what one process computes."""

    @every_optimizer
    @pytest.mark.parametrize("shards", [1, 2], ids=["whole", "divided"])
    def test_of_training(self, begin, transformation, shards, way):
        strategy, coordinator = begin(shards)
        here = Training(jt.OneDeviceStrategy("CPU:0"), transformation())
        there = Training(strategy, transformation())
        local_step, step = jt.function(here.step), way(there.step)
        for batch in batches(4):
            expected = local_step(*batch)
            np.testing.assert_allclose(run(coordinator, step, *batch), expected, rtol=1e-5)
        assert len(here.state()) == len(there.state())
        for expected, got in zip(here.state(), there.state(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(there.results(), here.results(), rtol=1e-5)
        names = [v.name for v in here.optimizer.variables]
        assert [v.name for v in there.optimizer.variables] == names

    @pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
    @pytest.mark.parametrize("shards", [1, 2], ids=["whole", "divided"])
    def test_of_several_steps_in_one_closure(self, begin, name, shards, way):
        strategy, coordinator = begin(shards)
        here = Training(jt.OneDeviceStrategy("CPU:0"), OPTIMIZERS[name](), inner_steps=3)
        there = Training(strategy, OPTIMIZERS[name](), inner_steps=3)
        local_step, step = jt.function(here.step), way(there.step)
        for batch in batches(3):
            expected = local_step(*batch)
            np.testing.assert_allclose(run(coordinator, step, *batch), expected, rtol=1e-5)
        for expected, got in zip(here.state(), there.state(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(there.results(), here.results(), rtol=1e-5)

    @pytest.mark.parametrize("name", ["sgd", "adam"])
    def test_of_compiled_steps_called_in_one_closure(self, begin, name):
        strategy, coordinator = begin(shards=2)
        here = Training(jt.OneDeviceStrategy("CPU:0"), OPTIMIZERS[name](), inner_steps=2)
        there = Training(strategy, OPTIMIZERS[name](), inner_steps=2)
        local_step, step = jt.function(here.step), jt.function(there.step)

        def twice(x, y):
            step(x, y)
            return step(x, y)

        for batch in batches(2):
            local_step(*batch)
            expected = local_step(*batch)
            np.testing.assert_allclose(run(coordinator, twice, *batch), expected, rtol=1e-5)
        for expected, got in zip(here.state(), there.state(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)

    def test_on_the_coordinator_itself(self, strategy):
        here = Training(jt.OneDeviceStrategy("CPU:0"), optax.adam(0.1))
        there = Training(strategy, optax.adam(0.1))
        local_step, step = jt.function(here.step), jt.function(there.step)
        for batch in batches(3):
            np.testing.assert_allclose(step(*batch), local_step(*batch), rtol=1e-5)
        for expected, got in zip(here.state(), there.state(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


# --- Inside a closure --------------------------------------------------------------------------


class TestReadingAfterWriting:
    @pytest.mark.parametrize("shards", [1, 2], ids=["whole", "divided"])
    def test_sees_what_was_written(self, begin, shards, way):
        strategy, coordinator = begin(shards)
        with strategy.scope():
            v = jt.Variable(np.float32([1, 2, 3, 4]))

        @way
        def step():
            v.assign_add(np.float32([1, 1, 1, 1]))
            first = jnp.asarray(v)
            v.assign_sub(first)
            second = jnp.asarray(v)
            v.assign(first * 10)
            return first, second, jnp.asarray(v)

        first, second, third = run(coordinator, step)
        assert first.tolist() == [2, 3, 4, 5]
        assert second.tolist() == [0, 0, 0, 0]
        assert third.tolist() == v.numpy().tolist() == [20, 30, 40, 50]

    def test_by_several_functions_of_one_closure(self, coordinator, strategy):
        with strategy.scope():
            v = jt.Variable(1.0)
        add = jt.function(lambda: v.assign_add(v * 2))

        def step():
            add()
            between = float(v)
            v.assign_add(1.0)
            add()
            return between, float(v)

        assert run(coordinator, step) == (3, 12)
        assert v.numpy() == 12

    @pytest.mark.parametrize("shards", [1, 2], ids=["whole", "divided"])
    def test_of_rows(self, begin, shards, way):
        strategy, coordinator = begin(shards)
        with strategy.scope():
            table = jt.Variable(np.zeros((4, 2), np.float32))
            optimizer = jt.Optimizer(optax.sgd(1.0))
        ids = np.array([3, 0, 3])

        @way
        def step():
            table.scatter_add(jt.IndexedSlices(jnp.ones((3, 2)), jnp.asarray(ids)))
            added = jt.nn.embedding_lookup(table, np.array([0, 1, 3]))
            _, gradient = jt.value_and_grad(
                lambda: jnp.sum(jt.nn.embedding_lookup(table, np.array([1]))), table
            )()
            optimizer.apply_gradients([(gradient, table)])
            return added, jnp.asarray(table)

        added, after = run(coordinator, step)
        assert added[:, 0].tolist() == [1, 0, 2]
        assert after[:, 0].tolist() == table.numpy()[:, 0].tolist() == [1, -1, 0, 2]

    def test_a_variable_that_is_returned_is_its_value(self, begin, way):
        strategy, coordinator = begin(shards=2)
        with strategy.scope():
            v, table = jt.Variable(1.0), jt.Variable(np.zeros((3, 2), np.float32))

        @way
        def step():
            table.assign_add(np.ones((3, 2), np.float32))
            return v.assign_add(2.0), {"table": table}

        value, others = coordinator.schedule(step).fetch()
        assert value == 3
        assert type(value) is np.float32
        assert others["table"].tolist() == [[1, 1]] * 3


class TestFailing:
    def test_changes_nothing(self, coordinator, strategy, way):
        with strategy.scope():
            v = jt.Variable(np.float32([1, 2]))
            optimizer = jt.Optimizer(optax.adam(0.1))
            metric = jt.metrics.Sum()
        train = way(lambda: optimizer.apply_gradients([(jnp.ones(2), v)]))

        def step(fails):
            strategy.run(train)
            v.assign_add(np.float32([1, 1]))
            metric.update_state(1.0)
            if fails:
                raise ZeroDivisionError("bad")

        coordinator.schedule(step, args=(True,))
        with pytest.raises(ZeroDivisionError, match="bad"):
            coordinator.join()
        assert v.numpy().tolist() == [1, 2]
        assert (int(optimizer.iterations), float(metric.result())) == (0, 0)
        run(coordinator, step, False)
        np.testing.assert_allclose(v.numpy(), [1.9, 2.9], rtol=1e-5)
        assert (int(optimizer.iterations), float(metric.result())) == (1, 1)

    def test_a_part_that_failed_and_was_caught_changes_nothing(self, coordinator, strategy):
        with strategy.scope():
            v = jt.Variable(1.0)

        def inner():
            v.assign_add(10.0)
            raise ZeroDivisionError

        def step():
            v.assign_add(1.0)
            try:
                strategy.run(inner)
            except ZeroDivisionError:
                v.assign_add(100.0)
            return float(v)

        assert run(coordinator, step) == 102
        assert v.numpy() == 102

    def test_creating_a_variable_is_refused(self, coordinator):
        coordinator.schedule(lambda: jt.Variable(1.0, name="late"))
        with pytest.raises(ValueError, match=r"'late'.*on the coordinator"):
            coordinator.join()


# --- Several replicas --------------------------------------------------------------------------


class TestReplicas:
    """R178."""

    @pytest.mark.parametrize(
        ("aggregation", "assigned", "added"),
        [("SUM", 3, 13), ("MEAN", 1.5, 11.5), ("ONLY_FIRST_REPLICA", 1, 11)],
    )
    def test_assign_by_aggregation(self, two_replicas, aggregation, assigned, added, way):
        strategy, coordinator = two_replicas
        with strategy.scope():
            v, w = (jt.Variable(10.0, aggregation=Aggregation[aggregation]) for _ in range(2))

        def replica_step():
            number = jt.get_replica_context().replica_id_in_sync_group
            v.assign(number + 1.0)
            w.assign_add(number + 1.0)

        run(coordinator, way(lambda: strategy.run(replica_step)))
        assert (v.numpy(), w.numpy()) == (assigned, added)

    def test_without_aggregation_are_refused(self, two_replicas, way):
        strategy, coordinator = two_replicas
        with strategy.scope():
            v = jt.Variable(10.0, name="v")
        coordinator.schedule(way(lambda: strategy.run(lambda: v.assign_add(1.0))))
        with pytest.raises(ValueError, match=r"aggregation.*'v'"):
            coordinator.join()
        assert v.numpy() == 10
        run(coordinator, lambda: v.assign_add(1.0))  # outside of run there is only one
        assert v.numpy() == 11

    def test_read_what_they_have_written(self, two_replicas, way):
        strategy, coordinator = two_replicas
        with strategy.scope():
            v = jt.Variable(10.0, aggregation=Aggregation.SUM)

        def replica_step():
            v.assign_add(jt.get_replica_context().replica_id_in_sync_group + 1.0)
            return v.value()

        def step():
            read = strategy.run(replica_step)
            return strategy.experimental_local_results(read), jnp.asarray(v)

        values, after = run(coordinator, way(step))
        assert [float(value) for value in values] == [13, 13]
        assert float(after) == v.numpy() == 13

    @pytest.mark.parametrize("name", ["sgd", "adam"])
    def test_train_as_mirrored_ones_do(self, two_replicas, name, way):
        strategy, coordinator = two_replicas
        mirrored = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        here = Training(mirrored, OPTIMIZERS[name]())
        there = Training(strategy, OPTIMIZERS[name]())

        def halves(step, x, y):
            strategy = jt.get_strategy()
            deal = strategy.experimental_distribute_values_from_function
            return step(
                deal(lambda c: x[c.replica_id_in_sync_group :: 2]),
                deal(lambda c: y[c.replica_id_in_sync_group :: 2]),
            )

        local_step, step = jt.function(here.step), way(there.step)
        for batch in batches(3):
            with mirrored.scope():
                expected = halves(local_step, *batch)
            got = run(coordinator, lambda *batch: halves(step, *batch), *batch)
            np.testing.assert_allclose(got, expected, rtol=1e-5)
        for expected, got in zip(here.state(), there.state(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(there.results(), here.results(), rtol=1e-5)

    def test_divide_datasets(self, two_replicas):
        strategy, coordinator = two_replicas
        source = strategy.experimental_distribute_dataset(jt.data.Dataset.range(8).batch(4))
        iterator = iter(coordinator.create_per_worker_dataset(source))

        @jt.function
        def step(iterator):
            sums = strategy.run(jnp.sum, args=(next(iterator),))
            return strategy.experimental_local_results(sums)

        assert [int(part) for part in run(coordinator, step, iterator)] == [1, 5]

    def test_look_up_rows_of_their_own(self, two_replicas, way):
        strategy, coordinator = two_replicas
        with strategy.scope():
            table = jt.Variable(np.arange(8, dtype=np.float32).reshape(4, 2))
            optimizer = jt.Optimizer(optax.sgd(1.0))

        def replica_step():
            number = jt.get_replica_context().replica_id_in_sync_group
            ids = jnp.asarray(number) * jnp.array([1, 3])
            loss, gradient = jt.value_and_grad(
                lambda: jnp.sum(jt.nn.embedding_lookup(table, ids)), table
            )()
            optimizer.apply_gradients([(gradient, table)])
            return loss

        losses = run(
            coordinator,
            way(lambda: strategy.experimental_local_results(strategy.run(replica_step))),
        )
        assert [float(loss) for loss in losses] == [2, 18]
        assert table.numpy()[:, 0].tolist() == [0 - 2, 2 - 1, 4, 6 - 1]

    def test_more_than_a_worker_has_devices_say_so(self, begin):
        _, coordinator = begin(replicas=99)
        with pytest.raises(ValueError, match=r"99 devices.*this one has 8"):
            run(coordinator, lambda: 1)


# --- Rows --------------------------------------------------------------------------------------


class TestLookups:
    @pytest.fixture
    def divided(self, begin):
        strategy, coordinator = begin(shards=2)
        with strategy.scope():
            table = jt.Variable(np.arange(10, dtype=np.float32).reshape(5, 2), name="table")
            optimizer = jt.Optimizer(optax.sgd(0.5))
        return strategy, coordinator, table, optimizer

    def test_are_trained(self, divided, way):
        strategy, coordinator, table, optimizer = divided

        def replica_step(ids):
            loss, gradient = jt.value_and_grad(
                lambda: jnp.sum(jt.nn.embedding_lookup(table, ids)), table
            )()
            optimizer.apply_gradients([(gradient, table)])
            return loss

        step = way(lambda ids: strategy.run(replica_step, args=(ids,)))
        assert run(coordinator, step, np.array([0, 4, 0])) == 1 + 17 + 1
        assert table.numpy()[:, 0].tolist() == [-1, 2, 4, 6, 7.5]
        assert run(coordinator, step, np.array([4, 1, 2])) == 16 + 5 + 9
        assert table.numpy()[:, 0].tolist() == [-1, 1.5, 3.5, 6, 7]

    def test_gradients_are_sparse(self, divided):
        _, coordinator, table, _ = divided

        def step(ids):
            gradient = jt.grad(lambda: jnp.sum(jt.nn.embedding_lookup(table, ids)), table)()
            return isinstance(gradient, jt.IndexedSlices), gradient.values.shape

        assert run(coordinator, step, np.array([0, 4, 0])) == (True, (3, 2))

    def test_inside_scan(self, divided, way):
        _, coordinator, table, _ = divided

        def step(ids):
            def body(total, row):
                return total + jnp.sum(jt.nn.embedding_lookup(table, row)), row[0]

            return jax.lax.scan(body, jnp.float32(0), ids)[0]

        assert run(coordinator, way(step), np.array([[0, 1], [4, 4]])) == 1 + 5 + 17 + 17

    def test_inside_cond(self, divided, way):
        _, coordinator, table, _ = divided

        def step(which):
            return jax.lax.cond(
                which > 0,
                lambda: jt.nn.embedding_lookup(table, jnp.array([1])),
                lambda: jt.nn.embedding_lookup(table, jnp.array([4])),
            )

        assert run(coordinator, way(step), np.int32(1)).tolist() == [[2, 3]]
        assert run(coordinator, way(step), np.int32(0)).tolist() == [[8, 9]]

    def test_by_rows_that_were_looked_up(self, divided, way):
        _, coordinator, table, _ = divided

        def step(ids):
            first = jt.nn.embedding_lookup(table, ids)[:, 0].astype(jnp.int32)
            return jt.nn.embedding_lookup(table, first)

        assert run(coordinator, way(step), np.array([1, 2])).tolist() == [[4, 5], [8, 9]]

    def test_of_no_rows(self, divided, way):
        _, coordinator, table, _ = divided
        step = way(lambda ids: jt.nn.embedding_lookup(table, ids))
        assert run(coordinator, step, np.zeros(0, np.int32)).shape == (0, 2)

    @pytest.mark.parametrize("bad", [5, -1])
    def test_of_rows_that_do_not_exist_are_as_in_one_process(self, divided, bad):
        _, coordinator, table, _ = divided
        step = jt.function(lambda ids: jt.nn.embedding_lookup(table, ids))
        rows = run(coordinator, step, np.array([0, bad]))
        assert rows[0].tolist() == [0, 1]
        assert np.isnan(rows[1]).all()
        coordinator.schedule(
            lambda ids: jt.nn.embedding_lookup(table, ids), args=(np.array([0, bad]),)
        )
        with pytest.raises(jt.errors.InvalidArgumentError, match=str(bad)):
            coordinator.join()

    def test_of_whole_variables_inside_scan(self, divided, way):
        _, coordinator, table, _ = divided

        def step(xs):
            return jax.lax.scan(lambda c, x: (c + x * jnp.sum(jnp.asarray(table)), 0), 0.0, xs)[0]

        assert run(coordinator, way(step), np.float32([1, 2])) == 45 * 3


# --- Values on workers -------------------------------------------------------------------------


class TestFreshness:
    def test_a_closure_sees_what_the_coordinator_assigned(self, coordinator, strategy, way):
        with strategy.scope():
            v = jt.Variable(1.0)
        step = way(lambda: v * 1)
        for value in (1.0, 2.0, 3.0):
            v.assign(value)
            assert coordinator.schedule(step).fetch() == value

    def test_a_closure_sees_what_came_before_a_join(self):
        with LocalCluster(workers=2, ps=2) as cluster:
            strategy = cluster.strategy()
            coordinator = cluster.coordinator(strategy)
            with strategy.scope():
                v, w = jt.Variable(0.0), jt.Variable(0.0)
            step = jt.function(lambda: (v.assign_add(1.0), w.assign_add(1.0)) and v + w)
            for expected in (40, 80):
                for _ in range(20):
                    coordinator.schedule(step)
                coordinator.join()
                reads = [coordinator.schedule(jt.function(lambda: v + w)) for _ in range(4)]
                assert coordinator.fetch(reads) == [expected] * 4

    def test_a_step_is_traced_once(self, coordinator, strategy):
        with strategy.scope():
            v = jt.Variable(0.0)
            traces = coordinator.create_per_worker_values(list)

        @jt.function
        def step(x):
            traces.append(1)
            v.assign_add(x)

        def counted(x, traces):
            step(x)
            return len(traces)

        counts = [coordinator.schedule(counted, args=(np.float32(i), traces)) for i in range(5)]
        assert len(set(coordinator.fetch(counts))) == 1
        assert v.numpy() == 10
