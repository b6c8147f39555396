"""A variable in place of an array: operators, conversion, indexing, assignment, printing."""

import copy
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.variables._support import (
    FIRST,
    MEAN,
    ON_READ,
    ON_WRITE,
    SUM,
    both_ways,
    call,
    components,
    create,
    local,
    mirrored,
    one_device,
    replica_id,
    run,
)

KINDS = {
    "plain": jt.Variable,
    "one device": lambda *a, **k: create(one_device(), *a, **k),
    "mirrored": lambda *a, **k: create(mirrored(2), *a, **k),
    "mirrored on one": lambda *a, **k: create(mirrored(1), *a, **k),
    "sync on read": lambda *a, **k: create(
        mirrored(2), *a, synchronization=ON_READ, aggregation=FIRST, **k
    ),
}

every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
main_kinds = pytest.mark.parametrize(
    "make", [KINDS["plain"], KINDS["mirrored"]], ids=["plain", "mirrored"]
)

ARITHMETIC = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
BITWISE = [operator.and_, operator.or_, operator.xor]

A = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
B = np.array([[2.0, 2.0], [1.0, 5.0]], np.float32)


class TestOperators:
    @both_ways
    @main_kinds
    def test_arithmetic_and_comparison(self, make, way):
        v, w = make(A), make(B)
        operations = ARITHMETIC + COMPARISONS

        def compute(jax_b, jax_a):
            results = []
            for op in operations:
                results += [op(v, 2.0), op(2.0, v), op(v, w), op(v, jax_b), op(jax_a, w)]
            return results

        results = iter(call(way, compute, jnp.asarray(B), jnp.asarray(A)))
        for op in operations:
            for expected in (op(A, 2.0), op(2.0, A), op(A, B), op(A, B), op(A, B)):
                result = next(results)
                assert isinstance(result, jax.Array)
                assert result.shape == (2, 2)
                assert result.dtype == expected.dtype
                np.testing.assert_allclose(result, expected, rtol=1e-5)

    @both_ways
    @main_kinds
    def test_numpy_on_either_side(self, make, way):
        v = make(A)

        def compute():
            results = []
            for op in [*ARITHMETIC, *COMPARISONS, operator.matmul]:
                results += [op(v, B), op(B, v)]
            return [*results, v * np.float32(3), np.float32(3) * v]

        results = iter(call(way, compute))
        for op in [*ARITHMETIC, *COMPARISONS, operator.matmul]:
            np.testing.assert_allclose(next(results), op(A, B), rtol=1e-5)
            np.testing.assert_allclose(next(results), op(B, A), rtol=1e-5)
        np.testing.assert_allclose(next(results), A * 3)
        np.testing.assert_allclose(next(results), A * 3)

    @both_ways
    @main_kinds
    def test_matmul(self, make, way):
        v, w, b = make(A), make(B), jnp.asarray(B)
        for result in call(way, lambda: [v @ b, v @ w]):
            np.testing.assert_allclose(result, A @ B)
        for result in call(way, lambda: [b @ v, w @ v]):
            np.testing.assert_allclose(result, B @ A)
        np.testing.assert_allclose(call(way, lambda: v @ jnp.ones(2)), A @ np.ones(2))

    @both_ways
    @main_kinds
    def test_bits(self, make, way):
        a, b = np.array([6, 3], np.int32), np.array([3, 5], np.int32)
        v, w = make(a), make(b)
        for op in BITWISE:
            for result in call(way, lambda op=op: [op(v, w), op(v, jnp.asarray(b))]):
                assert result.tolist() == op(a, b).tolist()
            assert call(way, lambda op=op: op(jnp.asarray(b), v)).tolist() == op(b, a).tolist()
            assert call(way, lambda op=op: op(5, v)).tolist() == op(5, a).tolist()

    @both_ways
    @main_kinds
    def test_unary(self, make, way):
        v, flags, numbers = make(-A), make([True, False]), make([0, 5])
        negated, same, absolute, inverted, complemented = call(
            way, lambda: (-v, +v, abs(v), ~flags, ~numbers)
        )
        np.testing.assert_array_equal(negated, A)
        np.testing.assert_array_equal(same, -A)
        np.testing.assert_array_equal(absolute, A)
        assert inverted.tolist() == [False, True]
        assert complemented.tolist() == [-1, -6]

    @both_ways
    def test_inside_replicas(self, way):
        strategy = mirrored(2)
        v = create(strategy, A)
        results = run(
            way, strategy, lambda: (v @ B, B @ v, 1 - v, v + jnp.float32(replica_id()), v > 2.0)
        )
        for result, expected in zip(results, (A @ B, B @ A, 1 - A, None, A > 2), strict=True):
            if expected is not None:
                assert local(strategy, result) == [expected.tolist()] * 2
        assert local(strategy, results[3]) == [A.tolist(), (A + 1).tolist()]

    def test_in_place_operators_rebind_the_name(self):
        v = w = jt.Variable([1.0, 2.0])
        w += 1.0
        assert isinstance(w, jax.Array)
        assert v.numpy().tolist() == [1, 2]

    def test_comparison_is_elementwise_so_it_has_no_hash(self):
        v = jt.Variable([1.0, 2.0])
        assert (v == v).tolist() == [True, True]
        with pytest.raises(TypeError, match="unhashable"):
            hash(v)

    @every_kind
    def test_mistakes_are_reported_as_for_arrays(self, make):
        v = make(A)
        with pytest.raises(TypeError):
            v + "one"
        with pytest.raises(TypeError):
            v @ jnp.ones(3)


