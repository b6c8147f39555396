import ml_dtypes
import numpy as np
import pytest

from jaxtribute.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from jaxtribute.ps import Span
from jaxtribute.ps._store import Store
from tests.ps._updates import op, store_with, update, value

DTYPES = [
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    np.int8,
    np.int32,
    np.int64,
    np.uint16,
]


@pytest.fixture(params=DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def dtype(request):
    return np.dtype(request.param)


def int64(*numbers):
    return np.array(numbers, np.int64)


# --- Every kind of change --------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "result"), [("assign", 2), ("add", 8), ("sub", 4)])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3)], ids=str)
def test_dense_changes(kind, result, shape, dtype):
    store = store_with(np.full(shape, 6, dtype))
    assert update(store, 0, op(0, kind, np.full(shape, 2, dtype)))
    after = value(store)
    assert after.dtype == dtype
    assert after.shape == shape
    assert (after == np.full(shape, result, dtype)).all()


# Row 1 is given twice: 2 and 3. Row 0 is left alone.
@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("scatter_add", [6, 6 + 2 + 3, 6 + 4]),
        ("scatter_sub", [6, 6 - 2 - 3, 6 - 4]),
        ("scatter_mul", [6, 6 * 2 * 3, 6 * 4]),
        ("scatter_div", [6, 6 / 2 / 3, 6 / 4]),
        ("scatter_min", [6, 2, 4]),
        ("scatter_max", [6, 6, 6]),
        ("scatter_update", [6, 3, 4]),
    ],
)
@pytest.mark.parametrize("width", [None, 2])
def test_changes_of_rows_with_duplicates(kind, rows, width, dtype):
    trailing = () if width is None else (width,)

    def wide(column):
        numbers = np.array(column).astype(dtype).reshape(-1, *[1] * len(trailing))
        return np.broadcast_to(numbers, (len(column), *trailing)).copy()

    store = store_with(wide([6, 6, 6]))
    assert update(store, 0, op(0, kind, wide([2, 4, 3]), int64(1, 2, 1)))
    after = value(store)
    assert after.dtype == dtype
    assert (after == wide(rows)).all()


@pytest.mark.parametrize("kind", ["scatter_add", "scatter_update", "scatter_min"])
def test_no_rows_are_fine_also_of_a_shard_without_rows(kind):
    store = store_with(np.zeros((0, 4), np.float32), np.ones((2, 4), np.float32))
    none = np.zeros((0, 4), np.float32)
    update(store, 0, op(0, kind, none, int64()), op(1, kind, none, int64()))
    assert value(store, 0).shape == (0, 4)
    assert (value(store, 1) == 1).all()


def test_integer_rows_are_divided_towards_zero():
    store = store_with(np.array([7, -7, -8], np.int32))
    update(store, 0, op(0, "scatter_div", np.array([2, 2, 2], np.int32), int64(0, 1, 2)))
    assert value(store).tolist() == [3, -3, -4]


def test_rows_divided_by_zero_become_infinite():
    store = store_with(np.array([1, -1], np.float32))
    update(store, 0, op(0, "scatter_div", np.zeros(2, np.float32), int64(0, 1)))
    assert value(store).tolist() == [np.inf, -np.inf]


def test_what_becomes_too_large_becomes_infinite():
    most = np.full((), np.finfo(np.float32).max)
    store = store_with(most, np.full(1, most))
    twice = np.full(2, most), int64(0, 0)
    update(store, 0, op(0, "add", most), op(1, "scatter_add", *twice))
    assert value(store, 0) == value(store, 1) == np.inf


def test_truth_values_can_be_assigned():
    store = store_with([True, False], [True, False])
    update(store, 0, op(0, "assign", [False, True]), op(1, "scatter_update", [True], int64(1)))
    assert value(store, 0).tolist() == [False, True]
    assert value(store, 1).tolist() == [True, True]


