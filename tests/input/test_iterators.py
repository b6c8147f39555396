"""Going through distributed datasets: the rules R133 to R135, and R138 to R143."""

import contextlib
import gc
import threading
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.data import Dataset
from tests.input._workers import distribute_to, mirrored, parts, steps

NEXT = {
    "next": next,
    "get_next": lambda iterator: iterator.get_next(),
    "get_next_as_optional": lambda iterator: iterator.get_next_as_optional(),
}

WAIT_SECONDS = 30.0


@pytest.fixture(params=["eager", "compiled"])
def way(request):
    """A function that makes another one run in the way under test."""
    return jt.function if request.param == "compiled" else lambda fn: fn


@pytest.fixture
def without_collector():
    """What is no longer used is to be freed at once."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def batches(count=8, size=4, replicas=2):
    return mirrored(replicas).experimental_distribute_dataset(Dataset.range(count).batch(size))


# --- Where it may be called ------------------------------------------------------------------


class TestInsideAReplica:
    """R133: the elements of all replicas are not for one of them."""

    @pytest.mark.parametrize("method", NEXT)
    @pytest.mark.parametrize("replicas", [1, 2])
    def test_R133_it_is_refused(self, way, method, replicas):
        iterator = iter(batches(replicas=replicas))

        @way
        def step():
            return mirrored(replicas).run(lambda: NEXT[method](iterator))

        with pytest.raises(ValueError, match=f"{method} .*inside a replica"):
            step()
        assert parts(next(iterator))[0][0] == 0  # nothing was taken
        iterator.close()

    def test_R133_a_new_pass_is_refused_as_well(self, way):
        dataset = batches()

        @way
        def step():
            mirrored(2).run(lambda: [x for x in dataset])

        with pytest.raises(ValueError, match="inside a replica"):
            step()

    def test_it_is_allowed_where_replicas_meet(self):
        iterator = iter(batches())
        taken = []

        def replica_fn():
            context = jt.get_replica_context()
            context.merge_call(lambda strategy: taken.append(next(iterator)))

        mirrored(2).run(replica_fn)
        assert [parts(x) for x in taken] == [[[0, 1], [2, 3]]]

    def test_it_is_allowed_inside_the_scope(self):
        with mirrored(2).scope():
            assert steps(batches()) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


# --- The end ---------------------------------------------------------------------------------


class TestTheEnd:
    """R134."""

    def test_R134_next_stops(self):
        iterator = iter(batches())
        assert [parts(x) for x in iterator] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(iterator)
        assert next(iterator, "nothing") == "nothing"

    def test_R134_get_next_is_out_of_range(self):
        iterator = iter(batches())
        assert parts(iterator.get_next()) == [[0, 1], [2, 3]]
        assert parts(iterator.get_next()) == [[4, 5], [6, 7]]
        for _ in range(3):
            with pytest.raises(jt.errors.OutOfRangeError, match="no more elements"):
                iterator.get_next()

    def test_R134_an_optional_has_no_value(self):
        iterator = iter(batches(4))
        found = iterator.get_next_as_optional()
        assert found.has_value()
        assert parts(found.get_value()) == [[0, 1], [2, 3]]
        assert parts(found.get_value()) == [[0, 1], [2, 3]]
        for _ in range(3):
            missing = iterator.get_next_as_optional()
            assert not missing.has_value()
            with pytest.raises(ValueError, match="has_value"):
                missing.get_value()

    def test_R134_inside_a_function_it_is_out_of_range(self):
        iterator = iter(batches(4))

        @jt.function
        def step():
            return mirrored(2).reduce("SUM", next(iterator), axis=0)

        assert int(step()) == 6
        for _ in range(3):
            with pytest.raises(jt.errors.OutOfRangeError):
                step()

    def test_R134_a_function_that_never_found_anything(self):
        iterator = iter(batches(0))

        @jt.function
        def step():
            return mirrored(2).reduce("SUM", next(iterator), axis=0)

        for _ in range(2):
            with pytest.raises(jt.errors.OutOfRangeError):
                step()

    def test_R134_each_iterator_starts_anew(self):
        dataset = batches()
        first, second = iter(dataset), iter(dataset)
        assert parts(next(first)) == [[0, 1], [2, 3]]
        assert parts(next(second)) == [[0, 1], [2, 3]]
        assert parts(next(first)) == [[4, 5], [6, 7]]
        assert steps(dataset) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        second.close()

    def test_R134_an_iterator_is_its_own_iterator(self):
        iterator = iter(batches())
        next(iterator)
        assert iter(iterator) is iterator
        assert steps(iterator) == [[[4, 5], [6, 7]]]

    def test_after_closing_there_is_nothing(self):
        iterator = iter(batches())
        next(iterator)
        iterator.close()
        iterator.close()
        with pytest.raises(StopIteration):
            next(iterator)

    @pytest.mark.parametrize("then", ["close", "fail_and_close"])
    @pytest.mark.parametrize("before_batching", [True, False])
    def test_closing_ends_the_threads_of_map(self, then, before_batching, without_collector):
        def checked(x):
            if then == "fail_and_close" and np.max(x) > 5:
                raise RuntimeError("too large")
            return x

        dataset = Dataset.range(40)
        if before_batching:
            dataset = dataset.map(checked, num_parallel_calls=2).batch(4)
        else:
            dataset = dataset.batch(4).map(checked, num_parallel_calls=2)
        before = set(threading.enumerate())
        iterator = iter(mirrored(2).experimental_distribute_dataset(dataset))
        next(iterator)
        if then == "fail_and_close":
            with pytest.raises(RuntimeError, match="too large"):
                list(iterator)
        iterator.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(5.0)
            assert not thread.is_alive(), thread.name

    def test_an_iterator_can_be_given_up_anywhere(self, without_collector):
        before = set(threading.enumerate())
        iterator = iter(batches(40))
        next(iterator)
        (thread,) = set(threading.enumerate()) - before
        del iterator
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()

    @pytest.mark.parametrize("method", ["next", "get_next", "for"])
    def test_the_end_keeps_nothing_of_the_program_alive(self, method, without_collector):
        class Model:
            pass

        def program():
            model = Model()
            iterator = iter(batches())
            if method == "for":
                for _ in iterator:
                    pass
            else:
                for _ in range(2):
                    next(iterator)
                with contextlib.suppress(StopIteration, jt.errors.OutOfRangeError):
                    NEXT[method](iterator)
            return weakref.ref(model)

        assert program()() is None


# --- The elements ----------------------------------------------------------------------------


class TestTypes:
    """R135: plain arrays if there is one replica in all, `PerReplica`s otherwise."""

    def test_R135_one_replica(self):
        (element,) = batches(4, replicas=1)
        assert isinstance(element, jnp.ndarray)

    def test_R135_two_replicas(self):
        (element,) = batches(4)
        assert isinstance(element, jt.PerReplica)

    def test_R135_one_replica_on_each_of_two_workers(self):
        (element,) = distribute_to(Dataset.range(4).batch(4), 2, 0, 1)
        assert isinstance(element, jt.PerReplica)
        assert parts(element) == [[0, 1]]

    def test_R135_each_component_of_a_structure(self):
        data = {"x": np.arange(4), "y": (np.arange(4), np.arange(4))}
        (element,) = mirrored(2).experimental_distribute_dataset(
            Dataset.from_tensor_slices(data).batch(4)
        )
        assert set(element) == {"x", "y"}
        assert isinstance(element["y"], tuple)
        for leaf in (element["x"], *element["y"]):
            assert isinstance(leaf, jt.PerReplica)

    def test_changing_an_element_leaves_the_source_alone(self):
        data = np.arange(4.0, dtype=np.float32)
        for x in mirrored(2).experimental_distribute_dataset(Dataset.from_tensors(data)):
            data[:] = 0
            assert parts(x) == [[0.0, 1.0], [2.0, 3.0]]


class TestReadingAhead:
    """R138: the elements of the next step are ready before they are asked for."""

    @pytest.mark.parametrize("buffer", [1, 3])
    def test_R138_as_many_as_the_buffer_holds(self, buffer):
        ready = threading.Semaphore(0)

        def source():
            for i in range(100):
                yield np.full(4, i, np.int32)
                ready.release()  # when the one after it is asked for

        dataset = mirrored(2).experimental_distribute_dataset(
            Dataset.from_generator(source),
            jt.InputOptions(experimental_per_replica_buffer_size=buffer),
        )
        iterator = iter(dataset)
        next(iterator)
        # One was taken; `buffer` wait; with the last one the source is asked for another.
        for _ in range(buffer + 1):
            assert ready.acquire(timeout=WAIT_SECONDS)
        iterator.close()

    @pytest.mark.parametrize("buffer", [1, 3])
    def test_R138_and_no_more(self, buffer):
        read = []

        def source():
            for i in range(30):
                read.append(i)
                yield np.full(4, i, np.int32)

        dataset = mirrored(2).experimental_distribute_dataset(
            Dataset.from_generator(source),
            jt.InputOptions(experimental_per_replica_buffer_size=buffer),
        )
        for taken, _ in enumerate(dataset, 1):
            # Those that wait, one in the hands of the thread, one being read.
            assert len(read) <= taken + buffer + 2

    def test_nothing_is_read_before_the_first_element_is_asked_for(self):
        read = []

        def source():
            read.append(0)
            yield np.zeros(4)

        dataset = mirrored(2).experimental_distribute_dataset(Dataset.from_generator(source))
        assert read == []
        iterator = iter(dataset)
        assert read == []
        next(iterator)
        assert read == [0]


# --- Whole datasets --------------------------------------------------------------------------


class TestReduce:
    """R139."""

    def test_R139(self):
        strategy = mirrored(2)
        dataset = batches(10, 4)
        total = dataset.reduce(0, lambda state, x: state + strategy.reduce("SUM", x, axis=0))
        assert int(total) == 45

    def test_R139_of_nothing_is_the_initial_state(self):
        assert batches(0).reduce("initial", lambda state, x: None) == "initial"

    def test_R139_inside_a_function(self):
        strategy = mirrored(2)
        dataset = batches(10, 4)

        @jt.function
        def total():
            return dataset.reduce(0, lambda state, x: state + strategy.reduce("SUM", x, axis=0))

        assert int(total()) == int(total()) == 45


class TestEnumerate:
    """R140 refuses it in traced code; here such a loop runs as Python, so it works."""

    def test_R140_of_a_dataset(self, way):
        strategy = mirrored(2)
        dataset = batches()

        @way
        def epoch():
            return [i * strategy.reduce("SUM", x, axis=0) for i, x in enumerate(dataset)]

        assert [int(x) for x in epoch()] == [0, 22]

    def test_R140_of_an_iterator(self, way):
        strategy = mirrored(2)
        iterator = iter(batches())

        @way
        def epoch(iterator):
            return [i * strategy.reduce("SUM", x, axis=0) for i, x in enumerate(iterator)]

        assert [int(x) for x in epoch(iterator)] == [0, 22]


# --- Steps -----------------------------------------------------------------------------------


class TestSteps:
    """R141 to R143."""

    def test_R141_results_of_steps(self, way):
        strategy = mirrored(2)
        dataset = strategy.experimental_distribute_dataset(
            Dataset.from_tensor_slices([5.0, 6.0, 7.0, 8.0]).batch(2)
        )
        iterator = iter(dataset)

        @way
        def train_step(x):
            return strategy.run(lambda x: x**2, args=(x,))

        found = [np.concatenate(train_step(x).values).tolist() for x in iterator]
        assert found == [[25.0, 36.0], [49.0, 64.0]]

    def test_R141_replicas_with_different_numbers_of_examples(self, way):
        strategy = mirrored(2)
        dataset = strategy.experimental_distribute_dataset(
            Dataset.from_tensor_slices([5.0, 6.0, 7.0]).batch(4)
        )

        @way
        def run(x):
            means = strategy.run(jnp.mean, args=(x,))
            sizes = strategy.run(lambda x: x.size, args=(x,))
            return means, sizes, strategy.reduce("MEAN", x, axis=0)

        means, sizes, mean = run(next(iter(dataset)))
        assert parts(means) == [5.5, 7.0]
        assert parts(sizes) == [2, 1]
        assert float(mean) == 6.0

    def test_R142_the_function_runs_on_a_replica_without_examples(self, way):
        strategy = mirrored(2)
        dataset = strategy.experimental_distribute_dataset(
            Dataset.from_tensor_slices([5.0]).batch(2)
        )

        @way
        def run(x):
            return strategy.run(lambda x: (jnp.zeros(3), x**2), args=(x,))

        zeros, squares = run(next(iter(dataset)))
        for part in strategy.experimental_local_results(zeros):
            assert part.tolist() == [0.0, 0.0, 0.0]
        assert parts(squares) == [[25.0], []]

    @pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
    def test_R143_what_was_summed_up_stays_after_the_end(self, captured):
        strategy = mirrored(2)
        dataset = strategy.experimental_distribute_dataset(
            Dataset.from_tensor_slices([5.0, 6.0, 7.0, 8.0]).batch(2)
        )
        with strategy.scope():
            total = jt.Variable(0.0, aggregation=jt.VariableAggregation.SUM)
        its = iter(dataset)

        @jt.function
        def train_step(iterator):
            x = next(its if captured else iterator)
            strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(x,))

        with pytest.raises(jt.errors.OutOfRangeError):
            while True:
                train_step(its)
        assert float(total.numpy()) == 26.0

    def test_R143_several_elements_in_one_call_too_many(self):
        strategy = mirrored(2)
        dataset = strategy.experimental_distribute_dataset(
            Dataset.from_tensor_slices([5.0, 6.0, 7.0, 8.0, 9.0, 10.0]).batch(2)
        )
        with strategy.scope():
            total = jt.Variable(0.0, aggregation=jt.VariableAggregation.SUM)

        @jt.function
        def two_steps(iterator):
            for _ in range(2):
                strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(next(iterator),))

        iterator = iter(dataset)
        with pytest.raises(jt.errors.OutOfRangeError):
            while True:
                two_steps(iterator)
        assert float(total.numpy()) == 45.0


# --- Inside functions ------------------------------------------------------------------------


class TestInsideFunctions:
    """Issue 3: `next` in the body, iterators and datasets as arguments, loops in the body."""

    def test_next_of_a_captured_iterator(self):
        strategy = mirrored(2)
        iterator = iter(batches(12))
        traces = []

        @jt.function
        def step():
            traces.append(1)
            return strategy.reduce("SUM", strategy.run(jnp.sum, args=(next(iterator),)), axis=None)

        first = int(step())
        traced = len(traces)
        assert [first, int(step()), int(step())] == [6, 22, 38]
        assert len(traces) == traced
        assert step.experimental_get_tracing_count() == 1

    @pytest.mark.parametrize("method", ["next", "get_next"])
    def test_an_iterator_as_an_argument(self, method):
        strategy = mirrored(2)
        dataset = batches(12)

        @jt.function
        def step(iterator, scale):
            x = NEXT[method](iterator)
            return strategy.reduce(
                "SUM", strategy.run(lambda x: jnp.sum(x) * scale, args=(x,)), None
            )

        for scale in (1.0, 2.0):  # another iterator, the same program
            iterator = iter(dataset)
            found = [float(step(iterator, jnp.float32(scale))) for _ in range(3)]
            assert found == [6 * scale, 22 * scale, 38 * scale]
        assert step.experimental_get_tracing_count() == 1

    @pytest.mark.parametrize("replicas", [1, 2])
    @pytest.mark.parametrize("count", [9, 10, 12])
    def test_every_epoch_is_as_long_whatever_its_last_batch(self, count, replicas):
        strategy = mirrored(replicas)
        dataset = batches(count, replicas=replicas)

        @jt.function
        def step(iterator):
            return strategy.reduce("SUM", next(iterator), axis=0)

        def epoch():
            iterator = iter(dataset)
            totals = []
            with pytest.raises(jt.errors.OutOfRangeError):
                while True:
                    totals.append(int(step(iterator)))
            return totals

        expected = {9: [6, 22, 8], 10: [6, 22, 17], 12: [6, 22, 38]}[count]
        assert [epoch() for _ in range(3)] == [expected] * 3

    def test_optionals_decide_how_long_it_goes_on(self):
        strategy = mirrored(2)
        iterator = iter(batches(10))

        @jt.function
        def step(iterator):
            found = iterator.get_next_as_optional()
            if not found.has_value():
                return jnp.float32(-1.0)
            return strategy.reduce("SUM", found.get_value(), axis=0).astype(jnp.float32)

        assert [float(step(iterator)) for _ in range(5)] == [6.0, 22.0, 17.0, -1.0, -1.0]

    def test_a_dataset_as_an_argument(self):
        strategy = mirrored(2)

        @jt.function
        def epoch(dataset):
            total = 0
            for x in dataset:
                total += strategy.reduce("SUM", strategy.run(jnp.sum, args=(x,)), axis=None)
            return total

        dataset = batches(10)
        assert [int(epoch(dataset)), int(epoch(dataset)), int(epoch(batches(4)))] == [45, 45, 6]

    @pytest.mark.parametrize("replicas", [1, 2, 3])
    def test_a_loop_with_a_short_last_batch(self, replicas):
        strategy = mirrored(replicas)
        dataset = batches(9, replicas=replicas)

        @jt.function
        def epoch():
            total = 0
            for x in dataset:
                sums = strategy.run(lambda x: jnp.sum(x * 2), args=(x,))
                total += strategy.reduce("SUM", sums, axis=None)
            return total

        assert [int(epoch()) for _ in range(2)] == [72, 72]

    def test_each_run_of_a_loop_is_traced_once(self):
        strategy = mirrored(2)
        dataset = batches(80)
        traces = []

        def replica_fn(x):
            traces.append(1)
            return jnp.sum(x)

        @jt.function
        def epoch():
            total = 0
            for x in dataset:
                total += strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=None)
            return total

        assert int(epoch()) == sum(range(80))
        traced = len(traces)
        assert traced < 20
        assert int(epoch()) == sum(range(80))
        assert len(traces) == traced

    def test_several_elements_in_one_call(self):
        strategy = mirrored(2)
        iterator = iter(batches(16))

        @jt.function
        def two_steps():
            return [strategy.reduce("SUM", next(iterator), axis=0) for _ in range(2)]

        assert [int(x) for x in two_steps() + two_steps()] == [6, 22, 38, 54]

    def test_two_iterators_go_on_side_by_side(self):
        strategy = mirrored(2)
        first, second = iter(batches(8)), iter(batches(8, 2))

        @jt.function
        def step(one, other):
            return [strategy.reduce("SUM", next(i), axis=0) for i in (one, other)]

        assert [int(x) for x in step(first, second)] == [6, 1]
        assert [int(x) for x in step(first, second)] == [22, 5]
        with pytest.raises(jt.errors.OutOfRangeError):
            step(first, second)
        assert parts(next(second)) == [[4], [5]]  # not lost with the end of the first
        second.close()

    def test_steps_inside_and_outside_take_turns(self):
        strategy = mirrored(2)
        iterator = iter(batches(16))

        @jt.function
        def step():
            return strategy.reduce("SUM", next(iterator), axis=0)

        found = [int(step())]
        found.append(int(strategy.reduce("SUM", next(iterator), axis=0)))
        found.append(int(step()))
        assert found == [6, 22, 38]
        assert parts(next(iterator)) == [[12, 13], [14, 15]]

    def test_the_last_short_batch_runs_as_well(self):
        strategy = mirrored(2)
        iterator = iter(batches(9))

        @jt.function
        def step():
            x = next(iterator)
            return strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(x), args=(x,)), axis=None)

        assert [int(step()) for _ in range(3)] == [6, 22, 8]
        with pytest.raises(jt.errors.OutOfRangeError):
            step()

    def test_nothing_is_lost_when_the_body_raises(self):
        strategy = mirrored(2)
        iterator = iter(batches(8))
        fail = [True]

        @jt.function
        def step():
            x = next(iterator)
            if fail:
                raise RuntimeError("not now")
            return strategy.reduce("SUM", x, axis=0)

        with pytest.raises(RuntimeError, match="not now"):
            step()
        fail.clear()
        assert int(step()) == 6
        iterator.close()

    def test_a_dataset_without_end_in_a_loop_that_is_left(self):
        strategy = mirrored(2)
        dataset = strategy.experimental_distribute_dataset(Dataset.range(4).repeat().batch(4))

        @jt.function
        def some():
            total = 0
            for count, x in enumerate(dataset, 1):
                total += strategy.reduce("SUM", x, axis=0)
                if count == 3:
                    break
            return total

        assert int(some()) == 18
