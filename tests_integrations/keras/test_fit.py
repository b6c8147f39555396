"""fit, evaluate and predict give what Keras gives on one device."""

import keras
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.keras._batches import distributed
from tests_integrations.keras._plain import EVEN_X as X
from tests_integrations.keras._plain import EVEN_Y as Y
from tests_integrations.keras._plain import SEED, classifier, close, pair, same_fit

WEIGHTS = np.linspace(0, 2, len(X)).astype(np.float32)


def test_fit_evaluate_and_predict(strategy):
    x, y = X[:19], Y[:19]  # so that the last batch cannot be divided
    both = same_fit(
        strategy, classifier, x, y, batch_size=6, epochs=2, validation_data=(X[:6], Y[:6])
    )
    evaluated = [m.evaluate(x, y, batch_size=6, verbose=0) for m in both]
    close(evaluated[1], evaluated[0])
    predicted = [m.predict(x, batch_size=6, verbose=0) for m in both]
    close(predicted[1], predicted[0])


# --- Models --------------------------------------------------------------------------------


def lazy() -> keras.Model:
    """Return a model that is compiled before it knows its inputs."""
    model = keras.Sequential([keras.layers.Dense(5, activation="relu"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, weighted_metrics=["accuracy"])
    return model


class Subclassed(keras.Model):
    """Builds its layers when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.body = keras.Sequential(
            [keras.layers.Dense(4, activation="relu"), keras.layers.Dense(4)]
        )
        self.head = keras.layers.Dense(3)

    def call(self, x, training=False):
        return self.head(x + self.body(x, training=training))


def subclassed() -> keras.Model:
    model = Subclassed()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    return model


@pytest.mark.parametrize("make", [lazy, subclassed])
def test_models_that_are_built_by_fit(mirrored, make):
    both = same_fit(
        mirrored,
        make,
        X,
        Y,
        batch_size=8,
        sample_weight=WEIGHTS,
        validation_split=0.25,
        validation_batch_size=2,
    )
    assert both.ours.built


def test_a_model_that_is_built_by_predict(mirrored):
    both = pair(mirrored, lambda: keras.Sequential([keras.layers.Dense(3)]))
    outputs = []
    for model in both:
        keras.utils.set_random_seed(SEED)
        outputs.append(model.predict(X[:5], verbose=0))
    close(outputs[1], outputs[0])


def several(inputs_by_name: bool) -> keras.Model:
    """Return a model of two inputs and two outputs."""
    first, second = keras.Input((4,), name="first"), keras.Input((2,), name="second")
    joined = keras.layers.Concatenate()([first, second])
    number = keras.layers.Dense(1, name="number")(joined)
    kind = keras.layers.Dense(3, name="kind", activation="softmax")(joined)
    if inputs_by_name:
        inputs = {"first": first, "second": second}
        outputs = {"number": number, "kind": kind}
    else:
        inputs, outputs = [first, second], [number, kind]
    model = keras.Model(inputs, outputs)
    model.compile(
        "adam",
        loss={"number": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"number": 0.3, "kind": 1.5},
        metrics={"number": ["mae"], "kind": ["accuracy"]},
        weighted_metrics={"number": ["mse"], "kind": []},
    )
    return model


@pytest.mark.parametrize("by_name", [True, False], ids=["dicts", "lists"])
def test_several_inputs_and_outputs(mirrored, by_name):
    number = X.sum(axis=1, keepdims=True)
    if by_name:
        x = {"first": X, "second": X[:, :2]}
        y = {"number": number, "kind": Y}
        weights = {"number": WEIGHTS, "kind": WEIGHTS[::-1]}
    else:
        x, y, weights = [X, X[:, :2]], [number, Y], WEIGHTS  # which are for both outputs
    make = lambda: several(by_name)  # noqa: E731
    both = same_fit(
        mirrored,
        make,
        x,
        y,
        sample_weight=weights,
        batch_size=8,
        epochs=2,
        validation_data=(x, y, weights),
        validation_freq=2,
    )
    results = [m.evaluate(x, y, batch_size=8, verbose=0, return_dict=True) for m in both]
    close(results[1], results[0])
    outputs = [m.predict(x, batch_size=8, verbose=0) for m in both]
    close(outputs[1], outputs[0])


def test_a_model_in_a_model_and_layers_of_two_trainers(mirrored):
    def make() -> keras.Model:
        inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation="tanh")])
        outer = keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(3)])
        outer.compile("sgd", "mse")
        autoencoder = keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(4)])
        autoencoder.compile("sgd", "mse")
        outer.second = autoencoder
        return outer

    both = pair(mirrored, make)
    for model in both:
        model.fit(X, np.eye(3)[Y], verbose=0, shuffle=False)
        model.second.fit(X, X, verbose=0, shuffle=False)
        model.fit(X, np.eye(3)[Y], verbose=0, shuffle=False)
    close(both.ours.get_weights(), both.plain.get_weights())
    close(both.ours.second.get_weights(), both.plain.second.get_weights())


# --- What fit can be told ------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"jit_compile": False}], ids=str)
def test_without_compilation(mirrored, options):
    class Noting(keras.layers.Layer):
        def call(self, x):
            runs.append(x.shape)
            return x

    runs = []
    both = pair(mirrored, lambda: classifier(Noting(), **options))
    both.ours.fit(X, Y, batch_size=8, verbose=0)
    before = len(runs)
    both.ours.fit(X, Y, batch_size=8, verbose=0)
    assert len(runs) - before == 2 * 3  # on each replica in each step


def test_steps_executions_and_the_first_epoch(mirrored):
    noted = []
    make = lambda: classifier(steps_per_execution=3)  # noqa: E731
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: noted.append(batch),
        on_train_batch_end=lambda batch, logs: noted.append(batch),
    )
    both = same_fit(
        mirrored, make, X[:20], Y[:20], batch_size=4, epochs=5, initial_epoch=3, callbacks=[note]
    )
    assert both.ours.optimizer.iterations == 10
    assert noted[: len(noted) // 2] == noted[len(noted) // 2 :] == [0, 2, 3, 5] * 2


def test_an_epoch_of_some_steps_goes_on_where_the_one_before_ended(mirrored):
    # 6 batches of 4: the second epoch ends with the data, and the third begins anew.
    same_fit(mirrored, classifier, X, Y, batch_size=4, epochs=3, steps_per_epoch=3)


def test_steps_decide_the_size_of_batches(mirrored):
    both = same_fit(mirrored, classifier, X, Y, steps_per_epoch=2, epochs=2)
    assert both.ours.optimizer.iterations == 4


def test_an_epoch_that_runs_out_of_data(mirrored):
    data = jt.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    with mirrored.scope():
        model = classifier()
    with pytest.warns(UserWarning, match=r"ran out of data after 3 of 5 steps"):
        history = model.fit(data, steps_per_epoch=5, epochs=2, verbose=0)
    assert history.epoch == [0, 1]
    assert model.optimizer.iterations == 6


def test_steps_of_validation_are_the_same_examples_each_time(mirrored):
    same_fit(
        mirrored,
        classifier,
        X,
        Y,
        batch_size=4,
        epochs=3,
        validation_data=(X[::-1], Y[::-1]),
        validation_steps=2,
        validation_batch_size=4,
        validation_freq=[1, 3],
    )


@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_shuffling_delivers_each_example_once_and_can_be_repeated(mirrored, shuffle):
    numbers = np.arange(12)

    def orders() -> list[list[list[int]]]:
        keras.utils.set_random_seed(SEED)
        batches = distributed(mirrored, numbers, batch_size=4, shuffle=shuffle)
        return [
            [mirrored.gather(x, axis=0).tolist() for ((x,),) in batches.epoch()] for _ in range(2)
        ]

    first, second = orders()
    assert first != second
    for epoch in (first, second):
        assert sorted(np.ravel(epoch)) == numbers.tolist()
        assert np.ravel(epoch).tolist() != numbers.tolist()
        if shuffle == "batch":  # which has the examples it has without
            assert [sorted(batch) for batch in epoch] == numbers.reshape(3, 4).tolist()
    assert orders() == [first, second]


def test_weights_of_classes(mirrored):
    make = lambda: classifier(weighted_metrics=["accuracy"])  # noqa: E731
    weights = {0: 0.5, 2: 3.0}
    same_fit(mirrored, make, X, Y, batch_size=8, class_weight=weights)
    one_hot = lambda: classifier(loss="mse", weighted_metrics=["mae"])  # noqa: E731
    same_fit(mirrored, one_hot, X, np.eye(3)[Y], batch_size=8, class_weight=weights)
