"""The documents' section `scope`, which is the same in all four."""

import jax.numpy as jnp

import jaxtribute as jt


def two_devices() -> jt.MirroredStrategy:
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


def test_a_variable_created_inside_the_scope_is_mirrored():
    """000, 001, 002, 003, `scope`: "Variable created inside scope"."""
    strategy = two_devices()
    with strategy.scope():
        mirrored_variable = jt.Variable(1.0)
    assert repr(mirrored_variable) == (
        "MirroredVariable:{\n"
        "  0: <jt.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>,\n"
        "  1: <jt.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=1.0>\n"
        "}"
    )
    assert isinstance(mirrored_variable, jt.MirroredVariable)


def test_a_variable_created_outside_the_scope_is_a_regular_one():
    """000, 001, 002, 003, `scope`: "Variable created outside scope"."""
    strategy = two_devices()
    with strategy.scope():
        jt.Variable(1.0)
    regular_variable = jt.Variable(1.0)
    assert repr(regular_variable) == (
        "<jt.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>"
    )


def test_the_strategy_is_current_inside_the_scope_only():
    """000, 001, 002, 003, `scope`: "What happens when Strategy.scope is entered?", first point."""
    strategy = two_devices()
    default = jt.get_strategy()
    assert default is not strategy
    with strategy.scope():
        assert jt.get_strategy() is strategy
    assert jt.get_strategy() is default


def test_the_scope_is_a_cross_replica_context():
    """000, 001, 002, 003, `scope`: "What happens when Strategy.scope is entered?", second point."""
    assert not jt.in_cross_replica_context()
    with two_devices().scope():
        assert jt.in_cross_replica_context()
        assert jt.get_replica_context() is None
    assert not jt.in_cross_replica_context()
    assert jt.get_replica_context() is not None


def test_variable_creation_is_intercepted_together_with_creator_scopes():
    """000, 001, 002, 003, `scope`: "What happens when Strategy.scope is entered?", third point."""

    def double(next_creator, **kwargs):
        return next_creator(**kwargs | {"initial_value": 2 * kwargs["initial_value"]})

    with two_devices().scope(), jt.variable_creator_scope(double):
        variable = jt.Variable(1.0)
    assert isinstance(variable, jt.MirroredVariable)
    assert variable.numpy() == 2.0


def test_entering_the_scope_does_not_distribute_a_computation():
    """000, 001, 002, 003, `scope`: "Note: Entering a scope does not automatically ..."."""
    calls = []
    with two_devices().scope():
        result = (lambda x: calls.append(x) or x * 2)(jnp.float32(3.0))
    assert len(calls) == 1
    assert result == 6.0


def test_run_enters_the_scope_for_variables_created_in_it():
    """000, 001, 002, 003, `scope`: "relying on another API like `strategy.run`"."""
    strategy = two_devices()
    created = []

    def replica_fn():
        created.append(jt.Variable(1.0))

    strategy.run(replica_fn)
    assert isinstance(created[0], jt.MirroredVariable)
    assert created[1] is created[0]


def test_objects_that_create_variables_do_it_the_way_of_the_scope():
    """000, 001, 002, 003, `scope`: "Models, Optimizers, Metrics ... in the scope"."""

    class Dense(jt.Module):
        def __init__(self):
            super().__init__()
            self.w = jt.Variable(jnp.ones((3, 2)), name="w")

    with two_devices().scope():
        model = Dense()
        metric = jt.metrics.Mean()
    assert [type(v) for v in model.variables] == [jt.MirroredVariable]
    assert {type(v) for v in metric.variables} == {jt.SyncOnReadVariable}


def test_variables_can_be_read_and_written_outside_the_scope():
    """000, 001, 002, 003, `scope`: "reading and writing to these variables outside"."""
    strategy = two_devices()
    with strategy.scope():
        variable = jt.Variable(1.0)
    assert not jt.has_strategy()
    variable.assign_add(2.0)
    assert variable.numpy() == 3.0
    assert [component.numpy() for component in variable.values] == [3.0, 3.0]


def test_run_and_reduce_enter_the_scope_by_themselves():
    """000, 001, 002, 003, `scope`: "Some strategy APIs (such as `strategy.run` ...)"."""
    strategy = two_devices()
    seen = []

    def replica_fn():
        seen.append((jt.has_strategy(), jt.get_strategy()))
        return jnp.float32(1.0)

    result = strategy.run(replica_fn)
    assert seen == [(True, strategy), (True, strategy)]
    assert strategy.reduce("SUM", result, axis=None) == 2.0
    assert not jt.has_strategy()


def test_a_training_step_can_be_defined_inside_or_outside_the_scope():
    """000, 001, 002, 003, `scope`: "Defining `tf.function`s that represent your training step"."""
    strategy = two_devices()

    def train_step():
        strategy.run(lambda: variable.assign_add(jnp.float32(1.0) + 0))
        return variable + 0

    with strategy.scope():
        variable = jt.Variable(0.0, aggregation=jt.VariableAggregation.SUM)
        inside = jt.function(train_step)
    outside = jt.function(train_step)

    assert inside() == 2.0
    assert outside() == 4.0
    with strategy.scope():
        assert inside() == 6.0
        assert outside() == 8.0
