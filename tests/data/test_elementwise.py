"""Functions of one element at a time: map, filter, enumerate, reduce."""

import dataclasses
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.data._support import plain, read, stream_of, streamed

Dataset = jt.data.Dataset


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Example:
    a: Any
    b: Any


SOURCES = pytest.mark.parametrize("source", [Dataset.range, stream_of], ids=["table", "stream"])
PARALLEL = pytest.mark.parametrize("parallel", [None, 1, 3, jt.data.AUTOTUNE])


@SOURCES
class TestMap:
    @PARALLEL
    def test_applies_the_function_in_order(self, source, parallel):
        dataset = source(50).map(lambda x: x * x, num_parallel_calls=parallel)
        assert read(dataset) == [x * x for x in range(50)]

    def test_components_of_a_tuple_are_arguments(self, source):
        pairs = source(3).map(lambda x: (x, x + 1))
        assert read(pairs.map(lambda a, b: a * b)) == [0, 2, 6]
        assert read(pairs.map(lambda *parts: len(parts))) == [2, 2, 2]

    def test_only_the_outer_tuple_is_opened(self, source):
        nested = source(2).map(lambda x: (x, (x + 1, x + 2)))
        assert read(nested.map(lambda a, pair: a + pair[0] * pair[1])) == [2, 7]
        single = source(2).map(lambda x: (x,))
        assert read(single) == [(0,), (1,)]
        assert read(single.map(lambda x: x)) == [0, 1]

    def test_dicts_and_named_tuples_are_one_argument(self, source):
        assert read(source(2).map(lambda x: {"a": x}).map(lambda d: d["a"] + 1)) == [1, 2]
        assert read(source(2).map(lambda x: Point(x, 2)).map(lambda p: p.x + p.y)) == [2, 3]

    def test_results_become_arrays(self, source):
        def several(x):
            return 37.0, ["Foo", "Bar"], np.array([1.0, 2.0]), jnp.ones(2, jnp.bfloat16), True, "é"

        (element,) = source(1).map(several)
        assert plain(element) == (
            37.0, [b"Foo", b"Bar"], [1.0, 2.0], [1.0, 1.0], True, "é".encode(),
        )  # fmt: skip
        dtypes = [part.dtype for part in element[:5]]
        assert dtypes == [np.float32, object, np.float64, jnp.bfloat16, np.bool_]
        assert type(element[5]) is bytes

    def test_a_list_is_one_array(self, source):
        assert read(source(2).map(lambda x: [x, x + 1])) == [[0, 1], [1, 2]]

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param(lambda x: (x, np.zeros(2)), id="arrays"),
            pytest.param(lambda x: (x, 1), id="array and number"),
            pytest.param(lambda x: (1, 2.5), id="numbers"),
            pytest.param(lambda x: ("a", b"b"), id="texts"),
        ],
    )
    def test_a_dataclass_is_structure(self, source, fields):
        dataset = source(3).map(lambda x: Example(*fields(x)))
        assert all(isinstance(element, Example) for element in dataset)
        (batch,) = dataset.batch(3)
        assert isinstance(batch, Example)
        assert len(batch.a) == len(batch.b) == 3
        assert [element.a for element in dataset.batch(2).unbatch()] == list(batch.a)

    def test_functions_of_jax_and_numpy_are_welcome(self, source):
        assert read(source(3).map(jnp.square)) == [0, 1, 4]
        assert read(source(3).map(jax.jit(lambda x: x + 1))) == [1, 2, 3]
        assert read(source(3).map(np.negative)) == [0, -1, -2]

    def test_is_called_when_read_and_not_before(self, source):
        called = []
        dataset = source(100).map(lambda x: called.append(int(x)) or x)
        assert not called
        iterator = iter(dataset)
        next(iterator)
        assert called == [0]
        next(iterator)
        assert called == [0, 1]

    def test_is_called_once_per_element_that_is_read(self, source):
        called = []
        dataset = source(10).map(lambda x: called.append(int(x)) or x)
        read(dataset.take(3))
        assert called == [0, 1, 2]

    def test_parallel_calls_happen_at_once(self, source):
        together = threading.Barrier(3, timeout=20)

        def wait(x):
            together.wait()
            return x

        assert read(source(6).map(wait, num_parallel_calls=3)) == list(range(6))

    def test_deterministic_is_accepted(self, source):
        dataset = source(5).map(lambda x: x, num_parallel_calls=2, deterministic=False)
        assert sorted(read(dataset)) == list(range(5))


