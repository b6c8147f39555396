"""What replicas do together, in the shapes of the reference's examples."""

import numpy as np
import jax.numpy as jnp
import jaxtribute as jt

strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])

with strategy.scope():
    mirrored_variable = jt.Variable(1.0)
    counter = jt.Variable(
        jnp.asarray(0.0),
        synchronization=jt.VariableSynchronization.ON_READ,
        aggregation=jt.VariableAggregation.SUM,
    )
assert jt.get_strategy() is not strategy
print(len(strategy.experimental_local_results(mirrored_variable)))


@jt.function
def run():
    def value_fn(value_context: jt.experimental.ValueContext):
        return jnp.reshape(jnp.arange(2), shape=(1, 2)) + value_context.replica_id_in_sync_group

    per_replica = strategy.experimental_distribute_values_from_function(value_fn)

    def replica_fn(value):
        context = jt.get_replica_context()
        counter.assign_add(jnp.asarray(jnp.max(value), dtype=jnp.float32))
        gathered = context.all_gather(value, axis=0)
        total, mean = context.all_reduce(jt.ReduceOp.SUM, [value, value / 2])
        return {"gathered": gathered, "total": total, "mean": mean}

    return strategy.run(replica_fn, args=(per_replica,))


result = run()
for name in sorted(result):
    print(name, np.asarray(strategy.experimental_local_results(result[name])[0]).tolist())
print(np.asarray(counter))


def merge_fn(distribution, value):
    return distribution.reduce(jt.ReduceOp.MEAN, value, axis=None)


def merging_fn(value):
    return jt.get_replica_context().merge_call(merge_fn, args=(value,))


parts = iter([jnp.asarray([1.0, 2.0]), jnp.asarray([5.0, 6.0])])
values = strategy.experimental_distribute_values_from_function(lambda _: next(parts))
print(np.asarray(strategy.experimental_local_results(strategy.run(merging_fn, args=(values,)))[0]))
print(np.asarray(strategy.reduce("MEAN", values, axis=0)), np.asarray(strategy.gather(values, axis=0)))
print(np.asarray(strategy.run(lambda: jnp.asarray(mirrored_variable) * 2.0).values))
