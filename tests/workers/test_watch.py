"""Who is behind, who does something else, and what follows from it."""

import pytest

from jaxtribute import errors
from jaxtribute.workers._watch import Place, diverged, judge

TASKS = ("worker:0", "worker:1", "worker:2")


def at(count, what=""):
    return {"count": count, "what": what}


def judged(own, *others, now, noticed=0.0):
    """Judge as worker 0, with all times relative to when it began to wait."""
    return judge(own, TASKS, [own.as_message(), *others], now, noticed)


WAITING = Place(count=5, what="step", since=0.0)
LIMITED = Place(count=5, what="step", since=0.0, timeout=3.0)

FINE = [
    pytest.param(Place(count=5), [at(9, "step"), at(1)], 100, id="does not wait"),
    pytest.param(LIMITED, [at(5, "step"), at(5, "step")], 100, id="all are there"),
    pytest.param(LIMITED, [at(6, "step"), at(5)], 100, id="others are done already"),
    pytest.param(LIMITED, [at(4), at(4)], 2.9, id="not for long"),
    pytest.param(LIMITED, [None, None], 100, id="nothing is known of the others"),
    pytest.param(WAITING, [at(4), at(5, "step")], 9, id="without a limit"),
    pytest.param(WAITING, [at(5, "other"), at(5)], 0.5, id="what is known may be old"),
]


@pytest.mark.parametrize(("own", "others", "now"), FINE)
def test_nothing_follows(own, others, now):
    judgement = judged(own, *others, now=now)
    assert judgement.error is None
    assert judgement.notice is None


@pytest.mark.parametrize(
    ("others", "late", "not_late"),
    [
        ([at(4), at(5, "step")], ["worker:1"], "worker:2"),
        ([at(5, "step"), at(3, "another step")], ["worker:2"], "worker:1"),
        ([at(4), at(4)], ["worker:1", "worker:2"], "worker:0"),
        ([None, at(4)], ["worker:2"], "worker:1"),
    ],
)
def test_those_who_do_not_come_within_the_limit_are_named(others, late, not_late):
    error = judged(LIMITED, *others, now=4.1).error
    assert isinstance(error, errors.DeadlineExceededError)
    for word in [*late, "step", "timeout_seconds=3", "4.1 s"]:
        assert word in str(error)
    assert not_late not in str(error)


def test_the_error_tells_what_keeps_them():
    error = judged(LIMITED, at(3, "compiling a function"), at(4), now=5).error
    assert "worker:1 is alive, compiling a function (3 things done together)" in str(error)
    assert "worker:2 is alive, busy with something of its own (4 things" in str(error)


def test_a_long_wait_is_told():
    notice = judged(WAITING, at(4), at(5, "step"), now=10.5).notice
    assert notice.startswith("has waited 10 s in step for worker:1.")
    assert "worker:2" not in notice


def test_a_long_wait_is_told_again_from_time_to_time():
    assert judged(WAITING, at(4), at(5), now=25, noticed=20).notice is None
    assert judged(WAITING, at(4), at(5), now=25, noticed=14).notice is not None


@pytest.mark.parametrize("own", [WAITING, LIMITED], ids=["without a limit", "with a limit"])
def test_those_who_do_something_else_are_named(own):
    error = judged(own, at(5, "reading the variable 'v'"), at(5, "step"), now=2).error
    assert isinstance(error, errors.FailedPreconditionError)
    assert "this one is in step, worker:1 is in reading the variable 'v'" in str(error)
    assert "worker:2" not in str(error)


def test_one_that_is_done_with_the_same_count_does_nothing_else():
    assert judged(WAITING, at(5), at(5, "step"), now=2).error is None


def test_only_what_others_need_is_sent():
    assert LIMITED.as_message() == {"count": 5, "what": "step", "trail": 0}


def _trail(*steps: str) -> Place:
    place = Place()
    for step in steps:
        place = place.next(step, now=0.0, timeout=None)
    return place


@pytest.mark.parametrize(
    ("own", "other", "differs"),
    [
        pytest.param("ab", "ab", False, id="the same"),
        pytest.param("abc", "ab", False, id="one is ahead"),
        pytest.param("ab", "abc", False, id="the other is ahead"),
        pytest.param("ab", "ba", True, id="another order"),
        pytest.param("abc", "ax", True, id="something else, a while ago"),
    ],
)
def test_what_workers_did_is_compared_also_when_nobody_waits(own, other, differs):
    trails = {i: _trail(*own[:i]).trail for i in range(1, len(own) + 1)}
    found = diverged(trails, ["worker:0", "worker:1"], [None, _trail(*other).as_message()])
    assert isinstance(found, errors.FailedPreconditionError) == differs
    assert not differs or "worker:1" in str(found)
