"""`jt.ray.run`, on a real cluster."""

import doctest
import os
import resource
import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.ray import _resolver, _run

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("cluster")]


def test_workers_train_together_and_return_the_same():
    def train(start):
        strategy = jt.MultiWorkerMirroredStrategy()
        with strategy.scope():
            v = jt.Variable(start, aggregation=jt.VariableAggregation.SUM)

        @jt.function
        def step():
            strategy.run(lambda: v.assign_add(jnp.ones(())))

        for _ in range(3):
            step()
        own = strategy.cluster_resolver
        return strategy.num_replicas_in_sync, v, f"{own.task_type}:{own.task_id}", os.getpid()

    first, second = jt.ray.run(train, args=(10.0,), environment={"JAX_NUM_CPU_DEVICES": "2"})
    assert first[:3] == (4, 10.0 + 3 * 4, "worker:0")
    assert second[:3] == (4, 10.0 + 3 * 4, "worker:1")
    assert len({first[3], second[3], os.getpid()}) == 3


def test_each_sees_what_ray_gives_it_and_the_key_is_nowhere_to_be_seen():
    def look(*, scale):
        with open("/proc/self/environ", encoding="utf-8", errors="replace") as file:
            at_the_start = file.read()
        key = os.environ["JAXTRIBUTE_CLUSTER_KEY"]
        return {
            "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
            "threads": os.environ["OMP_NUM_THREADS"],
            "key": key,
            "shown": key in at_the_start,
            "array": jnp.ones(2) * scale,
        }

    first, second = jt.ray.run(
        look, kwargs={"scale": 3.0}, resources_per_worker={"CPU": 2, "GPU": 1}
    )
    assert {first["gpus"], second["gpus"]} == {"0", "1"}
    assert first["threads"] == second["threads"] == "2"
    assert first["key"] == second["key"] and len(first["key"]) >= 32
    assert not first["shown"] and not second["shown"]
    assert first["array"].tolist() == [3.0, 3.0]


def test_the_error_of_the_worker_that_failed_is_raised_after_all_restarts(capfd):
    def train():
        strategy = jt.MultiWorkerMirroredStrategy()
        if strategy.cluster_resolver.task_id == 1:
            if os.environ["JAXTRIBUTE_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("no such batch")
        while True:  # until it is ended, or hears of the loss of the other
            strategy.run(lambda: jt.get_replica_context().all_reduce("SUM", 1.0))

    with pytest.raises(KeyError, match="no such batch") as raised:
        jt.ray.run(train, max_restarts=1)
    notes = "\n".join(raised.value.__notes__)
    assert "Raised on worker:1" in notes and "in train" in notes
    assert "started again 1 times" in notes
    said = capfd.readouterr().err
    assert "worker:1 failed: WorkerLostError: Lost worker:1: its process has ended" in said
    assert "starting all workers again (1 of 1)" in said


def test_a_worker_that_exits_has_failed_unless_it_says_otherwise():
    def leave(code):
        sys.exit(code if jt.cluster_resolver.TFConfigClusterResolver().task_id == 1 else 0)

    with pytest.raises(jt.errors.AbortedError, match=r"worker:1 ended with exit code 3\."):
        jt.ray.run(leave, args=(3,))
    assert jt.ray.run(leave, workers=1, args=(3,)) == [None]


@pytest.mark.parametrize(
    "ending", [0, 3, OSError("no such batch")], ids=["return", "exit", "error"]
)
def test_what_is_being_saved_is_complete_before_the_process_is_killed(ending, tmp_path):
    def train():
        v = jt.Variable(np.random.default_rng(0).random(1 << 24, np.float32))  # takes its time
        jt.train.Checkpoint(v=v).save(str(tmp_path / "ckpt"))
        if isinstance(ending, Exception):
            raise ending
        sys.exit(ending)

    if ending == 0:
        assert jt.ray.run(train, workers=1) == [None]
    else:
        with pytest.raises((jt.errors.AbortedError, OSError), match=r"code 3\.|no such batch"):
            jt.ray.run(train, workers=1)
    assert jt.train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-1")


@pytest.mark.parametrize("code", [0, 3])
def test_a_last_save_that_fails_is_raised(code, tmp_path):
    def train():
        jax.config.update("jax_enable_compilation_cache", False)
        v = jt.Variable(np.random.default_rng(0).random(1 << 18, np.float32))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # as if the disk were full
        jt.train.Checkpoint(v=v).save(str(tmp_path / "ckpt"))
        sys.exit(code)

    with pytest.raises(jt.errors.DataLossError, match=r"ckpt-1' could not be saved"):
        jt.ray.run(train, workers=1)


def test_too_much_is_refused_with_what_there_is():
    with pytest.raises(jt.errors.ResourceExhaustedError) as raised:
        jt.ray.run(os.getpid, workers=3, resources_per_worker={"CPU": 2}, timeout_seconds=0.5)
    message = str(raised.value)
    assert "3 workers with 2 CPU each" in message and "within 0.5 s" in message
    assert "has 4 CPU" in message and "free in all of them are 4 CPU" in message


def test_ports_that_do_not_suffice_are_named():
    with pytest.raises(jt.errors.ResourceExhaustedError, match=r"23456 to 23456, \d are"):
        jt.ray.run(os.getpid, ports=[23456])


@pytest.mark.parametrize("module", [jt.ray, _run, _resolver], ids=lambda module: module.__name__)
def test_the_examples_in_docstrings_run(module):
    # As those of a script, so that their functions are sent.
    names = {"jt": jt, "__name__": "__main__"}
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    outcome = doctest.testmod(module, extraglobs=names, optionflags=options)
    assert outcome.attempted > 0 and outcome.failed == 0
