"""Programs that are killed while saving."""

import multiprocessing
import random
import time

import numpy as np
import pytest

import jaxtribute as jt
from tests.checkpoint import _saves_forever

pytestmark = pytest.mark.processes

KILLS = 100


@pytest.fixture(scope="module")
def processes():
    """Return a way to start processes that have imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jaxtribute", "tensorstore"])
    return context


def _received(progress, process, before):
    """Return the last step a process told of, after waiting for the first."""
    deadline = time.monotonic() + 60
    while not progress.poll(0.05):
        assert process.is_alive(), f"It ended by itself: {process.exitcode}"
        assert time.monotonic() < deadline, "It did not save anything."
    return _last(progress, before)


def _last(progress, before):
    try:
        while progress.poll(0):
            before = progress.recv()
    except EOFError:
        pass
    return before


@pytest.mark.slow
def test_killed_at_any_moment_the_newest_checkpoint_is_whole(tmp_path, processes):
    moments = random.Random(0)
    told, torn, seen = 0, 0, []
    for _ in range(KILLS):
        progress, end = processes.Pipe(duplex=False)
        process = processes.Process(target=_saves_forever.run, args=(str(tmp_path), end))
        process.start()
        end.close()
        try:
            told = _received(progress, process, told)
            progress.poll(moments.uniform(0, 0.15))  # until about some moment of the next save
        finally:
            process.kill()
            process.join()
        told = _last(progress, told)
        progress.close()
        process.close()

        torn += any(not (path / "checkpoint.json").exists() for path in tmp_path.iterdir())
        latest = jt.train.latest_checkpoint(tmp_path)
        checkpoint = _saves_forever.make()
        if latest is None:  # killed before the first was complete
            assert told <= 1
            told = 0
            continue
        checkpoint.restore(latest).assert_consumed()
        # At most what was being written is lost: `save` waits for the checkpoint before it.
        assert told - 1 <= checkpoint.step <= told + 1
        told = checkpoint.step
        expected = _saves_forever.contents(told)
        for array in checkpoint.arrays:
            np.testing.assert_array_equal(array.numpy(), expected)
        seen.append(told)
    assert seen == sorted(seen)  # each went on from the one before
    assert len(set(seen)) > KILLS // 5  # how far each comes depends on the machine
    assert torn  # some were killed in the middle
    assert len(list(tmp_path.iterdir())) <= 4