class TestConversion:
    def test_formatting(self):
        v = jt.Variable(1.25)
        assert f"{v:.1f}" == "1.2"
        assert f"{v}" == str(v)

    @every_kind
    def test_numpy(self, make):
        v = make(A)
        for array in (v.numpy(), np.asarray(v), np.array(v)):
            assert type(array) is np.ndarray
            np.testing.assert_array_equal(array, A)
        assert np.asarray(v, np.float64).dtype == np.float64
        assert np.sum(v) == A.sum()

    @every_kind
    def test_the_numpy_array_is_its_own(self, make):
        v = make(A)
        for array in (v.numpy(), np.array(v)):
            array[...] = 0.0
            np.testing.assert_array_equal(v.numpy(), A)
        before = v.numpy()
        v.assign(B)
        np.testing.assert_array_equal(before, A)

    @both_ways
    @every_kind
    def test_jax(self, make, way):
        v = make(A)

        def conversions():
            return [v.value(), v.read_value(), jnp.asarray(v), jnp.array(v), jnp.stack([v])[0]]

        for array in call(way, conversions):
            assert isinstance(array, jax.Array)
            np.testing.assert_array_equal(array, A)
        assert call(way, lambda: jnp.asarray(v, jnp.int32)).dtype == jnp.int32
        assert call(way, lambda: jnp.zeros_like(v)).shape == (2, 2)

    @both_ways
    @every_kind
    def test_jax_functions_take_it(self, make, way):
        v, index = make(A), make(1)
        x = jnp.asarray(B)
        results = call(
            way,
            lambda: [
                jnp.sum(v),
                jnp.mean(v, axis=0),
                jnp.exp(v),
                jnp.dot(x, v),
                jnp.maximum(v, 2.0),
                jnp.where(x > 1, v, x),
                jnp.reshape(v, (4,)),
                jax.nn.relu(v),
                jnp.einsum("ij,jk->ik", v, x),
                jnp.take(v, index, axis=0),
            ],
        )
        expected = [
            A.sum(),
            A.mean(0),
            np.exp(A),
            B @ A,
            np.maximum(A, 2),
            np.where(B > 1, A, B),
            A.reshape(4),
            A,
            A @ B,
            A[1],
        ]
        for result, value in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, value, rtol=1e-5)

    @every_kind
    def test_jitted_functions_take_it(self, make):
        v = make(A)
        np.testing.assert_array_equal(jax.jit(lambda x: x + 1)(v), A + 1)

    @every_kind
    def test_python_numbers(self, make):
        assert float(make(1.5)) == 1.5
        assert int(make(7)) == 7
        assert int(make(7.9)) == 7
        assert bool(make(0.0)) is False
        assert bool(make(True)) is True
        assert [10, 20, 30][make(1)] == 20
        assert list(range(make(3))) == [0, 1, 2]
        assert operator.index(make(np.uint8(3))) == 3

    @every_kind
    def test_python_numbers_of_the_wrong_kind(self, make):
        with pytest.raises(TypeError):
            operator.index(make(1.5))
        with pytest.raises(TypeError):
            float(make([1.0, 2.0]))
        with pytest.raises(ValueError, match="ambiguous"):
            bool(make([1.0, 2.0]))

    def test_python_numbers_inside_a_trace(self):
        v = jt.Variable(1.0)
        with pytest.raises(jax.errors.ConcretizationTypeError):
            jt.function(lambda: float(v))()
        with pytest.raises(jax.errors.TracerBoolConversionError):
            jt.function(lambda: 1 if v > 0 else 2)()
        with pytest.raises(jax.errors.TracerArrayConversionError):
            jt.function(v.numpy)()
        assert float(v) == 1.0


