"""Variables whose arrays are gone: why is said, and they can be given a value again."""

import subprocess
import textwrap

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jaxtribute as jt
from tests._interpreter import STRICT_PYTHON

MEAN = jt.VariableAggregation.MEAN
ON_READ = jt.VariableSynchronization.ON_READ


def plain():
    return jt.Variable(jnp.zeros(2))


def of(strategy, **kwargs):
    with strategy.scope():
        return jt.Variable(jnp.zeros(2), **kwargs)


MAKERS = {
    "plain": plain,
    "one device": lambda: of(jt.OneDeviceStrategy("CPU:1")),
    "mirrored": lambda: of(jt.MirroredStrategy(["CPU:0", "CPU:1"]), aggregation=MEAN),
    "on read": lambda: of(
        jt.MirroredStrategy(["CPU:0", "CPU:1"]), aggregation=MEAN, synchronization=ON_READ
    ),
}
of_each_kind = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def give_away(array):
    jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert array.is_deleted()


def lose(variable):
    # What an ON_READ variable returns is computed, so that giving it away does no harm.
    array = variable.share() if variable.differs_between_replicas else variable.value()
    array.delete()


@of_each_kind
def test_an_array_that_was_given_away_is_named(make):
    variable = make()
    give_away(variable.share() if variable.differs_between_replicas else variable.value())
    for use in (variable.numpy, lambda: variable.assign_add(jnp.ones(2))):
        with pytest.raises(jt.errors.FailedPreconditionError, match="donate_argnums"):
            use()
    with pytest.raises(jt.errors.FailedPreconditionError, match="donate_argnums"):
        jt.function(lambda: variable * 2)()
    with pytest.raises(jt.errors.FailedPreconditionError, match="donate_argnums"):
        jt.function(lambda: variable.assign(variable + 1.0))()


def test_it_is_named():
    variable = jt.Variable(jnp.zeros(2), name="v")
    lose(variable)
    with pytest.raises(jt.errors.FailedPreconditionError, match=r"variable 'v' of shape \(2,\)"):
        variable.numpy()


def test_one_of_another_library_is_lost_and_assigned_like_any_other():
    parameter = nnx.Param(jnp.zeros(2))
    step = jt.function(lambda: parameter.set_value(parameter[...] + 1.0))
    step()
    parameter[...].delete()
    with pytest.raises(jt.errors.FailedPreconditionError, match="no value any more"):
        step()
    jt.function(parameter.set_value)(jnp.full(2, 3.0))
    step()
    assert parameter[...].tolist() == [4.0, 4.0]


def test_a_copy_of_another_replica_that_was_given_away_is_noticed():
    variable = MAKERS["mirrored"]()
    with jax.default_device(jax.devices()[1]):  # or JAX would copy it to the first
        give_away(variable.values[1].value())
    with pytest.raises(jt.errors.FailedPreconditionError, match="donate_argnums"):
        jt.function(lambda: variable.assign_add(jnp.ones(2)))()


@of_each_kind
def test_a_lost_variable_can_be_assigned(make):
    variable = make()
    lose(variable)
    variable.assign(jnp.full(2, 3.0))
    assert variable.numpy().tolist() == [3.0, 3.0]
    jt.function(lambda: variable.assign(variable + 1.0))()
    assert variable.numpy().tolist() == [4.0, 4.0]


@of_each_kind
def test_a_lost_variable_can_be_assigned_by_a_function_that_does_not_read_it(make):
    variable = make()

    @jt.function
    def assign(x):
        variable.assign(x)

    assign(jnp.ones(2))
    for value in (2.0, 3.0):
        lose(variable)
        assign(jnp.full(2, value))
        assert variable.numpy().tolist() == [value, value]


