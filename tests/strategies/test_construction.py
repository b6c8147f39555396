"""Which devices a strategy takes (rules R18-R20, R27)."""

import logging

import jax
import jax.numpy as jnp
import pytest

import jaxtribute as jt
from tests.strategies._values import device_of, parts, per_replica

LOCAL = "/job:localhost/replica:0/task:0/device:"


class TestDevices:
    def test_without_accelerators_all_cpu_devices_are_taken(self):
        strategy = jt.MirroredStrategy()
        assert strategy.num_replicas_in_sync == 8
        assert strategy.extended.worker_devices == tuple(f"{LOCAL}CPU:{i}" for i in range(8))

    @pytest.mark.parametrize(
        "devices",
        [
            ["CPU:0", "CPU:1"],
            ["/cpu:0", "/CPU:1"],
            ("/device:CPU:0", "device:cpu:1"),
            [f"{LOCAL}CPU:0", f"{LOCAL}CPU:1"],
        ],
        ids=str,
    )
    def test_every_form_of_a_name_is_taken(self, devices):
        strategy = jt.MirroredStrategy(devices)
        assert strategy.extended.worker_devices == (f"{LOCAL}CPU:0", f"{LOCAL}CPU:1")

    def test_jax_devices_are_taken(self):
        cpus = jax.devices("cpu")
        strategy = jt.MirroredStrategy([cpus[3], "CPU:1", cpus[2]])
        assert strategy.extended.worker_devices == (
            f"{LOCAL}CPU:3",
            f"{LOCAL}CPU:1",
            f"{LOCAL}CPU:2",
        )

    def test_the_order_given_is_kept(self):
        strategy = jt.MirroredStrategy(["CPU:2", "CPU:0"])
        assert strategy.extended.worker_devices == (f"{LOCAL}CPU:2", f"{LOCAL}CPU:0")
        assert strategy.extended.parameter_devices == strategy.extended.worker_devices

    def test_replica_i_runs_on_device_i(self):
        strategy = jt.MirroredStrategy(["CPU:2", "CPU:0"])
        made = strategy.run(lambda: jnp.ones(()))
        cpus = jax.devices("cpu")
        assert [device_of(x) for x in made.values] == [cpus[2], cpus[0]]

    def test_a_compiled_replica_i_runs_on_device_i(self):
        strategy = jt.MirroredStrategy(["CPU:2", "CPU:0"])
        ids = strategy.run(
            jt.function(lambda: jt.get_replica_context().replica_id_in_sync_group + 0)
        )
        cpus = jax.devices("cpu")
        assert [device_of(x) for x in ids.values] == [cpus[2], cpus[0]]
        assert parts(strategy, ids) == [0, 1]

    def test_variables_live_on_the_devices_in_that_order(self):
        strategy = jt.MirroredStrategy(["CPU:2", "CPU:0"])
        with strategy.scope():
            v = jt.Variable(1.0)
        assert [c.device for c in v.values] == [f"{LOCAL}CPU:2", f"{LOCAL}CPU:0"]
        assert [device_of(c.value()) for c in v.values] == [
            jax.devices("cpu")[2],
            jax.devices("cpu")[0],
        ]

    def test_there_is_no_cluster_resolver(self, two):
        assert two.cluster_resolver is None

    def test_a_strategy_cannot_be_told_to_have_other_devices(self, two):
        with pytest.raises(AttributeError):
            two.num_replicas_in_sync = 3


class TestRefused:
    @pytest.mark.parametrize(
        "devices",
        [
            ["CPU:0", "CPU:0"],
            ["CPU:0", "/cpu:0"],
            ["CPU:1", "CPU:0", f"{LOCAL}CPU:1"],
        ],
        ids=str,
    )
    def test_a_device_named_twice(self, devices):
        with pytest.raises(AssertionError, match="No duplicates"):
            jt.MirroredStrategy(devices)

    def test_a_device_given_twice(self):
        device = jax.devices("cpu")[0]
        with pytest.raises(AssertionError, match="No duplicates"):
            jt.MirroredStrategy([device, "CPU:0"])

    def test_devices_of_several_workers(self):
        with pytest.raises(RuntimeError, match="another task"):
            jt.MirroredStrategy(
                ["/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0"]
            )

    @pytest.mark.parametrize("devices", ["CPU:0", [], ()], ids=repr)
    def test_what_is_no_list_of_devices(self, devices):
        with pytest.raises(ValueError, match="devices must be a list"):
            jt.MirroredStrategy(devices)

    @pytest.mark.parametrize("devices", [[0, 1], [None], [["CPU:0"]]], ids=repr)
    def test_what_is_no_device(self, devices):
        with pytest.raises(ValueError, match=r"jax.Device or a name"):
            jt.MirroredStrategy(devices)

    def test_a_wrong_name(self):
        with pytest.raises(ValueError, match="'warp:0' is not a device name"):
            jt.MirroredStrategy(["CPU:0", "warp:0"])

    def test_a_device_that_does_not_exist(self):
        with pytest.raises(ValueError, match="no device") as raised:
            jt.MirroredStrategy(["CPU:0", "CPU:64"])
        assert "set_logical_cpu_devices(65)" in str(raised.value)

    def test_cross_device_ops_of_another_kind(self):
        with pytest.raises(ValueError, match="cross_device_ops must be"):
            jt.MirroredStrategy(["CPU:0"], cross_device_ops="nccl")

    @pytest.mark.parametrize("device", ["nowhere", "GPU:0", "CPU:64", 0, None], ids=repr)
    def test_one_device_that_does_not_exist(self, device):
        with pytest.raises(ValueError, match=r"device"):
            jt.OneDeviceStrategy(device)


