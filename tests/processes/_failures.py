"""What the tests of workers that are lost have in common."""

from contextlib import ExitStack
from pathlib import Path

from tests.processes._workers import Cluster

SOON = 40.0
"""Seconds in which a loss is known, on a busy machine; left alone, JAX takes minutes or forever."""


def name(value) -> str:
    """Return what a parameter is called in the name of a test."""
    return getattr(value, "name", str(value))


ENVIRONMENT = {"JAXTRIBUTE_SILENCE_TIMEOUT": "3"}

# A step that cannot be done without the others, compiled and not.
PRELUDE = """
strategy = jt.MultiWorkerMirroredStrategy()
with strategy.scope():
    v = jt.Variable(jnp.zeros(1000), aggregation=jt.VariableAggregation.SUM)

def eager_step():
    strategy.run(lambda: v.assign_add(jnp.ones(1000) * (1.0 + replica())))

step = jt.function(eager_step)
"""

# The last worker does not catch what it gets; the others go on without training.
SURVIVE = """
except jt.errors.JaxtributeError as error:
    say("lost", **said(error))
    if TASK["index"] == LAST:
        raise
    try:
        step()
    except jt.errors.WorkerLostError as again:
        say("lost again", **said(again))
    say("alive", sum=float(jnp.sum(jnp.arange(4.0))))
"""


class Clusters:
    """Describes clusters, and ends what is left of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._opened = ExitStack()

    def __call__(self, workers: int = 2) -> Cluster:
        cluster = Cluster(self._directory, workers, environment=ENVIRONMENT)
        return self._opened.enter_context(cluster)

    def close(self) -> None:
        self._opened.close()


def start(cluster: Cluster, script: str) -> None:
    last = int(cluster.tasks[-1].partition(":")[2])
    cluster.start(script.replace("LAST", str(last)))


def assert_survived(cluster: Cluster, lost: str, *words: str) -> None:
    """Check that all others have learnt of the loss, and end as they are meant to."""
    survivors = [task for task in cluster.tasks if task != lost]
    for task in survivors:
        error = cluster.until(task, "lost", SOON)
        assert error["kind"] == "WorkerLostError", error
        assert error["tasks"] == [lost], error
        for word in words:
            assert word in error["text"]
    for task in survivors:
        if task == cluster.tasks[-1]:
            assert cluster.code(task) == 1
            assert "WorkerLostError: Lost " in cluster.stderr(task)
        else:
            assert cluster.until(task, "lost again", SOON)["tasks"] == [lost]
            assert cluster.until(task, "alive", SOON)["sum"] == 6.0
            assert cluster.code(task) == 0, (cluster.code(task), cluster.stderr(task))
