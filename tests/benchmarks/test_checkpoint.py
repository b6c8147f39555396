"""What the contestants of `checkpoint` save, and how what they find is checked and reported."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.checkpoint import CONTESTS, part_reports
from benchmarks.peers.checkpoint_jaxtribute import Jaxtribute
from benchmarks.peers.checkpoint_work import DECAY, PARTS, Saving, Work, shapes_of
from benchmarks.race import Result
from benchmarks.registry import BENCHMARKS
from benchmarks.report import SUBJECT


def test_every_contestant_is_described_and_every_target_has_an_opponent() -> None:
    described = BENCHMARKS["checkpoint"].contestants
    assert {c.name for contest in CONTESTS for c in contest.contestants} == described.keys()
    for contest in CONTESTS:
        names = [contestant.name for contestant in contest.contestants]
        assert names[0] == SUBJECT and contest.targets.keys() <= set(PARTS)
        assert all(targets.keys() <= set(names[1:]) for targets in contest.targets.values())


def test_the_states_are_as_large_as_their_cases_say() -> None:
    large, small, on_servers = (
        [4 * math.prod(shape) for shape in shapes_of(contest.case.facts)] for contest in CONTESTS
    )
    assert sum(large) == pytest.approx(1e9, rel=0.01)
    assert min(large) == 4 and 60e6 < max(large) < 64 * 2**20
    assert small == [1024] * 2000
    assert sum(on_servers) == pytest.approx(250e6, rel=0.01)


def test_no_two_arrays_are_the_same_and_all_are_each_time() -> None:
    work = Work(width=4)
    arrays = work.arrays()
    assert len({array.tobytes() for array in arrays}) == len(arrays)
    assert all(map(np.array_equal, arrays, Work(width=4).arrays()))


def _after(work: Work, steps: int) -> list[np.ndarray]:
    return [array * np.float32(DECAY) ** np.float32(steps) for array in work.arrays()]


@pytest.mark.parametrize("steps", [0, 1])
def test_what_was_saved_is_accepted_and_nothing_else(steps: int) -> None:
    work = Work(width=4)
    found = _after(work, steps)
    assert work.check(found, steps) == pytest.approx(sum(map(np.sum, found)), rel=1e-4)
    with pytest.raises(ValueError, match="the checkpoint is wrong"):
        work.check(_after(work, 1 - steps), steps)
    with pytest.raises(ValueError, match="the checkpoint is wrong"):
        work.check([array.astype(np.float64) for array in found], steps)
    with pytest.raises(ValueError, match="66 of 67 arrays"):
        work.check(found[1:], steps)


class _InMemory:
    """Keeps what it saves in this process, and writes a file of 3 bytes."""

    saved: list[np.ndarray]
    asynchronous = True

    def __init__(self, arrays: Sequence[np.ndarray], *, copies: bool = True) -> None:
        self.arrays = [np.array(array) for array in arrays]
        self.copies = copies

    def step(self) -> None:
        for array in self.arrays:
            array *= np.float32(DECAY)

    def save(self, directory: str) -> str:
        Path(directory, "file").write_bytes(b"abc")
        type(self).saved = [array.copy() for array in self.arrays] if self.copies else self.arrays
        return directory

    def wait(self) -> None:
        pass

    def restore(self, path: str) -> None:
        self.arrays = self.saved

    def state(self) -> list[np.ndarray]:
        return self.arrays


def test_a_session_measures_all_parts() -> None:
    session = Saving({"arrays": 3}, _InMemory)
    found = session.run(2)
    assert list(found.parts) == list(PARTS)
    assert found.parts["total"] == found.seconds >= found.parts["blocking"] > 0
    assert found.parts["size"] == 2 * len(b"abc")
    assert session.run(0).seconds == 0


def test_a_save_that_sees_the_next_step_fails() -> None:
    session = Saving({"arrays": 3}, lambda arrays: _InMemory(arrays, copies=False))
    with pytest.raises(ValueError, match="Array 0 of 3 was restored"):
        session.run(1)


def test_ours_saves_and_restores() -> None:
    found = Saving({"arrays": 2}, Jaxtribute).run(1)
    assert found.outcome == Saving({"arrays": 2}, _InMemory).run(1).outcome
    assert found.parts["size"] > 2 * 1024


@pytest.mark.parametrize(("ours", "met"), [(0.3, True), (0.31, False)])
def test_parts_are_reported_beside_their_targets(ours: float, met: bool) -> None:
    contest = CONTESTS[0]
    seconds = {SUBJECT: [ours], "tensorflow": [1.0]}
    result = Result({}, parts={contest.case.name: dict.fromkeys(PARTS, seconds)})
    reports = {
        report.name: report for report in part_reports(contest.case, result, contest.targets)
    }
    blocking, size = reports["1 GB, blocking"], reports["1 GB, size"]
    assert blocking.measured()[SUBJECT].median == ours * 1e3
    assert blocking.met() == {"tensorflow": met}
    assert size.unit == "MB" and size.measured()["tensorflow"].median == 1e-6
    assert size.met() == {} and blocking.unit is None
