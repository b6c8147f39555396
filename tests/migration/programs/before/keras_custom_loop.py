"""A Keras model in a loop of one's own."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers, losses, regularizers

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
GLOBAL_BATCH_SIZE = 32

rng = np.random.default_rng(0)
images = rng.normal(size=(128, 4, 4, 1)).astype("float32")
labels = (images.sum(axis=(1, 2, 3)) > 0).astype("int32")
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(GLOBAL_BATCH_SIZE)
train_batches = strategy.experimental_distribute_dataset(dataset)


def create_model():
    return keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            layers.Flatten(),
            layers.Dense(2, kernel_regularizer=regularizers.L2(1e-5)),
        ]
    )


with strategy.scope():
    loss_object = losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE
    )

    def compute_loss(labels, predictions, model_losses):
        per_example_loss = loss_object(labels, predictions)
        loss = tf.nn.compute_average_loss(per_example_loss)
        if model_losses:
            loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
        return loss

    test_loss = tf.keras.metrics.Mean(name="test_loss")
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    model = create_model()
    optimizer = tf.keras.optimizers.Adam(0.05)


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = compute_loss(labels, predictions, model.losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_accuracy.update_state(labels, predictions)
    return loss


def test_step(inputs):
    images, labels = inputs
    test_loss.update_state(loss_object(labels, model(images, training=False)))


@tf.function
def distributed_train_step(inputs):
    per_replica_losses = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


@tf.function
def distributed_test_step(inputs):
    return strategy.run(test_step, args=(inputs,))


for epoch in range(6):
    train_accuracy.reset_state()
    for batch in train_batches:
        loss = distributed_train_step(batch)
for batch in train_batches:
    distributed_test_step(batch)
print(f"accuracy above 0.9: {train_accuracy.result() > 0.9}")
print(f"loss below 0.5: {loss.numpy() < 0.5}, {test_loss.result().numpy() < 0.5}")
