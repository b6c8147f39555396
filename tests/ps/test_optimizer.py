import cloudpickle
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from jaxtribute.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from jaxtribute.ps import Span
from jaxtribute.ps import _optimizer as implementation
from tests.ps._updates import op, store_with, update, value

OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "nesterov": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(0.01),
    "adamw": optax.adamw(0.01),
    "adagrad": optax.adagrad(0.1),
    "rmsprop": optax.rmsprop(0.01),
    "schedule": optax.adam(optax.exponential_decay(0.1, 2, 0.5)),
    "chain": optax.chain(optax.clip(0.5), optax.trace(0.9), optax.scale(-0.1)),
    "injected": optax.inject_hyperparams(optax.sgd)(learning_rate=0.1, momentum=0.9),
}
WITHOUT_GRADIENT_NOTHING_CHANGES = ("sgd", "adagrad")


@pytest.fixture(params=OPTIMIZERS)
def transformation(request):
    return OPTIMIZERS[request.param]


def with_optimizer(transformation, *values):
    store = store_with(*values)
    store.register_optimizer(0, cloudpickle.dumps(transformation))
    return store


def apply(number, *arrays):
    return op(number, "apply", *arrays, optimizer=0)


def run(transformation, values, gradients_of_steps):
    """Return values and state after plain Optax, for one array."""
    values = jnp.asarray(values)
    state = transformation.init(values)
    for gradients in gradients_of_steps:
        updates, state = transformation.update(jnp.asarray(gradients), state, values)
        values = optax.apply_updates(values, updates)
    return np.asarray(values), [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# --- Whole gradients -------------------------------------------------------------------------


def test_whole_gradients_change_variables_as_optax_does(transformation):
    shapes = [(5, 3), (3,), (), (0, 2)]
    values = [random(*shape, seed=n) for n, shape in enumerate(shapes)]
    steps = [[random(*s, seed=10 * t + n) for n, s in enumerate(shapes)] for t in range(5)]
    store = with_optimizer(transformation, *values)
    for closure, gradients in enumerate(steps):
        update(store, closure, *(apply(n, g) for n, g in enumerate(gradients)))
    for n, start in enumerate(values):
        expected, state = run(transformation, start, [gradients[n] for gradients in steps])
        same(value(store, n), expected)
        slots = [100 * (n + 1) + i for i in range(len(state))]
        store.build_slots(0, n, slots)
        for slot, leaf in zip(slots, state, strict=True):
            same(value(store, slot), leaf)
            assert value(store, slot).dtype == leaf.dtype


@pytest.fixture
def traces(monkeypatch):
    """A list to which each tracing of a program adds the shapes of the gradients."""
    seen, applying = [], implementation._applying

    def counted(rules):
        apply = applying(rules)

        def traced(slots, values, gradients):
            seen.append([gradient.shape for gradient in gradients])
            return apply(slots, values, gradients)

        return traced

    monkeypatch.setattr(implementation, "_applying", counted)
    return seen


def test_all_whole_gradients_of_an_update_are_one_program_traced_once(traces):
    store = with_optimizer(optax.adam(0.1), *(random(3, n) for n in range(1, 5)))
    store.create(9, "steps", np.zeros((), np.int64))
    for closure in range(3):
        gradients = [apply(n, random(3, n + 1)) for n in range(4)]
        update(store, closure, gradients[0], op(9, "add", np.array(1)), *gradients[1:])
    assert traces == [[(3, 1), (3, 2), (3, 3), (3, 4)]]
    assert value(store, 9) == 3


def test_a_variable_may_be_changed_before_between_and_after_gradients():
    store = with_optimizer(optax.sgd(1.0, momentum=0.5), np.zeros(2, np.float32))
    one = np.ones(2, np.float32)
    update(store, 0, op(0, "add", 10 * one), apply(0, one), apply(0, one), op(0, "sub", one))
    assert value(store).tolist() == [10 - 1 - 1.5 - 1] * 2


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64], ids=str)
def test_values_keep_their_type(dtype):
    start = np.linspace(1, 2, 7).astype(dtype)
    store = with_optimizer(optax.adam(0.125), start)
    for closure in range(3):
        update(store, closure, apply(0, start), apply(0, start[2:4], np.array([2, 3])))
    assert value(store).dtype == dtype
    assert (value(store) < start).all()


def test_float64_is_computed_in_64_bits():
    start, gradient = np.array([1.0, 2.0]), np.array([1e-12, 1.0])
    store = with_optimizer(optax.sgd(1.0), start)
    update(store, 0, apply(0, gradient))
    assert value(store)[0] == 1.0 - 1e-12


def test_reading_a_slot_does_not_keep_it_from_changing_nor_change_what_was_read():
    store = with_optimizer(optax.sgd(1.0, momentum=1.0), np.zeros(1000, np.float32))
    store.build_slots(0, 0, [7])
    one, seen = np.ones(1000, np.float32), []
    for closure in range(4):
        update(store, closure, apply(0, one))
        seen += [value(store, 7), store.read([Span(7, 0, 10)])[0], value(store)]
    assert [array[0] for array in seen] == [1, 1, -1, 2, 2, -3, 3, 3, -6, 4, 4, -10]


