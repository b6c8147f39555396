"""Models to save."""

import jax.numpy as jnp
import numpy as np

import jaxtribute as jt
from tests.checkpoint._support import same_bits, strategy

__all__ = ["Model", "make_random", "same_bits", "strategy"]

ROWS = 7


class Layer(jt.Module):
    def __init__(self) -> None:
        super().__init__("layer")
        self.w = jt.Variable(jnp.zeros((3, 2)), name="w")
        self.b = jt.Variable(jnp.zeros(2, jnp.bfloat16), name="b")

    def __call__(self, x):
        return x @ self.w.value() + self.b.value().astype(jnp.float32)


class Model(jt.Module):
    """A model with variables of all kinds: a table, nested ones, statistics, a counter."""

    def __init__(self) -> None:
        super().__init__("model")
        self.table = jt.Variable(jnp.zeros((ROWS, 3)), name="table")
        self.layers = [Layer(), "no variable", {"scale": jt.Variable(0.0, name="scale")}]
        self.same = self.layers[0]
        self.calls = jt.Variable(
            0, trainable=False, name="calls", aggregation=jt.VariableAggregation.SUM
        )
        self.seen = jt.Variable(
            0.0,
            name="seen",
            synchronization=jt.VariableSynchronization.ON_READ,
            aggregation=jt.VariableAggregation.SUM,
        )

    @jt.function(input_signature=[jt.TensorSpec([None], jnp.int32)])
    def __call__(self, ids):
        rows = jt.nn.embedding_lookup(self.table, ids)
        return {"y": self.layers[0](rows) * self.layers[2]["scale"]}

    @jt.function(input_signature=[jt.TensorSpec([None], jnp.int32)])
    def counted(self, ids):
        self.calls.assign_add(1)
        self.seen.assign_add(jnp.sum(jnp.ones(ids.shape)))
        return self.whole_table()[ids]

    def whole_table(self):
        return jnp.asarray(self.table)


def make_random(model, seed=0):
    """Give all variables values with many different bits; return them by path."""
    rng = np.random.default_rng(seed)
    values = {
        "table": rng.normal(size=(ROWS, 3)).astype(np.float32),
        "layers/0/w": rng.normal(size=(3, 2)).astype(np.float32),
        "layers/0/b": rng.normal(size=2).astype(jnp.bfloat16),
        "layers/2/scale": np.float32(rng.normal()),
        "calls": np.int32(12345),
        "seen": np.float32(rng.normal()),
    }
    for path, value in values.items():
        at(model, path).assign(value)
    return values


def at(model, path):
    """Return what is at a path."""
    for part in path.split("/"):
        if isinstance(model, list):
            model = model[int(part)]
        elif isinstance(model, dict):
            model = model[part]
        else:
            model = getattr(model, part)
    return model
