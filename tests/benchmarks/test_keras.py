"""Who takes part in `keras`; tests_integrations has all of it run, as it needs TensorFlow."""

from importlib import metadata

from benchmarks.keras import CASES, CONTESTANTS, TARGETS
from benchmarks.race import Result
from benchmarks.registry import BENCHMARKS
from benchmarks.report import SUBJECT


def test_every_contestant_is_described_and_every_target_has_an_opponent() -> None:
    names = [contestant.name for contestant in CONTESTANTS]
    assert names == list(BENCHMARKS["keras"].contestants)
    assert names[0] == SUBJECT and len(CASES) == len(TARGETS)
    assert all(targets.keys() <= set(names[1:]) for targets in TARGETS)


def test_all_contestants_have_the_same_keras() -> None:
    *on_jax, on_tensorflow = CONTESTANTS
    assert all(c.environment.is_current and c.variables["KERAS_BACKEND"] == "jax" for c in on_jax)
    assert f"keras=={metadata.version('keras')}" in on_tensorflow.environment.requirements
    assert on_tensorflow.variables["KERAS_BACKEND"] == "tensorflow"


def test_times_are_reported_in_milliseconds_beside_their_targets() -> None:
    case, targets = CASES[0], TARGETS[0]
    seconds = {SUBJECT: [0.0021], "data_parallel": [0.002], "tensorflow": [0.004]}
    report = Result({case.name: seconds}).report(case, targets)
    assert report.measured()[SUBJECT].median == 2.1
    assert report.met() == {"data_parallel": True, "tensorflow": False}
    assert report.facts == {"hidden": 256, "batch": 256, "steps": case.steps}
