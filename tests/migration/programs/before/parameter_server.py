"""Steps that a coordinator gives to workers, with variables on parameter servers."""

import numpy as np
import tensorflow as tf

cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        cluster_resolver.cluster_spec(),
        job_name=cluster_resolver.task_type,
        task_index=cluster_resolver.task_id,
    )
    server.join()

strategy = tf.distribute.experimental.ParameterServerStrategy(
    cluster_resolver,
    variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2),
)
coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)

with strategy.scope():
    table = tf.Variable(tf.zeros([10, 1]), name="table")
    steps = tf.Variable(0, dtype=tf.int32, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def dataset_fn():
    ids = np.arange(80) % 10
    labels = (ids % 2).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((ids, labels)).repeat().batch(20)


@tf.function
def step_fn(iterator):
    def replica_fn(ids, labels):
        with tf.GradientTape() as tape:
            scores = tf.squeeze(tf.nn.embedding_lookup(table, ids), axis=-1)
            loss = tf.reduce_mean(tf.square(scores - labels))
        gradient = tape.gradient(loss, table)
        table.scatter_sub(tf.IndexedSlices(gradient.values, gradient.indices))
        steps.assign_add(1)
        return loss

    return strategy.run(replica_fn, args=next(iterator))


iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
for _ in range(20):
    loss = coordinator.schedule(step_fn, args=(iterator,))
coordinator.join()
try:
    print(f"steps {int(steps)}, loss below 0.1: {float(loss.fetch()) < 0.1}")
except tf.errors.UnavailableError:
    print("a server is gone")
