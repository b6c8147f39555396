"""Models of a strategy are saved as any, and loaded into whatever scope is open."""

import copy
import os
import pickle
import subprocess
import sys
import textwrap

import jax
import keras
import numpy as np
import pytest

import jaxtribute as jt
from tests_integrations.keras._plain import X, Y, classifier, close
from tests_integrations.keras.conftest import STRATEGIES


def made(strategy, **options):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        return classifier(**options)


def fitted(model, epochs=1):
    """Train a little, and return the losses."""
    history = model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return history.history["loss"]


def state(model):
    return [np.asarray(variable) for variable in (*model.variables, *model.optimizer.variables)]


def strategies_of(model):
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return {getattr(variable, "strategy", None) for variable in variables}


# --- Loading -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["default", "one_device", "mirrored_2"])
def test_loaded_model_goes_on_training_as_if_nothing_had_happened(name, tmp_path):
    strategy = STRATEGIES[name]()
    model = made(strategy)
    fitted(model)
    model.save(tmp_path / "model.keras")
    expected = fitted(model, 2)

    with strategy.scope():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert strategies_of(loaded) == {strategy}
    assert fitted(loaded, 2) == expected
    close(loaded.get_weights(), model.get_weights())


def test_loaded_outside_of_scopes_it_is_an_ordinary_model(mirrored, tmp_path):
    model = made(mirrored)
    fitted(model)
    model.save(tmp_path / "model.keras")
    expected = fitted(model)

    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert strategies_of(loaded) == {None}
    close(fitted(loaded), expected)
    # And the other way around.
    loaded.save(tmp_path / "ordinary.keras")
    with mirrored.scope():
        again = keras.saving.load_model(tmp_path / "ordinary.keras")
    assert strategies_of(again) == {mirrored}
    close(fitted(again), fitted(loaded))


def test_load_weights_brings_the_state_of_the_optimizer(mirrored, tmp_path):
    model = made(mirrored)
    fitted(model)
    model.save_weights(tmp_path / "model.weights.h5")
    expected = fitted(model)
    model.load_weights(tmp_path / "model.weights.h5")
    assert fitted(model) == expected


def test_copies_belong_to_the_scope_they_are_made_in(mirrored):
    model = made(mirrored)
    fitted(model)
    expected = state(model)
    for copied in (copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))):
        with mirrored.scope():
            other = copied(model)
        assert strategies_of(other) == {mirrored}
        close(state(other), expected)
        assert strategies_of(copied(model)) == {None}
    assert fitted(other) == fitted(model)


def test_clones_belong_to_the_scope_they_are_made_in(mirrored):
    model = made(mirrored)
    with mirrored.scope():
        clone = keras.models.clone_model(model)
        clone.compile("sgd", "mse")
    assert {variable.strategy for variable in clone.variables} == {mirrored}
    assert not any(hasattr(v, "strategy") for v in keras.models.clone_model(model).variables)


# --- Without jaxtribute --------------------------------------------------------------------


def test_model_of_a_strategy_is_an_ordinary_model_too(mirrored, tmp_path):
    model = made(mirrored)
    fitted(model)
    outputs = np.asarray(model(X))
    values = [
        [variable.value for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]
    stateless, _ = jax.jit(model.stateless_call)(*values, X)
    close(np.asarray(stateless), outputs)
    model.summary(print_fn=lambda line: None)
    other = keras.models.model_from_json(model.to_json())
    other.set_weights(model.get_weights())
    close(np.asarray(other(X)), outputs)
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    assert not np.asarray(model(X)).any()


def test_read_and_written_by_a_program_without_jaxtribute(mirrored, tmp_path):
    model = made(mirrored)
    fitted(model)
    model.save(tmp_path / "ours.keras")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    program = """
        import sys
        import keras, numpy as np
        x, y = np.load("x.npy"), np.load("y.npy")
        model = keras.saving.load_model("ours.keras")
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        model.save("theirs.keras")
        assert not any(name.startswith("jaxtribute") for name in sys.modules)
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        env=os.environ | {"KERAS_BACKEND": "jax"},
        check=True,
        timeout=120,
    )
    fitted(model)
    with mirrored.scope():
        theirs = keras.saving.load_model(tmp_path / "theirs.keras")
    close(theirs.get_weights(), model.get_weights())
    close(fitted(theirs), fitted(model))


# --- Files ---------------------------------------------------------------------------------


class Stubborn(keras.layers.Layer):
    """Cannot be saved, once asked not to."""

    refuses = False

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return x * self.scale

    def save_own_variables(self, store):
        if self.refuses:
            raise OSError("The disk is full.")
        super().save_own_variables(store)


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_what_was_saved_before_stays_when_saving_fails(mirrored, tmp_path, name):
    with mirrored.scope():
        layer = Stubborn()
        model = classifier(layer)
    path = tmp_path / name
    save = model.save if name.endswith(".keras") else model.save_weights
    save(path)
    before = path.read_bytes()

    layer.refuses = True
    with pytest.raises(OSError, match="disk is full"):
        save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [name]


def test_other_targets_are_left_to_keras(mirrored, tmp_path):
    model = made(mirrored)
    fitted(model)
    model.save(tmp_path / "folder", zipped=False)
    with mirrored.scope():
        loaded = keras.saving.load_model(tmp_path / "folder")
    close(loaded.get_weights(), model.get_weights())
    model.save_weights(tmp_path / "parts.weights.json", max_shard_size=0.0001)
    loaded.load_weights(tmp_path / "parts.weights.json")
    with pytest.raises(ValueError, match="Invalid filepath extension"):
        model.save(tmp_path / "model.txt")
    with pytest.raises(FileNotFoundError, match=r"missing/model\.keras"):
        model.save(tmp_path / "missing" / "model.keras")
    os.symlink(tmp_path / "real.keras", tmp_path / "link.keras")
    model.save(tmp_path / "link.keras")
    assert (tmp_path / "link.keras").is_symlink()
    assert (tmp_path / "real.keras").is_file()


def test_saving_inside_of_the_scope_makes_no_variables(mirrored, tmp_path):
    model = made(mirrored)
    created = []

    def creator(create, **spec):
        created.append(spec["name"])
        return create(**spec)

    with mirrored.scope(), jt.variable_creator_scope(creator):
        model.save(tmp_path / "model.keras")
        model.load_weights(tmp_path / "model.keras")
    assert created == []
