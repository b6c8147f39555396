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
