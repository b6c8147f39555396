"""What TensorFlow and Keras saved goes into variables of every strategy, bit for bit."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorflow as tf
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute.testing import LocalCluster
from tests_integrations.test_tensorflow_checkpoints import VALUE, keras_files  # noqa: F401

Fixed = jt.experimental.partitioners.FixedShardsPartitioner
STRATEGIES = ["one device", "mirrored", "2 shards"]
RNG = np.random.default_rng(0)
W, B = RNG.normal(size=(7, 3)).astype(np.float32), RNG.normal(size=3).astype(np.float32)


@pytest.fixture(scope="module")
def cluster():
    gc.store(object())  # starts the thread of pyzmq that frees what was sent; it stays for ever
    with LocalCluster(workers=1, ps=2) as cluster:
        yield cluster


@pytest.fixture(params=STRATEGIES)
def strategy(request, cluster):
    if request.param == "one device":
        return jt.OneDeviceStrategy("CPU:1")
    if request.param == "mirrored":
        return jt.MirroredStrategy(["CPU:0", "CPU:1"])
    return cluster.strategy(Fixed(2))


class Model(jt.Module):
    def __init__(self):
        super().__init__("model")
        self.w = jt.Variable(jnp.zeros((7, 3)), name="w")
        self.b = jt.Variable(jnp.zeros(3), name="b")


def written(path):
    """Train and save a model with TensorFlow."""
    model = tf.Module()
    model.w, model.b = tf.Variable(W), tf.Variable(B)
    optimizer = tf.compat.v1.train.AdamOptimizer(0.1)
    optimizer.apply_gradients([(tf.ones((7, 3)), model.w), (tf.ones(3), model.b)])
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    saved = checkpoint.save(str(path / "ckpt"))
    return saved, tf.train.load_checkpoint(saved)


def equal(variable, expected):
    np.testing.assert_array_equal(np.asarray(variable.numpy()), expected)


def test_objects_and_the_state_of_an_optimizer_are_restored(strategy, tmp_path):
    path, theirs = written(tmp_path)
    with strategy.scope():
        model, optimizer = Model(), jt.Optimizer(optax.adam(0.1))
        optimizer.build([model.w, model.b])
    checkpoint = jt.train.Checkpoint(model=model, optimizer=optimizer)
    status = checkpoint.restore(path)
    equal(model.w, theirs.get_tensor(f"model/w{VALUE}"))
    equal(model.b, theirs.get_tensor(f"model/b{VALUE}"))
    slots = {variable.name: variable for variable in optimizer.variables}
    for ours, slot in (("mu", "m"), ("nu", "v")):
        for name in ("w", "b"):
            key = f"model/{name}/.OPTIMIZER_SLOT/optimizer/{slot}{VALUE}"
            equal(slots[f"{name}/{ours}"], theirs.get_tensor(key))
    assert checkpoint.save_counter == 1
    # TensorFlow 1 counts in powers of the decay, for which Optax has nothing.
    with pytest.raises(AssertionError, match="optimizer/iterations"):
        status.assert_existing_objects_matched()
    status.expect_partial()


@pytest.mark.parametrize(
    ("name", "transformation"),
    [
        ("Adam", optax.adam(0.01, eps=1e-7)),
        ("Adamax", optax.adamax(0.01, eps=1e-7)),
        ("RMSprop", optax.rmsprop(0.01, decay=0.9, eps=1e-7)),
        ("Adagrad", optax.adagrad(0.01, initial_accumulator_value=0.1, eps=1e-7)),
        ("Adadelta", optax.adadelta(0.01, rho=0.95, eps=1e-7)),
        ("Lion", optax.lion(0.01, weight_decay=0.0)),
    ],
)
def test_the_next_step_is_the_one_keras_makes(name, transformation, keras_files):  # noqa: F811
    directory, expected = keras_files
    kernel, bias = jt.Variable(jnp.zeros((4, 2))), jt.Variable(jnp.zeros(2))
    optimizer = jt.Optimizer(transformation)
    optimizer.build([kernel, bias])
    net = {"dense": {"kernel": kernel, "bias": bias}}
    checkpoint = jt.train.Checkpoint(net=net, optimizer=optimizer)
    checkpoint.read(directory / name).assert_existing_objects_matched().expect_partial()
    assert int(optimizer.iterations) == 2
    optimizer.apply_gradients([(jnp.full((4, 2), 0.5), kernel), (jnp.full(2, 0.5), bias)])
    np.testing.assert_allclose(kernel.numpy(), expected[f"{name}_after"], rtol=1e-6, atol=1e-7)
    assert not np.array_equal(kernel.numpy(), expected[f"{name}_kernel"])


def test_the_next_step_is_the_one_momentum_of_tensorflow_1_makes(tmp_path):
    theirs, gradient = tf.Variable(W), np.full_like(W, 0.5)
    momentum = tf.compat.v1.train.MomentumOptimizer(0.01, 0.9)
    momentum.apply_gradients([(tf.constant(gradient), theirs)])
    path = tf.train.Checkpoint(w=theirs, optimizer=momentum).write(str(tmp_path / "ckpt"))
    momentum.apply_gradients([(tf.constant(gradient), theirs)])

    ours, optimizer = jt.Variable(jnp.zeros((7, 3))), jt.Optimizer(optax.sgd(0.01, 0.9))
    optimizer.build([ours])
    jt.train.Checkpoint(w=ours, optimizer=optimizer).read(path).expect_partial()
    optimizer.apply_gradients([(jnp.asarray(gradient), ours)])
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)


def test_partitioned_variables_of_parameter_servers_are_restored_as_one(strategy, tmp_path):
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "parts"),
        tensor_names=["model/w", "model/w", "model/b"],
        shape_and_slices=["7 3 0,4:-", "7 3 4,3:-", ""],
        tensors=[tf.constant(W[:4]), tf.constant(W[4:]), tf.constant(B)],
    )
    with strategy.scope():
        model = Model()
    jt.train.Checkpoint(model=model).read(tmp_path / "parts").assert_consumed()
    equal(model.w, W)
    equal(model.b, B)


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_files_of_keras_are_restored_by_a_mapping(name, strategy, keras_files):  # noqa: F811
    directory, expected = keras_files
    with strategy.scope():
        w, b = jt.Variable(jnp.zeros((4, 6))), jt.Variable(jnp.zeros(6))
    names = {"model/w": "layers/dense/vars/0", "model/b": "layers/dense/vars/1"}
    status = jt.train.Checkpoint(model={"w": w, "b": b}).read(directory / name, names=names)
    status.assert_existing_objects_matched()
    equal(w, expected["weights_0"])
    equal(b, expected["weights_1"])
    with pytest.raises(AssertionError, match="layers/batch_normalization/vars/0"):
        status.assert_consumed()
    status.expect_partial()


def test_names_that_do_not_fit_are_told_with_all_there_is(keras_files):  # noqa: F811
    directory, _ = keras_files
    v = jt.Variable(jnp.ones((4, 6)))
    checkpoint = jt.train.Checkpoint(w=v)
    path = directory / "model.weights.h5"
    with pytest.raises(
        jt.errors.NotFoundError, match=r"(?s)'w': \.\.\.,  # \(4, 6\).*dense/vars/0'"
    ):
        checkpoint.read(path)
    with pytest.raises(jt.errors.NotFoundError, match=r"'layers/dens/vars/0'"):
        checkpoint.read(path, names={"w": "layers/dens/vars/0"})
    with pytest.raises(jt.errors.InvalidArgumentError, match=r"shape \(6,\)"):
        checkpoint.read(path, names={"w": "layers/dense/vars/1"})
    equal(v, np.ones((4, 6)))


def test_damage_changes_nothing(strategy, tmp_path):
    path, _ = written(tmp_path)
    file = tmp_path / "ckpt-1.data-00000-of-00001"
    data = bytearray(file.read_bytes())
    with strategy.scope():
        model = Model()
    checkpoint = jt.train.Checkpoint(model=model)
    for position in (0, len(data) // 2):
        changed = bytearray(data)
        changed[position] ^= 1
        file.write_bytes(changed)
        with pytest.raises(jt.errors.DataLossError, match=file.name):
            checkpoint.restore(path)
    file.write_bytes(data[:-1])
    with pytest.raises(jt.errors.DataLossError, match=file.name):
        checkpoint.restore(path)
    equal(model.w, np.zeros((7, 3)))
    equal(model.b, np.zeros(3))
    assert checkpoint.save_counter == 0
