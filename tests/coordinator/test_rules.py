"""What the reference says of `ClusterCoordinator`, rule by rule, where no other file here does."""

import functools
import threading
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.testing import LocalCluster

errors = jt.errors


@pytest.fixture
def cluster():
    with LocalCluster(workers=2, ps=1) as cluster:
        yield cluster
        cluster.assert_quiescent()


@pytest.fixture
def coordinator(cluster):
    return cluster.coordinator()


@pytest.fixture
def total(coordinator):
    """A variable that starts at 0."""
    with coordinator.strategy.scope():
        return jt.Variable(0.0)


@pytest.fixture
def one_by_one():
    """A cluster whose only worker runs closures in their order, and its coordinator."""
    with LocalCluster(workers=1, ps=1) as cluster:
        yield cluster, cluster.coordinator()


def fail(text="bad"):
    raise ValueError(text)


class TestScope:
    """R191, R216."""

    def test_variables_need_no_coordinator_yet(self, cluster):
        strategy = cluster.strategy()
        with strategy.scope():
            v = jt.Variable(1.0)
            coordinator = cluster.coordinator(strategy)
        assert coordinator.schedule(lambda: v + 1).fetch() == 2

    @pytest.mark.parametrize("replicas", [1, 2])
    def test_run_and_reduce(self, cluster, replicas):
        strategy = cluster.strategy(replicas_per_worker=replicas)
        coordinator = cluster.coordinator(strategy)
        with strategy.scope():
            v = jt.Variable(1.0)

        @jt.function
        def worker_fn(data):
            def replica_fn(data):
                return data * v, jt.get_replica_context().replica_id_in_sync_group

            result, _ = strategy.run(replica_fn, args=(data,))
            total = strategy.reduce("SUM", result, axis=None)
            return total, strategy.reduce("MEAN", result, axis=None) * replicas

        got = coordinator.schedule(worker_fn, args=(jnp.float32(4),)).fetch()
        assert got == (4 * replicas, 4 * replicas)

    def test_the_strategy_inside_knows_the_cluster(self, coordinator):
        def described():
            strategy = jt.get_strategy()
            return strategy is coordinator_strategy, repr(strategy), jt.in_cross_replica_context()

        coordinator_strategy = coordinator.strategy
        same, text, cross = coordinator.schedule(described).fetch()
        assert same and cross
        assert "2 workers and 1 parameter servers" in text


class TestArguments:
    """R192, R193."""

    def test_a_remote_value_is_refused_anywhere(self, coordinator):
        value = coordinator.schedule(lambda: 1)
        for arguments in (
            {"args": (value,)},
            {"args": ({"a": [value]},)},
            {"kwargs": {"x": value}},
            {"kwargs": {"x": (1, [value])}},
        ):
            with pytest.raises(ValueError, match="RemoteValue"):
                coordinator.schedule(lambda *args, **kwargs: 1, **arguments)

    def test_values_of_workers_are_replaced_anywhere(self, coordinator):
        values = coordinator.create_per_worker_values(lambda: jnp.float32(5))
        got = coordinator.schedule(
            lambda pair, *, named: pair[1]["x"] + named[0],
            args=((1, {"x": values}),),
            kwargs={"named": [values]},
        )
        assert got.fetch() == 10

    def test_functions_of_any_kind(self, coordinator, total):
        class Adder:
            def __init__(self, amount):
                self.amount = amount

            def __call__(self):
                return self.amount

            def method(self, x):
                return self.amount + x

        scheduled = [
            coordinator.schedule(Adder(3)),
            coordinator.schedule(Adder(3).method, args=(1,)),
            coordinator.schedule(functools.partial(lambda x, y: x + y, 2), args=(3,)),
            coordinator.schedule(jt.function(lambda x: x + total), args=(6.0,)),
            coordinator.schedule(jax.jit(lambda x: x + 1), args=(6.0,)),
            coordinator.schedule(max, args=(7, 8)),
        ]
        assert coordinator.fetch(scheduled) == [3, 4, 5, 6, 7, 8]

    def test_a_function_is_sent_as_it_was_when_it_was_scheduled(self, coordinator):
        values = []
        for i in range(5):
            values.append(coordinator.schedule(lambda: i))  # noqa: B023
        assert coordinator.fetch(values) == [0, 1, 2, 3, 4]


