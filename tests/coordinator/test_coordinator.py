"""`ClusterCoordinator` with workers and servers over real sockets, inside this process."""

import gc
import threading
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.coordinator import (
    ClusterCoordinator,
    PerWorkerValues,
    RestorePolicy,
    experimental_get_current_worker_index,
)
from jaxtribute.testing import LocalCluster

errors = jt.errors


@pytest.fixture
def cluster():
    with LocalCluster(workers=2, ps=1) as cluster:
        yield cluster


@pytest.fixture
def coordinator(cluster):
    return cluster.coordinator()


def until(condition, seconds=30.0):
    """Wait for something that is about to happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fail(text="bad"):
    raise ValueError(text)


class TestLife:
    def test_there_is_one_for_each_strategy(self, cluster):
        strategy = cluster.strategy()
        first = cluster.coordinator(strategy)
        assert ClusterCoordinator(strategy) is first
        assert first.strategy is strategy

    def test_another_policy_for_the_same_strategy_is_refused(self, coordinator, tmp_path):
        with pytest.raises(ValueError, match="has a coordinator already"):
            ClusterCoordinator(coordinator.strategy, RestorePolicy(tmp_path))

    @pytest.mark.parametrize("strategy", [None, "ps"], ids=str)
    def test_other_strategies_are_refused(self, strategy):
        with pytest.raises(ValueError, match="ParameterServerStrategy"):
            ClusterCoordinator(strategy)
        with pytest.raises(ValueError, match="ParameterServerStrategy"):
            ClusterCoordinator(jt.get_strategy())

    def test_dropping_the_last_reference_ends_its_threads(self, cluster):
        strategy = cluster.strategy()
        before = set(threading.enumerate())
        coordinator = ClusterCoordinator(strategy)
        coordinator.schedule(lambda: None).fetch()
        started = set(threading.enumerate()) - before
        assert started
        del coordinator
        gc.collect()
        until(lambda: not any(thread.is_alive() for thread in started))

    def test_a_second_one_goes_on_with_the_numbers_of_the_first(self, cluster):
        strategy = cluster.strategy()
        with strategy.scope():
            total = jt.Variable(0.0)
        for _ in range(2):
            coordinator = ClusterCoordinator(strategy)
            for _ in range(3):
                coordinator.schedule(lambda: total.assign_add(1.0))
            coordinator.join()
            coordinator.close()
            del coordinator
        assert total.numpy() == 6  # an update with a number that was used would be dropped

    def test_a_closed_one_says_so(self, coordinator):
        coordinator.close()
        coordinator.close()
        with pytest.raises(errors.FailedPreconditionError, match="closed"):
            coordinator.schedule(lambda: None)

    def test_it_cannot_be_sent(self, coordinator):
        with pytest.raises(TypeError, match=r"cannot be sent to workers.*exists on the coord"):
            coordinator.schedule(lambda: coordinator.done())

    def test_workers_that_do_not_come_are_named(self, cluster, monkeypatch):
        monkeypatch.setenv("JAXTRIBUTE_JOIN_TIMEOUT", "0.3")
        strategy = cluster.strategy()
        for task in ("worker:0", "worker:1"):
            cluster.kill(task)
        with pytest.raises(errors.DeadlineExceededError, match=r"worker:0 .*worker:1"):
            ClusterCoordinator(strategy)

    def test_one_worker_is_enough_to_begin(self, cluster, capsys):
        strategy = cluster.strategy()
        cluster.kill("worker:1")
        coordinator = cluster.coordinator(strategy)
        assert coordinator.schedule(lambda: 1).fetch() == 1
        text = capsys.readouterr().err
        assert "this process coordinates 2 workers" in text
        assert "worker:1 at" in text
        assert "not up yet" in text


class TestSchedule:
    def test_results_have_the_structure_of_what_was_returned(self, coordinator):
        value = coordinator.schedule(
            lambda: {"a": (jnp.float32(1), [jnp.arange(2)]), "b": None, "c": 3}
        )
        fetched = value.fetch()
        assert type(fetched["a"][0]) is np.float32
        assert fetched["a"][1][0].tolist() == [0, 1]
        assert (fetched["b"], fetched["c"]) == (None, 3)
        assert isinstance(value.get()["a"][0], jax.Array)

    def test_arguments_and_keywords_are_passed(self, coordinator):
        value = coordinator.schedule(
            lambda x, *, y: x - y, args=(jnp.arange(3),), kwargs={"y": np.ones(3, np.int32)}
        )
        assert value.fetch().tolist() == [-1, 0, 1]

    def test_every_update_happens_once(self, coordinator):
        with coordinator.strategy.scope():
            total = jt.Variable(0.0)
        step = jt.function(lambda x: total.assign_add(x))
        for _ in range(100):
            coordinator.schedule(step, args=(jnp.float32(2),))
        coordinator.join()
        assert total.numpy() == 200

    def test_a_function_runs_in_the_strategys_scope(self, coordinator):
        def described():
            return jt.has_strategy(), jt.get_strategy().num_replicas_in_sync

        assert coordinator.schedule(described).fetch() == (True, 1)

    def test_run_and_reduce_work_inside(self, coordinator):
        strategy = coordinator.strategy

        def step():
            doubled = strategy.run(lambda: jnp.float32(2) * 2)
            return strategy.reduce("SUM", doubled, axis=None)

        assert coordinator.schedule(step).fetch() == 4

    def test_big_constants_are_kept_by_workers(self, coordinator):
        table = jnp.arange(100_000.0)
        totals = [coordinator.schedule(lambda i=i: table.sum() + i) for i in range(4)]
        expected = float(np.arange(100_000.0, dtype=np.float32).sum())
        np.testing.assert_allclose(coordinator.fetch(totals), [expected] * 4, rtol=1e-6)

    def test_a_remote_value_is_no_argument(self, coordinator):
        value = coordinator.schedule(lambda: 1)
        with pytest.raises(ValueError, match="RemoteValue cannot be an argument"):
            coordinator.schedule(lambda x: x, args=([value],))
        with pytest.raises(ValueError, match="RemoteValue cannot be an argument"):
            coordinator.schedule(lambda: value)

    def test_what_is_no_function_is_refused(self, coordinator):
        with pytest.raises(TypeError, match="schedule takes a function, got 3"):
            coordinator.schedule(3)

    def test_scheduling_while_tracing_is_refused(self, coordinator):
        with pytest.raises(RuntimeError, match="being traced"):
            jax.jit(lambda x: coordinator.schedule(lambda: 1) and x)(1.0)

    def test_fetch_leaves_other_things_alone(self, coordinator):
        value = coordinator.schedule(lambda: 1)
        assert coordinator.fetch({"a": value, "b": [value, "x"]}) == {"a": 1, "b": [1, "x"]}

    def test_a_small_queue_only_makes_schedule_wait(self, coordinator):
        coordinator._dispatcher.closures.queue._capacity = 2
        values = [coordinator.schedule(lambda i=i: i) for i in range(50)]
        assert coordinator.fetch(values) == list(range(50))

    def test_nothing_slips_in_while_a_join_waits(self, cluster, coordinator):
        for task in ("worker:0", "worker:1"):
            cluster.freeze(task)
        coordinator.schedule(lambda: 1)
        joined = threading.Thread(target=coordinator.join)
        joined.start()
        until(lambda: coordinator._dispatcher.closures._joining == 1)
        values = []
        late = threading.Thread(target=lambda: values.append(coordinator.schedule(lambda: 2)))
        late.start()
        late.join(0.2)
        assert late.is_alive()
        for task in ("worker:0", "worker:1"):
            cluster.thaw(task)
        joined.join(30)
        late.join(30)
        assert values[0].fetch() == 2

    def test_one_can_wait_until_fewer_are_left(self, cluster, coordinator):
        assert coordinator.wait_for_fewer(1) == 0
        for task in ("worker:0", "worker:1"):
            cluster.freeze(task)
        for _ in range(5):
            coordinator.schedule(lambda: None)
        assert coordinator.wait_for_fewer(6) == 5
        left = []
        waiting = threading.Thread(target=lambda: left.append(coordinator.wait_for_fewer(3)))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        for task in ("worker:0", "worker:1"):
            cluster.thaw(task)
        waiting.join(30)
        assert left[0] < 3
        coordinator.schedule(fail)
        with pytest.raises(ValueError, match="bad"):
            coordinator.wait_for_fewer(1)
        assert coordinator.wait_for_fewer(1) == 0

    def test_long_waits_say_what_they_wait_for(self, cluster, coordinator, capsys, monkeypatch):
        monkeypatch.setattr("jaxtribute.coordinator._waiting._FIRST_NOTICE", 0.05)
        monkeypatch.setattr("jaxtribute.coordinator._waiting._STEP", 0.02)
        for task in ("worker:0", "worker:1"):
            cluster.freeze(task)
        value = coordinator.schedule(lambda: 1)
        printed = []

        def thaw():
            until(lambda: printed.append(capsys.readouterr().err) or "waiting" in printed[-1])
            for task in ("worker:0", "worker:1"):
                cluster.thaw(task)

        thread = threading.Thread(target=thaw)
        thread.start()
        assert value.fetch() == 1
        thread.join()
        assert "1 closures to end and 0 to begin" in printed[-1]
        assert "worker:0 ready" in printed[-1]


class TestErrors:
    def test_an_error_has_the_workers_traceback(self, coordinator):
        value = coordinator.schedule(fail)
        with pytest.raises(ValueError, match="bad") as caught:
            coordinator.join()
        (note,) = caught.value.__notes__
        assert "Raised on worker:" in note
        assert "in fail" in note
        with pytest.raises(ValueError, match="bad"):
            value.fetch()

    def test_the_coordinator_is_usable_afterwards(self, coordinator):
        coordinator.schedule(fail)
        with pytest.raises(ValueError, match="bad"):
            coordinator.join()
        coordinator.join()
        assert coordinator.schedule(lambda: 5).fetch() == 5

    def test_the_function_whose_schedule_raises_does_not_run(self, coordinator):
        with coordinator.strategy.scope():
            total = jt.Variable(0.0)
        with pytest.raises(ValueError, match="bad"):
            coordinator.schedule(fail).fetch()
        with pytest.raises(ValueError, match="bad") as raised:
            coordinator.schedule(lambda: total.assign_add(1.0))
        note = raised.value.__notes__[-1]
        assert "the error of 'fail', which was scheduled before" in note
        assert "did not schedule" in note
        coordinator.join()
        assert total.numpy() == 0

    def test_a_function_that_fails_has_updated_nothing(self, coordinator):
        with coordinator.strategy.scope():
            total = jt.Variable(0.0)

        def step():
            total.assign_add(1.0)
            fail()

        coordinator.schedule(step)
        with pytest.raises(ValueError, match="bad"):
            coordinator.join()
        assert total.numpy() == 0

    def test_what_waits_is_cancelled(self, cluster, coordinator):
        cluster.freeze("worker:0")
        cluster.freeze("worker:1")
        values = [coordinator.schedule(fail) for _ in range(20)]
        cluster.thaw("worker:0")
        cluster.thaw("worker:1")
        with pytest.raises(ValueError, match="bad"):
            coordinator.join()
        with pytest.raises(errors.CancelledError):
            values[-1].fetch()
        assert coordinator.done()

    def test_an_unsendable_result_is_an_error(self, coordinator):
        value = coordinator.schedule(lambda: (x for x in ()))
        with pytest.raises(TypeError, match="cannot be sent to the coordinator"):
            value.fetch()
        with pytest.raises(TypeError):
            coordinator.join()

    def test_a_function_cannot_end_its_worker(self, coordinator):
        def leave():
            raise SystemExit(3)

        with pytest.raises(RuntimeError, match="SystemExit: 3"):
            coordinator.schedule(leave).fetch()
        with pytest.raises(RuntimeError):
            coordinator.join()
        assert coordinator.schedule(lambda: 1).fetch() == 1


def shuffled_datasets(folder):
    numbers = jt.data.Dataset.range(40)
    shuffled, seeded = numbers.shuffle(40), numbers.shuffle(40, seed=3)

    def part(start, shuffle):
        return jt.data.Dataset.range(20).map(lambda x: x + 20 * start).apply(shuffle)

    def unseeded_part(start):
        return part(start, lambda dataset: dataset.shuffle(20))

    def negative(x):
        return -x

    return {
        "shuffle": shuffled,
        "always the same order": numbers.shuffle(40, reshuffle_each_iteration=False),
        "small buffer": numbers.shuffle(20),
        "after a seeded one": seeded.shuffle(40),
        "repeat": shuffled.repeat(2),
        "elementwise": shuffled.map(negative).filter(lambda x: x < -3).prefetch(2).cache(),
        "batches": numbers.batch(2).shuffle(20).unbatch(),
        "concatenate": jt.data.Dataset.range(40, 50).concatenate(shuffled),
        "interleave": jt.data.Dataset.range(2).interleave(unseeded_part, cycle_length=2),
        "flat_map": jt.data.Dataset.range(2).flat_map(unseeded_part),
        "captured": jt.data.Dataset.range(2).flat_map(lambda start: shuffled),
        "names of files": jt.data.Dataset.list_files(folder / "*.txt"),
        "zip": jt.data.Dataset.zip(numbers, shuffled),
        "pairs": jt.data.Dataset.zip(shuffled, shuffled.map(negative)),
        "nested pairs": jt.data.Dataset.range(2).flat_map(
            lambda start: jt.data.Dataset.zip(shuffled, shuffled.map(negative))
        ),
        "seeded": seeded,
        "seeded repeat": seeded.repeat(2),
        "seeded flat_map": jt.data.Dataset.range(2).flat_map(
            lambda start: part(start, lambda dataset: dataset.shuffle(20, seed=5))
        ),
        "seeded names of files": jt.data.Dataset.list_files(folder / "*.txt", seed=1),
    }


# How a dataset is given to `create_per_worker_dataset`.
WAYS_OF_GIVING = {
    "dataset": lambda strategy, dataset: dataset.batch(8),
    "function": lambda strategy, dataset: lambda: dataset.batch(8),
    "distributed": lambda strategy, dataset: strategy.experimental_distribute_dataset(
        dataset.batch(8)
    ),
    "from a function": lambda strategy, dataset: strategy.distribute_datasets_from_function(
        lambda context: dataset.batch(8)
    ),
    "distributed in a function": lambda strategy, dataset: (
        lambda: strategy.experimental_distribute_dataset(dataset.batch(8))
    ),
    "from a function in a function": lambda strategy, dataset: (
        lambda: strategy.distribute_datasets_from_function(lambda context: dataset.batch(8))
    ),
    "distributed and returned": lambda strategy, dataset: partial(
        lambda made: made, strategy.experimental_distribute_dataset(dataset.batch(8))
    ),
}


def read_by_each(cluster, coordinator, iterators, workers=(0, 1)):
    """Return what each worker finds in a pass."""

    def rows(batch):
        return np.stack(batch, axis=-1).tolist() if isinstance(batch, tuple) else batch.tolist()

    def read():
        found = {name: [r for batch in it for r in rows(batch)] for name, it in iterators.items()}
        return experimental_get_current_worker_index(), found

    orders = []
    for index in workers:
        with cluster.paused(f"worker:{1 - index}"):
            worker, found = coordinator.schedule(read).fetch()
        assert worker == index
        orders.append(found)
    return orders


def elements_of(order):
    """Return what is read, whatever the order; the sides of pairs each for itself."""
    return np.sort(np.array(order), axis=0).tolist()


class TestPerWorker:
    def test_each_worker_has_a_value_of_its_own(self, cluster, coordinator):
        values = coordinator.create_per_worker_values(experimental_get_current_worker_index)
        assert isinstance(values, PerWorkerValues)

        def compare(value):
            return value == experimental_get_current_worker_index()

        results = [coordinator.schedule(compare, args=(values,)) for _ in range(20)]
        assert all(coordinator.fetch(results))

    def test_a_value_may_be_captured(self, coordinator):
        values = coordinator.create_per_worker_values(lambda: 5)
        assert coordinator.schedule(lambda: values + 1).fetch() == 6

    def test_each_worker_reads_the_whole_dataset(self, coordinator):
        dataset = coordinator.create_per_worker_dataset(jt.data.Dataset.range(1, 4))
        iterator = iter(dataset)
        got = coordinator.fetch([coordinator.schedule(next, args=(iterator,)) for _ in range(3)])
        assert set(got) <= {1, 2, 3}
        assert got.count(1) >= 1

    def test_the_end_of_a_dataset_is_out_of_range(self, coordinator):
        dataset = coordinator.create_per_worker_dataset(lambda: jt.data.Dataset.range(2))
        iterator = iter(dataset)
        with pytest.raises(errors.OutOfRangeError):
            for _ in range(10):
                coordinator.schedule(jt.function(lambda it: next(it)), args=(iterator,))
            coordinator.join()
        fresh = iter(dataset)
        assert coordinator.schedule(next, args=(fresh,)).fetch() == 0

    def test_iterators_feed_compiled_functions(self, coordinator):
        with coordinator.strategy.scope():
            total = jt.Variable(0, dtype=jnp.int32)

        @jt.function
        def step(iterator):
            total.assign_add(jnp.sum(next(iterator)).astype(jnp.int32))

        dataset = jt.data.Dataset.range(4).batch(2).repeat()
        iterator = iter(coordinator.create_per_worker_dataset(dataset))
        for _ in range(10):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        assert total.numpy() >= 10

    def test_distributed_datasets_are_divided_on_the_workers(self, coordinator):
        strategy = coordinator.strategy
        whole = strategy.experimental_distribute_dataset(jt.data.Dataset.range(4).batch(4))
        made = strategy.distribute_datasets_from_function(
            lambda context: jt.data.Dataset.range(4).batch(2)
        )
        for source, size in ((whole, 4), (made, 2)):
            iterator = iter(coordinator.create_per_worker_dataset(source))
            value = coordinator.schedule(lambda it: next(it), args=(iterator,))
            assert value.fetch().tolist() == list(range(size))

    @pytest.mark.parametrize("way", WAYS_OF_GIVING)
    def test_workers_shuffle_differently(self, cluster, coordinator, way, tmp_path):
        for number in range(20):
            (tmp_path / f"{number}.txt").write_text(str(number))
        give = WAYS_OF_GIVING[way]
        iterators = {
            name: iter(coordinator.create_per_worker_dataset(give(coordinator.strategy, dataset)))
            for name, dataset in shuffled_datasets(tmp_path).items()
        }
        orders = read_by_each(cluster, coordinator, iterators)
        # A worker that returns has lost its iterators, and makes them again.
        cluster.kill("worker:0")
        cluster.start("worker:0")
        orders += read_by_each(cluster, coordinator, iterators, workers=[0])
        for name in iterators:
            first, second, again = (order[name] for order in orders)
            assert elements_of(first) == elements_of(second) == elements_of(again)
            if name.startswith("seeded"):
                assert first == second == again
            else:
                assert len({str(first), str(second), str(again)}) == 3, name
            if name.endswith("pairs"):
                assert all(x == -y for x, y in first + second + again)

    def test_seeds_that_were_given_are_kept(self, coordinator):
        source = jt.data.Dataset.range(100).shuffle(100, seed=7).batch(100)
        iterator = iter(coordinator.create_per_worker_dataset(source))
        got = coordinator.schedule(next, args=(iterator,)).fetch()
        assert got.tolist() == next(iter(source)).tolist()

    def test_the_worker_is_known_where_datasets_are_made(self):
        def make():
            return jt.data.Dataset.range(10).shard(5, experimental_get_current_worker_index())

        with LocalCluster(workers=5, ps=1) as cluster:
            coordinator = cluster.coordinator()
            iterator = iter(coordinator.create_per_worker_dataset(make))
            for index in range(5):
                cluster.freeze(f"worker:{index}")
            values = [
                coordinator.schedule(lambda it: int(next(it) + next(it)), args=(iterator,))
                for _ in range(5)
            ]
            for index in range(5):
                cluster.wait_until_frozen(f"worker:{index}")
            for index in range(5):
                cluster.thaw(f"worker:{index}")
            assert sorted(coordinator.fetch(values)) == [5, 7, 9, 11, 13]

    def test_a_resource_that_cannot_be_made_surfaces_where_it_is_used(self, coordinator):
        bad = coordinator.create_per_worker_values(fail)
        coordinator.schedule(lambda: 1)
        coordinator.join()
        value = coordinator.schedule(lambda x: x, args=(bad,))
        for call in (coordinator.join, value.fetch):
            with pytest.raises(errors.ClosureInputError, match="ValueError: bad"):
                call()

    def test_resources_survive_the_error_of_a_function(self, coordinator):
        iterator = iter(coordinator.create_per_worker_dataset(jt.data.Dataset.range(100)))
        coordinator.schedule(next, args=(iterator,))
        coordinator.schedule(fail)
        with pytest.raises(ValueError, match="bad"):
            coordinator.join()
        assert coordinator.schedule(next, args=(iterator,)).fetch() in (0, 1)

    def test_dataset_functions_create_no_variables(self, coordinator):
        def make():
            jt.Variable(1.0, name="v")
            return jt.data.Dataset.range(1)

        iterator = iter(coordinator.create_per_worker_dataset(make))
        with pytest.raises(errors.ClosureInputError, match="ValueError: The variable 'v'"):
            coordinator.schedule(next, args=(iterator,)).fetch()
        with pytest.raises(errors.ClosureInputError):
            coordinator.join()

    @pytest.mark.parametrize("source", [3, [1, 2], None], ids=str)
    def test_what_is_no_dataset_is_refused(self, coordinator, source):
        with pytest.raises(ValueError, match="create_per_worker_dataset takes"):
            coordinator.create_per_worker_dataset(source)

    def test_elements_are_not_on_the_coordinator(self, coordinator):
        dataset = coordinator.create_per_worker_dataset(jt.data.Dataset.range(3).batch(2))
        assert dataset.element_spec == jt.data.Dataset.range(3).batch(2).element_spec
        with pytest.raises(NotImplementedError, match="on the workers"):
            next(iter(dataset))
        with pytest.raises(RuntimeError, match="being traced"):
            jax.jit(lambda x: iter(dataset) and x)(1.0)

    def test_a_worker_is_asked_what_the_elements_of_its_dataset_are(self, coordinator):
        made_there = coordinator.create_per_worker_dataset(lambda: jt.data.Dataset.range(3))
        assert made_there.element_spec == jt.data.Dataset.range(3).element_spec

        def fails():
            raise OSError("no such file")

        with pytest.raises(errors.ClosureInputError, match="no such file"):
            _ = coordinator.create_per_worker_dataset(fails).element_spec
        with pytest.raises(errors.ClosureInputError):
            coordinator.join()

    def test_the_worker_is_not_known_elsewhere(self):
        with pytest.raises(RuntimeError, match="no worker runs"):
            experimental_get_current_worker_index()


class TestFailures:
    def test_a_closure_survives_the_loss_of_its_worker(self, cluster, coordinator):
        cluster.freeze("worker:0")  # accepts the closure, then stands still
        with cluster.paused("worker:1"):
            until(lambda: coordinator._dispatcher.workers["worker:1"].state.name == "DOWN")
            result = coordinator.schedule(lambda x: 2 * x, args=(21,))
            cluster.wait_until_frozen("worker:0")
            cluster.kill("worker:0")
        coordinator.join()
        assert result.fetch() == 42

    def test_an_update_that_was_sent_before_its_worker_was_lost_counts_once(
        self, cluster, coordinator
    ):
        with coordinator.strategy.scope():
            total = jt.Variable(0.0)
        cluster.freeze("worker:0", at="report")  # has sent the update, and not said so
        with cluster.paused("worker:1"):
            until(lambda: coordinator._dispatcher.workers["worker:1"].state.name == "DOWN")
            coordinator.schedule(lambda: total.assign_add(1.0))
            cluster.wait_until_frozen("worker:0")
            cluster.kill("worker:0")
        coordinator.join()
        assert total.numpy() == 1

    def test_a_restarted_worker_gets_its_datasets_again_from_the_beginning(
        self, cluster, coordinator
    ):
        iterator = iter(coordinator.create_per_worker_dataset(jt.data.Dataset.range(10)))
        cluster.kill("worker:1")
        until(lambda: coordinator._dispatcher.workers["worker:1"].state.name == "DOWN")
        assert [coordinator.schedule(next, args=(iterator,)).fetch() for _ in range(2)] == [0, 1]
        cluster.kill("worker:0")
        cluster.start("worker:0")
        assert coordinator.schedule(next, args=(iterator,)).fetch() == 0

    def test_results_outlive_the_workers(self, cluster, coordinator):
        value = coordinator.schedule(lambda: jnp.arange(3))
        coordinator.join()
        for task in ("worker:0", "worker:1"):
            cluster.kill(task)
        assert value.fetch().tolist() == value.get().tolist() == [0, 1, 2]

    def test_an_interrupted_connection_costs_nothing(self, cluster, coordinator):
        with coordinator.strategy.scope():
            total = jt.Variable(0.0)
        for i in range(60):
            coordinator.schedule(lambda: total.assign_add(1.0))
            if i % 20 == 10:
                with cluster.paused(f"worker:{i % 2}"):
                    pass
        coordinator.join()
        assert total.numpy() == 60

    def test_the_loss_of_a_server_is_an_error(self, cluster, coordinator):
        with coordinator.strategy.scope():
            total = jt.Variable(0.0)
        coordinator.schedule(lambda: total.assign_add(1.0))
        coordinator.join()
        cluster.kill("ps:0")
        cluster.start("ps:0")
        # A worker may meet the new server before the coordinator knows of it.
        lost = (errors.UnavailableError, errors.FailedPreconditionError)
        with pytest.raises(lost, match="ps:0"):
            for _ in range(1000):
                coordinator.schedule(lambda: total.assign_add(1.0))
                coordinator.join()

    def test_with_a_policy_training_goes_on_after_a_server_was_restarted(
        self, cluster, tmp_path, capsys
    ):
        strategy = cluster.strategy()
        with strategy.scope():
            total = jt.Variable(5.0)
        coordinator = cluster.coordinator(strategy, restore_policy=RestorePolicy(tmp_path))
        cluster.kill("ps:0")
        cluster.start("ps:0")
        until(lambda: "updates were lost" in "".join(capsys.readouterr().err))
        coordinator.schedule(lambda: total.assign_add(1.0))
        coordinator.join()
        assert total.numpy() == 6


@pytest.mark.parametrize("seconds", [0, -1.0])
@pytest.mark.parametrize("name", ["every_seconds", "wait_seconds"])
def test_a_policy_needs_positive_times(name, seconds, tmp_path):
    with pytest.raises(ValueError, match=f"{name} of a RestorePolicy must be positive"):
        RestorePolicy(tmp_path, **{name: seconds})
