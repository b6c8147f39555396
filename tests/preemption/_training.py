"""A training program that is interrupted: run by processes, and by the test itself."""

import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jt

STEPS = 8
BATCH = 6


class Training:
    """A model, its optimizer, its data, and what saves them."""

    def __init__(self, strategy: jt.Strategy, **kept: object) -> None:
        with strategy.scope():
            w = jt.Variable(jnp.full((3,), 0.1))
            optimizer = jt.Optimizer(optax.adam(0.1))
        x = np.random.default_rng(0).normal(size=(15, 3)).astype(np.float32)
        data = jt.data.Dataset.from_tensor_slices((x, x.sum(axis=1)))
        data = data.shuffle(15, seed=3).batch(BATCH, drop_remainder=True).repeat()
        self.iterator = iter(strategy.experimental_distribute_dataset(data))
        self.checkpoint = jt.train.Checkpoint(
            w=w, optimizer=optimizer, iterator=self.iterator, **kept
        )

        def replica_step(batch):
            x, y = batch

            def loss_fn():
                errors = (x @ w.value() - y) ** 2
                return jt.nn.compute_average_loss(errors, global_batch_size=BATCH)

            loss, gradients = jt.value_and_grad(loss_fn, [w])()
            optimizer.apply_gradients([(gradients[0], w)])
            return loss

        step = jt.function(lambda batch: strategy.run(replica_step, args=(batch,)))
        self._step = lambda batch: strategy.reduce("SUM", step(batch), axis=None)

    def step(self) -> float:
        return float(self._step(next(self.iterator)))
