"""What the four reference documents name: classes, methods, arguments and attributes.

Facts only, each with the numbers of the documents that have it. Names are written out where a
document shortens them, and what an example calls on `strategy` or `dataset` is listed with the
class of that object. In calls, `_` stands for any value.
"""

# What all strategies have in their document.
_METHODS = [
    "distribute_datasets_from_function(dataset_fn, options=None)",
    "experimental_distribute_dataset(dataset, options=None)",
    "experimental_local_results(value)",
    "run(fn, args=(), kwargs=None, options=None)",
    "scope()",
]
_METHODS_OF_VERSION_2 = [
    "experimental_distribute_values_from_function(value_fn)",
    "gather(value, axis)",
    "reduce(reduce_op, value, axis)",
]
_ATTRIBUTES = ["cluster_resolver", "extended", "num_replicas_in_sync"]
_CALLS = [
    "experimental_distribute_dataset(_)",
    "experimental_distribute_values_from_function(_)",
    "experimental_local_results(_)",
    "reduce(_, _, axis=_)",
    "run(_)",
    "run(_, args=_)",
    "scope()",
]

# For each class its arguments, and those of its methods.
SIGNATURES: dict[str, list[str]] = {
    "tf.distribute.experimental.MultiWorkerMirroredStrategy": [  # 000
        "(communication=tf.distribute.experimental.CollectiveCommunication.AUTO, "
        "cluster_resolver=None)",
        *_METHODS,
        *_METHODS_OF_VERSION_2,
    ],
    "tf.distribute.experimental.ParameterServerStrategy": [  # 001
        "(cluster_resolver, variable_partitioner=None)",
        *_METHODS,
        *_METHODS_OF_VERSION_2,
    ],
    "tf.distribute.MultiWorkerMirroredStrategy": [  # 002
        "(cluster_resolver=None, communication_options=None)",
        *_METHODS,
        *_METHODS_OF_VERSION_2,
    ],
    "tf.compat.v1.distribute.MirroredStrategy": [  # 003
        "(devices=None, cross_device_ops=None)",
        *_METHODS,
        "experimental_make_numpy_dataset(numpy_input, session=None)",
        "experimental_run(fn, input_iterator=None)",
        "make_dataset_iterator(dataset)",
        "make_input_fn_iterator(input_fn, "
        "replication_mode=tf.distribute.InputReplicationMode.PER_WORKER)",
        "reduce(reduce_op, value, axis=None)",
        "update_config_proto(config_proto)",
    ],
}

# What objects of a class have.
ATTRIBUTES: dict[str, dict[str, str]] = {
    "tf.Module": {
        "variables": "001",
    },
    "tf.Tensor": {
        "device": "000 001 002 003",
    },
    "tf.Variable": {
        "device": "001",
        "name": "001",
    },
    "tf.compat.v1.distribute.MirroredStrategy": dict.fromkeys(_ATTRIBUTES, "003"),
    "tf.distribute.DistributedDataset": {
        "element_spec": "000 001 002 003",
    },
    "tf.distribute.InputContext": {
        "input_pipeline_id": "003",
        "num_input_pipelines": "003",
    },
    "tf.distribute.MultiWorkerMirroredStrategy": dict.fromkeys(_ATTRIBUTES, "002"),
    "tf.distribute.ReplicaContext": {
        "replica_id_in_sync_group": "000 001 002 003",
    },
    "tf.distribute.ShardedVariable": {
        "variables": "001",
    },
    "tf.distribute.StrategyExtended": {
        "worker_devices": "000 001 002",
    },
    "tf.distribute.cluster_resolver.TFConfigClusterResolver": {
        "task_id": "000 001 002",
        "task_type": "000 001 002 003",
    },
    "tf.distribute.experimental.MultiWorkerMirroredStrategy": dict.fromkeys(_ATTRIBUTES, "000"),
    "tf.distribute.experimental.ParameterServerStrategy": dict.fromkeys(_ATTRIBUTES, "001"),
    "tf.distribute.experimental.ValueContext": {
        "num_replicas_in_sync": "000 001 002 003",
        "replica_id_in_sync_group": "000 001 002 003",
    },
    "tf.keras.Model": {
        "trainable_variables": "000 002",
    },
    "tf.keras.optimizers.Optimizer": {
        "iterations": "001",
    },
}

