"""What is written where there is no terminal."""

import json

import pytest

from jaxtribute.cli._display import Display
from jaxtribute.cli._output import Stream
from jaxtribute.cli._progress import JobProgress


@pytest.fixture
def display():
    display = Display(["worker:0", "worker:10"])
    yield display
    display.close()


def step(job, number, now):
    job.report(json.dumps({"task": "worker:0", "step": number}).encode(), now)


def test_names_are_of_one_width(display, capfd):
    display.task_lines("worker:0", Stream.STDOUT, [b"one", b"two"])
    display.task_lines("worker:10", Stream.STDERR, [b"three"])
    display.say("four", style="bold red")
    assert capfd.readouterr() == (
        "worker:0  | one\nworker:0  | two\n",
        "worker:10 | three\nlauncher  | four\n",
    )


def test_what_is_no_text_is_passed_on_as_it_is(display, capfdbinary):
    display.task_lines("worker:0", Stream.STDOUT, [b"\xff\x1b[31m"])
    assert capfdbinary.readouterr().out == b"worker:0  | \xff\x1b[31m\n"


def test_progress_is_a_line_every_ten_seconds_if_something_has_changed(display, capfd):
    job = JobProgress(["worker:0"], now=0.0)
    display.keep_quiet_about(job, 0.0)
    for now in range(1, 60):
        if now < 25:
            step(job, now, float(now))
        display.progress(job, float(now))
    assert capfd.readouterr().err.splitlines() == [
        "launcher  | 1 worker running, step 10, 1 steps/s, 10.0 s",
        "launcher  | 1 worker running, step 20, 1 steps/s, 20.0 s",
        "launcher  | 1 worker running, step 24, 1 steps/s, 30.0 s",
    ]