def test_slots_can_be_written_and_take_part_in_updates():
    store = with_optimizer(optax.sgd(1.0, momentum=1.0), np.zeros(2, np.float32))
    store.build_slots(0, 0, [7])
    one = np.ones(2, np.float32)
    store.write(7, 0, 4 * one)
    update(store, 0, apply(0, one), op(7, "assign", 0 * one), apply(0, one))
    assert value(store).tolist() == [-5 - 1] * 2
    assert value(store, 7).tolist() == [1, 1]


# --- Gradients of rows -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5, 16, 17, 40])
@pytest.mark.parametrize("name", WITHOUT_GRADIENT_NOTHING_CHANGES)
def test_gradients_of_rows_do_what_the_whole_gradient_would(name, count):
    transformation, generator = OPTIMIZERS[name], np.random.default_rng(count)
    start = random(40, 3)
    store, steps = with_optimizer(transformation, start), []
    for closure in range(4):
        indices = generator.integers(0, 40, count)  # some of them twice
        rows = random(count, 3, seed=closure)
        whole = np.zeros_like(start)
        np.add.at(whole, indices, rows)
        steps.append(whole)
        update(store, closure, apply(0, rows, indices))
    same(value(store), run(transformation, start, steps)[0])


@pytest.mark.parametrize("shape", [(9, 3), (9,), (9, 2, 2)], ids=str)
def test_rows_change_as_if_there_were_no_others(transformation, shape):
    start, indices = random(*shape), np.array([7, 2, 4])
    store = with_optimizer(transformation, start)
    steps = [random(3, *shape[1:], seed=10 + t) for t in range(5)]
    for closure, rows in enumerate(steps):
        update(store, closure, apply(0, rows, indices))
    expected, _ = run(transformation, start[indices], steps)
    same(value(store)[indices], expected)
    others = np.delete(np.arange(9), indices)
    assert (value(store)[others] == start[others]).all(), "rows without gradient do not change"


def test_whole_gradients_and_those_of_rows_may_alternate(transformation):
    start, every = random(6, 2), np.arange(6)
    store = with_optimizer(transformation, start)
    steps = [random(6, 2, seed=10 + t) for t in range(6)]
    for closure, gradient in enumerate(steps):
        update(store, closure, apply(0, gradient, *([every] if closure % 2 else [])))
    same(value(store), run(transformation, start, steps)[0])


def test_a_table_twice_in_one_update_is_changed_twice():
    start = random(6, 2)
    store = with_optimizer(optax.adam(0.1), start)
    rows = random(2, 2, seed=1)
    update(store, 0, apply(0, rows, np.array([1, 2])), apply(0, rows, np.array([1, 2])))
    same(value(store)[[1, 2]], run(optax.adam(0.1), start[[1, 2]], [rows, rows])[0])


@pytest.mark.parametrize("rows", [0, 3])
def test_a_gradient_of_no_rows_counts_as_a_step_and_changes_no_row(rows):
    store = with_optimizer(optax.adam(0.1), np.ones((rows, 2), np.float32))
    none = np.zeros((0, 2), np.float32), np.zeros(0, np.int64)
    update(store, 0, apply(0, *none))
    store.build_slots(0, 0, [5, 6, 7])
    assert (value(store) == 1).all()
    assert value(store, 5) == 1


def test_state_that_happens_to_have_as_many_rows_is_not_taken_for_rows():
    """A random key is two numbers, and so are the rows of this variable."""

    def init(params):
        return {"key": jax.random.PRNGKey(3), "sum": jnp.zeros_like(params)}

    def step(updates, state, params=None):
        key, _ = jax.random.split(state["key"])
        return updates, {"key": key, "sum": state["sum"] + updates}

    store = with_optimizer(optax.GradientTransformation(init, step), np.zeros((2, 4), np.float32))
    update(store, 0, apply(0, np.ones((1, 4), np.float32), np.array([1])))
    store.build_slots(0, 0, [1, 2])
    assert (value(store, 1) == jax.random.split(jax.random.PRNGKey(3))[0]).all()
    assert value(store, 2)[:, 0].tolist() == [0, 1]


def test_few_programs_are_traced_for_many_numbers_of_rows(traces):
    store = with_optimizer(optax.adam(0.1), np.zeros((1000, 2), np.float32))
    for closure, count in enumerate([1, 3, 9, 16, 17, 30, 31, 32, 33, 50, 64]):
        update(store, closure, apply(0, random(count, 2), np.arange(count)))
    assert traces == [[(16, 2)], [(32, 2)], [(64, 2)]]


