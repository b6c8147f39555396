"""Functions that JAX transforms and remembers read variables of parameter servers as they are."""

import jax.numpy as jnp
import pytest

import jaxtribute as jt
from jaxtribute.testing import LocalCluster
from tests._transformations import TRANSFORMATIONS, User, numbers


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(workers=1, ps=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def coordinator(cluster):
    return cluster.coordinator()


def step_of(w, use):
    def step(x):
        before = use(x)
        w.assign_add(1.0)
        return before, use(x)

    return step


@pytest.mark.parametrize("fresh", [False, True], ids=["lives on", "fresh"])
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_in_scheduled_functions(coordinator, name, fresh):
    with coordinator.strategy.scope():
        w = jt.Variable(2.0)
    use = User(name, w, fresh)
    plain = step_of(w, use)
    compiled = jt.function(plain)
    value = 2.0
    for step in (plain, compiled, plain, compiled):
        found = numbers(coordinator.schedule(step, args=(jnp.float32(3.0),)).fetch())
        assert found == [use.expected(value), use.expected(value + 1)]
        value += 1.0
    assert w.numpy() == value


@pytest.mark.parametrize("fresh", [False, True], ids=["lives on", "fresh"])
@pytest.mark.parametrize("name", ["jit", "scan", "cond", "checkpoint"])
def test_in_gradients_of_scheduled_functions(coordinator, name, fresh):
    with coordinator.strategy.scope():
        w = jt.Variable(2.0)
    use = User(name, w, fresh)

    def plain(x):
        return use(x), jt.value_and_grad(lambda: use(x), w)()

    compiled = jt.function(plain)
    for value in (2.0, 3.0):
        w.assign(value)
        now = use.expected(value)
        for step in (plain, compiled):
            found = numbers(coordinator.schedule(step, args=(jnp.float32(3.0),)).fetch())
            assert found == [now, [now, use.gradient(value)]]
