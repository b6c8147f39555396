"""Arrays that go into variables or come out of them are never changed or deleted by steps.

Compiled steps update variables in place, by donating the old array to the program.
"""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.variables._support import (
    FIRST,
    MEAN,
    ON_READ,
    SUM,
    aligned,
    both_ways,
    call,
    components,
    create,
    local,
    mirrored,
    one_device,
    replica_id,
    run,
)

KINDS = {
    "plain": jt.Variable,
    "one device": lambda x: create(one_device(), x),
    "mirrored": lambda x: create(mirrored(2), x, aggregation=MEAN),
    "mirrored on one": lambda x: create(mirrored(1), x, aggregation=MEAN),
    "sync on read": lambda x: create(mirrored(2), x, synchronization=ON_READ, aggregation=MEAN),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


def steps(*variables):
    """Return a compiled step that changes the variables, each twice as much as the one before."""

    @jt.function
    def step():
        for i, variable in enumerate(variables):
            variable.assign_add(jnp.full(variable.shape, 2.0**i))

    return step


class TestWhatComesOut:
    @every_kind
    def test_value(self, make):
        v = make(jnp.arange(4.0))
        step = steps(v)
        held = []
        for _ in range(4):
            held.append(v.value())
            step()
        assert [h.tolist() for h in held] == [[i, 1 + i, 2 + i, 3 + i] for i in range(4)]
        assert v.numpy().tolist() == [4, 5, 6, 7]

    @every_kind
    def test_numpy_views(self, make):
        v = make(jnp.arange(4.0))
        step = steps(v)
        step()
        held = np.asarray(v.value())
        step()
        assert held.tolist() == [1, 2, 3, 4]

    @every_kind
    def test_parts_and_operators(self, make):
        v = make(jnp.arange(4.0))
        step = steps(v)
        step()
        held = [v[...], +v, jnp.asarray(v), v.read_value(), next(iter(v))]
        step()
        assert [h.tolist() for h in held] == [[1, 2, 3, 4]] * 4 + [1]

    @pytest.mark.parametrize("kind", ["mirrored", "sync on read"])
    def test_copies(self, kind):
        v = KINDS[kind](jnp.arange(4.0))
        step = steps(v)
        step()
        held = [c.value() for c in mirrored(2).experimental_local_results(v)]
        step()
        assert [h.tolist() for h in held] == [[1, 2, 3, 4]] * 2

    def test_mirrored_values(self):
        strategy = mirrored(2)
        v = create(strategy, jnp.arange(4.0))
        step = steps(v)
        step()
        reduced = strategy.reduce("MEAN", v, axis=None)
        held = v.as_value()
        step()
        assert local(strategy, held) == [[1, 2, 3, 4]] * 2
        assert reduced.tolist() == [1, 2, 3, 4]

    @both_ways
    @pytest.mark.parametrize("kind", ["mirrored", "sync on read", "plain"])
    def test_read_by_replicas(self, way, kind):
        strategy = mirrored(2)
        v = KINDS[kind](jnp.arange(4.0))
        step = steps(v)
        step()
        held = run(way, strategy, v.value)
        step()
        step()
        assert all(copy == [1, 2, 3, 4] for copy in local(strategy, held))

    @every_kind
    def test_returned_by_a_function_that_reads(self, make):
        v = make(jnp.arange(4.0))
        read, step = jt.function(lambda: v.value()), steps(v)
        step()
        held = [read(), read()]
        step()
        assert [h.tolist() for h in held] == [[1, 2, 3, 4]] * 2
        assert v.numpy().tolist() == [2, 3, 4, 5]

    @every_kind
    def test_returned_by_the_step_itself(self, make):
        v = make(jnp.arange(4.0))

        @jt.function
        def step():
            before = v.value()
            v.assign_add(jnp.ones(4))
            return before, v.value()

        held = [step() for _ in range(3)]
        for i, (before, after) in enumerate(held):
            assert before.tolist() == [i, 1 + i, 2 + i, 3 + i]
            assert after.tolist() == [1 + i, 2 + i, 3 + i, 4 + i]

    @every_kind
    def test_read_in_a_jitted_function(self, make):
        v = make(jnp.arange(4.0))
        read, step = jax.jit(lambda: v.value()), steps(v)
        held = []
        for _ in range(3):
            held.append(read())
            step()
        assert [np.asarray(h).tolist() for h in held] == [
            [i, 1 + i, 2 + i, 3 + i] for i in range(3)
        ]

    @every_kind
    def test_iterating_lazily(self, make):
        v = make(jnp.arange(3.0))
        step = steps(v)
        step()
        rows = iter(v)
        first = next(rows)
        step()
        assert [first, *rows] == [1, 2, 3]


class TestWhatGoesIn:
    @both_ways
    @every_kind
    @pytest.mark.parametrize("source", [aligned, jnp.asarray], ids=["numpy", "jax"])
    def test_assigned_outside(self, make, way, source):
        v = make(jnp.zeros(4))
        x = source(np.arange(4.0, dtype=np.float32))
        call(way, lambda x: v.assign(x), x)
        step = steps(v)
        step()
        step()
        assert np.asarray(x).tolist() == [0, 1, 2, 3]
        assert v.numpy().tolist() == [2, 3, 4, 5]

    @every_kind
    def test_changing_the_numpy_array_later(self, make):
        v = make(jnp.zeros(4))
        x = aligned(np.arange(4.0))
        v.assign(x)
        x[...] = 100.0
        assert v.numpy().tolist() == [0, 1, 2, 3]

    @both_ways
    @pytest.mark.parametrize("kind", ["mirrored", "mirrored on one", "sync on read"])
    @pytest.mark.parametrize("source", [aligned, jnp.asarray], ids=["numpy", "jax"])
    def test_assigned_by_replicas(self, way, kind, source):
        v = KINDS[kind](jnp.zeros(4))
        x = source(np.arange(4.0, dtype=np.float32))
        run(way, v.distribute_strategy, lambda: v.assign(x))
        step = steps(v)
        step()
        step()
        assert np.asarray(x).tolist() == [0, 1, 2, 3]
        assert components(v)[-1] == [2, 3, 4, 5]

    @both_ways
    @pytest.mark.parametrize("aggregation", [MEAN, FIRST])
    def test_arrays_of_the_replicas(self, way, aggregation):
        strategy = mirrored(2)
        v = create(strategy, jnp.zeros(4), aggregation=aggregation)
        x = strategy.run(lambda: jnp.arange(4.0) + replica_id() * 0.0)
        run(way, strategy, lambda x: v.assign(x), (x,))
        step = steps(v)
        step()
        step()
        assert local(strategy, x) == [[0, 1, 2, 3]] * 2
        assert components(v) == [[2, 3, 4, 5]] * 2

    @both_ways
    def test_arrays_of_the_replicas_kept_apart(self, way):
        strategy = mirrored(2)
        v = create(strategy, jnp.zeros(4), synchronization=ON_READ, aggregation=SUM)
        x = strategy.run(lambda: jnp.arange(4.0) + replica_id() * 1.0)
        run(way, strategy, lambda x: v.assign(x), (x,))

        @jt.function
        def step():
            strategy.run(lambda: v.assign_add(jnp.ones(4)))

        step()
        step()
        assert local(strategy, x) == [[0, 1, 2, 3], [1, 2, 3, 4]]
        assert components(v) == [[2, 3, 4, 5], [3, 4, 5, 6]]

    def test_a_mirrored_value(self):
        strategy = mirrored(2)
        v, w = create(strategy, jnp.zeros(2)), create(strategy, jnp.ones(2))
        held = w.as_value()
        v.assign(held)
        step = steps(v, w)
        step()
        step()
        assert local(strategy, held) == [[1, 1]] * 2
        assert components(v) == [[3, 3]] * 2

    @pytest.mark.parametrize("kind", ["plain", "mirrored"])
    def test_arguments_of_a_step(self, kind):
        v = KINDS[kind](jnp.zeros(4))
        step = jt.function(lambda x: v.assign(x))
        x = jnp.arange(4.0)
        for _ in range(3):
            step(x)
            steps(v)()
        assert x.tolist() == [0, 1, 2, 3]
        assert v.numpy().tolist() == [1, 2, 3, 4]


class TestBetweenVariables:
    @both_ways
    @every_kind
    def test_assigning_one_to_another(self, make, way):
        v, w = make(jnp.zeros(3)), make(jnp.ones(3))
        call(way, lambda: v.assign(w))
        step = steps(v, w)
        step()
        step()
        assert v.numpy().tolist() == [3, 3, 3]
        assert w.numpy().tolist() == [5, 5, 5]

    @both_ways
    @every_kind
    def test_assigning_one_to_another_after_changing_it(self, make, way):
        v, w = make(jnp.zeros(3)), make(jnp.ones(3))

        def change():
            w.assign_add(jnp.ones(3))
            v.assign(w)

        call(way, change)
        step = steps(v, w)
        step()
        step()
        assert v.numpy().tolist() == [4, 4, 4]
        assert w.numpy().tolist() == [6, 6, 6]

    @both_ways
    @every_kind
    def test_swapping(self, make, way):
        v, w = make(jnp.zeros(3)), make(jnp.ones(3))

        def swap():
            old_v, old_w = v.value(), w.value()
            v.assign(old_w)
            w.assign(old_v)

        swap = swap if way == "eager" else jt.function(swap)
        step = steps(v, w)
        for _ in range(3):
            swap()
            step()
        # (0, 1) -> (1, 0) -> (2, 2) -> (2, 2) -> (3, 4) -> (4, 3) -> (5, 5)
        assert v.numpy().tolist() == [5, 5, 5]
        assert w.numpy().tolist() == [5, 5, 5]

    @every_kind
    def test_one_constant_for_two(self, make):
        v, w = make(jnp.zeros(3)), make(jnp.ones(3))
        zeros = jnp.zeros(3)
        reset = jt.function(lambda: (v.assign(zeros), w.assign(zeros)))
        step = steps(v, w)
        for _ in range(3):
            reset()
            step()
            step()
        assert v.numpy().tolist() == [2, 2, 2]
        assert w.numpy().tolist() == [4, 4, 4]
        assert zeros.tolist() == [0, 0, 0]

    def test_plain_and_mirrored(self):
        strategy = mirrored(2)
        plain, v = jt.Variable(jnp.zeros(3)), create(strategy, jnp.ones(3))

        @jt.function
        def exchange():
            old = plain.value()
            plain.assign(v)
            v.assign(old)

        step = steps(plain, v)
        for _ in range(2):
            exchange()
            step()
        assert plain.numpy().tolist() == [3, 3, 3]
        assert components(v) == [[4, 4, 4]] * 2
        assert (plain + jnp.ones(3)).tolist() == [4, 4, 4]
        assert len(plain.value().devices()) == 1


class TestMemory:
    @pytest.mark.parametrize("kind", KINDS)
    def test_steps_leave_no_arrays_behind(self, kind):
        v = KINDS[kind](jnp.zeros(1000))

        @jt.function
        def step(x):
            v.assign_add(x)
            return v[0]

        def go(count):
            for _ in range(count):
                step(np.ones(1000, np.float32))
                float(v[0])

        go(3)
        before = len(jax.live_arrays())
        go(20)
        assert len(jax.live_arrays()) <= before

    @both_ways
    def test_replicas_leave_no_arrays_behind(self, way):
        strategy = mirrored(2)
        v = create(strategy, jnp.zeros(1000), aggregation=SUM)
        w = create(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)

        def step(x):
            def replica_fn(x):
                v.assign_add(x * 1.0)
                w.assign_add(jnp.sum(x))
                return x * 2

            return strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=0)

        step = step if way == "eager" else jt.function(step)

        def go(count):
            for _ in range(count):
                step(np.ones(1000, np.float32))
                float(w)

        go(3)
        gc.collect()  # eager replicas are threads, whose frames refer to each other
        before = len(jax.live_arrays())
        go(10)
        gc.collect()
        assert len(jax.live_arrays()) <= before

    def test_programs_do_not_keep_the_arguments_alive(self):
        step = jt.function(lambda x: jnp.sum(x))
        x = jnp.ones(10)
        step(x)
        before = len(jax.live_arrays())
        del x
        assert len(jax.live_arrays()) < before
