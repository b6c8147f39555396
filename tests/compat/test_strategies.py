"""Strategies of `tf.compat.v1`: what they are, and what they tell."""

import warnings

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from tests.conformance._strategies import _TPUStrategyOnCPUs
from tests.processes._workers import Cluster

v1 = jt.compat.v1

CALLS = {
    "experimental_run": (
        lambda strategy: strategy.experimental_run(lambda: 1),
        r"strategy\.run\(fn, args=",
    ),
    "make_dataset_iterator": (
        lambda strategy: strategy.make_dataset_iterator(jt.data.Dataset.range(2).batch(2)),
        "experimental_distribute_dataset",
    ),
    "make_input_fn_iterator": (
        lambda strategy: strategy.make_input_fn_iterator(
            lambda context: jt.data.Dataset.range(2).batch(1)
        ),
        "distribute_datasets_from_function",
    ),
    "update_config_proto": (
        lambda strategy: strategy.update_config_proto(v1.ConfigProto()),
        "leave it out",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_deprecation_is_told_once_and_names_the_successor(strategy, nothing_told, name):
    call, successor = CALLS[name]
    with pytest.warns(DeprecationWarning, match=f"{name} is deprecated.*{successor}") as told:
        call(strategy)
    assert told[0].filename == __file__  # where it was called
    other = v1.distribute.OneDeviceStrategy("CPU:0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(strategy)
        call(other)


def test_what_is_not_deprecated_tells_nothing(strategy, nothing_told):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = strategy.run(lambda: jnp.ones(()))
        strategy.reduce("SUM", value)
        strategy.experimental_make_numpy_dataset(np.arange(2))


def test_numpy_datasets(strategy):
    """A list of arrays is stacked, and a tuple stays one."""
    make = strategy.experimental_make_numpy_dataset
    stacked = make([np.arange(2), 10 * np.arange(2)], session=None)
    assert [element.tolist() for element in stacked] == [[0, 1], [0, 10]]
    assert [(int(x), int(y)) for x, y in make((np.arange(2), 10 * np.arange(2)))] == [
        (0, 0),
        (1, 10),
    ]


def test_training_as_in_programs_for_the_old_api(strategy):
    with strategy.scope():
        w = jt.Variable(jnp.zeros(3))
        optimizer = jt.Optimizer(optax.sgd(0.1))
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    y = x @ np.float32([1, 2, 3])
    dataset = strategy.experimental_make_numpy_dataset((x, y)).batch(16)
    iterator = strategy.make_dataset_iterator(dataset)

    def step(batch):
        x, y = batch
        loss, gradient = jt.value_and_grad(
            lambda: jt.nn.compute_average_loss((x @ w - y) ** 2), [w]
        )()
        optimizer.apply_gradients(zip(gradient, [w], strict=True))
        return loss

    train = jt.function(lambda: strategy.reduce("SUM", strategy.experimental_run(step, iterator)))
    for _ in range(12):
        iterator.initialize()
        for _ in range(4):
            train()
    np.testing.assert_allclose(w.numpy(), [1, 2, 3], atol=0.05)


# --- update_config_proto ---------------------------------------------------------------------


def test_the_config_is_copied(strategy):
    config = v1.ConfigProto(
        intra_op_parallelism_threads=2, inter_op_parallelism_threads=3, device_filters=["/job:ps"]
    )
    updated = strategy.update_config_proto(config)
    assert updated == v1.ConfigProto(2, 3, ["/job:ps"], isolate_session_state=True)
    updated.device_filters.append("/job:worker")
    updated.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
    assert config == v1.ConfigProto(2, 3, ["/job:ps"])


def test_one_device_has_nothing_to_say():
    config = v1.ConfigProto(intra_op_parallelism_threads=2)
    updated = v1.distribute.OneDeviceStrategy("CPU:0").update_config_proto(config)
    assert updated == config
    assert updated is not config


def test_only_a_config_can_be_updated(strategy):
    with pytest.raises(TypeError, match=r"takes a jt\.compat\.v1\.ConfigProto, got {'threads': 2}"):
        strategy.update_config_proto({"threads": 2})


# --- The others ------------------------------------------------------------------------------


def test_other_names_are_those_of_the_library():
    own = {"InputIterator", "MirroredStrategy", "OneDeviceStrategy", "Strategy"}
    own |= {"cluster_resolver", "experimental", "get_loss_reduction"}
    for name in set(v1.distribute.__all__) - own:
        assert getattr(v1.distribute, name) is getattr(jt, name)
    assert v1.distribute.get_loss_reduction() is jt.ReduceOp.SUM
    assert v1.distribute.cluster_resolver.__all__ == jt.cluster_resolver.__all__
    for name in jt.cluster_resolver.__all__:
        assert getattr(v1.distribute.cluster_resolver, name) is getattr(jt.cluster_resolver, name)


def test_they_are_strategies_of_the_library(strategy):
    assert isinstance(strategy, jt.MirroredStrategy)
    assert isinstance(strategy, v1.distribute.Strategy)
    with strategy.scope():
        assert v1.distribute.get_strategy() is strategy
        assert v1.distribute.in_cross_replica_context()


def test_tpu_devices_are_chosen_by_the_third_argument():
    class OnCPUs(v1.distribute.experimental.TPUStrategy, _TPUStrategyOnCPUs):
        """The logic, on devices that every machine has."""

    strategy = OnCPUs("a resolver", 100, ["CPU:1", "CPU:2"])
    assert strategy.num_replicas_in_sync == 2
    assert strategy.cluster_resolver == "a resolver"
    assert strategy.update_config_proto(v1.ConfigProto()).isolate_session_state


@pytest.mark.processes
def test_two_workers(tmp_path):
    script = """
    import warnings

    warnings.simplefilter("ignore", DeprecationWarning)
    strategy = jt.compat.v1.distribute.experimental.MultiWorkerMirroredStrategy()
    iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(8).batch(4))
    sums = []
    for _ in range(2):
        iterator.initialize()
        for _ in range(2):
            sums.append(int(strategy.reduce("SUM", strategy.experimental_run(jnp.sum, iterator))))
    config = strategy.update_config_proto(jt.compat.v1.ConfigProto())
    leader = config.experimental.collective_group_leader
    say("done", sums=sums, filters=config.device_filters, leader=leader)
    """
    with Cluster(tmp_path, workers=2) as cluster:
        cluster.start(script)
        for index, done in enumerate(cluster.until_all("done")):
            assert done["sums"] == [6, 22, 6, 22]
            assert done["filters"] == [f"/job:worker/task:{index}"]
            assert done["leader"] == "/job:worker/replica:0/task:0"
