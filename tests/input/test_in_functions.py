"""Iterators and datasets inside `jt.function`."""

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.errors import OutOfRangeError
from tests.input._threads import input_threads
from tests.input._workers import mirrored
from tests.input._workers import parts as parts_of

Dataset = jt.data.Dataset


@pytest.fixture
def strategy():
    return mirrored(2)


@pytest.fixture(autouse=True)
def _collected():
    """Let go of captured iterators: a compiled function is part of a cycle."""
    yield
    if input_threads():
        gc.collect()


def numbers(strategy: Any, size: int, batch: int = 2, **kwargs: Any) -> jt.DistributedDataset:
    """Return the numbers from 0, distributed."""
    return strategy.experimental_distribute_dataset(Dataset.range(size).batch(batch, **kwargs))


def sums(strategy: Any, iterator: Any) -> Any:
    """Return the sum of the next element."""
    return strategy.reduce("SUM", next(iterator), axis=0)


def counter(strategy: Any, value: Any = 0) -> Any:
    """Return a variable that adds up what the replicas assign to it."""
    with strategy.scope():
        return jt.Variable(jnp.int32(value), aggregation=jt.VariableAggregation.SUM)


def value_of(variable: Any) -> int:
    return int(np.asarray(variable.value()))


# --- One element -----------------------------------------------------------------------------

TAKE = {
    "next": next,
    "__next__": lambda iterator: iterator.__next__(),
    "get_next": lambda iterator: iterator.get_next(),
    "get_next_as_optional": lambda iterator: iterator.get_next_as_optional().get_value(),
}


@pytest.mark.parametrize("take", list(TAKE.values()), ids=list(TAKE))
class TestTaking:
    def test_from_a_captured_iterator(self, strategy, take):
        iterator = iter(numbers(strategy, 8))
        step = jt.function(lambda: take(iterator))
        assert [parts_of(step()) for _ in range(3)] == [[[0], [1]], [[2], [3]], [[4], [5]]]
        assert step.experimental_get_tracing_count() == 1
        assert parts_of(next(iterator)) == [[6], [7]]

    def test_from_an_argument(self, strategy, take):
        iterator = iter(numbers(strategy, 8))
        step = jt.function(lambda it, scale: (take(it), scale * 2))
        for first in (0, 2, 4):
            element, scaled = step(iterator, jnp.int32(first))
            assert (parts_of(element), int(scaled)) == ([[first], [first + 1]], 2 * first)
        assert step.experimental_get_tracing_count() == 1
        assert parts_of(next(iterator)) == [[6], [7]]

    def test_from_a_keyword_argument_in_a_structure(self, strategy, take):
        step = jt.function(lambda *, inputs: take(inputs["train"][0]))
        iterator = iter(numbers(strategy, 8))
        found = [parts_of(step(inputs={"train": (iterator, 1.0)})) for _ in range(2)]
        assert found == [[[0], [1]], [[2], [3]]]

    def test_on_one_device(self, take):
        strategy = jt.OneDeviceStrategy("CPU:1")
        iterator = iter(numbers(strategy, 8))
        step = jt.function(lambda it: strategy.run(lambda x: x * 10, args=(take(it),)))
        assert [step(iterator).tolist() for _ in range(2)] == [[0, 10], [20, 30]]
        assert step.experimental_get_tracing_count() == 1

    def test_under_the_default_strategy(self, take):
        iterator = iter(numbers(jt.get_strategy(), 8))
        step = jt.function(lambda it: take(it) * 10)
        assert [step(iterator).tolist() for _ in range(2)] == [[0, 10], [20, 30]]
        assert step.experimental_get_tracing_count() == 1

    def test_from_a_dataset_that_is_not_distributed(self, take):
        iterator = iter(Dataset.range(8).batch(2))
        step = jt.function(lambda it: take(it) * 10)
        assert [np.asarray(step(iterator)).tolist() for _ in range(2)] == [[0, 10], [20, 30]]
        assert np.asarray(next(iterator)).tolist() == [4, 5]
        assert step.experimental_get_tracing_count() == 1


def test_elements_of_a_structure(strategy):
    table = {"x": np.arange(12.0, dtype=np.float32).reshape(6, 2), "y": (np.arange(6),)}
    dataset = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(table).batch(4))

    @jt.function
    def step(iterator):
        element = next(iterator)
        sizes = strategy.run(lambda x, y: x.sum(axis=1) + y, args=(element["x"], element["y"][0]))
        return element, sizes

    iterator = iter(dataset)
    element, sizes = step(iterator)
    assert parts_of(element["x"])[1] == [[4, 5], [6, 7]]
    assert parts_of(element["y"][0]) == [[0, 1], [2, 3]]
    assert parts_of(sizes) == [[1, 6], [11, 16]]
    assert parts_of(step(iterator)[1]) == [[21], [26]]


