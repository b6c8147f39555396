"""`run`: contexts, arguments, results, and what happens when a replica fails."""

import collections
import dataclasses
import threading
import traceback
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.conformance._strategies import (
    Setup,
    all_compiled,
    devices,
    every_kind,
    every_strategy,
    replica_id,
    several_replicas,
)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Batch:
    features: Any
    label: Any
    note: str = "none"


# --- Contexts ------------------------------------------------------------------------------


@pytest.mark.parametrize("setup", every_strategy())
def test_each_replica_knows_which_one_it_is(setup: Setup):
    seen = []

    def fn():
        context = jt.get_replica_context()
        seen.append((context.num_replicas_in_sync, context.strategy, jt.get_strategy()))
        assert not jt.in_cross_replica_context()
        return jnp.asarray(context.replica_id_in_sync_group)

    ids = setup.parts(setup.run(fn))
    assert [int(i) for i in ids] == list(range(setup.replicas))
    assert set(seen) == {(setup.replicas, setup.strategy, setup.strategy)}
    assert jt.get_replica_context() is not None


@pytest.mark.parametrize("setup", every_kind())
def test_run_works_inside_and_outside_the_scope(setup: Setup):
    with setup.strategy.scope():
        inside = setup.run(lambda x: x * 2, jnp.float32(3.0))
    outside = setup.run(lambda x: x * 2, jnp.float32(3.0))
    assert [float(v) for v in setup.parts(inside)] == [6.0] * setup.replicas
    assert [float(v) for v in setup.parts(outside)] == [6.0] * setup.replicas


@pytest.mark.parametrize("setup", several_replicas())
def test_a_replica_cannot_start_replicas_or_reduce(setup: Setup):
    strategy = setup.strategy
    forbidden = [
        lambda: strategy.run(lambda: None),
        lambda: strategy.reduce("SUM", jnp.ones(()), axis=None),
        lambda: strategy.gather(jnp.ones((1,)), axis=0),
        lambda: strategy.scope().__enter__(),
    ]
    for call in forbidden:
        with pytest.raises(RuntimeError, match="cross-replica context"):
            setup.run(call)


# --- Values --------------------------------------------------------------------------------

DTYPES = {
    "float32": [1.5, -2.0],
    "bfloat16": [1.5, -2.0],
    "int32": [3, -4],
    "bool": [True, False],
    "complex64": [1 + 2j, -3j],
}


@pytest.mark.parametrize("setup", every_kind())
def test_values_of_every_type_pass_through(setup: Setup):
    given = {
        dtype: [jnp.roll(jnp.array(values, dtype), i) for i in range(setup.replicas)]
        for dtype, values in DTYPES.items()
    }
    dealt = {dtype: setup.deal(parts) for dtype, parts in given.items()}

    def program(dealt):
        same = setup.strategy.run(lambda values: values, args=(dealt,))
        flipped = setup.strategy.run(
            lambda values: {dtype: jnp.flip(v) for dtype, v in values.items()}, args=(dealt,)
        )
        return same, flipped, setup.strategy.gather(flipped, axis=0)

    same, flipped, gathered = setup.call(program, dealt)
    for dtype, parts in given.items():
        for i, part in enumerate(parts):
            for result, expected in [
                (setup.parts(same[dtype])[i], part),
                (setup.parts(flipped[dtype])[i], part[::-1]),
            ]:
                assert result.dtype == dtype
                np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))
        assert gathered[dtype].dtype == dtype
        np.testing.assert_array_equal(
            np.asarray(gathered[dtype]), np.concatenate([np.asarray(p)[::-1] for p in parts])
        )