class TestResults:
    """R194, R219."""

    def test_fetch_and_get_can_be_repeated(self, coordinator):
        value = coordinator.schedule(lambda: (jnp.arange(3), None))
        for _ in range(2):
            fetched, got = value.fetch(), value.get()
            assert type(fetched[0]) is np.ndarray
            assert isinstance(got[0], jax.Array)
            assert fetched[0].tolist() == got[0].tolist() == [0, 1, 2]
            assert fetched[1] is got[1] is None

    def test_a_function_without_result(self, coordinator):
        assert coordinator.schedule(lambda: None).fetch() is None
        assert coordinator.schedule(lambda: None).get() is None

    def test_states(self, cluster, coordinator):
        for task in ("worker:0", "worker:1"):
            cluster.freeze(task)
        value = coordinator.schedule(lambda: 1)
        assert repr(value) == "<RemoteValue, not ready>"
        for task in ("worker:0", "worker:1"):
            cluster.thaw(task)
        coordinator.join()
        assert repr(value) == "<RemoteValue, ready>"
        value = coordinator.schedule(fail)
        with pytest.raises(ValueError, match="bad"):
            coordinator.join()
        assert repr(value) == "<RemoteValue, failed>"


class TestJoin:
    """R195."""

    def test_may_be_repeated_and_idle(self, coordinator, total):
        coordinator.join()
        for i in range(1, 4):
            coordinator.schedule(lambda: total.assign_add(1.0))
            coordinator.join()
            coordinator.join()
            assert total.numpy() == i

    def test_done_is_false_while_something_runs(self, cluster, coordinator):
        assert coordinator.done()
        for task in ("worker:0", "worker:1"):
            cluster.freeze(task)
        coordinator.schedule(lambda: 1)
        assert not coordinator.done()
        for task in ("worker:0", "worker:1"):
            cluster.thaw(task)
        coordinator.join()
        assert coordinator.done()

    def test_several_threads_schedule_and_join(self, coordinator, total):
        def work():
            for _ in range(10):
                coordinator.schedule(lambda: total.assign_add(1.0))
            coordinator.join()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert total.numpy() == 40


class TestErrors:
    """R196 to R200."""

    @pytest.mark.parametrize("call", ["join", "done", "schedule"])
    def test_each_call_raises_the_error_and_clears_it(self, coordinator, call):
        calls = {
            "join": coordinator.join,
            "done": coordinator.done,
            "schedule": lambda: coordinator.schedule(lambda: 1),
        }
        with pytest.raises(ValueError, match="bad"):
            coordinator.schedule(fail).fetch()
        with pytest.raises(ValueError, match="bad"):
            calls[call]()
        for name in ("done", "schedule", "join"):
            calls[name]()

    def test_what_was_finished_keeps_its_result_and_the_rest_is_cancelled(self, one_by_one):
        cluster, coordinator = one_by_one
        with coordinator.strategy.scope():
            total = jt.Variable(0.0)
        finished = coordinator.schedule(lambda: total.assign_add(1.0) and 1)
        coordinator.join()
        cluster.freeze("worker:0")
        failed = coordinator.schedule(fail)
        waiting = [coordinator.schedule(lambda: total.assign_add(1.0)) for _ in range(5)]
        cluster.wait_until_frozen("worker:0")
        cluster.thaw("worker:0")
        with pytest.raises(ValueError, match="bad"):
            coordinator.join()
        assert finished.fetch() == 1
        with pytest.raises(ValueError, match="bad"):
            failed.fetch()
        ran = 0
        for value in waiting:  # the worker may have begun some before it was told
            try:
                value.fetch()
                ran += 1
            except errors.CancelledError:
                pass
        assert total.numpy() == 1 + ran

    def test_only_the_first_error_is_raised(self, cluster, coordinator):
        for task in ("worker:0", "worker:1"):
            cluster.freeze(task)
        values = [coordinator.schedule(fail, args=(f"bad {i}",)) for i in range(2)]
        for task in ("worker:0", "worker:1"):
            cluster.wait_until_frozen(task)
        for task in ("worker:0", "worker:1"):
            cluster.thaw(task)
        with pytest.raises(ValueError, match="bad"):
            coordinator.join()
        coordinator.join()
        for i, value in enumerate(values):
            with pytest.raises((ValueError, errors.CancelledError), match=f"bad {i}|cancel"):
                value.fetch()

    def test_an_error_waits_for_what_runs(self, cluster, coordinator, total):
        cluster.freeze("worker:0")
        cluster.freeze("worker:1")
        coordinator.schedule(lambda: total.assign_add(1.0))
        coordinator.schedule(fail)
        for task in ("worker:0", "worker:1"):
            cluster.wait_until_frozen(task)
            cluster.thaw(task)
        with pytest.raises(ValueError, match="bad"):
            coordinator.join()
        before = total.numpy()
        cluster.assert_quiescent()
        assert total.numpy() == before == 1

    @pytest.mark.parametrize(
        "error",
        [
            errors.InvalidArgumentError("ours"),
            KeyError("key"),
            StopIteration(),
            AssertionError("no"),
            FloatingPointError("nan"),
        ],
        ids=lambda e: type(e).__name__,
    )
    def test_errors_keep_their_class(self, coordinator, error):
        def step():
            raise error

        expected = errors.OutOfRangeError if isinstance(error, StopIteration) else type(error)
        value = coordinator.schedule(step)
        for call in (value.fetch, coordinator.join):
            with pytest.raises(expected):
                call()

    def test_a_class_of_the_program_is_kept(self, coordinator):
        class OwnError(Exception):
            def __init__(self, number):
                super().__init__(number)
                self.number = number

        def step():
            raise OwnError(7)

        coordinator.schedule(step)
        with pytest.raises(Exception, match="7") as caught:
            coordinator.join()
        assert type(caught.value).__name__ == "OwnError"


