"""Writes what Keras saves with TensorFlow behind it, to the directory that is given."""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

assert keras.backend.backend() == "tensorflow"
directory = Path(sys.argv[1])
keras.utils.set_random_seed(1)


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)


x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
y = np.ones((8, 2), np.float32)

model = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(6),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(2),
    ]
)
model.compile("adam", "mse")
model.fit(x, y, batch_size=4, verbose=0)
model.save(directory / "model.keras")
model.save_weights(directory / "model.weights.h5")
model.save(directory / "model.h5")
arrays = {f"weights_{i}": w for i, w in enumerate(model.get_weights())}
arrays |= {f"optimizer_{i}": np.asarray(v) for i, v in enumerate(model.optimizer.variables)}

for name in ("Adam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Lion", "SGD", "Nadam"):
    net = Net()
    options = {"momentum": 0.9} if name == "SGD" else {}
    net.compile(getattr(keras.optimizers, name)(0.01, **options), "mse")
    net.fit(x, y, batch_size=4, verbose=0)
    saved = tf.train.Checkpoint(net=net, optimizer=net.optimizer)
    saved.write(str(directory / name))
    arrays[f"{name}_kernel"] = np.asarray(net.dense.kernel)
    for variable in net.optimizer.variables:
        arrays[f"{name}_{variable.name}"] = np.asarray(variable)
    # And what the next step makes of it.
    net.optimizer.apply([tf.fill(v.shape, 0.5) for v in net.trainable_variables])
    arrays[f"{name}_after"] = np.asarray(net.dense.kernel)
np.savez(directory / "expected.npz", **arrays)
