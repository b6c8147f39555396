"""The order in which replicas run, and what happens when one fails (rules R36-R40)."""

import threading
import traceback

import jax
import jax.numpy as jnp
import pytest

import jaxtribute as jt
from tests.strategies._values import copies, parts, replica_id


class TestOrder:
    """R36."""

    def test_replicas_take_turns_and_meet_at_merge_calls(self, two):
        events = []

        def replica_fn():
            i = replica_id()
            events.append(f"a{i}")
            jt.get_replica_context().merge_call(lambda strategy: events.append("M"))
            events.append(f"b{i}")

        two.run(replica_fn)
        assert events == ["a0", "a1", "M", "b0", "b1"]

    def test_several_meetings(self, three):
        events = []

        def replica_fn():
            for step in range(2):
                events.append(f"{step}{replica_id()}")
                jt.get_replica_context().merge_call(lambda strategy: events.append("M"))
            events.append(f"z{replica_id()}")

        three.run(replica_fn)
        assert events == ["00", "01", "02", "M", "10", "11", "12", "M", "z0", "z1", "z2"]

    def test_without_meeting_each_runs_to_its_end(self, three):
        events = []

        def replica_fn():
            for letter in "ab":
                events.append(f"{letter}{replica_id()}")

        three.run(replica_fn)
        assert events == ["a0", "b0", "a1", "b1", "a2", "b2"]

    @pytest.mark.parametrize(
        "meet",
        [
            pytest.param(lambda c: c.all_reduce("SUM", jnp.ones(())), id="all_reduce"),
            pytest.param(lambda c: c.all_gather(jnp.ones(1), axis=0), id="all_gather"),
            pytest.param(lambda c: c.merge_call(lambda s: None), id="merge_call"),
        ],
    )
    def test_every_collective_is_a_meeting(self, two, meet):
        events = []

        def replica_fn():
            events.append(f"a{replica_id()}")
            meet(jt.get_replica_context())
            events.append(f"b{replica_id()}")

        two.run(replica_fn)
        assert events == ["a0", "a1", "b0", "b1"]

    def test_the_merge_function_is_that_of_replica_zero_and_called_once(self, two):
        calls = []

        def replica_fn():
            i = replica_id()
            jt.get_replica_context().merge_call(lambda strategy: calls.append(i))

        two.run(replica_fn)
        assert calls == [0]

    def test_the_merge_function_runs_in_the_callers_thread(self, two):
        caller = threading.get_ident()
        threads = two.run(
            lambda: (
                threading.get_ident(),
                jt.get_replica_context().merge_call(lambda strategy: threading.get_ident()),
            )
        )
        assert threads[1] == caller
        assert caller not in two.experimental_local_results(threads[0])


class Boom(Exception):
    """The user's own error."""


def fail(message="boom"):
    raise Boom(message)


@pytest.fixture
def counter(two):
    with two.scope():
        return jt.Variable(1.0, aggregation=jt.VariableAggregation.SUM)


def assert_still_works(strategy, variable):
    """Check that the variable was not changed, and that the strategy can be used again."""
    assert not jt.has_strategy()
    assert copies(variable) == [1.0, 1.0]
    strategy.run(lambda: variable.assign_add(jnp.ones(())))
    assert copies(variable) == [3.0, 3.0]
    strategy.run(jt.function(lambda: variable.assign_add(jnp.ones(()))))
    assert copies(variable) == [5.0, 5.0]


