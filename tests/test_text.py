"""Arrays of text: refused by name where they would enter a device, left alone in Python."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.values import PerReplica

TEXTS = {
    "bytes": np.array([b"a", b"b"]),
    "str": np.array(["a", "b"]),
    "objects": np.array([b"a", "b"], object),
    "dates": np.array(["2020-01-01"], "datetime64[D]"),
}


def two():
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


def step(x, y=None):
    return x


def compiled(strategy, value):
    """Pass a value to `run` inside of a compiled function, as something it captures."""
    return jt.function(lambda: strategy.run(step, args=(value,)))()


def read(strategy, text):
    dataset = jt.data.Dataset.from_tensors(text if text.dtype.kind != "M" else text.astype(str))
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    try:
        return jt.function(lambda: next(iterator))()
    finally:
        next(iterator)  # which was put back


def eagerly(text):
    jt.config.run_functions_eagerly(True)
    try:
        return jt.function(step)(text)
    finally:
        jt.config.run_functions_eagerly(False)


def inside(method, *args, **kwargs):
    def replica_fn(text):
        return getattr(jt.get_replica_context(), method)(*args, text, **kwargs)

    return lambda text: two().run(replica_fn, args=(text,))


def each(text):
    return PerReplica([text, text], two().topology)


WAYS = {
    "function": ("argument x of 'step'", jt.function(step)),
    "keyword": ("argument y of 'step'", lambda text: jt.function(step)(1.0, y=text)),
    "structure": ("x['a'][1] of 'step'", lambda text: jt.function(step)({"a": [1, text]})),
    "parts of replicas": ("argument x of 'step'", lambda text: jt.function(step)(each(text))),
    "function run eagerly": ("argument x of 'step'", eagerly),
    "function in a function": (
        "argument x of 'step'",
        lambda text: jt.function(lambda: jt.function(step)(text))(),
    ),
    "run of a function": (
        "argument x of 'step'",
        lambda text: two().run(jt.function(step), args=(text,)),
    ),
    "run in a function": ("argument x of 'step'", lambda text: compiled(two(), text)),
    "parts in a function": ("argument x of 'step'", lambda text: compiled(two(), each(text))),
    "dataset": ("reads from a dataset", lambda text: read(two(), text)),
    "dataset on one device": (
        "reads from a dataset",
        lambda text: read(jt.OneDeviceStrategy("CPU:0"), text),
    ),
    "result": ("result of a jt.function", lambda text: jt.function(lambda: text)()),
    "result of replicas": (
        "result of a replica",
        lambda text: jt.function(lambda: two().run(lambda: text))(),
    ),
    "variable": ("variable 'v'", lambda text: jt.Variable(text, name="v")),
    "variable of a type": ("variable 'v'", lambda text: jt.Variable(text, name="v", dtype="int32")),
    "variable from a list": ("variable 'v'", lambda text: jt.Variable([text[0]], name="v")),
    "assign": ("variable 'v'", lambda text: jt.Variable(jnp.zeros(2), name="v").assign(text)),
    "reduce": ("reduction", lambda text: two().reduce("SUM", each(text), axis=None)),
    "reduce along an axis": ("reduce", lambda text: two().reduce("MEAN", each(text), axis=0)),
    "gather": ("gather", lambda text: two().gather(each(text), axis=0)),
    "all_reduce": ("all_reduce", inside("all_reduce", "SUM")),
    "all_gather": ("all_gather", inside("all_gather", axis=0)),
    "loss": ("per_example_loss", jt.nn.compute_average_loss),
    "metric": ("values", lambda text: jt.metrics.Mean().update_state(text)),
}


@pytest.mark.parametrize(("named", "enter"), WAYS.values(), ids=WAYS.keys())
def test_devices_hold_numbers_only(named, enter):
    for text in TEXTS.values():
        with pytest.raises(TypeError, match=r"devices hold numbers only.*`map`") as caught:
            enter(text)
        assert named in str(caught.value)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_replicas_in_python_use_it_as_it_is(text):
    sizes = two().run(lambda whole, part: (whole.size, part.size), args=(text, each(text)))
    assert sizes == (text.size, text.size)


@pytest.mark.parametrize("kind", ["S", "U"])
def test_it_is_distributed_as_it_is_from_any_iterable(kind):
    batches = [np.array(["a", "b"]).astype(kind), np.array(["c", "d"]).astype(kind)]
    distributed = two().experimental_distribute_dataset(batches)
    assert [[list(map(str, part.astype("U"))) for part in each.values] for each in distributed] == [
        [["a"], ["b"]],
        [["c"], ["d"]],
    ]


def test_words_of_python_stay_constants():
    assert jt.function(lambda mode, x: x + (mode == b"train"))(b"train", jnp.float32(1)) == 2
