"""Input made by each worker, values made by each replica, and what they become together."""

import tensorflow as tf
from tensorflow.data import Options as DatasetOptions
from tensorflow.distribute import InputOptions, MirroredStrategy

strategy = MirroredStrategy(devices=["CPU:0", "CPU:1"])


def dataset_fn(input_context: tf.distribute.InputContext):
    batch_size = input_context.get_per_replica_batch_size(global_batch_size=4)
    dataset = tf.data.Dataset.range(8).batch(batch_size)
    options = DatasetOptions()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.with_options(options)
    return dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)


dataset = strategy.distribute_datasets_from_function(
    dataset_fn, InputOptions(experimental_fetch_to_device=True)
)


@tf.function
def replica_total(values):
    def replica_fn(values):
        context = tf.distribute.get_replica_context()
        return context.all_reduce("sum", tf.math.reduce_sum(values, name="total"))

    return strategy.run(replica_fn, args=(values,))


for batch in dataset:
    print([int(each) for each in strategy.experimental_local_results(replica_total(batch))])


def value_fn(context):
    return tf.constant(10 * context.replica_id_in_sync_group, tf.int32)


ids = strategy.experimental_distribute_values_from_function(value_fn)
rows = strategy.run(lambda value: tf.expand_dims(tf.identity(value), axis=0), args=(ids,))
print(strategy.gather(rows, axis=0).numpy())
print(strategy.reduce(tf.distribute.ReduceOp.MEAN, ids, axis=None).numpy())


@tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
def scaled(x):
    for _ in tf.range(2):
        x = tf.where(x > 0, 2 * x, x)
    return tf.concat([x, tf.ones_like(x)], 0)


print(scaled(tf.constant([1.0, -1.0])).numpy())