class TestFailures:
    """R37: an error comes out of `run` as it is, and leaves nothing behind."""

    @pytest.mark.parametrize("failing", [0, 1])
    def test_in_one_replica(self, two, counter, failing):
        error = Boom("mine")

        def replica_fn():
            counter.assign_add(jnp.ones(()))
            if replica_id() == failing:
                raise error

        with pytest.raises(Boom) as raised:
            two.run(replica_fn)
        assert raised.value is error
        assert_still_works(two, counter)

    @pytest.mark.parametrize("failing", [0, 1])
    def test_in_one_replica_while_others_wait(self, two, counter, failing):
        events = []

        def replica_fn():
            counter.assign_add(jnp.ones(()))
            if replica_id() == failing:
                fail()
            try:
                jt.get_replica_context().all_reduce("SUM", jnp.ones(()))
                events.append("went on")
            finally:
                events.append("cleaned up")

        with pytest.raises(Boom, match="boom"):
            two.run(replica_fn)
        assert events == ([] if failing == 0 else ["cleaned up"])
        assert_still_works(two, counter)

    def test_after_a_meeting(self, two, counter):
        def replica_fn():
            counter.assign_add(jnp.ones(()))  # is a meeting: the replicas' values are added up
            jt.get_replica_context().merge_call(lambda strategy: None)
            if replica_id() == 1:
                fail()

        with pytest.raises(Boom, match="boom"):
            two.run(replica_fn)
        assert_still_works(two, counter)

    def test_in_a_merge_function(self, two, counter):
        error = Boom("merging")

        def merge_fn(strategy):
            raise error

        def replica_fn():
            counter.assign_add(jnp.ones(()))
            jt.get_replica_context().merge_call(merge_fn)

        with pytest.raises(Boom) as raised:
            two.run(replica_fn)
        assert raised.value is error
        assert_still_works(two, counter)

    def test_in_a_merge_function_that_assigned_before(self, two, counter):
        def merge_fn(strategy):
            counter.assign(100.0)
            fail()

        with pytest.raises(Boom, match="boom"):
            two.run(lambda: jt.get_replica_context().merge_call(merge_fn))
        assert_still_works(two, counter)

    def test_after_a_merge_function_that_assigned(self, two, counter):
        def replica_fn():
            jt.get_replica_context().merge_call(lambda strategy: counter.assign(100.0) and None)
            fail()

        with pytest.raises(Boom, match="boom"):
            two.run(replica_fn)
        assert_still_works(two, counter)

    @pytest.mark.parametrize("where", ["replica", "merge function"])
    def test_in_a_compiled_step(self, two, counter, where):
        error = Boom("tracing")

        def merge_fn(strategy):
            raise error

        @jt.function
        def step():
            counter.assign_add(jnp.ones(()))
            if where == "merge function":
                jt.get_replica_context().merge_call(merge_fn)
            raise error

        with pytest.raises(Boom) as raised:
            two.run(step)
        assert raised.value is error
        assert_still_works(two, counter)

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_the_traceback_is_the_users(self, two, compiled):
        def my_own_function():
            fail()

        with pytest.raises(Boom) as raised:
            two.run(jt.function(my_own_function) if compiled else my_own_function)
        names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
        assert "my_own_function" in names
        assert names[-1] == "fail"
        assert names.count("my_own_function") == 1
        assert raised.value.__cause__ is None

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit], ids=lambda e: e.__name__)
    def test_errors_that_end_programs(self, two, counter, error):
        def replica_fn():
            counter.assign_add(jnp.ones(()))
            if replica_id() == 1:
                raise error

        with pytest.raises(error):
            two.run(replica_fn)
        assert_still_works(two, counter)

    def test_the_first_error_is_the_one_that_surfaces(self, two):
        with pytest.raises(Boom, match="replica 0"):
            two.run(lambda: fail(f"replica {replica_id()}"))

    def test_replicas_after_the_failing_one_do_not_start(self, three):
        started = []

        def replica_fn():
            started.append(replica_id())
            if replica_id() == 1:
                fail()

        with pytest.raises(Boom, match="boom"):
            three.run(replica_fn)
        assert started == [0, 1]

    def test_a_sync_on_read_variable_is_put_back_as_well(self, two):
        with two.scope():
            v = jt.Variable(
                0.0,
                synchronization=jt.VariableSynchronization.ON_READ,
                aggregation=jt.VariableAggregation.SUM,
            )
        two.run(lambda: v.assign(jnp.float32(replica_id() + 1)))
        assert copies(v) == [1.0, 2.0]

        def replica_fn():
            v.assign_add(jnp.ones(()))
            jt.get_replica_context().merge_call(lambda strategy: None)
            fail()

        with pytest.raises(Boom, match="boom"):
            two.run(replica_fn)
        assert copies(v) == [1.0, 2.0]

    def test_an_error_may_be_handled_inside_the_replica(self, two, counter):
        def replica_fn():
            try:
                fail()
            except Boom:
                counter.assign_add(jnp.ones(()))

        two.run(replica_fn)
        assert copies(counter) == [3.0, 3.0]

    def test_wrong_numbers_of_arguments_are_the_users_error(self, two, way):
        with pytest.raises(TypeError, match="positional argument"):
            two.run(way(lambda x: x))


