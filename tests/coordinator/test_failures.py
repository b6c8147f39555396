"""One answer for each failure."""

import pytest

import jaxtribute as jt
from jaxtribute.coordinator._failures import (
    Decision,
    Failures,
    FunctionFailed,
    InputFailed,
    Limits,
    ServerLost,
    ServerRestarted,
    WorkerLost,
    decide,
)
from jaxtribute.coordinator._queue import STRIKES

errors = jt.errors
LIMITS = Limits(server_failures=3, timeouts=1)


@pytest.mark.parametrize(
    ("failure", "decision"),
    [
        pytest.param(WorkerLost(1), Decision.RETRY_ALONE, id="worker gone"),
        pytest.param(WorkerLost(STRIKES), Decision.GIVE_UP, id="many workers gone"),
        pytest.param(ServerLost(1), Decision.RETRY, id="server not reached"),
        pytest.param(ServerLost(2), Decision.RETRY, id="server not reached again"),
        pytest.param(ServerLost(3), Decision.RAISE, id="server not reached three times"),
        pytest.param(ServerLost(9, True), Decision.WAIT_AND_RESTORE, id="server to be restored"),
        pytest.param(ServerLost(9, True, 10), Decision.RAISE, id="a closure that never reaches it"),
        pytest.param(ServerRestarted(), Decision.STOP, id="variables gone"),
        pytest.param(ServerRestarted(True), Decision.WAIT_AND_RESTORE, id="variables saved"),
        pytest.param(InputFailed(ValueError()), Decision.RAISE, id="no dataset"),
        pytest.param(FunctionFailed(ZeroDivisionError()), Decision.RAISE, id="bug in the step"),
        pytest.param(
            FunctionFailed(errors.OutOfRangeError("end")), Decision.RAISE, id="out of data"
        ),
        pytest.param(
            FunctionFailed(errors.DeadlineExceededError("slow"), 0), Decision.RETRY, id="timeout"
        ),
        pytest.param(
            FunctionFailed(errors.DeadlineExceededError("slow"), 1),
            Decision.RAISE,
            id="another timeout",
        ),
        pytest.param(
            FunctionFailed(errors.CancelledError("as /job:worker/task:1 was lost")),
            Decision.RETRY_ALONE,
            id="cancelled for another failure",
        ),
        pytest.param(
            FunctionFailed(errors.CancelledError("by the user")), Decision.RAISE, id="cancelled"
        ),
        pytest.param(
            FunctionFailed(errors.TaskUnavailableError("worker:1", "gone")),
            Decision.RETRY_ALONE,
            id="a worker not reached",
        ),
        pytest.param(
            FunctionFailed(errors.AbortedError("worker:1 lost ps:0")),
            Decision.RAISE,
            id="worker and server named",
        ),
        pytest.param(
            FunctionFailed(errors.UnavailableError("the database is away")),
            Decision.RAISE,
            id="something else not reached",
        ),
    ],
)
def test_each_failure_has_one_answer(failure, decision):
    assert decide(failure, LIMITS) is decision


@pytest.mark.parametrize(
    ("environment", "limits"),
    [
        ({}, Limits(3, 2)),
        ({"TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES": "5"}, Limits(5, 2)),
        ({"TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS": "7"}, Limits(3, 7)),
        (
            {
                "JAXTRIBUTE_IGNORE_TRANSIENT_PS_FAILURES": "0",
                "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES": "5",
            },
            Limits(0, 2),
        ),
    ],
    ids=["default", "servers", "timeouts", "ours first"],
)
def test_the_environment_sets_the_limits(environment, limits):
    assert Limits.of(20, environment) == limits


def test_a_limit_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="IGNORE_TRANSIENT_PS_FAILURES must be a whole number"):
        Limits.of(1, {"JAXTRIBUTE_IGNORE_TRANSIENT_PS_FAILURES": "many"})


def test_failures_are_counted_for_each_server():
    failures = Failures(LIMITS)
    answers = [failures.server_lost(task, False, 1) for task in ("ps:0", "ps:1", "ps:0", "ps:0")]
    assert answers == [Decision.RETRY] * 3 + [Decision.RAISE]


def test_no_failure_is_overlooked_with_a_limit_of_zero():
    assert Failures(Limits(0, 0)).server_lost("ps:0", False, 1) is Decision.RAISE


def test_only_timeouts_count_as_timeouts():
    failures = Failures(LIMITS)
    failures.function_failed(ValueError())
    assert failures.function_failed(errors.DeadlineExceededError()) is Decision.RETRY
    assert failures.function_failed(errors.DeadlineExceededError()) is Decision.RAISE
