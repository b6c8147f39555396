"""Steps that a coordinator gives to workers, with variables on parameter servers."""

import numpy as np
import jax.numpy as jnp
import jaxtribute as jt

cluster_resolver = jt.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type in ("worker", "ps"):
    server = jt.Server(
        cluster_resolver.cluster_spec(),
        job_name=cluster_resolver.task_type,
        task_index=cluster_resolver.task_id,
    )
    server.join()

strategy = jt.experimental.ParameterServerStrategy(
    cluster_resolver,
    variable_partitioner=jt.experimental.partitioners.FixedShardsPartitioner(2),
)
coordinator = jt.experimental.coordinator.ClusterCoordinator(strategy)

with strategy.scope():
    table = jt.Variable(jnp.zeros([10, 1]), name="table")
    steps = jt.Variable(0, dtype=jnp.int32, aggregation=jt.VariableAggregation.ONLY_FIRST_REPLICA)


def dataset_fn():
    ids = np.arange(80) % 10
    labels = (ids % 2).astype(np.float32)
    return jt.data.Dataset.from_tensor_slices((ids, labels)).repeat().batch(20)


@jt.function
def step_fn(iterator):
    def replica_fn(ids, labels):
        def loss_fn():
            scores = jnp.squeeze(jt.nn.embedding_lookup(table, ids), axis=-1)
            return jnp.mean(jnp.square(scores - labels))

        loss, gradient = jt.value_and_grad(loss_fn, table)()
        table.scatter_sub(jt.IndexedSlices(gradient.values, gradient.indices))
        steps.assign_add(1)
        return loss

    return strategy.run(replica_fn, args=next(iterator))


iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
for _ in range(20):
    loss = coordinator.schedule(step_fn, args=(iterator,))
coordinator.join()
try:
    print(f"steps {int(steps)}, loss below 0.1: {float(loss.fetch()) < 0.1}")
except jt.errors.UnavailableError:
    print("a server is gone")
