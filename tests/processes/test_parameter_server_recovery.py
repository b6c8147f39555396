"""Parameter servers and coordinators that are killed, stopped and started again."""

import re
import signal
import time

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from jaxtribute import errors
from tests.processes._parameter_server import (
    Chief,
    Counting,
    ask,
    hold,
    until,
    until_held,
)

pytestmark = pytest.mark.processes


def test_a_parameter_server_that_is_killed_is_named_by_join_and_by_schedule(cluster, tmp_path):
    with Counting(cluster) as counting:
        held = counting.schedule(hold, str(tmp_path))
        until_held(tmp_path)  # a worker that computes meanwhile
        counting.schedule_many(100, 0.001)
        cluster.kill("ps:1")
        with pytest.raises(errors.PSUnavailableError) as info:
            counting.coordinator.join()
        assert info.value.task == "ps:1"
        assert isinstance(info.value, errors.UnavailableError)
        with pytest.raises(errors.PSUnavailableError, match="ps:1"):
            counting.schedule()
        with pytest.raises(errors.PSUnavailableError, match="ps:1"):
            counting.coordinator.done()
        with pytest.raises(errors.PSUnavailableError, match="ps:1"):
            counting.counters[1].numpy()
        (tmp_path / "go").touch()
        with pytest.raises((errors.CancelledError, errors.PSUnavailableError)):
            held.fetch()
    # Started again, it can be used by a new strategy, with the same workers.
    cluster.start("ps:1")
    with Counting(cluster) as counting:
        counting.schedule_many(10)
        counting.check()


def test_a_parameter_server_may_stand_still_for_less_than_the_silence_limit(cluster):
    with Counting(cluster) as counting:
        counting.schedule_many(300, 0.001)
        for task in ("ps:0", "ps:1"):
            with cluster.paused(task):
                time.sleep(1.0)  # it is the time that matters
        counting.check()


def test_one_that_stood_still_for_longer_is_an_error_until_it_goes_on(cluster):
    with Counting(cluster) as counting:
        counting.schedule_many(10)
        counting.check()
        with cluster.paused("ps:1"):
            counting.schedule_many(10)
            with pytest.raises(errors.PSUnavailableError, match="ps:1"):
                counting.coordinator.join()
        until(lambda: is_usable(counting.coordinator), "the coordinator to be usable again")
        before = counting.counted()
        counting.schedule_many(10)
        counting.coordinator.join()
        assert counting.counted() == [count + 10 for count in before]


def is_usable(coordinator):
    try:
        return coordinator.done()
    except errors.PSUnavailableError:
        return False


def test_with_a_policy_one_may_stand_still_for_longer_and_nothing_is_lost(cluster, tmp_path):
    policy = jt.experimental.coordinator.RestorePolicy(tmp_path)
    with Counting(cluster, restore_policy=policy) as counting:
        counting.schedule_many(500, 0.002)
        with cluster.paused("ps:1"):
            time.sleep(5.0)  # it is the time that matters
        counting.check()


def test_a_policy_waits_no_longer_than_it_says(cluster, tmp_path):
    policy = jt.experimental.coordinator.RestorePolicy(tmp_path, wait_seconds=4.0)
    with Counting(cluster, restore_policy=policy) as counting:
        counting.schedule(hold, str(tmp_path))
        until_held(tmp_path)  # so that not all is done before the server is gone
        counting.schedule_many(100, 0.002)
        cluster.kill("ps:1")
        with pytest.raises(errors.PSUnavailableError, match="ps:1 is not available"):
            counting.coordinator.join()
        with pytest.raises(errors.PSUnavailableError, match="ps:1 is not available"):
            counting.counters[1].numpy()
        (tmp_path / "go").touch()


