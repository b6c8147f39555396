"""The examples of document 001, `experimental.ParameterServerStrategy`, under our names."""

import json
import logging
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute.cluster._this_machine import free_ports
from jaxtribute.testing import LocalCluster


@pytest.fixture
def cluster():
    gc.store(object())  # starts the thread of pyzmq that frees what was sent; it stays for ever
    with LocalCluster(workers=2, ps=3) as cluster:
        yield cluster


def dataset_fn():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 4)).astype(np.float32)
    dataset = jt.data.Dataset.from_tensor_slices((x, (x[:, 0] > 0).astype(np.int32)))
    return dataset.shuffle(buffer_size=256).repeat().batch(batch_size=32)


class Model(jt.Module):
    def __init__(self):
        super().__init__()
        self.kernel = jt.Variable(jnp.zeros((4, 2)), name="kernel")
        self.bias = jt.Variable(jnp.zeros(2), name="bias")

    def __call__(self, x):
        return x @ jnp.asarray(self.kernel) + jnp.asarray(self.bias)


def train(cluster, checkpoint_dir, num_epoch, steps_per_epoch=10):
    """ "Example code for coordinator", with what it leaves out filled in.

    Returns:
      The epoch it began with, and the accuracy of the last one.
    """
    strategy = jt.experimental.ParameterServerStrategy(
        cluster_resolver=cluster.resolver,
        variable_partitioner=jt.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=16, max_shards=2
        ),
    )
    coordinator = jt.experimental.coordinator.ClusterCoordinator(strategy=strategy)

    # Prepare a distribute dataset that will place datasets on the workers.
    distributed_dataset = coordinator.create_per_worker_dataset(dataset_fn=dataset_fn)

    def load_checkpoint(checkpoint_manager):
        """Infer the initial epoch from `optimizer.iterations`."""
        if checkpoint_manager.latest_checkpoint is None:
            return None
        checkpoint.restore(checkpoint_manager.latest_checkpoint)
        return int(optimizer.iterations) // steps_per_epoch

    with strategy.scope():
        model = Model()
        optimizer = jt.Optimizer(optax.adam(0.05))
        train_accuracy = jt.metrics.Accuracy()
        checkpoint = jt.train.Checkpoint(model=model, optimizer=optimizer)
        checkpoint_manager = jt.train.CheckpointManager(checkpoint, checkpoint_dir, max_to_keep=2)
        # `load_checkpoint` infers initial epoch from `optimizer.iterations`.
        initial_epoch = load_checkpoint(checkpoint_manager) or 0

    @jt.function
    def worker_fn(iterator):
        def replica_fn(inputs):
            batch_data, labels = inputs

            def loss_fn():
                logits = model(batch_data)
                losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
                return jnp.mean(losses), logits

            variables = model.trainable_variables
            (_, logits), gradients = jt.value_and_grad(loss_fn, variables, has_aux=True)()
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            train_accuracy.update_state(labels, jnp.argmax(logits, axis=-1))

        strategy.run(replica_fn, args=(next(iterator),))

    accuracy = None
    for _ in range(initial_epoch, num_epoch):
        distributed_iterator = iter(distributed_dataset)  # Reset iterator state.
        for _ in range(steps_per_epoch):
            # Asynchronously schedule the `worker_fn` to be executed on an arbitrary
            # worker. This call returns immediately.
            coordinator.schedule(worker_fn, args=(distributed_iterator,))

        # `join` blocks until all scheduled `worker_fn`s finish execution. Once it
        # returns, we can read the metrics and save checkpoints as needed.
        coordinator.join()
        accuracy = float(train_accuracy.result())
        logging.getLogger("example").info("Metric result: %r", accuracy)
        train_accuracy.reset_state()
        checkpoint_manager.save()

    checkpoint_manager.wait_until_finished()  # as a program does that ends
    coordinator.close()
    strategy.session.close()
    return initial_epoch, accuracy


def test_the_program_of_the_coordinator(cluster, tmp_path):
    """001, "Example code for coordinator": trains, and goes on from its checkpoint."""
    initial_epoch, accuracy = train(cluster, tmp_path, num_epoch=2)
    assert initial_epoch == 0
    assert accuracy > 0.8
    initial_epoch, accuracy = train(cluster, tmp_path, num_epoch=4)
    assert initial_epoch == 2
    assert accuracy > 0.9
    assert train(cluster, tmp_path, num_epoch=4) == (4, None)


