"""Whole numbers of 64 bits: those that JAX has no room for are refused wherever they enter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.errors import InvalidArgumentError
from jaxtribute.values import PerReplica

WIDE = np.array([3, 2**33 + 1])


def two():
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


def same(x):
    return jnp.asarray(x) + 0


def run(strategy, fn, *args, compiled=False):
    """Return what the first replica returns, with the run alone or all of it compiled."""

    def program(*args):
        return strategy.run(fn, args=args)

    result = (jt.function(program) if compiled else program)(*args)
    return strategy.experimental_local_results(result)[0]


def eagerly(x):
    jt.config.run_functions_eagerly(True)
    try:
        return jt.function(same)(x)
    finally:
        jt.config.run_functions_eagerly(False)


def dealt_out(x, compiled):
    strategy = two()
    value = strategy.experimental_distribute_values_from_function(lambda _: x)
    return run(strategy, same, value, compiled=compiled)


def constant_of_replicas(strategy, x):
    return jt.function(lambda: strategy.run(same, args=(x,)))().values[0]


def made_by_hand(x, compiled):
    return run(two(), same, PerReplica([x, x]), compiled=compiled)


def read(x, strategy, compiled=False, fetch=True):
    dataset = jt.data.Dataset.from_tensors(np.tile(x, (2, 1)))
    options = jt.InputOptions(experimental_fetch_to_device=fetch)
    batch = next(iter(strategy.experimental_distribute_dataset(dataset, options)))
    return run(strategy, lambda batch: same(batch)[0], batch, compiled=compiled)


def read_in_a_function(x):
    strategy = jt.OneDeviceStrategy("CPU:0")
    iterator = iter(strategy.experimental_distribute_dataset(jt.data.Dataset.from_tensors(x)))
    return jt.function(lambda: same(next(iterator)))()


def assigned(x):
    return jt.Variable(np.zeros(x.shape, np.int32)).assign(x).numpy()


def together(x, method, *args):
    def replica_fn():
        return getattr(jt.get_replica_context(), method)(*args, x, **_AXIS.get(method, {}))[:2]

    return run(two(), replica_fn)


_AXIS = {"all_gather": {"axis": 0}}

WAYS = {
    "function": jt.function(same),
    "function by keyword": lambda x: jt.function(same)(x=x),
    "function of a structure": lambda x: jt.function(lambda d: same(d["a"][0]))({"a": [x]}),
    "function of scalars": lambda x: jnp.stack([jt.function(same)(each) for each in x]),
    "function in a function": lambda x: jt.function(lambda: jt.function(same)(x))(),
    "function that runs eagerly": eagerly,
    "result of a function": lambda x: jt.function(lambda: x)(),
    "result of replicas": lambda x: jt.function(lambda: two().run(lambda: x))().values[0],
    "default": lambda x: run(jt.get_strategy(), same, x),
    "one device": lambda x: run(jt.OneDeviceStrategy("CPU:1"), same, x),
    "replicas": lambda x: run(two(), same, x),
    "replicas of a function": lambda x: run(two(), jt.function(same), x),
    "replicas in a function": lambda x: run(two(), same, x, compiled=True),
    "constant of replicas": lambda x: constant_of_replicas(two(), x),
    "dealt out": lambda x: dealt_out(x, compiled=False),
    "dealt out, compiled": lambda x: dealt_out(x, compiled=True),
    "made by hand": lambda x: made_by_hand(x, compiled=False),
    "made by hand, compiled": lambda x: made_by_hand(x, compiled=True),
    "dataset": lambda x: read(x, two()),
    "dataset on one device": lambda x: read(x, jt.OneDeviceStrategy("CPU:0")),
    "dataset on the host": lambda x: read(x, two(), fetch=False),
    "dataset on the host, compiled": lambda x: read(x, two(), compiled=True, fetch=False),
    "dataset in a function": read_in_a_function,
    "variable": lambda x: jt.Variable(x),
    "variable made by a function": lambda x: jt.Variable(lambda: x),
    "assign": assigned,
    "assign of a list": lambda x: jt.Variable([0, 0]).assign(x.tolist()),
    "assign_add": lambda x: jt.Variable([0, 0]).assign_add(x),
    "rows": lambda x: jt.Variable([0, 0]).scatter_add(jt.IndexedSlices(x, [0, 1])),
    "dense rows": lambda x: jt.IndexedSlices(x, [0, 1], (2,)).to_dense(),
    "reduce": lambda x: two().reduce("SUM", PerReplica([x, 0 * x]), axis=None),
    "reduce along an axis": lambda x: two().reduce("SUM", PerReplica([x[None], 0 * x[None]]), 0),
    "gather": lambda x: two().gather(PerReplica([x, x]), axis=0)[:2],
    "all_reduce": lambda x: together(x, "all_reduce", "MEAN"),
    "all_gather": lambda x: together(x, "all_gather"),
}


@pytest.mark.parametrize("enter", WAYS.values(), ids=WAYS.keys())
def test_what_does_not_fit_is_refused_and_what_fits_is_taken(enter):
    with pytest.raises(InvalidArgumentError, match=r"8589934593, of type int64.*int32"):
        enter(WIDE)
    with pytest.raises(InvalidArgumentError, match=r"-8589934593, of type int64"):
        enter(-WIDE)
    assert np.asarray(enter(np.array([3, -(2**24)]))).tolist() == [3, -(2**24)]


@pytest.mark.parametrize("enter", [jt.function(same), jt.Variable], ids=["function", "variable"])
def test_numbers_without_a_sign(enter):
    with pytest.raises(InvalidArgumentError, match=r"4294967296, of type uint64.*uint32"):
        enter(np.array([2**32], np.uint64))
    assert np.asarray(enter(np.array([2**32 - 1], np.uint64))).tolist() == [2**32 - 1]


def test_a_variable_of_few_bits_cuts_nothing_off():
    v = jt.Variable(np.array([1, 2], np.int8))
    for value in ([300, 0], np.array([0, -129], np.int16)):
        with pytest.raises(InvalidArgumentError, match="int8"):
            v.assign(value)
    with pytest.raises(InvalidArgumentError, match="uint8"):
        jt.Variable(np.array([-1]), dtype=np.uint8)
    assert v.assign([-128, 127]).numpy().tolist() == [-128, 127]


def test_a_dataset_of_python_numbers():
    with pytest.raises(InvalidArgumentError, match="8589934593"):
        jt.data.Dataset.from_tensor_slices([1, 2**33 + 1])


def test_labels_of_a_metric_are_compared_as_they_are():
    with pytest.raises(InvalidArgumentError, match="8589934593"):
        jt.metrics.Accuracy().update_state(np.array([2**33 + 1]), np.array([1]))


def test_hashed_ids_do_not_read_other_rows():
    table = jt.Variable(np.arange(4, dtype=np.float32))
    step = jt.function(lambda ids: jt.nn.embedding_lookup(table, ids))
    with pytest.raises(InvalidArgumentError, match="8589934593"):
        step(np.array([2**33 + 1]))
    assert step(np.array([2**33 + 1]) % 4).tolist() == [1]


def test_with_64_bits_all_of_them_are_taken():
    with jax.enable_x64(True):
        assert np.asarray(jt.function(same)(WIDE)).tolist() == WIDE.tolist()
        assert np.asarray(jt.Variable(WIDE)).tolist() == WIDE.tolist()


def test_fractions_are_rounded_as_ever():
    with pytest.warns(RuntimeWarning, match="overflow"):  # which NumPy gives
        rounded = jt.function(same)(np.array([0.1, 1e300]))
    assert rounded.tolist() == [np.float32(0.1), np.inf]
