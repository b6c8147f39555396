"""Document 003: the opening, on `MirroredStrategy` itself, and what only version 1 has."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt

PRINTED = re.compile(
    r"MirroredVariable:\{\n"
    r"  0: <jt\.Variable .* shape=\(\) dtype=float32, numpy=1\.0>,\n"
    r"  1: <jt\.Variable .* shape=\(\) dtype=float32, numpy=1\.0>\n"
    r"\}"
)


@pytest.mark.parametrize("module", [jt, jt.compat.v1.distribute], ids=["jt", "jt.compat.v1"])
def test_a_variable_created_under_a_mirrored_strategy(module):
    """003, opening: "a variable created under a `MirroredStrategy` is a `MirroredVariable`"."""
    strategy = module.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        x = jt.Variable(1.0)
    assert PRINTED.fullmatch(repr(x))


def test_a_variable_created_inside_a_function():
    """003, opening: "wrapped with a `tf.function` are still `MirroredVariables`"."""
    x = []

    @jt.function
    def create_variable():
        if not x:
            x.append(jt.Variable(1.0))
        return x[0]

    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        _ = create_variable()
        assert PRINTED.fullmatch(str(x[0]))
    assert len(x) == 1


def test_without_devices_all_are_used():
    """003, opening and Args, `devices`: "If no GPUs are found, it will use the available CPUs"."""
    strategy = jt.MirroredStrategy()
    assert strategy.num_replicas_in_sync == len(jax.devices("cpu"))


@pytest.mark.parametrize(
    "devices",
    [
        ["/cpu:0", "/cpu:1"],
        ["CPU:0", "CPU:1"],
        ["cpu:0", "cpu:1"],
        [
            "/job:localhost/replica:0/task:0/device:CPU:0",
            "/job:localhost/replica:0/task:0/device:CPU:1",
        ],
    ],
    ids=lambda devices: devices[0],
)
def test_devices_are_a_list_of_device_strings(devices):
    """003, Args, `devices`: "a list of device strings such as `['/gpu:0', '/gpu:1']`"."""
    assert jt.MirroredStrategy(devices).extended.worker_devices == (
        "/job:localhost/replica:0/task:0/device:CPU:0",
        "/job:localhost/replica:0/task:0/device:CPU:1",
    )


def test_nccl_all_reduce_is_used_by_default():
    """003, Args, `cross_device_ops`: "`NcclAllReduce()` will be used by default"."""
    devices = ["CPU:0", "CPU:1"]
    assert isinstance(jt.MirroredStrategy(devices).cross_device_ops, jt.NcclAllReduce)
    other = jt.ReductionToOneDevice()
    assert jt.MirroredStrategy(devices, cross_device_ops=other).cross_device_ops is other


def test_a_single_worker_strategy_has_no_cluster_resolver():
    """003, Attributes, `cluster_resolver`: "this property will return `None`"."""
    assert jt.MirroredStrategy(["CPU:0", "CPU:1"]).cluster_resolver is None
    assert jt.OneDeviceStrategy("CPU:0").cluster_resolver is None


def test_the_attributes():
    """003, Attributes, `extended` and `num_replicas_in_sync`."""
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    assert isinstance(strategy.extended, jt.StrategyExtended)
    assert strategy.num_replicas_in_sync == 2


# --- What only version 1 has -----------------------------------------------------------------


@pytest.fixture
def strategy():
    return jt.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def parts(strategy, value):
    return [np.asarray(part).tolist() for part in strategy.experimental_local_results(value)]


def test_a_numpy_dataset_is_distributed_afterwards(strategy):
    """003, `experimental_make_numpy_dataset`, the example."""
    numpy_input = np.ones([10], dtype=np.float32)
    dataset = strategy.experimental_make_numpy_dataset(numpy_input)
    dist_dataset = strategy.experimental_distribute_dataset(dataset.batch(10))
    (batch,) = dist_dataset
    assert parts(strategy, batch) == [[1.0] * 5] * 2


def test_an_input_function_is_run_in_the_scope(strategy):
    """003, `make_input_fn_iterator`, the example: the iterator is used as it is."""
    global_batch_size = 4

    def input_fn(input_context):
        batch_size = input_context.get_per_replica_batch_size(global_batch_size)
        d = jt.data.Dataset.from_tensors([[1.0]]).repeat().batch(batch_size)
        return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

    with strategy.scope():
        iterator = strategy.make_input_fn_iterator(input_fn)
        replica_results = strategy.experimental_run(jnp.sum, iterator)
    assert parts(strategy, replica_results) == [2.0, 2.0]


def test_values_of_an_iterator_go_to_call_for_each_replica(strategy):
    """003, `make_input_fn_iterator`, Returns: `get_next` for `call_for_each_replica`."""
    iterator = strategy.make_input_fn_iterator(lambda context: jt.data.Dataset.range(4).batch(2))
    iterator.initialize()
    results = strategy.extended.call_for_each_replica(jnp.sum, args=(iterator.get_next(),))
    assert parts(strategy, results) == [1, 5]


def test_a_batch_that_cannot_be_divided_is_an_error(strategy):
    """003, `make_dataset_iterator`: an error is thrown, and what to use instead."""
    with pytest.raises(ValueError, match="make_input_fn_iterator"):
        strategy.make_dataset_iterator(jt.data.Dataset.range(9).batch(3))


def test_reduce_needs_no_axis(strategy):
    """003, `reduce`, its signature and the example."""
    ids = strategy.run(lambda: jt.get_replica_context().replica_id_in_sync_group)
    assert strategy.reduce("SUM", ids) == 1


def test_the_config_is_a_copy(strategy):
    """003, `update_config_proto`: what is given stays as it is."""
    config = jt.compat.v1.ConfigProto()
    assert strategy.update_config_proto(config) is not config