# How examples and descriptions call a class, a function, or a method.
CALLS: dict[str, dict[str, str]] = {
    "tf.GradientTape": {
        "gradient(_, _)": "000 002",
    },
    "tf.Variable": {
        "(_)": "000 001 002 003",
        "(_, name=_)": "001",
        "(initial_value=_)": "001",
    },
    "tf.compat.v1.distribute.MirroredStrategy": {
        **dict.fromkeys(_CALLS, "003"),
        "experimental_make_numpy_dataset(_)": "003",
        "experimental_run(_, _)": "003",
        "make_input_fn_iterator(_)": "003",
    },
    "tf.constant": {
        "(_)": "000 001 002 003",
    },
    "tf.data.Dataset": {
        "batch(_)": "000 001 002 003",
        "batch(_, drop_remainder=_)": "000 002",
        "batch(batch_size=_)": "001",
        "from_tensor_slices(_)": "000 001 002",
        "from_tensors(_)": "003",
        "map(_)": "000 001 002 003",
        "prefetch(buffer_size=_)": "000 001 002 003",
        "range(_)": "000 001 002 003",
        "repeat()": "000 001 002 003",
        "shard(_, _)": "003",
        "shuffle(buffer_size=_)": "001",
    },
    "tf.device": {
        "(_)": "000 001 002",
    },
    "tf.distribute.InputContext": {
        "get_per_replica_batch_size(_)": "000 001 002 003",
    },
    "tf.distribute.InputIterator": {
        "get_next()": "003",
        "initialize()": "003",
    },
    "tf.distribute.MirroredStrategy": {
        "()": "003",
        "(_)": "000 001 002 003",
        "(devices=_)": "000 001 002 003",
    },
    "tf.distribute.MultiWorkerMirroredStrategy": {
        "()": "000 002",
        "distribute_datasets_from_function(_)": "002",
        **dict.fromkeys(_CALLS, "002"),
        "gather(_, axis=_)": "002",
    },
    "tf.distribute.NcclAllReduce": {
        "()": "003",
    },
    "tf.distribute.ReplicaContext": {
        "all_reduce(_, _)": "000 001 002 003",
    },
    "tf.distribute.Server": {
        "(_)": "001",
        "(_, job_name=_, task_index=_, protocol=_)": "001",
        "join()": "001",
    },
    "tf.distribute.StrategyExtended": {
        "call_for_each_replica(_)": "000 001 003",
        "colocate_vars_with(_)": "001",
    },
    "tf.distribute.TPUStrategy": {
        "()": "000 001 002",
    },
    "tf.distribute.cluster_resolver.TFConfigClusterResolver": {
        "()": "001",
        "cluster_spec()": "001",
        "num_accelerators()": "000 002",
    },
    "tf.distribute.experimental.MultiWorkerMirroredStrategy": {
        "()": "001 003",
        "distribute_datasets_from_function(_)": "000",
        **dict.fromkeys(_CALLS, "000"),
        "gather(_, axis=_)": "000",
    },
    "tf.distribute.experimental.ParameterServerStrategy": {
        "(_)": "001",
        "(cluster_resolver=_)": "001",
        "(cluster_resolver=_, variable_partitioner=_)": "001",
        **dict.fromkeys(_CALLS, "001"),
        "gather(_, axis=_)": "001",
    },
    "tf.distribute.experimental.coordinator.ClusterCoordinator": {
        "(strategy=_)": "001",
        "create_per_worker_dataset(_)": "001",
        "create_per_worker_dataset(dataset_fn=_)": "001",
        "join()": "001",
        "schedule(_, args=_)": "001",
    },
    "tf.distribute.experimental.partitioners.FixedShardsPartitioner": {
        "(num_shards=_)": "001",
    },
    "tf.distribute.experimental.partitioners.MinSizePartitioner": {
        "(min_shard_bytes=_, max_shards=_)": "001",
    },
    "tf.distribute.get_replica_context": {
        "()": "000 001 002 003",
    },
    "tf.function": {
        "(_, input_signature=_)": "000 001 002 003",
    },
    "tf.identity": {
        "(_)": "000 001 002 003",
    },
    "tf.keras.Model": {
        "compile()": "000 002",
        "fit(_)": "000 002",
    },
    "tf.keras.Sequential": {
        "(_)": "000 002",
    },
    "tf.keras.layers.Dense": {
        "(_, input_shape=_)": "000 002",
    },
    "tf.keras.losses.sparse_categorical_crossentropy": {
        "(_, _)": "000 002",
    },
    "tf.keras.metrics.Metric": {
        "reset_states()": "001",
        "result()": "001",
    },
    "tf.keras.optimizers.Optimizer": {
        "apply_gradients(_)": "000 002",
    },
    "tf.keras.optimizers.SGD": {
        "(learning_rate=_)": "000 002",
    },
    "tf.random.normal": {
        "(_)": "001",
    },
    "tf.range": {
        "(_)": "000 001 002",
    },
    "tf.reshape": {
        "(_, shape=_)": "000 001 002",
    },
    "tf.train.Checkpoint": {
        "(model=_, optimizer=_)": "001",
        "restore(_)": "000 001 002 003",
    },
    "tf.train.CheckpointManager": {
        "(_, _, max_to_keep=_)": "001",
        "save()": "001",
    },
}