def test_operations_see_what_those_before_them_did():
    store = store_with(np.zeros(3, np.float32))
    one, ones = np.ones(1, np.float32), np.ones(3, np.float32)
    update(
        store,
        0,
        op(0, "scatter_add", one, int64(1)),
        op(0, "add", ones),
        op(0, "scatter_mul", 2 * one, int64(1)),
        op(0, "scatter_add", one, int64(1)),
    )
    assert value(store).tolist() == [1, 5, 1]


def test_arrays_at_odd_addresses_are_understood():
    memory = bytearray(1 + 8)
    memory[1:] = np.array([1, 2], np.float32).tobytes()
    odd = np.frombuffer(memory, np.float32, offset=1)
    odd_index = np.frombuffer(bytes(1) + int64(1, 0).tobytes(), np.int64, offset=1)
    store = store_with(np.zeros(2, np.float32))
    update(store, 0, op(0, "add", odd), op(0, "scatter_add", odd, odd_index))
    assert value(store).tolist() == [3, 3]


# --- What is refused -------------------------------------------------------------------------

F2 = np.zeros((3, 2), np.float32)


@pytest.mark.parametrize(
    ("operation", "error", "text"),
    [
        (op(9, "add", F2), NotFoundError, "no variable 9"),
        (op(0, "divide", F2), InvalidArgumentError, "'divide' is no change"),
        (op(0, "add", F2[:2]), InvalidArgumentError, "takes shape"),
        (op(0, "add", F2.astype(np.float64)), InvalidArgumentError, "float64"),
        (op(0, "add", F2, int64(0)), InvalidArgumentError, "takes 1 array"),
        (op(0, "scatter_add", F2), InvalidArgumentError, "takes 2 array"),
        (op(0, "scatter_add", F2, int64(0)), InvalidArgumentError, "takes shape"),
        (op(0, "scatter_add", F2, int64(0, 1, 3)), InvalidArgumentError, "Row 3 of 'v0'"),
        (op(0, "scatter_add", F2, int64(0, -1, 1)), InvalidArgumentError, "Row -1"),
        (op(0, "scatter_add", F2, np.zeros(3, np.int32)), InvalidArgumentError, "int64"),
        (op(0, "scatter_add", F2, np.zeros((3, 1), np.int64)), InvalidArgumentError, "vector"),
        (op(1, "scatter_add", np.float32(1), int64(0)), InvalidArgumentError, "scalar"),
        (op(2, "add", [True]), InvalidArgumentError, "bool"),
        (op(3, "scatter_div", [0], int64(0)), InvalidArgumentError, "integer zeros"),
        (op(4, "scatter_add", F2[:1], int64(0)), InvalidArgumentError, "has no rows"),
        (op(0, "apply", F2, optimizer=5), NotFoundError, "no optimizer 5"),
    ],
    ids=lambda x: x[0].kind if isinstance(x, tuple) else None,
)
def test_an_update_with_a_bad_operation_changes_nothing(operation, error, text):
    store = store_with(F2, np.float32(0), [True], [1], F2[:0])
    before = [(value(store, n).copy(), store.version(n)) for n in range(5)]
    good = op(0, "add", F2 + 1), op(0, "scatter_add", F2 + 1, int64(0, 1, 2)), op(3, "add", [1])
    with pytest.raises(error, match=text):
        update(store, 0, *good, operation)
    for n, (was, version) in enumerate(before):
        assert (value(store, n) == was).all()
        assert store.version(n) == version
    assert store.clock == 0
    assert update(store, 0, *good), "it was not counted as carried out"


def test_an_update_that_wants_an_unknown_variable_changes_nothing():
    store = store_with(np.float32(0))
    with pytest.raises(NotFoundError):
        store.update(0, 0, -1, [op(0, "add", np.float32(1))], [0, 5])
    assert value(store) == 0


# --- At most once ----------------------------------------------------------------------------


