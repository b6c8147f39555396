"""Train a Flax NNX model on two devices.

Run it with `python examples/flax_nnx.py`.

NNX splits a model into a description of its structure and its state, a pytree of arrays. Here the
state goes into each step and the new state comes out of it: the step itself is a pure function,
and `all_reduce` is what makes the replicas agree.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxtribute as jt

STEPS = 600
BATCH_SIZE = 64


class Classifier(nnx.Module):
    """Tells on which side of a circle a point lies."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(2, 32, rngs=rngs)
        self.score = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, points: jax.Array) -> jax.Array:
        return self.score(nnx.tanh(self.hidden(points)))[:, 0]


def main() -> None:
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])

    model = Classifier(nnx.Rngs(0))
    structure, params = nnx.split(model, nnx.Param)
    tx = optax.adam(1e-2)
    opt_state = tx.init(params)

    def replica_step(params, opt_state, points, inside):
        def loss_fn(params):
            model = nnx.merge(structure, params)
            losses = optax.sigmoid_binary_cross_entropy(model(points), inside)
            return jt.nn.compute_average_loss(losses)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        loss, gradients = jt.get_replica_context().all_reduce("SUM", (loss, gradients))
        updates, opt_state = tx.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    @jt.function
    def train_step(params, opt_state, points, inside):
        return strategy.run(replica_step, args=(params, opt_state, points, inside))

    rng = np.random.default_rng(0)
    for step in range(STEPS):
        points, inside = make_batch(rng, strategy)
        params, opt_state, loss = train_step(params, opt_state, points, inside)
        if step % 200 == 199:
            print(f"step {step + 1}: loss {float(first(strategy, loss)):.3f}")

    nnx.update(model, first(strategy, params))
    points, inside = circle(np.random.default_rng(1), 1000)
    accuracy = float(jnp.mean((model(points) > 0) == inside))
    print(f"accuracy {accuracy:.1%}")


def first(strategy, values):
    """Return the first replica's part; after `all_reduce` the others' are equal."""
    return strategy.experimental_local_results(values)[0]


def make_batch(rng, strategy):
    share = BATCH_SIZE // strategy.num_replicas_in_sync
    return strategy.experimental_distribute_values_from_function(lambda _: circle(rng, share))


def circle(rng, count):
    points = rng.uniform(-1, 1, size=(count, 2)).astype(np.float32)
    return points, (np.sum(points**2, axis=1) < 0.5).astype(np.float32)


if __name__ == "__main__":
    main()