def test_a_training_loop(strategy):
    """The reference's: one compiled step, a new iterator each epoch."""
    dataset = numbers(strategy, 12, 4)
    total = counter(strategy)

    @jt.function
    def train_step(iterator):
        def step(x):
            total.assign_add(jnp.sum(x))
            return x * 2

        return strategy.run(step, args=(next(iterator),))

    for epoch in range(3):
        iterator = iter(dataset)
        for _ in range(3):
            train_step(iterator)
        assert value_of(total) == 66 * (epoch + 1)
    assert train_step.experimental_get_tracing_count() == 1


def test_elements_can_stay_on_the_host(strategy):
    options = jt.InputOptions(experimental_fetch_to_device=False)
    dataset = strategy.experimental_distribute_dataset(Dataset.range(8).batch(4), options)
    iterator = iter(dataset)
    step = jt.function(lambda it: strategy.run(lambda x: x + 1, args=(next(it),)))
    assert [parts_of(step(iterator)) for _ in range(2)] == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert step.experimental_get_tracing_count() == 1


def test_the_element_spec_as_input_signature(strategy):
    dataset = numbers(strategy, 8, 4)
    step = jt.function(
        lambda x: strategy.reduce("SUM", x, axis=0), input_signature=[dataset.element_spec]
    )
    assert [int(step(x)) for x in dataset] == [6, 22]


# --- Several elements ------------------------------------------------------------------------


def test_several_elements_in_a_body(strategy):
    iterator = iter(numbers(strategy, 12))

    @jt.function
    def step():
        first, second = next(iterator), iterator.get_next()
        third = iterator.get_next_as_optional()
        assert third.has_value()
        return first, second, third.get_value()

    assert [parts_of(x) for x in step()] == [[[0], [1]], [[2], [3]], [[4], [5]]]
    assert [parts_of(x) for x in step()] == [[[6], [7]], [[8], [9]], [[10], [11]]]
    assert step.experimental_get_tracing_count() == 1


def test_a_loop_in_the_body(strategy):
    total = counter(strategy)

    @jt.function
    def steps(iterator):
        for _ in range(4):
            strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(next(iterator),))

    iterator = iter(numbers(strategy, 16))
    steps(iterator)
    assert value_of(total) == sum(range(8))
    steps(iterator)
    assert value_of(total) == sum(range(16))
    assert steps.experimental_get_tracing_count() == 1


def test_a_long_loop_in_the_body(strategy):
    """Too long to be one program."""
    traces = []

    @jt.function
    def steps(iterator):
        traces.append(1)
        total = 0
        for _ in range(150):
            total = total + sums(strategy, iterator)
        return total

    iterator = iter(numbers(strategy, 620))
    assert int(steps(iterator)) == sum(range(300))
    assert int(steps(iterator)) == sum(range(300, 600))
    assert parts_of(next(iterator)) == [[600], [601]]
    assert len(traces) <= 3  # once to find out, and then once a call


def test_as_many_elements_as_an_argument_says(strategy):
    @jt.function
    def steps(iterator, count):
        return sum(sums(strategy, iterator) for _ in range(count))

    iterator = iter(numbers(strategy, 40))
    assert int(steps(iterator, 2)) == sum(range(4))
    assert int(steps(iterator, 3)) == sum(range(4, 10))
    assert int(steps(iterator, 2)) == sum(range(10, 14))
    assert steps.experimental_get_tracing_count() == 2


def test_no_element_at_times(strategy):
    """What the body takes may depend on its arguments."""

    @jt.function
    def step(iterator, takes):
        return sums(strategy, iterator) if takes else jnp.int32(-1)

    iterator = iter(numbers(strategy, 8))
    found = [int(step(iterator, takes)) for takes in (True, False, True, False, False, True)]
    assert found == [1, -1, 5, -1, -1, 9]
    assert step.experimental_get_tracing_count() == 2


def test_two_iterators(strategy):
    one, two = iter(numbers(strategy, 8)), iter(numbers(strategy, 16, 4))

    @jt.function
    def step(two):
        return sums(strategy, one), sums(strategy, two), sums(strategy, one)

    assert [int(x) for x in step(two)] == [1, 6, 5]
    assert [int(x) for x in step(two)] == [9, 22, 13]
    assert step.experimental_get_tracing_count() == 1


def test_iterators_change_places(strategy):
    one, two = iter(numbers(strategy, 8)), iter(numbers(strategy, 20))
    next(two)
    step = jt.function(lambda a, b: (sums(strategy, a), sums(strategy, b)))
    assert [int(x) for x in step(one, two)] == [1, 5]
    assert [int(x) for x in step(two, one)] == [9, 5]
    assert [int(x) for x in step(two, two)] == [13, 17]
    assert step.experimental_get_tracing_count() == 1


def test_one_iterator_captured_and_as_an_argument(strategy):
    iterator = iter(numbers(strategy, 8))
    step = jt.function(lambda it: (sums(strategy, it), sums(strategy, iterator)))
    assert [int(x) for x in step(iterator)] == [1, 5]
    assert [int(x) for x in step(iterator)] == [9, 13]


def test_elements_before_between_and_after(strategy):
    iterator = iter(numbers(strategy, 12))
    step = jt.function(lambda: sums(strategy, iterator))
    assert parts_of(next(iterator)) == [[0], [1]]
    assert int(step()) == 5
    assert parts_of(next(iterator)) == [[4], [5]]
    assert int(step()) == 13
    assert parts_of(iterator.get_next()) == [[8], [9]]