def test_a_repeated_update_is_not_carried_out_and_answers_what_is_wanted():
    store = store_with(np.float32(0))
    one = op(0, "add", np.float32(1))
    assert store.update(4, 0, -1, [one], [0]) == (True, [1])
    assert store.update(4, 0, -1, [one], [0]) == (False, [1])
    assert store.clock == 1


def test_updates_come_in_any_order_and_those_of_settled_closures_are_stale():
    store = store_with(np.float32(0))
    one = op(0, "add", np.float32(1))
    done = [update(store, closure, one) for closure in (5, 2, 5, 3, 2)]
    assert done == [True, True, False, True, False]
    assert update(store, 7, one, settled=6)
    assert not update(store, 4, one)
    assert value(store) == 4


def test_direct_updates_of_the_coordinator_are_numbered_apart():
    store = store_with(np.float32(0))
    one = [op(0, "add", np.float32(1))]
    applied = [
        store.update(closure, closure, -1, one, [], direct=direct)[0]
        for closure, direct in [(5, True), (0, False), (5, True), (6, True), (1, False)]
    ]
    assert applied == [True, True, False, True, True]


def test_another_coordinator_numbers_closures_anew():
    store = store_with(np.float32(0))
    update(store, 3, op(0, "add", np.float32(1)))
    store.adopt("another")
    store.create(0, "v0", np.float32([0])[0:1])
    assert update(store, 3, op(0, "add", np.ones(1, np.float32)))


def test_staleness_is_the_mean_of_updates_in_between():
    store = store_with(np.float32(0))
    one = [op(0, "add", np.float32(1))]
    for closure, based_on in enumerate([0, 1, 0, 1]):  # the clock is 0, 1, 2, 3
        store.update(closure, 0, based_on, one, [])
    assert store.staleness == pytest.approx((0 + 0 + 2 + 2) / 4)


# --- Reading ---------------------------------------------------------------------------------


def test_what_was_read_does_not_change_with_later_updates():
    store = store_with(np.zeros((4, 2), np.float32))
    ones = np.ones((4, 2), np.float32)
    seen = [value(store)]
    changes = [
        op(0, "add", ones),
        op(0, "scatter_add", ones[:1], int64(2)),
        op(0, "scatter_add", ones[:1], int64(2)),
        op(0, "sub", ones),
        op(0, "assign", ones),
        op(0, "scatter_update", 5 * ones[:1], int64(0)),
    ]
    kept = []
    for closure, change in enumerate(changes):
        update(store, closure, change)
        seen.append(value(store))
        seen.append(store.read([Span(0, 1, 3)])[0])
        kept.append([array.copy() for array in seen])
    store.write(0, 1, 9 * ones[:2])
    for at_that_time in kept:
        for array, was in zip(seen, at_that_time, strict=False):
            assert (array == was).all()
    assert value(store).tolist() == [[5, 5], [9, 9], [9, 9], [1, 1]]


def test_dense_values_are_read_without_copying():
    store = store_with(np.zeros(1000, np.float32))
    assert value(store) is value(store)


def test_a_table_is_updated_in_place():
    store = store_with(np.zeros((1000, 2), np.float32))
    one = np.ones((1, 2), np.float32)
    update(store, 0, op(0, "scatter_add", one, int64(5)))
    where = store._cells[0].peek()
    update(store, 1, op(0, "scatter_add", one, int64(7)))
    assert store._cells[0].peek() is where


def test_fresh_zeros_become_a_table_without_being_copied():
    store = store_with()
    zeros = np.zeros((1000, 2), np.float32)
    store.create(0, "table", zeros)
    store.read([Span(0, 0, 10)])
    store.write(0, 3, np.ones((2, 2), np.float32))
    update(store, 0, op(0, "scatter_add", np.ones((1, 2), np.float32), int64(5)))
    assert store._cells[0].peek() is zeros


