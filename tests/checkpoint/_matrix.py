"""A training program that has everything a checkpoint can hold, for every topology."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jt

AT_ONCE = jt.train.CheckpointOptions(enable_async=False)
BATCH = 4
IDS = np.arange(24, dtype=np.int32) % 7
TARGETS = np.random.default_rng(0).normal(size=(24, 1)).astype(np.float32)


class Model(jt.Module):
    """A table that can be divided, and variables that cannot."""

    def __init__(self):
        super().__init__("model")
        random = np.random.default_rng(1)
        self.table = jt.Variable(random.normal(size=(7, 3)).astype(np.float32), name="table")
        self.w = jt.Variable(random.normal(size=(3, 1)).astype(np.float32), name="w")
        self.b = jt.Variable(0.25, name="b")
        self.half = jt.Variable(
            jnp.arange(5, dtype=jnp.bfloat16),
            name="half",
            trainable=False,
            aggregation=jt.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def __call__(self, ids):
        return jnp.asarray(self.table)[ids] @ self.w.value() + self.b.value()


class Training:
    """The program: `train` makes steps, and `checkpoint` is all of its state.

    Args:
      strategy: where it trains.
      coordinator: has workers make the steps, if there are parameter servers.
    """

    def __init__(self, strategy, coordinator=None):
        self._strategy = strategy
        self._coordinator = coordinator
        with strategy.scope():
            model = Model()
            optimizer = jt.Optimizer(optax.adam(0.1))
            metric = jt.metrics.Mean("loss")
        data = jt.data.Dataset.from_tensor_slices((IDS, TARGETS))
        data = data.shuffle(24, seed=3).repeat().batch(BATCH)
        if coordinator is None:
            data = strategy.experimental_distribute_dataset(data)
        self.checkpoint = jt.train.Checkpoint(
            model=model,
            optimizer=optimizer,
            metric=metric,
            iterator=iter(data),
            key=jax.random.key(7),
            epoch=1,
            rate=0.5,
        )

        def replica_step(batch, scale):
            ids, targets = batch

            def loss_fn():
                loss = jnp.sum((model(ids) - targets) ** 2, axis=1) * scale
                return jt.nn.compute_average_loss(loss, global_batch_size=BATCH)

            variables = [model.table, model.w, model.b]
            loss, gradients = jt.value_and_grad(loss_fn, variables)()
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            metric.update_state(loss)
            model.half.assign_add(jnp.ones(5, jnp.bfloat16))
            return loss

        self._step = jt.function(lambda *args: strategy.run(replica_step, args=args))

    def train(self, steps):
        """Make some steps, and return the loss of each."""
        checkpoint = self.checkpoint
        losses = []
        for _ in range(steps):
            checkpoint.key, key = jax.random.split(checkpoint.key)
            args = next(checkpoint.iterator), 1 + 0.1 * jax.random.uniform(key)
            if self._coordinator is not None:
                loss = self._coordinator.schedule(self._step, args=args).fetch()
                self._coordinator.join()
            else:
                loss = self._strategy.reduce("SUM", self._step(*args), axis=None)
            losses.append(float(loss))
            checkpoint.rate *= 0.9
        return losses

    def begin(self, path):
        """Train, save, and train on; return the losses of what came after."""
        self.train(2)
        self.checkpoint.write(path, AT_ONCE)
        return self.train(3)

    def go_on(self, path, again):
        """Restore, save the same at once under another name, train on and return the losses."""
        self.checkpoint.read(path).assert_consumed()
        self.checkpoint.write(again, AT_ONCE)
        return self.train(3)

    def close(self):
        """Stop reading ahead."""
        self.checkpoint.iterator.close()
        if self._coordinator is not None:
            self._coordinator.close()
