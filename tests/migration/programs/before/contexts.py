"""What replicas do together, in the shapes of the reference's examples."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

with strategy.scope():
    mirrored_variable = tf.Variable(1.0)
    counter = tf.Variable(
        tf.constant(0.0),
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )
assert tf.distribute.get_strategy() is not strategy
print(len(strategy.experimental_local_results(mirrored_variable)))


@tf.function
def run():
    def value_fn(value_context: tf.distribute.experimental.ValueContext):
        return tf.reshape(tf.range(2), shape=(1, 2)) + value_context.replica_id_in_sync_group

    per_replica = strategy.experimental_distribute_values_from_function(value_fn)

    def replica_fn(value):
        context = tf.distribute.get_replica_context()
        counter.assign_add(tf.cast(tf.reduce_max(value), dtype=tf.float32))
        gathered = context.all_gather(value, axis=0)
        total, mean = context.all_reduce(tf.distribute.ReduceOp.SUM, [value, value / 2])
        return {"gathered": gathered, "total": total, "mean": mean}

    return strategy.run(replica_fn, args=(per_replica,))


result = run()
for name in sorted(result):
    print(name, strategy.experimental_local_results(result[name])[0].numpy().tolist())
print(counter.numpy())


def merge_fn(distribution, value):
    return distribution.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None)


def merging_fn(value):
    return tf.distribute.get_replica_context().merge_call(merge_fn, args=(value,))


parts = iter([tf.constant([1.0, 2.0]), tf.constant([5.0, 6.0])])
values = strategy.experimental_distribute_values_from_function(lambda _: next(parts))
print(strategy.experimental_local_results(strategy.run(merging_fn, args=(values,)))[0].numpy())
print(strategy.reduce("MEAN", values, axis=0).numpy(), strategy.gather(values, axis=0).numpy())
print(np.asarray(strategy.run(lambda: tf.identity(mirrored_variable) * 2.0).values))
