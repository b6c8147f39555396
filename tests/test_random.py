"""Randomness that differs between replicas."""

import jax
import jax.numpy as jnp
import pytest

import jaxtribute as jt
from tests.variables._support import both_ways, local, mirrored, one_device, replica_id, run


def draw(key):
    return jax.random.normal(jt.random.replica_key(key), (3,))


@both_ways
def test_each_replica_has_its_own(way):
    strategy = mirrored(4)
    draws = local(strategy, run(way, strategy, draw, (jax.random.key(0),)))
    assert len({tuple(d) for d in draws}) == 4


def test_the_same_both_ways():
    strategy = mirrored(2)
    key = jax.random.key(7)
    eager, compiled = (run(way, strategy, draw, (key,)) for way in ("eager", "compiled"))
    assert local(strategy, eager) == local(strategy, compiled)
    expected = [jax.random.normal(jax.random.fold_in(key, i), (3,)).tolist() for i in range(2)]
    assert local(strategy, eager) == expected


def test_the_first_replica_is_the_same_however_many_there_are():
    key = jax.random.key(1)
    first = draw(key).tolist()
    for replicas in (1, 2, 4):
        assert local(mirrored(replicas), mirrored(replicas).run(draw, args=(key,)))[0] == first
    assert one_device().run(draw, args=(key,)).tolist() == first


@both_ways
def test_captured_keys_and_old_keys(way):
    strategy = mirrored(2)
    old = jax.random.PRNGKey(3)
    first, second = local(strategy, run(way, strategy, lambda: draw(old)))
    assert first != second


@both_ways
def test_keys_kept_in_a_step(way):
    """The idiom: a new key each step, passed as an argument."""
    strategy = mirrored(2)
    with strategy.scope():
        seen = jt.Variable(
            jnp.zeros(3),
            synchronization=jt.VariableSynchronization.ON_READ,
            aggregation=jt.VariableAggregation.SUM,
        )

    def step(key):
        strategy.run(lambda key: seen.assign(draw(key) + 0 * replica_id()), args=(key,))

    step = step if way == "eager" else jt.function(step)
    values = []
    for key in jax.random.split(jax.random.key(0), 3):
        step(key)
        values.append(tuple(seen.numpy().tolist()))
    assert len(set(values)) == 3
    if way == "compiled":
        assert step.experimental_get_tracing_count() == 1


def test_outside_the_replicas():
    with mirrored(2).scope(), pytest.raises(RuntimeError, match="replica"):
        jt.random.replica_key(jax.random.key(0))
