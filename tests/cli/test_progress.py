"""The one line that says how far a job is."""

import itertools
import json

import pytest

from jaxtribute.cli._progress import JobProgress, duration


def progress(workers=2, **arguments):
    return JobProgress([f"worker:{i}" for i in range(workers)], now=100.0, **arguments)


def tell(job, task, now=100.0, **fields):
    return job.report(json.dumps({"task": f"worker:{task}", **fields}).encode(), now)


def test_before_anything_is_reported():
    assert progress().text(104.2) == "2 workers running, 4.2 s"
    assert progress(workers=1).text(104.2) == "1 worker running, 4.2 s"


def test_phases_are_counted_where_they_differ():
    job = progress()
    tell(job, 0, phase="compiling")
    assert job.text(101) == "2 workers (1 compiling, 1 running), 1.0 s"
    tell(job, 1, phase="compiling")
    assert job.text(101) == "2 workers, compiling, 1.0 s"


def test_steps_are_the_lowest_and_the_highest():
    job = progress()
    tell(job, 0, phase="training", step=8, total=20, metrics={"loss": 0.25})
    tell(job, 1, phase="training", step=8, total=20, metrics={"loss": 0.26})
    assert job.text(101) == "2 workers, training, step 8 of 20, loss 0.25, 1.0 s"
    tell(job, 1, step=10)
    assert job.text(101) == "2 workers, training, step 8..10 of 20, loss 0.25, 1.0 s"


def test_the_rate_is_that_of_the_last_seconds():
    job = progress(workers=1)
    for second in range(100):
        tell(job, 0, now=100.0 + second, step=second * 2)
    for second in range(100, 120):
        tell(job, 0, now=100.0 + second, step=200 + (second - 100) * 7)
    assert "7 steps/s" in job.text(220)


def test_a_job_that_makes_no_step_any_more_says_so():
    job = progress(workers=1)
    for second in range(10):
        tell(job, 0, now=100.0 + second, step=second)
    assert "1 steps/s" in job.text(110)
    assert "no step for 1:11" in job.text(180)


def test_that_time_passes_is_no_news_and_that_no_step_is_made_is():
    job = progress(workers=1)
    tell(job, 0, now=100.0, step=1)
    news = [job.state(now) for now in (101.0, 159.0, 160.0, 200.0, 219.0, 220.0, 300.0, 341.0)]
    assert [a != b for a, b in itertools.pairwise(news)] == [
        *[False, True],
        *[False, False, True],
        *[False, True],
    ]


def test_those_that_have_ended_are_not_counted():
    job = progress()
    job.end("worker:1")
    assert job.text(101) == "1 of 2 workers running, 1.0 s"


def test_a_restart_begins_anew():
    job = progress(max_restarts=3)
    tell(job, 0, phase="training", step=8)
    job.end("worker:1")
    job.restart()
    assert job.text(101) == "2 workers running, 1.0 s, restart 1 of 3"


def test_what_is_left_out_of_a_report_stays():
    job = progress(workers=1)
    tell(job, 0, phase="training", step=8, total=10)
    tell(job, 0, phase="saving")
    assert job.state(101).startswith("1 worker, saving, step 8 of 10")


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"\xff",
        b"[1]",
        b"{}",
        b'{"task": "worker:9", "step": 1}',
        b'{"task": "worker:0", "step": "many"}',
        b'{"task": "worker:0", "phase": 3}',
        b'{"task": "worker:0", "metrics": {"loss": "low"}}',
        b'{"task": "worker:0", "metrics": [1]}',
    ],
)
def test_what_is_no_report_is_refused(datagram):
    job = progress()
    assert not job.report(datagram, 101.0)
    assert job.text(101) == "2 workers running, 1.0 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (60, "1:00"), (3599, "59:59"), (7385, "2:03:05")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


class TestWithServers:
    def job(self):
        return JobProgress(["chief:0", "worker:0", "ps:0"], now=100.0)

    def tell(self, job, task, now=100.0, **fields):
        assert job.report(json.dumps({"task": task, **fields}).encode(), now)

    def test_tasks_are_not_all_workers(self):
        job = self.job()
        assert job.text(101) == "3 tasks running, 1.0 s"
        self.tell(job, "worker:0", phase="serving")
        self.tell(job, "ps:0", phase="serving")
        self.tell(job, "chief:0", phase="training", step=3, metrics={"loss": 0.5})
        assert job.text(101) == "3 tasks (1 training, 2 serving), step 3, loss 0.5, 1.0 s"

    def test_one_that_is_started_again_begins_anew(self):
        job = self.job()
        self.tell(job, "chief:0", phase="training", step=3)
        self.tell(job, "ps:0", phase="serving")
        assert job.is_up("ps:0")
        job.end("ps:0")
        assert job.text(101) == "2 of 3 tasks (1 training, 1 running), step 3, 1.0 s"
        job.restart_task("ps:0")
        assert not job.is_up("ps:0")
        assert job.text(101) == "3 tasks (1 training, 2 running), step 3, 1.0 s, 1 restart"
        job.restart_task("chief:0")
        assert job.text(101) == "3 tasks running, 1.0 s, 2 restarts"
