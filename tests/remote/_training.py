"""A small program that trains, under any strategy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jt


def run(coordinator, fn, *args):
    """Run a function on a worker, and return its result once all is done."""
    value = coordinator.schedule(fn, args=args).fetch()
    coordinator.join()
    return value


class Model(jt.Module):
    def __init__(self):
        super().__init__("model")
        rng = np.random.default_rng(0)
        self.w = jt.Variable(rng.normal(size=(5, 3)).astype(np.float32), name="w")
        self.b = jt.Variable(np.zeros(3, np.float32), name="b")
        self.out = jt.Variable(rng.normal(size=(3, 1)).astype(np.float32), name="out")

    def __call__(self, x):
        return jnp.tanh(x @ jnp.asarray(self.w) + jnp.asarray(self.b)) @ jnp.asarray(self.out)

    @property
    def logical(self):
        return [self.w, self.b, self.out]


class Training:
    """A small program under a strategy."""

    def __init__(self, strategy, transformation, inner_steps=1):
        self.strategy = strategy
        with strategy.scope():
            self.model = Model()
            self.optimizer = jt.Optimizer(transformation)
            self.loss = jt.metrics.Mean("loss")
            self.error = jt.metrics.Sum("error")

        model, optimizer, losses, error = self.model, self.optimizer, self.loss, self.error

        def replica_step(x, y):
            loss, gradients = jt.value_and_grad(
                lambda: jnp.mean((model(x) - y) ** 2), model.logical
            )()
            optimizer.apply_gradients(zip(gradients, model.logical, strict=True))
            losses.update_state(loss)
            error.update_state(jnp.abs(y - model(x)))
            return loss

        def step(x, y):
            for _ in range(inner_steps):
                loss = strategy.run(replica_step, args=(x, y))
            return strategy.reduce("MEAN", loss, axis=None)

        self.step = step

    def state(self):
        variables = [*self.model.logical, *self.optimizer.variables]
        return [np.asarray(v.numpy()) for v in variables]

    def results(self):
        return [float(self.loss.result()), float(self.error.result())]


def batches(count=6):
    rng = np.random.default_rng(1)
    for _ in range(count):
        x = rng.normal(size=(8, 5)).astype(np.float32)
        yield x, (x[:, :1] * 2 - x[:, 1:2]).astype(np.float32)


OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "nesterov": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(0.05),
    "adamw": lambda: optax.adamw(0.05, weight_decay=0.1),
    "adagrad": lambda: optax.adagrad(0.1),
    "rmsprop": lambda: optax.rmsprop(0.01),
    "clipped": lambda: optax.chain(optax.clip(0.1), optax.adam(0.05)),
    "scheduled": lambda: optax.adam(optax.exponential_decay(0.1, 2, 0.5)),
    "labelled": lambda: optax.multi_transform(
        {"a": optax.adam(0.05), "b": optax.sgd(0.1, momentum=0.9)}, ["a", "b", "a"]
    ),
    "masked": lambda: optax.adamw(0.05, weight_decay=0.5, mask=[True, False, True]),
    "masked by shape": lambda: optax.masked(
        optax.adam(0.05), lambda values: jax.tree.map(lambda value: value.ndim == 2, values)
    ),
}
