"""Each way to reduce really takes its own way."""

import functools
import operator
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt


def strategy_with(ops, devices=4):
    return jt.MirroredStrategy([f"CPU:{i}" for i in range(devices)], cross_device_ops=ops)


def all_reduce_step(strategy, op="SUM"):
    """Return a function of arrays: what each replica gets when they are all-reduced."""

    def step(*values):
        results = strategy.run(
            lambda *rows: jt.get_replica_context().all_reduce(op, rows), args=values
        )
        # Stacked, as they are: taking them apart would need further collectives.
        return [result.stacked(strategy.topology) for result in results]

    return step


def primitives(jaxpr):
    """Return the names of the primitives of a jaxpr, those of its inner ones included."""
    names = []
    for equation in jaxpr.eqns:
        names.append(equation.primitive.name)
        for parameter in equation.params.values():
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                names += primitives(inner)
    return names


def collectives_traced(strategy, number_of_values=1, op="SUM"):
    values = [jnp.ones(3) * i for i in range(number_of_values)]
    jaxpr = jax.make_jaxpr(all_reduce_step(strategy, op))(*values)
    known = ("psum", "all_gather", "ppermute", "all_to_all", "psum_scatter", "reduce_scatter")
    return [name for name in primitives(jaxpr.jaxpr) if name.startswith(known)]


def collectives_compiled(strategy, number_of_values=1):
    """Count the collectives in the program that XLA runs."""
    shapes = [(3 + i,) for i in range(number_of_values)]
    step = all_reduce_step(strategy)
    text = jax.jit(step).lower(*[jnp.ones(shape) for shape in shapes]).compile().as_text()
    found = re.findall(r"= .*? (all-reduce|all-gather|collective-permute)(?:-start)?\(", text)
    return sorted(set(found)), len(found)


class TestWays:
    def test_nccl_uses_xlas_all_reduce(self):
        strategy = strategy_with(jt.NcclAllReduce())
        assert set(collectives_traced(strategy)) == {"psum"}
        assert collectives_compiled(strategy)[0] == ["all-reduce"]

    def test_so_does_the_default(self):
        strategy = jt.MirroredStrategy([f"CPU:{i}" for i in range(4)])
        assert isinstance(strategy.cross_device_ops, jt.NcclAllReduce)
        assert set(collectives_traced(strategy)) == {"psum"}

    def test_hierarchical_copies_from_device_to_device(self):
        strategy = strategy_with(jt.HierarchicalCopyAllReduce())
        assert set(collectives_traced(strategy)) == {"ppermute"}
        assert collectives_compiled(strategy)[0] == ["collective-permute"]

    def test_hierarchical_copies_in_two_levels(self):
        # 8 devices: groups of 4 (3 rounds), then 2 groups (1 round), and back again.
        strategy = strategy_with(jt.HierarchicalCopyAllReduce(), devices=8)
        assert len(collectives_traced(strategy)) == 8

    def test_one_device_collects_everything(self):
        strategy = strategy_with(jt.ReductionToOneDevice())
        assert set(collectives_traced(strategy)) == {"all_gather"}
        assert "all-reduce" not in collectives_compiled(strategy)[0]

    def test_the_base_class_uses_xlas_all_reduce(self):
        assert set(collectives_traced(strategy_with(jt.CrossDeviceOps()))) == {"psum"}

    def test_a_way_of_ones_own(self):
        """Subclasses say how arrays are added up inside a step."""

        class Own(jt.CrossDeviceOps):
            def all_reduce_in_step(self, reduce_op, values, num_replicas):
                totals = super().all_reduce_in_step(reduce_op, values, num_replicas)
                return [total + 100 for total in totals]

        strategy = strategy_with(Own(), devices=2)
        for wrap in (jt.function, lambda fn: fn):
            result = strategy.run(
                wrap(lambda: jt.get_replica_context().all_reduce("SUM", jnp.ones(())))
            )
            assert [float(x) for x in result.values] == [102.0, 102.0]


