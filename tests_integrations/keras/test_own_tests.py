"""Keras's own tests, in the scope of a strategy."""

import pytest

from tests_integrations.keras._own_tests import PARTS, compare

USUAL = ("trainers/trainer_test.py", "optimizers", "metrics", "callbacks")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", USUAL)
def test_what_holds_without_a_scope_holds_in_one(part):
    outcome = compare(part, quick=True)
    assert not outcome.failed
    assert not outcome.unexpected


@pytest.mark.chaos
@pytest.mark.processes
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("part", [part for part in PARTS if part not in USUAL])
def test_what_holds_without_a_scope_holds_in_one_for_all_of_keras(part):
    outcome = compare(part)
    assert not outcome.failed
    assert not outcome.unexpected
