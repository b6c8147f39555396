"""Datasets that a function makes for each worker: the rules R126 to R132, and R220."""

import jax
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.data import Dataset
from jaxtribute.input import distribute_from_function
from tests.input._workers import mirrored, parts, setting, steps


def described(context):
    return context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync


def steps_from(dataset_fn, workers=1, worker=0, replicas=1):
    """Return what one worker gets, which does not ask the others."""
    own = setting(workers, worker, replicas)
    return steps(distribute_from_function(dataset_fn, own, None))


class Calls:
    """A function that makes datasets, and notes what it was told."""

    def __init__(self, dataset):
        self.contexts = []
        self._dataset = dataset

    def __call__(self, context):
        self.contexts.append(described(context))
        return self._dataset


# --- Who calls the function ------------------------------------------------------------------


class TestCalls:
    """R126: once for each worker."""

    @pytest.mark.parametrize(
        ("workers", "worker", "replicas", "context"),
        [(1, 0, 1, (1, 0, 1)), (1, 0, 2, (1, 0, 2)), (2, 0, 1, (2, 0, 2)), (2, 1, 1, (2, 1, 2))],
    )
    def test_R126_it_is_told_of_the_workers(self, workers, worker, replicas, context):
        dataset_fn = Calls(Dataset.range(4).batch(2))
        steps_from(dataset_fn, workers, worker, replicas)
        assert dataset_fn.contexts == [context]

    def test_R126_a_strategy_calls_it_once_for_all_passes(self):
        dataset_fn = Calls(Dataset.range(4).batch(2))
        dataset = mirrored(2).distribute_datasets_from_function(dataset_fn)
        assert steps(dataset) == steps(dataset) == [[[0, 1], [2, 3]]]
        assert dataset.element_spec is not None
        assert dataset_fn.contexts == [(1, 0, 2)]

    def test_the_old_name_still_works(self):
        dataset_fn = Calls(Dataset.range(4).batch(2))
        dataset = mirrored(2).experimental_distribute_datasets_from_function(dataset_fn)
        assert steps(dataset) == [[[0, 1], [2, 3]]]

    @pytest.mark.parametrize(
        "made",
        [
            np.arange(4, dtype=np.int32),
            [np.arange(4, dtype=np.int32)],
            Dataset.range(4).batch(4),
        ],
        ids=["array", "list", "dataset"],
    )
    def test_it_may_return_whatever_can_be_distributed(self, made):
        assert steps_from(lambda context: made) == [[[0, 1, 2, 3]]]


# --- What the replicas get -------------------------------------------------------------------


class TestElements:
    """R127: each replica takes the next element; nothing is divided."""

    @pytest.mark.parametrize(
        ("replicas", "dataset", "expected"),
        [
            pytest.param(
                2,
                Dataset.range(9).batch(2),
                [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]],
                id="R127-batches",
            ),
            pytest.param(
                2, Dataset.range(5), [[0, 1], [2, 3], [4, []]], id="R127-numbers-none-dropped"
            ),
            pytest.param(
                3,
                Dataset.range(8).batch(2),
                [[[0, 1], [2, 3], [4, 5]], [[6, 7], [], []]],
                id="R127-three-replicas",
            ),
            pytest.param(1, Dataset.range(3).batch(2), [[[0, 1]], [[2]]], id="R127-one-replica"),
            pytest.param(2, Dataset.range(0).batch(2), [], id="R127-nothing"),
        ],
    )
    def test_R127(self, replicas, dataset, expected):
        distributed = mirrored(replicas).distribute_datasets_from_function(lambda _: dataset)
        assert steps(distributed) == expected

    def test_R127_the_missing_part_of_a_number_is_an_empty_array(self):
        dataset = mirrored(2).distribute_datasets_from_function(lambda _: Dataset.range(3))
        *_, last = dataset
        assert [part.shape for part in last.values] == [(), (0,)]
        assert [part.dtype for part in last.values] == ["int32", "int32"]

    def test_a_number_beside_a_batch_is_zero_where_there_are_no_examples(self):
        numbers = Dataset.range(3).batch(1).map(lambda x: (x, x.sum() + 7))
        *_, (batch, number) = mirrored(2).distribute_datasets_from_function(lambda _: numbers)
        assert [part.shape for part in batch.values] == [(1,), (0,)]
        assert [int(part) for part in number.values] == [9, 0]

    def test_R127_components_of_a_structure(self):
        data = {"x": np.arange(6, dtype=np.float32).reshape(3, 2), "y": np.arange(3)}
        dataset = mirrored(2).distribute_datasets_from_function(
            lambda _: Dataset.from_tensor_slices(data).batch(1)
        )
        first, last = dataset
        assert parts(first["x"]) == [[[0.0, 1.0]], [[2.0, 3.0]]]
        assert parts(first["y"]) == [[0], [1]]
        assert [part.shape for part in last["x"].values] == [(1, 2), (0, 2)]

    def test_R127_text(self):
        text = Dataset.from_tensor_slices(["a", "b", "c", "d", "e"])
        batches = mirrored(2).distribute_datasets_from_function(lambda _: text.batch(1))
        assert steps(batches) == [[[b"a"], [b"b"]], [[b"c"], [b"d"]], [[b"e"], []]]
        single = mirrored(2).distribute_datasets_from_function(lambda _: text.take(2))
        assert steps(single) == [[b"a", b"b"]]

    @pytest.mark.parametrize(
        ("worker", "expected"),
        [(0, [[0, 1, 2, 3], [8, 9, 10, 11]]), (1, [[4, 5, 6, 7], [12, 13]])],
    )
    def test_R128_with_sharding_by_hand(self, worker, expected):
        def dataset_fn(context):
            dataset = Dataset.range(14).batch(4)
            return dataset.shard(context.num_input_pipelines, context.input_pipeline_id)

        found = steps_from(dataset_fn, workers=2, worker=worker)
        assert found == [[batch] for batch in expected]

    @pytest.mark.parametrize(("worker", "total"), [(0, 10), (1, 35)])
    def test_R129_sums_of_the_first_batches(self, worker, total):
        def dataset_fn(context):
            return Dataset.range(100).repeat().batch(5).shard(2, context.input_pipeline_id)

        own = setting(2, worker, 1)
        iterator = iter(distribute_from_function(dataset_fn, own, None))
        assert int(next(iterator).values[0].sum()) == total
        iterator.close()

    @pytest.mark.parametrize("worker", [0, 1])
    def test_R150_policies_do_not_apply(self, worker):
        options = jt.data.Options()
        options.experimental_distribute.auto_shard_policy = jt.data.AutoShardPolicy.DATA
        dataset = Dataset.range(4).batch(2).with_options(options)
        found = steps_from(lambda context: dataset, workers=2, worker=worker)
        assert found == [[[0, 1]], [[2, 3]]]


