"""Random programs with variables give what the same programs give on plain arrays.

They read, assign, differentiate, and use functions that JAX remembers and that read variables.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jt
from tests._transformations import TRANSFORMATIONS, User

NAMES = ("a", "b")
START = {"a": 0.5, "b": -0.75}
REMEMBERED = ("jit", "scan", "cond", "checkpoint", "jit of checkpoint", "switch", "vmap", "map")

names = st.sampled_from(NAMES)
numbers = st.sampled_from([0.5, -1.5, 2.0])
simple = st.one_of(
    st.tuples(st.just("read"), names),
    st.tuples(st.just("assign"), names, numbers),
    st.tuples(st.just("add"), names, numbers),
    st.tuples(st.just("use"), names, st.sampled_from(REMEMBERED)),
    st.tuples(st.just("use a fresh one"), names, st.sampled_from(REMEMBERED)),
)
programs = st.lists(
    st.one_of(
        simple, st.tuples(st.just("differentiate"), names, st.lists(simple, min_size=1, max_size=4))
    ),
    min_size=2,
    max_size=6,
)


class OnArrays:
    """Runs a program on plain arrays."""

    def __init__(self) -> None:
        self.values = {name: jnp.float32(value) for name, value in START.items()}

    def read(self, name: str) -> Any:
        return self.values[name]

    def assign(self, name: str, value: Any) -> None:
        self.values[name] = value

    def use(self, name: str, transformation: str, fresh: bool, x: Any) -> Any:
        value = self.values[name]
        return TRANSFORMATIONS[transformation](lambda x: x * value)(x)

    def differentiate(self, name: str, program: Any, x: Any) -> Any:
        before = dict(self.values)

        def function(value: Any) -> Any:
            self.values = {**before, name: value}
            return run(self, program, x), self.values

        (result, self.values), slope = jax.value_and_grad(function, has_aux=True)(before[name])
        return result + slope


class OnVariables:
    """Runs a program on variables, with functions that live on."""

    def __init__(self) -> None:
        self.variables = {
            name: jt.Variable(value, aggregation=jt.VariableAggregation.MEAN)
            for name, value in START.items()
        }
        self._users = {
            (name, transformation, fresh): User(transformation, self.variables[name], fresh)
            for name in NAMES
            for transformation in REMEMBERED
            for fresh in (False, True)
        }

    def read(self, name: str) -> Any:
        return self.variables[name].value()

    def assign(self, name: str, value: Any) -> None:
        self.variables[name].assign(value)

    def use(self, name: str, transformation: str, fresh: bool, x: Any) -> Any:
        return self._users[name, transformation, fresh](x)

    def differentiate(self, name: str, program: Any, x: Any) -> Any:
        with_gradient = jt.value_and_grad(lambda: run(self, program, x), self.variables[name])
        result, slope = with_gradient()
        return result if slope is None else result + slope

    def restart(self) -> None:
        for name, value in START.items():
            self.variables[name].assign(value)


def run(on: Any, program: Any, x: Any) -> Any:
    for kind, name, *details in program:
        if kind == "read":
            x = x + on.read(name)
        elif kind == "assign":
            on.assign(name, x * details[0])
        elif kind == "add":
            on.assign(name, on.read(name) + details[0])
        elif kind == "differentiate":
            x = on.differentiate(name, details[0], x)
        else:
            x = on.use(name, details[0], kind == "use a fresh one", x)
        x = jnp.tanh(x)  # so that nothing grows
    return x


@pytest.fixture(scope="module")
def strategy():
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="module")
def alone():
    return OnVariables()


@pytest.fixture(scope="module")
def mirrored(strategy):
    with strategy.scope():
        return OnVariables()


@pytest.mark.parametrize("place", ["eager", "function", "replicas", "eager replicas"])
@settings(max_examples=15)
@given(program=programs)
def test_equals_the_program_on_arrays(place, strategy, alone, mirrored, program):
    on = mirrored if "replicas" in place else alone
    on.restart()
    expected = OnArrays()

    def replicas(x):
        results = strategy.run(lambda x: run(on, program, x), args=(x,))
        return strategy.reduce("MEAN", results, axis=None)

    step = {
        "eager": lambda x: run(on, program, x),
        "function": jt.function(lambda x: run(on, program, x)),
        "replicas": jt.function(replicas),
        "eager replicas": replicas,
    }[place]
    for x in (0.25, -0.5):
        found = step(jnp.float32(x))
        np.testing.assert_allclose(found, run(expected, program, jnp.float32(x)), atol=1e-5)
        for name in NAMES:
            np.testing.assert_allclose(on.variables[name], expected.values[name], atol=1e-5)
