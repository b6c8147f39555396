"""Every class, method, argument and attribute of the reference documents is found here.

What the documents use of Keras itself is looked for in tests_integrations/keras.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxtribute as jt
from jaxtribute.testing import LocalCluster
from tests.reference._counterparts import check_call, check_signature, find, place
from tests.reference._documented import ATTRIBUTES, CALLS, NAMES, SIGNATURES


def _is_of_keras(name: str) -> bool:
    return place(name).partition(".")[0] == "keras"


def _entries(table: dict[str, Any]) -> list[Any]:
    """Return the entries of a table, each with the class or function it is about."""
    return [
        pytest.param(name, entry, id=f"{name}{'' if entry.startswith('(') else '.'}{entry}")
        for name, entries in table.items()
        for entry in entries
        if not _is_of_keras(name)
    ]


@pytest.fixture(scope="module", autouse=True)
def objects() -> Iterator[dict[type, Any]]:
    """Have an object of each class, made as a program would."""
    with LocalCluster(workers=1, ps=2) as cluster:
        servers = jt.experimental.ParameterServerStrategy(
            cluster.resolver, jt.experimental.partitioners.FixedShardsPartitioner(2)
        )
        with servers.scope():
            sharded = jt.Variable(jnp.zeros((4, 1)))
        coordinator = jt.experimental.coordinator.ClusterCoordinator(servers)
        made = {type(one): one for one in [*_of_one_process(), servers, coordinator, sharded]}
        yield made
        made.clear()  # what is connected to the cluster goes first
        del servers, coordinator, sharded


def _of_one_process() -> list[Any]:
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    old = jt.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = jt.data.Dataset.range(4).batch(2)
    contexts: list[Any] = []

    def dataset_fn(context: jt.InputContext) -> jt.data.Dataset:
        contexts.append(context)
        return dataset

    def value_fn(context: jt.experimental.ValueContext) -> int:
        contexts.append(context)
        return 0

    distributed = strategy.distribute_datasets_from_function(dataset_fn)
    strategy.experimental_distribute_values_from_function(value_fn)
    strategy.run(lambda: contexts.append(jt.get_replica_context()))
    module, variable = jt.Module(), jt.Variable(1.0)
    checkpoint = jt.train.Checkpoint(v=variable)
    return [
        *(strategy, old, strategy.extended, distributed, dataset, *contexts, module, variable),
        jt.MultiWorkerMirroredStrategy(),
        jt.experimental.MultiWorkerMirroredStrategy(),
        old.make_dataset_iterator(dataset),
        strategy.reduce("SUM", strategy.run(lambda: jnp.ones(())), axis=None),
        jt.cluster_resolver.TFConfigClusterResolver(),
        jt.Server({"worker": ["127.0.0.1:1"]}, job_name="worker", task_index=0, start=False),
        checkpoint,
        jt.train.CheckpointManager(checkpoint, "not written to", max_to_keep=2),
        jt.Optimizer(optax.sgd(0.1)),
        jt.metrics.Mean(),
    ]


def _object(objects: dict[type, Any], cls: type) -> Any:
    """Return the object of a class, or of the one that comes nearest to it."""
    if cls in objects:
        return objects[cls]
    return next(one for kind, one in objects.items() if issubclass(kind, cls))


@pytest.mark.parametrize(("name", "signature"), _entries(SIGNATURES))
def test_it_takes_the_same_arguments(objects, name, signature):
    method, _, arguments = signature.partition("(")
    callable_ = getattr(_object(objects, find(name)), method) if method else find(name)
    check_signature(f"({arguments}", callable_)


@pytest.mark.parametrize(("name", "attribute"), _entries(ATTRIBUTES))
def test_objects_have_the_attribute(objects, name, attribute):
    getattr(_object(objects, find(name)), attribute)


@pytest.mark.parametrize(("name", "call"), _entries(CALLS))
def test_it_can_be_called_like_this(objects, name, call):
    method, _, arguments = call.partition("(")
    if not method:
        callable_ = find(name)
    elif place(f"{name}.{method}") == place(name):  # one function takes the place of an object's
        callable_ = find(f"{name}.{method}")
    else:
        callable_ = getattr(_object(objects, find(name)), method)
    check_call(f"({arguments}", callable_)


@pytest.mark.parametrize("name", [name for name in NAMES if not _is_of_keras(name)])
def test_the_name_is_there(name):
    find(name)


# --- That these tests can fail ---------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda args=(): None, id="missing"),
        pytest.param(lambda function, args=(): None, id="another name"),
        pytest.param(lambda args=(), fn=None: None, id="another order"),
        pytest.param(lambda fn, /, args=(): None, id="not by name"),
        pytest.param(lambda fn, *, args=(): None, id="not by position"),
        pytest.param(lambda fn, args: None, id="no default"),
        pytest.param(lambda fn, args=None: None, id="another default"),
        pytest.param(lambda fn, args=(), *, more: None, id="one more"),
    ],
)
def test_other_signatures_are_told(other):
    with pytest.raises(AssertionError):
        check_signature("(fn, args=())", other)


def test_other_calls_and_names_are_told():
    check_call("(_, axis=_)", lambda value, axis: None)
    with pytest.raises(TypeError):
        check_call("(_, axis=_)", lambda value, dimension: None)
    with pytest.raises(AttributeError):
        find("tf.distribute.Strategy.no_such_method")
    assert find("tf.distribute.experimental.ParameterServerStrategy") is jt.ParameterServerStrategy
    assert find("tf.Tensor") is jax.Array
