"""Which failure came first, and what is said about it."""

import signal

import pytest

from jaxtribute.cli._failures import (
    Ending,
    State,
    cause_may_follow,
    cause_of,
    exit_status,
    exit_text,
    failure_report,
    first_failure,
    last_traceback,
    lost_tasks,
)

TASKS = ["worker:0", "worker:1", "worker:2"]

VALUE_ERROR = (
    "loading data",
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    train()",
    "ValueError: no such column",
)


def lost(*tasks):
    return (
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        f"jaxtribute.errors.WorkerLostError: Lost {', '.join(tasks)}: the connection was closed.",
    )


def too_late(*tasks):
    return (
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        "jaxtribute.errors.DeadlineExceededError: after 10 s these had not come:",
        f"  {' and '.join(tasks)}",
    )


def running(*stopped):
    return {task: State.STOPPED if task in stopped else State.RUNNING for task in TASKS}


class TestExitCodes:
    @pytest.mark.parametrize(
        ("returncode", "text"),
        [
            (0, "finished"),
            (1, "exit code 1"),
            (137, "exit code 137"),
            (-9, "killed by SIGKILL (9): often the kernel's out-of-memory killer"),
            (-6, "aborted with SIGABRT (6): native code gave up"),
            (-10, "ended by SIGUSR1 (10)"),
            (-63, "ended by signal 63"),
        ],
    )
    def test_are_readable(self, returncode, text):
        assert exit_text(returncode) == text

    @pytest.mark.parametrize(("returncode", "status"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
    def test_become_those_of_a_shell(self, returncode, status):
        assert exit_status(returncode) == status


class TestTracebacks:
    def test_the_last_one_counts(self):
        lines = [*VALUE_ERROR, "trying again", *lost("worker:1")]
        assert last_traceback(lines) == list(lost("worker:1"))

    @pytest.mark.parametrize(
        "link",
        [
            "During handling of the above exception, another exception occurred:",
            "The above exception was the direct cause of the following exception:",
        ],
    )
    def test_chained_ones_stay_together(self, link):
        chain = [*VALUE_ERROR[1:], "", link, "", *lost("worker:1"), "bye"]
        assert last_traceback([*VALUE_ERROR, *chain]) == chain

    def test_groups_of_exceptions_are_seen(self):
        lines = ["x", "  + Exception Group Traceback (most recent call last):", "  | more"]
        assert last_traceback(lines) == lines[1:]

    def test_crashes_of_the_interpreter_are_seen(self):
        lines = [*VALUE_ERROR, "Fatal Python error: Segmentation fault", "", "Current thread:"]
        assert last_traceback(lines) == lines[5:]

    def test_there_may_be_none(self):
        assert last_traceback(["one", "two"]) == []


class TestConsequences:
    @pytest.mark.parametrize(
        ("stderr", "tasks"),
        [
            (VALUE_ERROR, None),
            ((), None),
            (lost("worker:1"), ["worker:1"]),
            (lost("worker:1", "worker:2"), ["worker:1", "worker:2"]),
            (lost("worker:7"), []),  # of another job
            (too_late("worker:2"), ["worker:2"]),
            (too_late("a save"), None),  # about nobody
            (too_late("worker:0"), None),  # about itself
        ],
    )
    def test_name_whom_they_follow_from(self, stderr, tasks):
        assert lost_tasks(Ending("worker:0", 1, 2.0, stderr), TASKS) == tasks

    def test_an_error_raised_while_handling_one_is_one(self):
        link = "During handling of the above exception, another exception occurred:"
        stderr = (*lost("worker:1"), "", link, "", *VALUE_ERROR[1:])
        assert lost_tasks(Ending("worker:0", 1, 2.0, stderr), TASKS) == ["worker:1"]

    def test_a_process_that_could_not_raise_it_is_one(self):
        stderr = (
            "jaxtribute: worker:0 cannot get out of step 3, and ends. WorkerLostError: Lost "
            "worker:1: it has not answered for 10 s.",
            "Thread 0x1 (most recent call first):",
            *(f"  frame {number}" for number in range(5)),
        )
        stuck = Ending("worker:0", 75, 2.0, stderr)
        assert lost_tasks(stuck, TASKS) == ["worker:1"]
        report = failure_report([stuck], TASKS, running("worker:1"))
        assert report[0].endswith(" s: exit code 75: it could not get out of a collective")
        assert report[1].startswith("  worker:1 is stopped (SIGSTOP)")
        assert report[2:] == ["  " + line for line in stderr]

    def test_a_signal_is_never_one(self):
        assert lost_tasks(Ending("worker:0", -9, 2.0, lost("worker:1")), TASKS) is None


class TestFirstFailure:
    def test_is_the_earliest(self):
        endings = [Ending("worker:1", -9, 2.0), Ending("worker:0", 1, 2.1, VALUE_ERROR)]
        assert first_failure(endings, TASKS) is endings[0]

    def test_is_a_cause_even_if_a_consequence_was_seen_before(self):
        endings = [
            Ending("worker:0", 1, 2.0, lost("worker:1")),
            Ending("worker:2", 1, 2.0, lost("worker:1")),
            Ending("worker:1", 1, 2.1, VALUE_ERROR),
        ]
        assert first_failure(endings, TASKS) is endings[2]

    def test_is_a_consequence_if_there_is_nothing_else(self):
        endings = [Ending("worker:2", 0, 1.0), Ending("worker:0", 1, 2.0, lost("worker:1"))]
        assert first_failure(endings, TASKS) is endings[1]

    def test_is_none_of_those_the_launcher_ended(self):
        endings = [Ending("worker:0", -15, 1.0, told_to_end=signal.SIGTERM)]
        assert first_failure(endings, TASKS) is None

    def test_is_none_if_all_finished(self):
        assert first_failure([Ending(task, 0, 1.0) for task in TASKS], TASKS) is None


class TestCausesThatWereStartedAgain:
    TASKS = ("chief:0", "worker:0", "ps:0", "ps:1")

    def unavailable(self, task):
        return Ending("chief:0", 1, 9.0, (*lost()[:2], f"jaxtribute.errors.{task}"))

    def test_are_found_by_the_error_that_names_them(self):
        older, newer = Ending("ps:0", -9, 3.0), Ending("ps:0", -11, 2.0)
        before = [older, Ending("ps:1", -9, 4.0), newer, Ending("worker:0", -9, 1.0)]
        for error in (
            "PSUnavailableError: The parameter server ps:0 is not available: it was restarted.",
            "TaskUnavailableError: ps:0 is not available: it has been silent for 10 s.",
        ):
            assert cause_of(self.unavailable(error), before, self.TASKS) is newer

    def test_are_none_if_the_error_is_about_nobody_or_somebody_who_did_not_fail(self):
        failure = Ending("chief:0", 1, 9.0, VALUE_ERROR)
        assert cause_of(failure, [Ending("ps:0", -9, 3.0)], self.TASKS) is failure
        failure = self.unavailable("PSUnavailableError: The parameter server ps:1 is ...")
        before = [Ending("ps:0", -9, 3.0), Ending("ps:1", 0, 3.0)]
        assert cause_of(failure, before, self.TASKS) is failure


class TestWaitingForTheCause:
    def test_while_the_one_that_was_lost_runs(self):
        endings = [Ending("worker:0", 1, 2.0, lost("worker:1"))]
        assert cause_may_follow(endings, TASKS, running())

    def test_not_if_it_is_stopped(self):
        endings = [Ending("worker:0", 1, 2.0, lost("worker:1"))]
        assert not cause_may_follow(endings, TASKS, running("worker:1"))

    def test_not_if_it_has_finished(self):
        endings = [Ending("worker:0", 1, 2.0, lost("worker:1"))]
        states = running() | {"worker:1": State.ENDED}
        assert not cause_may_follow(endings, TASKS, states)

    def test_not_once_the_cause_is_there(self):
        endings = [
            Ending("worker:0", 1, 2.0, lost("worker:1")),
            Ending("worker:2", 1, 2.0, VALUE_ERROR),
        ]
        assert not cause_may_follow(endings, TASKS, running())

    def test_for_anyone_if_nobody_was_named(self):
        endings = [Ending("worker:0", 1, 2.0, lost("somebody"))]
        assert cause_may_follow(endings, TASKS, running("worker:1"))
        assert not cause_may_follow(endings, TASKS, running("worker:1", "worker:2"))


class TestReport:
    def test_begins_with_the_cause_and_its_traceback(self):
        endings = [
            Ending("worker:2", 1, 2.0, lost("worker:1")),
            Ending("worker:1", 1, 2.1, VALUE_ERROR),
            Ending("worker:0", -15, 2.2, told_to_end=signal.SIGTERM),
        ]
        assert failure_report(endings, TASKS, running()) == [
            "worker:1 failed first, after 2.1 s: exit code 1, ValueError: no such column",
            *("  " + line for line in VALUE_ERROR[1:]),
            "worker:0  was ended by the launcher",
            "worker:2  a consequence, after 2.0 s: exit code 1, "
            "jaxtribute.errors.WorkerLostError: Lost worker:1: the connection was closed.",
        ]

    def test_says_that_the_lost_one_is_stopped(self):
        endings = [
            Ending("worker:0", 1, 2.0, lost("worker:1")),
            Ending("worker:1", -9, 2.0, told_to_end=signal.SIGKILL),
            Ending("worker:2", 0, 2.0),
        ]
        report = failure_report(endings, TASKS, running("worker:1"))
        assert report[0].startswith("worker:0 failed first, after 2.0 s: exit code 1, ")
        assert report[1] == (
            "  worker:1 is stopped (SIGSTOP): it was suspended, by a signal or by a debugger"
        )
        assert report[-2:] == [
            "worker:1  was stopped (SIGSTOP), and was killed by the launcher",
            "worker:2  after 2.0 s: finished",
        ]

    def test_says_that_the_lost_one_had_finished(self):
        endings = [Ending("worker:1", 0, 1.0), Ending("worker:0", 1, 2.0, lost("worker:1"))]
        states = running() | {"worker:0": State.ENDED, "worker:1": State.ENDED}
        report = failure_report(endings, TASKS, states)
        assert report[1] == "  worker:1 had finished without an error, while others still needed it"

    def test_of_a_task_that_was_killed_shows_its_last_words(self):
        endings = [Ending("worker:0", -9, 2.0, (*VALUE_ERROR, "trying again"))]
        assert failure_report(endings, TASKS, running()) == [
            "worker:0 failed first, after 2.0 s: killed by SIGKILL (9): often the kernel's "
            "out-of-memory killer",
            "  the last it wrote to stderr:",
            *("  " + line for line in [*VALUE_ERROR, "trying again"]),
        ]

    def test_of_a_syntax_error_shows_it(self):
        stderr = ('  File "train.py", line 1', "    f(", "SyntaxError: '(' was never closed")
        report = failure_report([Ending("worker:0", 1, 0.1, stderr)], TASKS, running())
        assert report[-1] == "  SyntaxError: '(' was never closed"

    def test_says_of_those_that_failed_as_well_how(self):
        endings = [
            Ending("worker:1", 1, 2.1, VALUE_ERROR),
            Ending("worker:0", 1, 2.1, VALUE_ERROR, told_to_end=signal.SIGTERM),
        ]
        assert failure_report(endings, TASKS, running())[-1] == (
            "worker:0  after 2.1 s: exit code 1, ValueError: no such column"
        )

    def test_says_who_had_to_be_killed(self):
        endings = [
            Ending("worker:1", 1, 2.1, VALUE_ERROR),
            Ending("worker:0", -9, 7.2, told_to_end=signal.SIGTERM),
        ]
        assert failure_report(endings, TASKS, running())[-1] == (
            "worker:0  did not end when the launcher asked it to, and was killed"
        )

    def test_cuts_a_long_traceback_in_its_middle(self):
        frames = [f"  frame {number}" for number in range(100)]
        stderr = ("Traceback (most recent call last):", *frames, "ValueError: x")
        report = failure_report([Ending("worker:0", 1, 2.0, stderr)], TASKS, running())
        assert len(report) == 62
        assert report[1] == "  Traceback (most recent call last):"
        assert "  ... 42 lines ..." in report
        assert report[-1] == "  ValueError: x"
