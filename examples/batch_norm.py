"""Batch normalization with moving statistics, on two devices.

Run it with `python examples/batch_norm.py`.

Each replica normalizes by the mean and variance of its own part of the batch, and updates the
moving statistics while gradients are taken. Two kinds of variables can hold these:

* `moving_mean` is mirrored, with aggregation MEAN: the copies are averaged at every assignment, so
  each step communicates.
* `moving_variance` is sync-on-read: each replica keeps its own, and they are averaged when read
  outside of the replicas, so steps do not communicate.
"""

import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jt

STEPS = 200


class BatchNorm(jt.Module):
    def __init__(self, size: int, momentum: float = 0.95) -> None:
        super().__init__()
        self.momentum = momentum
        self.scale = jt.Variable(jnp.ones(size), name="scale")
        self.shift = jt.Variable(jnp.zeros(size), name="shift")
        self.moving_mean = jt.Variable(
            jnp.zeros(size),
            name="moving_mean",
            trainable=False,
            aggregation=jt.VariableAggregation.MEAN,
        )
        self.moving_variance = jt.Variable(
            jnp.ones(size),
            name="moving_variance",
            synchronization=jt.VariableSynchronization.ON_READ,
            aggregation=jt.VariableAggregation.MEAN,
        )

    def __call__(self, x, training: bool):
        if training:
            if x.shape[0]:
                mean, variance = jnp.mean(x, axis=0), jnp.var(x, axis=0)
            else:  # nothing left for this replica in a last batch: the statistics stay as they are
                mean, variance = self.moving_mean.value(), self.moving_variance.value()
            for moving, now in ((self.moving_mean, mean), (self.moving_variance, variance)):
                moving.assign_add((1 - self.momentum) * (now - moving))
        else:
            mean, variance = self.moving_mean, self.moving_variance
        return (x - mean) * (variance + 1e-3) ** -0.5 * self.scale + self.shift


class Model(jt.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = BatchNorm(2)
        self.weights = jt.Variable(jnp.zeros((2, 1)), name="weights")

    def __call__(self, x, training: bool):
        return self.norm(x, training) @ self.weights


def make_batch(rng, count):
    """Inputs of mean (5, -3) and standard deviation (2, 4)."""
    x = rng.normal([5, -3], [2, 4], size=(count, 2)).astype(np.float32)
    return x, (x @ [[1.0], [0.5]] - 3.5).astype(np.float32)


def main() -> None:
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = Model()
        optimizer = jt.Optimizer(optax.adam(0.05))

    def replica_step(x, y):
        def loss_fn():
            return jt.nn.compute_average_loss((model(x, training=True) - y)[:, 0] ** 2)

        # What `loss_fn` assigns to the moving statistics is carried out of the gradient.
        loss, gradients = jt.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @jt.function
    def train_step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    rng = np.random.default_rng(0)
    for step in range(STEPS):
        loss = train_step(
            *strategy.experimental_distribute_values_from_function(lambda _: make_batch(rng, 64))
        )
        if step % 50 == 0 or step == STEPS - 1:
            print(f"step {step + 1:3}: loss {float(loss):.3f}")

    print("moving mean     ", np.round(model.norm.moving_mean.numpy(), 1))
    print("moving variance ", np.round(model.norm.moving_variance.numpy(), 1))
    x, y = make_batch(np.random.default_rng(1), 256)
    loss = float(jnp.mean((model(x, training=False) - y) ** 2))
    print(f"loss with the moving statistics: {loss:.3f}")


if __name__ == "__main__":
    main()
