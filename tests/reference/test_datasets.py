"""The documents' examples that use datasets.

TensorFlow's `Dataset.range` counts in int64, which becomes int32 on JAX's devices.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from jaxtribute._topology import Topology
from jaxtribute.input import InputSetting, distribute
from tests.reference._printed import assert_per_replica, assert_tensor


def two_devices() -> jt.MirroredStrategy:
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


def values_of(dist_dataset):
    return [[part.tolist() for part in x.values] for x in dist_dataset]


# --- experimental_distribute_dataset ---------------------------------------------------------


class TestExperimentalDistributeDataset:
    """000, 001, 002, 003, `experimental_distribute_dataset`."""

    def test_the_example(self):
        """000, 001, 002, 003: "The following is an example"."""
        global_batch_size = 2
        # Passing the devices is optional.
        strategy = jt.MirroredStrategy(devices=["CPU:0", "CPU:1"])
        # Create a dataset
        dataset = jt.data.Dataset.range(4).batch(global_batch_size)
        # Distribute that dataset
        dist_dataset = strategy.experimental_distribute_dataset(dataset)

        @jt.function
        def replica_fn(input):
            return input * 2

        result = []
        # Iterate over the `DistributedDataset`
        for x in dist_dataset:
            # process dataset elements
            result.append(strategy.run(replica_fn, args=(x,)))
        first, second = result
        assert_per_replica(first, ((1,), "int32", [0]), ((1,), "int32", [2]))
        assert_per_replica(second, ((1,), "int32", [4]), ((1,), "int32", [6]))
        assert str(result) == (
            "[PerReplica:{\n"
            "  0: Array([0], dtype=int32),\n"
            "  1: Array([2], dtype=int32)\n"
            "}, PerReplica:{\n"
            "  0: Array([4], dtype=int32),\n"
            "  1: Array([6], dtype=int32)\n"
            "}]"
        )

    def test_it_is_iterated_like_a_regular_dataset(self):
        """000, 001, 002, 003: "can be iterated over similar to regular datasets"."""
        dataset = two_devices().experimental_distribute_dataset(jt.data.Dataset.range(4).batch(2))
        assert isinstance(dataset, jt.DistributedDataset)
        assert values_of(dataset) == values_of(dataset) == [[[0], [1]], [[2], [3]]]

    def test_no_more_transformations_can_be_added(self):
        """000, 001, 002, 003: "The user cannot add any more transformations"."""
        dataset = two_devices().experimental_distribute_dataset(jt.data.Dataset.range(4).batch(2))
        with pytest.raises(AttributeError, match="before it is distributed"):
            dataset.map(lambda x: x)

    def test_an_iterator_is_created_and_the_type_examined(self):
        """000, 001, 002, 003: "You can only create an iterator or examine the `tf.TypeSpec`"."""
        dataset = two_devices().experimental_distribute_dataset(jt.data.Dataset.range(4).batch(2))
        assert_per_replica(next(iter(dataset)), ((1,), "int32", [0]), ((1,), "int32", [1]))
        spec = jt.TensorSpec([None], jnp.int32)
        assert dataset.element_spec == jt.PerReplicaSpec(spec, spec)

    def test_each_replica_gets_data_of_the_new_batch_size(self):
        """000, 001, 002, 003: "the global batch size divided by the number of replicas"."""
        dataset = two_devices().experimental_distribute_dataset(jt.data.Dataset.range(8).batch(8))
        (x,) = dataset
        assert isinstance(x, jt.DistributedValues)
        assert_per_replica(x, ((4,), "int32", [0, 1, 2, 3]), ((4,), "int32", [4, 5, 6, 7]))

    def test_data_is_split_among_devices_whatever_the_autosharding(self):
        """000, 001, 002, 003: "This will happen regardless of multi-worker autosharding"."""
        options = jt.data.Options()
        options.experimental_distribute.auto_shard_policy = jt.data.experimental.AutoShardPolicy.OFF
        dataset = jt.data.Dataset.range(4).batch(2).with_options(options)
        dist_dataset = two_devices().experimental_distribute_dataset(dataset)
        assert values_of(dist_dataset) == [[[0], [1]], [[2], [3]]]

    def test_workers_process_elements_that_do_not_overlap(self):
        """000, 001, 002, 003: "a global batch size of non-overlapping dataset elements"."""
        dataset = jt.data.Dataset.range(8).batch(4)
        found = [values_of(self._of_worker(dataset, worker)) for worker in range(2)]
        assert found == [[[[0, 1]], [[4, 5]]], [[[2, 3]], [[6, 7]]]]

    def test_reader_datasets_are_sharded_by_file(self, tmp_path):
        """000, 001, 002, 003: "will attempt to shard the input dataset by files"."""
        for name in "ab":
            (tmp_path / name).write_text(f"{name}0\n{name}1\n")
        dataset = jt.data.TextLineDataset([str(tmp_path / name) for name in "ab"]).batch(2)
        found = [values_of(self._of_worker(dataset, worker)) for worker in range(2)]
        assert found == [[[[b"a0"]], [[b"a1"]]], [[[b"b0"]], [[b"b1"]]]]

    def test_with_less_than_one_file_per_worker_autosharding_is_disabled(self, tmp_path):
        """000, 001, 002, 003: "if you have less than one input file per worker"."""
        (tmp_path / "a").write_text("a0\na1\n")
        dataset = jt.data.TextLineDataset(str(tmp_path / "a")).batch(2)
        with pytest.raises(ValueError, match="not enough files"):
            self._of_worker(dataset, 0)
        options = jt.data.Options()
        options.experimental_distribute.auto_shard_policy = jt.data.AutoShardPolicy.OFF
        dataset = dataset.with_options(options)
        found = [values_of(self._of_worker(dataset, worker)) for worker in range(2)]
        assert found == [[[[b"a0"]], [[b"a1"]]]] * 2

    def test_an_index_inserted_for_each_element_orders_outputs(self):
        """000, 001, 002, 003: "You can however insert an index for each element in the batch"."""
        strategy = two_devices()
        features = np.arange(7, dtype=np.float32) + 0.5
        dataset = jt.data.Dataset.from_tensor_slices(features).enumerate().batch(4)
        dist_dataset = strategy.experimental_distribute_dataset(dataset)

        @jt.function
        def predict(index, x):
            return index, x * 2

        outputs = {}
        for element in dist_dataset:
            for index, y in strategy.experimental_local_results(
                strategy.run(predict, args=element)
            ):
                outputs.update(zip(index.tolist(), y.tolist(), strict=True))
        assert [outputs[i] for i in range(7)] == (features * 2).tolist()

    @staticmethod
    def _of_worker(dataset, worker):
        context = jt.InputContext(2, worker, 2)
        return distribute(dataset, InputSetting(Topology(jax.devices()[:1]), context), None)


# --- distribute_datasets_from_function -------------------------------------------------------


class TestDistributeDatasetsFromFunction:
    """000, 001, 002, 003, `distribute_datasets_from_function`."""

    def test_every_replica_dequeues_one_batch(self):
        """000, 001, 002, 003: "two batches will be dequeued from the `Dataset` every step"."""
        dist_dataset = two_devices().distribute_datasets_from_function(
            lambda ctx: jt.data.Dataset.range(8).batch(2)
        )
        assert isinstance(dist_dataset, jt.DistributedDataset)
        assert values_of(dist_dataset) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]

    def test_the_per_replica_batch_size_is_computed(self):
        """000, 001, 002, 003: "computed using `input_context.get_per_replica_batch_size`"."""
        contexts = []

        def dataset_fn(input_context):
            contexts.append(input_context)
            batch_size = input_context.get_per_replica_batch_size(4)
            dataset = jt.data.Dataset.range(8).batch(batch_size)
            return dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

        dist_dataset = two_devices().distribute_datasets_from_function(dataset_fn)
        assert values_of(dist_dataset) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        (context,) = contexts
        assert isinstance(context, jt.InputContext)

    def test_the_element_spec_is_an_input_signature(self):
        """000, 001, 002, 003: "This can be used to set the `input_signature` property"."""
        strategy = two_devices()
        dist_dataset = strategy.distribute_datasets_from_function(
            lambda ctx: jt.data.Dataset.range(8).batch(2)
        )

        @jt.function(input_signature=[dist_dataset.element_spec])
        def train_step(inputs):
            return strategy.run(lambda x: x * 2, args=(inputs,))

        found = [train_step(x) for x in dist_dataset]
        assert_per_replica(found[0], ((2,), "int32", [0, 2]), ((2,), "int32", [4, 6]))
        assert_per_replica(found[1], ((2,), "int32", [8, 10]), ((2,), "int32", [12, 14]))

    def test_infinite_datasets_differ_in_their_seed_only(self):
        """000, 001, 002, 003: "dataset replicas that differ only in their random seed"."""

        def dataset_fn(ctx):
            dataset = jt.data.Dataset.range(100)
            return dataset.shuffle(100, seed=ctx.input_pipeline_id).repeat().batch(10)

        strategy = two_devices()
        options = jt.InputOptions(experimental_replication_mode=jt.InputReplicationMode.PER_REPLICA)
        iterator = iter(strategy.distribute_datasets_from_function(dataset_fn, options))
        first, second = zip(*[next(iterator).values for _ in range(10)], strict=True)
        iterator.close()
        first, second = np.concatenate(first).tolist(), np.concatenate(second).tolist()
        assert first != second
        assert sorted(first) == sorted(second) == list(range(100))

    def test_the_input_function_of_the_v1_document(self):
        """003, `make_input_fn_iterator`: its `input_fn`."""
        global_batch_size = 4

        def input_fn(input_context):
            batch_size = input_context.get_per_replica_batch_size(global_batch_size)
            d = jt.data.Dataset.from_tensors([[1.0]]).repeat().batch(batch_size)
            return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

        strategy = two_devices()
        with strategy.scope():
            iterator = iter(strategy.distribute_datasets_from_function(input_fn))
            x = iterator.get_next()
            iterator.close()
        ones = ((2, 1, 1), "float32", [[[1.0]], [[1.0]]])
        assert_per_replica(x, ones, ones)


# --- Training loops --------------------------------------------------------------------------


class TestTrainingLoops:
    def test_an_epoch_inside_a_function(self):
        """003, opening, "For example": `distribute_train_epoch`."""
        dataset = jt.data.Dataset.range(10).batch(4)
        my_strategy = two_devices()
        with my_strategy.scope():

            @jt.function
            def distribute_train_epoch(dataset):
                def replica_fn(input):
                    # process input and return result
                    return jnp.sum(input)

                total_result = 0
                for x in dataset:
                    per_replica_result = my_strategy.run(replica_fn, args=(x,))
                    total_result += my_strategy.reduce(
                        jt.ReduceOp.SUM, per_replica_result, axis=None
                    )
                return total_result

            dist_dataset = my_strategy.experimental_distribute_dataset(dataset)
            for _ in range(3):
                train_result = distribute_train_epoch(dist_dataset)
                assert_tensor(train_result, (), "int32", 45)

    def test_an_epoch_on_all_devices(self):
        """003, opening, "For example": `my_strategy = tf.distribute.MirroredStrategy()`."""
        my_strategy = jt.MirroredStrategy()
        dist_dataset = my_strategy.experimental_distribute_dataset(
            jt.data.Dataset.range(20).batch(16)
        )
        total = 0
        for x in dist_dataset:
            total += my_strategy.reduce(jt.ReduceOp.SUM, x, axis=0)
        assert_tensor(total, (), "int32", 190)

    def test_a_step_that_takes_an_iterator(self):
        """000, 002, opening: "You can also write your own training loop"."""
        strategy = two_devices()
        generator = np.random.default_rng(0)
        x = generator.random((2, 5)).astype(np.float32)
        y = generator.integers(2, size=(2, 1))

        with strategy.scope():
            kernel = jt.Variable(jnp.full((5, 2), 0.1), name="kernel")
            bias = jt.Variable(jnp.zeros(2), name="bias")
            optimizer = jt.Optimizer(optax.sgd(learning_rate=0.1))

        def dataset_fn(ctx):
            dataset = jt.data.Dataset.from_tensor_slices((x, y))
            return dataset.repeat().batch(1, drop_remainder=True)

        dist_dataset = strategy.distribute_datasets_from_function(dataset_fn)
        iterator = iter(dist_dataset)

        def loss_of(kernel, bias, features, labels):
            logits = features @ kernel + bias
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels[:, 0])

        @jt.function
        def train_step(iterator):
            def step_fn(inputs):
                features, labels = inputs

                def loss_fn():
                    losses = loss_of(kernel.value(), bias.value(), features, labels)
                    return jt.nn.compute_average_loss(losses, global_batch_size=2)

                trainable_variables = [kernel, bias]
                grads = jt.grad(loss_fn, trainable_variables)()
                optimizer.apply_gradients(zip(grads, trainable_variables, strict=True))

            strategy.run(step_fn, args=(next(iterator),))

        for _ in range(3):
            train_step(iterator)
        iterator.close()
        assert train_step.experimental_get_tracing_count() == 1

        # Both examples are in each step, one on each replica.
        expected = (jnp.full((5, 2), 0.1), jnp.zeros(2))
        for _ in range(3):
            grads = jax.grad(lambda p: jnp.mean(loss_of(*p, x, jnp.asarray(y))))(expected)
            expected = jax.tree.map(lambda p, g: p - 0.1 * g, expected, grads)
        np.testing.assert_allclose(kernel.numpy(), expected[0], rtol=1e-5)
        np.testing.assert_allclose(bias.numpy(), expected[1], rtol=1e-5, atol=1e-7)

    @pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
    def test_input_datasets_are_created_inside_or_outside_the_scope(self, inside):
        """000, 001, 002, 003, `scope`: "The following can be either inside or outside"."""
        strategy = two_devices()

        def create():
            return strategy.experimental_distribute_dataset(jt.data.Dataset.range(4).batch(2))

        if inside:
            with strategy.scope():
                dist_dataset = create()
        else:
            dist_dataset = create()
        assert values_of(dist_dataset) == [[[0], [1]], [[2], [3]]]


# --- Datasets and the other methods ----------------------------------------------------------


class TestOtherMethods:
    @pytest.mark.parametrize("way", ["dataset", "function"])
    def test_run_gives_each_replica_its_component(self, way):
        """000, 001, 002, 003, `run`: "such as those produced by a `DistributedDataset`"."""
        strategy = two_devices()
        dataset = jt.data.Dataset.range(4)
        if way == "dataset":
            dist_dataset = strategy.experimental_distribute_dataset(dataset.batch(4))
        else:
            dist_dataset = strategy.distribute_datasets_from_function(lambda _: dataset.batch(2))

        def replica_fn(x):
            return x + 100 * jt.get_replica_context().replica_id_in_sync_group

        result = strategy.run(replica_fn, args=(next(iter(dist_dataset)),))
        assert_per_replica(result, ((2,), "int32", [0, 1]), ((2,), "int32", [102, 103]))

    def test_reduce_over_the_replicas(self):
        """000, 001, 002, 003, `reduce`: a global batch of 8 on two replicas, `axis=None`."""
        strategy = two_devices()
        dataset = jt.data.Dataset.range(8).batch(8)
        (per_replica_result,) = strategy.experimental_distribute_dataset(dataset)
        total = strategy.reduce("sum", per_replica_result, axis=None)
        assert_tensor(total, (4,), "int32", [4, 6, 8, 10])

    def test_reduce_over_the_examples(self):
        """000, 001, 002, 003, `reduce`: a global batch of 8 on two replicas, `axis=0`."""
        strategy = two_devices()
        dataset = jt.data.Dataset.range(8).batch(8)
        (per_replica_result,) = strategy.experimental_distribute_dataset(dataset)
        assert_tensor(strategy.reduce("sum", per_replica_result, axis=0), (), "int32", 28)

    def test_the_mean_of_a_last_partial_batch(self):
        """000, 001, 002, 003, `reduce`: "the correct denominator of 6"."""
        strategy = two_devices()
        options = jt.data.Options()
        options.experimental_distribute.auto_shard_policy = jt.data.AutoShardPolicy.OFF
        values = np.arange(6, dtype=np.float32)
        dataset = jt.data.Dataset.from_tensor_slices(values).batch(8).with_options(options)
        (x,) = strategy.experimental_distribute_dataset(dataset)
        assert_per_replica(x, ((4,), "float32", [0, 1, 2, 3]), ((2,), "float32", [4, 5]))
        assert_tensor(strategy.reduce("MEAN", x, axis=0), (), "float32", 2.5)
        with pytest.raises(ValueError):  # "you would get a shape mismatch"
            strategy.reduce("MEAN", x, axis=None)

    def test_local_results_of_an_element(self):
        """000, 001, 002, 003, `experimental_local_results`."""
        strategy = two_devices()
        (x,) = strategy.experimental_distribute_dataset(jt.data.Dataset.range(2).batch(2))
        first, second = strategy.experimental_local_results(x)
        assert_tensor(first, (1,), "int32", [0])
        assert_tensor(second, (1,), "int32", [1])

    @pytest.mark.parametrize("batch_size", [10, 5, 4])
    def test_a_dataset_of_numpy_input(self, batch_size):
        """003, `experimental_make_numpy_dataset`: its example, batched."""
        strategy = two_devices()
        numpy_input = np.ones([10], dtype=np.float32)
        dataset = strategy.experimental_make_numpy_dataset(numpy_input)
        dist_dataset = strategy.experimental_distribute_dataset(dataset.batch(batch_size))
        total = sum(strategy.reduce("SUM", x, axis=0) for x in dist_dataset)
        assert float(total) == 10.0

    def test_a_dataset_of_numpy_input_for_one_replica(self):
        """003, `experimental_make_numpy_dataset`: its example, which has no batches."""
        strategy = jt.OneDeviceStrategy("CPU:0")
        numpy_input = np.ones([10], dtype=np.float32)
        dataset = strategy.experimental_make_numpy_dataset(numpy_input)
        dist_dataset = strategy.experimental_distribute_dataset(dataset)
        assert [float(x) for x in dist_dataset] == [1.0] * 10

    def test_lists_of_numpy_arrays_are_stacked(self):
        """003, `experimental_make_numpy_dataset`: "lists of Numpy arrays are stacked"."""
        strategy = two_devices()
        dataset = strategy.experimental_make_numpy_dataset([np.arange(2), 10 * np.arange(2)])
        assert [x.tolist() for x in dataset] == [[0, 1], [0, 10]]
