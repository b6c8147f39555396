"""Batches are divided exactly as tf.distribute divides them: TensorFlow itself is asked."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute as tf_rebatch
from tensorflow.python.distribute import input_ops as tf_autoshard

import jaxtribute as jt
from tests.input._workers import mirrored, steps, steps_of_workers, steps_on, with_policy

POLICIES = ["AUTO", "DATA", "OFF"]

SIZES_AND_BATCHES = [
    (size, batch) for batch in (1, 2, 3, 4, 5, 7) for size in (0, 1, 6, 9, 13, 14, 16)
]


@functools.cache
def tf_mirrored(replicas):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def with_tf_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    return dataset.with_options(options)


def tf_steps(strategy, distributed):
    """Return the parts of each element as lists."""
    return [
        [np.asarray(part).tolist() for part in strategy.experimental_local_results(element)]
        for element in distributed
    ]


def tf_steps_on(replicas, dataset):
    strategy = tf_mirrored(replicas)
    return tf_steps(strategy, strategy.experimental_distribute_dataset(dataset))


# --- One worker ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["DATA", "OFF"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_every_batch_is_cut_as_tensorflow_cuts_it(replicas, policy):
    """R110-R115, for datasets that end in the middle of a batch and those that do not."""
    for size, batch in SIZES_AND_BATCHES:
        theirs = with_tf_policy(tf.data.Dataset.range(size).batch(batch), policy)
        ours = with_policy(jt.data.Dataset.range(size).batch(batch), policy)
        expected = tf_steps_on(replicas, theirs)
        assert steps_on(replicas, ours) == expected, f"range({size}).batch({batch})"


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_remainder_is_dropped_before_batches_are_cut(replicas):
    """R117."""
    for size, batch in [(9, 6), (12, 6), (5, 6), (14, 12), (12, 5), (15, 7), (8, 4)]:
        theirs = tf.data.Dataset.range(size).batch(batch, drop_remainder=True)
        ours = jt.data.Dataset.range(size).batch(batch, drop_remainder=True)
        assert steps_on(replicas, ours) == tf_steps_on(replicas, theirs), (size, batch)


@pytest.mark.parametrize("replicas", [2, 3])
def test_empty_parts_keep_type_rank_and_trailing_shape(replicas):
    """R116."""
    features = np.arange(30, dtype=np.float32).reshape(5, 3, 2)
    labels = np.arange(5, dtype=np.uint8)
    strategy, tf_strategy = mirrored(replicas), tf_mirrored(replicas)

    def described(local_results, element):
        return [
            [(np.shape(part), np.asarray(part).dtype) for part in local_results(component)]
            for component in (element["x"], element["y"])
        ]

    def data(dataset_class):
        return dataset_class.from_tensor_slices({"x": features, "y": labels}).batch(4)

    ours = strategy.experimental_distribute_dataset(data(jt.data.Dataset))
    theirs = tf_strategy.experimental_distribute_dataset(data(tf.data.Dataset))
    assert [described(strategy.experimental_local_results, e) for e in ours] == [
        described(tf_strategy.experimental_local_results, e) for e in theirs
    ]


PIPELINES = {
    "map after batch": lambda D: D.range(9).batch(4).map(lambda x: x * 2),
    "prefetch": lambda D: D.range(9).batch(4).prefetch(2),
    "repeat after batch": lambda D: D.range(5).batch(4).repeat(2),
    "repeat before batch": lambda D: D.range(5).repeat(2).batch(4),
    "take after batch": lambda D: D.range(20).batch(5).take(2),
    "skip after batch": lambda D: D.range(13).batch(5).skip(1),
    "filter before batch": lambda D: D.range(13).filter(lambda x: x % 3 > 0).batch(5),
    "batch of batches": lambda D: D.range(13).batch(2, drop_remainder=True).batch(5),
    "concatenate before batch": lambda D: D.range(4).concatenate(D.range(7)).batch(5),
    "interleave before batch": lambda D: (
        D.range(4).interleave(lambda x: D.range(x), cycle_length=2).batch(5)
    ),
    "rows that are a batch": lambda D: D.from_tensors(np.arange(7)),
}


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("replicas", [2, 3])
def test_the_batches_of_a_pipeline_are_found_and_cut(replicas, pipeline):
    """R109."""
    ours = pipeline(jt.data.Dataset)
    assert steps_on(replicas, ours) == tf_steps_on(replicas, pipeline(tf.data.Dataset))


@pytest.mark.parametrize("policy", ["AUTO", "OFF"])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_dataset_of_tf_data_is_divided_as_tensorflow_divides_it(replicas, policy):
    for size, batch in [(9, 4), (13, 5), (6, 1)]:
        dataset = with_tf_policy(tf.data.Dataset.range(size).batch(batch), policy)
        assert steps_on(replicas, dataset) == tf_steps_on(replicas, dataset)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_dataset_of_tf_data_without_elements_has_no_steps(policy):
    dataset = with_tf_policy(tf.data.Dataset.range(0).batch(4), policy)
    assert steps_on(2, dataset) == tf_steps_on(2, dataset) == []


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("batch", [4, 5])
@pytest.mark.parametrize("replicas", [1, 2])
def test_element_specs_have_the_same_batch_dimensions(replicas, batch, drop_remainder):
    """R136."""
    ours = mirrored(replicas).experimental_distribute_dataset(
        jt.data.Dataset.range(9).batch(batch, drop_remainder)
    )
    theirs = tf_mirrored(replicas).experimental_distribute_dataset(
        tf.data.Dataset.range(9).batch(batch, drop_remainder)
    )
    spec = theirs.element_spec
    expected = spec._value_specs if replicas > 1 else [spec]
    own = ours.element_spec.value_specs if replicas > 1 else [ours.element_spec]
    assert [s.shape for s in own] == [tuple(s.shape.as_list()) for s in expected]


def test_reduce_folds_over_global_batches():
    """R139."""
    tf_strategy, strategy = tf_mirrored(2), mirrored(2)
    theirs = tf_strategy.experimental_distribute_dataset(tf.data.Dataset.range(10).batch(4))
    ours = strategy.experimental_distribute_dataset(jt.data.Dataset.range(10).batch(4))
    expected = theirs.reduce(
        np.int64(0), lambda total, x: total + tf_strategy.reduce("SUM", x, axis=0)
    )
    total = ours.reduce(0, lambda total, x: total + strategy.reduce("SUM", x, axis=0))
    assert int(total) == int(expected) == 45


LOSSES = np.float32([1, 2, 4, 8, 16, 32, 64, 128])


def average_losses(lib, strategy, size, **kwargs):
    """Return what the replicas' shares of each batch add up to; `lib` is TensorFlow or ours."""

    def share(losses):
        return lib.nn.compute_average_loss(losses, **kwargs)

    batches = lib.data.Dataset.from_tensor_slices(LOSSES[:size]).batch(4)
    return [
        float(strategy.reduce("SUM", strategy.run(share, args=(batch,)), axis=None))
        for batch in strategy.experimental_distribute_dataset(batches)
    ]


