"""Files that Keras wrote with TensorFlow behind it load into models of every strategy."""

import keras
import numpy as np
import pytest
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute.testing import LocalCluster
from tests_integrations.test_tensorflow_checkpoints import keras_files  # noqa: F401

Fixed = jt.experimental.partitioners.FixedShardsPartitioner


@pytest.fixture(scope="module")
def cluster():
    gc.store(object())  # starts the thread of pyzmq that frees what was sent; it stays for ever
    with LocalCluster(workers=1, ps=2) as cluster:
        yield cluster


@pytest.fixture(params=["one device", "mirrored", "2 shards"])
def scope(request, cluster):
    if request.param == "one device":
        return jt.OneDeviceStrategy("CPU:1").scope
    if request.param == "mirrored":
        return jt.MirroredStrategy(["CPU:0", "CPU:1"]).scope
    return cluster.strategy(Fixed(2)).scope


def assert_same(model, expected):
    for number, weight in enumerate(model.get_weights()):
        np.testing.assert_array_equal(weight, expected[f"weights_{number}"])
    for number, variable in enumerate(model.optimizer.variables):
        np.testing.assert_array_equal(np.asarray(variable), expected[f"optimizer_{number}"])


def test_weights_and_optimizer_are_loaded(scope, keras_files):  # noqa: F811
    directory, expected = keras_files
    layers = keras.layers
    with scope():
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6), layers.BatchNormalization(), layers.Dense(2)]
        )
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        model.load_weights(directory / "model.weights.h5")
    assert_same(model, expected)


def test_whole_models_are_loaded(scope, keras_files):  # noqa: F811
    directory, expected = keras_files
    with scope():
        model = keras.saving.load_model(directory / "model.keras")
    assert_same(model, expected)