# --- InputContext ----------------------------------------------------------------------------


class TestInputContext:
    """R130."""

    def test_R130_batches_divide_exactly(self):
        context = jt.InputContext(num_replicas_in_sync=6)
        assert context.get_per_replica_batch_size(12) == 2
        with pytest.raises(ValueError, match=r"13 examples.*6 replicas.*such as 18"):
            context.get_per_replica_batch_size(13)

    def test_R130_its_text_names_the_pipeline_and_their_number(self):
        text = str(jt.InputContext(num_input_pipelines=42, input_pipeline_id=23))
        assert "input pipeline id: 23" in text
        assert "total: 42" in text

    def test_by_default_there_is_one_of_each(self):
        assert described(jt.InputContext()) == (1, 0, 1)

    @pytest.mark.parametrize(
        "name", ["num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync"]
    )
    def test_it_cannot_be_changed(self, name):
        with pytest.raises(AttributeError):
            setattr(jt.InputContext(), name, 2)


# --- InputOptions ----------------------------------------------------------------------------

PER_REPLICA = jt.InputReplicationMode.PER_REPLICA


class TestPerReplica:
    """R131: a dataset for each replica."""

    @pytest.mark.parametrize(
        "options",
        [
            jt.InputOptions(experimental_replication_mode=PER_REPLICA),
            jt.InputOptions(
                experimental_fetch_to_device=False, experimental_replication_mode=PER_REPLICA
            ),
            jt.InputOptions(
                experimental_fetch_to_device=False,
                experimental_replication_mode=PER_REPLICA,
                experimental_place_dataset_on_device=True,
            ),
        ],
        ids=["fetched", "on_the_host", "placed"],
    )
    def test_R131_each_replica_reads_its_own(self, options):
        dataset_fn = Calls(Dataset.range(4).batch(2))
        dataset = mirrored(2).distribute_datasets_from_function(dataset_fn, options)
        assert steps(dataset) == [[[0, 1], [0, 1]], [[2, 3], [2, 3]]]
        assert dataset_fn.contexts == [(2, 0, 2), (2, 1, 2)]

    def test_R131_datasets_of_different_length_end_together(self):
        dataset = mirrored(2).distribute_datasets_from_function(
            lambda context: Dataset.range(2 + 2 * context.input_pipeline_id).batch(2),
            jt.InputOptions(experimental_replication_mode=PER_REPLICA),
        )
        assert steps(dataset) == [[[0, 1], [0, 1]], [[], [2, 3]]]

    def test_R131_a_dataset_that_exists_is_not_for_one_replica(self):
        options = jt.InputOptions(experimental_replication_mode=PER_REPLICA)
        with pytest.raises(NotImplementedError, match="distribute_datasets_from_function"):
            mirrored(2).experimental_distribute_dataset(Dataset.range(4).batch(2), options)

    def test_R131_several_workers_are_not_supported(self):
        options = jt.InputOptions(experimental_replication_mode=PER_REPLICA)
        dataset_fn = Calls(Dataset.range(4).batch(2))
        with pytest.raises(NotImplementedError, match="PER_WORKER"):
            distribute_from_function(dataset_fn, setting(2, 0, 1), options)
        assert dataset_fn.contexts == []