# --- When it is traced -----------------------------------------------------------------------


def test_a_new_iterator_each_epoch_is_not_traced_again(strategy):
    traces = []

    @jt.function
    def step(iterator):
        traces.append(1)
        return sums(strategy, iterator)

    dataset = numbers(strategy, 8, 4)
    first = [int(step(iterator)) for iterator in [iter(dataset)] for _ in range(2)]
    after_first = len(traces)
    for _ in range(3):
        iterator = iter(dataset)
        assert [int(step(iterator)) for _ in range(2)] == first == [6, 22]
    assert len(traces) == after_first
    assert step.experimental_get_tracing_count() == 1


def test_an_iterator_of_another_dataset_is_not_traced_again(strategy):
    step = jt.function(lambda it: sums(strategy, it))
    for size in (8, 16, 24):
        assert int(step(iter(numbers(strategy, size, 4)))) == 6
    assert step.experimental_get_tracing_count() == 1


def test_elements_of_another_shape_are_traced_again(strategy):
    step = jt.function(lambda it: sums(strategy, it))
    assert int(step(iter(numbers(strategy, 8, 4)))) == 6
    assert int(step(iter(numbers(strategy, 8, 8)))) == 28
    assert int(step(iter(numbers(strategy, 8, 4)))) == 6
    assert step.experimental_get_tracing_count() == 2


def test_a_short_but_even_last_batch_is_traced_again(strategy):
    step = jt.function(lambda it: sums(strategy, it))
    for _ in range(2):
        iterator = iter(numbers(strategy, 10, 4))
        assert [int(step(iterator)) for _ in range(3)] == [6, 22, 17]
    assert step.experimental_get_tracing_count() == 2


def test_a_method(strategy):
    class Trainer:
        def __init__(self) -> None:
            self.total = counter(strategy)

        @jt.function
        def step(self, iterator):
            strategy.run(lambda x: self.total.assign_add(jnp.sum(x)), args=(next(iterator),))
            return self.total.value()

    dataset = numbers(strategy, 8, 4)
    one, two = Trainer(), Trainer()
    for trainer in (one, two):
        for _ in range(2):
            iterator = iter(dataset)
            trainer.step(iterator)
            trainer.step(iterator)
        assert value_of(trainer.total) == 56
        assert trainer.step.experimental_get_tracing_count() == 1


def test_an_iterator_kept_by_an_instance(strategy):
    class Trainer:
        def __init__(self, dataset: Any) -> None:
            self.iterator = iter(dataset)

        @jt.function
        def step(self):
            return sums(strategy, self.iterator)

    trainers = [Trainer(numbers(strategy, 8, 4)), Trainer(numbers(strategy, 80, 4))]
    assert [int(t.step()) for t in trainers for _ in range(2)] == [6, 22, 6, 22]


# --- The end ---------------------------------------------------------------------------------