def test_variables_that_no_snapshot_holds_are_lost_for_good(cluster, tmp_path):
    policy = jt.experimental.coordinator.RestorePolicy(tmp_path, every_seconds=600.0)
    with Counting(cluster, restore_policy=policy) as counting:
        counting.schedule(hold, str(tmp_path))
        until_held(tmp_path)
        cluster.kill("ps:1")
        cluster.start("ps:1")
        with pytest.raises(errors.PSUnavailableError, match="created after its last snapshot"):
            counting.coordinator.join()
        (tmp_path / "go").touch()


def restart_after_snapshots(cluster, task, directory, schedule):
    """Kill a server that has written a snapshot lately, while closures run, and start it again."""
    folder = directory / task.replace(":", "-")
    newest = until(lambda: sorted(folder.glob("????????????")), "a snapshot")[-1]

    def is_replaced():
        schedule()  # a server to which nothing happens writes no snapshots
        return not newest.exists()

    until(is_replaced, "two more snapshots")
    for _ in range(200):
        schedule()
    cluster.kill(task)
    cluster.start(task)


def test_training_goes_on_when_a_parameter_server_is_back_and_it_is_said_what_was_lost(
    cluster, tmp_path, capfd
):
    policy = jt.experimental.coordinator.RestorePolicy(tmp_path, every_seconds=0.2)
    with Counting(cluster, restore_policy=policy) as counting:
        lost = 0
        for _ in range(2):
            restart_after_snapshots(
                cluster, "ps:1", tmp_path, lambda: counting.schedule(time.sleep, 0.005)
            )
            counting.coordinator.join()
            of_first, of_second = counting.counted()
            assert of_first == counting.scheduled
            (said,) = re.findall(
                r"ps:1 goes on from its newest snapshot; (\d+) updates were lost",
                capfd.readouterr().err,
            )
            missing = counting.scheduled - of_second - lost
            # What a worker had sent, but not told, is done again: it may be among what is said.
            assert missing <= int(said) <= missing + 2
            lost += missing
        counting.schedule_many(50)
        counting.coordinator.join()
        assert counting.counted() == [counting.scheduled, counting.scheduled - lost]


def test_metrics_agree_with_themselves_after_a_server_was_restored(cluster, tmp_path):
    policy = jt.experimental.coordinator.RestorePolicy(tmp_path, every_seconds=0.2)
    with Counting(cluster, restore_policy=policy) as counting:
        with counting.strategy.scope():
            mean, accuracy = jt.metrics.Mean(), jt.metrics.Accuracy()

        def step():
            mean.update_state(jnp.ones(4))
            accuracy.update_state(jnp.arange(4), jnp.arange(4))

        restart_after_snapshots(
            cluster, "ps:1", tmp_path, lambda: counting.coordinator.schedule(step)
        )
        counting.coordinator.join()
        assert [float(metric.result()) for metric in (mean, accuracy)] == [1.0, 1.0]


def test_an_optimizer_and_direct_reads_go_on_with_a_restored_server(cluster, tmp_path):
    policy = jt.experimental.coordinator.RestorePolicy(tmp_path, every_seconds=0.2)
    with Counting(cluster, restore_policy=policy) as counting:
        with counting.strategy.scope():
            weights = jt.Variable(jnp.zeros(3), name="weights")
            optimizer = jt.Optimizer(optax.adam(0.1))

        @jt.function
        def step():
            def loss():
                return jnp.sum((weights - jnp.array([1.0, 2.0, 3.0])) ** 2)

            value, gradients = jt.value_and_grad(loss, [weights])()
            optimizer.apply_gradients(zip(gradients, [weights], strict=True))
            return value

        coordinator = counting.coordinator
        scheduled = [coordinator.schedule(step) for _ in range(20)]
        coordinator.join()
        for task in ("ps:0", "ps:1"):
            restart_after_snapshots(
                cluster, task, tmp_path, lambda: scheduled.append(coordinator.schedule(step))
            )
            weights.numpy()  # while, or after, it is restored
            coordinator.join()
        for _ in range(200):
            scheduled.append(coordinator.schedule(step))
        coordinator.join()
        assert scheduled[-1].fetch() < 0.1
        assert 200 < int(optimizer.iterations) <= len(scheduled)
        assert all(np.isfinite(slot.numpy()).all() for slot in optimizer.variables)