class TestTfConfig:
    def test_is_ignored_and_that_is_logged(self, monkeypatch, caplog):
        monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
        with caplog.at_level(logging.INFO, logger="jaxtribute"):
            strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        assert strategy.num_replicas_in_sync == 2
        assert strategy.cluster_resolver is None
        assert any("TF_CONFIG" in record.getMessage() for record in caplog.records)


OPS = [
    jt.NcclAllReduce,
    lambda: jt.NcclAllReduce(num_packs=0),
    jt.HierarchicalCopyAllReduce,
    jt.ReductionToOneDevice,
    jt.CrossDeviceOps,
]


class TestAlgorithm:
    """R20: the result does not depend on the way it is made."""

    @pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16", "complex64"])
    @pytest.mark.parametrize("make_ops", OPS, ids=["nccl", "nccl0", "hierarchical", "one", "base"])
    def test_the_sum_is_the_same(self, make_ops, dtype, way):
        strategy = jt.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], cross_device_ops=make_ops())
        values = per_replica(strategy, *[jnp.array([i, 10 * i], dtype=dtype) for i in range(1, 4)])
        total = strategy.run(
            way(lambda x: jt.get_replica_context().all_reduce("SUM", x)), args=(values,)
        )
        assert [x.dtype for x in total.values] == [jnp.dtype(dtype)] * 3
        assert [x.astype("complex64").tolist() for x in total.values] == [[6, 60]] * 3
        reduced = strategy.reduce("SUM", values, axis=None)
        assert reduced.dtype == jnp.dtype(dtype)
        assert reduced.astype("complex64").tolist() == [6, 60]

    @pytest.mark.parametrize("make_ops", OPS, ids=["nccl", "nccl0", "hierarchical", "one", "base"])
    def test_the_mean_of_whole_numbers_is_not_truncated(self, make_ops):
        strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=make_ops())
        values = per_replica(strategy, jnp.array([0, 3]), jnp.array([1, 8]))
        assert strategy.reduce("MEAN", values, axis=None).tolist() == [0.5, 5.5]

    @pytest.mark.parametrize("kind", [jt.NcclAllReduce, jt.HierarchicalCopyAllReduce])
    def test_the_number_of_packs_may_be_zero_but_not_negative(self, kind):
        with pytest.raises(ValueError, match="num_packs"):
            kind(num_packs=-1)
        assert repr(kind(num_packs=0)) == f"{kind.__name__}(num_packs=0)"

    def test_reduction_to_a_device_that_does_not_exist_is_refused(self):
        with pytest.raises(ValueError, match="device"):
            jt.ReductionToOneDevice(reduce_to_device="nowhere")


class TestTpu:
    def test_without_tpus_says_what_there_is(self):
        with pytest.raises(RuntimeError, match="needs TPUs") as raised:
            jt.TPUStrategy()
        assert "CPU" in str(raised.value)
        assert "jt.MirroredStrategy" in str(raised.value)

    @pytest.fixture
    def cpu_tpu(self, monkeypatch):
        monkeypatch.setattr(jt.TPUStrategy, "_platform", "cpu")

    def test_takes_all_cores(self, cpu_tpu):
        assert jt.TPUStrategy().num_replicas_in_sync == 8

    @pytest.mark.parametrize(
        ("strategy", "argument"),
        [
            (jt.TPUStrategy, "experimental_device_assignment"),
            (jt.experimental.TPUStrategy, "device_assignment"),
        ],
        ids=["TPUStrategy", "experimental.TPUStrategy"],
    )
    def test_takes_the_cores_it_is_given(self, cpu_tpu, strategy, argument):
        strategy = strategy(**{argument: ["CPU:1", "CPU:3"]})
        assert strategy.extended.worker_devices == (f"{LOCAL}CPU:1", f"{LOCAL}CPU:3")

    def test_keeps_its_resolver(self, cpu_tpu):
        resolver = object()
        assert jt.TPUStrategy(resolver).cluster_resolver is resolver

    def test_trains(self, cpu_tpu):
        strategy = jt.TPUStrategy(experimental_device_assignment=["CPU:1", "CPU:3"])
        with strategy.scope():
            v = jt.Variable(1.0, aggregation=jt.VariableAggregation.MEAN)

        @jt.function
        def step():
            return v.assign_add(1.0 + jt.get_replica_context().replica_id_in_sync_group)

        strategy.run(step)
        assert float(v) == 2.5

    def test_refuses_devices_of_another_kind(self, monkeypatch):
        monkeypatch.setattr(
            "jaxtribute._devices.all_local_devices", lambda: [FakeTpu(), *jax.devices("cpu")]
        )
        with pytest.raises(ValueError, match="are not TPU devices"):
            jt.TPUStrategy(experimental_device_assignment=["CPU:0"])


class FakeTpu:
    platform = "tpu"
