"""`jaxtribute launch --evaluator`: one more process, which training does not depend on."""

import json
import signal

import pytest

from tests.processes._launcher import Launcher
from tests.processes._server_jobs import LISTENING, ServerJob

pytestmark = pytest.mark.processes

TWO = ("--workers", "2", "--evaluator")

# An evaluator without JAX: it is there, and ends when it is told that training is over.
EVALUATOR = """
def until(name):
    while not os.path.exists(name):
        time.sleep(0.02)

is_evaluator = task["type"] == "evaluator"
ended = os.environ.get("JAXTRIBUTE_TRAINING_ENDED")
def evaluate():
    report(phase="waiting for a checkpoint")
    print("evaluator is up", restart)
    until(ended)
    print("told of the end")
"""


@pytest.fixture
def launcher(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.fixture
def job(tmp_path):
    job = ServerJob(tmp_path)
    yield job
    job.close()


def start(launcher, script, *options):
    launcher.start(EVALUATOR + script, options=[*TWO, *options])


def said(launcher):
    """Return what the launcher said after that it starts."""
    lines = [line.split(" | ", 1) for line in launcher.stderr.splitlines()]
    return [text for who, text in lines if who.strip() == "launcher"][1:]


class TestWorkers:
    def test_it_knows_what_it_is_and_the_workers_know_nothing_of_it(self, launcher):
        start(
            launcher,
            """
print("config", os.environ["TF_CONFIG"])
evaluate() if is_evaluator else print(ended)
""",
        )
        assert launcher.result() == 0
        lines = [line.split(" | ", 1) for line in launcher.stdout.splitlines()]
        configs = {
            who.strip(): json.loads(text.removeprefix("config "))
            for who, text in lines
            if text.startswith("config ")
        }
        own = configs.pop("evaluator:0")
        assert own["task"] == {"type": "evaluator", "index": 0}
        assert all(each["cluster"] == own["cluster"] for each in configs.values())
        assert list(own["cluster"]) == ["worker"]
        assert launcher.stdout.count("None\n") == 2
        assert "evaluator:0 | told of the end\n" in launcher.stdout
        told = said(launcher)
        assert told[0].startswith("2 workers finished after ")
        assert told[1] == "waiting for evaluator:0 to evaluate the last checkpoint"

    def test_it_is_started_again_when_it_is_killed_and_training_goes_on(self, launcher):
        start(launcher, "evaluate() if is_evaluator else until('go')")
        launcher.until("evaluator is up 0")
        before = launcher.tasks()
        before["evaluator:0"].kill()
        launcher.until("evaluator is up 1")
        after = launcher.tasks()
        (launcher.directory / "go").touch()
        assert launcher.result() == 0
        assert all(before[f"worker:{i}"].pid == after[f"worker:{i}"].pid for i in (0, 1))
        first, second, *_ = said(launcher)
        assert first.startswith("evaluator:0 ended after ")
        assert second == "starting evaluator:0 again (1 of 100)"

    def test_it_stays_when_the_workers_are_started_again(self, launcher):
        start(
            launcher,
            "evaluate() if is_evaluator else (until('go'), sys.exit(restart == 0 and index))",
            *("--max-restarts", "1"),
        )
        launcher.until("evaluator is up 0")
        (launcher.directory / "go").touch()
        assert launcher.result() == 0
        assert launcher.stdout.count("evaluator is up") == 1
        assert launcher.stdout.count("told of the end") == 1

    def test_its_failure_is_that_of_the_job_but_not_before_training_is_over(self, launcher):
        start(
            launcher,
            "sys.exit(3) if is_evaluator else (until('go'), print('trained'))",
            *("--max-restarts", "0"),
        )
        launcher.until("evaluator:0 is not started again: training goes on")
        (launcher.directory / "go").touch()
        assert launcher.result() == 3
        assert launcher.stdout.count("trained") == 2

    def test_a_failure_of_training_is_told_and_comes_first(self, launcher):
        start(launcher, "(evaluate(), sys.exit(3)) if is_evaluator else sys.exit(5)")
        assert launcher.result() == 5
        assert "told of the end" in launcher.stdout

    def test_one_that_looks_for_no_checkpoints_is_asked_to_end(self, launcher):
        start(
            launcher,
            """
if is_evaluator:
    print("deaf")
    wait()
until("go")
""",
            *("--grace-period", "0.1"),
        )
        launcher.until("deaf")
        (launcher.directory / "go").touch()
        assert launcher.result() == 0

    def test_it_hears_of_an_interruption_when_the_workers_have_ended(self, launcher):
        start(
            launcher,
            """
def save(*_):
    print("saved", flush=True)
    raise SystemExit(0)

if is_evaluator:
    evaluate()
else:
    signal.signal(signal.SIGTERM, save)
    print("trains")
    wait()
""",
        )
        launcher.until("trains", 2)
        launcher.until("evaluator is up")
        launcher.send(signal.SIGTERM)
        assert launcher.result() == 128 + signal.SIGTERM
        assert launcher.stdout.count("saved") == 2
        assert launcher.stdout.rindex("saved") < launcher.stdout.index("told of the end")


TRAINING = """
import numpy as np
import jaxtribute as jt

resolver = jt.cluster_resolver.TFConfigClusterResolver()

def make():
    return {"w": jt.Variable(np.zeros((6, 2), np.float32), name="w")}

def evaluate():
    if restart == 0 and model["w"].numpy().sum() > 12:
        print("evaluating the second", flush=True)
        wait()  # until it is killed
    return {"sum": model["w"].numpy().sum()}

if task["type"] == "evaluator":
    model = make()
    checkpoint = jt.train.Checkpoint(model=model)
    jt.train.SidecarEvaluator(
        checkpoint, evaluate, "training", evaluate_all=True, poll_seconds=0.1
    ).start()
else:
    strategy = jt.ParameterServerStrategy(
        resolver, jt.experimental.partitioners.FixedShardsPartitioner(2)
    )
    coordinator = jt.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = make()
        step = jt.Variable(0)
    checkpoint = jt.train.Checkpoint(model=model, step=step)
    manager = jt.train.CheckpointManager(checkpoint, "training")

    def train_step():
        model["w"].assign_add(np.ones((6, 2), np.float32))
        step.assign_add(10)

    for epoch in range(3):
        coordinator.schedule(train_step)
        coordinator.join()
        manager.save()
        until("go") if epoch == 1 else None
    jt.train.latest_checkpoint("training")
"""


def test_an_evaluator_that_is_killed_evaluates_the_rest_and_nothing_twice(job, tmp_path):
    environment = {"JAXTRIBUTE_CLUSTER_KEY": "k" * 64}
    options = ("--workers", "1", "--ps", "2", "--evaluator")
    job.start(LISTENING + TRAINING, options=options, environment=environment)
    job.until("evaluating the second")
    job.tasks()["evaluator:0"].kill()
    job.until("evaluated ckpt-2")
    (tmp_path / "go").touch()
    assert job.result() == 0
    lines = (tmp_path / "training" / "evaluation" / "results.jsonl").read_text().splitlines()
    results = [json.loads(line) for line in lines]
    assert [(r["step"], r["metrics"]["sum"]) for r in results] == [(10, 12), (20, 24), (30, 36)]
    assert "evaluation ends: training is over; results: 3, in " in job.stdout
    assert "a chief, 1 worker, 2 parameter servers and an evaluator" in job.stderr
