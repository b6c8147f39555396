"""A Keras model in a loop of one's own."""

import numpy as np
import jaxtribute as jt
import keras
from keras import layers, losses, regularizers

strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
GLOBAL_BATCH_SIZE = 32

rng = np.random.default_rng(0)
images = rng.normal(size=(128, 4, 4, 1)).astype("float32")
labels = (images.sum(axis=(1, 2, 3)) > 0).astype("int32")
dataset = jt.data.Dataset.from_tensor_slices((images, labels)).batch(GLOBAL_BATCH_SIZE)
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
        from_logits=True, reduction="none"
    )

    def compute_loss(labels, predictions, model_losses):
        per_example_loss = loss_object(labels, predictions)
        loss = jt.nn.compute_average_loss(per_example_loss)
        if model_losses:
            loss += jt.nn.scale_regularization_loss(sum(model_losses))
        return loss

    test_loss = keras.metrics.Mean(name="test_loss")
    train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    model = create_model()
    optimizer = keras.optimizers.Adam(0.05)


def train_step(inputs):
    images, labels = inputs

    def loss_fn():
        predictions = model(images, training=True)
        return compute_loss(labels, predictions, model.losses), predictions

    value_and_grad = jt.value_and_grad(loss_fn, model.trainable_variables, has_aux=True)
    (loss, predictions), gradients = value_and_grad()
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_accuracy.update_state(labels, predictions)
    return loss


def test_step(inputs):
    images, labels = inputs
    test_loss.update_state(loss_object(labels, model(images, training=False)))


@jt.function
def distributed_train_step(inputs):
    per_replica_losses = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(jt.ReduceOp.SUM, per_replica_losses, axis=None)


@jt.function
def distributed_test_step(inputs):
    return strategy.run(test_step, args=(inputs,))


for epoch in range(6):
    train_accuracy.reset_state()
    for batch in train_batches:
        loss = distributed_train_step(batch)
for batch in train_batches:
    distributed_test_step(batch)
print(f"accuracy above 0.9: {train_accuracy.result() > 0.9}")
print(f"loss below 0.5: {np.asarray(loss) < 0.5}, {np.asarray(test_loss.result()) < 0.5}")