@pytest.mark.parametrize("setup", every_kind())
def test_nested_structures_are_taken_and_returned(setup: Setup):
    n = setup.replicas
    x = setup.deal([np.float32(i) for i in range(n)])
    given = {
        "list": [x, jnp.float32(10.0)],
        "tuple": (x, (x,)),
        "named": Pair(x, None),
        "plain": Batch(features=x, label={"y": x}, note="kept"),
        "ordered": collections.OrderedDict(b=x, a=x),
        "none": None,
    }

    def fn(values):
        assert isinstance(values["list"], list)
        assert isinstance(values["named"], Pair)
        assert isinstance(values["plain"], Batch)
        assert values["plain"].note == "kept"
        assert values["none"] is None
        return {
            "list": [values["list"][0] + values["list"][1]],
            "tuple": (values["tuple"][1][0] * 2,),
            "named": Pair(values["named"].first + 1, values["named"].second),
            "plain": Batch(
                values["plain"].features - 1, {"y": values["plain"].label["y"] + 0}, note="new"
            ),
            "ordered": collections.OrderedDict((k, v + 0) for k, v in values["ordered"].items()),
            "none": None,
        }

    result = setup.run(fn, given)
    assert list(result["ordered"]) == ["b", "a"]
    assert isinstance(result["ordered"], collections.OrderedDict)
    for i, part in enumerate(setup.parts(result)):
        assert float(part["list"][0]) == i + 10
        assert isinstance(part["tuple"], tuple)
        assert float(part["tuple"][0]) == 2 * i
        assert isinstance(part["named"], Pair)
        assert float(part["named"].first) == i + 1
        assert part["named"].second is None
        assert isinstance(part["plain"], Batch)
        assert (float(part["plain"].features), part["plain"].note) == (i - 1, "new")
        assert float(part["plain"].label["y"]) == i
        assert part["none"] is None


@pytest.mark.parametrize("setup", every_kind())
def test_keyword_arguments(setup: Setup):
    x = setup.deal([np.float32(i) for i in range(setup.replicas)])

    def program(x):
        return setup.strategy.run(lambda a, *, b: a + b["c"], args=(x,), kwargs={"b": {"c": x}})

    assert [float(v) for v in setup.parts(setup.call(program, x))] == [
        2 * i for i in range(setup.replicas)
    ]


@pytest.mark.parametrize("setup", every_kind())
def test_python_objects_are_passed_by_identity(setup: Setup):
    class Anything:
        pass

    thing, seen = Anything(), []

    def program():
        return setup.strategy.run(
            lambda thing, more: seen.append((thing, more["fn"])),
            args=(thing,),
            kwargs={"more": {"fn": Anything}},
        )

    assert setup.call(program) is None
    assert seen
    assert all(a is thing and b is Anything for a, b in seen)


@pytest.mark.parametrize("setup", every_kind(with_devices=True))
def test_arrays_of_any_device_can_be_passed(setup: Setup):
    *_, one, other = devices() * 2
    elsewhere = jax.device_put(jnp.float32(5.0), other)
    inside = Batch(features=jax.device_put(jnp.float32(1.0), one), label=[])
    with setup.strategy.scope():
        v = jt.Variable(10.0)

    def fn(x, batch):
        return v + x + batch.features

    def program(x, batch):
        return setup.strategy.run(fn, args=(x, batch))

    result = setup.call(program, elsewhere, inside)
    assert [float(r) for r in setup.parts(result)] == [16.0] * setup.replicas


# --- Results -------------------------------------------------------------------------------


@pytest.mark.parametrize("setup", every_strategy(eager_on_many=False))
def test_what_all_replicas_have_in_common_stays_bare(setup: Setup):
    captured = jnp.float32(4.0)

    def fn():
        return {"constant": 7, "none": None, "text": "same", "captured": captured}

    result = setup.run(fn)
    assert result["none"] is None
    assert result["text"] == "same"
    # Without a common program, a worker does not know whether others have the same numbers.
    is_known = setup.compiled or not setup.has_workers
    for name, number in ("constant", 7), ("captured", 4.0):
        assert isinstance(result[name], jt.DistributedValues) is not is_known
        assert [float(part) for part in setup.parts(result[name])] == [number] * setup.replicas