@pytest.mark.parametrize(("start", "stop"), [(1, 3), (0, 0), (4, 4), (0, 4)])
def test_spans_are_rows(start, stop):
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    store = store_with(rows)
    assert store.read([Span(0, start, stop)])[0].tolist() == rows[start:stop].tolist()


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 5), (1, -1)])
def test_spans_outside_a_variable_are_refused(start, stop):
    store = store_with(np.zeros((4, 2)), np.float32(1))
    for number in (0, 1):
        with pytest.raises(InvalidArgumentError, match="has no rows from"):
            store.read([Span(number, start, stop)])


def test_gathered_rows_keep_the_order_asked_for():
    store = store_with(np.arange(4, dtype=np.int32), np.arange(8.0).reshape(4, 2))
    first, second = store.gather([0, 1], [int64(3, 0, 3), int64(2)])
    assert first.tolist() == [3, 0, 3]
    assert second.tolist() == [[4, 5]]


def test_gathering_what_does_not_exist_is_refused():
    store = store_with(np.arange(4))
    with pytest.raises(InvalidArgumentError, match="Row 4"):
        store.gather([0], [int64(4)])
    with pytest.raises(NotFoundError):
        store.gather([1], [int64(0)])
    with pytest.raises(InvalidArgumentError, match="one each"):
        store.gather([0, 0], [int64(0)])


# --- Creating, writing, deleting -------------------------------------------------------------


def test_creating_the_same_variable_twice_keeps_its_value():
    store = store_with(np.float32(0))
    update(store, 0, op(0, "add", np.float32(1)))
    store.create(0, "v0", np.zeros((), np.float32))
    assert value(store) == 1
    with pytest.raises(AlreadyExistsError, match="number of its own"):
        store.create(0, "v0", np.zeros(3, np.float32))


def test_writing_replaces_some_rows_or_all():
    store = store_with(np.zeros((4, 2), np.float32), np.float32(0))
    store.write(0, 1, np.ones((2, 2), np.float32))
    assert value(store)[:, 0].tolist() == [0, 1, 1, 0]
    store.write(0, 0, np.full((4, 2), 3, np.float32))
    assert (value(store) == 3).all()
    store.write(1, 0, np.array(5, np.float32))
    assert value(store, 1) == 5


@pytest.mark.parametrize(
    ("start", "rows"),
    [
        (3, np.ones((2, 2), np.float32)),
        (-1, np.ones((2, 2), np.float32)),
        (0, np.ones((4, 3), np.float32)),
        (0, np.ones((4, 2), np.float64)),
        (0, np.float32(1)),
    ],
    ids=["beyond", "before", "wider", "another type", "scalar"],
)
def test_writing_what_does_not_fit_is_refused(start, rows):
    store = store_with(np.zeros((4, 2), np.float32))
    with pytest.raises(InvalidArgumentError):
        store.write(0, start, np.asarray(rows))
    assert (value(store) == 0).all()


def test_deleted_variables_are_gone_and_deleting_them_again_is_fine():
    store = store_with(np.zeros(4, np.float32), np.zeros(2, np.float32))
    store.delete([0])
    store.delete([0, 17])
    assert store.numbers == [1]
    assert store.bytes_held == 8
    with pytest.raises(NotFoundError):
        value(store)


def test_versions_count_the_changes_of_a_variable():
    store = store_with(np.zeros(4, np.float32), np.zeros(2, np.float32))
    update(store, 0, op(0, "add", np.ones(4, np.float32)))
    update(store, 1, op(0, "scatter_add", np.ones(1, np.float32), int64(1)))
    assert (store.version(0), store.version(1)) == (2, 0)


# --- Origins ---------------------------------------------------------------------------------


def test_a_store_that_nobody_adopted_refuses_requests():
    with pytest.raises(FailedPreconditionError, match="started again"):
        Store().check_origin("origin")


def test_the_same_coordinator_may_adopt_again_and_another_one_starts_anew():
    store = store_with(np.float32(0))
    store.adopt("origin")
    assert store.numbers == [0]
    store.adopt("another")
    assert store.numbers == []
    with pytest.raises(FailedPreconditionError, match="another coordinator has taken over"):
        store.check_origin("origin")
