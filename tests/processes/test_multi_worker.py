"""Training on several workers gives what one device gives. Each cluster is started once."""

import math
from typing import Any

import numpy as np
import pytest

import jaxtribute as jt
from tests.processes import _training
from tests.processes._workers import Cluster

pytestmark = pytest.mark.processes

LAYOUTS = {"2 workers": (2, 1), "2 workers x 2 devices": (2, 2), "3 workers": (3, 1)}

# All cases on two workers; on more, those that show how work is divided.
CASES = [
    *(("2 workers", name) for name in _training.COMPARED),
    *(("2 workers x 2 devices", name) for name in _training.COMPARED if "compiled" in name),
    ("2 workers x 2 devices", "last batch of 5, eager"),
    *(("3 workers", name) for name in _training.COMPARED if "batch" in name),
]

TRAINING = """
from tests.processes import _training
strategy = jt.MultiWorkerMirroredStrategy()
for name in {names}:
    say(name, result=_training.COMPARED[name](strategy))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a function from a layout to what each of its workers found, by case."""
    known: dict[str, list[dict[str, Any]]] = {}

    def train(layout: str) -> list[dict[str, Any]]:
        if layout not in known:
            workers, devices = LAYOUTS[layout]
            names = [name for where, name in CASES if where == layout]
            with Cluster(tmp_path_factory.mktemp("training"), workers, devices) as cluster:
                cluster.start(TRAINING.format(names=names))
                cluster.finish()
                known[layout] = [
                    {one["event"]: one["result"] for one in cluster.said(task)}
                    for task in cluster.tasks
                ]
        return known[layout]

    return train


@pytest.fixture(scope="module")
def on_one_device():
    """Return a function from a case to what one device makes of it."""
    known: dict[str, Any] = {}

    def train(case: str) -> Any:
        if case not in known:
            known[case] = _training.COMPARED[case](jt.OneDeviceStrategy("CPU:0"))
        return known[case]

    return train


def assert_close(result: Any, expected: Any) -> None:
    """Compare nested results, numbers to the precision of float32."""
    if isinstance(expected, dict):
        assert result.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(result[key], value)
    elif isinstance(expected, list) and any(isinstance(one, list) for one in expected):
        assert len(result) == len(expected)
        for one, other in zip(result, expected, strict=True):
            assert_close(one, other)
    else:
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("layout", "case"), CASES)
def test_workers_train_as_one_device_does(trained, on_one_device, layout, case):
    first, *others = (worker[case] for worker in trained(layout))
    assert_close(first, on_one_device(case))
    for other in others:
        assert other == first, "workers disagree"


# --- What is particular to several workers ---------------------------------------------------

FILES = {"a": range(5), "b": range(5, 7), "c": range(7, 14)}
SEEN = list(range(14))

