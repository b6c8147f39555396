"""`jaxtribute launch` when workers save and end because they were asked to."""

import os
import signal

import pytest

from tests.processes._launcher import Launcher

pytestmark = pytest.mark.processes

TWO = ("--workers", "2")
SAVED = "preempted: all workers saved and ended, and go on when started again"

# Saves when it is asked to end, and then ends as one that was preempted; without JAX.
SAVES = """
def save(number, frame):
    print(f"saved by {index} in life {restart}")
    sys.exit(143)

signal.signal(signal.SIGTERM, save)
print("ready")
"""


@pytest.fixture
def launcher(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def test_the_launcher_passes_sigterm_on_and_waits_until_all_have_saved(launcher):
    launcher.start(SAVES + "wait()", options=(*TWO, "--max-restarts", "1"))
    launcher.until("ready", 2)
    launcher.send(signal.SIGTERM)
    assert launcher.result() == 143
    assert launcher.reported() == ["SIGTERM: passed on to 2 workers, with 30 s to end", SAVED]
    assert [launcher.stdout.count(f"saved by {i} in life 0") for i in range(2)] == [1, 1]


def test_when_one_worker_is_asked_all_are_and_they_are_started_again_if_allowed(launcher):
    launcher.start(
        SAVES
        + """
if restart == 0 or index == 0:
    open(f"ready in life {restart}", "w").close()
    wait()
while not os.path.exists("ready in life 1"):
    time.sleep(0.02)
sys.exit(143)
""",
        options=(*TWO, "--max-restarts", "1"),
    )
    launcher.until("ready", 2)
    os.kill(launcher.started(2)[1], signal.SIGTERM)
    assert launcher.result() == 143
    assert launcher.reported() == [SAVED, "restarting (1 of 1)", SAVED]
    saved = ["saved by 0 in life 0", "saved by 1 in life 0", "saved by 0 in life 1"]
    assert all(launcher.stdout.count(text) == 1 for text in saved)


def test_a_failure_is_not_hidden_by_those_that_have_saved(launcher):
    launcher.start(
        SAVES
        + """
if index == 1:
    wait()
while not os.path.exists("go"):
    time.sleep(0.02)
raise ValueError("no such column")
""",
        options=TWO,
    )
    launcher.until("ready", 2)
    launcher.directory.joinpath("go").touch()
    assert launcher.result() == 1
    first, *others = launcher.reported()
    assert first.endswith("exit code 1, ValueError: no such column")
    assert "worker:1  after" in others[-1]
    assert others[-1].endswith(
        "preempted, exit code 143: it has saved, to go on when started again"
    )


def test_a_chief_that_has_saved_ends_the_job_or_is_started_again(launcher):
    options = ("--workers", "1", "--ps", "1", "--max-restarts", "1")
    launcher.start("sys.exit(143)", options=options)
    assert launcher.result() == 143
    ended, again, preempted = launcher.reported()[-3:]
    assert ended.startswith("chief:0 ended after ")
    assert "preempted" in ended
    assert again == "starting chief:0 again (1 of 1)"
    assert preempted == "preempted: chief:0 saved and ended, and goes on when started again"
