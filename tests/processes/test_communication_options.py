"""How long workers wait for each other, how they pack what they send, and that they do the same."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute._topology import PER_REPLICA, REPLICATED, Topology
from jaxtribute.collectives import CollectiveAllReduce
from tests.processes._workers import Cluster

pytestmark = pytest.mark.processes

SOON = 30.0
"""Seconds in which a wait of one second is given up, on a busy machine."""

PRELUDE = """
Options = jt.experimental.CommunicationOptions
strategy = jt.MultiWorkerMirroredStrategy(communication_options=STRATEGY_OPTIONS)
ONE_SECOND, LONG = Options(timeout_seconds=1.0), Options(timeout_seconds=100.0)

with strategy.scope():
    v = jt.Variable(jnp.zeros(3), aggregation=jt.VariableAggregation.SUM)
    counter = jt.Variable(0.0, name="counter", aggregation=jt.VariableAggregation.SUM,
                          synchronization=jt.VariableSynchronization.ON_READ)

def eager():
    strategy.run(lambda: v.assign_add(jnp.ones(3) * (1.0 + replica())))

@jt.function
def compiled():
    eager()

def all_reduced(options):
    def replica_fn():
        value = jnp.ones(3) * (1.0 + replica())
        return jt.get_replica_context().all_reduce("SUM", value, options=options)
    return strategy.run(replica_fn)

def reduced(options):
    value = strategy.run(lambda: jnp.ones(3) * (1.0 + replica()))
    return strategy.extended.reduce_to("SUM", value, destinations=value, options=options)

all_reduced_compiled = jt.function(all_reduced)
"""


def prelude(options: str = "None") -> str:
    return PRELUDE.replace("STRATEGY_OPTIONS", options)


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path, 2) as cluster:
        yield cluster


# --- timeout_seconds -------------------------------------------------------------------------

LATE = """
def attempt():
    CALL

attempt()  # together, and compiled
say("ready")
if ME == 1:
    hold("late")
try:
    attempt()
except jt.errors.JaxtributeError as error:
    say("failed", **said(error))
say("alive", sum=float(jnp.sum(jnp.arange(4.0))))
"""


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ("Options(timeout_seconds=1.0)", "compiled()"),
        ("Options(timeout_seconds=1.0)", "eager()"),
        ("None", "all_reduced(ONE_SECOND)"),
        ("Options(timeout_seconds=100.0)", "all_reduced_compiled(ONE_SECOND)"),
        ("Options(timeout_seconds=100.0)", "reduced(ONE_SECOND)"),
    ],
)
def test_a_worker_that_is_alive_and_does_not_come_is_named(cluster, options, call):
    cluster.start(prelude(options) + LATE.replace("CALL", call))
    error = cluster.until("worker:0", "failed", SOON)
    assert error["kind"] == "DeadlineExceededError"
    assert "worker:1 did not arrive" in error["text"]
    assert "timeout_seconds=1" in error["text"]
    cluster.release("late")
    late = cluster.until("worker:1", "failed", SOON)
    assert "worker:0 gave up" in late["text"]
    assert "worker:1 did not arrive" in late["text"]
    assert [one["sum"] for one in cluster.until_all("alive")] == [6.0, 6.0]
    cluster.finish()


IN_TIME = """
def slowly(x):
    time.sleep(3)
    return x

@jt.function
def long_compute():
    def replica_fn():
        value = jnp.ones(3) * (1.0 + replica())
        value = jax.pure_callback(slowly, jax.ShapeDtypeStruct((3,), jnp.float32), value)
        return jt.get_replica_context().all_reduce("SUM", value)
    return strategy.run(replica_fn)

def number(value):
    return float(strategy.experimental_local_results(value)[0][0])

say("long compute", value=number(long_compute()))
all_reduced(LONG), reduced(LONG)
if ME == 1:
    time.sleep(3)  # longer than the strategy's options allow
say("all_reduce", value=number(all_reduced(LONG)))
if ME == 1:
    time.sleep(3)