class TestTheEnd:
    def test_of_next_is_stop_iteration_outside_and_out_of_range_inside(self, strategy):
        iterator = iter(numbers(strategy, 2))
        step = jt.function(lambda: next(iterator))
        step()
        with pytest.raises(OutOfRangeError, match="no more elements"):
            step()
        with pytest.raises(StopIteration):
            next(iterator)
        with pytest.raises(OutOfRangeError):
            iterator.get_next()
        with pytest.raises(OutOfRangeError):
            step()

    @pytest.mark.parametrize("size", [0, 2])
    def test_in_the_first_call(self, strategy, size):
        iterator = iter(numbers(strategy, size))
        for _ in iterator:
            pass
        for take in (next, lambda it: it.get_next()):
            step = jt.function(lambda it, take=take: take(it))
            with pytest.raises(OutOfRangeError):
                step(iterator)
            assert step.experimental_get_tracing_count() == 0

    def test_ends_a_loop_over_the_steps(self, strategy):
        """R143."""
        total = counter(strategy)
        array = np.array([5, 6, 7, 8])
        iterator = iter(
            strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(array).batch(2))
        )

        @jt.function
        def step():
            strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(next(iterator),))

        with pytest.raises(OutOfRangeError):
            while True:
                step()
        assert value_of(total) == 26

    def test_of_an_optional_has_no_value(self, strategy):
        @jt.function
        def step(iterator):
            element = iterator.get_next_as_optional()
            if not element.has_value():
                return jnp.int32(-1)
            return strategy.reduce("SUM", element.get_value(), axis=0)

        iterator = iter(numbers(strategy, 4))
        assert [int(step(iterator)) for _ in range(4)] == [1, 5, -1, -1]
        assert step.experimental_get_tracing_count() == 2
        assert not iterator.get_next_as_optional().has_value()
        iterator = iter(numbers(strategy, 2))
        assert [int(step(iterator)) for _ in range(2)] == [1, -1]
        assert step.experimental_get_tracing_count() == 2

    def test_of_an_optional_ends_a_loop_in_the_body(self, strategy):
        @jt.function
        def epoch(iterator):
            total = jnp.int32(0)
            while (element := iterator.get_next_as_optional()).has_value():
                total += strategy.reduce("SUM", element.get_value(), axis=0)
            return total

        for _ in range(2):
            iterator = iter(numbers(strategy, 8))
            assert int(epoch(iterator)) == 28
            assert int(epoch(iterator)) == 0
        assert int(epoch(iter(numbers(strategy, 9)))) == 36
        assert int(epoch(iter(numbers(strategy, 8)))) == 28

    @pytest.mark.parametrize("left", [1, 2])
    @pytest.mark.parametrize("traced_before", [True, False])
    def test_when_too_little_is_left_the_steps_that_can_be_done_are_done(
        self, strategy, left, traced_before
    ):
        total = counter(strategy)

        @jt.function
        def three_steps(iterator):
            for _ in range(3):
                strategy.run(lambda x: total.assign_add(jnp.sum(x) + 1), args=(next(iterator),))

        size = 2 * left
        iterator = iter(numbers(strategy, size + 6 if traced_before else size))
        if traced_before:
            three_steps(iterator)
            assert value_of(total) == sum(range(6)) + 6
            size += 6
        with pytest.raises(OutOfRangeError):
            three_steps(iterator)
        assert value_of(total) == sum(range(size)) + size
        with pytest.raises(OutOfRangeError):
            three_steps(iterator)
        assert value_of(total) == sum(range(size)) + size
        total.assign(0)
        three_steps(iter(numbers(strategy, 6)))
        assert value_of(total) == sum(range(6)) + 6

    def test_of_one_of_two_iterators_loses_nothing_of_the_other(self, strategy):
        long, short = iter(numbers(strategy, 20)), iter(numbers(strategy, 4))
        step = jt.function(lambda a, b: (sums(strategy, a), sums(strategy, b)))
        step(short, long)
        step(short, long)
        with pytest.raises(OutOfRangeError):
            step(short, long)
        assert parts_of(next(long)) == [[4], [5]]

    def test_can_be_handled_in_the_body(self, strategy):
        total = counter(strategy)

        @jt.function
        def epoch(iterator):
            steps = 0
            while True:
                try:
                    element = iterator.get_next()
                except OutOfRangeError:
                    return jnp.int32(steps)
                strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(element,))
                steps += 1

        for size in (8, 4, 8):
            total.assign(0)
            assert int(epoch(iter(numbers(strategy, size)))) == size // 2
            assert value_of(total) == sum(range(size))


# --- Parts of different sizes ----------------------------------------------------------------


class TestRagged:
    def test_last_batch(self, strategy):
        total = counter(strategy)

        @jt.function
        def step(iterator):
            def one(x):
                total.assign_add(jnp.sum(x))
                return x * 2

            return strategy.run(one, args=(next(iterator),))

        for _ in range(2):
            iterator = iter(numbers(strategy, 9, 4))
            found = [parts_of(step(iterator)) for _ in range(3)]
            assert found == [[[0, 2], [4, 6]], [[8, 10], [12, 14]], [[16], []]]
            with pytest.raises(OutOfRangeError):
                step(iterator)
        assert value_of(total) == 72
        assert step.experimental_get_tracing_count() == 1

    def test_first_batch(self, strategy):
        step = jt.function(lambda it: strategy.run(lambda x: x * 2, args=(next(it),)))
        iterator = iter(numbers(strategy, 3, 4))
        assert parts_of(step(iterator)) == [[0, 2], [4]]
        iterator = iter(numbers(strategy, 4, 4))
        assert parts_of(step(iterator)) == [[0, 2], [4, 6]]

    def test_one_of_several_elements(self, strategy):
        @jt.function
        def steps(iterator):
            return [strategy.reduce("SUM", next(iterator), axis=0) for _ in range(2)]

        iterator = iter(numbers(strategy, 13, 4))
        assert [[int(x) for x in steps(iterator)] for _ in range(2)] == [[6, 22], [38, 12]]

    def test_every_batch(self, strategy):
        step = jt.function(lambda it: strategy.reduce("MEAN", next(it), axis=0))
        iterator = iter(numbers(strategy, 9, 3))
        assert [float(step(iterator)) for _ in range(3)] == [1, 4, 7]


# --- Whole datasets --------------------------------------------------------------------------


