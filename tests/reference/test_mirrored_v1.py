"""The opening of document 003, on `MirroredStrategy` itself."""

import re

import jax
import pytest

import jaxtribute as jt

PRINTED = re.compile(
    r"MirroredVariable:\{\n"
    r"  0: <jt\.Variable .* shape=\(\) dtype=float32, numpy=1\.0>,\n"
    r"  1: <jt\.Variable .* shape=\(\) dtype=float32, numpy=1\.0>\n"
    r"\}"
)


def test_a_variable_created_under_a_mirrored_strategy():
    """003, opening: "a variable created under a `MirroredStrategy` is a `MirroredVariable`"."""
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
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