say("reduce_to", value=number(reduced(LONG)))
say("merged", again=[number(all_reduced(Options(bytes_per_pack=n))) for n in (1, 1000)])
"""


def test_work_takes_as_long_as_it_does_and_calls_have_limits_of_their_own(cluster):
    cluster.start(prelude("Options(timeout_seconds=1.5)") + IN_TIME)
    cluster.finish()
    for task in cluster.tasks:
        said = {one["event"]: one for one in cluster.said(task)}
        for event in "long compute", "all_reduce", "reduce_to":
            assert said[event]["value"] == 3.0
        assert said["merged"]["again"] == [3.0, 3.0]


# --- bytes_per_pack --------------------------------------------------------------------------

# Sizes in bytes of float32 arrays, and how many exchanges they take.
PACKING = [
    pytest.param(0, [4, 8, 16, 400], 1, id="small ones together"),
    pytest.param(0, [4, 2 * 1024 * 1024, 8, 2 * 1024 * 1024], 3, id="large ones alone"),
    pytest.param(1, [4, 8, 16, 400], 4, id="each alone"),
    pytest.param(400, [400, 400, 400], 3, id="full packs"),
    pytest.param(600, [400, 400, 400, 400], 2, id="until a pack is full"),
    pytest.param(10**9, [4, 256 * 1024, 8, 256 * 1024], 1, id="all together"),
]


@pytest.mark.parametrize(("bytes_per_pack", "sizes", "expected"), PACKING)
def test_bytes_per_pack_decides_how_often_a_program_communicates(bytes_per_pack, sizes, expected):
    options = jt.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)
    ops = CollectiveAllReduce(options)
    topology = Topology(jax.devices()[:2])
    program = jax.jit(
        topology.on_each_device(
            lambda values: ops.sum_in_step([value[0] for value in values], 2),
            in_specs=PER_REPLICA,
            out_specs=REPLICATED,
        )
    )
    rows = [np.arange(size // 4, dtype=np.float32) for size in sizes]
    stacked = [topology.stack([row, 2 * row]) for row in rows]
    assert program.lower(stacked).as_text().count("stablehlo.collective_permute") == expected
    for total, row in zip(program(stacked), rows, strict=True):
        np.testing.assert_array_equal(total, 3 * row)


def test_types_are_not_mixed_in_a_pack():
    values = [jnp.zeros(2), jnp.zeros(2, jnp.int32), jnp.zeros(2), jnp.zeros(2, jnp.int32)]
    together = CollectiveAllReduce()._packs(values)
    assert together == [[0, 2], [1, 3]]
    limited = CollectiveAllReduce(jt.experimental.CommunicationOptions(bytes_per_pack=10**6))
    for pack in limited._packs(values):
        assert len({values[i].dtype for i in pack}) == 1


# --- Workers that do not do the same ---------------------------------------------------------

DIVERGE = (
    prelude()
    + """
@jt.function
def other():
    strategy.run(lambda: v.assign_add(jnp.ones(3) * (10.0 + replica())))

@jt.function
def one_step():
    eager()

@jt.function
def other_step():
    eager()

compiled(), other(), counter.read_value()
say("start", value=v.numpy().tolist())
try:
    (one_step, other_step)[ME]()
except jt.errors.FailedPreconditionError as error:
    say("compiled another", **said(error))

compiled()
say("goes on", value=v.numpy().tolist())

CALLS = [lambda: CALL_OF_0, lambda: CALL_OF_1]
try:
    CALLS[ME]()
    for _ in range(1000):  # until it is noticed
        compiled()
        time.sleep(0.02)
except jt.errors.JaxtributeError as error:
    say("diverged", **said(error))
"""
)


@pytest.mark.parametrize(
    ("first", "second"), [("counter.read_value()", "compiled()"), ("compiled()", "other()")]
)
def test_workers_that_do_not_do_the_same_are_told(cluster, first, second):
    cluster.start(DIVERGE.replace("CALL_OF_0", first).replace("CALL_OF_1", second))
    for error in cluster.until_all("compiled another"):
        assert "one_step" in error["text"]
        assert "other_step" in error["text"]
    for start, later in zip(cluster.until_all("start"), cluster.until_all("goes on"), strict=True):
        assert later["value"] == [start["value"][0] + 3.0] * 3, "nothing happened in between"
    errors = cluster.until_all("diverged")
    assert any(error["kind"] == "FailedPreconditionError" for error in errors)
    for error in errors:
        assert re.search("(do not do|have not done) the same", error["text"])
    cluster.finish()


@pytest.mark.parametrize(
    ("alone", "call"),
    [
        pytest.param("worker:1", "counter.read_value()", id="reading"),
        pytest.param(
            "worker:0", "jt.train.Checkpoint(v=counter).save('saved/checkpoint')", id="saving"
        ),
    ],
)
def test_a_worker_that_reads_or_saves_alone_learns_when_the_other_has_finished(
    cluster, tmp_path, alone, call
):
    cluster.start(
        prelude()
        + """
        compiled()
        if ME == ALONE:
            try:
                CALL
            except jt.errors.WorkerLostError as error:
                say("lost", **said(error))
        """.replace("\n        ", "\n")
        .replace("ALONE", alone[-1])
        .replace("CALL", call)
    )
    error = cluster.until(alone, "lost")
    assert error["tasks"] == [task for task in cluster.tasks if task != alone]
    assert "it has finished" in error["text"]
    cluster.finish()
    assert not list(tmp_path.glob("saved/checkpoint*"))
