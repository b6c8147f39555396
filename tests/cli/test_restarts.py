"""When a task of a job with parameter servers is started again."""

import pytest

from jaxtribute.cli._restarts import CHIEF, Restart, Restarts

KILLED = -9


@pytest.mark.parametrize("task", ["worker:1", "ps:0"])
def test_workers_and_servers_have_a_number_of_restarts_each(task):
    restarts = Restarts(limit=2, chief_limit=0)
    assert restarts.after(task, KILLED, was_up=True) == Restart(1, 2, 0.5)
    assert restarts.after("worker:0", KILLED, was_up=True) == Restart(1, 2, 0.5)
    assert restarts.after(task, KILLED, was_up=True) == Restart(2, 2, 0.5)
    assert restarts.of(task) == 2
    assert restarts.after(task, KILLED, was_up=True) is None
    assert restarts.of(task) == 2


def test_the_chief_has_its_own_number():
    assert Restarts(limit=100, chief_limit=0).after(CHIEF, 1, was_up=False) is None
    restarts = Restarts(limit=0, chief_limit=1)
    assert restarts.after(CHIEF, 1, was_up=False) == Restart(1, 1, 0.5)
    assert restarts.after(CHIEF, 1, was_up=True) is None
    assert restarts.after("ps:0", KILLED, was_up=True) is None


def test_one_that_cannot_start_is_tried_less_and_less_often_and_given_up():
    restarts = Restarts(limit=100, chief_limit=0)
    tries = [restarts.after("ps:0", 1, was_up=False) for _ in range(5)]
    assert [t and t.pause_seconds for t in tries] == [0.5, 1.0, 2.0, 4.0, None]


@pytest.mark.parametrize(
    ("returncode", "was_up"),
    [
        pytest.param(1, True, id="it was up"),
        pytest.param(0, True, id="it ended without an error"),
        pytest.param(KILLED, False, id="somebody killed it"),
    ],
)
def test_one_that_can_start_is_not_given_up(returncode, was_up):
    restarts = Restarts(limit=100, chief_limit=0)
    for _ in range(4):
        restarts.after("ps:0", 1, was_up=False)
    for number in range(20):
        expected = Restart(5 + number, 100, 0.5)
        assert restarts.after("ps:0", returncode, was_up) == expected