class TestIndexing:
    @both_ways
    @main_kinds
    def test_as_an_array(self, make, way):
        v, i = make(A), make(1)

        def parts():
            return [v[0], v[-1, 0], v[:, 1], v[..., None], v[i], v[jnp.array([1, 0])], v[0][1]]

        expected = [A[0], A[-1, 0], A[:, 1], A[..., None], A[1], A[[1, 0]], A[0][1]]
        for part, value in zip(call(way, parts), expected, strict=True):
            np.testing.assert_array_equal(part, value)

    @every_kind
    def test_masks(self, make):
        v = make(A)
        np.testing.assert_array_equal(v[v > 2.0], A[A > 2.0])

    @every_kind
    def test_iteration(self, make):
        v = make(A)
        assert len(v) == 2
        for row, expected in zip(v, A, strict=True):
            np.testing.assert_array_equal(row, expected)
        first, _ = v
        assert first.tolist() == [1, 2]

    @both_ways
    def test_iteration_inside(self, way):
        v = create(mirrored(2), A)
        total = call(way, lambda: sum(row for row in v))
        assert total.tolist() == [4, 6]
        assert call(way, lambda: len(v)) == 2

    @every_kind
    def test_scalars_have_no_parts(self, make):
        v = make(1.0)
        with pytest.raises(TypeError):
            len(v)
        with pytest.raises(TypeError):
            iter(v)

    @every_kind
    def test_items_cannot_be_assigned(self, make):
        with pytest.raises(TypeError, match="item assignment"):
            make(A)[0] = 1.0


