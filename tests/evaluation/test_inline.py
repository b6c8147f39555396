"""Evaluation with the devices and workers that train: every example counts, and counts once."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt

WEIGHTS = np.float32([1, -2, 3])
X = np.random.default_rng(1).normal(size=(41, 3)).astype(np.float32)  # no multiple of anything
Y = (X @ WEIGHTS > 0.5).astype(np.int32)
EXPECTED = float(np.mean((X @ WEIGHTS > 0) == Y))
TESTS = jt.data.Dataset.from_tensor_slices((X, Y)).batch(8)


def predicted(w, x):
    return (x @ jnp.asarray(w) > 0).astype(jnp.int32)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_the_last_smaller_batch_counts_on_any_number_of_replicas(devices):
    strategy = jt.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    with strategy.scope():
        w, accuracy = jt.Variable(WEIGHTS), jt.metrics.Accuracy()

    @jt.function
    def test_step(x, y):
        def replica_step(x, y):
            accuracy.update_state(y, predicted(w, x))

        strategy.run(replica_step, args=(x, y))

    batches = strategy.experimental_distribute_dataset(TESTS)
    for _ in range(2):  # the second time is no other
        accuracy.reset_state()
        for x, y in batches:
            test_step(x, y)
        assert float(accuracy.result()) == pytest.approx(EXPECTED)


def evaluate_part(w, part, parts):
    right = seen = 0
    for x, y in TESTS.shard(parts, part):
        right += int(jnp.sum(predicted(w, x) == y))
        seen += len(y)
    return right, seen


def test_parts_are_counted_once_when_a_worker_is_lost_with_one():
    with jt.testing.LocalCluster(workers=2, ps=1) as cluster:
        strategy = cluster.strategy()
        coordinator = cluster.coordinator(strategy)
        with strategy.scope():
            w = jt.Variable(WEIGHTS)
        cluster.freeze("worker:0", at="execute")
        with cluster.paused("worker:1"):  # so that worker 0 is the one to begin
            counted = [coordinator.schedule(evaluate_part, args=(w, part, 5)) for part in range(5)]
            cluster.wait_until_frozen("worker:0")
            cluster.kill("worker:0")
        coordinator.join()
        right, seen = np.sum(coordinator.fetch(counted), axis=0)
    assert seen == len(Y)
    assert right / seen == pytest.approx(EXPECTED)