class TestDifferentNumbers:
    """R38."""

    @pytest.mark.parametrize("eager_one", [0, 1])
    def test_of_merge_calls_are_an_error(self, two, counter, eager_one):
        def replica_fn():
            counter.assign_add(jnp.ones(()))
            if replica_id() == eager_one:
                jt.get_replica_context().merge_call(lambda strategy: None)

        with pytest.raises(RuntimeError, match="different number of"):
            two.run(replica_fn)
        assert_still_works(two, counter)

    def test_of_later_merge_calls_are_an_error(self, three):
        def replica_fn():
            for _ in range(2 if replica_id() == 2 else 1):
                jt.get_replica_context().merge_call(lambda strategy: None)

        with pytest.raises(RuntimeError, match="different number of") as raised:
            three.run(replica_fn)
        message = str(raised.value)
        assert "[0, 1]" in message
        assert "[2]" in message


class TestInsideTransformations:
    """R40: replicas cannot meet inside a nested trace or control flow."""

    MEETINGS = pytest.mark.parametrize(
        "meet",
        [
            pytest.param(lambda c, x: c.merge_call(lambda s: 1.0), id="merge_call"),
            pytest.param(
                lambda c, x: c.merge_call(lambda s, x: s.reduce("SUM", x, axis=None), (x,)),
                id="merge_call of a tracer",
            ),
            pytest.param(lambda c, x: c.all_reduce("SUM", x), id="all_reduce"),
            pytest.param(lambda c, x: c.all_gather(x[None], axis=0)[0], id="all_gather"),
        ],
    )

    @MEETINGS
    def test_jit(self, two, counter, meet):
        def replica_fn():
            context = jt.get_replica_context()
            jax.jit(lambda x: meet(context, x) + x)(jnp.float32(1.0))

        with pytest.raises(RuntimeError):
            two.run(replica_fn)
        assert_still_works(two, counter)

    @MEETINGS
    def test_control_flow(self, two, counter, meet):
        def replica_fn():
            context = jt.get_replica_context()
            x = jnp.float32(1.0)
            jax.lax.cond(x > 0, lambda x: meet(context, x) + x, lambda x: x, x)

        with pytest.raises(RuntimeError):
            two.run(replica_fn)
        assert_still_works(two, counter)

    def test_the_message_says_what_to_do(self, two):
        def replica_fn():
            context = jt.get_replica_context()
            jax.jit(lambda x: context.all_reduce("SUM", x))(jnp.float32(1.0))

        with pytest.raises(RuntimeError, match=r"jt\.function"):
            two.run(replica_fn)

    def test_a_merge_call_in_control_flow_of_a_compiled_step_is_refused(self, two):
        def replica_fn():
            context = jt.get_replica_context()
            x = jnp.float32(1.0) + replica_id()
            return jax.lax.cond(
                x > 1, lambda x: context.merge_call(lambda s, x: x, (x,)), lambda x: x, x
            )

        with pytest.raises(RuntimeError):
            two.run(jt.function(replica_fn))

    def test_all_reduce_in_a_loop_of_a_compiled_step_works(self, two):
        def replica_fn():
            context = jt.get_replica_context()

            def body(total, x):
                return total + context.all_reduce("SUM", x + replica_id()), None

            return jax.lax.scan(body, jnp.float32(0.0), jnp.arange(3.0))[0]

        assert parts(two, two.run(jt.function(replica_fn))) == [9.0, 9.0]
