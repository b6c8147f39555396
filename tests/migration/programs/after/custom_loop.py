"""A loop of one's own: replicas, a metric, checkpoints, an evaluation."""

import tempfile

import numpy as np
import jax.numpy as jnp
import jaxtribute as jt

strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
GLOBAL_BATCH_SIZE = 8 * strategy.num_replicas_in_sync
LEARNING_RATE = jnp.asarray(0.2, dtype=jnp.float32)


class Linear(jt.Module):
    def __init__(self):
        super().__init__()
        self.w = jt.Variable(jnp.zeros([3, 1]), aggregation=jt.VariableAggregation.MEAN)
        self.b = jt.Variable(jnp.zeros([1]), aggregation=jt.VariableAggregation.MEAN)

    def __call__(self, x):
        return jnp.matmul(x, self.w) + self.b


rng = np.random.default_rng(0)
features = rng.normal(size=(64, 3)).astype(np.float32)
targets = features @ np.float32([[1], [2], [3]]) + 4
dataset = jt.data.Dataset.from_tensor_slices((features, targets)).batch(GLOBAL_BATCH_SIZE)
batches = strategy.experimental_distribute_dataset(dataset)

with strategy.scope():
    model = Linear()
    close = jt.Variable(
        0.0,
        trainable=False,
        synchronization=jt.VariableSynchronization.ON_READ,
        aggregation=jt.VariableAggregation.SUM,
    )
    checkpoint = jt.train.Checkpoint(model=model)

manager = jt.train.CheckpointManager(checkpoint, tempfile.mkdtemp(), max_to_keep=2)


def train_step(x, y):
    def loss_fn():
        predictions = model(x)
        errors = jnp.sum(jnp.square(predictions - y), axis=1)
        loss = jt.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH_SIZE)
        loss += jt.nn.scale_regularization_loss(1e-6 * jnp.sum(model.w**2))
        return loss, predictions

    value_and_grad = jt.value_and_grad(loss_fn, model.trainable_variables, has_aux=True)
    (loss, predictions), gradients = value_and_grad()
    context = jt.get_replica_context()
    gradients = context.all_reduce(jt.ReduceOp.SUM, gradients)
    for variable, gradient in zip(model.trainable_variables, gradients):
        variable.assign_sub(LEARNING_RATE * gradient)
    hits = jnp.asarray(jnp.abs(predictions - y) < 0.5, jnp.float32)
    close.assign_add(jnp.sum(hits))
    return loss


@jt.function
def distributed_train_step(x, y):
    losses = strategy.run(train_step, args=(x, y))
    return strategy.reduce(jt.ReduceOp.SUM, losses, axis=None)


for epoch in range(12):
    close.assign(0.0)
    for x, y in batches:
        loss = distributed_train_step(x, y)
    manager.save()

assert strategy.num_replicas_in_sync == 2
print(f"loss {np.asarray(loss).item():.2f}, close {np.asarray(close).item():.0f} of 64")

model.w.assign(jnp.zeros_like(model.w))
checkpoint.restore(jt.train.latest_checkpoint(manager.directory))
print(f"restored {np.round(np.asarray(model.w).ravel())}")
