"""What a closure sees of variables, and what it does to them."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from jaxtribute.testing import LocalCluster
from tests.remote._training import run


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

    @pytest.mark.parametrize("shards", [1, 2], ids=["whole", "divided"])
    def test_with_the_arguments_of_tensorflow(self, begin, shards):
        strategy, coordinator = begin(shards)
        with strategy.scope():
            v = jt.Variable(np.float32([1, 2]))

        def step():
            v.assign_add(np.float32([1, 1]), use_locking=True, name="name")
            rows = jt.IndexedSlices(np.float32([1]), np.array([1]))
            v.scatter_add(rows, use_locking=True, name="name")
            returned = v.assign_sub(np.float32([1, 1]), use_locking=True, read_value=False)
            return (returned is None) is (shards == 1)  # as in TensorFlow

        assert run(coordinator, step)
        assert step()
        assert v.numpy().tolist() == [1, 4]

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


@pytest.mark.parametrize("shape", [(), (3,), (300_000,)])
@pytest.mark.parametrize("shards", [1, 2], ids=["whole", "divided"])
def test_what_numpy_returns_belongs_to_the_caller(begin, shards, shape):
    strategy, _ = begin(shards)
    with strategy.scope():
        v = jt.Variable(np.ones(shape, np.float32))
    first, second = v.numpy(), v.numpy()
    first[...] = 5
    np.testing.assert_array_equal(second, np.ones(shape, np.float32))
    np.testing.assert_array_equal(v.numpy(), np.ones(shape, np.float32))
