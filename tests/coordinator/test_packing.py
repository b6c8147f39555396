"""Functions and arguments arrive on a worker as they were when they were packed."""

import gc
import importlib
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.coordinator._packing import Packer, Resource, load_arguments, load_function

BIG = 64 << 10


def no_resource(number):
    raise AssertionError(f"resource {number}")


class Worker:
    """Loads what a packer packed, as a worker does."""

    def __init__(self):
        self.blobs = {}
        self.loaded = {}
        self.resource = no_resource

    def function(self, packed):
        self.blobs.update((blob.digest, blob.data) for blob in packed.blobs)
        return load_function(packed.blob.data, self.blobs, self.resource, self.loaded)

    def arguments(self, packed):
        self.blobs.update((blob.digest, blob.data) for blob in packed.blobs)
        return load_arguments(packed.frames, self.blobs, self.resource, self.loaded)


def sent(value):
    """Return a value as it arrives as an argument."""
    (arrived,), _ = Worker().arguments(Packer().arguments((value,), {}))
    return arrived


def called(function, *args, **kwargs):
    """Call a function as a worker would."""
    packer, worker = Packer(), Worker()
    arrived = worker.function(packer.function(function))
    args, kwargs = worker.arguments(packer.arguments(args, kwargs))
    return arrived(*args, **kwargs)


@jt.function
def double(x):
    return 2 * x


class TestFunctions:
    @pytest.mark.parametrize(
        "function",
        [lambda x: x + 1, double, np.square, jt.function(lambda x: x * 3), max],
        ids=["lambda", "jt.function", "numpy's", "jt.function of a lambda", "built in"],
    )
    def test_any_function_can_be_sent(self, function):
        args = (3, 4) if function is max else (np.float32(3),)
        assert called(function, *args) == function(*args)

    def test_a_function_that_calls_itself_can_be_sent(self):
        def factorial(n):
            return 1 if n == 0 else n * factorial(n - 1)

        assert called(factorial, 5) == 120

    def test_compiled_functions_that_call_each_other_can_be_sent(self):
        @jt.function
        def even(n, x):
            return x if n == 0 else odd(n - 1, x + 1)

        @jt.function
        def odd(n, x):
            return even(n - 1, x + 10)

        assert called(even, 4, jnp.float32(0)) == 22

    def test_a_compiled_method_can_be_sent(self):
        class Model:
            scale = 5.0

            @jt.function
            def step(self, x):
                return self.scale * x

        assert called(Model().step, jnp.float32(2)) == 10

    def test_a_compiled_function_is_packed_once(self):
        packer = Packer()
        captured = {"x": 1}
        function = jt.function(lambda: captured["x"])
        before = packer.function(function)
        captured["x"] = 2
        assert packer.function(function) is before

    def test_a_plain_function_is_packed_with_what_it_refers_to_now(self):
        packer, worker = Packer(), Worker()
        captured = {"x": 1}

        def read():
            return captured["x"]

        before = packer.function(read)
        captured["x"] = 2
        after = packer.function(read)
        assert [worker.function(before)(), worker.function(after)()] == [1, 2]

    def test_a_function_that_refers_to_nothing_is_packed_once(self):
        packer = Packer()
        function = lambda: None  # noqa: E731
        assert packer.function(function) is packer.function(function)

    def test_what_is_packed_goes_with_the_function(self):
        packer = Packer()
        function = jt.function(lambda x: x)
        digest = packer.function(function).blob.digest
        assert packer.blob(digest) is not None
        del function
        gc.collect()
        assert packer.blob(digest) is None

    def test_a_compiled_function_inside_others_is_loaded_once(self):
        packer, worker = Packer(), Worker()
        inner = jt.function(lambda x: x + 1)
        functions = [worker.function(packer.function(lambda n=n: (inner, n))) for n in range(3)]
        assert len({id(function()[0]) for function in functions}) == 1
        assert [function()[1] for function in functions] == [0, 1, 2]


