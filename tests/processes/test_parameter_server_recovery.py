"""Parameter servers and coordinators that are killed, stopped and started again."""

import re
import time

import pytest

import jaxtribute as jt

from jaxtribute import errors
from jaxtribute.testing import ProcessCluster
from tests.processes._parameter_server import (
    Counting,
    hold,
    until,
    until_held,
)

pytestmark = pytest.mark.processes

SILENCE = {"JAXTRIBUTE_SILENCE_TIMEOUT": "3"}


@pytest.fixture
def silence(monkeypatch):
    for name, value in SILENCE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cluster(silence):
    with ProcessCluster(workers=2, ps=2, environment=SILENCE) as cluster:
        yield cluster


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


def test_training_goes_on_after_a_parameter_server_was_restored(cluster, tmp_path, capfd):
    policy = jt.experimental.coordinator.RestorePolicy(tmp_path / "snapshots", every_seconds=0.2)
    with Counting(cluster, restore_policy=policy) as counting:
        lost = 0
        for time_ in (1, 2):
            counting.schedule_many(200, 0.005)
            folder = tmp_path / "snapshots" / "ps-1"
            newest = until(lambda: sorted(folder.glob("????????????")), "a snapshot")[-1]
            until(lambda: not newest.exists(), "two more snapshots")
            cluster.kill("ps:1")
            cluster.start("ps:1")
            counting.coordinator.join()
            first, second = counting.counted()
            assert first == counting.scheduled
            said = re.findall(
                r"ps:1 goes on from its newest snapshot; (\d+) updates were lost",
                capfd.readouterr().err,
            )
            assert len(said) == 1
            missing = counting.scheduled - second - lost
            assert missing <= int(said[0]) <= missing + 2
            lost += missing
        counting.schedule_many(50)
        counting.coordinator.join()
        assert counting.counted() == [counting.scheduled, counting.scheduled - lost]
