"""Checkpoints of programs that are several processes."""

import json
import os
import shutil
import subprocess
import textwrap

import numpy as np
import pytest

from jaxtribute.cluster._this_machine import free_ports
from tests._interpreter import STRICT_PYTHON

pytestmark = pytest.mark.processes


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a program in several processes, and returns what each printed."""

    def run_all(program, arguments, environments):
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(program))
        unwanted = ("XLA_FLAGS", "PJRT_NPROC", "TF_CONFIG", "JAX_NUM_CPU_DEVICES")
        inherited = {k: v for k, v in os.environ.items() if k not in unwanted}
        running = [
            subprocess.Popen(
                [*STRICT_PYTHON, str(script), *map(str, own)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=inherited | environment,
            )
            for own, environment in zip(arguments, environments, strict=True)
        ]
        try:
            outputs = [process.communicate(timeout=90) for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait()
        assert [process.returncode for process in running] == [0] * len(running), outputs
        lines = [printed.splitlines() for printed, _ in outputs]
        return [[line for line in own if not line.startswith("[Gloo]")] for own in lines]

    return run_all


_ONE_AFTER_THE_OTHER = """
    import os, sys, time
    import jax
    import jaxtribute as jt

    index, address, directory = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(address, num_processes=2, process_id=index)
    assert jax.process_count() == 2

    def wait_for(name):
        deadline = time.monotonic() + 60
        while not os.path.exists(os.path.join(directory, name)):
            assert time.monotonic() < deadline, name
            time.sleep(0.02)

    def tell(name):
        open(os.path.join(directory, name), "w").close()

    checkpoint = jt.train.Checkpoint(v=jt.Variable(float(index + 1)), step=index)
    if index == 0:
        checkpoint.save(os.path.join(directory, "ckpt"))
        checkpoint.restore(os.path.join(directory, "ckpt-1")).assert_consumed()
        tell("saved")
        wait_for("restored")
    else:
        wait_for("saved")
        checkpoint.restore(jt.train.latest_checkpoint(directory)).assert_consumed()
        checkpoint.write(os.path.join(directory, "other"))
        tell("restored")
    print(float(checkpoint.v), checkpoint.step)
    jax.distributed.shutdown()
"""


def test_in_a_process_of_several_saving_and_restoring_wait_for_no_other(tmp_path, run):
    address = f"localhost:{free_ports(1)[0]}"
    arguments = [(index, address, tmp_path) for index in range(2)]
    printed = run(_ONE_AFTER_THE_OTHER, arguments, [{}, {}])
    assert printed == [["1.0 0"], ["1.0 0"]]
    assert (tmp_path / "other" / "checkpoint.json").exists()


_TRAINS = """
    import sys
    import jax.numpy as jnp
    import numpy as np
    import optax
    import jaxtribute as jt

    directory, steps = sys.argv[1], int(sys.argv[2])
    strategy = jt.MultiWorkerMirroredStrategy()
    with strategy.scope():
        w = jt.Variable(jnp.full((3,), 0.1))
        optimizer = jt.Optimizer(optax.adam(0.1))
        examples = jt.metrics.Sum("examples")
    x = np.random.default_rng(0).normal(size=(72, 3)).astype(np.float32)
    data = jt.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).shuffle(72).batch(12)
    iterator = iter(strategy.experimental_distribute_dataset(data))
    checkpoint = jt.train.Checkpoint(
        w=w, optimizer=optimizer, examples=examples, iterator=iterator, step=0
    )
    manager = jt.train.CheckpointManager(checkpoint, directory, max_to_keep=2)

    def replica_step(batch):
        x, y = batch

        def loss_fn():
            return jt.nn.compute_average_loss((x @ w.value() - y) ** 2, global_batch_size=12)

        loss, gradients = jt.value_and_grad(loss_fn, [w])()
        optimizer.apply_gradients([(gradients[0], w)])
        examples.update_state(jnp.ones(x.shape[0]))
        return loss

    step = jt.function(lambda batch: strategy.run(replica_step, args=(batch,)))
    if manager.restore_or_initialize() is None:
        manager.save()  # the order of the data is drawn once
    for _ in range(steps):
        loss = strategy.reduce("SUM", step(next(iterator)), axis=None)
        checkpoint.step += 1
        print(checkpoint.step, float(loss), float(examples.result()))
    print(manager.save())
    iterator.close()
"""


@pytest.mark.slow
def test_workers_go_on_with_what_other_numbers_of_them_began(tmp_path, run):
    def train(directory, workers, steps):
        cluster = {"worker": [f"localhost:{port}" for port in free_ports(workers)]}
        environments = [
            {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})}
            for i in range(workers)
        ]
        printed = run(_TRAINS, [(directory, steps)] * workers, environments)
        assert printed == [printed[0]] * workers
        *lines, path = printed[0]
        assert os.path.dirname(path) == str(directory)
        return [[float(figure) for figure in line.split()] for line in lines]

    directory = tmp_path / "interrupted"
    assert train(directory, 2, 0) == []
    # Another that begins in the same way, and is not interrupted.
    shutil.copytree(directory, tmp_path / "whole")
    interrupted = train(directory, 2, 2) + train(directory, 1, 1) + train(directory, 2, 2)
    whole = train(tmp_path / "whole", 1, 5)
    np.testing.assert_allclose(interrupted, whole, rtol=1e-5)
    assert [examples for _, _, examples in whole] == [12.0, 24.0, 36.0, 48.0, 60.0]
