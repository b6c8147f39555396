"""Input made by each worker, values made by each replica, and what they become together."""

import jax.numpy as jnp
import jaxtribute as jt
import numpy as np
from jaxtribute.data import Options as DatasetOptions
from jaxtribute import InputOptions, MirroredStrategy

strategy = MirroredStrategy(devices=["CPU:0", "CPU:1"])


def dataset_fn(input_context: jt.InputContext):
    batch_size = input_context.get_per_replica_batch_size(global_batch_size=4)
    dataset = jt.data.Dataset.range(8).batch(batch_size)
    options = DatasetOptions()
    options.experimental_distribute.auto_shard_policy = jt.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.with_options(options)
    return dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)


dataset = strategy.distribute_datasets_from_function(
    dataset_fn, InputOptions(experimental_fetch_to_device=True)
)


@jt.function
def replica_total(values):
    def replica_fn(values):
        context = jt.get_replica_context()
        return context.all_reduce("sum", jnp.sum(values))

    return strategy.run(replica_fn, args=(values,))


for batch in dataset:
    print([int(each) for each in strategy.experimental_local_results(replica_total(batch))])


def value_fn(context):
    return jnp.asarray(10 * context.replica_id_in_sync_group, jnp.int32)


ids = strategy.experimental_distribute_values_from_function(value_fn)
rows = strategy.run(lambda value: jnp.expand_dims(jnp.asarray(value), axis=0), args=(ids,))
print(np.asarray(strategy.gather(rows, axis=0)))
print(np.asarray(strategy.reduce(jt.ReduceOp.MEAN, ids, axis=None)))


@jt.function(input_signature=[jt.TensorSpec([None], jnp.float32)])
def scaled(x):
    for _ in range(2):
        x = jnp.where(x > 0, 2 * x, x)
    return jnp.concatenate([x, jnp.ones_like(x)], 0)


print(np.asarray(scaled(jnp.asarray([1.0, -1.0]))))
