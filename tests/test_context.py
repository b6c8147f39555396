"""Which strategy is in force: scopes, sides, threads (rules R1-R17)."""

import contextlib
import copy
import gc
import threading

import jax
import jax.numpy as jnp
import pytest

import jaxtribute as jt


@pytest.fixture(scope="module")
def strategy():
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="module")
def other():
    return jt.MirroredStrategy(["CPU:2", "CPU:3"])


DEFAULT = jt.get_strategy()


def assert_default_state():
    context = jt.get_replica_context()
    assert jt.get_strategy() is DEFAULT
    assert not jt.has_strategy()
    assert not jt.in_cross_replica_context()
    assert isinstance(context, jt.ReplicaContext)
    assert context.strategy is DEFAULT


def assert_in_scope_of(strategy):
    assert jt.get_strategy() is strategy
    assert jt.has_strategy()
    assert jt.in_cross_replica_context()
    assert jt.get_replica_context() is None


class TestNoScope:
    def test_the_default_strategy_is_in_force(self):
        assert_default_state()

    def test_the_default_strategy_is_one_object(self):
        assert jt.get_strategy() is jt.get_strategy()

    def test_the_default_replica_is_number_zero_of_one(self):
        context = jt.get_replica_context()
        assert context.replica_id_in_sync_group == 0
        assert type(context.replica_id_in_sync_group) is int
        assert context.num_replicas_in_sync == 1


class TestScope:
    def test_makes_the_strategy_the_one_in_force_until_its_end(self, strategy):
        with strategy.scope():
            assert_in_scope_of(strategy)
        assert_default_state()

    def test_gives_the_strategy_to_as(self, strategy):
        with strategy.scope() as entered:
            assert entered is strategy

    def test_ends_when_its_body_raises(self, strategy):
        with pytest.raises(KeyError), strategy.scope():
            raise KeyError("mine")
        assert_default_state()

    def test_may_be_entered_inside_itself(self, strategy):
        scope = strategy.scope()
        with scope:
            with scope:
                assert_in_scope_of(strategy)
                with strategy.scope():
                    assert_in_scope_of(strategy)
                assert_in_scope_of(strategy)
            assert_in_scope_of(strategy)
        assert_default_state()

    def test_may_be_used_again_after_its_end(self, strategy):
        scope = strategy.scope()
        for _ in range(3):
            with scope:
                assert_in_scope_of(strategy)
            assert_default_state()

    def test_of_another_strategy_cannot_be_entered(self, strategy, other):
        with strategy.scope():
            with pytest.raises(RuntimeError, match="Mixing different"), other.scope():
                pass
            assert_in_scope_of(strategy)
        assert_default_state()

    def test_cannot_be_entered_in_a_replica(self, strategy):
        def replica_fn():
            with pytest.raises(RuntimeError, match="requires being in cross-replica context"):
                strategy.scope().__enter__()
            return jt.get_replica_context().replica_id_in_sync_group

        assert strategy.experimental_local_results(strategy.run(replica_fn)) == (0, 1)

    def test_of_another_strategy_cannot_be_entered_in_a_replica(self, strategy, other):
        def replica_fn():
            with pytest.raises(RuntimeError, match="Mixing different"):
                other.scope().__enter__()

        strategy.run(replica_fn)