class TestAssigning:
    @both_ways
    @main_kinds
    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.complex64])
    def test_three_ways(self, make, way, dtype):
        v = make([1, 2], dtype=dtype)

        def change():
            v.assign([5, 6])
            v.assign_add([1, 1])
            v.assign_sub(jnp.asarray([3, 3], dtype))

        call(way, change)
        assert v.dtype == v.value().dtype == dtype
        assert v.numpy().tolist() == [3, 4]
        assert not v.value().weak_type

    @both_ways
    @every_kind
    def test_takes_the_arguments_of_tensorflow(self, make, way):
        v = make([1.0, 2.0])

        def change():
            returned = [
                v.assign([5.0, 6.0], True, "name", False),
                v.assign([4.0, 6.0], use_locking=True, name="name", read_value=False),
            ]
            assert v.assign([3.0, 6.0], None, "name", True) is v
            if v.synchronization is ON_READ:
                return returned
            rows = jt.IndexedSlices(jnp.ones(1), jnp.array([1]))
            v.scatter_sub(rows, False, "name")
            for kind in ("add", "mul", "div", "min", "max", "update"):
                getattr(v, f"scatter_{kind}")(rows, use_locking=True, name="name")
            return [
                *returned,
                v.assign_add([1.0, 1.0], use_locking=False, name="name", read_value=False),
                v.assign_sub([1.0, 1.0], read_value=False),
            ]

        assert set(call(way, change)) == {None}
        assert v.numpy().tolist() == [3.0, 6.0 if v.synchronization is ON_READ else 1.0]

    @both_ways
    def test_takes_the_arguments_of_tensorflow_in_replicas(self, way):
        written = create(mirrored(2), 1.0, aggregation=MEAN)
        read = create(mirrored(2), 1.0, synchronization=ON_READ, aggregation=SUM)

        def change():
            x = jnp.ones(())
            first = written.assign_add(x, use_locking=True, name="name", read_value=False)
            return first, read.assign_add(x, True, "name", False)

        assert run(way, mirrored(2), change) == (None, None)
        assert (written.numpy(), read.numpy()) == (2.0, 4.0)

    @both_ways
    @every_kind
    def test_bool(self, make, way):
        v = make([True, False])
        call(way, lambda: v.assign(~v))
        assert v.numpy().tolist() == [False, True]
        assert v.dtype == jnp.bool_

    @every_kind
    def test_every_kind_of_value(self, make):
        v = make([1.0, 2.0])
        for value in ([3, 4], (3.0, 4.0), np.array([3, 4]), jnp.array([3, 4]), make([3.0, 4.0])):
            v.assign([0.0, 0.0])
            assert v.assign(value) is v
            assert v.numpy().tolist() == [3, 4]

    @both_ways
    @every_kind
    @pytest.mark.parametrize("operation", ["assign", "assign_add", "assign_sub"])
    def test_what_does_not_fit(self, make, way, operation):
        v = make([1, 2], name="w")
        for value, message in [
            (np.ones(3, np.int32), r"'w' has shape \(2,\).*\(3,\)"),
            (1, r"'w' has shape \(2,\).*\(\)"),
            (np.ones((1, 2), np.int32), r"'w' has shape"),
            ([1.5, 2.5], "'w' has dtype int32.*float"),
            ([1j, 2], "'w' has dtype int32.*complex"),
        ]:
            with pytest.raises(ValueError, match=message):
                call(way, lambda value=value: getattr(v, operation)(value))
            assert v.numpy().tolist() == [1, 2]
        assert v.assign([3, 4]).numpy().tolist() == [3, 4]

    def test_kinds_only_widen(self):
        assert jt.Variable(1.0).assign(True).numpy() == 1
        assert jt.Variable(1j).assign(2).numpy() == 2
        assert jt.Variable(1, dtype=jnp.int8).assign(np.int64(5)).dtype == jnp.int8
        assert jt.Variable(1.0, dtype=jnp.bfloat16).assign(np.float64(1.5)).numpy() == 1.5
        for variable, value in [(True, 1), (1, 1.5), (1.5, 1j)]:
            v = jt.Variable(variable)
            with pytest.raises(ValueError, match="dtype"):
                v.assign(value)

    @every_kind
    def test_what_is_no_array(self, make):
        v = make(1.0, name="w")
        for value in ("text", None, object(), {"a": 1}):
            with pytest.raises((TypeError, ValueError)):
                v.assign(value)
            assert v.numpy() == 1

    @every_kind
    def test_a_leftover_tracer(self, make):
        v = make(1.0)
        kept = []
        jax.jit(lambda x: kept.append(x + 1))(1.0)
        with pytest.raises(jt.errors.TracerLeakError):
            v.assign(kept[0])
        assert v.numpy() == 1

    @every_kind
    def test_in_order(self, make):
        v = make(1.0)

        def change(x):
            before = v.value()
            v.assign_add(x)
            middle = v * 1
            v.assign(v * 10)
            return before, middle, v.value()

        assert [float(x) for x in jt.function(change)(1.0)] == [1, 2, 20]
        assert v.numpy() == 20