# What is mentioned, wherever it is.
NAMES: dict[str, str] = {
    "tf.ConfigProto": "003",
    "tf.GradientTape": "000 001 002",
    "tf.IndexedSlices": "000 001 002",
    "tf.Module": "001",
    "tf.Tensor": "000 001 002 003",
    "tf.TypeSpec": "000 001 002 003",
    "tf.Variable": "000 001 002 003",
    "tf.VariableSynchronization.ON_READ": "000 002",
    "tf.compat.v1.TensorInfo.CompositeTensor": "000 001 002 003",
    "tf.compat.v1.distribute.MirroredStrategy": "003",
    "tf.compat.v1.distribute.Strategy.experimental_run": "000 001 002 003",
    "tf.constant": "000 001 002 003",
    "tf.convert_to_tensor": "001",
    "tf.data.Dataset": "000 001 002 003",
    "tf.data.Dataset.from_tensor_slices": "000 001 002",
    "tf.data.Dataset.from_tensors": "003",
    "tf.data.Dataset.range": "000 001 002 003",
    "tf.data.TFRecordDataset": "000 001 002 003",
    "tf.data.TextLineDataset": "000 001 002 003",
    "tf.data.experimental.AutoShardPolicy": "000 001 002 003",
    "tf.data.experimental.AutoShardPolicy.AUTO": "000 001 002 003",
    "tf.data.experimental.AutoShardPolicy.OFF": "000 001 002 003",
    "tf.data.experimental.DistributeOptions": "000 001 002 003",
    "tf.data.experimental.DistributeOptions.auto_shard_policy": "000 001 002 003",
    "tf.device": "000 001 002",
    "tf.distribute": "000 001 002 003",
    "tf.distribute.CrossDeviceOps": "003",
    "tf.distribute.DistributedDataset": "000 001 002 003",
    "tf.distribute.DistributedDataset.element_spec": "000 001 002 003",
    "tf.distribute.DistributedValues": "000 001 002 003",
    "tf.distribute.InputContext": "000 001 002 003",
    "tf.distribute.InputIterator": "003",
    "tf.distribute.InputOptions": "000 001 002 003",
    "tf.distribute.InputReplicationMode": "003",
    "tf.distribute.InputReplicationMode.PER_WORKER": "003",
    "tf.distribute.Mirrored": "003",
    "tf.distribute.MirroredStrategy": "000 001 002 003",
    "tf.distribute.MirroredVariable": "000 001 002 003",
    "tf.distribute.MultiWorkerMirroredStrategy": "000 002",
    "tf.distribute.OneDeviceStrategy": "000 001 002",
    "tf.distribute.PerReplica": "000 001 002 003",
    "tf.distribute.ReduceOp": "000 001 002 003",
    "tf.distribute.ReduceOp.MEAN": "000 001 002 003",
    "tf.distribute.ReduceOp.SUM": "003",
    "tf.distribute.ReplicaContext": "000 001 002 003",
    "tf.distribute.ReplicaContext.all_gather": "000 001 002",
    "tf.distribute.ReplicaContext.all_reduce": "000 001 002 003",
    "tf.distribute.RunOptions": "000 001 002 003",
    "tf.distribute.Server": "001",
    "tf.distribute.Strategy": "000 001 002 003",
    "tf.distribute.Strategy.distribute_datasets_from_function": "000 001 002 003",
    "tf.distribute.Strategy.experimental_distribute_dataset": "000 001 002 003",
    "tf.distribute.Strategy.run": "000 001 002 003",
    "tf.distribute.Strategy.scope": "001",
    "tf.distribute.StrategyExtended": "000 001 002 003",
    "tf.distribute.StrategyExtended.batch_reduce_to": "000 001 002 003",
    "tf.distribute.StrategyExtended.reduce_to": "000 001 002 003",
    "tf.distribute.TPUStrategy": "000 001 002 003",
    "tf.distribute.TPUStrategy.gather": "000 001 002",
    "tf.distribute.cluster_resolver.ClusterResolver": "000 001 002 003",
    "tf.distribute.cluster_resolver.TFConfigClusterResolver": "000 001 002",
    "tf.distribute.experimental.CollectiveCommunication.AUTO": "000",
    "tf.distribute.experimental.CommunicationImplementation": "000",
    "tf.distribute.experimental.CommunicationImplementation.AUTO": "000",
    "tf.distribute.experimental.CommunicationImplementation.NCCL": "000",
    "tf.distribute.experimental.CommunicationImplementation.RING": "000",
    "tf.distribute.experimental.CommunicationOptions": "002",
    "tf.distribute.experimental.MultiWorkerMirroredStrategy": "000 001 002 003",
    "tf.distribute.experimental.ParameterServerStrategy": "001",
    "tf.distribute.experimental.ValueContext": "000 001 002",
    "tf.distribute.experimental.coordinator": "001",
    "tf.distribute.experimental.coordinator.ClusterCoordinator": "001",
    "tf.distribute.experimental.coordinator.ClusterCoordinator.create_per_worker_dataset": "001",
    "tf.distribute.experimental.partitioners": "001",
    "tf.distribute.experimental.partitioners.FixedShardsPartitioner": "001",
    "tf.distribute.experimental.partitioners.Partitioner": "001",
    "tf.distribute.get_replica_context": "000 001 002 003",
    "tf.distribute.get_strategy": "000 001 002 003",
    "tf.expand_dims": "000 001 002",
    "tf.function": "000 001 002 003",
    "tf.identity": "000 001 002 003",
    "tf.keras": "003",
    "tf.keras.Model": "000 001 002 003",
    "tf.keras.Model.__call__": "002",
    "tf.keras.Model.compile": "000 001 002 003",
    "tf.keras.Model.evaluate": "000 001 002 003",
    "tf.keras.Model.fit": "000 001 002 003",
    "tf.keras.Model.predict": "000 001 002 003",
    "tf.keras.Model.save": "000 001 002 003",
    "tf.keras.Sequential": "000 002",
    "tf.keras.layers.Dense": "000 002",
    "tf.keras.losses.sparse_categorical_crossentropy": "000 002",
    "tf.keras.optimizers.SGD": "000 002",
    "tf.nest": "003",
    "tf.nn.embedding_lookup": "001",
    "tf.random.normal": "001",
    "tf.random.uniform": "000 001 002 003",
    "tf.range": "000 001 002",
    "tf.reshape": "000 001 002",
    "tf.saved_model.load": "001",
    "tf.saved_model.save": "000 001 002 003",
    "tf.train.Checkpoint": "001",
    "tf.train.CheckpointManager": "001",
    "tf.variable_creator_scope": "000 001 002 003",
}
