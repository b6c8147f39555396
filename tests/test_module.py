"""`jt.Module`: the variables an object holds."""

import copy

import jax.numpy as jnp
import optax
import pytest

import jaxtribute as jt
from tests.variables._support import mirrored


class Dense(jt.Module):
    def __init__(self, name=None):
        super().__init__(name)
        self.w = jt.Variable(jnp.ones((2, 2)), name="w")
        self.b = jt.Variable(jnp.zeros(2), name="b")
        self.calls = jt.Variable(0, name="calls", trainable=False)

    def __call__(self, x):
        return x @ self.w + self.b


def names(variables):
    return [v.name for v in variables]


class TestVariables:
    def test_by_attribute(self):
        dense = Dense()
        assert names(dense.variables) == ["b", "calls", "w"]
        assert names(dense.trainable_variables) == ["b", "w"]
        assert names(dense.non_trainable_variables) == ["calls"]
        assert isinstance(dense.variables, tuple)

    def test_names(self):
        assert Dense().name == "dense"
        assert Dense("first").name == "first"

    def test_nested(self):
        class Model(jt.Module):
            def __init__(self):
                super().__init__()
                self.layers = [Dense("one"), Dense("two")]
                self.head = {"b": jt.Variable(1.0, name="hb"), "a": (jt.Variable(2.0, name="ha"),)}
                self.deep = {"more": [{"still": Dense("three")}]}
                self.scale = 2.0
                self.text = "text"
                self.nothing = None

        model = Model()
        assert len(model.variables) == 3 * 3 + 2
        assert {"ha", "hb"} <= set(names(model.variables))
        assert len(model.trainable_variables) == 3 * 2 + 2
        assert sorted(m.name for m in model.submodules) == ["one", "three", "two"]

    def test_each_once(self):
        class Model(jt.Module):
            def __init__(self):
                super().__init__()
                self.encoder = self.decoder = Dense()
                self.tied = self.encoder.w
                self.all = [self.encoder, self.encoder.w]

        model = Model()
        assert len(model.variables) == 3
        assert model.submodules == (model.encoder,)

    def test_modules_that_hold_each_other(self):
        parent, child = Dense("parent"), Dense("child")
        parent.child, child.parent = child, parent
        parent.me = parent
        assert len(parent.variables) == 6
        assert parent.submodules == (child,)
        assert child.submodules == (parent,)

    def test_equal_values_are_not_one(self):
        class Model(jt.Module):
            def __init__(self):
                super().__init__()
                self.parts = [jt.Variable(1.0), jt.Variable(1.0)]

        assert len(Model().variables) == 2

    def test_what_is_added_later(self):
        dense = Dense()
        dense.extra = jt.Variable(1.0, name="extra")
        assert "extra" in names(dense.variables)
        del dense.extra
        assert "extra" not in names(dense.variables)

    def test_the_order_is_stable(self):
        class Model(jt.Module):
            def __init__(self, reverse):
                super().__init__()
                for name in sorted("abc", reverse=reverse):
                    setattr(self, name, jt.Variable(1.0, name=name))

        assert names(Model(False).variables) == names(Model(True).variables) == ["a", "b", "c"]

    def test_dictionaries_with_any_keys(self):
        class Model(jt.Module):
            def __init__(self):
                super().__init__()
                self.table = {"a": jt.Variable(1.0), 2: jt.Variable(2.0)}

        assert len(Model().variables) == 2

    def test_empty(self):
        assert jt.Module().variables == ()
        assert jt.Module("m").name == "m"

    def test_metrics_and_optimizers_are_modules(self):
        class Trainer(jt.Module):
            def __init__(self):
                super().__init__()
                self.dense = Dense()
                self.metric = jt.metrics.Mean()
                self.optimizer = jt.Optimizer(optax.adam(0.1))

        trainer = Trainer()
        trainer.optimizer.build(trainer.dense.trainable_variables)
        assert trainer.metric in trainer.submodules
        assert trainer.optimizer in trainer.submodules
        assert names(trainer.trainable_variables) == ["b", "w"]
        found = {id(v) for v in trainer.variables}
        assert {id(v) for v in trainer.optimizer.variables} <= found
        assert {id(v) for v in trainer.metric.variables} <= found


class TestUse:
    @pytest.mark.parametrize("replicas", [None, 2])
    def test_training(self, replicas):
        strategy = mirrored(replicas) if replicas else jt.get_strategy()
        with strategy.scope():
            dense = Dense()
            optimizer = jt.Optimizer(optax.sgd(0.5))
        variables = dense.trainable_variables

        @jt.function
        def step(x):
            def replica_fn(x):
                gradients = jt.grad(
                    lambda: jt.nn.compute_average_loss(jnp.sum(dense(x), axis=1)), variables
                )()
                optimizer.apply_gradients(zip(gradients, variables, strict=True))

            strategy.run(replica_fn, args=(x,))

        step(jnp.ones((4, 2)))
        assert dense.b.numpy().tolist() == [-0.5, -0.5]
        assert dense.w.numpy().tolist() == [[0.5, 0.5], [0.5, 0.5]]

    def test_in_a_scope(self):
        with mirrored(2).scope():
            dense = Dense()
        assert {type(v) for v in dense.variables} == {jt.MirroredVariable}

    def test_copies(self):
        dense = Dense()
        duplicate = copy.deepcopy(dense)
        duplicate.w.assign(jnp.zeros((2, 2)))
        assert dense.w.numpy().tolist() == [[1, 1], [1, 1]]
        assert len(duplicate.variables) == 3
        assert not {id(v) for v in dense.variables} & {id(v) for v in duplicate.variables}
