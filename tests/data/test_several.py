"""Several elements, several datasets: batch, unbatch, concatenate, zip, interleave, flat_map."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.data._support import plain, read, stream_of, streamed

Dataset = jt.data.Dataset

SOURCES = pytest.mark.parametrize("source", [Dataset.range, stream_of], ids=["table", "stream"])


@SOURCES
class TestBatch:
    def test_stacks_consecutive_elements(self, source):
        assert read(source(8).batch(3)) == [[0, 1, 2], [3, 4, 5], [6, 7]]
        assert read(source(8).batch(3, drop_remainder=True)) == [[0, 1, 2], [3, 4, 5]]
        assert read(source(2).batch(5)) == [[0, 1]]
        assert read(source(2).batch(5, drop_remainder=True)) == []
        assert read(source(0).batch(2)) == []

    def test_stacks_each_component(self, source):
        dataset = source(3).map(lambda x: {"x": (x, np.array([x, x])), "y": str(x)})
        first, second = dataset.batch(2)
        assert plain(first) == {"x": ([0, 1], [[0, 0], [1, 1]]), "y": [b"0", b"1"]}
        assert plain(second) == {"x": ([2], [[2, 2]]), "y": [b"2"]}
        assert first["x"][1].shape == (2, 2) and first["x"][0].dtype == np.int64

    def test_keeps_types(self, source):
        for value in (np.float32(1), jnp.bfloat16(1), np.bool_(True), np.uint8(1), b"x"):
            (batch,) = source(2).map(lambda x, value=value: value).batch(2)
            assert batch.dtype == (object if value == b"x" else value.dtype)

    def test_of_batches(self, source):
        assert read(source(8).batch(2).batch(2)) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]

    def test_a_numpy_size_and_parallel_calls_are_accepted(self, source):
        dataset = source(4).batch(np.int64(2), num_parallel_calls=2, deterministic=True)
        assert read(dataset) == [[0, 1], [2, 3]]

    @pytest.mark.parametrize("size", [0, -1, 2.0, None])
    def test_refuses_a_size_below_one(self, source, size):
        with pytest.raises(jt.errors.InvalidArgumentError, match="batch_size"):
            source(4).batch(size)

    def test_different_shapes_are_refused_and_named(self, source):
        ragged = source(6).map(lambda x: np.zeros(3 if x < 4 else 2))
        with pytest.raises(jt.errors.InvalidArgumentError, match=r"\(3,\).*\(2,\)") as raised:
            read(ragged.batch(3))
        told = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
        assert "element 3" in told or "element 4" in told

    def test_different_structures_are_refused(self, source):
        changing = source(4).map(lambda x: (x, x) if x < 3 else {"x": x})
        with pytest.raises(jt.errors.InvalidArgumentError, match="structure"):
            read(changing.batch(4))

    def test_the_same_keys_in_another_order_are_the_same_structure(self, source):
        dicts = source(2).map(lambda x: {"a": x, "b": 10} if x else {"b": 10, "a": x})
        assert read(dicts.batch(2)) == [{"a": [0, 1], "b": [10, 10]}]

    def test_different_types_are_refused(self, source):
        """Promoting them would make the type of a batch depend on which elements it holds."""
        mixed = source(4).map(lambda x: np.int32(1) if x < 3 else np.float32(1))
        with pytest.raises((jt.errors.InvalidArgumentError, TypeError), match=r"int32.*float32"):
            read(mixed.batch(4))


@SOURCES
class TestUnbatch:
    def test_undoes_batch(self, source):
        assert read(source(7).batch(3).unbatch()) == list(range(7))

    def test_takes_batches_of_any_length(self, source):
        lengths = [3, 2, 0, 4]
        dataset = source(4).map(lambda x: np.arange(lengths[int(x)]))
        assert read(dataset.unbatch()) == [0, 1, 2, 0, 1, 0, 1, 2, 3]

    def test_takes_structures(self, source):
        dataset = source(2).map(lambda x: ({"a": np.array([x, 10])}, ["p", "q"]))
        expected = [({"a": 0}, b"p"), ({"a": 10}, b"q"), ({"a": 1}, b"p"), ({"a": 10}, b"q")]
        assert read(dataset.unbatch()) == expected

    def test_takes_arrays_apart_along_the_first_axis_only(self, source):
        dataset = source(1).map(lambda x: np.arange(4).reshape(2, 2)).unbatch()
        assert read(dataset) == [[0, 1], [2, 3]]
        assert read(dataset.unbatch()) == [0, 1, 2, 3]

    def test_of_empty_batches_is_empty(self, source):
        assert read(source(3).map(lambda x: np.zeros(0)).unbatch()) == []

    def test_refuses_scalars_and_names_the_element(self, source):
        dataset = source(3).map(lambda x: np.zeros(2) if x < 2 else np.float32(0)).unbatch()
        with pytest.raises(jt.errors.InvalidArgumentError, match="element 2 "):
            read(dataset)

    def test_refuses_components_of_different_lengths(self, source):
        with pytest.raises(jt.errors.InvalidArgumentError, match="different numbers"):
            read(source(3).map(lambda x: (np.zeros(2), np.zeros(3))).unbatch())


class TestConcatenate:
    @pytest.mark.parametrize("first", [Dataset.range, stream_of])
    @pytest.mark.parametrize("second", [Dataset.range, stream_of])
    def test_one_after_the_other(self, first, second):
        assert read(first(3).concatenate(second(4))) == [0, 1, 2, 0, 1, 2, 3]
        assert read(first(0).concatenate(second(2))) == [0, 1]
        assert read(first(2).concatenate(second(0))) == [0, 1]
        assert read(first(3).concatenate(second(3)).batch(4)) == [[0, 1, 2, 0], [1, 2]]
        assert read(first(2).repeat().concatenate(second(4)), 5) == [0, 1, 0, 1, 0]
        assert read(first(2).concatenate(second(2).repeat()), 5) == [0, 1, 0, 1, 0]

    def test_shuffled_together(self):
        dataset = Dataset.range(5).concatenate(Dataset.range(5, 10)).shuffle(10, seed=1)
        order = read(dataset)
        assert sorted(order) == list(range(10)) and order != list(range(10))
        assert sorted(np.concatenate(read(dataset.batch(3)))) == list(range(10))

    def test_of_structures(self):
        a = Dataset.from_tensor_slices({"x": [1, 2], "y": ["a", "b"]})
        b = Dataset.from_tensor_slices({"x": [3], "y": ["c"]})
        assert read(a.concatenate(b).batch(3)) == [{"x": [1, 2, 3], "y": [b"a", b"b", b"c"]}]

    def test_of_hundreds_of_datasets(self):
        many = functools.reduce(Dataset.concatenate, [Dataset.range(i, i + 1) for i in range(300)])
        assert read(many) == list(range(300))
        assert len(many) == 300

    @pytest.mark.parametrize("other", [[1, 2], None, np.arange(3)])
    def test_refuses_what_is_no_dataset(self, other):
        with pytest.raises(TypeError, match=r"jt\.data\.Dataset"):
            Dataset.range(3).concatenate(other)

    def test_batches_of_different_shapes_are_refused_the_same_way_from_tables_and_streams(self):
        wide, narrow = np.zeros((2, 3)), np.zeros((2, 4))
        tables = Dataset.from_tensor_slices(wide).concatenate(Dataset.from_tensor_slices(narrow))
        streams = streamed(*wide).concatenate(streamed(*narrow))
        for dataset in (tables, streams):
            with pytest.raises(jt.errors.InvalidArgumentError, match=r"\(3,\).*\(4,\)"):
                read(dataset.batch(3))

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(Dataset.range(2, output_type=np.float32), id="type"),
            pytest.param(Dataset.range(2).map(lambda x: (x, x)), id="structure"),
        ],
    )
    def test_elements_of_another_kind_never_share_a_batch(self, other):
        dataset = Dataset.range(2).concatenate(other).batch(4)
        with pytest.raises((jt.errors.InvalidArgumentError, TypeError)):
            read(dataset)


class TestZip:
    """The examples of tf.data, and structures."""

    @SOURCES
    def test_side_by_side(self, source):
        assert read(Dataset.zip(source(2), source(2))) == [(0, 0), (1, 1)]
        assert read(Dataset.zip((source(2), source(2)))) == [(0, 0), (1, 1)]

    def test_of_different_kinds(self):
        a, b = Dataset.range(1, 4), Dataset.range(4, 7)
        c, d = Dataset.range(7, 13).batch(2), Dataset.range(13, 15)
        assert read(Dataset.zip(a, b, c)) == [
            (1, 4, [7, 8]), (2, 5, [9, 10]), (3, 6, [11, 12]),
        ]  # fmt: skip
        assert read(Dataset.zip(a, d)) == [(1, 13), (2, 14)]

    def test_takes_nested_structures(self):
        a, b, c = Dataset.range(2), stream_of(2), Dataset.range(2).map(str)
        assert read(Dataset.zip({"a": a, "b": (b, c)})) == [
            {"a": 0, "b": (0, b"0")}, {"a": 1, "b": (1, b"1")},
        ]  # fmt: skip
        assert read(Dataset.zip(a)) == [0, 1]
        assert read(Dataset.zip((a,))) == [(0,), (1,)]

    def test_ends_with_the_shortest(self):
        endless = Dataset.range(3).repeat()
        assert read(Dataset.zip(endless, stream_of(5))) == [(0, 0), (1, 1), (2, 2), (0, 3), (1, 4)]
        assert read(Dataset.zip(stream_of(0), endless)) == []
        assert read(Dataset.zip(endless, endless), 4) == [(0, 0), (1, 1), (2, 2), (0, 0)]

    def test_features_and_labels_can_be_batched(self):
        features = Dataset.from_tensor_slices(np.ones((5, 2)))
        labels = Dataset.range(5)
        shapes = [(x.shape, y.shape) for x, y in Dataset.zip(features, labels).batch(2)]
        assert shapes == [((2, 2), (2,)), ((2, 2), (2,)), ((1, 2), (1,))]

    @pytest.mark.parametrize(
        "arguments",
        [
            pytest.param((), id="nothing"),
            pytest.param(((),), id="empty tuple"),
            pytest.param((Dataset.range(2), [1, 2]), id="list of numbers"),
            pytest.param((np.arange(3),), id="array"),
            pytest.param(([Dataset.range(2), Dataset.range(2)],), id="list of datasets"),
        ],
    )
    def test_refuses_what_is_no_dataset(self, arguments):
        """A list, which elsewhere is one array, is refused as in tf.data."""
        with pytest.raises(TypeError, match=r"zip.*(Dataset|tuple)"):
            Dataset.zip(*arguments)


def _copies(x):
    return Dataset.from_tensors(x).repeat(6)


@SOURCES
class TestInterleave:
    def test_the_example_of_tf_data(self, source):
        dataset = source(6).skip(1).interleave(_copies, cycle_length=2, block_length=4)
        assert read(dataset) == [
            1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2,
            3, 3, 3, 3, 4, 4, 4, 4, 3, 3, 4, 4,
            5, 5, 5, 5, 5, 5,
        ]  # fmt: skip

    @pytest.mark.parametrize("cycle_length", [1, 2, 3, 7])
    @pytest.mark.parametrize("block_length", [1, 2, 5])
    def test_follows_the_algorithm_of_tf_data(self, source, cycle_length, block_length):
        lengths = [3, 0, 2, 5, 0, 1, 4]

        def inner(x):
            return Dataset.range(lengths[int(x)]).map(lambda y: x * 10 + y)

        dataset = source(7).interleave(inner, cycle_length, block_length)
        expected = _interleaved(
            [[i * 10 + y for y in range(n)] for i, n in enumerate(lengths)],
            cycle_length,
            block_length,
        )
        assert read(dataset) == expected

    def test_what_tensorflow_delivers(self, source):
        """Observed with TensorFlow 2.21."""
        lengths = [3, 0, 2, 5, 0, 1, 4]

        def inner(x):
            return Dataset.range(lengths[int(x)]).map(lambda y: x * 10 + y)

        assert read(source(7).interleave(inner, cycle_length=2)) == [
            0, 1, 20, 2, 21, 30, 31, 50, 32, 33, 60, 34, 61, 62, 63,
        ]  # fmt: skip
        assert read(source(7).interleave(inner, cycle_length=3, block_length=2)) == [
            0, 1, 20, 21, 2, 30, 31, 32, 33, 50, 60, 61, 34, 62, 63,
        ]  # fmt: skip

    def test_delivers_everything_by_default(self, source):
        dataset = source(5).interleave(_copies, num_parallel_calls=jt.data.AUTOTUNE)
        assert sorted(read(dataset)) == sorted([*range(5)] * 6)
        assert read(dataset) == read(source(5).interleave(_copies, jt.data.AUTOTUNE))

    def test_opens_a_dataset_when_its_turn_comes(self, source):
        opened = []

        def inner(x):
            opened.append(int(x))
            return Dataset.from_tensors(x)

        iterator = iter(source(10).interleave(inner, cycle_length=2))
        next(iterator)
        assert opened == [0]
        next(iterator)
        assert opened == [0, 1]

    def test_endless_datasets_take_turns(self, source):
        dataset = source(4).interleave(lambda x: Dataset.from_tensors(x).repeat(), cycle_length=3)
        assert read(dataset, 7) == [0, 1, 2, 0, 1, 2, 0]

    def test_components_of_a_tuple_are_arguments(self, source):
        dataset = source(3).map(lambda x: (x, x + 1)).interleave(lambda a, b: Dataset.range(a, b))
        assert read(dataset) == [0, 1, 2]

    def test_nested(self, source):
        def outer(x):
            return Dataset.range(2).interleave(
                lambda y: Dataset.range(2).map(lambda z: x * 100 + y * 10 + z), cycle_length=2
            )

        assert read(source(2).interleave(outer, cycle_length=1)) == [
            0, 10, 1, 11, 100, 110, 101, 111,
        ]  # fmt: skip

    def test_refuses_a_function_that_makes_no_dataset_and_names_it(self, source):
        def not_a_dataset(x):
            return x

        with pytest.raises(TypeError, match=r"jt\.data\.Dataset") as raised:
            read(source(3).interleave(not_a_dataset))
        assert "not_a_dataset" in "".join(raised.value.__notes__)

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [((0,), "cycle_length"), ((-2,), "cycle_length"), ((1, 0), "block_length")],
    )
    def test_refuses_lengths_below_one(self, source, arguments, name):
        with pytest.raises(jt.errors.InvalidArgumentError, match=name):
            source(3).interleave(_copies, *arguments)


def _interleaved(inputs, cycle_length, block_length):
    """What InterleaveDataset of TensorFlow does, in Python."""
    waiting = iter(inputs)
    slots, ended, turn, in_block, delivered = [None] * cycle_length, False, 0, 0, []
    while not ended or any(slot is not None for slot in slots):
        if slots[turn] is None and not ended:
            made = next(waiting, None)
            ended = made is None
            slots[turn] = None if ended else iter(made)
            continue
        if slots[turn] is not None and (found := next(slots[turn], None)) is not None:
            delivered.append(found)
            in_block += 1
            if in_block < block_length:
                continue
        elif slots[turn] is not None:
            slots[turn] = None
        turn, in_block = (turn + 1) % cycle_length, 0
    return delivered


@SOURCES
class TestFlatMap:
    def test_the_example_of_tf_data(self, source):
        rows = np.arange(1, 10).reshape(3, 3)
        dataset = source(3).map(lambda x: rows[x]).flat_map(Dataset.from_tensor_slices)
        assert read(dataset) == list(range(1, 10))

    def test_one_dataset_after_the_other(self, source):
        dataset = source(4).flat_map(lambda x: Dataset.range(int(x)))
        assert read(dataset) == [0, 0, 1, 0, 1, 2]

    def test_refuses_what_is_no_function(self, source):
        with pytest.raises(TypeError, match=r"flat_map|function"):
            source(3).flat_map(Dataset.range(2))
