"""Keras variables whose arrays are gone: named, and given a value again by whatever loads one."""

import keras
import numpy as np
import pytest

import jaxtribute as jt

from ._plain import X, Y, classifier

STRATEGIES = {
    "one device": lambda: jt.OneDeviceStrategy("CPU:1"),
    "mirrored": lambda: jt.MirroredStrategy(["CPU:0", "CPU:1"]),
}


@pytest.fixture(params=STRATEGIES.values(), ids=STRATEGIES)
def model(request):
    with request.param().scope():
        model = classifier()
    model.fit(X, Y, batch_size=16, verbose=0)
    return model


def lose(variable):
    variable.value.delete()


def test_training_and_saving_name_what_is_lost(model, tmp_path):
    kernel = model.layers[0].kernel
    lose(kernel)
    for use in (
        lambda: model.fit(X, Y, verbose=0),
        lambda: model.predict(X, verbose=0),
        lambda: model.save_weights(tmp_path / "w.weights.h5"),
    ):
        with pytest.raises(jt.errors.FailedPreconditionError, match=f"{kernel.path!r}.*assigned"):
            use()


def test_weights_and_optimizers_are_given_values_again(model, tmp_path):
    path = tmp_path / "w.weights.h5"
    model.save_weights(path)
    checkpoint = jt.train.Checkpoint(model=model, optimizer=model.optimizer)
    saved = checkpoint.save(str(tmp_path / "ckpt"))
    checkpoint.wait_until_finished()
    weights = model.get_weights()
    state = [np.array(variable) for variable in model.optimizer.variables]
    kernel, slot = model.layers[0].kernel, model.optimizer.variables[2]
    stored = {str(i): value for i, value in enumerate(state)}
    for revive in (
        lambda: (model.load_weights(path), model.optimizer.load_own_variables(stored)),
        lambda: (model.set_weights(weights), slot.assign(state[2])),
        lambda: checkpoint.restore(saved).assert_consumed(),
    ):
        lose(kernel)
        lose(slot)
        revive()
        for own, expected in zip(model.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(own, expected)
        np.testing.assert_array_equal(slot, state[2])
    model.fit(X, Y, batch_size=16, verbose=0)
    assert np.isfinite(model.get_weights()[0]).all()


def test_a_variable_from_outside_of_scopes():
    variable = keras.Variable(np.zeros(2, np.float32), name="v")
    step = jt.function(lambda: variable.assign_add([1.0, 1.0]))
    step()
    lose(variable)
    with pytest.raises(jt.errors.FailedPreconditionError, match="'v'"):
        step()
    variable.assign([3.0, 3.0])
    step()
    assert np.asarray(variable).tolist() == [4.0, 4.0]