class TestScatter:
    @pytest.mark.parametrize(
        ("kind", "expected"),
        [
            ("add", [3, 3, 8]),
            ("sub", [3, 3, 4]),
            ("mul", [3, 3, 12]),
            ("div", [3, 3, 3]),
            ("min", [3, 3, 2]),
            ("max", [3, 3, 6]),
            ("update", [3, 3, 2]),
        ],
    )
    @both_ways
    def test_plain(self, way, kind, expected):
        v = jt.Variable([3.0, 3.0, 6.0])
        rows = jt.IndexedSlices(values=[2.0], indices=[2])
        call(way, lambda: getattr(v, f"scatter_{kind}")(rows))
        assert v.numpy().tolist() == expected

    @both_ways
    def test_rows_named_twice(self, way):
        v = jt.Variable(jnp.zeros((3, 2)))
        rows = jt.IndexedSlices(values=np.ones((3, 2), np.float32), indices=np.array([1, 1, 0]))
        call(way, lambda: v.scatter_add(rows))
        assert v.numpy().tolist() == [[1, 1], [2, 2], [0, 0]]

    def test_whole_numbers_divide_as_whole_numbers(self):
        v = jt.Variable([7, 7])
        v.scatter_div(jt.IndexedSlices(values=[2], indices=[0]))
        assert v.numpy().tolist() == [3, 7]
        assert v.dtype == jnp.int32

    @every_kind
    def test_anything_but_rows(self, make):
        v = make([1.0, 2.0], name="w")
        for delta in (1.0, [1.0], ([1.0], [0]), None):
            with pytest.raises((TypeError, NotImplementedError), match="'w'"):
                v.scatter_add(delta)
            assert v.numpy().tolist() == [1, 2]

    def test_rows_of_the_wrong_type(self):
        v = jt.Variable([1, 2], name="w")
        with pytest.raises(ValueError, match="'w' has dtype int32"):
            v.scatter_add(jt.IndexedSlices(values=[1.5], indices=[0]))
        assert v.numpy().tolist() == [1, 2]

    def test_rows_of_the_wrong_shape(self):
        v = jt.Variable(jnp.zeros((2, 3)), name="w")
        with pytest.raises((TypeError, ValueError)):
            v.scatter_add(jt.IndexedSlices(values=jnp.ones((1, 2)), indices=[0]))
        assert v.numpy().tolist() == [[0, 0, 0], [0, 0, 0]]


class TestCopies:
    @every_kind
    def test_deepcopy_is_independent(self, make):
        v = make([1.0, 2.0], name="w")
        duplicate = copy.deepcopy(v)
        duplicate.assign([5.0, 6.0])
        assert type(duplicate) is type(v)
        assert duplicate.name == "w"
        assert v.numpy().tolist() == [1, 2]
        v.assign([7.0, 8.0])
        assert duplicate.numpy().tolist() == [5, 6]

    @every_kind
    def test_steps_do_not_share_memory_with_copies(self, make):
        v = make([1.0, 2.0])
        duplicate = copy.deepcopy(v)
        jt.function(lambda: v.assign_add([1.0, 1.0]))()
        jt.function(lambda: duplicate.assign_add([10.0, 10.0]))()
        assert v.numpy().tolist() == [2, 3]
        assert duplicate.numpy().tolist() == [11, 12]

    def test_copies_in_structures_are_shared(self):
        v = jt.Variable(1.0)
        first, second = copy.deepcopy([v, v])
        assert first is second
        assert first is not v

    @pytest.mark.parametrize("synchronization", [ON_WRITE, ON_READ])
    def test_under_another_strategy(self, synchronization):
        """R98."""
        v = create(mirrored(2), 1.0, synchronization=synchronization)
        with mirrored(3).scope(), pytest.raises(RuntimeError, match="Mixing different"):
            copy.deepcopy(v)
        with mirrored(2).scope():
            assert type(copy.deepcopy(v)) is type(v)

    def test_copies_of_different_values(self):
        strategy = mirrored(2)
        v = create(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)
        strategy.run(lambda: v.assign(jnp.float32(replica_id() + 1)))
        assert components(copy.deepcopy(v)) == [1, 2]

    def test_inside_a_trace_nothing_leaks(self):
        v = jt.Variable([1.0, 2.0])
        made = []

        @jt.function
        def step():
            if not made:
                made.append(copy.deepcopy(v))
            return made[0] + 1

        assert step().tolist() == [2, 3]
        assert made[0].numpy().tolist() == [1, 2]


