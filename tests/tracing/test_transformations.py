"""Functions that JAX transforms and remembers read variables as they are: here, and now.

Every transformation, with a function that lives on and with one that is made for each use, in every
place: what is read is never an old value, another frame's, or zeros.
"""

import contextlib

import jax
import jax.numpy as jnp
import pytest

import jaxtribute as jt
from tests._transformations import TRANSFORMATIONS, User, numbers

MEAN = jt.VariableAggregation.MEAN
SUM = jt.VariableAggregation.SUM
ON_READ = jt.VariableSynchronization.ON_READ

# By a number of loops that is not known, JAX differentiates forwards only; and custom rules by
# arguments only, see below.
NOT_DIFFERENTIABLE = ("while_loop", "custom_vjp", "custom_jvp")

each = pytest.mark.parametrize("name", TRANSFORMATIONS)
differentiable = pytest.mark.parametrize(
    "name", [name for name in TRANSFORMATIONS if name not in NOT_DIFFERENTIABLE]
)
lives_on_or_fresh = pytest.mark.parametrize("fresh", [False, True], ids=["lives on", "fresh"])


@pytest.fixture(scope="module")
def strategy():
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


def x():
    return jnp.float32(3.0)


@each
@lives_on_or_fresh
class TestReading:
    def test_eagerly_and_compiled_in_turns(self, name, fresh):
        w = jt.Variable(2.0)
        use = User(name, w, fresh)
        first, second = jt.function(lambda x: use(x)), jt.function(lambda x: (use(x), 0.0)[0])
        for value in (2.0, 5.0):
            w.assign(value)
            found = [use(x()), first(x()), use(x()), second(x()), first(x())]
            assert numbers(found) == [use.expected(value)] * 5

    def test_compiled_first(self, name, fresh):
        w = jt.Variable(2.0)
        use = User(name, w, fresh)
        step = jt.function(lambda x: use(x))
        assert step(x()) == use.expected(2.0)
        w.assign(5.0)
        assert step(x()) == use(x()) == use.expected(5.0)

    def test_before_and_after_an_assignment_in_the_same_function(self, name, fresh):
        w = jt.Variable(2.0)
        use = User(name, w, fresh)

        @jt.function
        def step(x):
            before = use(x)
            w.assign(w * x)
            between = use(x)
            w.assign_add(1.0)
            return before, between, use(x)

        expected = [use.expected(value) for value in (2.0, 6.0, 7.0, 7.0, 21.0, 22.0)]
        assert numbers([*step(x()), *step(x())]) == expected

    def test_in_replicas(self, name, fresh, strategy):
        with strategy.scope():
            w = jt.Variable(2.0, aggregation=MEAN)
        use = User(name, w, fresh)

        def replica(x):
            before = use(x)
            w.assign_add(x)
            return before, use(x)

        @jt.function
        def step(x):
            outside = use(x)
            return outside, strategy.run(replica, args=(x,)), use(x)

        for value in (2.0, 5.0):
            before, after = use.expected(value), use.expected(value + 3)
            assert use(x()) == before
            assert numbers(step(x())) == [before, [[before] * 2, [after] * 2], after]
        before, after = use.expected(8.0), use.expected(11.0)
        assert numbers(strategy.run(replica, args=(x(),))) == [[before] * 2, [after] * 2]
        assert use(x()) == after

    def test_a_value_for_each_replica(self, name, fresh, strategy):
        if name == "custom_linear_solve":
            pytest.skip("JAX cannot solve with what devices exchange")
        with strategy.scope():
            w = jt.Variable(1.0, synchronization=ON_READ, aggregation=SUM)
        use = User(name, w, fresh)

        def replica(x):
            w.assign(jt.get_replica_context().replica_id_in_sync_group + x)
            return use(x)

        step = jt.function(lambda x: (strategy.run(replica, args=(x,)), use(x)))
        own = [use.expected(3.0), use.expected(4.0)]
        for _ in range(2):
            assert numbers(step(x())) == [own, use.expected(7.0)]
        assert numbers(strategy.run(replica, args=(x(),))) == own
        assert use(x()) == use.expected(7.0)