@pytest.mark.parametrize("size", [5, 6, 7, 8])
def test_losses_of_a_last_batch_are_those_of_tensorflow(size):
    expected = average_losses(tf, tf_mirrored(2), size, global_batch_size=4)
    assert average_losses(jt, mirrored(2), size, global_batch_size=4) == pytest.approx(expected)


@pytest.mark.parametrize(("size", "weighed"), [(5, 16 / 2), (7, (16 + 32) / 4 + 64 / 2)])
def test_without_its_size_an_uneven_batch_is_averaged_as_by_one_replica(size, weighed):
    assert average_losses(tf, tf_mirrored(2), size) == pytest.approx([3.75, weighed])
    expected = [3.75, np.mean(LOSSES[4:size])]
    assert average_losses(jt, mirrored(2), size) == pytest.approx(expected)
    assert average_losses(tf, tf_mirrored(1), size) == pytest.approx(expected)


# --- Datasets made by a function -------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 9])
@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_take_the_elements_of_a_function_in_turn(replicas, size):
    """R127."""
    strategy, tf_strategy = mirrored(replicas), tf_mirrored(replicas)
    ours = strategy.distribute_datasets_from_function(
        lambda context: jt.data.Dataset.range(size).batch(2)
    )
    theirs = tf_strategy.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.range(size).batch(2)
    )
    assert steps(ours) == tf_steps(tf_strategy, theirs)


