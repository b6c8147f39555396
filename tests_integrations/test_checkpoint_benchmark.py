"""The benchmark of checkpoints, at a size at which it measures nothing."""

from dataclasses import replace

import pytest

from benchmarks.checkpoint import CONTESTS, part_reports
from benchmarks.environments import Environment
from benchmarks.peers.checkpoint_work import PARTS
from benchmarks.race import Case, race

SMALL = Case("small", {"width": 4}, steps=1, warms_up=False)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("contest", [CONTESTS[0], CONTESTS[-1]], ids=lambda c: c.case.name)
def test_all_contestants_restore_what_they_saved(contest) -> None:
    # This interpreter has all libraries, so that no environment needs to be made for them.
    contestants = [replace(c, environment=Environment("current")) for c in contest.contestants]
    result = race(contestants, [SMALL], rounds=1)  # raises when one restores something else
    reports = part_reports(SMALL, result, contest.targets)
    assert [report.name for report in reports] == [f"small, {part}" for part in PARTS]
    for report in reports:
        assert {name: len(samples) for name, samples in report.samples.items()} == {
            contestant.name: 1 for contestant in contestants
        }
