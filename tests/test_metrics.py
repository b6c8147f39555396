"""Metrics: what each replica counts, and what all of them make together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.variables._support import (
    both_ways,
    call,
    components,
    local,
    mirrored,
    one_device,
    replica_id,
    run,
)

METRICS = [jt.metrics.Mean, jt.metrics.Sum, jt.metrics.Accuracy]


@pytest.fixture
def strategy():
    return mirrored(2)


class TestAlone:
    @both_ways
    def test_mean(self, way):
        metric = jt.metrics.Mean()
        call(way, lambda x: metric.update_state(x), jnp.array([1.0, 3.0]))
        call(way, lambda x: metric.update_state(x), jnp.float32(8.0))
        assert metric.result() == 4

    def test_sum(self):
        metric = jt.metrics.Sum()
        metric.update_state([[1.0, 2.0], [3.0, 4.0]])
        metric.update_state(5)
        assert metric.result() == 15

    def test_accuracy(self):
        metric = jt.metrics.Accuracy()
        metric.update_state(np.array([1, 2, 3, 4]), jnp.array([0, 2, 3, 4]))
        assert metric.result() == 0.75
        metric.update_state(y_true=[1], y_pred=[0])
        assert metric.result() == pytest.approx(0.6)

    @pytest.mark.parametrize("kind", METRICS)
    def test_empty(self, kind):
        metric = kind()
        assert metric.result() == 0
        if kind is jt.metrics.Accuracy:
            metric.update_state(jnp.zeros(0), jnp.zeros(0))
        else:
            metric.update_state(jnp.zeros((0, 3)))
        assert metric.result() == 0
        assert not jnp.isnan(metric.result())

    def test_weights(self):
        mean, total = jt.metrics.Mean(), jt.metrics.Sum()
        for metric in (mean, total):
            metric.update_state([1.0, 2.0, 3.0], sample_weight=[1.0, 0.0, 3.0])
        assert mean.result() == 2.5
        assert total.result() == 10
        mean.update_state([100.0], sample_weight=0.0)
        assert mean.result() == 2.5

    def test_weights_that_are_all_zero(self):
        metric = jt.metrics.Mean()
        metric.update_state([1.0, 2.0], sample_weight=[0.0, 0.0])
        assert metric.result() == 0

    def test_weights_are_broadcast(self):
        metric = jt.metrics.Mean()
        metric.update_state(jnp.array([[1.0, 3.0], [5.0, 7.0]]), sample_weight=[1.0, 0.0])
        assert metric.result() == 2
        metric = jt.metrics.Mean()
        metric.update_state(jnp.array([[1.0, 3.0], [5.0, 7.0]]), sample_weight=2.0)
        assert metric.result() == 4

    @pytest.mark.parametrize("weights", [[1.0, 2.0], np.ones((3, 2), np.float32)], ids=str)
    def test_weights_that_do_not_fit(self, weights):
        metric = jt.metrics.Mean()
        with pytest.raises(ValueError):
            metric.update_state([1.0, 2.0, 3.0], sample_weight=weights)
        assert metric.result() == 0

    def test_weighted_accuracy(self):
        metric = jt.metrics.Accuracy()
        metric.update_state([1, 2, 3], [1, 0, 3], sample_weight=[1.0, 2.0, 1.0])
        assert metric.result() == 0.5

    def test_accuracy_of_different_shapes(self):
        metric = jt.metrics.Accuracy()
        with pytest.raises(ValueError, match="argmax"):
            metric.update_state([1, 2, 3], jnp.zeros((3, 10)))
        assert metric.result() == 0

    @pytest.mark.parametrize("kind", METRICS)
    def test_reset(self, kind):
        metric = kind()
        for reset in (metric.reset_state, metric.reset_states):
            if kind is jt.metrics.Accuracy:
                metric.update_state([1], [1])
            else:
                metric.update_state(1.0)
            assert metric.result() == 1
            reset()
            assert metric.result() == 0
            assert all(v.numpy() == 0 for v in metric.variables)

    def test_calling(self):
        metric = jt.metrics.Mean()
        assert metric([1.0, 3.0]) == 2
        assert metric([5.0], sample_weight=[2.0]) == 3.5

    def test_names_and_types(self):
        metric = jt.metrics.Mean(name="loss", dtype=jnp.bfloat16)
        assert metric.name == "loss"
        assert sorted(v.name for v in metric.variables) == ["loss/count", "loss/total"]
        assert {v.dtype for v in metric.variables} == {jnp.dtype(jnp.bfloat16)}
        assert metric.trainable_variables == ()
        assert jt.metrics.Accuracy().name == "accuracy"

    def test_values_of_other_types(self):
        metric = jt.metrics.Mean()
        metric.update_state(np.array([1, 2], np.int64))
        metric.update_state(jnp.array([True, False]))
        metric.update_state(jnp.array([1.0], jnp.bfloat16))
        assert metric.result() == 1
        assert metric.result().dtype == jnp.float32

    def test_base_class(self):
        class Largest(jt.metrics.Metric):
            def __init__(self):
                super().__init__()
                self.seen = self.add_weight("seen", shape=(2,))

            def update_state(self, values):
                self.seen.assign(jnp.maximum(self.seen.value(), jnp.asarray(values)))

            def result(self):
                return self.seen.value()

        metric = Largest()
        assert metric([1.0, 5.0]).tolist() == [1, 5]
        assert metric([3.0, 2.0]).tolist() == [3, 5]
        metric.reset_state()
        assert metric.result().tolist() == [0, 0]
        assert metric.seen.name == "largest/seen"

    def test_one_that_is_not_finished_cannot_be_made(self):
        class Unfinished(jt.metrics.Metric):
            def update_state(self, values):
                pass

        with pytest.raises(TypeError, match="result"):
            Unfinished()


class TestReplicas:
    @both_ways
    def test_each_counts_and_all_are_added_up(self, strategy, way):
        with strategy.scope():
            mean, total = jt.metrics.Mean(), jt.metrics.Sum()

        def replica_fn():
            values = jnp.arange(2.0) + 10 * replica_id()
            mean.update_state(values)
            total.update_state(values)
            return mean.result(), total.result()

        own = run(way, strategy, replica_fn)
        assert local(strategy, own[0]) == [0.5, 10.5]
        assert local(strategy, own[1]) == [1, 21]
        assert mean.result() == 5.5
        assert total.result() == 22
        assert components(mean.count) == [2, 2]
        assert type(mean.total) is jt.SyncOnReadVariable
        with strategy.scope():
            assert mean.result() == 5.5

    @both_ways
    def test_the_mean_is_over_examples_not_replicas(self, strategy, way):
        with strategy.scope():
            metric = jt.metrics.Mean()
        ragged = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.full(
                1 + 2 * ctx.replica_id_in_sync_group, ctx.replica_id_in_sync_group * 4.0
            )
        )
        run(way, strategy, lambda x: metric.update_state(x), (ragged,))
        assert metric.result() == 3

    @both_ways
    def test_a_replica_without_examples(self, strategy, way):
        with strategy.scope():
            metric = jt.metrics.Mean()
        values = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.ones(3 - 3 * ctx.replica_id_in_sync_group, np.float32)
        )
        run(way, strategy, lambda x: metric.update_state(x), (values,))
        assert metric.result() == 1
        own = strategy.run(metric.result)
        assert local(strategy, own) == [1, 0]

    @both_ways
    def test_the_result_inside_the_step(self, strategy, way):
        with strategy.scope():
            metric = jt.metrics.Accuracy()

        def step(labels):
            strategy.run(lambda labels: metric.update_state(labels, jnp.zeros(2)), args=(labels,))
            return metric.result()

        labels = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.array([0.0, ctx.replica_id_in_sync_group], np.float32)
        )
        step = step if way == "eager" else jt.function(step)
        assert step(labels) == 0.75
        assert step(labels) == 0.75
        assert metric.count.numpy() == 8

    @both_ways
    @pytest.mark.parametrize("where", ["outside", "in scope", "inside"])
    def test_reset(self, strategy, way, where):
        with strategy.scope():
            metric = jt.metrics.Mean()
        run(way, strategy, lambda: metric.update_state(jnp.ones(2) * (replica_id() + 1)))
        assert metric.result() == 1.5
        if where == "inside":
            run(way, strategy, metric.reset_state)
        elif where == "in scope":
            with strategy.scope():
                call(way, metric.reset_state)
        else:
            call(way, metric.reset_state)
        assert components(metric.total) == components(metric.count) == [0, 0]
        assert metric.result() == 0
        run(way, strategy, lambda: metric.update_state(jnp.ones(2) * 3))
        assert metric.result() == 3

    @both_ways
    @pytest.mark.parametrize("replicas", [1, 4])
    def test_any_number(self, way, replicas):
        strategy = mirrored(replicas)
        with strategy.scope():
            metric = jt.metrics.Mean()
        run(way, strategy, lambda: metric.update_state(jnp.float32(replica_id())))
        assert metric.result() == (replicas - 1) / 2

    def test_one_device(self):
        strategy = one_device("CPU:2")
        with strategy.scope():
            metric = jt.metrics.Mean()
        strategy.run(lambda: metric.update_state([1.0, 2.0]))
        assert metric.result() == 1.5
        assert metric.total.device.endswith("CPU:2")

    @both_ways
    def test_updating_outside_is_refused(self, strategy, way):
        """It is not said which replica is to count."""
        with strategy.scope():
            metric = jt.metrics.Mean(name="loss")
        with strategy.scope(), pytest.raises(ValueError, match="ON_READ"):
            call(way, lambda: metric.update_state([1.0]))
        assert metric.result() == 0

    @both_ways
    def test_made_outside_the_scope_it_is_refused(self, strategy, way):
        metric = jt.metrics.Mean(name="loss")
        with pytest.raises(ValueError, match="scope"):
            run(way, strategy, lambda: metric.update_state(jnp.ones(2)))
        assert metric.result() == 0

    def test_no_retrace(self, strategy):
        with strategy.scope():
            metric = jt.metrics.Mean()
        traces = []

        def body(x):
            traces.append(1)
            strategy.run(metric.update_state, args=(x,))

        step = jt.function(body)
        step(jnp.ones(2))
        count = len(traces)
        for _ in range(3):
            step(jnp.ones(2))
            metric.result()
            metric.reset_state()
        assert len(traces) == count

    def test_no_arrays_are_left_behind(self, strategy):
        with strategy.scope():
            metric = jt.metrics.Mean()
        step = jt.function(lambda x: strategy.run(metric.update_state, args=(x,)))

        def go(count):
            for _ in range(count):
                step(np.ones(4, np.float32))
                float(metric.result())

        go(3)
        before = len(jax.live_arrays())
        go(10)
        assert len(jax.live_arrays()) <= before