class TestPacks:
    @pytest.mark.parametrize(
        ("num_packs", "count"), [(0, 6), (1, 1), (2, 2), (3, 3), (6, 6), (9, 6)]
    )
    def test_nccl_makes_one_collective_a_pack(self, num_packs, count):
        strategy = strategy_with(jt.NcclAllReduce(num_packs=num_packs), devices=2)
        assert len(collectives_traced(strategy, number_of_values=6)) == count

    def test_xla_joins_many_values_by_itself(self):
        strategy = strategy_with(jt.NcclAllReduce(), devices=2)
        assert len(collectives_traced(strategy, number_of_values=20)) == 20

        @jt.function
        def step():
            values = [jnp.full(3, float(i)) for i in range(20)]
            return strategy.run(lambda: jt.get_replica_context().all_reduce("SUM", values))

        assert [float(total.values[1][0]) for total in step()] == [2.0 * i for i in range(20)]

    @pytest.mark.parametrize(("num_packs", "count"), [(0, 6), (1, 1), (2, 2), (3, 3), (6, 6)])
    def test_hierarchical_makes_one_round_of_copies_a_pack(self, num_packs, count):
        strategy = strategy_with(jt.HierarchicalCopyAllReduce(num_packs=num_packs), devices=2)
        there_and_back = 2
        found = collectives_traced(strategy, number_of_values=6)
        assert len(found) == count * there_and_back

    def test_a_mean_takes_no_more_collectives_than_a_sum(self):
        for ops in (jt.NcclAllReduce(), jt.HierarchicalCopyAllReduce(), jt.ReductionToOneDevice()):
            strategy = strategy_with(ops, devices=2)
            assert collectives_traced(strategy, op="MEAN") == collectives_traced(strategy)

    @pytest.mark.parametrize("num_packs", [0, 1, 2, 3, 7])
    @pytest.mark.parametrize("kind", [jt.NcclAllReduce, jt.HierarchicalCopyAllReduce])
    def test_packing_does_not_change_the_results(self, kind, num_packs):
        strategy = strategy_with(kind(num_packs=num_packs), devices=3)
        generator = np.random.default_rng(1)
        tree = [
            generator.integers(-99, 99, shape).astype(dtype)
            for shape, dtype in [
                ((3,), "float32"),
                ((), "float32"),
                ((2, 2), "int32"),
                ((4,), "float32"),
                ((0,), "float32"),
                ((1, 5), "int32"),
                ((1000,), "float32"),
            ]
        ]

        @jt.function
        def step(tree):
            i = jt.get_replica_context().replica_id_in_sync_group + 1
            return jt.get_replica_context().all_reduce("SUM", [x * i for x in tree])

        for local in strategy.experimental_local_results(strategy.run(step, args=(tree,))):
            for total, x in zip(local, tree, strict=True):
                assert total.dtype == x.dtype
                assert total.shape == x.shape
                assert total.tolist() == (x * 6).tolist()


WAYS = {
    "base": jt.CrossDeviceOps,
    "nccl": jt.NcclAllReduce,
    "hierarchical": jt.HierarchicalCopyAllReduce,
    "one device": jt.ReductionToOneDevice,
}
# Floating-point addition in another order gives another result for these.
AWKWARD = [1e8, 1.0, -1e8, 3.14159, 1e-3, 7e7, -6.9e7, 0.1]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("devices", [2, 3, 5, 8])
@pytest.mark.parametrize("make_ops", WAYS.values(), ids=WAYS)
def test_all_replicas_get_the_very_same_bits(make_ops, devices, compiled):
    strategy = strategy_with(make_ops(), devices)
    generator = np.random.default_rng(2)
    noise = generator.normal(size=(8, 257)) * 10.0 ** generator.integers(-8, 8, size=(8, 257))
    rows = np.concatenate([np.array(AWKWARD)[:, None], noise], axis=1).astype("float32")
    value = jt.PerReplica(list(rows[:devices]), strategy.topology)

    def replica_fn(x):
        context = jt.get_replica_context()
        return context.all_reduce("SUM", x), context.all_reduce("MEAN", x)

    fn = jt.function(replica_fn) if compiled else replica_fn
    total, mean = strategy.run(fn, args=(value,))
    for result in (total, mean):
        bits = {np.asarray(part).tobytes() for part in result.values}
        assert len(bits) == 1
    exact = rows[:devices].astype("float64").sum(axis=0)
    scale = np.abs(rows[:devices].astype("float64")).sum(axis=0)
    assert np.all(np.abs(np.asarray(total.values[0]) - exact) <= 1e-6 * scale)


