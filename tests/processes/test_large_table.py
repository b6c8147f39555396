"""A table that is larger than a worker may become, divided between two parameter servers."""

import jax.numpy as jnp
import numpy as np
import optax
import psutil
import pytest

import jaxtribute as jt
from jaxtribute.testing import ProcessCluster
from tests.processes._parameter_server import ask

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.chaos,  # not for its kills, but as it needs minutes and gigabytes
    pytest.mark.timeout(1800),
]

ROWS, WIDTH = 1 << 24, 64  # 4 GiB
PARTS = 64
STEPS, BATCH = 200, 4096
GIGABYTE = 10**9


def resident(process: int) -> int:
    """Return the most memory that a process has ever had."""
    with open(f"/proc/{process}/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def test_workers_train_a_table_that_would_not_fit_into_them():
    needed = 2 * ROWS * WIDTH * 4
    if psutil.virtual_memory().available < needed:
        pytest.skip(f"This takes {needed / GIGABYTE:.0f} GB of memory.")
    partitioner = jt.experimental.partitioners.FixedShardsPartitioner(PARTS)
    with ProcessCluster(workers=2, ps=2, variable_partitioner=partitioner) as cluster:
        strategy = cluster.strategy()
        coordinator = cluster.coordinator(strategy)
        own = psutil.Process().pid
        before = resident(own)

        def part(partition_shape, partition_offset):
            """Have each row hold its number."""
            first = partition_offset[0]
            numbers = np.arange(first, first + partition_shape[0], dtype=np.float32)
            return np.broadcast_to(numbers[:, None], partition_shape)

        with strategy.scope():
            table = jt.Variable(part, shape=(ROWS, WIDTH), dtype=np.float32, name="table")
            optimizer = jt.Optimizer(optax.sgd(1.0))
        assert len(table.variables) == PARTS

        @jt.function
        def step(ids):
            def loss():
                return jnp.sum(jt.nn.embedding_lookup(table, ids))

            value, gradient = jt.value_and_grad(loss, table)()
            optimizer.apply_gradients([(gradient, table)])
            return value

        chance = np.random.default_rng(0)
        ids = np.minimum(chance.zipf(1.1, (STEPS, BATCH)), ROWS) - 1
        ids[0, :2] = 0, ROWS - 1
        for own_ids in ids:
            coordinator.schedule(step, args=(own_ids,))
        coordinator.join()

        # Each time that a row was looked up, 1 was taken from it.
        looked_up, times = np.unique(ids, return_counts=True)
        sample = np.unique(np.concatenate([looked_up[:1000], looked_up[-1000:], [12345, 54321]]))
        found = coordinator.schedule(lambda: jt.nn.embedding_lookup(table, sample)).fetch()
        counts = np.zeros(len(sample), np.float32)
        counts[np.isin(sample, looked_up)] = times[np.isin(looked_up, sample)]
        expected = sample.astype(np.float32) - counts
        # All of these are whole numbers that float32 holds exactly.
        np.testing.assert_array_equal(found, np.broadcast_to(expected[:, None], found.shape))

        held = [ask(cluster, task).bytes_held for task in ("ps:0", "ps:1")]
        assert [size // GIGABYTE for size in held] == [2, 2]
        used = {task: resident(cluster.pid(task)) for task in cluster.tasks}
        used["chief"] = resident(own) - before
        print({task: f"{size / GIGABYTE:.2f} GB" for task, size in used.items()})
        for task in ("worker:0", "worker:1", "chief"):
            assert used[task] < GIGABYTE, task
        for task in ("ps:0", "ps:1"):
            assert used[task] < 3 * GIGABYTE, task