@pytest.mark.parametrize("setup", every_strategy(eager_on_many=False))
def test_what_replicas_compute_is_per_replica_even_when_equal(setup: Setup):
    result = setup.run(lambda: (jnp.ones((2,)), jnp.float32(1.0) + 0))
    for leaf in result:
        assert isinstance(leaf, jt.PerReplica) is (setup.replicas > 1)
        assert isinstance(leaf, jax.Array) is (setup.replicas == 1)


@pytest.mark.parametrize("setup", several_replicas())
def test_components_are_on_the_devices_of_their_replicas(setup: Setup):
    result = setup.run(lambda: jnp.ones((3,)) * replica_id())
    local = setup.strategy.experimental_local_results(result)
    used = devices()[: len(setup.local_replicas)]
    assert [part.devices() for part in local] == [{device} for device in used]


@pytest.mark.parametrize("setup", every_kind())
def test_a_result_can_be_fed_to_the_next_run(setup: Setup):
    x = setup.run(lambda: {"x": jnp.float32(1.0) * replica_id()})
    for _ in range(3):
        x = setup.run(lambda value: {"x": value["x"] + 1}, x)
    assert [float(part["x"]) for part in setup.parts(x)] == [i + 3 for i in range(setup.replicas)]


@pytest.mark.parametrize("setup", every_kind())
def test_a_variable_returned_by_all_replicas_is_that_variable(setup: Setup):
    with setup.strategy.scope():
        v = jt.Variable(1.0)
    result = setup.strategy.run(lambda: v)
    assert result is v


# --- Local results and distributed values --------------------------------------------------


@pytest.mark.parametrize("setup", every_strategy())
def test_distributed_values_have_one_for_each_replica(setup: Setup):
    contexts = []

    def value_fn(ctx):
        contexts.append((ctx.replica_id_in_sync_group, ctx.num_replicas_in_sync))
        return {"id": np.float32(ctx.replica_id_in_sync_group), "same": "text"}

    value = setup.strategy.experimental_distribute_values_from_function(value_fn)
    local = setup.strategy.experimental_local_results(value)
    assert contexts == [(i, setup.replicas) for i in setup.local_replicas]
    assert isinstance(local, tuple)
    assert [part["id"] for part in local] == list(setup.local_replicas)
    assert [part["same"] for part in local] == ["text"] * len(setup.local_replicas)


@pytest.mark.parametrize("setup", every_kind())
def test_local_results_of_plain_values(setup: Setup):
    thing = object()
    assert setup.strategy.experimental_local_results(thing) == (thing,)
    copies = len(setup.local_replicas)  # as TensorFlow has it for structures
    assert setup.strategy.experimental_local_results({"a": 1}) == ({"a": 1},) * copies
    assert setup.strategy.experimental_local_results(None) == (None,)


@pytest.mark.parametrize("setup", every_kind())
def test_local_results_repeat_plain_values_in_structures(setup: Setup):
    x = setup.run(lambda: jnp.float32(1.0) * replica_id())
    local = setup.strategy.experimental_local_results({"x": x, "plain": "p"})
    assert [(float(part["x"]), part["plain"]) for part in local] == [
        (i, "p") for i in setup.local_replicas
    ]


@pytest.mark.parametrize("setup", every_kind())
def test_values_can_be_distributed_inside_the_program(setup: Setup):
    def program(scale):
        values = setup.strategy.experimental_distribute_values_from_function(
            lambda ctx: scale * (ctx.replica_id_in_sync_group + 1)
        )
        return setup.strategy.run(lambda x: x + 1, args=(values,))

    parts = setup.parts(setup.call(program, jnp.float32(10.0)))
    assert [float(part) for part in parts] == [10 * i + 11 for i in range(setup.replicas)]


# --- merge_call ----------------------------------------------------------------------------


