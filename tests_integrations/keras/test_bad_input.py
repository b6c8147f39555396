"""What cannot work is refused, with a message that says what would."""

import os
import subprocess
import sys
import textwrap

import jax
import keras
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.keras._memory import memory_left
from tests_integrations.keras._plain import EVEN_X as X
from tests_integrations.keras._plain import EVEN_Y as Y
from tests_integrations.keras._plain import classifier


@pytest.fixture
def model(mirrored):
    with mirrored.scope():
        return classifier()


def test_a_model_from_outside_of_the_scope(mirrored):
    model = classifier()
    with mirrored.scope():
        for method in (model.fit, model.evaluate, model.train_on_batch, model.test_on_batch):
            with pytest.raises(ValueError, match=r"created outside.*with strategy.scope\(\)"):
                method(X, Y)
        for method in (model.predict, model.predict_on_batch):
            with pytest.raises(ValueError, match=r"created outside"):
                method(X)
        with pytest.raises(ValueError, match=r"created outside"):
            model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)


def test_an_optimizer_from_outside(mirrored):
    optimizer = keras.optimizers.Adam()
    with mirrored.scope():
        model = classifier(optimizer=optimizer)
    with pytest.raises(ValueError, match=r"its optimizer were not: adam/iteration.*Create the opt"):
        model.fit(X, Y)


def test_a_metric_from_outside(mirrored):
    metric = keras.metrics.SparseCategoricalAccuracy()
    with mirrored.scope():
        model = classifier(metrics=[metric])
    with pytest.raises(ValueError, match=r"its metrics were not"):
        model.fit(X, Y)


def test_a_layer_from_outside(mirrored):
    layer = keras.layers.Dense(4)
    layer.build((None, 4))
    with mirrored.scope():
        model = classifier(layer)
    with pytest.raises(ValueError, match=r"its layers were not: dense.*/kernel.*the layers"):
        model.fit(X, Y)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X, Y[:5]), r"24 in x, 5 in y"),
        ((X[:0], Y[:0]), r"no examples"),
        (([1.0, 2.0], Y), r"np.asarray"),
        ((X, [1, 2]), r"y must be an array.*np.asarray"),
        ((None, None), r"x must be an array"),
        ((np.array(["a"] * len(X)), Y), r"numbers.*StringLookup"),
        ((np.float32(3.0), Y), r"a row for each example"),
        ((jt.data.Dataset.range(4).batch(2), Y), r"y cannot be given together with a dataset"),
        ((jt.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat(),), r"no end"),
        ((jt.data.Dataset.from_tensor_slices((X, Y)).take(0).batch(8),), r"no batches"),
        ((jt.data.Dataset.from_tensor_slices((["a", "b"], [0, 1])).batch(2),), r"StringLookup"),
    ],
    ids=str,
)
def test_data_that_cannot_be_used(model, args, message):
    with pytest.raises(ValueError, match=message):
        model.fit(*args, verbose=0)


def test_arguments_that_do_not_go_together(model):
    with pytest.raises(ValueError, match="at the same time"):
        model.fit(X, Y, sample_weight=np.ones(len(X)), class_weight={0: 1.0}, verbose=0)
    with pytest.raises(ValueError, match="class numbers"):
        model.fit(X, Y, class_weight={"a": 1.0})
    with pytest.raises(ValueError, match=r"validation_split=0\.99"):
        model.fit(X, Y, validation_split=0.99)
    with pytest.raises(ValueError, match="another_dataset"):
        model.fit(jt.data.Dataset.from_tensor_slices((X, Y)), validation_split=0.5)
    with pytest.raises(TypeError, match="nonsense"):
        model.fit(X, Y, nonsense=1)
    with pytest.raises(TypeError, match="nonsense"):
        model.evaluate(X, Y, nonsense=1)
    with pytest.raises(ValueError):  # of Keras, which says what is missing
        model.fit(X, verbose=0)


def test_a_model_that_is_not_compiled(mirrored):
    with mirrored.scope():
        model = classifier(compiled=False)
    for method in (model.fit, model.evaluate, model.train_on_batch, model.test_on_batch):
        with pytest.raises(ValueError, match=rf"compile\(\)` before calling `{method.__name__}"):
            method(X, Y)


# --- Other programs ------------------------------------------------------------------------


def run(program: str, **environment: str) -> str:
    """Return what a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.processes
def test_another_backend():
    out = run(
        """
        import keras, jaxtribute as jt
        assert keras.backend.backend() == "tensorflow"
        with jt.get_strategy().scope():
            pass  # Keras is there, and not used
        keras.layers.Dense(1).build((1, 1))
        with jt.get_strategy().scope():
            try:
                keras.layers.Dense(1).build((1, 1))
            except jt.errors.FailedPreconditionError as error:
                print(error)
        """,
        KERAS_BACKEND="tensorflow",
    )
    assert "runs on tensorflow" in out
    assert "KERAS_BACKEND=jax" in out


@pytest.mark.processes
def test_keras_that_is_imported_in_the_scope():
    out = run(
        """
        import warnings
        import jaxtribute as jt
        warnings.simplefilter("error")
        strategy = jt.MirroredStrategy(["CPU:0"])
        try:
            with strategy.scope():
                import keras
                model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        except RuntimeWarning as warning:
            print(warning)
        with strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        print(model.layers[0].kernel.strategy is strategy)
        """
    )
    assert "import keras" in out
    assert out.endswith("True\n")


# --- Memory --------------------------------------------------------------------------------


def test_a_variable_that_does_not_fit(mirrored):
    with (
        mirrored.scope(),
        pytest.raises(
            jt.errors.ResourceExhaustedError,
            match=r"'embedding.*' of shape \(100000000000, 64\) has 23,842 GiB.*, 2 times, and "
            r".*GiB left.*variable_partitioner",
        ),
    ):
        keras.layers.Embedding(10**11, 64).build()


def test_the_memory_of_a_device_is_known():
    left = memory_left(jax.devices("cpu")[0])
    assert 1 << 20 < left < 1 << 50
