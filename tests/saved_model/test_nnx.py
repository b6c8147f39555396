"""Models of Flax NNX that are saved as programs and weights."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxtribute as jt

Signature, Spec = jt.saved_model.Signature, jt.TensorSpec
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


class Model(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(3, 2, rngs=rngs)])
        self.norm = nnx.BatchNorm(2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(self.layers[0](x)))

    def predict(self, x):
        return self.norm(self.layers[0](x), use_running_average=True)


def test_methods_are_saved_and_move_statistics(tmp_path):
    model = Model()
    signatures = {
        "train": Signature(model, Spec([None, 3])),
        "predict": Signature(model.predict, Spec([None, 3])),
    }
    jt.saved_model.save(model, tmp_path / "model", signatures)
    with jt.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        loaded = jt.saved_model.load(tmp_path / "model")
    assert isinstance(loaded.layers[0].kernel, jt.MirroredVariable)
    names = {v.name for v in loaded.trainable_variables}
    assert names == {"layers/0/kernel", "layers/0/bias", "norm/scale", "norm/bias"}
    for _ in range(2):
        ours, theirs = loaded.signatures["train"](x=X), model(X)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loaded.norm.mean.numpy(), model.norm.mean.get_value(), rtol=1e-6)
    ours, theirs = loaded.signatures["predict"](X), model.predict(X)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    gradient = jt.grad(lambda: jnp.sum(loaded.signatures["predict"](X)), loaded.norm.bias)()
    np.testing.assert_allclose(gradient, [4.0, 4.0], rtol=1e-6)


def test_functions_that_would_keep_its_values_are_refused(tmp_path):
    model = Model()
    with pytest.raises(ValueError, match=r"is no method of an NNX model .* Signature\(model, "):
        jt.saved_model.save(
            {"model": model}, tmp_path / "model", Signature(lambda x: model(x), Spec([None, 3]))
        )


def test_numbers_and_arrays_that_are_in_no_variable_are_saved_as_well(tmp_path):
    class Counting(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(3))
            self.calls = nnx.Variable(0)
            self.total = jnp.zeros(3)
            self.first = self.total

        def __call__(self, x):
            self.calls.set_value(self.calls.get_value() + 1)
            self.total = self.total + x
            return self.w * x + self.first

    model = Counting()
    jt.saved_model.save(model, tmp_path / "model", Signature(model, Spec([3])))
    loaded = jt.saved_model.load(tmp_path / "model")
    assert [v.name for v in loaded.trainable_variables] == ["w"]
    for _ in range(2):
        answer = loaded.signatures["serving_default"](X[0])
    np.testing.assert_allclose(answer, X[0], rtol=1e-6)
    assert int(loaded.calls) == 2
    np.testing.assert_allclose(loaded.total.numpy(), 2 * X[0], rtol=1e-6)
    np.testing.assert_array_equal(loaded.first.numpy(), np.zeros(3))
    assert (model.calls.get_value(), float(jnp.sum(model.total))) == (0, 0.0)


def test_what_is_no_array_is_refused_by_name(tmp_path):
    model = Model()
    model.table = nnx.Variable({"a": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"the Variable 'table' holds \{'a'"):
        jt.saved_model.save(model, tmp_path / "model", Signature(model, Spec([None, 3])))


def test_what_a_method_removes_is_named(tmp_path):
    class Once(Model):
        def __init__(self):
            super().__init__()
            self.seen = nnx.Intermediate(jnp.zeros(2))

        def forget(self, x):
            nnx.pop(self, nnx.Intermediate)
            return x

    model = Once()
    with pytest.raises(ValueError, match=r"function of Once removes 'seen'.* nnx\.pop before"):
        jt.saved_model.save(model, tmp_path / "model", Signature(model.forget, Spec([None, 3])))
    assert not (tmp_path / "model").exists()
    nnx.pop(model, nnx.Intermediate)
    jt.saved_model.save(model, tmp_path / "model", Signature(model.predict, Spec([None, 3])))
