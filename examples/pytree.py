"""Train a plain pytree of arrays on two devices, without any variables.

Run it with `python examples/pytree.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxtribute as jt

STEPS = 500
LEARNING_RATE = 0.02


def predict(params, x):
    hidden = jnp.tanh(x * params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["out"]["w"] + params["out"]["b"]


def main() -> None:
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])

    first_key, second_key = jax.random.split(jax.random.key(0))
    params = {
        "hidden": {"w": 2 * jax.random.normal(first_key, (1, 32)), "b": jnp.zeros(32)},
        "out": {"w": jax.random.normal(second_key, (32, 1)) / 6, "b": jnp.zeros(1)},
    }

    def replica_step(params, x, y):
        def loss_fn(params):
            return jt.nn.compute_average_loss((predict(params, x) - y)[:, 0] ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        # The losses are shares of the mean over the global batch, so their sum is that mean.
        loss, gradients = jt.get_replica_context().all_reduce("SUM", (loss, gradients))
        params = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradients)
        return params, loss

    @jt.function
    def train_step(params, x, y):
        return strategy.run(replica_step, args=(params, x, y))

    x = np.linspace(-2, 2, 128, dtype=np.float32).reshape(-1, 1)
    y = np.sin(2 * x)
    halves = [(x[i::2], y[i::2]) for i in range(2)]
    data = strategy.experimental_distribute_values_from_function(
        lambda context: halves[context.replica_id_in_sync_group]
    )
    for step in range(STEPS):
        params, loss = train_step(params, *data)
        if step % 100 == 0 or step == STEPS - 1:
            print(f"step {step + 1:3}: loss {float(loss.values[0]):.4f}")

    copies = strategy.experimental_local_results(params)
    same = jax.tree.map(lambda a, b: np.array_equal(a, b), *copies)
    print("the replicas agree:", all(jax.tree.leaves(same)))


if __name__ == "__main__":
    main()