class TestWholeDatasets:
    def test_as_an_argument(self, strategy):
        total = counter(strategy)
        run_traces = []

        def step(x):
            run_traces.append(x.shape)
            total.assign_add(jnp.sum(x))

        @jt.function
        def epoch(dataset):
            steps = 0
            for x in dataset:
                strategy.run(step, args=(x,))
                steps += 1
            return jnp.int32(steps)

        dataset = numbers(strategy, 12, 4)
        assert int(epoch(dataset)) == 3
        assert value_of(total) == 66
        traced = len(run_traces)
        for number in range(2, 4):
            assert int(epoch(dataset)) == 3
            assert value_of(total) == number * 66
        assert int(epoch(numbers(strategy, 20, 4))) == 5
        assert len(run_traces) == traced
        assert set(run_traces) == {(2,)}

    def test_captured(self, strategy):
        dataset = numbers(strategy, 12, 4)

        @jt.function
        def epoch():
            return sum(strategy.reduce("SUM", x, axis=0) for x in dataset)

        assert [int(epoch()) for _ in range(3)] == [66] * 3

    def test_each_epoch_is_shuffled_anew(self, strategy):
        shuffled = Dataset.range(12).shuffle(12, seed=1).batch(4)

        def epochs(order: Any) -> list[Any]:
            dataset = strategy.experimental_distribute_dataset(shuffled)
            return [order(dataset) for _ in range(3)]

        def order(dataset: Any) -> list[Any]:
            return [strategy.gather(x, axis=0) for x in dataset]

        compiled, plain = epochs(jt.function(order)), epochs(order)
        assert [np.concatenate(e).tolist() for e in compiled] == [
            np.concatenate(e).tolist() for e in plain
        ]
        assert np.concatenate(plain[0]).tolist() != np.concatenate(plain[1]).tolist()

    def test_with_a_ragged_last_batch(self, strategy):
        total = counter(strategy)

        @jt.function
        def epoch(dataset):
            for x in dataset:
                strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(x,))

        dataset = numbers(strategy, 9, 4)
        for number in range(1, 3):
            epoch(dataset)
            assert value_of(total) == number * 36

    def test_with_nothing_in_them(self, strategy):
        @jt.function
        def epoch(dataset):
            steps = 0
            for _ in dataset:
                steps += 1
            return steps

        assert int(epoch(numbers(strategy, 0))) == 0
        assert int(epoch(numbers(strategy, 4))) == 2

    def test_a_function_defined_in_the_body_is_compiled_once(self, strategy):
        total = counter(strategy)
        traces = []

        @jt.function
        def epoch(dataset):
            for x in dataset:

                def step(x, scale=2):
                    traces.append(1)
                    total.assign_add(scale * jnp.sum(x))

                strategy.run(step, args=(x,))

        dataset = numbers(strategy, 40, 4)
        epoch(dataset)
        traced = len(traces)
        assert traced < 10  # not once a step
        epoch(dataset)
        assert len(traces) == traced
        assert value_of(total) == 4 * sum(range(40))

    def test_a_function_that_captures_another_value_each_time_gives_its_result(self, strategy):
        total = counter(strategy)

        @jt.function
        def epoch(dataset):
            for number, x in enumerate(dataset):
                strategy.run(lambda x: total.assign_add(number * jnp.sum(x)), args=(x,))  # noqa: B023

        epoch(numbers(strategy, 12, 4))
        assert value_of(total) == 0 * 6 + 1 * 22 + 2 * 38

    def test_a_function_that_captures_an_array_gives_its_result(self, strategy):
        @jt.function
        def epoch(dataset):
            state = jnp.int32(0)
            for x in dataset:
                state = strategy.reduce(
                    "SUM",
                    strategy.run(lambda x: jnp.sum(x) + state, args=(x,)),  # noqa: B023
                    axis=None,
                )
            return state

        expected = 0
        for first in (0, 4, 8):
            expected = 2 * expected + sum(range(first, first + 4))
        dataset = numbers(strategy, 12, 4)
        assert [int(epoch(dataset)) for _ in range(2)] == [expected] * 2

    def test_more_captured_values_than_are_kept(self, strategy):
        @jt.function
        def epoch(dataset):
            found = []
            for number, x in enumerate(dataset):
                value = strategy.run(lambda x: jnp.sum(x) * 0 + 1000 + number, args=(x,))  # noqa: B023
                found.append(strategy.reduce("MEAN", value, axis=None))
            return found

        assert [int(x) for x in epoch(numbers(strategy, 140))] == list(range(1000, 1070))

    def test_an_exception_leaves_the_loop(self, strategy):
        total = counter(strategy)

        @jt.function
        def epoch(dataset):
            for number, x in enumerate(dataset):
                if number == 2:
                    raise ValueError("enough")
                strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(x,))

        dataset = numbers(strategy, 16, 4)
        for number in range(1, 3):
            with pytest.raises(ValueError, match="enough"):
                epoch(dataset)
            assert value_of(total) == number * 28

    def test_break_and_continue(self, strategy):
        @jt.function
        def epoch(dataset):
            total = jnp.int32(0)
            for number, x in enumerate(dataset):
                if number == 1:
                    continue
                if number == 3:
                    break
                total += strategy.reduce("SUM", x, axis=0)
            return total

        dataset = numbers(strategy, 400, 4)
        assert [int(epoch(dataset)) for _ in range(2)] == [6 + 38] * 2

    def test_two_at_once(self, strategy):
        @jt.function
        def epoch(one, two):
            pairs = zip(one, two, strict=True)
            return [strategy.reduce("SUM", x, 0) * strategy.reduce("SUM", y, 0) for x, y in pairs]

        found = epoch(numbers(strategy, 8, 4), numbers(strategy, 4, 2))
        assert [int(x) for x in found] == [6 * 1, 22 * 5]

    def test_iter_of_a_dataset(self, strategy):
        @jt.function
        def first(dataset):
            iterator = iter(dataset)
            return sums(strategy, iterator), sums(strategy, iterator)

        dataset = numbers(strategy, 8, 4)
        assert [int(x) for _ in range(2) for x in first(dataset)] == [6, 22, 6, 22]

    def test_an_iterator_as_an_argument(self, strategy):
        @jt.function
        def remaining(iterator):
            return sum(strategy.reduce("SUM", x, axis=0) for x in iterator)

        dataset = numbers(strategy, 12, 4)
        for _ in range(2):
            iterator = iter(dataset)
            next(iterator)
            assert int(remaining(iterator)) == sum(range(4, 12))

    def test_reduce_of_a_dataset(self, strategy):
        @jt.function
        def total(dataset):
            return dataset.reduce(
                jnp.int32(0), lambda state, x: state + strategy.reduce("SUM", x, axis=0)
            )

        assert int(total(numbers(strategy, 10, 4))) == 45

    def test_that_are_not_distributed(self):
        @jt.function
        def total(dataset):
            return sum(jnp.sum(x) for x in dataset)

        dataset = Dataset.range(10).batch(4)
        assert [int(total(dataset)) for _ in range(2)] == [45, 45]

    @pytest.mark.parametrize(
        "make", [jt.get_strategy, lambda: jt.OneDeviceStrategy("CPU:1")], ids=["default", "one"]
    )
    def test_with_one_replica(self, make):
        strategy = make()
        traces = []
        with strategy.scope():
            total = jt.Variable(jnp.int32(0))

        @jt.function
        def epoch(dataset):
            for x in dataset:

                def step(x):
                    traces.append(1)
                    total.assign_add(jnp.sum(x))

                strategy.run(step, args=(x,))

        dataset = numbers(strategy, 40, 4)
        epoch(dataset)
        traced = len(traces)
        assert traced < 10
        epoch(dataset)
        assert (value_of(total), len(traces)) == (2 * sum(range(40)), traced)

    def test_in_a_method(self, strategy):
        class Trainer:
            def __init__(self) -> None:
                self.total = counter(strategy)
                self.traces = 0

            def step(self, x):
                self.traces += 1
                self.total.assign_add(jnp.sum(x))

            @jt.function
            def epoch(self, dataset):
                for x in dataset:
                    strategy.run(self.step, args=(x,))
                return self.total.value()

        trainer = Trainer()
        dataset = numbers(strategy, 40, 4)
        assert int(trainer.epoch(dataset)) == sum(range(40))
        traced = trainer.traces
        assert traced < 10
        assert int(trainer.epoch(dataset)) == 2 * sum(range(40))
        assert trainer.traces == traced