class TestReferences:
    @every_kind
    def test_as_dictionary_keys(self, make):
        v, w = make(1.0), make(1.0)
        table = {v.ref(): "v", w.ref(): "w"}
        assert (table[v.ref()], table[w.ref()]) == ("v", "w")
        assert v.ref().deref() is v
        assert v.ref() == v.ref()
        assert v.ref() != w.ref()
        assert v.ref() != v


class TestPrinting:
    def test_plain(self):
        v = jt.Variable(1.0, name="w")
        assert repr(v) == "<jt.Variable 'w:0' shape=() dtype=float32, numpy=1.0>"
        assert repr(jt.Variable([True])) == (
            "<jt.Variable 'Variable:0' shape=(1,) dtype=bool, numpy=array([ True])>"
        )
        assert "dtype=bfloat16" in repr(jt.Variable(1.0, dtype=jnp.bfloat16))

    def test_mirrored(self):
        v = create(mirrored(2), 1.0, name="w", aggregation=MEAN)
        assert repr(v) == (
            "MirroredVariable:{\n"
            "  0: <jt.Variable 'w:0' shape=() dtype=float32, numpy=1.0>,\n"
            "  1: <jt.Variable 'w/replica_1:0' shape=() dtype=float32, numpy=1.0>\n"
            "}"
        )

    def test_sync_on_read(self):
        strategy = mirrored(2)
        v = create(strategy, 0.0, name="w", synchronization=ON_READ)
        strategy.run(lambda: v.assign(jnp.float32(replica_id() + 1)))
        assert repr(v) == (
            "SyncOnReadVariable:{\n"
            "  0: <jt.Variable 'w:0' shape=() dtype=float32, numpy=1.0>,\n"
            "  1: <jt.Variable 'w/replica_1:0' shape=() dtype=float32, numpy=2.0>\n"
            "}"
        )

    @every_kind
    @pytest.mark.parametrize("transform", [jt.function, jax.jit], ids=["function", "jit"])
    def test_inside_a_trace(self, make, transform):
        v = make(1.0, name="w")
        seen = []
        transform(lambda: seen.append((repr(v), str(v), f"{v}")))()
        assert all("'w:0' shape=() dtype=float32" in text for text in seen[-1])

    @both_ways
    @pytest.mark.parametrize("synchronization", [ON_WRITE, ON_READ])
    def test_inside_replicas(self, way, synchronization):
        strategy = mirrored(2)
        v = create(strategy, 1.0, name="w", synchronization=synchronization)
        seen = []
        run(way, strategy, lambda: seen.append(repr(v)))
        assert all("'w:0' shape=() dtype=float32" in text for text in seen)

    def test_printing_uses_no_memory_of_the_step(self):
        """Printing a variable in a step neither captures it nor bakes its value in."""
        v = jt.Variable(1.0, name="w")

        @jt.function
        def step(x):
            repr(v)
            return x + v

        assert step(1.0) == 2
        v.assign(5.0)
        assert step(1.0) == 6


@pytest.mark.parametrize("wrap", [lambda fn: fn, jt.function], ids=["eager", "compiled"])
def test_a_list_of_arrays_is_assigned_as_one(wrap):
    v = jt.Variable([0.0, 0.0])
    wrap(lambda x: v.assign([x, 2 * x]))(jnp.float32(3.0))
    np.testing.assert_array_equal(v.numpy(), [3.0, 6.0])