@pytest.mark.parametrize("compiled", [True, False])
def test_a_lost_variable_can_be_assigned_by_replicas(compiled):
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        mirrored = jt.Variable(jnp.zeros(2), aggregation=MEAN)
        own = jt.Variable(jnp.zeros(2), aggregation=MEAN, synchronization=ON_READ)

    def on_replica(x):
        mirrored.assign(x * 1)
        own.assign(x * 1)

    def step(x):
        strategy.run(on_replica, args=(x,))

    lose(mirrored)
    lose(own)
    (jt.function(step) if compiled else step)(jnp.full(2, 5.0))
    assert mirrored.numpy().tolist() == own.numpy().tolist() == [5.0, 5.0]


@of_each_kind
def test_a_lost_variable_can_be_restored(make, tmp_path):
    variable = make()
    variable.assign(jnp.full(2, 7.0))
    checkpoint = jt.train.Checkpoint(v=variable)
    path = checkpoint.save(str(tmp_path / "c"))
    checkpoint.restore(path)  # which waits until it is written
    lose(variable)
    checkpoint.restore(path).assert_consumed()
    assert variable.numpy().tolist() == [7.0, 7.0]


def test_an_assignment_of_the_wrong_shape_leaves_a_lost_variable_lost():
    variable = plain()
    lose(variable)
    with pytest.raises(ValueError):
        variable.assign(jnp.zeros(3))
    with pytest.raises(jt.errors.FailedPreconditionError):
        variable.numpy()


def test_a_failure_after_an_assignment_leaves_a_lost_variable_lost():
    strategy = jt.OneDeviceStrategy("CPU:0")
    variable = of(strategy)
    lose(variable)

    def on_replica():
        variable.assign(jnp.ones(2))
        raise OSError("afterwards")

    with pytest.raises(OSError, match="afterwards"):
        strategy.run(on_replica)
    with pytest.raises(jt.errors.FailedPreconditionError):
        variable.numpy()


_INTERRUPTED = """
import os, random, signal, sys, threading, time
import jaxtribute as jt
jt.config.set_logical_cpu_devices(2)
import jax.numpy as jnp

strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
MEAN = jt.VariableAggregation.MEAN
with strategy.scope():
    variables = [jt.Variable(jnp.zeros((40, 40)), aggregation=MEAN) for _ in range(6)]
    variables.append(jt.Variable(
        jnp.zeros((40, 40)), aggregation=MEAN, synchronization=jt.VariableSynchronization.ON_READ))
dataset = jt.data.Dataset.range(10**9).batch(2)
iterator = iter(strategy.experimental_distribute_dataset(dataset))

def on_replica(x):
    for v in variables:
        v.assign_add(jnp.ones(v.shape) + 0 * jnp.sum(x))

step = jt.function(lambda: strategy.run(on_replica, args=(next(iterator),)))
step()
begin, caught, rng = threading.Event(), threading.Event(), random.Random(0)

def interrupt():
    for _ in range(ROUNDS):
        begin.wait()
        begin.clear()
        time.sleep(rng.uniform(0, 0.01))
        while True:  # an interrupt that meets a garbage collection is ignored by Python
            os.kill(os.getpid(), signal.SIGINT)
            if caught.wait(1):
                break
        caught.clear()

ROUNDS, extra = 200, 0
thread = threading.Thread(target=interrupt)
thread.start()
for _ in range(ROUNDS):
    try:
        begin.set()
        while True:
            step()
    except KeyboardInterrupt:
        caught.set()
    (count,) = {float(v.numpy()[-1, -1]) for v in variables}
    first = strategy.experimental_local_results(next(iterator))[0]
    assert int(first.ravel()[0]) == 2 * (count + extra), (first, count, extra)
    extra += 1
thread.join()
print("consistent after", count)
"""


def test_ctrl_c_at_any_moment_loses_neither_variables_nor_batches():
    process = subprocess.run(
        [*STRICT_PYTHON, "-c", textwrap.dedent(_INTERRUPTED)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    assert "consistent after" in process.stdout
