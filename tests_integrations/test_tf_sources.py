"""Datasets of tf.data, distributed as they are."""

import collections
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jaxtribute as jt
from jaxtribute.input import distribute_from_function
from tests.input._workers import (
    distribute_to,
    mirrored,
    run_workers,
    steps,
    steps_of_workers,
    steps_on,
)
from tests_integrations.test_tf_distribute import with_tf_policy

Pair = collections.namedtuple("Pair", ["x", "y"])


def on_two(dataset):
    return mirrored(2).experimental_distribute_dataset(dataset)


# --- Elements --------------------------------------------------------------------------------


def test_tuples_and_dicts_keep_their_structure():
    dataset = tf.data.Dataset.from_tensor_slices(
        {"x": np.arange(10, dtype=np.float32).reshape(5, 2), "y": (np.arange(5), np.ones(5))}
    )
    first, last = on_two(dataset.batch(4))
    assert first.keys() == {"x", "y"}
    assert type(first["y"]) is tuple
    np.testing.assert_array_equal(first["x"].values[1], [[4, 5], [6, 7]])
    np.testing.assert_array_equal(first["y"][0].values[1], [2, 3])
    assert last["x"].values[1].shape == (0, 2)


def test_named_tuples_stay_named():
    (element,) = on_two(tf.data.Dataset.from_tensors(Pair(np.arange(2), np.ones(2))))
    assert isinstance(element, Pair)
    np.testing.assert_array_equal(element.x.values[1], [1])


def test_text_stays_on_the_host_as_bytes():
    dataset = tf.data.Dataset.from_tensor_slices({"text": ["a", "é", "c"], "x": [1, 2, 3]}).batch(2)
    first, last = on_two(dataset)
    assert [part.tolist() for part in first["text"].values] == [[b"a"], ["é".encode()]]
    assert [part.tolist() for part in last["text"].values] == [[b"c"], []]
    assert isinstance(first["x"].values[0], jax.Array)


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.uint8, np.int16, np.float16, jnp.bfloat16, np.float32, np.complex64]
)
def test_types_are_kept(dtype):
    values = np.array([0, 1, 1, 0]).astype(dtype)
    (element,) = on_two(tf.data.Dataset.from_tensor_slices(values).batch(4))
    assert element.values[0].dtype == dtype
    np.testing.assert_array_equal(np.concatenate(element.values), values)


def test_64_bits_become_32_as_always_in_jax():
    distributed = on_two(tf.data.Dataset.from_tensor_slices((np.arange(4), np.ones(4))).batch(4))
    ((x, y),) = distributed
    assert (x.values[0].dtype, y.values[0].dtype) == (jnp.int32, jnp.float32)
    assert [s.value_specs[0].dtype for s in distributed.element_spec] == [jnp.int32, jnp.float32]


def test_the_element_spec_comes_from_the_dataset_without_reading_it():
    def fail():
        raise AssertionError("read")

    dataset = tf.data.Dataset.from_generator(
        fail, output_signature={"x": tf.TensorSpec((4, None, 3), tf.float32)}
    )
    assert on_two(dataset).element_spec == {
        "x": jt.PerReplicaSpec(*[jt.TensorSpec((2, None, 3), jnp.float32)] * 2)
    }


def test_the_number_of_steps_is_known_when_tf_data_knows_it():
    dataset = tf.data.Dataset.range(10).batch(4)
    assert on_two(dataset).cardinality() == 3
    assert on_two(dataset.repeat()).cardinality() == jt.data.INFINITE_CARDINALITY
    some = dataset.filter(lambda x: x[0] > 0)
    assert on_two(some).cardinality() == jt.data.UNKNOWN_CARDINALITY


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        pytest.param(
            lambda: tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])).batch(2),
            "RaggedTensorSpec",
            id="ragged",
        ),
        pytest.param(
            lambda: tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(np.eye(2))).batch(2),
            "SparseTensorSpec",
            id="sparse",
        ),
        pytest.param(lambda: tf.data.Dataset.range(4).window(2), "DatasetSpec", id="datasets"),
        pytest.param(lambda: tf.data.Dataset.from_tensors((1, None)), "NoneTensorSpec", id="None"),
    ],
)
def test_what_jax_has_no_counterpart_of_is_refused_when_distributed(dataset, name):
    with pytest.raises(jt.errors.InvalidArgumentError, match=f"{name}.*dense.*map"):
        on_two(dataset())


def test_a_dataset_that_is_not_batched_is_refused():
    with pytest.raises(jt.errors.InvalidArgumentError, match=r"no batch dimension.*`batch`"):
        next(iter(on_two(tf.data.Dataset.range(4))))


def test_an_error_of_the_pipeline_comes_out_where_its_element_was_due():
    def check(x):
        if x[0] > 1:
            raise KeyError("no such feature")
        return x

    def checked(x):
        return tf.ensure_shape(tf.numpy_function(check, [x], x.dtype), [None])

    iterator = iter(on_two(tf.data.Dataset.range(4).batch(2).map(checked)))
    next(iterator)
    with pytest.raises(tf.errors.UnknownError, match="no such feature"):
        next(iterator)


