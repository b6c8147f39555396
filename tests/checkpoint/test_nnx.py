"""`jt.train.Checkpoint` keeps Flax NNX: modules, optimizers, and state that was split off."""

import subprocess
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxtribute as jt
from tests._interpreter import STRICT_PYTHON
from tests.checkpoint._support import same_bits


class Model(nnx.Module):
    """Has state of every kind."""

    def __init__(self, seed: int, width: int = 3) -> None:
        rngs = nnx.Rngs(seed, dropout=seed + 1)
        self.hidden = nnx.Linear(2, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.heads = nnx.List([nnx.Linear(width, 1, rngs=rngs) for _ in range(2)])
        self.tied = self.heads[0]
        self.calls = nnx.Variable(jnp.array(seed))

    def __call__(self, x: Any) -> Any:
        self.calls.set_value(self.calls.get_value() + 1)
        x = self.dropout(self.norm(self.hidden(x)))
        return self.heads[0](x) + self.heads[1](x)


X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)


@nnx.jit
def step(model: Model, optimizer: Any) -> Any:
    loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(X) - 1.0) ** 2))(model)
    optimizer.update(model, gradients)
    return loss


def steps(model: Model, optimizer: Any, count: int) -> list[float]:
    return [float(step(model, optimizer)) for _ in range(count)]


def begin(seed: int) -> tuple[Model, Any]:
    model = Model(seed)
    return model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)


def leaves(*modules: Any) -> list[Any]:
    found = [leaf for module in modules for leaf in jax.tree.leaves(nnx.state(module))]
    return [
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in map(jnp.asarray, found)
    ]


def same_state(ours: Any, theirs: Any) -> bool:
    return all(map(same_bits, leaves(*ours), leaves(*theirs)))


def test_training_goes_on_as_if_it_had_not_been_interrupted(tmp_path):
    model, optimizer = begin(0)
    steps(model, optimizer, 2)
    checkpoint = jt.train.Checkpoint(model=model, optimizer=optimizer)
    path = checkpoint.save(tmp_path / "ckpt")
    expected = steps(model, optimizer, 2)

    again = begin(5)
    assert not same_state(again, (model, optimizer))
    jt.train.Checkpoint(model=again[0], optimizer=again[1]).restore(path).assert_consumed()
    assert steps(*again, 2) == expected
    assert same_state(again, (model, optimizer))
    assert again[0].calls.get_value() == 4
    assert again[0].tied is again[0].heads[0]


def test_names_are_ways_to_attributes(tmp_path):
    model, optimizer = begin(0)
    path = jt.train.Checkpoint(model=model, optimizer=optimizer).save(tmp_path / "ckpt")
    for objects, missing in [
        ({"model": model}, "'optimizer/opt_state/0/mu/heads/0/bias'"),
        ({"optimizer": optimizer}, "'model/calls', 'model/dropout/rngs/count'"),
        ({"model": model, "optimizer": optimizer, "new": nnx.Param(jnp.ones(2))}, "'new'"),
    ]:
        with pytest.raises(AssertionError, match=missing):
            jt.train.Checkpoint(**objects).restore(path).assert_consumed()


def test_a_state_has_the_names_of_the_module_it_was_split_from(tmp_path):
    model = Model(0)
    path = jt.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    structure, params, rest = nnx.split(Model(5), nnx.Param, ...)
    checkpoint = jt.train.Checkpoint(model=params)
    checkpoint.restore(path).assert_existing_objects_matched()
    merged = nnx.merge(structure, checkpoint.model, rest)
    assert same_bits(merged.hidden.kernel.get_value(), model.hidden.kernel.get_value())
    assert merged.calls.get_value() == 5