class TestOneDevice:
    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_adds_in_the_order_of_the_replicas(self, compiled):
        strategy = strategy_with(jt.ReductionToOneDevice(), devices=8)
        numbers = [np.float32(x) for x in AWKWARD]
        value = jt.PerReplica([jnp.float32(x) for x in numbers], strategy.topology)

        def replica_fn(x):
            return jt.get_replica_context().all_reduce("SUM", x)

        fn = jt.function(replica_fn) if compiled else replica_fn
        expected = functools.reduce(operator.add, numbers)
        total = strategy.run(fn, args=(value,))
        assert [np.float32(x) for x in total.values] == [expected] * 8
        assert np.float32(strategy.reduce("SUM", value, axis=None)) == expected

    @pytest.mark.parametrize("name", ["CPU:0", "CPU:1", "CPU:6"])
    def test_adds_up_on_the_device_it_is_told(self, name):
        places = []

        def add_up(values):
            places.extend(value.devices() for value in values)
            return sum(values[1:], values[0])

        ops = jt.ReductionToOneDevice(reduce_to_device=name, accumulation_fn=add_up)
        strategy = strategy_with(ops, devices=2)
        value = strategy.run(
            lambda: jnp.float32(jt.get_replica_context().replica_id_in_sync_group + 1)
        )
        device = jax.devices("cpu")[int(name[-1])]
        total = ops.reduce("SUM", value, "CPU:3")
        assert float(total) == 3.0
        assert total.devices() == {jax.devices("cpu")[3]}
        assert places == [{device}, {device}]

    def test_adds_up_at_the_destination_if_not_told(self):
        places = []

        def add_up(values):
            places.extend(value.devices() for value in values)
            return sum(values[1:], values[0])

        ops = jt.ReductionToOneDevice(accumulation_fn=add_up)
        strategy = strategy_with(ops, devices=2)
        value = strategy.run(lambda: jnp.ones(()))
        ops.reduce("SUM", value, "CPU:5")
        assert places == [{jax.devices("cpu")[5]}] * 2

    def test_takes_a_jax_device(self):
        device = jax.devices("cpu")[2]
        ops = jt.ReductionToOneDevice(reduce_to_device=device)
        value = strategy_with(ops, devices=2).run(lambda: jnp.ones(()))
        assert float(ops.reduce("SUM", value, "CPU:0")) == 2.0

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_uses_the_accumulation_function(self, compiled):
        lengths = []

        def largest(values):
            lengths.append(len(values))
            return functools.reduce(jnp.maximum, values)

        strategy = strategy_with(jt.ReductionToOneDevice(accumulation_fn=largest), devices=3)

        def replica_fn():
            x = jnp.float32(jt.get_replica_context().replica_id_in_sync_group * 10)
            return jt.get_replica_context().all_reduce("SUM", x)

        result = strategy.run(jt.function(replica_fn) if compiled else replica_fn)
        assert [float(x) for x in result.values] == [20.0] * 3
        assert set(lengths) == {3}

    def test_an_error_of_the_accumulation_function_comes_out(self):
        def refuse(values):
            raise KeyError("mine")

        strategy = strategy_with(jt.ReductionToOneDevice(accumulation_fn=refuse), devices=2)
        with pytest.raises(KeyError, match="mine"):
            strategy.run(lambda: jt.get_replica_context().all_reduce("SUM", jnp.ones(())))
        assert not jt.has_strategy()

    def test_repr(self):
        assert repr(jt.ReductionToOneDevice("CPU:1")) == (
            "ReductionToOneDevice(reduce_to_device='CPU:1')"
        )
        assert repr(jt.NcclAllReduce()) == "NcclAllReduce(num_packs=1)"
        assert repr(jt.HierarchicalCopyAllReduce(2)) == "HierarchicalCopyAllReduce(num_packs=2)"
