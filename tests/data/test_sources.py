"""Where elements come from: numbers, arrays and generators."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.data._support import plain, read

Dataset = jt.data.Dataset


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Example:
    image: Any
    label: Any


class TestRange:
    """The table of tf.data.Dataset.range."""

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ((5,), [0, 1, 2, 3, 4]),
            ((2, 5), [2, 3, 4]),
            ((1, 5, 2), [1, 3]),
            ((1, 5, -2), []),
            ((5, 1), []),
            ((5, 1, -2), [5, 3]),
            ((0,), []),
            ((-3,), []),
            ((np.int64(2), np.int32(4)), [2, 3]),
        ],
    )
    def test_is_that_of_python(self, arguments, expected):
        assert read(Dataset.range(*arguments)) == expected
        assert len(Dataset.range(*arguments)) == len(expected)

    def test_numbers_have_64_bits_unless_another_type_is_asked_for(self):
        assert next(iter(Dataset.range(2))).dtype == np.int64
        for dtype in (np.int32, np.float32, jnp.bfloat16, np.uint8):
            first = next(iter(Dataset.range(2, output_type=dtype)))
            assert first.dtype == jnp.dtype(dtype)
        assert read(Dataset.range(1, 5, 2, output_type=np.float32)) == [1.0, 3.0]

    def test_large_numbers_are_exact(self):
        assert read(Dataset.range(2**60, 2**60 + 3)) == [2**60, 2**60 + 1, 2**60 + 2]

    @pytest.mark.parametrize("arguments", [(), (1, 2, 3, 4), (1.5,), ("3",), (0, 5, 0)])
    def test_refuses_what_range_refuses(self, arguments):
        with pytest.raises((TypeError, ValueError)):
            Dataset.range(*arguments)


class TestFromTensors:
    @pytest.mark.parametrize(
        ("tensors", "expected"),
        [
            ([1, 2, 3], [1, 2, 3]),
            (([1, 2, 3], "A"), ([1, 2, 3], b"A")),
            ({"a": 1, "b": [2.0]}, {"a": 1, "b": [2.0]}),
            (5, 5),
            (b"text", b"text"),
            (jnp.arange(2), [0, 1]),
            (np.float16(1.5), 1.5),
        ],
    )
    def test_is_one_element(self, tensors, expected):
        dataset = Dataset.from_tensors(tensors)
        assert read(dataset) == [expected]
        assert len(dataset) == 1

    def test_can_be_repeated_and_batched(self):
        dataset = Dataset.from_tensors(([1, 2], b"x")).repeat(3).batch(2)
        assert read(dataset) == [([[1, 2], [1, 2]], [b"x", b"x"]), ([[1, 2]], [b"x"])]


class TestFromTensorSlices:
    @pytest.mark.parametrize(
        ("tensors", "expected"),
        [
            ([1, 2, 3], [1, 2, 3]),
            ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
            (([1, 2], [3, 4], [5, 6]), [(1, 3, 5), (2, 4, 6)]),
            ({"a": [1, 2], "b": [3, 4]}, [{"a": 1, "b": 3}, {"a": 2, "b": 4}]),
            (([[1, 3], [2, 1]], ["A", "B"]), [([1, 3], b"A"), ([2, 1], b"B")]),
            ([(7, 8), (9, 10)], [[7, 8], [9, 10]]),
            (({"x": [1, 2]}, ([3, 4],)), [({"x": 1}, (3,)), ({"x": 2}, (4,))]),
            ([np.arange(2), np.arange(2) * 10], [[0, 1], [0, 10]]),
            (np.zeros((0, 3)), []),
            ([True, False], [True, False]),
        ],
    )
    def test_cuts_the_first_axis(self, tensors, expected):
        dataset = Dataset.from_tensor_slices(tensors)
        assert read(dataset) == expected
        assert len(dataset) == len(expected)

    def test_named_tuples_stay_named_tuples(self):
        dataset = Dataset.from_tensor_slices(Point(np.arange(2), np.arange(2) * 10))
        assert read(dataset) == [Point(0, 0), Point(1, 10)]
        (batch,) = dataset.batch(2)
        assert isinstance(batch, Point) and plain(batch) == Point([0, 1], [0, 10])

    def test_dataclasses_stay_dataclasses(self):
        dataset = Dataset.from_tensor_slices(Example(np.ones((2, 3)), np.arange(2)))
        first, second = dataset
        assert isinstance(second, Example)
        assert first.image.shape == (3,) and second.label == 1
        (batch,) = dataset.batch(2)
        assert batch.image.shape == (2, 3) and plain(batch.label) == [0, 1]

    @pytest.mark.parametrize(
        ("values", "dtype"),
        [
            (np.arange(3), np.int64),
            (np.arange(3, dtype=np.uint8), np.uint8),
            (np.ones(3, np.float32), np.float32),
            (np.ones(3), np.float64),
            (jnp.ones(3, jnp.bfloat16), jnp.bfloat16),
            (np.ones(3, bool), np.bool_),
            (np.ones(3, np.complex64), np.complex64),
            ([1, 2, 3], np.int32),
            ([1.0, 2.0, 3.0], np.float32),
            ([True, False, True], np.bool_),
        ],
    )
    def test_types_are_kept_and_python_numbers_become_those_of_jax(self, values, dtype):
        dataset = Dataset.from_tensor_slices(values)
        assert {element.dtype for element in dataset} == {jnp.dtype(dtype)}
        assert {batch.dtype for batch in dataset.batch(2)} == {jnp.dtype(dtype)}
        assert dataset.element_spec.dtype == jnp.dtype(dtype)

    @pytest.mark.parametrize(
        "texts",
        [
            pytest.param(["a", "é"], id="list of str"),
            pytest.param([b"a", "é".encode()], id="list of bytes"),
            pytest.param(np.array(["a", "é"]), id="array of str"),
            pytest.param(np.array([b"a", "é".encode()]), id="array of bytes"),
            pytest.param(np.array([b"a", "é".encode()], object), id="object array of bytes"),
            pytest.param(np.array(["a", "é"], object), id="object array of str, as of pandas"),
        ],
    )
    def test_text_becomes_bytes(self, texts):
        dataset = Dataset.from_tensor_slices(texts)
        assert read(dataset) == [b"a", "é".encode()]
        assert read(dataset.batch(2)) == [[b"a", "é".encode()]]
        assert all(type(element) is bytes for element in dataset)

    @pytest.mark.parametrize(
        "nested", [[[b"a\0", b"b"]], [(b"a\0", b"b")], np.array([[b"a\0", b"b"]], object)]
    )
    def test_bytes_keep_their_trailing_zeros(self, nested):
        assert read(Dataset.from_tensor_slices(nested)) == [[b"a\0", b"b"]]
        assert read(Dataset.from_tensor_slices([b"\0", b""])) == [b"\0", b""]

    def test_large_arrays_are_not_copied_when_the_dataset_is_made(self, allocated):
        images, labels = np.zeros((4096, 1000), np.float32), np.zeros(4096, np.int64)
        with allocated() as memory:
            dataset = Dataset.from_tensor_slices((images, labels)).shuffle(4096).batch(8)
        assert memory.peak < 1 << 20 < images.nbytes
        with allocated() as memory:
            next(iter(dataset))
        assert memory.peak < images.nbytes / 2

    def test_what_is_done_to_elements_does_not_reach_the_arrays(self):
        numbers = np.zeros((4, 1))

        def add_one(row):
            row += 1
            return row

        dataset = Dataset.from_tensor_slices(numbers)
        assert read(dataset.map(add_one).repeat(2)) == [[1.0]] * 8
        assert read(dataset.batch(4).map(add_one).repeat(2)) == [[[1.0]] * 4] * 2
        assert not numbers.any()

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            pytest.param(3, "from_tensors", id="scalar"),
            pytest.param("text", "from_tensors", id="text"),
            pytest.param(([1, 2], 3), "first axis", id="scalar inside"),
            pytest.param(([1, 2], [3]), r"\(2,\).*\(1,\)", id="different lengths"),
            pytest.param((), "no array", id="nothing"),
        ],
    )
    def test_refuses_what_has_no_rows(self, tensors, message):
        with pytest.raises(jt.errors.InvalidArgumentError, match=message):
            Dataset.from_tensor_slices(tensors)

    @pytest.mark.parametrize(
        ("tensors", "error"),
        [
            pytest.param([1, [2, 3]], ValueError, id="ragged list"),
            pytest.param(None, TypeError, id="None"),
            pytest.param(([1], None), TypeError, id="None inside"),
            pytest.param([object()], TypeError, id="object"),
            pytest.param({1, 2}, TypeError, id="set"),
        ],
    )
    def test_refuses_what_is_no_array(self, tensors, error):
        with pytest.raises(error):
            Dataset.from_tensor_slices(tensors)


class TestBigElements:
    """Elements are fetched many at once, but not more than memory has room for."""

    ROWS = np.zeros((2048, 500), np.float32)  # 4 MB

    @pytest.mark.parametrize(
        ("make", "needed"),
        [
            pytest.param(lambda d: d.batch(16).map(np.sum), 16, id="batch, map"),
            pytest.param(lambda d: d.batch(16).enumerate(), 16, id="batch, enumerate"),
            pytest.param(lambda d: d.batch(16).map(np.sum).batch(2), 32, id="batch, map, batch"),
            pytest.param(lambda d: d.batch(16).filter(np.any), 2048, id="batch, filter"),
            pytest.param(lambda d: d.batch(16).repeat(2), 16, id="batch, repeat"),
            pytest.param(lambda d: d.batch(16).map(np.sum, 2), 64 * 16, id="batch, parallel map"),
        ],
    )
    def test_the_first_element_does_not_need_all_of_the_array(self, allocated, make, needed):
        dataset = make(Dataset.from_tensor_slices(self.ROWS))
        row = self.ROWS[0].nbytes
        with allocated() as memory:
            next(iter(dataset), None)
        # Four times what is needed, and room for everything that is not an array.
        assert memory.peak < min(4 * needed * row, self.ROWS.nbytes * 0.9) + (1 << 18)

    def test_one_large_element_repeated_is_not_copied_many_times_at_once(self, allocated):
        with allocated() as memory:
            next(iter(Dataset.from_tensors(self.ROWS).repeat()))
        assert memory.peak < 3 * self.ROWS.nbytes

    def test_large_rows_are_not_all_fetched_for_the_first(self, allocated):
        rows = np.zeros((64, 1 << 16), np.float32)  # 256 kB each, 16 MB together
        with allocated() as memory:
            next(iter(Dataset.from_tensor_slices(rows).map(np.sum)))
        assert memory.peak < rows.nbytes / 2


class TestFromGenerator:
    def test_yields_what_the_function_yields_at_each_pass(self):
        calls = []

        def numbers():
            calls.append(len(calls))
            yield from range(3)

        dataset = Dataset.from_generator(numbers)
        assert read(dataset) == read(dataset) == [0, 1, 2]
        assert len(calls) == 2

    def test_is_not_called_before_it_is_read(self):
        def fails():
            raise AssertionError("called")

        Dataset.from_generator(fails).map(lambda x: x).batch(2)

    @pytest.mark.parametrize(
        "function",
        [
            pytest.param(lambda: [1, 2], id="list"),
            pytest.param(lambda: np.array([1, 2]), id="array"),
            pytest.param(lambda: iter((1, 2)), id="iterator"),
            pytest.param(lambda: Dataset.range(1, 3), id="dataset"),
        ],
    )
    def test_takes_any_iterable(self, function):
        assert read(Dataset.from_generator(function)) == [1, 2]

    def test_passes_arguments(self):
        dataset = Dataset.from_generator(range, args=(2, 8, 3))
        assert read(dataset) == [2, 5]

    def test_a_signature_may_be_of_jax(self):
        signature = {
            "x": jax.ShapeDtypeStruct((2,), jnp.float32),
            "y": (jax.ShapeDtypeStruct((), jnp.int32),),
        }
        example = {"x": np.zeros(2, np.float32), "y": (np.int32(1),)}
        dataset = Dataset.from_generator(lambda: [example], output_signature=signature)
        assert dataset.element_spec == {
            "x": jt.TensorSpec((2,), jnp.float32),
            "y": (jt.TensorSpec((), jnp.int32),),
        }
        (element,) = dataset
        assert element["x"].tolist() == [0, 0]

    def test_structures(self):
        def examples():
            yield {"x": [1.0, 2.0], "y": "a"}, (1, True)

        (element,) = Dataset.from_generator(examples)
        assert plain(element) == ({"x": [1.0, 2.0], "y": b"a"}, (1, True))
        assert element[0]["x"].dtype == np.float32 and element[1][0].dtype == np.int32

    def test_converts_to_a_signature(self):
        signature = (jt.TensorSpec((), np.int64), jt.TensorSpec((None,), np.float32))
        dataset = Dataset.from_generator(
            lambda: [(1, [1, 2]), (2, [3])], output_signature=signature
        )
        assert dataset.element_spec == signature
        for number, values in dataset:
            assert number.dtype == np.int64 and values.dtype == np.float32

    @pytest.mark.parametrize(
        "shapes",
        [
            pytest.param(None, id="none"),
            pytest.param(((), (2,)), id="tuples"),
            pytest.param(([], [None]), id="lists"),
            pytest.param((None, None), id="any rank"),
        ],
    )
    def test_converts_to_types_and_shapes(self, shapes):
        dataset = Dataset.from_generator(
            lambda: [(1, [1, 2])], (np.int64, jnp.bfloat16), output_shapes=shapes
        )
        ((number, values),) = dataset
        assert number.dtype == np.int64 and values.dtype == jnp.bfloat16
        assert [spec.dtype for spec in dataset.element_spec] == [np.int64, jnp.bfloat16]

    @pytest.mark.parametrize("text_type", [str, bytes, object, np.str_, np.bytes_])
    def test_text_has_a_type(self, text_type):
        dataset = Dataset.from_generator(
            lambda: [("a", 1), (b"b", 2)], output_types=(text_type, np.int32)
        )
        assert read(dataset) == [(b"a", 1), (b"b", 2)]
        signature = jt.TensorSpec((), text_type)
        assert read(Dataset.from_generator(lambda: ["a"], output_signature=signature)) == [b"a"]

    @pytest.mark.parametrize(
        ("elements", "number"),
        [
            pytest.param([[1, 2], [1, 2, 3]], 1, id="shape"),
            pytest.param([[1, 2], 3], 1, id="rank"),
            pytest.param([([1, 2], [1, 2])], 0, id="structure"),
            pytest.param([[1, 2], [3, 4], "text"], 2, id="type"),
            pytest.param([[1, 2], ["3x", "4"]], 1, id="texts"),
        ],
    )
    def test_what_does_not_fit_the_signature_is_named(self, elements, number):
        def my_examples():
            return iter(elements)

        dataset = Dataset.from_generator(my_examples, output_signature=jt.TensorSpec((2,)))
        with pytest.raises(jt.errors.InvalidArgumentError) as raised:
            read(dataset)
        assert f"Element {number} " in str(raised.value)
        assert "my_examples" in str(raised.value)

    def test_its_resources_are_released_when_the_iterator_is_closed(self):
        ended = []

        def numbers():
            try:
                yield from range(10)
            finally:
                ended.append(True)

        iterator = iter(Dataset.from_generator(numbers).batch(2).map(lambda x: x))
        next(iterator)
        assert not ended
        iterator.close()
        assert ended

    def test_an_iterator_instead_of_a_function_is_refused(self):
        with pytest.raises(TypeError, match="function"):
            Dataset.from_generator(iter([1]))


class TestTheConstructor:
    def test_says_how_datasets_are_made(self):
        for arguments in [(), ([1, 2, 3],), (Dataset.range(3),)]:
            with pytest.raises(TypeError, match="from_tensor_slices"):
                Dataset(*arguments)