@pytest.mark.parametrize("setup", every_strategy(eager_on_many=False))
def test_merge_call_merges_arguments_and_splits_results(setup: Setup):
    sides = []

    def merge_fn(strategy, x, *, same):
        sides.append((strategy, jt.in_cross_replica_context(), jt.get_replica_context(), same))
        return {"total": strategy.reduce("SUM", x, axis=None), "own": x, "same": same}

    def fn():
        x = jnp.float32(1.0) + replica_id()
        return jt.get_replica_context().merge_call(merge_fn, args=(x,), kwargs={"same": "s"})

    result = setup.run(fn)
    assert set(sides) == {(setup.strategy, True, None, "s")}
    if not setup.compiled:
        assert len(sides) == 1
    n = setup.replicas
    for i, part in enumerate(setup.parts(result)):
        assert float(part["total"]) == n * (n + 1) / 2
        assert float(part["own"]) == i + 1
        assert part["same"] == "s"


@pytest.mark.parametrize("setup", several_replicas())
def test_a_merge_call_can_update_a_variable_once_for_all(setup: Setup):
    with setup.strategy.scope():
        v = jt.Variable(1.0)

    def fn():
        jt.get_replica_context().merge_call(
            lambda strategy, x: v.assign_add(strategy.reduce("SUM", x, axis=None)),
            args=(jnp.float32(1.0) + replica_id(),),
        )
        return v + 0

    parts = setup.parts(setup.run(fn))
    n = setup.replicas
    assert [float(part) for part in parts] == [1 + n * (n + 1) / 2] * n
    assert v.numpy() == 1 + n * (n + 1) / 2


@pytest.mark.parametrize("setup", several_replicas())
def test_an_error_in_a_merge_function_surfaces(setup: Setup):
    class MergeFailed(Exception):
        pass

    def merge_fn(strategy):
        raise MergeFailed

    with pytest.raises(MergeFailed):
        setup.run(lambda: jt.get_replica_context().merge_call(merge_fn))
    assert [int(i) for i in setup.parts(setup.run(lambda: jnp.asarray(replica_id())))] == list(
        range(setup.replicas)
    )


# --- Failure -------------------------------------------------------------------------------


class TheUsersOwn(Exception):
    pass


@pytest.mark.parametrize("setup", every_strategy(eager_on_many=False))
def test_an_exception_surfaces_once_and_changes_nothing(setup: Setup):
    with setup.strategy.scope():
        mirrored = jt.Variable(1.0, aggregation=jt.VariableAggregation.MEAN)
        counted = jt.Variable(
            2.0,
            synchronization=jt.VariableSynchronization.ON_READ,
            aggregation=jt.VariableAggregation.SUM,
        )
    before = mirrored.numpy(), counted.numpy()
    error = TheUsersOwn("broken")

    def the_users_function():
        mirrored.assign(jnp.float32(50.0) + replica_id())
        counted.assign_add(jnp.float32(60.0) + replica_id())
        jt.get_replica_context().all_reduce("SUM", jnp.float32(1.0) + 0)
        # Eager: on the last replica of each process only, while the others wait. Compiled: all are
        # one program.
        if setup.compiled or replica_id() == setup.local_replicas[-1]:
            raise error
        jt.get_replica_context().all_reduce("SUM", jnp.float32(1.0) + 0)

    threads = threading.active_count()
    with pytest.raises(TheUsersOwn) as info:
        setup.run(the_users_function)
    assert info.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert frames.count("the_users_function") == 1
    assert frames[-1] == "the_users_function"
    assert threading.active_count() == threads
    assert not jt.has_strategy()

    assert (mirrored.numpy(), counted.numpy()) == before
    setup.run(lambda: mirrored.assign(jnp.float32(5.0) + replica_id()))
    assert mirrored.numpy() == 5.0 + (setup.replicas - 1) / 2