def test_the_cluster_is_set_up_by_tf_config(monkeypatch):
    """001, "Cluster setup": parameter server 1 of a cluster with 1 chief, 2 servers, 3 workers."""
    monkeypatch.setenv(
        "TF_CONFIG",
        """
        {
          "cluster": {
            "chief": ["chief.example.com:2222"],
            "ps": ["ps0.example.com:2222", "ps1.example.com:2222"],
            "worker": ["worker0.example.com:2222", "worker1.example.com:2222",
                       "worker2.example.com:2222"]
          },
          "task": {
            "type": "ps",
            "index": 1
          }
        }
        """,
    )
    cluster_resolver = jt.cluster_resolver.TFConfigClusterResolver()
    assert (cluster_resolver.task_type, cluster_resolver.task_id) == ("ps", 1)
    spec = cluster_resolver.cluster_spec()
    assert {job: spec.num_tasks(job) for job in spec.jobs} == {"chief": 1, "ps": 2, "worker": 3}
    with pytest.raises(ValueError, match="ps:1"):
        jt.experimental.ParameterServerStrategy(cluster_resolver)


ONE_BINARY = """
import jaxtribute as jt

cluster_resolver = jt.cluster_resolver.TFConfigClusterResolver()

# If coordinator, create a strategy and start the training program.
if cluster_resolver.task_type == 'chief':
    strategy = jt.experimental.ParameterServerStrategy(cluster_resolver)
    coordinator = jt.experimental.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        v = jt.Variable(0.0)
    for _ in range(20):
        coordinator.schedule(jt.function(lambda: v.assign_add(1.0)))
    coordinator.join()
    print('total', v.numpy())

# If worker/ps, create a server
elif cluster_resolver.task_type in ("worker", "ps"):
    server = jt.Server(
        cluster_resolver.cluster_spec(),
        job_name=cluster_resolver.task_type,
        task_index=cluster_resolver.task_id,
        protocol="grpc")
    # Blocking the process that starts a server from exiting.
    server.join()
"""