def test_the_state_of_a_loop_under_a_strategy(tmp_path):
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    tx = optax.adam(0.1)

    def begin(seed: int) -> tuple[Any, Any, Any]:
        structure, params = nnx.split(nnx.Linear(2, 1, rngs=nnx.Rngs(seed)), nnx.Param)
        return structure, params, tx.init(params)

    structure, params, opt_state = begin(0)

    def replica_step(params: Any, opt_state: Any, x: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return jnp.mean((nnx.merge(structure, params)(x) - 1) ** 2)

        gradients = jt.get_replica_context().all_reduce("MEAN", jax.grad(loss_fn)(params))
        updates, opt_state = tx.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    step = jt.function(lambda *state: strategy.run(replica_step, args=(*state, X)))

    def first(values: Any) -> Any:
        return strategy.experimental_local_results(values)[0]

    trained = step(params, opt_state)
    checkpoint = jt.train.Checkpoint()
    with pytest.raises(ValueError, match=r"experimental_local_results\(state\)\[0\]"):
        checkpoint.params = trained[0]
    checkpoint.params, checkpoint.opt_state = first(trained)
    path = checkpoint.save(tmp_path / "ckpt")
    expected = first(step(*first(trained)))

    _, params, opt_state = begin(5)
    checkpoint = jt.train.Checkpoint(params=params, opt_state=opt_state)
    checkpoint.restore(path).assert_consumed()
    ours = first(step(checkpoint.params, checkpoint.opt_state))
    assert all(map(same_bits, jax.tree.leaves(ours), jax.tree.leaves(expected)))


def test_what_does_not_fit_changes_nothing(tmp_path):
    path = jt.train.Checkpoint(model=Model(0)).save(tmp_path / "ckpt")
    wide = Model(5, width=4)
    before = leaves(wide)
    with pytest.raises(jt.errors.InvalidArgumentError, match="'model/hidden/kernel' has shape"):
        jt.train.Checkpoint(model=wide).restore(path)
    assert all(map(same_bits, leaves(wide), before))


def test_what_fails_half_way_changes_nothing(tmp_path):
    class Refusing(nnx.Variable):
        def set_value(self, value: Any, **kwargs: Any) -> None:
            raise OSError("not this one")

    def objects(kind: Any, fill: int) -> dict[str, Any]:
        return {"a": nnx.Param(jnp.full(2, fill)), "b": kind(jnp.full(2, fill))}

    path = jt.train.Checkpoint(**objects(nnx.Param, 1)).save(tmp_path / "ckpt")
    mine = objects(Refusing, 2)
    with pytest.raises(OSError, match="not this one"):
        jt.train.Checkpoint(**mine).restore(path)
    assert [v.get_value().tolist() for v in mine.values()] == [[2, 2], [2, 2]]


def test_modules_may_be_anywhere(tmp_path):
    class Both(jt.Module):
        def __init__(self, fill: float) -> None:
            super().__init__()
            self.ours = jt.Variable(fill)
            self.layers = [nnx.Linear(1, 1, rngs=nnx.Rngs(int(fill)))]
            self.param = nnx.Param(jnp.full(2, fill))

    class Arrays(nnx.Module):
        def __init__(self, fill: int) -> None:
            self.number = nnx.Variable(fill)
            self.table = nnx.data({"x": jnp.full(2, fill), "y": [np.full(2, fill)]})

    both = Both(1.0)
    path = jt.train.Checkpoint(both=[both, Arrays(3)]).save(tmp_path / "ckpt")
    other, arrays = Both(2.0), Arrays(4)
    jt.train.Checkpoint(both=[other, arrays]).restore(path).assert_consumed()
    assert [float(other.ours), *other.param.get_value()] == [1, 1, 1]
    assert same_bits(other.layers[0].kernel.get_value(), both.layers[0].kernel.get_value())
    assert arrays.number.get_value() == 3
    assert type(arrays.number.get_value()) is int
    assert [*arrays.table["x"], *arrays.table["y"][0]] == [3, 3, 3, 3]
    assert type(arrays.table["y"][0]) is np.ndarray


def test_a_variable_of_something_else_is_refused():
    with pytest.raises(ValueError, match="holds 'text'"):
        jt.train.Checkpoint(v=nnx.Variable("text"))


def test_checkpoints_do_not_import_flax():
    program = """
        import sys, tempfile
        import jaxtribute as jt
        checkpoint = jt.train.Checkpoint(v=jt.Variable(1.0))
        with tempfile.TemporaryDirectory() as directory:
            checkpoint.restore(checkpoint.save(directory + "/ckpt")).assert_consumed()
        assert not {"flax", "keras"} & sys.modules.keys()
    """
    subprocess.run([*STRICT_PYTHON, "-c", textwrap.dedent(program)], check=True, timeout=120)
