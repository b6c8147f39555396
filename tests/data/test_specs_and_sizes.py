"""What can be told about a dataset without reading it: element_spec, cardinality, len, repr."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.data._support import read, stream_of, write_lines

Dataset, TensorSpec = jt.data.Dataset, jt.TensorSpec
TEXT = TensorSpec((), np.dtype(object))
INFINITE, UNKNOWN = jt.data.INFINITE_CARDINALITY, jt.data.UNKNOWN_CARDINALITY


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Example:
    x: Any


def spec(*shape, dtype=np.int64):
    return TensorSpec(shape, dtype)


class TestElementSpec:
    @pytest.mark.parametrize(
        ("dataset", "expected"),
        [
            (Dataset.range(3), spec()),
            (Dataset.range(3, output_type=jnp.bfloat16), spec(dtype=jnp.bfloat16)),
            (Dataset.range(0), spec()),
            (Dataset.from_tensors([1.0, 2.0]), spec(2, dtype=np.float32)),
            (Dataset.from_tensor_slices(np.zeros((5, 2, 3))), spec(2, 3, dtype=np.float64)),
            (Dataset.from_tensor_slices(["a", "b"]), TEXT),
            (Dataset.from_tensors("a"), TEXT),
            (
                Dataset.from_tensor_slices(({"a": [1, 2]}, [True, False])),
                ({"a": spec(dtype=np.int32)}, spec(dtype=np.bool_)),
            ),
            (stream_of(3), spec()),
            (Dataset.range(3).map(lambda x: (x, np.zeros(4))), (spec(), spec(4, dtype=float))),
            (Dataset.range(3).map(lambda x: "text"), TEXT),
            (Dataset.range(3).filter(lambda x: False), spec()),
            (Dataset.range(3).enumerate(), (spec(), spec())),
            (Dataset.range(3).shuffle(3).repeat().take(2).skip(1).shard(2, 0), spec()),
            (Dataset.range(3).batch(2), spec(None)),
            (Dataset.range(3).batch(2, drop_remainder=True), spec(2)),
            (Dataset.range(4).batch(2), spec(None)),
            (Dataset.range(3).batch(2).batch(2, drop_remainder=True), spec(2, None)),
            (Dataset.from_tensor_slices(["a", "b"]).batch(2), TensorSpec((None,), object)),
            (Dataset.range(3).batch(2).unbatch(), spec()),
            (Dataset.from_tensors(np.zeros((2, 3))).unbatch(), spec(3, dtype=float)),
            (Dataset.range(3).concatenate(Dataset.range(3)), spec()),
            (Dataset.range(3).batch(2).map(lambda x: x * 2), spec(None)),
            (Dataset.range(3).batch(2).map(lambda x: x[:, None] * np.ones(4)),
             spec(None, 4, dtype=float)),
            (Dataset.zip({"a": Dataset.range(3), "b": (stream_of(2),)}),
             {"a": spec(), "b": (spec(),)}),
            (Dataset.range(3).interleave(lambda x: Dataset.from_tensors((x, 1.0))),
             (spec(), spec(dtype=np.float32))),
            (Dataset.range(3).flat_map(lambda x: Dataset.range(2).batch(2)), spec(None)),
            (Dataset.range(3).map(lambda x: x).cache().prefetch(2), spec()),
            (Dataset.range(3).with_options(jt.data.Options()), spec()),
            (Dataset.range(3).map(lambda x, key: x, seed=1), spec()),
            (jt.data.TextLineDataset("no such file"), TEXT),
            (jt.data.TFRecordDataset("no such file").batch(2), TensorSpec((None,), object)),
        ],
    )  # fmt: skip
    def test_of_each_operation(self, dataset, expected):
        assert dataset.element_spec == expected

    def test_shapes_that_differ_are_unknown(self):
        wide, narrow = np.zeros((2, 3, 5)), np.zeros((2, 4, 5))
        dataset = Dataset.from_tensor_slices(wide).concatenate(Dataset.from_tensor_slices(narrow))
        assert dataset.element_spec == spec(None, 5, dtype=float)
        ranks = Dataset.from_tensors(np.zeros(2)).concatenate(Dataset.from_tensors(0.0))
        assert ranks.element_spec.shape is None

    def test_keeps_named_tuples_and_dataclasses(self):
        dataset = Dataset.range(3).map(lambda x: Point(x, Example(x)))
        found = dataset.batch(2).element_spec
        assert isinstance(found, Point) and isinstance(found.y, Example)
        assert found.x == found.y.x == spec(None)

    def test_of_a_signature(self):
        signature = {"a": TensorSpec((None, 3), np.float32)}
        dataset = Dataset.from_generator(lambda: 1 / 0, output_signature=signature)
        assert dataset.element_spec == signature
        assert dataset.batch(4).element_spec == {"a": TensorSpec((None, None, 3), np.float32)}

    def test_elements_fit_it(self):
        for dataset in (
            Dataset.range(5).batch(2),
            Dataset.range(5).batch(2, drop_remainder=True),
            Dataset.from_tensor_slices(np.zeros((3, 2), np.float32)).map(lambda x: x.sum()),
            stream_of(5).map(lambda x: jnp.ones((2, 2), jnp.bfloat16)),
        ):
            for element in dataset:
                assert dataset.element_spec.dtype == element.dtype
                assert len(dataset.element_spec.shape) == element.ndim

    def test_asking_does_not_count_as_a_pass(self):
        dataset = Dataset.range(9).shuffle(9, seed=1).map(lambda x: x)
        dataset.element_spec  # noqa: B018
        assert read(dataset) == read(Dataset.range(9).shuffle(9, seed=1).map(lambda x: x))

    @pytest.mark.parametrize("parallel", [None, 4])
    def test_asking_calls_a_function_for_one_element_only(self, parallel):
        called = set()
        dataset = Dataset.range(1000).map(lambda x: called.add(int(x)) or x, parallel)
        dataset.map(lambda x: x).batch(2).element_spec  # noqa: B018
        assert called == {0}

    def test_asking_does_not_fill_the_buffer_of_a_shuffle(self):
        called = set()
        dataset = stream_of(1000).map(lambda x: called.add(int(x)) or x)
        dataset.shuffle(1000).map(lambda x: x + 1).element_spec  # noqa: B018
        assert len(called) < 10

    def test_of_nothing_mapped_is_an_error_that_says_so(self):
        with pytest.raises(jt.errors.InvalidArgumentError, match="none"):
            Dataset.range(0).map(lambda x: x).element_spec  # noqa: B018


class TestCardinality:
    """As tf.data tells it."""

    @pytest.mark.parametrize(
        ("dataset", "expected"),
        [
            (Dataset.range(42), 42),
            (Dataset.from_tensors([1, 2]), 1),
            (Dataset.from_tensor_slices([1, 2]), 2),
            (stream_of(3), UNKNOWN),
            (Dataset.range(5).map(lambda x: x).enumerate().shuffle(3).cache().prefetch(1), 5),
            (Dataset.range(5).filter(lambda x: True), UNKNOWN),
            (Dataset.range(5).filter(lambda x: True).take(2), UNKNOWN),
            (Dataset.range(5).repeat(), INFINITE),
            (Dataset.range(5).repeat(-1), INFINITE),
            (Dataset.range(5).repeat(3), 15),
            (Dataset.range(5).repeat(0), 0),
            (Dataset.range(0).repeat(), 0),
            (stream_of(5).repeat(), INFINITE),
            (stream_of(5).repeat(2), UNKNOWN),
            (Dataset.range(5).repeat().repeat(2), INFINITE),
            (Dataset.range(5).repeat().repeat(0), 0),
            (Dataset.range(5).take(3), 3),
            (Dataset.range(5).take(9), 5),
            (Dataset.range(5).take(-1), 5),
            (Dataset.range(5).repeat().take(7), 7),
            (Dataset.range(5).repeat().take(-1), INFINITE),
            (Dataset.range(5).skip(3), 2),
            (Dataset.range(5).skip(9), 0),
            (Dataset.range(5).skip(-1), 0),
            (Dataset.range(5).repeat().skip(7), INFINITE),
            (Dataset.range(5).shard(2, 0), 3),
            (Dataset.range(5).shard(2, 1), 2),
            (Dataset.range(5).repeat().shard(2, 1), INFINITE),
            (Dataset.range(5).batch(2), 3),
            (Dataset.range(5).batch(2, drop_remainder=True), 2),
            (Dataset.range(5).repeat().batch(2), INFINITE),
            (Dataset.range(6).batch(2).unbatch(), UNKNOWN),
            (Dataset.range(5).concatenate(Dataset.range(2)), 7),
            (Dataset.range(5).concatenate(stream_of(2)), UNKNOWN),
            (Dataset.range(5).concatenate(Dataset.range(2).repeat()), INFINITE),
            (stream_of(5).concatenate(Dataset.range(2).repeat()), INFINITE),
            (Dataset.zip(Dataset.range(5), Dataset.range(3)), 3),
            (Dataset.zip(Dataset.range(5), Dataset.range(3).repeat()), 5),
            (Dataset.zip(Dataset.range(5).repeat(), Dataset.range(3).repeat()), INFINITE),
            (Dataset.zip(Dataset.range(5), stream_of(3)), UNKNOWN),
            (Dataset.range(5).interleave(lambda x: Dataset.range(2)), UNKNOWN),
            (Dataset.range(5).flat_map(lambda x: Dataset.range(2)), UNKNOWN),
            (jt.data.TextLineDataset("file"), UNKNOWN),
            (Dataset.range(5).with_options(jt.data.Options()), 5),
        ],
    )
    def test_of_each_operation(self, dataset, expected):
        assert dataset.cardinality() == expected
        if expected >= 0:
            assert len(dataset) == expected == len(read(dataset, expected + 1))

    def test_of_a_hint_is_not_nothing(self):
        hint = jt.data.experimental.SHARD_HINT
        assert Dataset.range(5).shard(hint, hint).cardinality() != 0

    def test_the_codes_are_those_of_tf_data(self):
        assert (INFINITE, UNKNOWN) == (-1, -2)
        assert jt.data.experimental.INFINITE_CARDINALITY == -1
        assert jt.data.experimental.UNKNOWN_CARDINALITY == -2
        assert jt.data.AUTOTUNE == -1

    def test_nothing_is_read_to_find_out(self, tmp_path):
        called = []
        dataset = Dataset.range(5).map(called.append).cache(tmp_path / "cache").batch(2)
        assert len(dataset) == 3
        assert not called and not list(tmp_path.iterdir())

    def test_len_says_why_there_is_none(self):
        with pytest.raises(TypeError, match="no end"):
            len(Dataset.range(5).repeat())
        with pytest.raises(TypeError, match="cardinality"):
            len(Dataset.range(5).filter(lambda x: True))

    def test_datasets_are_true_whatever_they_hold(self):
        assert Dataset.range(0) and Dataset.range(3).repeat() and stream_of(0)

    def test_lists_can_be_made_of_any_dataset_that_ends(self):
        assert list(stream_of(3)) == list(Dataset.range(3)) == [0, 1, 2]
        assert sum(Dataset.range(5)) == 10
        assert sorted(Dataset.range(5).shuffle(5)) == [0, 1, 2, 3, 4]


class TestRepr:
    def test_names_the_operations(self, tmp_path):
        shown = repr(Dataset.range(3).map(lambda x: x).batch(2))
        assert shown == "<Dataset of Batch <- Map <- Range>"
        path = write_lines(tmp_path / "lines", "ab")
        assert repr(jt.data.TextLineDataset(path).skip(1)).startswith("<Dataset of Skip <- ")

    def test_reads_nothing_and_ends(self):
        dataset = Dataset.from_generator(lambda: 1 / 0).map(lambda x: 1 / 0).repeat()
        assert "Repeat" in repr(dataset)
        assert len(repr(Dataset.from_tensor_slices(np.zeros((1000, 100))))) < 200
