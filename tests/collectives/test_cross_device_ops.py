"""What every way to reduce has in common (rule R81)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt

OPS = {
    "base": jt.CrossDeviceOps,
    "nccl": jt.NcclAllReduce,
    "nccl, no packs": lambda: jt.NcclAllReduce(num_packs=0),
    "nccl, 2 packs": lambda: jt.NcclAllReduce(num_packs=2),
    "hierarchical": jt.HierarchicalCopyAllReduce,
    "hierarchical, no packs": lambda: jt.HierarchicalCopyAllReduce(num_packs=0),
    "one device": jt.ReductionToOneDevice,
    "one named device": lambda: jt.ReductionToOneDevice(reduce_to_device="CPU:1"),
}
every_way = pytest.mark.parametrize("make_ops", OPS.values(), ids=OPS)
STRATEGIES = {d: jt.MirroredStrategy([f"CPU:{i}" for i in range(d)]) for d in (1, 2, 3, 8)}


def values_on(d):
    """Return the per-replica value with i on device i, for d devices."""
    return STRATEGIES[d].experimental_distribute_values_from_function(
        lambda ctx: jnp.float32(ctx.replica_id_in_sync_group)
    )


def floats(value):
    return [float(x) for x in value.values]


@every_way
@pytest.mark.parametrize("d", STRATEGIES)
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_numbers_from_zero(make_ops, d, op):
    ops = make_ops()
    value = values_on(d)
    expected = d * (d - 1) / 2 if op == "SUM" else (d - 1) / 2
    devices = jax.devices("cpu")

    def check(mirrored):
        assert isinstance(mirrored, jt.Mirrored if d > 1 else jax.Array)
        copies = mirrored.values if d > 1 else [mirrored]
        assert [float(x) for x in copies] == [expected] * d
        assert [x.devices() for x in copies] == [{x} for x in devices[:d]]

    check(ops.reduce(op, value, value))
    for i in (0, d - 1, 7):
        single = ops.reduce(op, value, f"/cpu:{i}")
        assert float(single) == expected
        assert single.devices() == {devices[i]}
    first, second = ops.batch_reduce(op, [(value, value), (value, "CPU:0")])
    check(first)
    assert float(second) == expected


@every_way
def test_a_value_made_by_hand(make_ops):
    devices = jax.devices("cpu")[2:4]
    value = jt.PerReplica([jax.device_put(jnp.float32(i), x) for i, x in enumerate(devices)])
    total = make_ops().reduce("SUM", value, value)
    assert floats(total) == [1.0, 1.0]
    assert [x.devices() for x in total.values] == [{x} for x in devices]


@every_way
class TestMore:
    def test_broadcast(self, make_ops):
        value = values_on(3)
        mirrored = make_ops().broadcast(jnp.float32(1.0), value)
        assert floats(mirrored) == [1.0] * 3
        single = make_ops().broadcast(jnp.float32(1.0), "CPU:5")
        assert float(single) == 1.0
        assert single.devices() == {jax.devices("cpu")[5]}

    def test_a_batch_of_values_of_several_shapes(self, make_ops):
        strategy = jt.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], cross_device_ops=make_ops())
        shapes = [(), (3,), (2, 2), (1, 1, 1), (0,), (5,)]
        generator = np.random.default_rng(0)
        arrays = [
            [generator.integers(-9, 9, shape).astype("float32") for shape in shapes]
            for _ in range(3)
        ]
        pairs = [
            (jt.PerReplica([arrays[i][j] for i in range(3)], strategy.topology), "CPU:0")
            for j in range(len(shapes))
        ]
        results = strategy.extended.batch_reduce_to("SUM", pairs)
        for j, result in enumerate(results):
            assert result.tolist() == sum(arrays[i][j] for i in range(3)).tolist()

    def test_values_of_several_types_at_once(self, make_ops):
        strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=make_ops())

        @jt.function
        def step():
            i = jt.get_replica_context().replica_id_in_sync_group + 1
            tree = {name: jnp.full((2,), i, name) for name in ("int32", "float32", "bfloat16")}
            return jt.get_replica_context().all_reduce("SUM", tree)

        for local in strategy.experimental_local_results(strategy.run(step)):
            for name, total in local.items():
                assert total.dtype == jnp.dtype(name)
                assert total.astype("float32").tolist() == [3.0, 3.0]

    def test_the_value_is_not_changed(self, make_ops):
        value = values_on(2)
        make_ops().reduce("SUM", value, value)
        assert floats(value) == [0.0, 1.0]

    def test_a_mirrored_value_is_its_own_mean(self, make_ops):
        ops = make_ops()
        mirrored = ops.reduce("SUM", values_on(2), values_on(2))
        assert float(ops.reduce("MEAN", mirrored, "CPU:0")) == 1.0
        with pytest.raises(AssertionError, match="same on all replicas"):
            ops.reduce("SUM", mirrored, "CPU:0")

    def test_a_list_of_destinations_is_refused(self, make_ops):
        with pytest.raises(AssertionError, match="destinations must be one"):
            make_ops().reduce("SUM", values_on(2), ["CPU:0", "CPU:1"])

    @pytest.mark.parametrize("destinations", [None, "", 5], ids=repr)
    def test_other_destinations_are_refused(self, make_ops, destinations):
        with pytest.raises(ValueError, match="destinations must be"):
            make_ops().reduce("SUM", values_on(2), destinations)

    @pytest.mark.parametrize("pairs", [[1], [("x",)], [(1, 2, 3)]], ids=repr)
    def test_what_is_no_pair_is_refused(self, make_ops, pairs):
        with pytest.raises(ValueError, match=r"\(value, destination\) tuples"):
            make_ops().batch_reduce("SUM", pairs)

    def test_nothing_to_batch_reduce_gives_nothing(self, make_ops):
        assert make_ops().batch_reduce("SUM", []) == []

    @pytest.mark.parametrize("value", [1.0, jnp.ones(2), None], ids=repr)
    def test_a_value_without_components_is_refused(self, make_ops, value):
        with pytest.raises(ValueError, match="component for each replica"):
            make_ops().reduce("SUM", value, "CPU:0")

    def test_an_unknown_op_is_refused(self, make_ops):
        with pytest.raises(ValueError, match="Unknown reduce op"):
            make_ops().reduce("MAX", values_on(2), "CPU:0")

    def test_shapes_that_differ_are_refused(self, make_ops):
        value = jt.PerReplica([jnp.ones(2), jnp.ones(3)])
        with pytest.raises(ValueError, match="differ in shape"):
            make_ops().reduce("SUM", value, "CPU:0")

    def test_one_object_may_serve_several_strategies(self, make_ops):
        ops = make_ops()
        for names in (["CPU:0", "CPU:1"], ["CPU:2", "CPU:3", "CPU:4"]):
            strategy = jt.MirroredStrategy(names, cross_device_ops=ops)
            total = strategy.run(lambda: jt.get_replica_context().all_reduce("SUM", jnp.ones(())))
            assert floats(total) == [float(len(names))] * len(names)