# --- Options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "used"), [("AUTO", "DATA"), ("DATA", "DATA"), ("OFF", "OFF")])
def test_the_policy_is_read_from_the_options_of_the_dataset(asked, used):
    dataset = with_tf_policy(tf.data.Dataset.range(8).batch(4), asked)
    assert distribute_to(dataset, 2, 0, 1).feed.plan.policy is jt.data.AutoShardPolicy[used]


@pytest.mark.parametrize("policy", ["FILE", "HINT"])
def test_policies_that_need_to_look_inside_are_refused(policy):
    dataset = with_tf_policy(tf.data.Dataset.range(8).batch(4), policy)
    with pytest.raises(jt.errors.InvalidArgumentError, match=f"{policy}.*inside.*DATA or OFF"):
        on_two(dataset)


# --- Workers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "replicas"), [(2, 1), (2, 2), (3, 1)])
def test_workers_get_every_example_once(workers, replicas):
    dataset = tf.data.Dataset.range(21).shuffle(21, seed=1, reshuffle_each_iteration=False).batch(8)
    own = steps_of_workers(dataset, workers, replicas)
    assert len({len(one) for one in own}) == 1  # they go through equally many steps
    flat = [example for one in own for step in one for part in step for example in part]
    assert sorted(flat) == list(range(21))


def test_workers_can_bring_datasets_of_their_own():
    def program(setting):
        def dataset_fn(context):
            dataset = tf.data.Dataset.range(14).batch(4)
            return dataset.shard(context.num_input_pipelines, context.input_pipeline_id)

        return steps(distribute_from_function(dataset_fn, setting, None))

    # R128.
    assert run_workers(2, 1, program) == [
        [[[0, 1, 2, 3]], [[8, 9, 10, 11]]],
        [[[4, 5, 6, 7]], [[12, 13]]],
    ]


# --- Inside a jt.function --------------------------------------------------------------------


def test_elements_are_inputs_of_a_compiled_step():
    strategy = mirrored(2)
    iterator = iter(on_two(tf.data.Dataset.range(8).batch(4)))

    @jt.function
    def step():
        sums = strategy.run(jnp.sum, args=(next(iterator),))
        return strategy.reduce("SUM", sums, axis=None)

    assert [int(step()), int(step())] == [6, 22]
    assert step.experimental_get_tracing_count() == 1
    with pytest.raises(jt.errors.OutOfRangeError):
        step()


# --- Saving and resuming ---------------------------------------------------------------------


def numbers():
    return tf.data.Dataset.range(22).map(lambda x: x * 2).batch(4)


def restored(dataset, state):
    """Return an iterator that goes on from a state that was written and read."""
    iterator = iter(on_two(dataset))
    iterator.set_state(json.loads(json.dumps(state)))
    return iterator


@pytest.mark.parametrize("taken", range(7))
def test_an_iterator_goes_on_with_the_next_element(taken):
    iterator = iter(on_two(numbers()))
    for _ in range(taken):
        next(iterator)
    state = iterator.get_state()
    assert steps(restored(numbers(), state)) == steps(iterator) == steps_on(2, numbers())[taken:]


def test_an_iterator_of_a_dataset_without_end_goes_on():
    iterator = iter(on_two(numbers().repeat()))
    for _ in range(8):
        next(iterator)
    state = iterator.get_state()
    again = restored(numbers().repeat(), state)
    for _ in range(5):
        np.testing.assert_array_equal(next(again).values, next(iterator).values)
    iterator.close()
    again.close()


def test_a_state_can_be_restored_on_another_number_of_workers():
    iterator = iter(on_two(numbers()))
    next(iterator)
    next(iterator)
    state = iterator.get_state()
    iterator.close()
    flat = []
    for worker in range(3):
        own = iter(distribute_to(numbers(), 3, worker, 1))
        own.set_state(state)
        flat += [example for step in steps(own) for part in step for example in part]
    assert sorted(flat) == [2 * i for i in range(8, 22)]


def test_a_fixed_order_goes_on_in_any_pass():
    def shuffled():
        dataset = tf.data.Dataset.range(12)
        return dataset.shuffle(12, seed=3, reshuffle_each_iteration=False).batch(4)

    distributed = on_two(shuffled())
    steps(distributed)
    iterator = iter(distributed)
    next(iterator)
    state = iterator.get_state()
    assert steps(restored(shuffled(), state)) == steps(iterator)


def test_an_order_that_changes_with_each_pass_goes_on_in_the_first():
    def shuffled():
        return tf.data.Dataset.range(12).shuffle(12, seed=3).batch(4)

    iterator = iter(on_two(shuffled()))
    next(iterator)
    state = iterator.get_state()
    rest = steps(iterator)
    assert steps(restored(shuffled(), state)) == rest