@SOURCES
class TestFilter:
    def test_keeps_what_the_predicate_holds_for(self, source):
        assert read(source(6).filter(lambda x: x % 2 == 0)) == [0, 2, 4]

    @pytest.mark.parametrize(
        "predicate", [lambda x: x < 2, lambda x: bool(x < 2), lambda x: jnp.less(x, 2)]
    )
    def test_takes_any_truth_value(self, source, predicate):
        assert read(source(4).filter(predicate)) == [0, 1]

    def test_components_of_a_tuple_are_arguments(self, source):
        pairs = source(4).map(lambda x: (x, x % 2))
        assert read(pairs.filter(lambda x, odd: odd)) == [(1, 1), (3, 1)]
        dicts = source(4).map(lambda x: {"x": x})
        assert read(dicts.filter(lambda d: d["x"] > 2)) == [{"x": 3}]

    def test_may_leave_nothing(self, source):
        assert read(source(4).filter(lambda x: False)) == []
        assert read(source(4).filter(lambda x: False).batch(2)) == []
        assert read(source(4).filter(lambda x: False).repeat()) == []


@SOURCES
class TestEnumerate:
    def test_counts(self, source):
        assert read(source(3).enumerate()) == [(0, 0), (1, 1), (2, 2)]
        assert read(source(2).enumerate(start=5)) == [(5, 0), (6, 1)]

    def test_counts_what_is_delivered(self, source):
        assert read(source(6).filter(lambda x: x % 2).enumerate()) == [(0, 1), (1, 3), (2, 5)]
        assert read(source(6).skip(3).enumerate()) == [(0, 3), (1, 4), (2, 5)]
        numbers = read(source(6).shuffle(6, seed=1).enumerate().map(lambda i, _: i))
        assert numbers == list(range(6))

    def test_what_is_repeated_is_counted_anew(self, source):
        assert read(source(2).enumerate().repeat(2)) == [(0, 0), (1, 1)] * 2
        assert read(source(2).repeat(2).enumerate()) == [(0, 0), (1, 1), (2, 0), (3, 1)]

    def test_keeps_the_number_when_shuffled(self, source):
        assert sorted(read(source(5).enumerate().shuffle(5, seed=1))) == [(i, i) for i in range(5)]

    def test_keeps_structure(self, source):
        dataset = source(2).map(lambda x: (x, {"a": x})).enumerate()
        assert read(dataset) == [(0, (0, {"a": 0})), (1, (1, {"a": 1}))]
        assert next(iter(dataset))[0].dtype == np.int64


class TestReduce:
    """The examples of tf.data."""

    def test_counts_and_sums(self):
        assert Dataset.range(5).reduce(np.int64(0), lambda count, _: count + 1) == 5
        assert Dataset.range(5).reduce(np.int64(0), lambda total, x: total + x) == 10

    def test_an_empty_dataset_gives_the_initial_state(self):
        assert Dataset.range(0).reduce(7, lambda total, x: total + x) == 7

    def test_a_tuple_is_one_argument_and_the_state_any_structure(self):
        dataset = Dataset.range(4).enumerate()
        total, last = dataset.reduce((0, None), lambda state, pair: (state[0] + pair[1], pair[0]))
        assert (total, last) == (6, 3)


class TestAsNumpyIterator:
    def test_gives_numbers_and_arrays_of_numpy(self):
        dataset = Dataset.from_tensor_slices(([1, 2], [[1.0], [2.0]], ["a", "b"]))
        first = next(dataset.as_numpy_iterator())
        assert first[0] == 1 and first[2] == b"a"
        assert isinstance(first[1], np.ndarray)
        assert list(Dataset.range(3).as_numpy_iterator()) == [0, 1, 2]
        assert {x.dtype for x in Dataset.range(3).as_numpy_iterator()} == {np.dtype(np.int64)}

    def test_each_one_is_a_pass_of_its_own(self):
        dataset = streamed(1, 2, 3)
        first, second = dataset.as_numpy_iterator(), dataset.as_numpy_iterator()
        assert [next(first), next(first), next(second)] == [1, 2, 1]
        assert list(second) == [2, 3]

    def test_an_abandoned_one_leaves_no_thread(self):
        iterator = Dataset.range(100).map(lambda x: x).prefetch(2).as_numpy_iterator()
        assert next(iterator) == 0
        iterator.close()


class TestApply:
    def test_gives_the_dataset_to_a_function(self):
        dataset = Dataset.range(10).apply(lambda ds: ds.filter(lambda x: x < 3)).batch(2)
        assert read(dataset) == [[0, 1], [2]]

    def test_refuses_a_function_that_returns_something_else(self):
        with pytest.raises(TypeError, match="Dataset"):
            Dataset.range(3).apply(lambda ds: None)