def test_the_state_of_a_large_table_is_made_in_parts(monkeypatch):
    start = random(1000, 2)
    whole = with_optimizer(optax.chain(optax.adagrad(0.1), optax.ema(0.9)), start)
    parts = with_optimizer(optax.chain(optax.adagrad(0.1), optax.ema(0.9)), start)
    slots = [10, 11, 12]
    whole.build_slots(0, 0, slots)
    monkeypatch.setattr(implementation, "_INIT_BYTES", 3000)
    parts.build_slots(0, 0, slots)
    for slot in slots:
        assert np.array_equal(value(whole, slot), value(parts, slot))


def test_rows_of_a_transformation_whose_state_has_no_rows_are_refused():
    store = with_optimizer(optax.adafactor(0.1), np.zeros((200, 200), np.float32))
    with pytest.raises(InvalidArgumentError, match="for some rows only, does not work on 'v0'"):
        update(store, 0, apply(0, np.ones((1, 200), np.float32), np.array([3])))
    assert (value(store) == 0).all()


# --- All or nothing --------------------------------------------------------------------------


def failing(message="no luck"):
    def step(updates, state, params=None):
        raise RuntimeError(message)

    return optax.GradientTransformation(lambda params: optax.EmptyState(), step)


def test_a_transformation_that_raises_leaves_everything_as_it_was():
    start = random(6, 2)
    store = with_optimizer(optax.adam(0.1), start, start, start, start)
    store.build_slots(0, 0, [20, 21, 22])
    store.build_slots(0, 1, [30, 31, 32])
    store.register_optimizer(1, cloudpickle.dumps(failing()))
    rows, which = random(2, 2), np.array([1, 2])
    update(store, 0, apply(0, start), apply(1, rows, which))
    before = {number: value(store, number).copy() for number in store.numbers}
    with pytest.raises(InvalidArgumentError, match="'v2': no luck"):
        update(
            store,
            1,
            apply(0, start),
            apply(0, start),
            apply(1, rows, which),
            apply(1, rows, which),
            op(3, "scatter_add", rows, which),
            op(2, "apply", start, optimizer=1),
        )
    for number, was in before.items():
        assert (value(store, number) == was).all()
    assert update(store, 1, apply(0, start), apply(1, rows, which))


# --- Registering and slots -------------------------------------------------------------------


def test_registering_twice_is_fine_unless_it_is_another_one():
    store = with_optimizer(optax.sgd(0.1))
    pickled = cloudpickle.dumps(optax.adam(0.1))
    store.register_optimizer(1, pickled)
    store.register_optimizer(1, pickled)
    with pytest.raises(AlreadyExistsError, match="another one"):
        store.register_optimizer(1, cloudpickle.dumps(optax.sgd(0.1)))


@pytest.mark.parametrize("junk", [b"junk", cloudpickle.dumps([1, 2])], ids=["bytes", "a list"])
def test_what_is_no_transformation_is_refused(junk):
    with pytest.raises(InvalidArgumentError, match="Optimizer 3"):
        store_with().register_optimizer(3, junk)


@pytest.mark.parametrize("wrong", [np.zeros(2, np.int32), np.zeros(2, np.bool_)])
def test_only_floating_types_are_optimized(wrong):
    store = with_optimizer(optax.sgd(0.1), wrong)
    with pytest.raises(InvalidArgumentError, match=r"cannot be optimized|bool"):
        update(store, 0, apply(0, wrong))


def test_slots_have_numbers_of_their_own():
    store = with_optimizer(optax.adam(0.1), np.zeros(4, np.float32), np.zeros(4, np.float32))
    with pytest.raises(InvalidArgumentError, match=r"3 arrays for 'v0'.*2 numbers"):
        store.build_slots(0, 0, [5, 6])
    with pytest.raises(AlreadyExistsError):
        store.build_slots(0, 0, [1, 5, 6])
    store.build_slots(0, 0, [5, 6, 7])
    store.build_slots(0, 0, [5, 6, 7])  # a request that came twice
    with pytest.raises(AlreadyExistsError):
        store.build_slots(0, 0, [8, 9, 10])
    with pytest.raises(NotFoundError):
        store.build_slots(0, 11, [8, 9, 10])
    with pytest.raises(InvalidArgumentError, match="itself the state"):
        store.build_slots(0, 6, [8, 9, 10])
    assert store.numbers == [0, 1, 5, 6, 7]
    assert store.variable_count == 2
    assert store.bytes_held == (2 + 2) * 16 + 4


def test_state_goes_with_its_variable():
    store = with_optimizer(optax.adam(0.1), np.zeros(4, np.float32))
    store.build_slots(0, 0, [5, 6, 7])
    store.delete([0])
    assert store.numbers == []
    assert store.bytes_held == 0


def test_a_key_that_cannot_be_stored_is_refused():
    transformation = optax.GradientTransformation(
        lambda params: jax.random.key(0), lambda updates, state, params=None: (updates, state)
    )
    store = with_optimizer(transformation, np.zeros(4, np.float32))
    with pytest.raises(InvalidArgumentError, match=r"jax\.random\.PRNGKey"):
        store.build_slots(0, 0, [5])