# --- Functions in functions ------------------------------------------------------------------


class TestNested:
    def test_iterator_passed_on(self, strategy):
        inner = jt.function(lambda it: sums(strategy, it))
        outer = jt.function(lambda it: 100 * inner(it) + inner(it))
        iterator = iter(numbers(strategy, 20))
        assert [int(outer(iterator)) for _ in range(2)] == [105, 913]
        assert int(inner(iterator)) == 17
        assert outer.experimental_get_tracing_count() == 1

    def test_iterator_captured_by_the_inner_one(self, strategy):
        iterator = iter(numbers(strategy, 20))
        inner = jt.function(lambda: sums(strategy, iterator))
        outer = jt.function(lambda: 100 * inner() + sums(strategy, iterator))
        assert [int(outer()) for _ in range(2)] == [105, 913]
        assert int(inner()) == 17

    def test_inner_loop(self, strategy):
        inner = jt.function(lambda dataset: sum(strategy.reduce("SUM", x, axis=0) for x in dataset))
        outer = jt.function(lambda dataset: inner(dataset) + 1)
        assert [int(outer(numbers(strategy, 10, 4))) for _ in range(2)] == [46, 46]

    def test_inner_step_of_an_outer_loop_is_compiled_once(self, strategy):
        traces = []

        @jt.function
        def step(x):
            traces.append(1)
            return strategy.reduce("SUM", x, axis=0)

        outer = jt.function(lambda dataset: sum(step(x) for x in dataset))
        dataset = numbers(strategy, 40, 4)
        assert [int(outer(dataset)) for _ in range(2)] == [sum(range(40))] * 2
        assert step.experimental_get_tracing_count() == 1
        assert len(traces) < 5

    def test_inner_step_of_an_outer_loop_takes_the_element(self, strategy):
        step = jt.function(lambda it: sums(strategy, it))

        @jt.function
        def outer(dataset, steps):
            iterator = iter(dataset)
            return [step(iterator) for _ in range(steps)]

        dataset = numbers(strategy, 12, 4)
        assert [int(x) for x in outer(dataset, 3)] == [6, 22, 38]
        assert step.experimental_get_tracing_count() == 1
        with pytest.raises(OutOfRangeError):
            outer(dataset, 4)

    def test_end_in_the_inner_one(self, strategy):
        total = counter(strategy)

        @jt.function
        def step(iterator):
            strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(next(iterator),))

        @jt.function
        def three(iterator):
            for _ in range(3):
                step(iterator)

        with pytest.raises(OutOfRangeError):
            three(iter(numbers(strategy, 8, 4)))
        assert value_of(total) == 28


