"""Variables of every synchronization and aggregation, written inside and outside of replicas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.conformance._strategies import (
    Setup,
    all_compiled,
    devices,
    every_kind,
    not_on_servers,
    replica_id,
    several_replicas,
)

ON_WRITE, ON_READ = jt.VariableSynchronization.ON_WRITE, jt.VariableSynchronization.ON_READ
AUTO = jt.VariableSynchronization.AUTO
NONE, SUM, MEAN, FIRST = (
    jt.VariableAggregation.NONE,
    jt.VariableAggregation.SUM,
    jt.VariableAggregation.MEAN,
    jt.VariableAggregation.ONLY_FIRST_REPLICA,
)
OPERATIONS = ["assign", "assign_add", "assign_sub"]
AGGREGATIONS = [NONE, SUM, MEAN, FIRST]


def create(setup: Setup, synchronization, aggregation, value=10.0) -> jt.Variable:
    with setup.strategy.scope():
        return jt.Variable(value, synchronization=synchronization, aggregation=aggregation)


def copies(setup: Setup, variable: jt.Variable) -> list[float]:
    local = setup.strategy.experimental_local_results(variable)
    if setup.on_servers:  # where all replicas have one value
        local *= setup.replicas
    return setup.all_of([float(copy.numpy()) for copy in local])


def after(operation: str, value: float) -> float:
    """Return what a variable that held 10 holds after an operation."""
    return {"assign": value, "assign_add": 10 + value, "assign_sub": 10 - value}[operation]


def aggregate(aggregation, values):
    if aggregation is SUM:
        return sum(values)
    return sum(values) / len(values) if aggregation is MEAN else values[0]


@pytest.mark.parametrize("setup", every_kind())
@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda a: a.name)
def test_on_write_inside_replicas(setup: Setup, aggregation):
    """R87, left half; decision 1 for NONE. AUTO is ON_WRITE."""
    synchronizations = (AUTO, ON_WRITE, ON_WRITE)
    variables = {
        op: create(setup, synchronization, aggregation)
        for op, synchronization in zip(OPERATIONS, synchronizations, strict=True)
    }
    n = setup.replicas

    def fn():
        for operation, variable in variables.items():
            getattr(variable, operation)(jnp.float32(1.0) + replica_id())
        return {operation: variable + 0 for operation, variable in variables.items()}

    if aggregation is NONE and n > 1:
        with pytest.raises(ValueError, match="aggregation"):
            setup.run(fn)
        assert all(copies(setup, v) == [10.0] * n for v in variables.values())
        return
    result = setup.run(fn)
    value = aggregate(aggregation, [i + 1 for i in range(n)])
    for operation, variable in variables.items():
        expected = after(operation, value)
        assert copies(setup, variable) == [expected] * n
        assert float(variable.numpy()) == expected
        assert [float(part) for part in setup.parts(result[operation])] == [expected] * n


@pytest.mark.parametrize("setup", not_on_servers(every_kind()))
@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda a: a.name)
def test_on_read_inside_replicas(setup: Setup, aggregation):
    """R87, right half; R91, R92."""
    variables = {op: create(setup, ON_READ, aggregation) for op in OPERATIONS}
    n = setup.replicas

    def fn():
        for operation, variable in variables.items():
            getattr(variable, operation)(jnp.float32(1.0) + replica_id())
        return {operation: variable + 0 for operation, variable in variables.items()}

    def read(variable):
        return [variable.value(), variable.read_value(), variable + 0, jnp.asarray(variable)]

    result = setup.run(fn)
    if not (aggregation is NONE and setup.has_copies):
        reads = setup.call(lambda: {op: read(variable) for op, variable in variables.items()})
    for operation, variable in variables.items():
        expected = [after(operation, i + 1) for i in range(n)]
        assert [float(part) for part in setup.parts(result[operation])] == expected
        assert copies(setup, variable) == expected
        if aggregation is NONE and setup.has_copies:
            with pytest.raises(ValueError, match=r"VariableAggregation\.NONE"):
                setup.call(variable.read_value)
            continue
        whole = aggregate(aggregation, expected)
        np.testing.assert_allclose([float(r) for r in reads[operation]], [whole] * 4)
        np.testing.assert_allclose(variable.numpy(), whole)
        np.testing.assert_allclose(np.asarray(variable), whole)


@pytest.mark.parametrize("setup", every_kind())
@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda a: a.name)
@pytest.mark.parametrize("synchronization", [ON_WRITE, ON_READ], ids=lambda s: s.name)
def test_outside_replicas(setup: Setup, synchronization, aggregation):
    """R90."""
    n = setup.replicas
    on_read = synchronization is ON_READ and setup.has_copies
    for operation in OPERATIONS:
        variable = create(setup, synchronization, aggregation)

        def write(variable=variable, operation=operation):
            getattr(variable, operation)(6.0)

        if on_read and (aggregation is NONE or (aggregation is SUM and operation != "assign")):
            with pytest.raises(ValueError, match="ON_READ"):
                setup.call(write)
            assert copies(setup, variable) == [10.0] * n
            continue
        setup.call(write)
        expected = after(operation, 6.0)
        if on_read and aggregation is SUM:
            np.testing.assert_allclose(copies(setup, variable), [6.0 / n] * n)
        else:
            assert copies(setup, variable) == [expected] * n
        np.testing.assert_allclose(variable.numpy(), expected)


@pytest.mark.parametrize("setup", several_replicas())
def test_one_value_for_all_replicas_is_not_added_up(setup: Setup):
    """R89: SUM of a literal, or of one array, is refused; MEAN and ONLY_FIRST_REPLICA use it."""
    captured = jnp.float32(3.0)
    added = create(setup, ON_WRITE, SUM)
    # An eager replica that is alone in its process may have computed an array by itself.
    is_known = setup.compiled or len(setup.local_replicas) > 1
    for value in (3.0, captured) if is_known else (3.0,):
        with pytest.raises(ValueError, match="cannot be reduced with the given reduce op"):
            setup.run(lambda value=value: added.assign(value))
    assert copies(setup, added) == [10.0] * setup.replicas

    setup.run(lambda: added.assign_add(jnp.ones(())))
    assert copies(setup, added) == [10.0 + setup.replicas] * setup.replicas

    for aggregation in MEAN, FIRST:
        variable = create(setup, ON_WRITE, aggregation)
        setup.run(lambda variable=variable: variable.assign(3.0))
        assert copies(setup, variable) == [3.0] * setup.replicas
        setup.run(lambda variable=variable: variable.assign_add(captured))
        assert copies(setup, variable) == [6.0] * setup.replicas


@pytest.mark.parametrize("setup", several_replicas())
@pytest.mark.parametrize("aggregation", [SUM, MEAN, FIRST], ids=lambda a: a.name)
def test_a_captured_per_replica_value_is_aggregated(setup: Setup, aggregation):
    """R93."""
    n = setup.replicas
    captured = setup.deal([np.float32(2 * i + 2) for i in range(n)])
    variable = create(setup, ON_WRITE, aggregation)
    setup.run(lambda: variable.assign(captured))
    expected = aggregate(aggregation, [2 * i + 2 for i in range(n)])
    assert copies(setup, variable) == [expected] * n


@pytest.mark.parametrize("setup", not_on_servers(several_replicas()))
def test_mirrored_copies_cannot_be_made_to_differ(setup: Setup):
    """Decision 1."""
    different = setup.deal([np.float32(i) for i in range(setup.replicas)])
    variable = create(setup, ON_WRITE, MEAN)
    with pytest.raises(ValueError, match="differs between replicas"):
        setup.call(variable.assign, different)
    with pytest.raises(ValueError, match="differs between replicas"):
        setup.call(
            lambda value: setup.strategy.extended.update(
                variable, lambda v, x: v.assign(x), args=(value,)
            ),
            different,
        )
    assert copies(setup, variable) == [10.0] * setup.replicas


@pytest.mark.parametrize("setup", every_kind())
def test_extended_update_inside_and_outside_replicas(setup: Setup):
    variable = create(setup, ON_WRITE, NONE)
    strategy = setup.strategy

    def program():
        strategy.extended.update(variable, lambda v, x: v.assign_add(x), args=(1.0,))

        def fn():
            total = jt.get_replica_context().all_reduce("SUM", jnp.float32(1.0) + 0)
            del total
            strategy.extended.update(variable, lambda v, x: v.assign_add(x), args=(2.0,))

        strategy.run(fn)

    setup.call(program)
    assert copies(setup, variable) == [13.0] * setup.replicas


TYPES = {
    "float32": ([1.5, 2.5], [1.0, 2.0]),
    "bfloat16": ([1.5, 2.5], [1.0, 2.0]),
    "int32": ([1, 2], [3, 4]),
    "complex64": ([1 + 1j, 2j], [1.0, 1j]),
}


@pytest.mark.parametrize("setup", not_on_servers(every_kind()))
def test_variables_of_every_type(setup: Setup):
    n = setup.replicas
    with setup.strategy.scope():
        written = {
            dtype: jt.Variable(jnp.array(value, dtype), aggregation=SUM)
            for dtype, (value, _) in TYPES.items()
        }
        read = {
            dtype: jt.Variable(jnp.array(value, dtype), synchronization=ON_READ, aggregation=SUM)
            for dtype, (value, _) in TYPES.items()
        }
        flag = jt.Variable([True, False], aggregation=FIRST)

    def fn():
        for dtype, (_, delta) in TYPES.items():
            written[dtype].assign_add(jnp.array(delta, dtype) * 1)
            read[dtype].assign_add(jnp.array(delta, dtype) * 1)
        flag.assign(jnp.array([False, True]) ^ (replica_id() > 0))

    setup.run(fn)
    for dtype, (value, delta) in TYPES.items():
        value, delta = np.array(value), np.array(delta)
        for variable, expected in (
            (written[dtype], value + n * delta),
            (read[dtype], n * (value + delta)),
        ):
            assert variable.dtype == dtype
            assert variable.numpy().dtype == dtype
            np.testing.assert_array_equal(variable.numpy().astype(complex), expected)
    np.testing.assert_array_equal(flag.numpy(), [False, True])


@pytest.mark.parametrize("setup", every_kind())
def test_a_variable_created_inside_replicas_is_one_for_all(setup: Setup):
    """R46."""
    made = []

    def fn():
        if len(made) < setup.replicas:
            made.append(jt.Variable(jnp.float32(1.0) * replica_id() + 5, aggregation=SUM))
        return made[0] + 0

    assert [float(part) for part in setup.parts(setup.strategy.run(fn))] == [5.0] * setup.replicas
    assert len({id(variable) for variable in made}) == 1
    assert copies(setup, made[0]) == [5.0] * setup.replicas


@pytest.mark.parametrize("setup", every_kind())
def test_a_variable_is_created_on_the_first_call_only(setup: Setup):
    made = {}

    def fn():
        if "v" not in made:
            made["v"] = jt.Variable(lambda: jnp.ones((2,)), name="lazy", aggregation=SUM)
        made["v"].assign_add(jnp.ones((2,)))
        return made["v"] + 0

    step = setup.function(lambda: setup.strategy.run(fn))
    for k in 1, 2, 3:
        for part in setup.parts(step()):
            np.testing.assert_array_equal(np.asarray(part), [1.0 + k * setup.replicas] * 2)
    np.testing.assert_array_equal(made["v"].numpy(), [1.0 + 3 * setup.replicas] * 2)
    assert isinstance(made["v"].value(), jax.Array)
    assert not isinstance(made["v"].value(), jax.core.Tracer)


@pytest.mark.parametrize("setup", every_kind())
def test_a_variable_of_another_strategy_is_refused(setup: Setup):
    """R86."""
    other = jt.MirroredStrategy(devices()[-2:])
    with other.scope():
        foreign = jt.Variable(1.0, aggregation=SUM)
    if setup.name == "default":  # which gives way to the variable's own strategy
        assert float(setup.call(lambda: foreign + 0)) == 1.0
        return
    with setup.strategy.scope():
        for use in (lambda: foreign + 0, lambda: foreign.assign(2.0)):
            with pytest.raises(RuntimeError, match="Mixing different"):
                setup.call(use)
            with pytest.raises(RuntimeError, match="Mixing different"):
                setup.run(use)
    assert foreign.numpy() == 1.0


@pytest.mark.parametrize("setup", every_kind())
def test_a_step_sees_what_was_assigned_between_steps(setup: Setup):
    variable = create(setup, ON_WRITE, SUM, value=0.0)

    def fn():
        variable.assign_add(jnp.ones(()))
        return variable * 2

    step = setup.function(lambda: setup.strategy.run(fn))
    step()
    variable.assign(100.0)
    parts = setup.parts(step())
    assert [float(part) for part in parts] == [2 * (100.0 + setup.replicas)] * setup.replicas
    kept = variable.value()
    step()
    assert float(kept) == 100.0 + setup.replicas
    assert variable.numpy() == 100.0 + 2 * setup.replicas


@pytest.mark.parametrize("setup", not_on_servers(every_kind()))
def test_writes_are_seen_by_later_reads_in_the_same_replica(setup: Setup):
    mirrored = create(setup, ON_WRITE, MEAN, value=1.0)
    counted = create(setup, ON_READ, SUM, value=1.0)

    def fn():
        seen = []
        for _ in range(2):
            mirrored.assign_add(mirrored * 1.0)
            counted.assign_add(counted * 1.0)
            seen.append((mirrored + 0, counted + 0))
        return seen

    for part in setup.parts(setup.run(fn)):
        assert [(float(a), float(b)) for a, b in part] == [(2.0, 2.0), (4.0, 4.0)]
    assert mirrored.numpy() == 4.0
    assert counted.numpy() == 4.0 * setup.replicas


@pytest.mark.parametrize("setup", all_compiled())
def test_a_row_that_does_not_exist_of_one_replica_raises_everywhere(setup: Setup):
    v = create(setup, ON_WRITE, SUM, np.zeros(setup.replicas, np.float32))

    def replica_fn(first):
        row = jnp.reshape(first + replica_id(), (1,))
        v.scatter_add(jt.IndexedSlices(jnp.ones(1), row))

    step = setup.function(lambda first: setup.strategy.run(replica_fn, args=(first,)))
    jt.config.check_ids_in_functions(True)
    try:
        for _ in range(2):  # nobody is left waiting after the first
            with pytest.raises(jt.errors.InvalidArgumentError, match=f" {setup.replicas}\\b"):
                step(jnp.int32(1))
            assert not v.numpy().any()
        step(jnp.int32(0))
    finally:
        jt.config.check_ids_in_functions(False)
    assert v.numpy().tolist() == [1] * setup.replicas