class TestInputOptions:
    def test_A7_the_defaults(self):
        options = jt.InputOptions()
        assert options.experimental_fetch_to_device is True
        assert options.experimental_replication_mode is jt.InputReplicationMode.PER_WORKER
        assert options.experimental_place_dataset_on_device is False
        assert options.experimental_per_replica_buffer_size == 1

    def test_A7_the_modes(self):
        assert [mode.name for mode in jt.InputReplicationMode] == ["PER_WORKER", "PER_REPLICA"]

    @pytest.mark.parametrize("way", ["dataset", "function"])
    def test_elements_stay_on_the_host_if_they_are_not_to_be_fetched(self, way):
        options = jt.InputOptions(experimental_fetch_to_device=False)
        source = Dataset.range(6).batch(4)
        if way == "dataset":
            dataset = mirrored(2).experimental_distribute_dataset(source, options)
        else:
            dataset = mirrored(2).distribute_datasets_from_function(
                lambda _: source.unbatch().batch(2), options
            )
        first = next(iter(dataset))
        assert [type(part) for part in first.values] == [np.ndarray, np.ndarray]
        assert parts(first) == [[0, 1], [2, 3]]

    def test_elements_on_the_host_keep_their_types(self):
        options = jt.InputOptions(experimental_fetch_to_device=False)
        dataset = mirrored(2).experimental_distribute_dataset(Dataset.range(4).batch(4), options)
        assert {spec.dtype for spec in dataset.element_spec.value_specs} == {np.dtype("int64")}
        assert {part.dtype for part in next(iter(dataset)).values} == {np.dtype("int64")}

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_elements_on_the_host_can_be_run_with(self, compiled):
        options = jt.InputOptions(experimental_fetch_to_device=False)
        dataset = mirrored(2).experimental_distribute_dataset(Dataset.range(4).batch(4), options)

        def step(x):
            return mirrored(2).run(lambda x: x * 2, args=(x,))

        result = (jt.function(step) if compiled else step)(next(iter(dataset)))
        assert parts(result) == [[0, 2], [4, 6]]

    def test_fetched_elements_are_on_the_devices(self):
        dataset = mirrored(2).distribute_datasets_from_function(lambda _: Dataset.range(4).batch(2))
        first = next(iter(dataset))
        assert [part.devices() for part in first.values] == [{d} for d in jax.devices()[:2]]


class TestContradictions:
    """R132."""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            pytest.param(
                jt.InputOptions(experimental_place_dataset_on_device=True),
                "PER_REPLICA",
                id="R132-without-per-replica",
            ),
            pytest.param(
                jt.InputOptions(
                    experimental_place_dataset_on_device=True,
                    experimental_replication_mode=PER_REPLICA,
                ),
                "experimental_fetch_to_device=False",
                id="R132-with-fetching",
            ),
        ],
    )
    @pytest.mark.parametrize("way", ["dataset", "function"])
    def test_R132(self, options, message, way):
        source = Dataset.range(4).batch(2)
        with pytest.raises(ValueError, match=message):
            if way == "dataset":
                mirrored(2).experimental_distribute_dataset(source, options)
            else:
                mirrored(2).distribute_datasets_from_function(lambda _: source, options)


# --- Arrays, as in the v1 API ----------------------------------------------------------------


class TestNumpyDataset:
    """R220."""

    @pytest.mark.parametrize(
        ("arrays", "elements"),
        [
            (np.arange(3), [0, 1, 2]),
            ([np.arange(2), 10 * np.arange(2)], [[0, 1], [0, 10]]),
            ((np.arange(2), 10 * np.arange(2)), [(0, 0), (1, 10)]),
            ({"x": np.arange(2)}, [{"x": 0}, {"x": 1}]),
            (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        ],
        ids=["array", "list_is_stacked", "tuple_stays", "dict", "matrix"],
    )
    @pytest.mark.parametrize("replicas", [1, 2])
    def test_R220(self, arrays, elements, replicas):
        dataset = mirrored(replicas).experimental_make_numpy_dataset(arrays)
        found = [jax.tree.map(lambda x: np.asarray(x).tolist(), element) for element in dataset]
        assert found == elements

    def test_R220_it_is_distributed_like_any_other(self):
        dataset = mirrored(2).experimental_make_numpy_dataset(np.arange(8), session=None).batch(4)
        distributed = mirrored(2).experimental_distribute_dataset(dataset)
        assert steps(distributed) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]

    def test_R220_of_every_strategy(self):
        for strategy in (jt.get_strategy(), jt.OneDeviceStrategy("CPU:1"), mirrored(2)):
            dataset = strategy.experimental_make_numpy_dataset(np.arange(2))
            assert list(dataset.as_numpy_iterator()) == [0, 1]