# --- Failures --------------------------------------------------------------------------------


class Fails:
    """Raises when it is told to."""

    def __init__(self) -> None:
        self.now = True

    def __call__(self) -> None:
        if self.now:
            raise ValueError("not now")


class TestFailures:
    def test_an_exception_while_tracing_puts_elements_back(self, strategy):
        iterator, fails = iter(numbers(strategy, 12)), Fails()

        @jt.function
        def step():
            found = sums(strategy, iterator), sums(strategy, iterator)
            fails()
            return found

        for _ in range(2):
            with pytest.raises(ValueError, match="not now"):
                step()
        fails.now = False
        assert [int(x) for x in step()] == [1, 5]
        assert parts_of(next(iterator)) == [[4], [5]]

    def test_an_exception_of_what_only_tracers_refuse_puts_elements_back(self):
        iterator = iter(numbers(jt.get_strategy(), 8))

        @jt.function
        def step():
            x = next(iterator)
            return x if x[0] >= 0 else -x

        with pytest.raises(jax.errors.TracerBoolConversionError):
            step()
        assert next(iterator).tolist() == [0, 1]

    def test_an_exception_while_tracing_anew_puts_elements_back(self, strategy):
        fails = Fails()

        @jt.function
        def step(iterator):
            x = next(iterator)
            if x.values[0].shape == (1,):
                fails()
            return strategy.reduce("SUM", x, axis=0)

        iterator = iter(numbers(strategy, 6, 4))
        assert int(step(iterator)) == 6
        for _ in range(2):
            with pytest.raises(ValueError, match="not now"):
                step(iterator)
        fails.now = False
        assert int(step(iterator)) == 9

    def test_the_state_after_an_exception_is_that_before_it(self, strategy):
        iterator = iter(numbers(strategy, 12))
        next(iterator)
        before = iterator.get_state()

        @jt.function
        def step():
            next(iterator)
            next(iterator)
            raise ValueError("not now")

        with pytest.raises(ValueError, match="not now"):
            step()
        assert iterator.get_state() == before
        assert parts_of(next(iterator)) == [[2], [3]]

    def test_an_error_of_the_input_is_raised_by_the_call(self, strategy):
        def broken():
            yield np.arange(2)
            raise KeyError("no such example")

        total = counter(strategy)
        dataset = strategy.experimental_distribute_dataset(Dataset.from_generator(broken))

        @jt.function
        def step(iterator):
            strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(next(iterator),))

        iterator = iter(dataset)
        step(iterator)
        for _ in range(2):
            with pytest.raises(KeyError, match="no such example"):
                step(iterator)
        assert value_of(total) == 1

    def test_an_error_of_the_input_loses_nothing_of_another_iterator(self, strategy):
        def broken():
            yield np.arange(2)
            raise KeyError("no such example")

        good = iter(numbers(strategy, 8))
        bad = iter(strategy.experimental_distribute_dataset(Dataset.from_generator(broken)))
        step = jt.function(lambda: (sums(strategy, good), sums(strategy, bad)))
        step()
        with pytest.raises(KeyError):
            step()
        assert parts_of(next(good)) == [[2], [3]]

    @pytest.mark.parametrize("way", ["eager", "compiled"])
    def test_next_inside_a_replica_is_refused(self, strategy, way):
        """R133."""
        iterator = iter(numbers(strategy, 8))
        for take in TAKE.values():

            def run(take=take):
                return strategy.run(lambda: take(iterator))

            with pytest.raises(ValueError, match="inside a replica"):
                (jt.function(run) if way == "compiled" else run)()
        assert parts_of(next(iterator)) == [[0], [1]]

    def test_next_inside_another_transformation_is_refused(self, strategy):
        iterator = iter(numbers(strategy, 8))
        with pytest.raises(RuntimeError, match=r"jax\.jit"):
            jax.jit(lambda: next(iterator).values[0])()
        with pytest.raises(RuntimeError, match=r"jax\.jit"):
            jax.jit(lambda: [x.values[0] for x in numbers(strategy, 8)])()
        assert parts_of(next(iterator)) == [[0], [1]]


# --- As plain Python -------------------------------------------------------------------------


@pytest.fixture
def eagerly():
    jt.config.run_functions_eagerly(True)
    yield
    jt.config.run_functions_eagerly(False)


