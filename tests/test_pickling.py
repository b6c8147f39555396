"""What becomes of variables, values and strategies that are pickled or copied."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.variables._support import ON_READ, SUM, components, mirrored, one_device


def pickled(value):
    return pickle.loads(pickle.dumps(value))


class TestVariables:
    @pytest.mark.parametrize("make", [jt.get_strategy, one_device, lambda: mirrored(2)])
    def test_keep_value_and_settings_and_join_the_strategy_in_force(self, make):
        with make().scope():
            v = jt.Variable([1.0, 2.0], name="v", trainable=False, aggregation=SUM)
        data = pickle.dumps(v)
        plain = pickle.loads(data)
        assert plain.distribute_strategy is None
        strategy = mirrored(2)
        with strategy.scope():
            again = pickle.loads(data)
        assert components(again) == [[1, 2], [1, 2]]
        assert again.distribute_strategy is strategy
        assert (again.name, again.trainable, again.aggregation) == ("v", False, SUM)
        again.assign([5.0, 6.0])
        assert v.numpy().tolist() == plain.numpy().tolist() == [1, 2]

    def test_copies_of_replicas_are_together_worth_the_same(self):
        strategy = mirrored(2)
        with strategy.scope():
            v = jt.Variable(0.0, synchronization=ON_READ, aggregation=SUM)
            strategy.run(lambda: v.assign(3.0))
            assert pickled(v).numpy() == v.numpy() == 6


class TestValues:
    def test_of_replicas_keep_their_components(self):
        strategy = mirrored(2)
        ids = strategy.run(
            lambda: jnp.float32(jt.get_replica_context().replica_id_in_sync_group + 1)
        )
        again = pickled(ids)
        assert [v.item() for v in again.values] == [1, 2]
        assert strategy.reduce("SUM", strategy.run(lambda x: x * 2, args=(again,)), axis=None) == 6

    def test_that_are_the_same_everywhere_become_arrays(self):
        with mirrored(2).scope():
            v = jt.Variable([1.0, 2.0])
        for value in (v.as_value(), v.values[1]):
            assert pickled(value).tolist() == [1, 2]

    def test_can_be_copied(self):
        strategy = mirrored(2)
        value = strategy.experimental_distribute_values_from_function(
            lambda context: np.full(2, context.replica_id_in_sync_group)
        )
        again = copy.deepcopy({"a": value})["a"]
        value.values[0][:] = 7
        assert [v.tolist() for v in again.values] == [[0, 0], [1, 1]]
        stacked = strategy.run(lambda: jnp.ones(2))
        assert strategy.reduce("SUM", copy.deepcopy(stacked), axis=None).tolist() == [2, 2]


class TestStrategies:
    @pytest.mark.parametrize("make", [one_device, lambda: mirrored(2)])
    def test_are_bound_to_their_process(self, make):
        with pytest.raises(TypeError, match=r"cannot be pickled.*jt\.train\.Checkpoint"):
            pickle.dumps({"strategy": make()})

    def test_the_default_one_is_there_already(self):
        assert pickled(jt.get_strategy()) is jt.get_strategy()


class TestMeshes:
    """`jax.set_mesh` around what has devices of its own."""

    @pytest.mark.parametrize(
        "step",
        [
            lambda strategy, v: jt.function(lambda: strategy.run(lambda: v * 2))(),
            lambda strategy, v: strategy.reduce("SUM", v.as_per_replica(), axis=None),
            lambda strategy, v: jt.function(lambda x: v * x)(jnp.ones(3)),
        ],
        ids=["function", "reduce", "variable"],
    )
    def test_are_named_in_errors(self, step):
        strategy = mirrored(2)
        with strategy.scope():
            v = jt.Variable(jnp.ones(3))
        mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4])
        with jax.set_mesh(mesh), pytest.raises(ValueError, match=r"(?i)mesh|devices") as raised:
            step(strategy, v)
        assert any("Leave the mesh" in note for note in raised.value.__notes__)
        step(strategy, v)
