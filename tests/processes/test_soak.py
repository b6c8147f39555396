"""Training for long: no stall, no second trace, no growth."""

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.timeout(400)
def test_twenty_thousand_steps_on_two_devices(python):
    output = python(
        """
        import jax
        import jax.numpy as jnp
        import numpy as np
        import optax
        import psutil

        import jaxtribute as jt

        STEPS, SETTLED = 20_000, 2_000
        strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            w = jt.Variable(jnp.zeros((4, 1)), name="w")
            b = jt.Variable(0.0, name="b")
            optimizer = jt.Optimizer(optax.adam(1e-2))
            seen = jt.Variable(
                0,
                synchronization=jt.VariableSynchronization.ON_READ,
                aggregation=jt.VariableAggregation.SUM,
            )
        calls = 0

        def replica_fn(x, y):
            global calls
            calls += 1
            seen.assign_add(x.shape[0])
            loss_fn = lambda: jnp.sum((x @ w.value() + b - y) ** 2) / 16
            loss, gradients = jt.value_and_grad(loss_fn, [w, b])()
            optimizer.apply_gradients(zip(gradients, [w, b]))
            return loss

        @jt.function
        def step(x, y):
            losses = strategy.run(replica_fn, args=(x, y))
            return strategy.reduce("SUM", losses, axis=None)

        generator = np.random.default_rng(0)
        truth = generator.normal(size=(4, 1)).astype("float32")
        batches = []
        for _ in range(16):
            x = generator.normal(size=(2, 8, 4)).astype("float32")
            batches.append([
                strategy.experimental_distribute_values_from_function(
                    lambda ctx, part=part: part[ctx.replica_id_in_sync_group]
                )
                for part in (x, x @ truth + 1.0)
            ])

        process = psutil.Process()
        for i in range(STEPS):
            loss = step(*batches[i % len(batches)])
            if i == 0:
                first, traced = float(loss), calls
            if i == SETTLED:
                jax.block_until_ready(loss)
                before = process.memory_info().rss
        last = float(loss)
        grown = (process.memory_info().rss - before) / 2**20

        assert calls == traced, f"traced again: {traced} calls at first, {calls} at last"
        assert step.experimental_get_tracing_count() == 1
        assert int(optimizer.iterations) == STEPS
        assert int(seen.value()) == 16 * STEPS
        assert last < first / 1000, (first, last)
        assert np.allclose(w.numpy(), truth, atol=1e-2)
        copies = [component.numpy() for component in w.values]
        assert copies[0].tobytes() == copies[1].tobytes()
        print(f"grew by {grown:.1f} MB")
        assert grown < 30
        """,
        seconds=380,
    )
    assert "grew by" in output
