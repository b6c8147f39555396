"""A loop of one's own: replicas, a metric, checkpoints, an evaluation."""

import tempfile

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
GLOBAL_BATCH_SIZE = 8 * strategy.num_replicas_in_sync
LEARNING_RATE = tf.constant(0.2, dtype=tf.float32)


class Linear(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.zeros([3, 1]), aggregation=tf.VariableAggregation.MEAN)
        self.b = tf.Variable(tf.zeros([1]), aggregation=tf.VariableAggregation.MEAN)

    def __call__(self, x):
        return tf.matmul(x, self.w) + self.b


rng = np.random.default_rng(0)
features = rng.normal(size=(64, 3)).astype(np.float32)
targets = features @ np.float32([[1], [2], [3]]) + 4
dataset = tf.data.Dataset.from_tensor_slices((features, targets)).batch(GLOBAL_BATCH_SIZE)
batches = strategy.experimental_distribute_dataset(dataset)

with strategy.scope():
    model = Linear()
    close = tf.Variable(
        0.0,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )
    checkpoint = tf.train.Checkpoint(model=model)

manager = tf.train.CheckpointManager(checkpoint, tempfile.mkdtemp(), max_to_keep=2)


def train_step(x, y):
    with tf.GradientTape() as tape:
        predictions = model(x)
        errors = tf.reduce_sum(tf.square(predictions - y), axis=1)
        loss = tf.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH_SIZE)
        loss += tf.nn.scale_regularization_loss(1e-6 * tf.reduce_sum(model.w**2))
    gradients = tape.gradient(loss, model.trainable_variables)
    context = tf.distribute.get_replica_context()
    gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
    for variable, gradient in zip(model.trainable_variables, gradients):
        variable.assign_sub(LEARNING_RATE * gradient)
    hits = tf.cast(tf.abs(predictions - y) < 0.5, tf.float32)
    close.assign_add(tf.reduce_sum(hits))
    return loss


@tf.function(jit_compile=True)
def distributed_train_step(x, y):
    losses = strategy.run(train_step, args=(x, y))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


for epoch in range(12):
    close.assign(0.0)
    for x, y in batches:
        loss = distributed_train_step(x, y)
    manager.save()

assert strategy.num_replicas_in_sync == 2
print(f"loss {loss.numpy():.2f}, close {close.numpy():.0f} of 64")

model.w.assign(tf.zeros_like(model.w))
checkpoint.restore(tf.train.latest_checkpoint(manager.directory))
print(f"restored {np.round(model.w.numpy().ravel())}")