class TestDatasets:
    """R210 to R213."""

    def on_both(self, cluster, coordinator, iterator, count):
        """Return what each worker takes from its iterator."""
        taken = []
        for index in (0, 1):
            cluster.freeze(f"worker:{index}")
        values = [
            coordinator.schedule(lambda it: [int(next(it)) for _ in range(count)], args=(iterator,))
            for _ in range(2)
        ]
        for index in (0, 1):  # so that each has one
            cluster.wait_until_frozen(f"worker:{index}")
        for index in (0, 1):
            cluster.thaw(f"worker:{index}")
        for value in values:
            taken += value.fetch()
        return taken

    @pytest.mark.parametrize("by_function", [True, False], ids=["function", "dataset"])
    def test_each_worker_reads_all_by_itself(self, cluster, coordinator, by_function):
        dataset = jt.data.Dataset.range(1, 4)
        iterator = iter(
            coordinator.create_per_worker_dataset((lambda: dataset) if by_function else dataset)
        )
        taken = self.on_both(cluster, coordinator, iterator, 3)
        assert Counter(taken) == {1: 2, 2: 2, 3: 2}
        coordinator.schedule(next, args=(iterator,))
        with pytest.raises(errors.OutOfRangeError):
            coordinator.join()

    def test_iterators_are_independent(self, cluster, coordinator):
        dataset = coordinator.create_per_worker_dataset(jt.data.Dataset.range(10))
        first, second = iter(dataset), iter(dataset)
        assert self.on_both(cluster, coordinator, first, 2) == [0, 1, 0, 1]
        assert self.on_both(cluster, coordinator, second, 1) == [0, 0]
        assert self.on_both(cluster, coordinator, first, 1) == [2, 2]

    def test_a_bad_dataset_that_is_not_used_is_no_error(self, coordinator):
        iterator = iter(coordinator.create_per_worker_dataset(lambda: fail()))
        assert coordinator.schedule(lambda: 1).fetch() == 1
        coordinator.join()
        value = coordinator.schedule(next, args=(iterator,))
        for call in (value.fetch, coordinator.join):
            with pytest.raises(errors.ClosureInputError, match="bad"):
                call()
        assert coordinator.schedule(lambda: 2).fetch() == 2

    def test_elements_may_be_structures(self, coordinator):
        data = {"x": np.arange(6.0, dtype=np.float32).reshape(3, 2), "y": np.arange(3)}
        iterator = iter(
            coordinator.create_per_worker_dataset(
                lambda: jt.data.Dataset.from_tensor_slices(data).batch(3)
            )
        )
        step = jt.function(lambda it: jnp.sum((batch := next(it))["x"]) + jnp.sum(batch["y"]))
        assert coordinator.schedule(step, args=(iterator,)).fetch() == 15 + 3


class TestTimeouts:
    """R208: too few to matter are tried again."""

    def test_one_of_a_function_is_its_error_with_few_workers(self, coordinator):
        def step():
            raise errors.DeadlineExceededError("slow")

        coordinator.schedule(step)
        with pytest.raises(errors.DeadlineExceededError, match="slow"):
            coordinator.join()

    def test_those_below_the_limit_are_tried_again(self, cluster, monkeypatch):
        monkeypatch.setenv("TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS", "5")
        coordinator = cluster.coordinator()
        tries = coordinator.create_per_worker_values(list)

        def step(tries):
            tries.append(1)
            if len(tries) < 2:
                raise errors.DeadlineExceededError("slow")
            return len(tries)

        assert coordinator.schedule(step, args=(tries,)).fetch() == 2
        coordinator.join()