class TestMixing:
    """R6: one strategy's calls in the scope of another."""

    def test_run_is_refused(self, strategy, other):
        with strategy.scope(), pytest.raises(RuntimeError, match="Mixing different"):
            other.run(lambda: None)

    def test_reduce_is_refused(self, strategy, other):
        with strategy.scope(), pytest.raises(RuntimeError, match="Mixing different"):
            other.reduce("SUM", 1.0, axis=None)

    def test_gather_is_refused(self, strategy, other):
        with strategy.scope(), pytest.raises(RuntimeError, match="Mixing different"):
            other.gather(jnp.ones(2), axis=0)

    def test_distributing_values_is_refused(self, strategy, other):
        with strategy.scope(), pytest.raises(RuntimeError, match="Mixing different"):
            other.experimental_distribute_values_from_function(lambda ctx: 0)

    def test_run_in_a_replica_of_the_other_is_refused(self, strategy, other):
        with pytest.raises(RuntimeError, match="Mixing different"):
            strategy.run(lambda: other.run(lambda: None))
        assert_default_state()

    def test_the_message_names_both(self, strategy, other):
        with strategy.scope(), pytest.raises(RuntimeError) as raised:
            other.run(lambda: None)
        assert repr(strategy) in str(raised.value)
        assert repr(other) in str(raised.value)

    def test_outside_any_scope_calls_enter_their_own(self, strategy, other):
        seen = []
        strategy.run(lambda: seen.append(jt.get_strategy()))
        other.run(lambda: seen.append(jt.get_strategy()))
        assert seen == [strategy, strategy, other, other]
        assert_default_state()


class TestDefaultScope:
    """R7: the default strategy's own scope is nearly a no-op."""

    def test_leaves_the_default_state(self):
        with DEFAULT.scope():
            assert_default_state()
        assert_default_state()

    def test_cannot_be_entered_under_another_strategy(self, strategy):
        with strategy.scope():
            with pytest.raises(RuntimeError), DEFAULT.scope():
                pass
            assert_in_scope_of(strategy)

    def test_variables_in_a_scope_inside_it_are_refused(self, strategy):
        with (
            DEFAULT.scope(),
            strategy.scope(),
            pytest.raises(RuntimeError, match="Mixing different"),
        ):
            jt.Variable(1.0)
        assert_default_state()


class TestNesting:
    """R8: what is opened inside a scope is closed before it."""

    @pytest.mark.parametrize(
        "opened_inside",
        [
            pytest.param(lambda: jt.device("CPU:1"), id="device"),
            pytest.param(
                lambda: jt.variable_creator_scope(lambda create, **spec: create(**spec)),
                id="variable creator",
            ),
        ],
    )
    def test_closing_in_the_wrong_order_is_an_error(self, strategy, opened_inside):
        outer, inner = strategy.scope(), opened_inside()
        outer.__enter__()
        inner.__enter__()
        with pytest.raises(RuntimeError, match="nesting error"):
            outer.__exit__(None, None, None)
        with contextlib.suppress(RuntimeError):
            inner.__exit__(None, None, None)
        with contextlib.suppress(RuntimeError, IndexError):
            outer.__exit__(None, None, None)
        assert_default_state()
        assert jnp.ones(()).devices() == {jax.devices("cpu")[0]}
        with strategy.scope():
            assert_in_scope_of(strategy)

    def test_a_scope_closed_before_a_device_scope_around_it_is_fine(self, strategy):
        with jt.device("CPU:1"), strategy.scope():
            assert_in_scope_of(strategy)
        assert_default_state()


class TestSetStrategy:
    """R9."""

    @pytest.fixture(autouse=True)
    def _reset(self):
        yield
        jt.experimental_set_strategy(None)

    def test_is_a_scope_that_stays_open(self, strategy):
        jt.experimental_set_strategy(strategy)
        assert_in_scope_of(strategy)

    def test_again_switches(self, strategy, other):
        jt.experimental_set_strategy(strategy)
        jt.experimental_set_strategy(other)
        assert_in_scope_of(other)

    def test_none_returns_to_the_default(self, strategy):
        jt.experimental_set_strategy(strategy)
        jt.experimental_set_strategy(None)
        assert_default_state()

    def test_makes_variables_the_strategys(self, strategy):
        jt.experimental_set_strategy(strategy)
        assert isinstance(jt.Variable(1.0), jt.MirroredVariable)

    def test_a_scope_of_the_same_strategy_may_be_opened(self, strategy):
        jt.experimental_set_strategy(strategy)
        with strategy.scope():
            assert_in_scope_of(strategy)
        assert_in_scope_of(strategy)

    def test_a_scope_of_another_strategy_may_not(self, strategy, other):
        jt.experimental_set_strategy(strategy)
        with pytest.raises(RuntimeError, match="Mixing different"), other.scope():
            pass

    @pytest.mark.parametrize("which", ["same", "other", "none"])
    def test_is_refused_inside_a_scope(self, strategy, other, which):
        chosen = {"same": strategy, "other": other, "none": None}[which]
        with strategy.scope():
            with pytest.raises(RuntimeError, match="Must not be called inside"):
                jt.experimental_set_strategy(chosen)
            assert_in_scope_of(strategy)

    def test_is_refused_inside_a_replica(self, strategy):
        def replica_fn():
            with pytest.raises(RuntimeError, match="Must not be called inside"):
                jt.experimental_set_strategy(None)

        strategy.run(replica_fn)

    def test_refuses_what_is_no_strategy(self):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            jt.experimental_set_strategy("mirrored")
        assert_default_state()


