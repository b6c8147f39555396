"""`fit` on all workers of a cluster, with backups, and a model that the chief saves."""

import os
import tempfile

import numpy as np
import tensorflow as tf

options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.AUTO
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
per_worker_batch_size = 16
global_batch_size = per_worker_batch_size * strategy.num_replicas_in_sync


def make_dataset():
    x = np.random.default_rng(1).uniform(size=(64, 4)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))
    return dataset.shuffle(64).repeat().batch(global_batch_size).prefetch(tf.data.AUTOTUNE)


with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(
        optimizer=tf.keras.optimizers.legacy.SGD(learning_rate=0.3),
        loss=tf.keras.losses.MeanSquaredError(),
    )

directory = tempfile.mkdtemp()
callbacks = [
    tf.keras.callbacks.experimental.BackupAndRestore(backup_dir=os.path.join(directory, "backup"))
]
history = model.fit(make_dataset(), epochs=4, steps_per_epoch=20, callbacks=callbacks, verbose=0)
print(f"learned: {history.history['loss'][-1] < 0.01}")


def is_chief(task_type, task_id):
    return task_type in (None, "chief") or (task_type == "worker" and task_id == 0)


resolver = strategy.cluster_resolver
own = directory if is_chief(resolver.task_type, resolver.task_id) else tempfile.mkdtemp()
path = os.path.join(own, "digits.keras")
model.save(path)
loaded = tf.keras.models.load_model(path)
print(f"loaded: {np.allclose(loaded.get_weights()[0], model.get_weights()[0])}")
