"""`jt.data.Dataset` means what `tf.data.Dataset` means, pipeline by pipeline."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jt

MANY = 200

IMAGES = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
LABELS = np.arange(4, dtype=np.int32)


def assert_same_elements(ours, theirs):
    own = list(ours.take(MANY))
    expected = list(theirs.take(MANY).as_numpy_iterator())
    assert len(own) == len(expected)
    for element, other in zip(own, expected, strict=True):
        leaves, structure = jax.tree.flatten(element)
        other_leaves, other_structure = jax.tree.flatten(other)
        assert structure == other_structure
        for leaf, other_leaf in zip(leaves, other_leaves, strict=True):
            assert type(leaf) is type(other_leaf)
            if not isinstance(leaf, bytes):
                assert (leaf.dtype, leaf.shape) == (other_leaf.dtype, other_leaf.shape)
            np.testing.assert_array_equal(leaf, other_leaf)


def specs_of(ours):
    return jax.tree.map(
        lambda spec: (spec.shape, spec.dtype),
        ours.element_spec,
        is_leaf=lambda node: isinstance(node, jt.TensorSpec),
    )


def tf_specs_of(theirs):
    def described(spec):
        shape = None if spec.shape.rank is None else tuple(spec.shape.as_list())
        return shape, np.dtype(spec.dtype.as_numpy_dtype)

    return jax.tree.map(
        described, theirs.element_spec, is_leaf=lambda node: isinstance(node, tf.TensorSpec)
    )


# Each takes the class of the datasets, ours or TensorFlow's.
PIPELINES = {
    # Sources
    "range": lambda D: D.range(5),
    "range with a step": lambda D: D.range(2, 17, 3),
    "range downwards": lambda D: D.range(5, 0, -2),
    "range of nothing": lambda D: D.range(0),
    "tensors": lambda D: D.from_tensors([1, 2, 3]),
    "tensors, a number": lambda D: D.from_tensors(3.5),
    "tensors, text": lambda D: D.from_tensors("text"),
    "tensors, a tuple": lambda D: D.from_tensors((1, np.ones(2), {"a": LABELS})),
    "slices": lambda D: D.from_tensor_slices(IMAGES),
    "slices of a list": lambda D: D.from_tensor_slices([1, 2, 3]),
    "slices of lists": lambda D: D.from_tensor_slices([[1.5, 2], [3, 4]]),
    "slices of a tuple of lists": lambda D: D.from_tensor_slices(([1, 2], [True, False])),
    "slices of a dict": lambda D: D.from_tensor_slices({"y": LABELS, "x": IMAGES}),
    "slices of no rows": lambda D: D.from_tensor_slices(np.zeros((0, 3), np.float32)).batch(2),
    "slices of text": lambda D: D.from_tensor_slices(["a", "bcd", "é", ""]),
    "slices of bytes": lambda D: D.from_tensor_slices([b"a\0", b"\0\xff"]).batch(2),
    # Batches
    "batch": lambda D: D.range(10).batch(4),
    "batch, even": lambda D: D.range(8).batch(4),
    "batch, dropping": lambda D: D.range(10).batch(4, drop_remainder=True),
    "batch, too large": lambda D: D.range(3).batch(5),
    "batch, too large, dropping": lambda D: D.range(3).batch(5, drop_remainder=True),
    "batch of batches": lambda D: D.range(10).batch(2).batch(2, drop_remainder=True),
    "batch of tuples": lambda D: D.from_tensor_slices((IMAGES, LABELS)).batch(3),
    "batch of dicts": lambda D: D.from_tensor_slices({"x": IMAGES, "y": LABELS}).batch(3),
    "unbatch": lambda D: D.range(6).batch(4).unbatch(),
    "unbatch rows": lambda D: D.from_tensor_slices(IMAGES).unbatch(),
    "unbatch a dict": lambda D: D.from_tensors({"x": IMAGES, "y": LABELS}).unbatch(),
    # Which elements
    "repeat": lambda D: D.range(3).repeat(3),
    "repeat, never": lambda D: D.range(3).repeat(0),
    "repeat for ever": lambda D: D.range(3).repeat(),
    "repeat nothing for ever": lambda D: D.range(0).repeat(),
    "repeat, minus one": lambda D: D.range(3).repeat(-1),
    "repeat, then batch": lambda D: D.range(3).repeat(3).batch(2),
    "batch, then repeat": lambda D: D.range(3).batch(2).repeat(2),
    "take": lambda D: D.range(6).take(2),
    "take too many": lambda D: D.range(6).take(20),
    "take none": lambda D: D.range(6).take(0),
    "take, minus one": lambda D: D.range(6).take(-1),
    "take of no end": lambda D: D.range(3).repeat().take(7),
    "skip": lambda D: D.range(6).skip(2),
    "skip too many": lambda D: D.range(6).skip(20),
    "skip, minus one": lambda D: D.range(6).skip(-1),
    "shard": lambda D: D.range(10).shard(3, 1),
    "shard of too few": lambda D: D.range(2).shard(3, 2),
    "shard, then batch": lambda D: D.range(10).shard(3, 1).batch(2),
    "batch, then shard": lambda D: D.range(10).batch(2).shard(3, 1),
    "filter": lambda D: D.range(10).filter(lambda x: x % 3 == 0),
    "filter, then batch": lambda D: D.range(10).filter(lambda x: x % 3 == 0).batch(3),
    "shuffle within nothing": lambda D: D.range(10).shuffle(1).batch(4),
    # Several datasets
    "concatenate": lambda D: D.range(3).concatenate(D.range(5, 7)),
    "concatenate batches": lambda D: (
        D.range(3)
        .batch(3, drop_remainder=True)
        .concatenate(D.range(4).batch(2, drop_remainder=True))
    ),
    "concatenate after no end": lambda D: D.range(2).repeat().concatenate(D.range(3)),
    "zip": lambda D: D.zip((D.range(3), D.range(10, 20))),
    "zip of arguments": lambda D: D.zip(D.range(3), D.range(10, 20)),
    "zip of one": lambda D: D.zip((D.range(3),)),
    "zip of a dict": lambda D: D.zip({"a": D.range(3), "b": (D.range(4), D.range(5))}),
    "zip with no end": lambda D: D.zip((D.range(3), D.range(2).repeat())),
    "zip without end": lambda D: D.zip((D.range(3).repeat(), D.range(2).repeat())),
    "interleave": lambda D: D.range(1, 6).interleave(
        lambda x: D.from_tensors(x).repeat(6), cycle_length=2, block_length=4
    ),
    "interleave different lengths": lambda D: D.range(1, 8).interleave(
        lambda x: D.range(x), cycle_length=3, block_length=2
    ),
    "interleave one": lambda D: D.range(5).interleave(lambda x: D.range(x), cycle_length=1),
    "interleave some empty": lambda D: D.range(6).interleave(
        lambda x: D.range(x % 3), cycle_length=2
    ),
    "interleave batches": lambda D: (
        D.range(10).batch(4).interleave(lambda x: D.from_tensors(x).repeat(2), cycle_length=2)
    ),
    "flat_map": lambda D: D.range(5).flat_map(lambda x: D.range(x)),
    # Element by element
    "map": lambda D: D.range(5).map(lambda x: x * 2),
    "map to and from tuples": lambda D: (
        D.range(5).map(lambda x: (x, x * x)).map(lambda x, y: {"sum": x + y, "both": (x, y)})
    ),
    "map batches": lambda D: D.range(5).batch(2).map(lambda x: {"a": x, "b": (x, x * 2)}),
    "map a dict": lambda D: D.from_tensor_slices({"x": IMAGES, "y": LABELS}).map(
        lambda e: (e["x"] + 1, e["y"])
    ),
    "enumerate": lambda D: D.range(3).enumerate(),
    "enumerate batches": lambda D: D.range(5, 9).batch(2).enumerate(start=7),
    "enumerate tuples": lambda D: D.from_tensor_slices((IMAGES, LABELS)).enumerate(),
    # Types
    "uint8": lambda D: D.from_tensor_slices(np.arange(3, dtype=np.uint8)).batch(2),
    "float16": lambda D: D.from_tensor_slices(np.arange(3, dtype=np.float16)).batch(2),
    "bfloat16": lambda D: D.from_tensor_slices(np.arange(3).astype(jnp.bfloat16)).batch(2),
    "complex": lambda D: D.from_tensor_slices(np.array([1 + 2j, 3j])).batch(2),
    "bool": lambda D: D.from_tensor_slices([True, False]).batch(2),
    # How it is executed
    "cache": lambda D: D.range(3).cache().repeat(2),
    "prefetch": lambda D: D.range(3).prefetch(2).batch(2),
    "prefetch, as many as is good": lambda D: D.range(3).prefetch(-1),
    "apply": lambda D: D.range(4).apply(lambda dataset: dataset.batch(2)),
    "several calls at once": lambda D: D.range(20).map(lambda x: x + 1, num_parallel_calls=3),
    # All together
    "long": lambda D: (
        D.range(20).skip(3).take(12).shard(2, 1).batch(4).repeat(2).enumerate().skip(1)
    ),
}


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
class TestEveryPipeline:
    def test_its_elements_are_those_of_tf_data(self, pipeline):
        assert_same_elements(pipeline(jt.data.Dataset), pipeline(tf.data.Dataset))

    def test_its_cardinality_is_that_of_tf_data(self, pipeline):
        assert pipeline(jt.data.Dataset).cardinality() == pipeline(tf.data.Dataset).cardinality()

    def test_its_element_spec_is_that_of_tf_data(self, pipeline):
        assert specs_of(pipeline(jt.data.Dataset)) == tf_specs_of(pipeline(tf.data.Dataset))


def total(x):
    return tf.reduce_sum(x) if isinstance(x, tf.Tensor) else np.sum(x)


COUNT = st.integers(0, 9)

OPERATIONS = st.one_of(
    st.builds(lambda n, drop: lambda D, d: d.batch(n, drop), st.integers(1, 4), st.booleans()),
    st.builds(lambda n: lambda D, d: d.repeat(n), st.integers(0, 3)),
    st.builds(lambda n: lambda D, d: d.repeat().take(n), COUNT),
    st.builds(lambda n: lambda D, d: d.take(n), st.integers(-1, 9)),
    st.builds(lambda n: lambda D, d: d.skip(n), COUNT),
    st.builds(lambda n, i: lambda D, d: d.shard(n, i % n), st.integers(1, 3), COUNT),
    st.builds(lambda n: lambda D, d: d.concatenate(d.take(n)), COUNT),
    st.builds(lambda n: lambda D, d: D.zip((d, d.skip(n))).map(lambda a, b: a), COUNT),
    st.builds(
        lambda cycle, block, most: (
            lambda D, d: d.interleave(
                lambda x: D.from_tensors(x).repeat(total(x) % most), cycle, block
            )
        ),
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(1, 4),
    ),
    st.sampled_from(
        [
            lambda D, d: d.map(lambda x: x * 3 + 1),
            lambda D, d: d.enumerate().map(lambda i, x: x + i),
            lambda D, d: d.filter(lambda x: total(x) % 2 == 0),
            lambda D, d: d.batch(3).unbatch(),
            lambda D, d: d.cache(),
            lambda D, d: d.prefetch(2),
        ]
    ),
)


@settings(max_examples=150)
@given(size=st.integers(0, 13), operations=st.lists(OPERATIONS, min_size=1, max_size=5))
def test_any_chain_of_operations_gives_the_elements_of_tf_data(size, operations):
    def pipeline(dataset_class):
        dataset = dataset_class.range(size)
        for operation in operations:
            dataset = operation(dataset_class, dataset)
        return dataset

    theirs = pipeline(tf.data.Dataset)
    try:
        list(theirs.take(MANY))
    except tf.errors.InvalidArgumentError:  # for elements of different shapes in a batch
        with pytest.raises(jt.errors.InvalidArgumentError, match="different shapes"):
            list(pipeline(jt.data.Dataset).take(MANY))
    else:
        assert_same_elements(pipeline(jt.data.Dataset), theirs)


# --- What is random --------------------------------------------------------------------------


@pytest.mark.parametrize("buffer_size", [3, 10, 25])
def test_shuffle_delivers_every_element_once_as_tf_data_does(buffer_size):
    ours = jt.data.Dataset.range(20).shuffle(buffer_size, seed=1)
    theirs = tf.data.Dataset.range(20).shuffle(buffer_size, seed=1)
    own = [list(ours.as_numpy_iterator()) for _ in range(2)]
    other = [list(theirs.as_numpy_iterator()) for _ in range(2)]
    assert sorted(own[0]) == sorted(other[0]) == list(range(20))
    assert own[0] != own[1] and other[0] != other[1]  # each pass has an order of its own


def test_shuffle_can_keep_its_order_as_in_tf_data():
    for dataset_class in (jt.data.Dataset, tf.data.Dataset):
        dataset = dataset_class.range(20).shuffle(20, seed=1, reshuffle_each_iteration=False)
        first, second = (list(dataset.as_numpy_iterator()) for _ in range(2))
        assert first == second


# --- What is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(lambda D: D.from_tensor_slices(3), id="slices of a number"),
        pytest.param(lambda D: D.from_tensor_slices((IMAGES, LABELS[:2])), id="different rows"),
        pytest.param(lambda D: D.range(3).batch(0), id="batches of none"),
        pytest.param(lambda D: D.range(3).shard(2, 2), id="no such shard"),
        pytest.param(lambda D: D.range(3).shard(2, -2), id="shard before the first"),
        pytest.param(lambda D: D.range(3).shuffle(0), id="shuffle in no buffer"),
        pytest.param(lambda D: D.range(3).map(3), id="map without a function"),
        pytest.param(lambda D: D.zip((D.range(3), 3)), id="zip with a number"),
        pytest.param(lambda D: D.range(3).concatenate(3), id="concatenate a number"),
        pytest.param(
            lambda D: D.range(3).interleave(lambda x: x, cycle_length=1), id="interleave numbers"
        ),
        pytest.param(lambda D: D.range(3).batch(2).batch(2), id="batches of different sizes"),
        pytest.param(lambda D: D.range(5).unbatch(), id="unbatch numbers"),
    ],
)
def test_both_refuse_the_same_mistakes(mistake):
    for dataset_class in (jt.data.Dataset, tf.data.Dataset):
        with pytest.raises((ValueError, TypeError, AttributeError, tf.errors.OpError)):
            list(mistake(dataset_class))


# --- Files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"one\ntwo\n", id="plain"),
        pytest.param(b"one\ntwo", id="no end"),
        pytest.param(b"one\r\ntwo\r\n", id="carriage returns"),
        pytest.param(b"\n\nthree\n\n", id="empty lines"),
        pytest.param(b"", id="empty"),
        pytest.param("é\u2028ü\n".encode(), id="not ASCII"),
        pytest.param(b"\0\xff\n\x0b\x0c\n", id="not text"),
    ],
)
def test_lines_are_those_of_tf_data(tmp_path, content):
    path = tmp_path / "lines.txt"
    path.write_bytes(content)
    ours, theirs = jt.data.TextLineDataset(path), tf.data.TextLineDataset(str(path))
    assert_same_elements(ours, theirs)


def test_files_are_read_one_after_the_other_or_interleaved(tmp_path):
    names = []
    for name in "abc":
        (tmp_path / name).write_text("".join(f"{name}{i}\n" for i in range(4)))
        names.append(str(tmp_path / name))

    def interleaved(data):
        return data.Dataset.list_files(str(tmp_path / "*"), shuffle=False).interleave(
            lambda name: data.TextLineDataset(name), cycle_length=2, block_length=3
        )

    assert_same_elements(jt.data.TextLineDataset(names), tf.data.TextLineDataset(names))
    assert_same_elements(interleaved(jt.data), interleaved(tf.data))


def test_files_are_listed_as_by_tf_data(tmp_path):
    for name in ("b.txt", "a.txt", "c.csv"):
        (tmp_path / name).write_text("")
    for pattern in ("*.txt", "[ab].*", "?.csv"):
        assert_same_elements(
            jt.data.Dataset.list_files(str(tmp_path / pattern), shuffle=False),
            tf.data.Dataset.list_files(str(tmp_path / pattern), shuffle=False),
        )
    with pytest.raises(jt.errors.NotFoundError, match=r"\.png"):
        jt.data.Dataset.list_files(str(tmp_path / "*.png"))
