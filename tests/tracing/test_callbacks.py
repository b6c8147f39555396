"""Functions of Python that compiled steps call while they run, and that raise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import jaxtribute as jt

MEAN = jt.VariableAggregation.MEAN


class Callback:
    """Raises on the replicas that it is told to."""

    def __init__(self):
        self.raises_on = ()

    def __call__(self, replica, x):
        if int(replica) in self.raises_on:
            raise ValueError(f"bad luck on {int(replica)}")
        return np.asarray(x)


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


KINDS = {
    "pure": lambda fn, i, x: jax.pure_callback(fn, like(x), i, x),
    "io": lambda fn, i, x: io_callback(fn, like(x), i, x),
    "debug": lambda fn, i, x: (jax.debug.callback(lambda i, x: fn(i, x) and None, i, x[0]), x)[1],
    "in a loop": lambda fn, i, x: jax.lax.scan(
        lambda c, _: (jax.pure_callback(fn, like(c), i, c), None), x, None, length=2
    )[0],
    "in a branch": lambda fn, i, x: jax.lax.cond(
        x[0] < 100, lambda x: jax.pure_callback(fn, like(x), i, x), lambda x: x, x
    ),
    "in a jitted function": lambda fn, i, x: jax.jit(
        lambda i, x: jax.pure_callback(fn, like(x), i, x)
    )(i, x),
}
PLACES = {
    "before": lambda call, add_up, x: add_up(call(x)),
    "after": lambda call, add_up, x: call(add_up(x)),
    "between": lambda call, add_up, x: add_up(call(add_up(x))),
}


def step_of(strategy, variables, callback, kind, place):
    def on_replica(x):
        here = jt.get_replica_context()

        def call(x):
            return KINDS[kind](callback, here.replica_id_in_sync_group, x)

        def add_up(x):
            return here.all_reduce("SUM", x)

        y = PLACES[place](call, add_up, x)
        for variable in variables:
            variable.assign_add(y * 0 + 1)
        return y

    return jt.function(lambda x: strategy.run(on_replica, args=(x,)))


def replicas(count):
    strategy = jt.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    with strategy.scope():
        mirrored = jt.Variable(jnp.zeros(2), aggregation=MEAN)
        own = jt.Variable(
            jnp.zeros(2),
            synchronization=jt.VariableSynchronization.ON_READ,
            aggregation=MEAN,
        )
    return strategy, [mirrored, own]


def check_fails_and_goes_on(step, variables, callback, raises_on):
    step(jnp.ones(2))
    for _ in range(2):
        callback.raises_on = raises_on
        with pytest.raises(jax.errors.JaxRuntimeError, match="bad luck on") as caught:
            step(jnp.ones(2))
        assert isinstance(caught.value.__cause__, ValueError)
        for variable in variables:
            assert variable.numpy().tolist() == [1.0, 1.0]
    callback.raises_on = ()
    step(jnp.ones(2))
    for variable in variables:
        assert variable.numpy().tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_callback_raises_at_the_call_and_changes_nothing(kind):
    strategy, variables = replicas(2)
    callback = Callback()
    step = step_of(strategy, variables, callback, kind, "before")
    check_fails_and_goes_on(step, variables, callback, {1})


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("raises_on", [{0}, {1}, {0, 1}], ids=str)
def test_nobody_waits_for_the_replica_that_failed(place, raises_on):
    strategy, variables = replicas(2)
    callback = Callback()
    step = step_of(strategy, variables, callback, "pure", place)
    check_fails_and_goes_on(step, variables, callback, raises_on)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_any_number_of_replicas(count):
    strategy, variables = replicas(count)
    callback = Callback()
    step = step_of(strategy, variables, callback, "pure", "between")
    check_fails_and_goes_on(step, variables, callback, {count - 1})


def test_a_function_without_replicas():
    variable = jt.Variable(jnp.zeros(2))
    callback = Callback()

    @jt.function
    def step(x):
        variable.assign_add(jax.pure_callback(callback, like(x), 0, x))

    check_fails_and_goes_on(step, [variable], callback, {0})


def test_replicas_that_run_eagerly():
    strategy, variables = replicas(2)
    callback = Callback()

    def on_replica(x):
        replica = jt.get_replica_context().replica_id_in_sync_group
        y = jax.pure_callback(callback, like(x), replica, x)
        for variable in variables:
            variable.assign_add(y)

    def step(x):
        strategy.run(on_replica, args=(x,))

    compiled = jt.function(step)
    compiled(jnp.zeros(2))
    step(jnp.ones(2))
    callback.raises_on = {1}
    with pytest.raises(Exception, match="bad luck on 1"):
        step(jnp.ones(2))
    callback.raises_on = ()
    compiled(jnp.ones(2))  # would wait for ever for a replica whose copy is an error
    for variable in variables:
        assert variable.numpy().tolist() == [2.0, 2.0]


def test_arrays_of_another_shape_than_announced_are_an_error_of_the_callback():
    strategy, variables = replicas(2)

    def on_replica(x):
        y = jax.pure_callback(lambda x: np.ones(3, np.float32), like(x), x)
        variables[0].assign_add(y)

    step = jt.function(lambda x: strategy.run(on_replica, args=(x,)))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"float32\[3\] instead of float32\[2\]"):
        step(jnp.ones(2))
    assert variables[0].numpy().tolist() == [0.0, 0.0]


def test_a_text_that_cannot_be_formatted_is_raised_by_the_call():
    strategy, variables = replicas(2)

    def on_replica(x):
        jax.debug.print("{x:.2f}", x=x)  # an array has no such format
        variables[0].assign_add(x)

    step = jt.function(lambda x: strategy.run(on_replica, args=(x,)))
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="format"):
            step(jnp.ones(2))
        assert variables[0].numpy().tolist() == [0.0, 0.0]


def test_a_batch_with_which_a_callback_failed_is_not_read_again():
    variable = jt.Variable(0)
    iterator = iter(
        jt.OneDeviceStrategy("CPU:0").experimental_distribute_dataset(
            jt.data.Dataset.range(4).batch(1)
        )
    )

    def check(x):
        if x == 1:
            raise ValueError("bad luck")
        return x

    @jt.function
    def step():
        x = jnp.asarray(next(iterator))[0].astype(jnp.int32)
        variable.assign(jax.pure_callback(check, like(x), x))

    step()
    with pytest.raises(jax.errors.JaxRuntimeError, match="bad luck"):
        step()
    step()
    assert variable.numpy() == 2