PARTICULAR = """
from tests.processes import _training
strategy = jt.MultiWorkerMirroredStrategy()
SUM = jt.VariableAggregation.SUM
ON_READ = jt.VariableSynchronization.ON_READ

def numbers(value):
    return [np.asarray(one).tolist() for one in strategy.experimental_local_results(value)]

# R101
with strategy.scope():
    written = jt.Variable(10.0, aggregation=SUM)
    read = jt.Variable(0.0, synchronization=ON_READ, aggregation=SUM)
strategy.run(lambda: read.assign_add(replica() + 1.0))
strategy.run(lambda: written.assign_add(replica() + 1.0))
r101 = [float(read.read_value()), float(written)]
written.assign_add(1.0)
say("R101", values=[*r101, float(written)])

# A function computes initial values, in replicas and outside of them.
class Computed:
    outside = inside = None

@jt.function
def compute(x):
    def in_replica(x):
        if Computed.inside is None:
            Computed.inside = jt.Variable(jnp.mean(x) * (5.0 - replica()), name="inside")
        return Computed.inside * x
    if Computed.outside is None:
        Computed.outside = jt.Variable(jnp.mean(x) + 1.0, name="outside")
    return strategy.run(in_replica, args=(x,))

with strategy.scope():
    compute(jnp.full((2,), 2.0))
say("computed", values=[float(Computed.outside), float(Computed.inside)])

# Each worker draws another initial value.
with strategy.scope():
    drawn = jt.Variable(lambda: jnp.full((2,), 7.0 + ME), name="drawn")
    same = jt.Variable(np.float32([1, 2]), name="same")
    whole = jt.Variable(np.int32(3 + ME), aggregation=SUM)
say("initial", drawn=drawn.numpy().tolist(), same=same.numpy().tolist(), whole=int(whole))

# Who is who.
say("place", replicas=strategy.num_replicas_in_sync, ids=numbers(strategy.run(replica)),
    devices=len(strategy.topology.local_devices), copies=len(drawn.values),
    task=[strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id],
    workers=strategy.cluster_resolver.cluster_spec().num_tasks("worker"))

# Reductions and gathering, of values that differ in size too.
values = strategy.run(lambda: jnp.full((replica() + 1,), 1.0 * replica()))
compiled = jt.function(lambda: strategy.reduce("SUM", strategy.run(lambda: 2.0 ** replica()), None))
say("collectives",
    sum=float(strategy.reduce("SUM", strategy.run(lambda: jnp.float32(replica() + 1)), None)),
    mean=float(strategy.reduce("MEAN", strategy.run(lambda: jnp.float32(replica())), None)),
    compiled=float(compiled()),
    mean_of_all=float(strategy.reduce("MEAN", values, axis=0)),
    gathered=np.asarray(strategy.gather(values, axis=0)).tolist(),
    all_gathered=numbers(strategy.run(
        lambda: jt.get_replica_context().all_gather(jnp.ones((1,)) * replica(), axis=0)))[0])

# The same in a compiled function, of elements that are even, and not.
@jt.function
def gathered(iterator):
    return strategy.gather(next(iterator), axis=0)

@jt.function
def local(iterator):
    return strategy.experimental_local_results(next(iterator))

counted = jt.data.Dataset.range(9).batch(4)
iterator = iter(strategy.experimental_distribute_dataset(counted))
say("gathered in a function",
    rows=[np.asarray(gathered(iterator)).tolist() for _ in range(3)])
try:
    local(iter(strategy.experimental_distribute_dataset(counted.repeat())))
except jt.errors.FailedPreconditionError as error:
    say("local results in a function", **said(error))

# Rows of a table: what each replica adds to it.
def slices():
    rows = jt.IndexedSlices(jnp.ones((1, 2)), jnp.array([replica()]), (4, 2))
    return jt.get_replica_context().all_reduce("SUM", rows).to_dense()
say("slices", dense=numbers(strategy.run(slices))[0],
    compiled=numbers(jt.function(lambda: strategy.run(slices))())[0])

# Datasets.
say("files", **_training.files(strategy, Path("files")))
say("shuffled", epochs=_training.shuffled(strategy, seed=None))

def own(context):
    rows = 100 * context.input_pipeline_id + np.arange(2 + 3 * context.input_pipeline_id)
    return jt.data.Dataset.from_tensor_slices(rows.astype(np.int32)).batch(2)

steps = [[np.asarray(strategy.gather(batch, axis=0)).tolist(),
          float(strategy.reduce("SUM", batch, axis=0))]
         for batch in strategy.distribute_datasets_from_function(own)]
say("from a function", steps=steps)

@jt.function
def total(batch):
    return strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(x), args=(batch,)), None)

say("from a function, compiled",
    sums=[float(total(batch)) for batch in strategy.distribute_datasets_from_function(own)])

def fails_at_3(x):
    if x == 3 and ME == 1:
        raise ValueError("the example 3 is broken")
    return x

broken = jt.data.Dataset.range(8).map(fails_at_3).batch(2)
seen = []
try:
    for batch in strategy.experimental_distribute_dataset(broken):
        seen.append(numbers(batch))
except Exception as error:
    say("broken input", seen=len(seen), **said(error))

# Metrics.
with strategy.scope():
    mean = jt.metrics.Mean()
strategy.run(lambda: mean.update_state(jnp.arange(replica() + 1.0)))
before = float(mean.result())
mean.reset_state()
say("metric", mean=before, after_reset=float(mean.result()))

say("done")
"""


@pytest.fixture(
    scope="module", params=["2 workers", "2 workers x 2 devices"], ids=lambda p: p.replace(" ", "_")
)
def particular(request, tmp_path_factory):
    """Return what each worker said, by event, and how many replicas there are."""
    workers, devices = LAYOUTS[request.param]
    directory = tmp_path_factory.mktemp("particular")
    (directory / "files").mkdir()
    for name, numbers in FILES.items():
        text = "".join(f"{number}\n" for number in numbers)
        (directory / "files" / f"{name}.txt").write_text(text)
    with Cluster(directory, workers, devices) as cluster:
        cluster.start(PARTICULAR)
        cluster.finish()
        said = [{one["event"]: one for one in cluster.said(task)} for task in cluster.tasks]
    return said, workers * devices