def test_a_second_coordinator_takes_over_and_the_first_is_told(cluster, tmp_path):
    with Counting(cluster) as first:
        held = first.schedule(hold, str(tmp_path))
        until_held(tmp_path)
        first.schedule_many(100)
        with Counting(cluster) as second:
            second.schedule_many(100)
            for refused in (first.coordinator.join, first.schedule, first.counted):
                with pytest.raises(
                    errors.FailedPreconditionError, match="another coordinator has taken over"
                ):
                    refused()
            with pytest.raises((errors.CancelledError, errors.FailedPreconditionError)):
                held.fetch()
            (tmp_path / "go").touch()
            second.check()
            assert [ask(cluster, task).variables for task in ("ps:0", "ps:1")] == [1, 1]


CHIEF = """
import os, sys
import jax.numpy as jnp, optax
import jaxtribute as jt

strategy = jt.ParameterServerStrategy(jt.cluster_resolver.TFConfigClusterResolver())
coordinator = jt.experimental.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = jt.Variable(jnp.zeros(3), name="weights")
    optimizer = jt.Optimizer(optax.sgd(0.25))
    optimizer.build([weights])
    extra = [jt.Variable(jnp.zeros(5), name=f"extra_{i}") for i in range(4)]

@jt.function
def step():
    value, gradients = jt.value_and_grad(lambda: jnp.sum(weights), [weights])()
    optimizer.apply_gradients(zip(gradients, [weights]))
    return value

checkpoint = jt.train.Checkpoint(weights=weights, optimizer=optimizer)
manager = jt.train.CheckpointManager(
    checkpoint, "checkpoints", max_to_keep=2, step_counter=optimizer.iterations
)
print("restored", manager.restore_or_initialize() is not None, int(optimizer.iterations))
while int(optimizer.iterations) < 100:
    for _ in range(10):
        coordinator.schedule(step)
    coordinator.join()
    manager.save()
    print("saved", int(optimizer.iterations))
    if int(optimizer.iterations) == 40 and not os.path.exists("again"):
        for _ in range(100000):
            coordinator.schedule(step)  # much that is not saved
        print("training")
        coordinator.join()
print("weights", weights.numpy().tolist())
"""


def test_a_coordinator_that_was_killed_goes_on_from_its_checkpoint(cluster, tmp_path):
    with Chief(cluster, tmp_path, CHIEF) as chief:
        chief.start()
        chief.until_written("training")
        until(lambda: ask(cluster, "ps:0").updates > 200, "steps that are not saved")
        assert chief.send(signal.SIGKILL) == -signal.SIGKILL
        assert "restored False 0" in chief.written
        (tmp_path / "again").touch()
        chief.start()
        assert chief.wait() == 0, chief.written
        assert "restored True 40" in chief.written
        assert "weights [-25.0, -25.0, -25.0]" in chief.written
    # What the first one left on the servers is gone: 6 variables and 2 servers.
    assert sum(ask(cluster, task).variables for task in ("ps:0", "ps:1")) == 6
    cluster.assert_quiescent()


def test_a_chief_that_is_interrupted_leaves_servers_that_others_can_use(cluster, tmp_path):
    with Chief(cluster, tmp_path, CHIEF) as chief:
        chief.start()
        chief.until_written("training")
        assert chief.send(signal.SIGINT) == -signal.SIGINT
        assert chief.written.rstrip().endswith("KeyboardInterrupt")
    cluster.assert_quiescent()
    with Counting(cluster) as counting:
        counting.schedule_many(10)
        counting.check()
    until(lambda: ask(cluster, "ps:0").peers == 3, "connections of those that are gone to end")
