"""Iterators of `tf.compat.v1`, which are started and started again by `initialize`."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt

PER_REPLICA = jt.InputReplicationMode.PER_REPLICA


def parts(strategy, value):
    return [np.asarray(part).tolist() for part in strategy.experimental_local_results(value)]


def rest(strategy, iterator):
    elements = []
    while True:
        try:
            elements.append(parts(strategy, iterator.get_next()))
        except jt.errors.OutOfRangeError:
            return elements


def test_batches_are_divided_and_initialize_starts_again(strategy):
    iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(8).batch(4))
    for _ in range(2):
        assert iterator.initialize() == []
        assert rest(strategy, iterator) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        with pytest.raises(jt.errors.OutOfRangeError, match=r"initialize\(\) for the next pass"):
            iterator.get_next()


def test_initialize_in_the_middle_of_a_pass(strategy):
    iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(8).batch(4))
    first = parts(strategy, iterator.get_next())
    iterator.initialize()
    assert parts(strategy, iterator.get_next()) == first


def test_each_pass_is_shuffled_anew_and_the_first_one_is_the_first_order(strategy):
    def orders(initialize):
        dataset = jt.data.Dataset.range(64).shuffle(64, seed=1).batch(64)
        iterator = strategy.make_dataset_iterator(dataset)
        if initialize:
            iterator.initialize()
        first = rest(strategy, iterator)
        iterator.initialize()
        return first, rest(strategy, iterator)

    first, second = orders(initialize=True)
    assert first != second
    assert orders(initialize=False) == (first, second)


def test_initialize_after_a_state_was_restored(strategy):
    iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(8).batch(4))
    iterator.get_next()
    state = iterator.get_state()
    other = strategy.make_dataset_iterator(jt.data.Dataset.range(8).batch(4))
    other.set_state(state)
    assert rest(strategy, other) == [[[4, 5], [6, 7]]]
    other.set_state(state)
    other.initialize()
    assert len(rest(strategy, other)) == 2


def test_the_last_batch_may_be_smaller(strategy):
    iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(7).batch(4))
    examples = [number for step in rest(strategy, iterator) for part in step for number in part]
    assert examples == list(range(7))


@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param(jt.data.Dataset.range(9).batch(3), id="dataset"),
        pytest.param([np.arange(3), np.arange(3)], id="iterable"),
    ],
)
def test_batches_that_cannot_be_divided(strategy, dataset):
    with pytest.raises(ValueError, match=r"Batches of 3 .* 2 replicas.*make_input_fn_iterator"):
        strategy.make_dataset_iterator(dataset)


def test_a_dataset_without_batches(strategy):
    with pytest.raises(ValueError, match="no batch dimension"):
        strategy.make_dataset_iterator(jt.data.Dataset.range(4))


def test_the_function_is_called_once_and_its_batches_are_those_of_replicas(strategy):
    contexts = []

    def input_fn(context):
        contexts.append(context)
        return jt.data.Dataset.range(6).batch(context.get_per_replica_batch_size(6))

    iterator = strategy.make_input_fn_iterator(input_fn)
    for _ in range(2):
        iterator.initialize()
        assert rest(strategy, iterator) == [[[0, 1, 2], [3, 4, 5]]]
    (context,) = contexts
    assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
    assert context.num_replicas_in_sync == 2


def test_one_dataset_a_worker_only(strategy):
    with pytest.raises(ValueError, match=r"must be InputReplicationMode.PER_WORKER, got .*PER_REP"):
        strategy.make_input_fn_iterator(lambda context: None, PER_REPLICA)


def test_experimental_run_takes_one_element(strategy):
    iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(8).batch(4))
    results = [strategy.experimental_run(lambda x: x * 2, iterator) for _ in range(2)]
    assert [parts(strategy, result) for result in results] == [
        [[0, 2], [4, 6]],
        [[8, 10], [12, 14]],
    ]
    with pytest.raises(jt.errors.OutOfRangeError):
        strategy.experimental_run(lambda x: x * 2, iterator)


def test_experimental_run_without_an_iterator(strategy):
    ids = strategy.experimental_run(lambda: jt.get_replica_context().replica_id_in_sync_group)
    assert strategy.experimental_local_results(ids) == (0, 1)


def test_experimental_run_takes_no_values(strategy):
    with pytest.raises(TypeError, match=r"takes an iterator .* got Array\(1.*strategy.run"):
        strategy.experimental_run(lambda x: x, jnp.asarray(1))


@pytest.mark.parametrize("how", ["captured", "argument"])
def test_compiled_steps_go_on_after_initialize(strategy, how):
    iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(8).batch(4))
    traces = []

    def step(own=iterator):
        traces.append(own)
        return strategy.reduce("SUM", strategy.experimental_run(jnp.sum, own))

    compiled = jt.function(step)
    arguments = (iterator,) if how == "argument" else ()
    counts = set()
    for _ in range(2):
        iterator.initialize()
        assert [int(compiled(*arguments)) for _ in range(2)] == [6, 22]
        with pytest.raises(jt.errors.OutOfRangeError):
            compiled(*arguments)
        counts.add(len(traces))
    assert len(counts) == 1  # the second pass compiles nothing


def test_input_of_parameter_servers_is_read_on_the_workers():
    experimental = jt.compat.v1.distribute.experimental
    with jt.testing.LocalCluster(workers=1, ps=1) as cluster:
        strategy = experimental.ParameterServerStrategy(cluster.resolver)
        with pytest.raises(ValueError, match=r"on the coordinator.*create_per_worker_dataset"):
            strategy.make_dataset_iterator(jt.data.Dataset.range(8).batch(4))
        with pytest.raises(ValueError, match=r"on the coordinator.*create_per_worker_dataset"):
            strategy.make_input_fn_iterator(lambda context: jt.data.Dataset.range(8).batch(4))
        updated = strategy.update_config_proto(jt.compat.v1.ConfigProto())
        assert updated.device_filters == ["/job:ps", "/job:worker"]

        def step(iterator):
            return strategy.reduce("SUM", strategy.experimental_run(jnp.sum, iterator))

        def on_worker():
            iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(8).batch(4))
            return [int(step(iterator)) for _ in range(2)]

        coordinator = jt.coordinator.ClusterCoordinator(strategy)
        iterator = iter(
            coordinator.create_per_worker_dataset(lambda: jt.data.Dataset.range(8).batch(4))
        )
        assert coordinator.schedule(step, args=(iterator,)).fetch() == 6
        assert coordinator.schedule(on_worker).fetch() == [6, 22]


def test_the_function_may_return_one_that_makes_each_element(strategy):
    numbers = iter(range(3))

    def element():
        try:
            return np.full(1, next(numbers), np.int32)
        except StopIteration:
            raise jt.errors.OutOfRangeError("no more") from None

    iterator = strategy.make_input_fn_iterator(lambda _: element)
    assert [part.tolist() for part in iterator.get_next().values] == [[0], [1]]
    assert [part.tolist() for part in iterator.get_next().values] == [[2], []]
    with pytest.raises(jt.errors.OutOfRangeError):
        iterator.get_next()