@pytest.mark.usefixtures("eagerly")
class TestRunningEagerly:
    def test_elements(self, strategy):
        iterator = iter(numbers(strategy, 8))
        step = jt.function(lambda it: sums(strategy, it))
        assert [int(step(iterator)) for _ in range(4)] == [1, 5, 9, 13]
        assert step.experimental_get_tracing_count() == 0

    def test_the_end(self, strategy):
        """The error that ends a training loop is the one it ends with when compiled."""
        iterator = iter(numbers(strategy, 2))
        for take in (next, lambda it: it.get_next()):
            step = jt.function(lambda take=take: take(iterator))
            with pytest.raises(OutOfRangeError):
                while True:
                    step()

    def test_a_whole_dataset(self, strategy):
        total = counter(strategy)

        @jt.function
        def epoch(dataset):
            for x in dataset:
                strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(x,))

        epoch(numbers(strategy, 9, 4))
        assert value_of(total) == 36

    def test_switching_over_goes_on_with_the_next_element(self, strategy):
        iterator = iter(numbers(strategy, 8))
        step = jt.function(lambda: sums(strategy, iterator))
        found = []
        for eager in (True, False, True, False):
            jt.config.run_functions_eagerly(eager)
            found.append(int(step()))
        assert found == [1, 5, 9, 13]


# --- States ----------------------------------------------------------------------------------


class TestStates:
    def test_after_a_compiled_step(self, strategy):
        dataset = numbers(strategy, 20)
        step = jt.function(lambda it: (sums(strategy, it), sums(strategy, it)))
        iterator = iter(dataset)
        assert [int(x) for x in step(iterator)] == [1, 5]
        state = iterator.get_state()
        assert [int(x) for x in step(iterator)] == [9, 13]
        restored = iter(dataset)
        restored.set_state(state)
        assert [int(x) for x in step(restored)] == [9, 13]
        assert step.experimental_get_tracing_count() == 1

    def test_a_captured_iterator_goes_back(self, strategy):
        iterator = iter(numbers(strategy, 20))
        step = jt.function(lambda: sums(strategy, iterator))
        step()
        state = iterator.get_state()
        assert [int(step()) for _ in range(2)] == [5, 9]
        iterator.set_state(state)
        assert [int(step()) for _ in range(2)] == [5, 9]

    def test_a_captured_iterator_that_has_ended_starts_again(self, strategy):
        iterator = iter(numbers(strategy, 4))
        start = iterator.get_state()
        step = jt.function(lambda: sums(strategy, iterator))
        for _ in range(2):
            assert [int(step()) for _ in range(2)] == [1, 5]
            with pytest.raises(OutOfRangeError):
                step()
            iterator.set_state(start)

    def test_after_too_little_was_left(self, strategy):
        """The element that was put back is the next one, also for who restores the state."""
        iterator, other = iter(numbers(strategy, 20)), iter(numbers(strategy, 2))
        step = jt.function(lambda: (sums(strategy, iterator), sums(strategy, other)))
        step()
        with pytest.raises(OutOfRangeError):
            step()  # takes one of the first as Python does, and then finds the end
        assert parts_of(next(iterator)) == [[4], [5]]


# --- Nothing is kept -------------------------------------------------------------------------


class TestGarbage:
    def test_an_argument_is_not_kept(self, strategy):
        step = jt.function(lambda it: sums(strategy, it))
        dataset = numbers(strategy, 400)
        iterator = iter(dataset)
        step(iterator)
        step(iterator)
        (thread,) = input_threads()
        dropped = weakref.ref(iterator)
        del iterator
        assert dropped() is None
        assert not thread.is_alive()
        assert int(step(iter(dataset))) == 1

    def test_an_argument_that_has_ended_is_not_kept(self, strategy):
        step = jt.function(lambda it: sums(strategy, it))
        iterator = iter(numbers(strategy, 4))
        with pytest.raises(OutOfRangeError):
            while True:
                step(iterator)
        dropped = weakref.ref(iterator)
        del iterator
        gc.collect()
        assert dropped() is None
        assert not input_threads()

    def test_a_captured_iterator_goes_with_the_function(self, strategy):
        def capture() -> weakref.ref[Any]:
            iterator = iter(numbers(strategy, 400))
            jt.function(lambda: sums(strategy, iterator))()
            return weakref.ref(iterator)

        dropped = capture()
        gc.collect()
        assert dropped() is None
        assert not input_threads()

    def test_iterators_of_a_loop_in_the_body_are_not_kept(self, strategy):
        found = []

        @jt.function
        def first(dataset):
            iterator = iter(dataset)
            found.append(weakref.ref(iterator))
            return sums(strategy, iterator)

        dataset = numbers(strategy, 400)
        for _ in range(3):
            first(dataset)
        gc.collect()
        assert [dropped() for dropped in found] == [None] * len(found)
        assert not input_threads()

    def test_a_loop_that_is_left_early_leaves_no_thread(self, strategy):
        @jt.function
        def first(dataset):
            for x in dataset:
                return strategy.reduce("SUM", x, axis=0)

        for _ in range(3):
            assert int(first(numbers(strategy, 400))) == 1
        gc.collect()
        assert not input_threads()

    def test_elements_are_not_kept(self, strategy):
        dataset = numbers(strategy, 400, 4)
        step = jt.function(lambda it: (x := next(it), strategy.reduce("SUM", x, axis=0))[1])
        iterator = iter(dataset)
        step(iterator)
        before = len(jax.live_arrays())
        for _ in range(30):
            step(iterator)
        gc.collect()
        assert len(jax.live_arrays()) <= before + 10
