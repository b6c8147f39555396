"""Loaders of PyTorch, distributed as they are."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import jaxtribute as jt
from tests.input._workers import distribute_to, mirrored, parts, steps, steps_of_workers, steps_on

X = torch.arange(14, dtype=torch.float32).reshape(7, 2)
Y = torch.arange(7)


def on_two(loader):
    return mirrored(2).experimental_distribute_dataset(loader)


class Records(Dataset):
    """Examples that are dicts, of all kinds of things PyTorch can put into a batch."""

    def __len__(self):
        return 7

    def __getitem__(self, i):
        return {
            "tensor": torch.full((2,), i, dtype=torch.bfloat16),
            "array": np.full(3, i, np.int16),
            "number": i,
            "text": f"no. {i}",
            "pair": (float(i), bool(i % 2)),
        }


class Stream(IterableDataset):
    """Examples without a known number."""

    def __iter__(self):
        return iter(range(7))


def only(column):
    """Return the examples of a loader of one column, as they were before `TensorDataset`."""
    return torch.stack([example[0] for example in column])


def numbers(size=7, batch_size=4, **kwargs):
    """Return a loader of batches of numbers."""
    dataset = TensorDataset(torch.arange(size))
    return DataLoader(dataset, batch_size=batch_size, collate_fn=only, **kwargs)


# --- Elements --------------------------------------------------------------------------------


def test_batches_of_tensors_are_divided():
    assert steps_on(2, numbers()) == [[[0, 1], [2, 3]], [[4, 5], [6]]]
    assert steps_on(1, numbers()) == [[[0, 1, 2, 3]], [[4, 5, 6]]]


def test_components_are_passed_to_run_as_arguments():
    strategy = mirrored(2)
    for x, y in on_two(DataLoader(TensorDataset(X, Y), batch_size=2, drop_last=True)):
        products = strategy.run(lambda x, y: jnp.sum(x[:, 0]) - 2 * jnp.sum(y), args=(x, y))
        assert float(strategy.reduce("SUM", products, axis=None)) == 0


def test_dicts_keep_their_structure():
    first, last = on_two(DataLoader(Records(), batch_size=4))
    assert first.keys() == last.keys() == {"tensor", "array", "number", "text", "pair"}
    assert parts(first["array"])[1] == [[2, 2, 2], [3, 3, 3]]
    assert parts(last["number"]) == [[4, 5], [6]]
    assert [parts(component) for component in last["pair"]] == [
        [[4.0, 5.0], [6.0]],
        [[False, True], [False]],
    ]


def test_text_stays_on_the_host_as_bytes():
    first, last = on_two(DataLoader(Records(), batch_size=4))
    assert parts(first["text"]) == [[b"no. 0", b"no. 1"], [b"no. 2", b"no. 3"]]
    assert parts(last["text"]) == [[b"no. 4", b"no. 5"], [b"no. 6"]]


@pytest.mark.parametrize(
    ("dtype", "becomes"),
    [
        (torch.bool, jnp.bool_),
        (torch.uint8, jnp.uint8),
        (torch.int16, jnp.int16),
        (torch.float16, jnp.float16),
        (torch.bfloat16, jnp.bfloat16),
        (torch.float32, jnp.float32),
        (torch.complex64, jnp.complex64),
        (torch.int64, jnp.int32),  # as always in JAX
        (torch.float64, jnp.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 0)], ids=str)
def test_types_and_shapes_are_kept(dtype, becomes, shape):
    values = torch.ones(shape).to(dtype)
    ((element,),) = on_two(DataLoader(TensorDataset(values), batch_size=4))
    assert [(part.shape, part.dtype) for part in element.values] == [
        ((2, *shape[1:]), np.dtype(becomes))
    ] * 2
    assert all(bool(jnp.all(part == 1)) for part in element.values)


def test_tensors_that_need_gradients_are_read():
    ((element,),) = on_two(DataLoader(TensorDataset(X.clone().requires_grad_()), batch_size=7))
    assert element.values[0].shape == (4, 2)


def test_later_changes_of_a_tensor_do_not_reach_elements():
    values = torch.zeros(2)
    ((element,),) = on_two([(values,)])
    values += 1
    assert parts(element) == [[0.0], [0.0]]


def test_a_stream_of_examples_is_divided_to_its_end():
    distributed = on_two(DataLoader(Stream(), batch_size=4))
    assert steps(distributed) == [[[0, 1], [2, 3]], [[4, 5], [6]]]
    assert distributed.cardinality() == jt.data.UNKNOWN_CARDINALITY


def test_the_number_of_steps_is_that_of_the_loader():
    assert on_two(numbers()).cardinality() == 2
    assert on_two(numbers(drop_last=True)).cardinality() == 1


def test_a_batch_of_another_size_may_follow_what_the_element_spec_says():
    distributed = on_two(numbers())
    spec = distributed.element_spec
    for element in distributed:
        assert spec.is_compatible_with(element)


def test_a_loader_that_does_not_batch_is_refused():
    with pytest.raises(jt.errors.InvalidArgumentError, match=r"no batch dimension.*`batch`"):
        next(iter(on_two(DataLoader(Stream(), batch_size=None))))


def test_a_dataset_without_a_loader_is_refused():
    with pytest.raises(TypeError, match="DataLoader"):
        on_two(TensorDataset(X))


def test_an_error_of_the_dataset_comes_out_where_its_batch_was_due():
    class Broken(Records):
        def __getitem__(self, i):
            if i == 5:
                raise KeyError("no such picture")
            return i

    iterator = iter(on_two(DataLoader(Broken(), batch_size=4)))
    next(iterator)
    with pytest.raises(KeyError, match="no such picture"):
        next(iterator)


# --- Workers of the loader, and of the strategy ----------------------------------------------


@pytest.mark.processes
@pytest.mark.slow
def test_loaders_may_read_in_processes_of_their_own():
    # Not by fork, which JAX warns of: it may stand still.
    loader = numbers(23, num_workers=2, multiprocessing_context="spawn")
    assert steps_on(2, loader) == steps_on(2, numbers(23))


@pytest.mark.processes
@pytest.mark.slow
def test_the_processes_of_a_loader_end_with_the_iterator():
    loader = numbers(400, num_workers=2, multiprocessing_context="spawn")
    iterator = iter(on_two(loader))
    next(iterator)
    iterator.close()
    del iterator  # the rules of all tests notice processes that are left


@pytest.mark.parametrize(("workers", "replicas"), [(2, 1), (2, 2), (3, 1)])
def test_workers_get_every_example_once(workers, replicas):
    own = steps_of_workers(numbers(21, 8), workers, replicas)
    flat = [example for one in own for step in one for part in step for example in part]
    assert sorted(flat) == list(range(21))


# --- Randomness, saving and resuming ---------------------------------------------------------


def shuffled():
    return numbers(20, shuffle=True, generator=torch.Generator().manual_seed(3))


def restored(loader, state):
    """Return an iterator that goes on from a state that was written and read."""
    iterator = iter(on_two(loader))
    iterator.set_state(json.loads(json.dumps(state)))
    return iterator


def test_the_order_is_that_of_the_generator():
    expected = [batch.tolist() for loader in [shuffled()] for _ in range(2) for batch in loader]
    distributed = on_two(shuffled())
    passes = steps(distributed) + steps(distributed)
    assert [first + second for first, second in passes] == expected


@pytest.mark.parametrize("taken", range(4))
@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(lambda: numbers(10), id="in order"),
        pytest.param(lambda: DataLoader(Stream(), batch_size=3), id="stream"),
        pytest.param(shuffled, id="shuffled"),
    ],
)
def test_an_iterator_goes_on_with_the_next_element(loader, taken):
    iterator = iter(on_two(loader()))
    for _ in range(taken):
        next(iterator)
    state = iterator.get_state()
    assert steps(restored(loader(), state)) == steps(iterator)


def test_a_shuffled_loader_goes_on_in_a_later_pass():
    distributed = on_two(shuffled())
    steps(distributed)
    iterator = iter(distributed)
    next(iterator)
    state = iterator.get_state()
    rest = steps(iterator)
    assert steps(restored(shuffled(), state)) == rest


def test_a_shuffled_loader_goes_on_in_the_same_program():
    distributed = on_two(shuffled())
    iterator = iter(distributed)
    next(iterator)
    state = iterator.get_state()
    rest = steps(iterator)
    again = iter(distributed)
    again.set_state(state)
    assert steps(again) == rest


def test_a_state_can_be_restored_on_another_number_of_workers():
    iterator = iter(on_two(numbers(22)))
    next(iterator)
    next(iterator)
    state = iterator.get_state()
    iterator.close()
    flat = []
    for worker in range(3):
        own = iter(distribute_to(numbers(22), 3, worker, 1))
        own.set_state(state)
        flat += [example for step in steps(own) for part in step for example in part]
    assert sorted(flat) == list(range(8, 22))


# --- In a step -------------------------------------------------------------------------------


def test_elements_are_inputs_of_a_compiled_step():
    strategy = mirrored(2)
    iterator = iter(on_two(numbers(8)))

    @jt.function
    def step():
        sums = strategy.run(jnp.sum, args=(next(iterator),))
        return strategy.reduce("SUM", sums, axis=None)

    assert [int(step()), int(step())] == [6, 22]
    with pytest.raises(jt.errors.OutOfRangeError):
        step()


def test_elements_are_on_the_devices_of_the_replicas():
    (element,) = on_two(numbers(4))
    assert [part.device for part in element.values] == jax.devices()[:2]