def test_functions_are_told_the_same_about_replicas_and_workers():
    """R126."""
    told = []

    def make(dataset_class):
        def dataset_fn(context):
            told.append(
                (
                    context.num_input_pipelines,
                    context.input_pipeline_id,
                    context.num_replicas_in_sync,
                    context.get_per_replica_batch_size(6),
                )
            )
            return dataset_class.range(4).batch(2)

        return dataset_fn

    mirrored(3).distribute_datasets_from_function(make(jt.data.Dataset))
    tf_mirrored(3).distribute_datasets_from_function(make(tf.data.Dataset))
    assert told == [(1, 0, 3, 2)] * 2


# --- Several workers -------------------------------------------------------------------------


def tf_pieces(dataset, workers, worker, replicas):
    """Return the pieces TensorFlow gives to one worker, without starting several.

    These are the steps that `tf.distribute` goes through: rebatch, then shard.
    """
    batch = int(tf_rebatch.compute_batch_size(dataset))
    sizes = tf_rebatch.batch_sizes_for_worker(batch, workers, replicas, worker)
    own = tf_autoshard.auto_shard_dataset(
        dataset.rebatch(sizes), workers, worker, workers * replicas
    )
    return [piece.tolist() for piece in own.as_numpy_iterator()]


def without_last_empty(pieces):
    while pieces and not pieces[-1]:
        pieces = pieces[:-1]
    return pieces


def assert_workers_get_what_tensorflow_gives(ours, theirs, workers, replicas):
    for worker, own in enumerate(steps_of_workers(ours, workers, replicas)):
        # The iterator of tf.distribute adds empty pieces at the end, for replicas without data.
        expected = without_last_empty(tf_pieces(theirs, workers, worker, replicas))
        assert without_last_empty([piece for step in own for piece in step]) == expected


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("workers", "replicas"), [(2, 1), (2, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize(
    ("size", "batch"), [(14, 8), (9, 4), (10, 5), (20, 8), (13, 7), (5, 1), (1, 4), (0, 4)]
)
def test_workers_get_the_pieces_tensorflow_gives_them(workers, replicas, size, batch, policy):
    """R119-R121."""
    ours = with_policy(jt.data.Dataset.range(size).batch(batch), policy)
    theirs = with_tf_policy(tf.data.Dataset.range(size).batch(batch), policy)
    assert_workers_get_what_tensorflow_gives(ours, theirs, workers, replicas)


@pytest.mark.parametrize("policy", ["AUTO", "FILE"])
@pytest.mark.parametrize(("workers", "replicas"), [(2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("batch", [4, 7])
def test_workers_get_the_files_tensorflow_gives_them(tmp_path, workers, replicas, batch, policy):
    """R122, R144, R146."""
    names = []
    for number, lines in enumerate([7, 5, 9]):
        names.append(str(tmp_path / f"{number}.txt"))
        (tmp_path / f"{number}.txt").write_text("".join(f"{number}{i}\n" for i in range(lines)))
    ours = jt.data.TextLineDataset(names).map(lambda line: np.int64(line)).batch(batch)
    theirs = tf.data.TextLineDataset(names).map(tf.strings.to_number).batch(batch)
    assert_workers_get_what_tensorflow_gives(
        with_policy(ours, policy), with_tf_policy(theirs, policy), workers, replicas
    )


@pytest.mark.parametrize("workers", [2, 3])
def test_a_hint_is_replaced_where_tensorflow_replaces_it(workers):
    """R148."""
    ours = jt.data.Dataset.range(13).shard(
        jt.data.experimental.SHARD_HINT, jt.data.experimental.SHARD_HINT
    )
    hint = tf.data.experimental.SHARD_HINT
    theirs = tf.data.Dataset.range(13).shard(hint, hint)
    assert_workers_get_what_tensorflow_gives(
        with_policy(ours.batch(6), "HINT"), with_tf_policy(theirs.batch(6), "HINT"), workers, 1
    )
