"""Reductions over workers: what they must have in common, whatever the way they take."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from jaxtribute._topology import PER_REPLICA, Topology
from jaxtribute.collectives import CollectiveAllReduce

# What gradients end in. Computed anew as part of the sum, each would be rounded differently.
PRODUCERS = {
    "a product": lambda x, y: x * y,
    "a product with a constant": lambda x, y: x * jnp.float32(0.7),
    "a product and a sum": lambda x, y: x * y + y,
    "a matrix product": lambda x, y: x.reshape(64, -1) @ y.reshape(-1, 64),
}


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("produce", PRODUCERS.values(), ids=PRODUCERS)
@pytest.mark.parametrize("on_cpus", [True, False])
def test_all_replicas_get_the_same_sum_to_the_last_bit(replicas, produce, on_cpus):
    topology = Topology(jax.devices()[:replicas])
    ops = CollectiveAllReduce(on_cpus=on_cpus)
    random = np.random.default_rng(0)
    rows = [
        topology.stack([random.standard_normal(4096).astype(np.float32) for _ in range(replicas)])
        for _ in range(2)
    ]

    def on_device(x, y):
        (total,) = ops.sum_in_step([produce(x[0], y[0])], replicas)
        return total[None]

    program = jax.jit(topology.on_each_device(on_device, PER_REPLICA, PER_REPLICA))
    first, *others = np.asarray(program(*rows))
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint32), other.view(np.uint32))


class _Counting(jt.NcclAllReduce):
    """Takes note of how many arrays each reduction of a compiled step has."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def sum_in_step(self, values, num_replicas):
        self.counts.append(len(values))
        return super().sum_in_step(values, num_replicas)


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.parametrize("replicas", [2, 4])
def test_the_loss_is_added_up_together_with_the_gradients(replicas, op):
    """So that a step of several workers makes one exchange rather than two."""
    ops = _Counting()
    strategy = jt.MirroredStrategy([f"CPU:{i}" for i in range(replicas)], cross_device_ops=ops)
    with strategy.scope():
        w = jt.Variable(jnp.ones(3))
        optimizer = jt.Optimizer(optax.sgd(0.1))

    def replica_step(x):
        loss, gradients = jt.value_and_grad(lambda: jnp.sum(w * x), [w])()
        optimizer.apply_gradients(zip(gradients, [w], strict=True))
        return loss

    @jt.function
    def step(x):
        return strategy.reduce(op, strategy.run(replica_step, args=(x,)), axis=None)

    x = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.arange(3.0) + context.replica_id_in_sync_group
    )
    total = sum(3.0 + 3.0 * i for i in range(replicas))
    assert float(step(x)) == (total if op == "SUM" else total / replicas)
    assert set(ops.counts) == {2}  # the gradient and the loss, in whatever pass of tracing