@pytest.mark.processes
def test_one_binary_for_all_tasks(tmp_path):
    """001, "Cluster setup" and "Example code for worker and parameter servers"."""
    script = tmp_path / "train.py"
    script.write_text(ONE_BINARY)
    jobs = {"chief": 1, "worker": 2, "ps": 1}
    ports = iter(free_ports(sum(jobs.values())))
    spec = {job: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for job, n in jobs.items()}

    def start(job, index):
        task = {"cluster": spec, "task": {"type": job, "index": index}}
        environment = os.environ | {
            "TF_CONFIG": json.dumps(task),
            "JAXTRIBUTE_CLUSTER_KEY": "0123456789abcdef" * 4,
            "JAX_PLATFORMS": "cpu",
        }
        return subprocess.Popen(
            [sys.executable, script],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    servers = [start(job, index) for job in ("worker", "ps") for index in range(jobs[job])]
    try:
        chief = start("chief", 0)
        try:
            output, _ = chief.communicate(timeout=90)
        finally:
            chief.kill()
            chief.communicate()
        assert chief.returncode == 0, output
        assert "total 20.0" in output
        assert all(server.poll() is None for server in servers)
    finally:
        for server in servers:
            server.kill()
            server.communicate()


def test_variables_are_placed_in_turn(cluster):
    """001, "Variable creation with strategy.scope()"."""
    # In this example, we're assuming having 3 ps.
    strategy = jt.experimental.ParameterServerStrategy(cluster_resolver=cluster.resolver)
    cluster.coordinator(strategy)

    v1 = jt.Variable(initial_value=0.0)

    with strategy.scope():
        v2 = jt.Variable(initial_value=1.0)
        v3 = jt.Variable(initial_value=2.0)
        v4 = jt.Variable(initial_value=3.0)
        v5 = jt.Variable(initial_value=4.0)

    assert v2.device == "/job:ps/replica:0/task:0/device:CPU:0"
    assert v3.device == "/job:ps/replica:0/task:1/device:CPU:0"
    assert v4.device == "/job:ps/replica:0/task:2/device:CPU:0"
    assert v5.device == "/job:ps/replica:0/task:0/device:CPU:0"
    assert "ps" not in v1.device
    assert [float(v) for v in (v1, v2, v3, v4, v5)] == [0, 1, 2, 3, 4]


class Dense(jt.Module):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.w = jt.Variable(jax.random.normal(jax.random.key(0), [100, 10]), name="w")

    def __call__(self, x):
        return x * self.w


@pytest.fixture
def dense(cluster):
    # Partition the dense layer into 2 shards.
    variable_partitioner = jt.experimental.partitioners.FixedShardsPartitioner(num_shards=2)
    strategy = cluster.strategy(variable_partitioner=variable_partitioner)
    with strategy.scope():
        return Dense()


def test_variables_are_partitioned(dense):
    """001, "Variable partitioning", its code."""
    assert len(dense.variables) == 2
    assert isinstance(dense.variables[0], jt.Variable)
    assert isinstance(dense.variables[1], jt.Variable)
    assert dense.variables[0].name == "w/part_0"
    assert dense.variables[1].name == "w/part_1"
    assert [v.shape for v in dense.variables] == [(50, 10), (50, 10)]


def test_the_container_converts_where_an_array_is_needed(dense):
    """001, "Variable partitioning": `x * self.w`, and conversion by hand."""
    expected = np.asarray(jax.random.normal(jax.random.key(0), [100, 10]))
    np.testing.assert_array_equal(np.asarray(dense(2.0)), expected * 2)
    np.testing.assert_array_equal(np.asarray(jnp.asarray(dense.w)), expected)
    assert len(dense.w.variables) == 2


def test_lookups_do_not_convert_the_container(dense):
    """001, "Variable partitioning": parallel lookups on the components instead."""
    rows = jt.nn.embedding_lookup(dense.w, jnp.array([99, 0]))
    expected = np.asarray(jax.random.normal(jax.random.key(0), [100, 10]))
    np.testing.assert_array_equal(np.asarray(rows), expected[[99, 0]])


def test_gradients_by_the_components_and_by_the_container(cluster, dense):
    """001, "Known limitations": the components work in gradient APIs; here, so does the whole."""
    by_shard = jt.grad(lambda: jnp.sum(dense(3.0)), list(dense.w.variables))()
    assert [g.shape for g in by_shard] == [(50, 10), (50, 10)]
    whole = jt.grad(lambda: jnp.sum(dense(3.0)), dense.w)()
    assert whole.shape == (100, 10)
    assert float(whole[0, 0]) == float(by_shard[1][0, 0]) == 3


def test_the_number_of_partitions_may_change(cluster, dense, tmp_path):
    """001, "Known limitations": it must not there; here, it may."""
    checkpoint = jt.train.Checkpoint(model=dense)
    path = checkpoint.save(tmp_path / "checkpoint")
    checkpoint.wait_until_finished()  # the next strategy takes the servers over
    expected = dense.w.numpy()
    strategy = cluster.strategy(jt.experimental.partitioners.FixedShardsPartitioner(3))
    with strategy.scope():
        other = Dense()
    other.w.assign(np.zeros((100, 10), np.float32))
    jt.train.Checkpoint(model=other).restore(path).assert_consumed()
    assert len(other.variables) == 3
    np.testing.assert_array_equal(other.w.numpy(), expected)


def test_datasets_are_prepared_on_workers(cluster):
    """001, "Dataset preparation"."""

    def dataset_fn():
        filenames = ["a", "b", "c"]
        dataset = jt.data.Dataset.from_tensor_slices(np.arange(len(filenames)))

        # Dataset is recommended to be shuffled, and repeated.
        return dataset.shuffle(buffer_size=3).repeat().batch(batch_size=2)

    coordinator = jt.experimental.coordinator.ClusterCoordinator(strategy=cluster.strategy())
    distributed_dataset = coordinator.create_per_worker_dataset(dataset_fn)
    iterator = iter(distributed_dataset)
    batches = [coordinator.schedule(next, args=(iterator,)) for _ in range(6)]
    for batch in coordinator.fetch(batches):
        assert batch.shape == (2,)
        assert set(batch.tolist()) <= {0, 1, 2}
    coordinator.close()