def test_R101_each_replica_counts_once_and_each_worker_applies_what_is_common(particular):
    said, replicas = particular
    total = sum(range(1, replicas + 1))
    for worker in said:
        assert worker["R101"]["values"] == [total, 10 + total, 11 + total]


def test_variables_start_with_the_chiefs_value(particular):
    for worker in particular[0]:
        assert worker["initial"]["drawn"] == [7.0, 7.0]
        assert worker["initial"]["same"] == [1.0, 2.0]
        assert worker["initial"]["whole"] == 3


def test_variables_start_with_what_a_function_computes_in_the_first_replica(particular):
    for worker in particular[0]:
        assert worker["computed"]["values"] == [3.0, 10.0]


def test_replicas_are_numbered_over_all_workers(particular):
    said, replicas = particular
    each = replicas // 2
    for index, worker in enumerate(said):
        place = worker["place"]
        assert place["replicas"] == replicas
        assert place["ids"] == list(range(each * index, each * (index + 1)))
        assert place["devices"] == place["copies"] == each
        assert place["task"] == ["worker", index]
        assert place["workers"] == 2


def test_reductions_and_gathering_go_over_all_workers(particular):
    said, replicas = particular
    parts = [[float(r)] * (r + 1) for r in range(replicas)]
    rows = [value for part in parts for value in part]
    for worker in said:
        found = worker["collectives"]
        assert found["sum"] == sum(range(1, replicas + 1))
        assert found["mean"] == np.mean(range(replicas))
        assert found["compiled"] == 2**replicas - 1
        assert math.isclose(found["mean_of_all"], np.mean(rows), rel_tol=1e-6)
        assert found["gathered"] == rows
        assert found["all_gathered"] == list(range(replicas))


def test_elements_are_gathered_in_compiled_functions(particular):
    for worker in particular[0]:
        rows = worker["gathered in a function"]["rows"]
        assert [sorted(step) for step in rows] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


def test_local_results_in_a_compiled_function_are_refused(particular):
    for worker in particular[0]:
        assert "one program for all workers" in worker["local results in a function"]["text"]


def test_rows_of_all_replicas_are_added_up(particular):
    said, replicas = particular
    expected = [[1.0, 1.0] if row < replicas else [0.0, 0.0] for row in range(4)]
    for worker in said:
        assert worker["slices"]["dense"] == worker["slices"]["compiled"] == expected


def test_files_of_different_length_are_read_once_by_one_worker(particular):
    for worker in particular[0]:
        assert worker["files"]["seen"] == SEEN


def test_an_unseeded_shuffle_is_the_same_on_all_workers(particular):
    first, second = (worker["shuffled"]["epochs"] for worker in particular[0])
    assert first == second
    for epoch in first:
        assert sorted(epoch) == list(range(10))


def test_a_worker_that_runs_out_goes_on_with_empty_batches(particular):
    said, replicas = particular
    own = [0, 1, 100, 101, 102, 103, 104]
    each = replicas // 2
    for worker in said:
        steps = worker["from a function"]["steps"]
        assert sorted(row for rows, _ in steps for row in rows) == own
        assert [total for _, total in steps] == [sum(rows) for rows, _ in steps]
        assert len(steps) == math.ceil(3 / each)
        assert worker["from a function, compiled"]["sums"] == [total for _, total in steps]


def test_an_error_in_one_workers_input_is_raised_on_all(particular):
    first, second = (worker["broken input"] for worker in particular[0])
    assert first["seen"] == second["seen"]
    for error in first, second:
        assert "the example 3 is broken" in error["text"]
    assert "worker 1" in first["text"] or "worker:1" in first["text"]


def test_metrics_count_what_all_workers_saw(particular):
    said, replicas = particular
    rows = [value for r in range(replicas) for value in range(r + 1)]
    for worker in said:
        assert math.isclose(worker["metric"]["mean"], np.mean(rows), rel_tol=1e-6)
        assert worker["metric"]["after_reset"] == 0.0