class TestConstants:
    @pytest.mark.parametrize("kind", [np.arange, jnp.arange], ids=["numpy", "jax"])
    def test_a_big_array_is_not_in_the_function(self, kind):
        packer, worker = Packer(), Worker()
        table = kind(BIG)
        packed = packer.function(lambda: table)
        assert len(packed.blob.data) < 2000
        arrived = worker.function(packed)()
        assert type(arrived) is type(table)
        np.testing.assert_array_equal(arrived, table)

    def test_the_same_array_has_the_same_digest_wherever_it_occurs(self):
        packer = Packer()
        table = jnp.arange(BIG)
        captured = packer.function(lambda: table)
        passed = packer.arguments((table, {"again": table}), {})
        assert captured.blobs == passed.blobs
        assert len(passed.blobs) == 1

    def test_equal_arrays_of_different_shape_and_type_keep_both(self):
        table = np.arange(BIG, dtype=np.int32)
        arrived = sent([table, table.reshape(2, -1), table.view(np.float32)])
        assert [a.shape for a in arrived] == [(BIG,), (2, BIG // 2), (BIG,)]
        assert arrived[2].dtype == np.float32

    def test_a_numpy_array_is_sent_as_it_is_now(self):
        packer, worker = Packer(), Worker()
        table = np.zeros(BIG)
        packed = packer.arguments((table,), {})
        table[:] = 1
        assert worker.arguments(packed)[0][0].sum() == 0
        assert packer.arguments((table,), {}).blobs != packed.blobs

    def test_a_worker_may_write_to_what_it_got(self):
        packer, worker = Packer(), Worker()
        packed = packer.arguments((np.zeros(BIG), np.zeros(3)), {})
        for _ in range(2):
            (big, small), _ = worker.arguments(packed)
            assert big.sum() + small.sum() == 0
            big += 1
            small += 1

    @pytest.mark.parametrize("dtype", [jnp.bfloat16, np.int8, np.complex64, bool], ids=str)
    def test_types_are_kept(self, dtype):
        arrived = sent(jnp.ones(BIG, dtype))
        assert (type(arrived), arrived.dtype) == (type(jnp.ones(1)), np.dtype(dtype))

    def test_the_copy_of_an_array_goes_with_it(self):
        packer = Packer()
        table = jnp.arange(BIG)
        digest = packer.arguments((table,), {}).blobs[0].digest
        assert packer.blob(digest) is not None
        del table
        gc.collect()
        assert packer.blob(digest) is None


class TestArguments:
    def test_nothing_takes_no_bytes(self):
        packed = Packer().arguments((), {})
        assert packed.frames == ()
        assert Worker().arguments(packed) == ((), {})

    def test_positions_keywords_and_structures_are_kept(self):
        packed = Packer().arguments((1, [2.5, "x"]), {"y": {"z": (None, b"w")}})
        assert Worker().arguments(packed) == ((1, [2.5, "x"]), {"y": {"z": (None, b"w")}})

    def test_weakly_typed_numbers_stay_so(self):
        assert sent(jnp.asarray(1.0)).weak_type
        assert not sent(jnp.float32(1.0)).weak_type

    def test_random_keys_are_kept(self):
        key = jax.random.key(3)
        assert jax.random.key_data(sent(key)).tolist() == jax.random.key_data(key).tolist()

    @pytest.mark.parametrize(
        "dataset",
        [
            jt.data.Dataset.range(6).batch(2),
            jt.data.Dataset.from_tensor_slices({"x": np.arange(4)}).map(lambda e: e["x"] + 1),
            jt.data.Dataset.range(4).cache(),
            jt.data.Dataset.from_generator(lambda: iter([1, 2])),
            jt.data.Dataset.range(9).shuffle(9, seed=3),
        ],
        ids=["batches", "mapped", "cached", "generated", "shuffled"],
    )
    def test_datasets_can_be_sent(self, dataset):
        assert str(list(sent(dataset))) == str(list(dataset))

    def test_a_value_of_each_replica_is_sent_as_its_parts(self):
        strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        value = strategy.run(lambda: jt.get_replica_context().replica_id_in_sync_group * 1.5)
        assert [float(v) for v in sent(value).values] == [0.0, 1.5]

    def test_resources_travel_as_numbers_with_all_that_makes_them(self):
        packer, worker = Packer(), Worker()
        table = jnp.arange(BIG)
        first = Resource(7, packer.function(lambda: table))
        second = Resource(8, packer.function(lambda: first))
        packed = packer.arguments(([second],), {})
        assert {r.number for r in packed.resources} == {7, 8}
        assert {*first.function.blobs, first.function.blob, second.function.blob} == set(
            packed.blobs
        )
        worker.resource = lambda number: f"resource {number}"
        assert worker.arguments(packed) == ((["resource 8"],), {})


class TestRefusals:
    def test_a_variable_of_the_coordinator_is_refused(self):
        variable = jt.Variable(1.0, name="v")
        with pytest.raises(TypeError, match=r"'v' was created outside .* strategy\.scope\(\)"):
            Packer().function(lambda: variable + 1)

    def test_a_tracer_is_refused(self):
        packer = Packer()

        @jax.jit
        def outer(x):
            packer.arguments((x,), {})
            return x

        with pytest.raises(TypeError, match=r"outside of jt\.function"):
            outer(1.0)

    def test_what_cannot_be_pickled_is_named(self):
        generator = (x for x in ())
        with pytest.raises(TypeError, match=r"step.*cannot be sent to workers.*generator"):

            def step():
                return generator

            Packer().function(step)


MODULE = """
    import jaxtribute as jt
    OFFSET = 10
    def add(x):
        return x + OFFSET
"""


class TestModules:
    """What lies beside the main script is sent; the rest must be there."""

    def run(self, script, folder):
        return subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, cwd=folder, timeout=100
        )

    def test_modules_beside_the_main_script_are_sent(self, tmp_path):
        (tmp_path / "beside.py").write_text(textwrap.dedent(MODULE))
        script = tmp_path / "main.py"
        script.write_text(
            textwrap.dedent(
                """
                import sys
                import cloudpickle
                import beside
                from jaxtribute.coordinator._packing import Packer, load_function

                packed = Packer().function(beside.add)
                assert not cloudpickle.list_registry_pickle_by_value()
                del sys.modules["beside"]
                sys.path[:] = [p for p in sys.path if not p.startswith(sys.argv[0][:-8])]
                print(load_function(packed.blob.data, {}, None)(1))
                """
            )
        )
        done = self.run(script, tmp_path)
        assert done.stdout.strip() == "11", done.stderr

    def test_a_module_that_a_worker_lacks_is_named_with_what_to_do(self, tmp_path, monkeypatch):
        (tmp_path / "only_here.py").write_text(textwrap.dedent(MODULE))
        monkeypatch.syspath_prepend(tmp_path)
        only_here = importlib.import_module("only_here")
        packed = Packer().function(only_here.add)
        monkeypatch.undo()
        del sys.modules["only_here"]
        with pytest.raises(ModuleNotFoundError, match=r"'only_here'.*Install it on the workers"):
            load_function(packed.blob.data, {}, no_resource)
