"""What the library takes for granted about JAX; a new JAX that changes it is noticed here."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtribute import _jax_compat

# Ways to be inside a trace: each calls its argument there.
TRANSFORMATIONS = {
    "jit": lambda fn: jax.jit(lambda x: (fn(), x)[1])(1.0),
    "grad": lambda fn: jax.grad(lambda x: (fn(), x)[1])(1.0),
    "value_and_grad": lambda fn: jax.value_and_grad(lambda x: (fn(), x)[1])(1.0),
    "jvp": lambda fn: jax.jvp(lambda x: (fn(), x)[1], (1.0,), (1.0,)),
    "vmap": lambda fn: jax.vmap(lambda x: (fn(), x)[1])(jnp.ones(2)),
    "scan": lambda fn: jax.lax.scan(lambda c, x: (fn(), (c, x))[1], 0.0, jnp.ones(2)),
    "cond": lambda fn: jax.lax.cond(True, lambda: (fn(), 1.0)[1], lambda: 2.0),
    "while_loop": lambda fn: jax.lax.while_loop(
        lambda x: x < 1.0, lambda x: (fn(), x + 1.0)[1], 0.0
    ),
    "checkpoint": lambda fn: jax.checkpoint(lambda x: (fn(), x)[1])(1.0),
    "make_jaxpr": lambda fn: jax.make_jaxpr(lambda x: (fn(), x)[1])(1.0),
    "eval_shape": lambda fn: jax.eval_shape(lambda x: (fn(), x)[1], 1.0),
    "shard_map": lambda fn: jax.jit(
        jax.shard_map(
            lambda x: (fn(), x)[1],
            mesh=Mesh(np.array(jax.devices("cpu")[:2]), ("replica",)),
            in_specs=PartitionSpec("replica"),
            out_specs=PartitionSpec("replica"),
            check_vma=False,
        )
    )(jnp.ones(2)),
}
inside_each = pytest.mark.parametrize("inside", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS)


class TestMovable:
    def test_arrays_of_two_devices_can_be_combined_without_a_copy_of_either(self):
        placed = [jax.device_put(jnp.arange(2) + i, d) for i, d in enumerate(jax.devices()[:2])]
        arrays = [_jax_compat.movable(array) for array in placed]
        assert jnp.concatenate(arrays).tolist() == [0, 1, 1, 2]
        for array, original in zip(arrays, placed, strict=True):
            assert original.committed
            assert not array.committed
            assert array.unsafe_buffer_pointer() == original.unsafe_buffer_pointer()

    def test_random_keys(self):
        keys = [jax.device_put(jax.random.key(i), d) for i, d in enumerate(jax.devices()[:2])]
        stacked = jnp.stack([_jax_compat.movable(key) for key in keys])
        assert jax.random.key_data(stacked).tolist() == [[0, 0], [0, 1]]

    def test_other_values_stay_as_they_are(self):
        values = [1, None, np.ones(2), jnp.ones(2)]
        assert all(_jax_compat.movable(value) is value for value in values)


class TestTraces:
    def test_nothing_is_traced_outside_of_transformations(self):
        assert not _jax_compat.is_tracing()

    @inside_each
    def test_every_transformation_is_a_trace(self, inside):
        seen = []
        inside(lambda: seen.append(_jax_compat.is_tracing()))
        assert seen
        assert all(seen)
        assert not _jax_compat.is_tracing()

    @inside_each
    def test_a_trace_is_another_than_the_one_around_it(self, inside):
        outer, inner = [], []

        def traced(x):
            outer.append(_jax_compat.current_trace())
            inside(lambda: inner.append(_jax_compat.current_trace()))
            assert _jax_compat.current_trace() == outer[-1]
            return x

        jax.make_jaxpr(traced)(1.0)
        assert inner
        assert all(token != outer[-1] for token in inner)

    @inside_each
    def test_a_trace_equals_itself(self, inside):
        pairs = []
        inside(lambda: pairs.append((_jax_compat.current_trace(), _jax_compat.current_trace())))
        assert all(a == b for a, b in pairs)

    def test_two_traces_of_one_function_differ(self):
        tokens = []
        for size in (1, 2):
            jax.jit(lambda x: (tokens.append(_jax_compat.current_trace()), x)[1])(jnp.ones(size))
        assert tokens[0] != tokens[1]

    def test_a_jitted_function_that_is_cached_is_not_traced_again(self):
        calls = []
        jitted = jax.jit(lambda x: (calls.append(None), x)[1])
        jitted(1.0)
        jitted(2.0)
        assert len(calls) == 1

    def test_compile_time_evaluation_is_no_trace(self):
        with jax.ensure_compile_time_eval():
            assert not _jax_compat.is_tracing()

    @inside_each
    def test_compile_time_evaluation_computes_right_away_and_stays_in_the_trace(self, inside):
        seen = []

        def fn():
            outside = _jax_compat.current_trace()
            with jax.ensure_compile_time_eval():
                value = jnp.ones(2) + 1
                seen.append(isinstance(value, jax.core.Tracer))
                assert _jax_compat.current_trace() == outside

        inside(fn)
        assert seen
        assert not any(seen)

    @inside_each
    def test_a_new_thread_is_outside_of_every_trace(self, inside):
        seen = []

        def fn():
            thread = threading.Thread(target=lambda: seen.append(_jax_compat.is_tracing()))
            thread.start()
            thread.join()

        inside(fn)
        assert seen
        assert not any(seen)


class TestRefs:
    """`Variable.read_in_foreign_trace` gives compiled code a `jax.Ref` instead of an array."""

    def test_a_captured_ref_is_looked_up_at_each_call(self):
        ref = jax.new_ref(jnp.float32(1.0))
        traces = []

        @jax.jit
        def read(x):
            traces.append(None)
            return ref[...] + x

        assert float(read(0.0)) == 1.0
        ref[...] = jnp.float32(5.0)
        assert float(read(0.0)) == 5.0
        assert len(traces) == 1

    def test_a_ref_made_at_compile_time_may_be_captured_as_well(self):
        made = []

        @jax.jit
        def read():
            if not made:
                with jax.ensure_compile_time_eval():
                    made.append(jax.new_ref(jnp.float32(1.0)))
            return made[0][...]

        assert float(read()) == 1.0
        made[0][...] = jnp.float32(2.0)
        assert float(read()) == 2.0

    def test_writing_a_ref_does_not_change_the_array_it_was_made_from(self):
        array = jnp.zeros(3)
        ref = jax.new_ref(array)
        ref[...] = jnp.ones(3)
        assert array.tolist() == [0.0, 0.0, 0.0]


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices("cpu")[:2]), ("replica",))


SHARDED = PartitionSpec("replica")


def on_each(mesh, fn, out_specs=SHARDED):
    return jax.jit(
        jax.shard_map(
            fn, mesh=mesh, in_specs=PartitionSpec("replica"), out_specs=out_specs, check_vma=False
        )
    )


class TestShardMap:
    def test_psum_transposes_to_psum(self, mesh):
        # y = sum of x**2 over the replicas; each replica differentiates its own y.
        gradients = on_each(mesh, jax.grad(lambda x: jax.lax.psum(x**2, "replica")[0]))
        assert gradients(jnp.array([1.0, 2.0])).tolist() == [4.0, 8.0]

    def test_the_gradient_of_a_replicated_value_is_not_summed_by_itself(self, mesh):
        def fn(x):
            w = jnp.float32(3.0)
            return jax.grad(lambda w: (w * x)[0])(w)[None]

        assert on_each(mesh, fn)(jnp.array([1.0, 2.0])).tolist() == [1.0, 2.0]

    def test_an_output_that_is_not_replicated_may_be_declared_so(self, mesh):
        fn = on_each(mesh, lambda x: jax.lax.psum(x, "replica"), out_specs=PartitionSpec())
        assert fn(jnp.array([1.0, 2.0])).tolist() == [3.0]

    def test_the_axis_index_is_the_place_in_the_mesh(self):
        cpus = jax.devices("cpu")
        mesh = Mesh(np.array([cpus[3], cpus[1], cpus[2]]), ("replica",))
        ids = on_each(mesh, lambda x: jax.lax.axis_index("replica")[None])(jnp.zeros(3))
        assert ids.tolist() == [0, 1, 2]
        assert [shard.device for shard in ids.addressable_shards] == [cpus[3], cpus[1], cpus[2]]


class TestShards:
    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)], ids=str)
    @pytest.mark.parametrize("spec", [PartitionSpec(), PartitionSpec("replica")], ids=str)
    def test_are_in_the_order_of_the_mesh(self, order, spec):
        devices = [jax.devices("cpu")[i] for i in order]
        mesh = Mesh(np.array(devices), ("replica",))
        array = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, spec))
        assert [shard.device for shard in array.addressable_shards] == devices

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
    def test_addressable_data_is_in_the_order_of_the_mesh(self, order):
        devices = [jax.devices("cpu")[i] for i in order]
        sharding = NamedSharding(Mesh(np.array(devices), ("replica",)), PartitionSpec("replica"))
        array = jax.device_put(jnp.array([[1.0], [2.0]]), sharding)
        assert [float(array.addressable_data(i)[0, 0]) for i in range(2)] == [1.0, 2.0]

    def test_of_a_computed_array_are_in_the_order_of_the_mesh(self):
        devices = [jax.devices("cpu")[i] for i in (2, 0, 1)]
        mesh = Mesh(np.array(devices), ("replica",))
        stacked = NamedSharding(mesh, PartitionSpec("replica"))
        doubled = jax.jit(lambda x: x * 2, out_shardings=stacked)(
            jax.device_put(jnp.arange(3.0), stacked)
        )
        assert [float(shard.data[0]) for shard in doubled.addressable_shards] == [0.0, 2.0, 4.0]
        assert [shard.device for shard in doubled.addressable_shards] == devices


class Arraylike:
    """Stands for an array, as variables and distributed values do."""

    def __jax_array__(self):
        return jnp.array([1.0, 2.0])


class TestConversion:
    def test_arrays_are_made_and_operated_with(self):
        assert jnp.asarray(Arraylike()).tolist() == [1.0, 2.0]
        assert jnp.array(Arraylike()).tolist() == [1.0, 2.0]
        assert (jnp.ones(2) + Arraylike()).tolist() == [2.0, 3.0]
        assert (jnp.ones((1, 2)) @ Arraylike()).tolist() == [3.0]

    def test_functions_that_jax_compiles_refuse_what_is_no_array(self):
        # Documented for users as "convert with jnp.asarray first"; good news when this fails.
        for call in (jnp.sum, jnp.sin, lambda x: jnp.dot(jnp.ones(2), x), jax.jit(lambda x: x)):
            with pytest.raises((TypeError, ValueError), match="__jax_array__"):
                call(Arraylike())


class TestDonation:
    def test_a_donated_array_is_gone_and_others_are_not(self):
        kept, given = jnp.ones(4), jnp.ones(4) * 2
        jax.jit(lambda a, b: a + b, donate_argnums=0)(given, kept)
        assert given.is_deleted()
        assert not kept.is_deleted()

    def test_a_copy_is_another_buffer(self):
        original = jnp.ones(4) * 2
        jax.jit(lambda a: a + 1, donate_argnums=0)(jnp.copy(original))
        assert original.tolist() == [2.0] * 4


class TestInputsInUse:
    def test_those_on_which_no_result_depends_are_told(self):
        def fn(a, b, c):
            jnp.sin(c)
            return jax.jit(lambda x, y: x)(a, b)

        jaxpr = jax.jit(fn).trace(1.0, 2.0, 3.0).jaxpr
        assert _jax_compat.inputs_in_use(jaxpr) == [True, False, False]


class TestInputsThatTurnUp:
    """`jt.function` traces once: what a function turns out to use becomes an input afterwards."""

    def program(self, fn, *args):
        def traced(*args):
            self.trace = _jax_compat.trace_in_progress()
            return fn(*args)

        return _jax_compat.TracedProgram(jax.make_jaxpr(traced)(*args))

    def turn_up(self, number, shape=(), *operands):
        with _jax_compat.on_trace(self.trace):
            return _jax_compat.new_input(number, shape, jnp.float32, *operands)

    @inside_each
    def test_wherever_it_is_asked_for(self, inside):
        found = []

        def fn(x):
            inside(lambda: found.append(self.turn_up(0)))
            return x * found[0]

        program = self.program(fn, 1.0)
        assert program.numbers == [0]
        assert jax.jit(program.function([0]))(3.0, 2.0) == [6.0]

    def test_those_on_which_no_result_depends_are_left_out(self):
        def fn(x):
            unused, used = self.turn_up(0), self.turn_up(1, (2,))
            jnp.sin(unused)
            return jax.jit(lambda a, b: a)(used, unused) * x

        program = self.program(fn, 1.0)
        assert program.numbers == [1]
        assert program.type_of(1) == jax.ShapeDtypeStruct((2,), jnp.float32)

    def test_an_operand_that_shard_map_does_not_use_is_left_out(self, mesh):
        def fn(x):
            used, unused = self.turn_up(0, (2,)), self.turn_up(1, (2,))
            program = jax.shard_map(
                lambda a, b: a * 2, mesh=mesh, in_specs=SHARDED, out_specs=SHARDED, check_vma=False
            )
            return program(used, unused)

        assert self.program(fn, jnp.ones(2)).numbers == [0]

    def test_what_is_needed_to_provide_one(self):
        def fn(x):
            first = self.turn_up(0)
            rows = self.turn_up(1, (), x + first)
            more = self.turn_up(2, (), rows * 2)
            return rows + more

        program = self.program(fn, 1.0)
        operands, needed = program.operands([1], [0])
        assert jax.jit(operands)(10.0, 1.0) == [11.0]
        assert needed == [True]
        operands, needed = program.operands([2], [0, 1])
        assert jax.jit(operands)(10.0, 7.0, 1.0) == [14.0]
        assert needed == [False, True]

    def test_a_value_that_is_needed_at_once_is_told(self):
        def fn(x):
            with jax.ensure_compile_time_eval(), pytest.raises(_jax_compat.CannotBeInput):
                self.turn_up(0)
            return x

        assert self.program(fn, 1.0).numbers == []
