"""Workers in processes of their own that are asked to end, fail and are killed."""

import pytest

import jaxtribute as jt
from tests.preemption._training import STEPS, Training
from tests.processes._workers import Cluster

pytestmark = pytest.mark.processes

# What happens to whom is in PLAN. All signals are real, and come at a known place.
TRAINS = """
from tests.preemption._training import STEPS, Training

plan = json.loads(os.environ["PLAN"])

def terminate(place):
    for _ in range(plan.get(f"terminated {place}", []).count(ME)):
        os.kill(os.getpid(), signal.SIGTERM)

class Trap:
    '''Something in the checkpoint that is met while it is saved.'''

    def __next__(self):
        return None

    is_set = False

    def get_state(self):
        if self.is_set:
            os.kill(os.getpid(), signal.SIGKILL)
        return {}

    def set_state(self, state):
        pass

trap = Trap()
training = Training(jt.MultiWorkerMirroredStrategy(), trap=trap)
with jt.train.BackupAndRestore(training.checkpoint, "backups", save_freq=2) as backup:
    terminate("before the first step")
    for step in backup.steps(STEPS):
        terminate(f"in step {step}")
        say("step", number=step, loss=training.step())
        trap.is_set = plan.get("killed while saving") == ME
training.iterator.close()
"""


def start(directory, workers, plan):
    directory.mkdir(exist_ok=True)
    cluster = Cluster(directory, workers=workers, environment={"PLAN": plan})
    cluster.start(TRAINS)
    return cluster


def losses(cluster, task):
    return {one["number"]: one["loss"] for one in cluster.said(task) if one["event"] == "step"}


@pytest.mark.timeout(300)  # it starts five processes, some after the others
def test_interrupted_training_has_the_losses_of_one_that_was_not(tmp_path):
    undisturbed = Training(jt.MirroredStrategy(["CPU:0", "CPU:1"]))
    expected = {step: undisturbed.step() for step in range(STEPS)}
    undisturbed.iterator.close()

    # Two signals to one that is not the chief: all save after the same step.
    with start(tmp_path, 2, '{"terminated in step 2": [1, 1]}') as cluster:
        assert cluster.codes() == [143, 143]
        first = losses(cluster, "worker:0")
        assert losses(cluster, "worker:1") == first
        assert "jaxtribute: preempted: saved" in cluster.stderr("worker:0")
        assert [cluster.complaints(task) for task in cluster.tasks] == [[], []]
    assert 3 <= len(first) <= 4
    before = jt.train.latest_checkpoint(tmp_path / "backups")

    # Signals to both, and one is killed while they save: the backup before stays.
    plan = '{"terminated before the first step": [0, 1], "killed while saving": 1}'
    with start(tmp_path, 2, plan) as cluster:
        assert cluster.codes() == [1, -9]
        second = losses(cluster, "worker:0")
        assert "WorkerLostError: Lost worker:1" in cluster.stderr("worker:0")
    assert list(second) == [len(first)]
    assert jt.train.latest_checkpoint(tmp_path / "backups") == before

    # One worker, which has all devices, goes on.
    with start(tmp_path, 1, "{}") as cluster:
        cluster.finish()
        third = losses(cluster, "worker:0")
    assert list(third) == list(range(len(first), STEPS))
    assert first | third == pytest.approx(expected, rel=1e-5)
    assert second == pytest.approx({len(first): expected[len(first)]}, rel=1e-5)


TELLS = """
strategy = jt.MultiWorkerMirroredStrategy()
watcher = jt.experimental.PreemptionWatcher()
if ME == 1:
    os.kill(os.getpid(), signal.SIGTERM)
while watcher.preemption_message is None:
    time.sleep(0.01)
say("watched", text=watcher.preemption_message)
watcher.close()

checkpoint = jt.train.Checkpoint(step=0)
handler = jt.experimental.PreemptionCheckpointHandler(
    strategy.cluster_resolver, checkpoint, "checkpoints"
)
try:
    if ME == 1:
        handler.run(lambda: 1 / 0)
    else:
        ones = strategy.run(lambda: jnp.ones(()))
        handler.run(lambda: strategy.reduce("SUM", ones, axis=None))
except (ZeroDivisionError, jt.errors.AbortedError) as error:
    say("failed", **said(error))
    hold("both have failed")
handler.close()
"""


def test_workers_hear_of_signals_and_errors_of_each_other(tmp_path):
    with Cluster(tmp_path, workers=2) as cluster:
        cluster.start(TELLS)
        watched = cluster.until_all("watched")
        failed = cluster.until_all("failed")
        cluster.release("both have failed")
        cluster.codes()
    assert [one["text"] for one in watched] == ["worker:1 was asked to end by SIGTERM"] * 2
    assert [one["kind"] for one in failed] == ["AbortedError", "ZeroDivisionError"]
    assert failed[0]["text"] == ("worker:1 gave up: it raised ZeroDivisionError: division by zero")
