"""Variables of which each worker has its own, and reads that are cached."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.coordinator import (
    experimental_cache_variable_reads,
    experimental_get_current_worker_index,
)
from jaxtribute.testing import LocalCluster


@pytest.fixture
def cluster():
    with LocalCluster(workers=2, ps=2) as cluster:
        yield cluster


@pytest.fixture
def coordinator(cluster):
    return cluster.coordinator()


@pytest.fixture
def strategy(coordinator):
    return coordinator.strategy


@pytest.fixture(params=["eager", "compiled"])
def way(request):
    """A function that makes another one run in the way under test."""
    return jt.function if request.param == "compiled" else lambda fn: fn


class TestPerWorkerVariable:
    """R189."""

    def test_functions_have_that_of_their_worker(self, cluster, coordinator, strategy, way):
        with strategy.scope():
            v = jt.Variable(0.0, name="v", per_worker_variable=True)
        step = way(lambda: v.assign_add(1.0))
        for _ in range(20):
            coordinator.schedule(step)
        coordinator.join()
        assert len(v.read_all()) == 2
        assert sum(v.read_all()) == 20
        counts = []
        for index in (0, 1):
            before = v.read_all()[index]
            with cluster.paused(f"worker:{1 - index}"):
                value, worker = coordinator.schedule(
                    lambda: (v + 0, experimental_get_current_worker_index())
                ).fetch()
            counts.append((worker, float(value)))
            assert value == before
        assert [worker for worker, _ in counts] == [0, 1]

    def test_it_is_described(self, cluster):
        strategy = cluster.strategy(jt.experimental.partitioners.FixedShardsPartitioner(2))
        with strategy.scope():
            v = jt.Variable(np.ones((4, 2), np.float32), name="v", per_worker_variable=True)
        assert (v.name, v.shape, v.dtype) == ("v", (4, 2), np.float32)
        assert repr(v) == "<PerWorkerVariable 'v' of 2 workers>"
        assert [each.tolist() for each in v.read_all()] == [np.ones((4, 2)).tolist()] * 2
        assert [each.device[-19:-13] for each in v.variables] == ["task:0", "task:1"]

    def test_it_outlives_its_worker(self, cluster, coordinator, strategy):
        with strategy.scope():
            v = jt.Variable(0.0, per_worker_variable=True)
        for _ in range(4):
            coordinator.schedule(lambda: v.assign_add(1.0))
        coordinator.join()
        before = v.read_all()
        cluster.kill("worker:0")
        cluster.start("worker:0")
        assert v.read_all() == before

    @pytest.mark.parametrize("other", [jt.get_strategy, lambda: jt.MirroredStrategy(["CPU:0"])])
    def test_other_strategies_have_none(self, other):
        with other().scope(), pytest.raises(ValueError, match="per_worker_variable"):
            jt.Variable(0.0, per_worker_variable=True)
        with other().scope():
            assert jt.Variable(1.0, per_worker_variable=False).numpy() == 1


class TestCachedReads:
    """R190."""

    def test_the_first_value_is_kept(self, coordinator, strategy, way):
        with strategy.scope():
            v, w = jt.Variable(1.0), jt.Variable(1.0)

        def step():
            with experimental_cache_variable_reads():
                first = v + 0
                v.assign_add(1.0)
                second = v + 0
                w.assign(7.0)
                late = w + 0
            return first, second, late, v + 0

        got = coordinator.schedule(way(step)).fetch()
        assert [float(each) for each in got] == [1, 1, 7, 2]
        assert (v.numpy(), w.numpy()) == (2, 7)

    def test_around_compiled_functions(self, coordinator, strategy):
        with strategy.scope():
            v = jt.Variable(1.0)
        step = jt.function(lambda: (v.assign_add(v * 2), v + 0)[1])
        read = jt.function(lambda: v + 0)

        def program():
            with experimental_cache_variable_reads():
                cached = read(), step(), read()
            return *cached, read()

        got = coordinator.schedule(program).fetch()
        assert [float(each) for each in got] == [1, 3, 1, 3]
        assert v.numpy() == 3

    def test_on_the_coordinator(self, strategy):
        with strategy.scope():
            v = jt.Variable(1.0)
        with experimental_cache_variable_reads():
            assert (float(v), float(v.assign(5.0))) == (1, 1)
        assert float(v) == 5

    def test_variables_of_this_process_are_not_cached(self):
        v = jt.Variable(1.0)
        with experimental_cache_variable_reads():
            assert float(v) == 1
            v.assign(2.0)
            assert float(v) == 2

    def test_one_inside_another_is_refused(self):
        with (
            experimental_cache_variable_reads(),
            pytest.raises(ValueError, match="cached already"),
            experimental_cache_variable_reads(),
        ):
            pass

    def test_gradients_are_those_of_the_cached_value(self, strategy):
        with strategy.scope():
            v = jt.Variable(3.0)
        with experimental_cache_variable_reads():
            assert float(v) == 3
            v.assign(5.0)
            value, gradient = jt.value_and_grad(lambda: jnp.square(v.value()), v)()
        assert (float(value), float(gradient)) == (9, 6)