@differentiable
@lives_on_or_fresh
class TestDifferentiating:
    def test_inside_and_outside_of_a_gradient(self, name, fresh):
        w = jt.Variable(2.0)
        use = User(name, w, fresh)
        gradients = jt.value_and_grad(lambda x: use(x), w)

        @jt.function
        def step(x):
            before = use(x)
            found = gradients(x)
            w.assign_add(1.0)
            return before, found, gradients(x), use(x)

        for value in (2.0, 3.0):
            now, then = use.expected(value), use.expected(value + 1)
            assert use(x()) == now
            assert numbers(gradients(x())) == [now, use.gradient(value)]
            assert numbers(step(x())) == [
                now,
                [now, use.gradient(value)],
                [then, use.gradient(value + 1)],
                then,
            ]

    def test_of_what_the_function_assigned(self, name, fresh):
        w, factor = jt.Variable(2.0), jt.Variable(1.0)
        use = User(name, factor, fresh)

        def loss(x):
            before = use(x)
            factor.assign(w * 1.0)
            return before + use(x)

        step = jt.function(lambda x: jt.value_and_grad(loss, w)(x))
        for run in (step, jt.value_and_grad(loss, w)):
            factor.assign(1.0)
            value, gradient = numbers(run(x()))
            assert value == use.expected(1.0) + use.expected(2.0)
            assert gradient == use.gradient(2.0)
            assert factor.numpy() == 2.0

    def test_in_replicas(self, name, fresh, strategy):
        with strategy.scope():
            w = jt.Variable(2.0)
        use = User(name, w, fresh)
        gradients = jt.value_and_grad(lambda x: use(x), w)

        @jt.function
        def step(x):
            return use(x), strategy.run(lambda x: (use(x), gradients(x)), args=(x,))

        for value in (2.0, 3.0):
            w.assign(value)
            now, slope = use.expected(value), use.gradient(value)
            assert numbers(step(x())) == [now, [[now] * 2, [[now] * 2, [slope] * 2]]]
            eager = strategy.run(lambda x: (use(x), gradients(x)), args=(x(),))
            assert numbers(eager) == [[now] * 2, [[now] * 2, [slope] * 2]]


@each
class TestAssigning:
    """The new value would be a tracer of the transformation: right, or refused by name."""

    def outcome(self, w, fn):
        try:
            fn()
        except jt.errors.TracerLeakError as error:
            assert "'w'" in str(error)
            assert "assign it afterwards" in str(error) or "as an argument" in str(error)
            return w.numpy().item(), None
        return w.numpy().item(), "assigned"

    @pytest.mark.parametrize("place", ["eager", "function", "gradient", "replicas"])
    def test_is_carried_out_or_refused(self, name, place, strategy):
        with strategy.scope() if place == "replicas" else contextlib.nullcontext():
            w = jt.Variable(2.0, name="w", aggregation=MEAN)

        def assign(x):
            w.assign(jnp.float32(5.0))
            return x * w

        use = TRANSFORMATIONS[name](assign)

        run = {
            "eager": lambda: use(x()),
            "function": lambda: jt.function(use)(x()),
            "gradient": lambda: jt.value_and_grad(lambda: use(x()), w)(),
            "replicas": lambda: jt.function(lambda x: strategy.run(use, args=(x,)))(x()),
        }[place]
        for _ in range(2):
            assert self.outcome(w, run) in [(5.0, "assigned"), (2.0, None)]
            w.assign(2.0)


@lives_on_or_fresh
@pytest.mark.parametrize("name", ["custom_vjp", "custom_jvp"])
@pytest.mark.parametrize("compile", [lambda fn: fn, jt.function], ids=["eager", "function"])
def test_what_custom_rules_read_is_not_differentiated_by_and_the_error_says_so(
    name, fresh, compile
):
    w, other = jt.Variable(2.0, name="w"), jt.Variable(5.0)
    use = User(name, w, fresh)
    for loss in (lambda x: use(x), lambda x: use(x * w), lambda x: use(jnp.sin(x)) * w):
        with pytest.raises(jt.errors.TracerLeakError, match=r"'w'.* Pass the variable to it"):
            compile(jt.grad(loss, w))(x())
    assert use(x()) == 6.0
    assert compile(jt.grad(lambda x: use(x) * other, other))(x()) == 6.0


class TestKeys:
    """Frames share what JAX remembers until one of them lends it a value."""

    def test_functions_without_variables_are_traced_once_for_all_frames(self):
        traces = []

        @jax.jit
        def helper(x):
            traces.append(None)
            return x * 2

        w = jt.Variable(2.0)
        for value in (1.0, 2.0):
            w.assign(value)
            jt.function(lambda x: helper(x) * w)(x())
            jt.value_and_grad(lambda x: helper(x) * w, w)(x())
        assert len(traces) == 1

    def test_eager_gradients_of_fresh_functions_compile_nothing_anew(self):
        w = jt.Variable(2.0)
        traces = []

        @jax.jit
        def helper(x):
            traces.append(None)
            return x * 2

        def loss(x):
            total, _ = jax.lax.scan(lambda c, x: (c + x * w, None), 0.0, jnp.stack([x, x]))
            return helper(total)

        for _ in range(20):
            jt.value_and_grad(loss, w)(x())
        assert len(traces) < 10
