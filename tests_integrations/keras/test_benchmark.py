"""The benchmark of `fit`, at a size at which it measures nothing."""

from dataclasses import replace

import pytest

from benchmarks.environments import Environment
from benchmarks.keras import CONTESTANTS
from benchmarks.race import Case, race

CASES = [
    Case("MLP", {"hidden": 4, "batch": 8}, steps=2),
    Case("convolutional", {"filters": 2, "batch": 8}, steps=2),
]


@pytest.mark.timeout(300)
def test_all_contestants_come_to_the_same_loss() -> None:
    # This interpreter has TensorFlow, so that no environment needs to be made for it.
    contestants = [replace(c, environment=Environment("current")) for c in CONTESTANTS]
    result = race(contestants, CASES, rounds=1)  # raises when they disagree
    for case in CASES:
        assert {name: len(found) for name, found in result.seconds[case.name].items()} == {
            contestant.name: 1 for contestant in contestants
        }
    assert len({versions["keras"] for versions in result.versions.values()}) == 1