@pytest.mark.parametrize("setup", every_kind())
def test_a_function_that_failed_can_be_called_again(setup: Setup):
    with setup.strategy.scope():
        v = jt.Variable(0.0, aggregation=jt.VariableAggregation.SUM)
    fail = [True]

    @setup.function
    def step(x):
        def fn(x):
            v.assign_add(x * 1)
            if fail[0]:
                raise TheUsersOwn

        setup.strategy.run(fn, args=(x,))

    with pytest.raises(TheUsersOwn):
        step(jnp.float32(1.0))
    assert v.numpy() == 0.0
    fail[0] = False
    step(jnp.float32(1.0))
    assert v.numpy() == setup.replicas


# --- Tracing -------------------------------------------------------------------------------


@pytest.mark.parametrize("setup", all_compiled())
def test_a_second_step_does_not_retrace(setup: Setup):
    with setup.strategy.scope():
        v = jt.Variable(0.0, aggregation=jt.VariableAggregation.SUM)
        counted = jt.Variable(
            0.0,
            synchronization=jt.VariableSynchronization.ON_READ,
            aggregation=jt.VariableAggregation.SUM,
        )
    outer, inner = [], []

    @jt.function
    def step(x, scale):
        outer.append(x)

        def fn(x, scale):
            inner.append(x)
            v.assign_add(jnp.sum(x) * scale)
            counted.assign_add(jnp.sum(x))
            return x + v

        return setup.strategy.run(fn, args=(x, scale)), counted + 0

    def batch(value):
        return setup.deal([np.full((2,), value, np.float32)] * setup.replicas)

    step(batch(1.0), jnp.float32(1.0))
    traced = step.experimental_get_tracing_count(), len(outer), len(inner)
    assert traced[0] == 1
    for value in range(2, 6):
        result, count = step(batch(value), jnp.float32(value))
    assert (step.experimental_get_tracing_count(), len(outer), len(inner)) == traced
    n = setup.replicas
    assert v.numpy() == n * sum(2 * i * i for i in range(1, 6))
    assert counted.numpy() == float(count) == n * sum(2 * i for i in range(1, 6))
    assert all(np.array_equal(part, np.full(2, 5) + v.numpy()) for part in setup.parts(result))


@pytest.mark.parametrize("setup", all_compiled())
def test_one_buffer_for_all_replicas_is_read_anew_each_step(setup: Setup):
    buffer = np.zeros((2,), np.float32)
    step = jt.function(lambda x: setup.strategy.run(lambda x: x * 2, args=(x,)))
    for value in range(3):
        buffer[:] = value
        result = step(setup.deal([buffer] * setup.replicas))
        assert all(np.array_equal(part, [2 * value] * 2) for part in setup.parts(result))
    assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("setup", all_compiled())
def test_a_compiled_replica_function_does_not_retrace(setup: Setup):
    calls = []

    @jt.function
    def fn(x):
        calls.append(x)
        return x * 2

    setup.strategy.run(fn, args=(jnp.float32(1.0),))
    traces, count = len(calls), fn.experimental_get_tracing_count()
    result = setup.strategy.run(fn, args=(jnp.float32(4.0),))
    assert len(calls) == traces
    assert fn.experimental_get_tracing_count() == count
    assert [float(part) for part in setup.parts(result)] == [8.0] * setup.replicas
    setup.strategy.run(fn, args=(jnp.ones((3,)),))
    assert len(calls) > traces
    assert fn.experimental_get_tracing_count() == count + 1


# --- Randomness ----------------------------------------------------------------------------


@pytest.mark.parametrize("setup", every_strategy(eager_on_many=False))
def test_every_replica_has_random_keys_of_its_own(setup: Setup):
    key = jax.random.key(3)
    masks = setup.run(lambda key: jax.random.uniform(jt.random.replica_key(key), (4,)), key)
    parts = [np.asarray(part) for part in setup.parts(masks)]
    for i, part in enumerate(parts):
        expected = jax.random.uniform(jax.random.fold_in(key, i), (4,))
        np.testing.assert_array_equal(part, np.asarray(expected))
    assert len({part.tobytes() for part in parts}) == setup.replicas
