"""What `docs/limits.md` says of limits that no other test is about."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.input._workers import distribute_to, steps


@pytest.fixture
def tpus(monkeypatch):
    """A `TPUStrategy`, on two CPU devices that stand for cores."""
    monkeypatch.setattr(jt.TPUStrategy, "_platform", "cpu")
    return jt.TPUStrategy(experimental_device_assignment=["CPU:0", "CPU:1"])


def one_worker(**settings):
    spec = jt.ClusterSpec({"worker": ["localhost:2222"]})
    return jt.cluster_resolver.SimpleClusterResolver(
        spec, task_type="worker", task_id=0, **settings
    )


def test_replicas_of_tpus_may_gather_different_lengths(tpus):
    values = tpus.experimental_distribute_values_from_function(
        lambda ctx: jnp.full((1 + ctx.replica_id_in_sync_group, 2), ctx.replica_id_in_sync_group)
    )
    assert tpus.gather(values, axis=0).tolist() == [[0, 0], [1, 1], [1, 1]]


def test_replicas_of_tpus_get_examples_in_order(tpus):
    dataset = jt.data.Dataset.range(10).batch(4)
    steps = [
        np.concatenate(tpus.experimental_local_results(step)).tolist()
        for step in tpus.experimental_distribute_dataset(dataset)
    ]
    assert steps == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_all_devices_of_a_worker_are_used_whatever_the_resolver_counts():
    strategy = jt.MultiWorkerMirroredStrategy(one_worker(num_accelerators={"GPU": 3}))
    assert strategy.num_replicas_in_sync == len(jax.devices())


def test_a_way_to_communicate_that_devices_lack_is_only_a_warning(caplog):
    nccl = jt.experimental.CommunicationImplementation.NCCL
    with caplog.at_level(logging.WARNING, "jaxtribute"):
        strategy = jt.MultiWorkerMirroredStrategy(
            one_worker(), jt.experimental.CommunicationOptions(implementation=nccl)
        )
    assert "needs GPUs" in caplog.text
    ones = strategy.run(lambda: jnp.float32(1))
    assert strategy.reduce("SUM", ones, axis=None) == strategy.num_replicas_in_sync


@pytest.mark.parametrize("by_function", [False, True])
def test_a_map_with_state_of_its_own_runs_as_it_is_written(by_function):
    seen = []

    def count(value):
        seen.append(value)
        return value + 100 * len(seen)

    dataset = jt.data.Dataset.range(4).map(count)
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    if by_function:
        distributed = strategy.distribute_datasets_from_function(lambda _: dataset.batch(1))
    else:
        distributed = strategy.experimental_distribute_dataset(dataset.batch(2))
    found = [
        np.concatenate(strategy.experimental_local_results(step)).tolist() for step in distributed
    ]
    assert found == [[100, 201], [302, 403]]


def test_values_for_replicas_may_be_of_any_type():
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    words = strategy.experimental_distribute_values_from_function(
        lambda ctx: ["left", "right"][ctx.replica_id_in_sync_group]
    )
    lengths = strategy.run(lambda word: jnp.int32(len(word)), args=(words,))
    assert strategy.reduce("SUM", lengths, axis=None) == 9


def test_of_arrays_in_memory_each_worker_reads_its_own_rows():
    read = []

    def note(row):
        read.append(int(row))
        return row

    dataset = jt.data.Dataset.from_tensor_slices(np.arange(8)).map(note).batch(4)
    distributed = distribute_to(dataset, workers=2, worker=1, replicas=1)
    assert distributed.element_spec is not None  # found out by reading the first row
    read.clear()
    assert steps(distributed) == [[[2, 3]], [[6, 7]]]
    assert read == [2, 3, 6, 7]
