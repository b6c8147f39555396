"""How much goes to and from parameter servers, which does not depend on the size of a table."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from tests.processes._parameter_server import ask

WIDTH = 64


@pytest.mark.parametrize(
    ("ids", "different"),
    [(np.arange(0, 4096, 4), 1024), (np.full(4096, 7), 1)],
    ids=["different", "the same"],
)
@pytest.mark.parametrize("rows", [4096, 20_000])
def test_a_step_moves_the_rows_that_it_looks_up(cluster, begin, rows, ids, different):
    strategy, coordinator = begin()
    with strategy.scope():
        table = jt.Variable(np.zeros((rows, WIDTH), np.float32))
        optimizer = jt.Optimizer(optax.adagrad(0.1))

    def step():
        def loss():
            return jnp.sum(jt.nn.embedding_lookup(table, ids) ** 2)

        optimizer.apply_gradients([(jt.grad(loss, table)(), table)])

    def traffic():
        coordinator.schedule(step)
        coordinator.join()
        found = [ask(cluster, task) for task in ("ps:0", "ps:1")]
        return np.array([[each.bytes_in, each.bytes_out] for each in found]).sum(axis=0)

    traffic()  # makes the state of the optimizer
    before, after = traffic(), traffic()
    received, sent = after - before
    values, indices, count = different * WIDTH * 4, different * 8, 4
    assert sent == values
    assert received == values + 2 * indices + count
