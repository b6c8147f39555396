"""Workers are killed and stopped at random, and every closure is still counted exactly once."""

import random
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.testing import ProcessCluster
from tests.processes._parameter_server import SECONDS, ask

pytestmark = pytest.mark.processes

SILENCE = "2"  # seconds; some stops are shorter, and some are longer
WORKERS = ("worker:0", "worker:1", "worker:2")
ROWS = 7
AHEAD = 400  # closures that are scheduled and not fetched


@pytest.mark.parametrize(
    ("kills", "stops", "seed"),
    [
        pytest.param(4, 2, 1, id="briefly"),
        pytest.param(
            50,
            20,
            2,
            marks=[pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)],
            id="for minutes",
        ),
    ],
)
def test_every_closure_is_counted_once_whatever_happens_to_workers(kills, stops, seed, monkeypatch):
    monkeypatch.setenv("JAXTRIBUTE_SILENCE_TIMEOUT", SILENCE)
    # A process ends with the thread that started it, so that thread has to stay to the end.
    with ProcessCluster(workers=3, ps=2) as cluster, ThreadPoolExecutor(1) as others:
        strategy = cluster.strategy()
        coordinator = cluster.coordinator(strategy)
        with strategy.scope():
            first, second = jt.Variable(0.0), jt.Variable(np.int32(0))
            rows = jt.Variable(np.zeros((ROWS, 2), np.float32))
        assert len({variable.device for variable in (first, second)}) == 2

        def work(number, seconds):
            first.assign_add(1.0)
            time.sleep(seconds)
            second.assign_add(1)
            one = jt.IndexedSlices(np.ones((1, 2), np.float32), np.array([number % ROWS]))
            rows.scatter_add(one)
            return number

        durations = random.Random(seed)
        scheduled = 0
        ahead = deque()
        happening = others.submit(wreak_havoc, cluster, kills, stops, random.Random(seed))
        while not happening.done():
            for _ in range(20):
                seconds = durations.choice([0.0, 0.0005, 0.005, 0.03])
                ahead.append(coordinator.schedule(work, args=(scheduled, seconds)))
                scheduled += 1
            while len(ahead) > AHEAD:
                assert ahead.popleft().fetch() == scheduled - len(ahead) - 1
        happening.result()
        coordinator.join()

        assert (first.numpy(), second.numpy()) == (scheduled, scheduled)
        of_rows = np.bincount(np.arange(scheduled) % ROWS, minlength=ROWS)
        np.testing.assert_array_equal(rows.numpy(), np.stack([of_rows, of_rows], 1))
        repeated = [ask(cluster, task).repeated_updates for task in ("ps:0", "ps:1")]
        print(f"{scheduled} closures, {kills} kills, {stops} stops, {repeated} updates repeated")
        cluster.assert_quiescent(SECONDS)


def wreak_havoc(cluster, kills, stops, chance):
    """Kill and stop workers at random, sometimes two at once, until it has been often enough."""
    events = ["kill"] * kills + ["stop"] * stops
    chance.shuffle(events)
    while events:
        time.sleep(chance.uniform(0.0, 0.5))
        now = [events.pop() for _ in range(chance.choice([1, 1, 1, 2])) if events]
        targets = dict(zip(chance.sample(WORKERS, len(now)), now, strict=True))
        for task, event in targets.items():
            cluster.kill(task) if event == "kill" else cluster.stop(task)
        if "stop" in now:
            time.sleep(chance.uniform(0.0, 2.5 * float(SILENCE)))
        for task, event in targets.items():
            cluster.start(task) if event == "kill" else cluster.cont(task)