def in_new_thread(fn):
    """Return what `fn` returns in a thread of its own; raise what it raises."""
    outcome = {}

    def main():
        try:
            outcome["result"] = fn()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


class TestThreads:
    """R10: the state is that of one thread."""

    def test_a_thread_started_in_a_scope_sees_no_strategy(self, strategy):
        with strategy.scope():
            in_new_thread(assert_default_state)
            assert_in_scope_of(strategy)

    def test_a_thread_started_in_a_replica_sees_no_strategy(self, strategy):
        strategy.run(lambda: in_new_thread(assert_default_state))

    def test_a_thread_does_not_see_the_strategy_that_was_set(self, strategy):
        jt.experimental_set_strategy(strategy)
        try:
            in_new_thread(assert_default_state)
        finally:
            jt.experimental_set_strategy(None)

    def test_two_threads_have_two_strategies_at_once(self, strategy, other):
        both_inside = threading.Barrier(2, timeout=30)

        def use(mine):
            with mine.scope():
                both_inside.wait()
                assert_in_scope_of(mine)
                v = jt.Variable(1.0, aggregation=jt.VariableAggregation.SUM)
                both_inside.wait()
                mine.run(lambda: v.assign_add(jnp.ones(())))
                both_inside.wait()
                return float(v)

        results = {}

        def main(name, mine):
            results[name] = use(mine)

        threads = [
            threading.Thread(target=main, args=args) for args in [("a", strategy), ("b", other)]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {"a": 3.0, "b": 3.0}

    def test_two_threads_may_run_one_strategy_at_once(self, strategy):
        together = threading.Barrier(2, timeout=30)
        results = {}

        def replica_fn(start):
            context = jt.get_replica_context()
            if context.replica_id_in_sync_group == 0:
                together.wait()
            return context.all_reduce("SUM", jnp.float32(start) + context.replica_id_in_sync_group)

        def main(start):
            value = strategy.run(replica_fn, args=(start,))
            results[start] = [float(x) for x in strategy.experimental_local_results(value)]

        threads = [threading.Thread(target=main, args=(start,)) for start in (0, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {0: [1.0, 1.0], 10: [21.0, 21.0]}

    def test_a_traced_function_called_in_a_scope_inherits_it(self, strategy):
        seen = []

        @jt.function
        def fn():
            seen.append((jt.get_strategy(), jt.in_cross_replica_context()))

        with strategy.scope():
            fn()
        assert seen
        assert set(seen) == {(strategy, True)}

    def test_a_traced_function_is_traced_anew_for_another_state(self, strategy):
        @jt.function
        def fn():
            return jnp.float32(jt.get_strategy().num_replicas_in_sync)

        with strategy.scope():
            assert float(fn()) == 2.0
        assert float(fn()) == 1.0


class TestInsideRun:
    """R11, R12, R14."""

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_the_replica_context_is_the_strategys(self, strategy, compiled):
        seen = []

        def replica_fn():
            context = jt.get_replica_context()
            seen.append(
                (
                    context.strategy is strategy,
                    context is DEFAULT.context,
                    jt.in_cross_replica_context(),
                    jt.has_strategy(),
                    jt.get_strategy() is strategy,
                    context.num_replicas_in_sync,
                )
            )

        strategy.run(jt.function(replica_fn) if compiled else replica_fn)
        assert set(seen) == {(True, False, False, True, True, 2)}
        assert_default_state()

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_a_merge_function_is_outside_of_the_replicas(self, strategy, compiled):
        seen = []

        def merge_fn(*args):
            assert_in_scope_of(strategy)
            seen.append(args)

        def replica_fn():
            jt.get_replica_context().merge_call(merge_fn)
            assert not jt.in_cross_replica_context()

        strategy.run(jt.function(replica_fn) if compiled else replica_fn)
        assert seen
        assert all(args == (strategy,) for args in seen)

    def test_the_default_merge_call_calls_the_function(self):
        def merge_fn(strategy, x, y):
            assert strategy is DEFAULT
            assert jt.in_cross_replica_context()
            assert jt.get_replica_context() is None
            assert not jt.has_strategy()
            return x + y

        context = jt.get_replica_context()
        assert context.merge_call(merge_fn, args=(1,), kwargs={"y": 2}) == 3
        assert_default_state()

    def test_the_default_all_reduce_returns_its_argument(self):
        assert float(jt.get_replica_context().all_reduce("SUM", jnp.float32(3.0))) == 3.0

    def test_default_run_stays_in_the_default_state(self):
        DEFAULT.run(assert_default_state)


class TestWrongContext:
    """R13: a context is only good where it is the current one."""

    CALLS = pytest.mark.parametrize(
        "call",
        [
            pytest.param(lambda c: c.merge_call(lambda s: None), id="merge_call"),
            pytest.param(lambda c: c.all_reduce("SUM", jnp.ones(2)), id="all_reduce"),
            pytest.param(lambda c: c.all_gather(jnp.ones(2), axis=0), id="all_gather"),
        ],
    )

    @staticmethod
    def kept_contexts(strategy):
        contexts = []
        strategy.run(lambda: contexts.append(jt.get_replica_context()))
        return contexts

    @CALLS
    def test_outside_of_the_replicas(self, strategy, call):
        (kept, _) = self.kept_contexts(strategy)
        with strategy.scope(), pytest.raises(RuntimeError, match="Need to be inside"):
            call(kept)

    @CALLS
    def test_in_another_replica_of_the_strategy(self, strategy, call):
        (kept, _) = self.kept_contexts(strategy)
        with pytest.raises(RuntimeError, match="Mismatching ReplicaContext"):
            strategy.run(lambda: call(kept))
        assert_default_state()

    @CALLS
    def test_in_a_replica_of_another_strategy(self, strategy, other, call):
        (kept, _) = self.kept_contexts(strategy)
        with pytest.raises(RuntimeError, match=r"Mismatching .*Strategy"):
            other.run(lambda: call(kept))

    @CALLS
    def test_without_any_strategy(self, strategy, call):
        (kept, _) = self.kept_contexts(strategy)
        with pytest.raises(RuntimeError, match=r"Mismatching .*Strategy"):
            call(kept)

    @CALLS
    def test_the_default_context_in_a_replica(self, strategy, call):
        default_context = jt.get_replica_context()
        with pytest.raises(RuntimeError, match=r"Mismatching .*Strategy"):
            strategy.run(lambda: call(default_context))

    @CALLS
    def test_the_default_context_in_a_scope(self, strategy, call):
        default_context = jt.get_replica_context()
        with strategy.scope(), pytest.raises(RuntimeError, match="Need to be inside"):
            call(default_context)

    @CALLS
    def test_of_a_compiled_step_after_it(self, strategy, call):
        contexts = []
        strategy.run(jt.function(lambda: contexts.append(jt.get_replica_context())))
        with strategy.scope(), pytest.raises(RuntimeError, match="Need to be inside"):
            call(contexts[-1])


class TestReplicaContext:
    @pytest.mark.parametrize("replica_id", ["0", 0.5, [0], object()])
    def test_refuses_an_id_that_is_no_number(self, strategy, replica_id):
        with pytest.raises(ValueError, match="replica_id_in_sync_group"):
            jt.ReplicaContext(strategy, replica_id)

    @pytest.mark.parametrize("replica_id", [0, None, jnp.int32(1)], ids=repr)
    def test_takes_a_number_an_array_or_none(self, strategy, replica_id):
        assert jt.ReplicaContext(strategy, replica_id).strategy is strategy

    def test_can_be_entered(self, strategy):
        context = jt.ReplicaContext(strategy, 0)
        with context as entered:
            assert entered is context
            assert jt.get_replica_context() is context
            assert not jt.in_cross_replica_context()
            assert jt.get_strategy() is strategy
        assert_default_state()

    def test_knows_its_devices(self, strategy):
        names = strategy.run(lambda: jt.get_replica_context().devices)
        local = strategy.experimental_local_results(names)
        assert [x[0] for x in local] == list(strategy.extended.worker_devices)


class TestCopying:
    """R15."""

    def test_copy_is_refused(self, strategy):
        with pytest.raises(RuntimeError, match="must not be copied"):
            copy.copy(strategy)

    def test_copy_of_the_default_is_refused(self):
        with pytest.raises(RuntimeError, match="must not be copied"):
            copy.copy(DEFAULT)

    def test_deepcopy_gives_a_strategy_of_its_own(self, strategy):
        duplicate = copy.deepcopy(strategy)
        assert duplicate is not strategy
        assert duplicate.num_replicas_in_sync == 2
        with duplicate.scope():
            assert jt.get_strategy() is duplicate
            v = jt.Variable(1.0)
        assert duplicate.extended.variable_created_in_scope(v)
        assert not strategy.extended.variable_created_in_scope(v)
        value = duplicate.run(lambda: jt.get_replica_context().all_reduce("SUM", 1.0 + v))
        assert [float(x) for x in duplicate.experimental_local_results(value)] == [4.0, 4.0]

    def test_deepcopy_of_the_default_is_refused(self):
        with pytest.raises(RuntimeError, match="default strategy"):
            copy.deepcopy(DEFAULT)


class TestSubmodules:
    @pytest.mark.parametrize(
        "name",
        [
            "get_strategy",
            "has_strategy",
            "get_replica_context",
            "in_cross_replica_context",
            "experimental_set_strategy",
        ],
    )
    def test_the_questions_are_public(self, name):
        assert name in jt.__all__
        assert callable(getattr(jt, name))


class TestEnteredByHand:
    """A scope that nobody leaves stays open, whether or not anybody keeps the object."""

    def seen_after(self, enter, look):
        seen = []

        def main():  # in a thread of its own, as the scope is never left
            enter()
            gc.collect()
            seen.append(look())

        thread = threading.Thread(target=main)
        thread.start()
        thread.join()
        return seen

    def test_a_strategy_scope(self, strategy):
        assert self.seen_after(lambda: strategy.scope().__enter__(), jt.get_strategy) == [strategy]

    def test_a_creator_scope(self):
        def frozen(next_creator, **kwargs):
            return next_creator(**(kwargs | {"trainable": False}))

        def enter():
            jt.variable_creator_scope(frozen).__enter__()

        assert self.seen_after(enter, lambda: jt.Variable(1.0).trainable) == [False]

    def test_a_device_scope(self):
        def enter():
            jt.device("CPU:1").__enter__()

        device = jax.devices("cpu")[1]
        assert self.seen_after(enter, lambda: jnp.ones(2).device) == [device]

    def test_reads_that_are_cached(self):
        def enter():
            jt.experimental.coordinator.experimental_cache_variable_reads().__enter__()

        def is_entered():
            with pytest.raises(ValueError):
                enter()
            return True

        assert self.seen_after(enter, is_entered) == [True]
