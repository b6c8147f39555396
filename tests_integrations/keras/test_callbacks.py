"""Callbacks under a strategy in one process are what they are without one."""

import json

import keras
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.keras._callbacks import Callbacks
from tests_integrations.keras._plain import X, Y, classifier, close, pair, same_fit

X, Y = X[:16], Y[:16]  # each shape is one more program to compile
FIT = {"batch_size": 8, "epochs": 3}


class Seen(keras.callbacks.Callback):
    """Notes everything it is told."""

    def __init__(self):
        super().__init__()
        self.events = []

    def note(self, event, number, logs):
        self.events.append((event, number, dict(logs or {})))

    def on_train_begin(self, logs=None):
        self.note("train begin", None, logs)

    def on_epoch_begin(self, epoch, logs=None):
        self.note("epoch begin", epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        self.note("batch begin", batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self.note("batch end", batch, logs)

    def on_test_begin(self, logs=None):
        self.note("test begin", None, logs)

    def on_test_batch_end(self, batch, logs=None):
        self.note("test batch end", batch, logs)

    def on_test_end(self, logs=None):
        self.note("test end", None, logs)

    def on_epoch_end(self, epoch, logs=None):
        self.note("epoch end", epoch, logs)

    def on_train_end(self, logs=None):
        self.note("train end", None, logs)


def test_told_the_same_as_by_keras(mirrored):
    seen = Seen(), Seen()
    for model, callback in zip(pair(mirrored, classifier), seen, strict=True):
        arguments = FIT | {"shuffle": False, "verbose": 0, "validation_data": (X, Y)}
        model.fit(X, Y, callbacks=[callback], **arguments)
    plain, ours = (callback.events for callback in seen)
    assert [event[:2] for event in ours] == [event[:2] for event in plain]
    close([event[2] for event in ours], [event[2] for event in plain])


def test_decisions_are_those_of_keras(mirrored):
    def callbacks():
        return [
            keras.callbacks.EarlyStopping("loss", patience=1, min_delta=1.0),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=1.0),
            keras.callbacks.TerminateOnNaN(),
        ]

    both = same_fit(mirrored, classifier, X, Y, callbacks=callbacks, **FIT)
    assert both.ours.stop_training


def test_best_weights_come_back(mirrored):
    def callbacks():
        worse = keras.callbacks.EarlyStopping(
            "loss", mode="max", patience=1, restore_best_weights=True
        )
        return [worse]

    both = same_fit(mirrored, classifier, X, Y, callbacks=callbacks, **FIT | {"epochs": 5})
    assert len(both.ours.history.epoch) == 2


def test_averaged_weights_are_swapped_in(mirrored):
    def make():
        return classifier(optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))

    swap = lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]  # noqa: E731
    same_fit(mirrored, make, X, Y, callbacks=swap, **FIT)


def test_stops_where_a_callback_says_so(mirrored):
    with mirrored.scope():
        model = classifier()
    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", batch == 1)
    )
    history = model.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[stop])
    assert history.epoch == [0]
    assert int(model.optimizer.iterations.value) == 2


def test_files(mirrored, tmp_path):
    with mirrored.scope():
        model = classifier()
    history = model.fit(
        X,
        Y,
        verbose=0,
        callbacks=[
            keras.callbacks.CSVLogger(tmp_path / "log.csv"),
            keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras"),
            keras.callbacks.ModelCheckpoint(
                tmp_path / "{batch}.weights.h5", save_weights_only=True, save_freq=2
            ),
            keras.callbacks.TensorBoard(tmp_path / "board"),
        ],
        **FIT,
    )
    rows = (tmp_path / "log.csv").read_text().splitlines()
    names = rows[0].split(",")
    logged = [dict(zip(names, row.split(","), strict=True)) for row in rows[1:]]
    assert [float(row["loss"]) for row in logged] == history.history["loss"]
    assert {path.name for path in tmp_path.glob("*.*")} >= {
        "1.keras", "2.keras", "3.keras", "2.weights.h5"
    }  # fmt: skip
    assert list(tmp_path.glob("board/train/*"))
    with mirrored.scope():
        loaded = keras.saving.load_model(tmp_path / "3.keras")
    close(loaded.get_weights(), model.get_weights())


def test_interrupted_training_goes_on_where_it_was(mirrored, tmp_path):
    def fit(*more):
        keras.utils.set_random_seed(3)
        with mirrored.scope():
            model = classifier()
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        arguments = {"shuffle": False, "verbose": 0, **FIT}
        return model.fit(X, Y, callbacks=[*more, backup], **arguments), model

    whole, expected = fit()

    def interrupt(epoch, logs):
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(keras.callbacks.LambdaCallback(on_epoch_begin=interrupt))
    metadata = json.loads((tmp_path / "backup" / "training_metadata.json").read_text())
    assert metadata["epoch"] == 2
    rest, model = fit()
    assert rest.epoch == [2]
    assert rest.history["loss"] == whole.history["loss"][2:]
    for ours, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not (tmp_path / "backup").exists()


def test_lists_of_callbacks_are_taken_too(mirrored):
    with mirrored.scope():
        model = classifier()
    seen = Seen()
    given = keras.callbacks.CallbackList([seen], model=model)
    history = model.fit(X, Y, verbose=0, callbacks=given)
    assert history.epoch == [0]
    assert [event[0] for event in seen.events][-1] == "train end"


# --- Logs of batches -----------------------------------------------------------------------


class AtBegin(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        pass


class OfItsOwn(keras.callbacks.ModelCheckpoint):
    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)


@pytest.mark.parametrize(
    ("callback", "verbose", "reads"),
    [
        (lambda: None, 0, ""),
        (lambda: None, 2, ""),
        (lambda: None, 1, "train"),
        (lambda: None, "auto", "train"),
        (lambda: keras.callbacks.EarlyStopping(), 0, ""),
        (lambda: keras.callbacks.TerminateOnNaN(), 0, "train"),
        (lambda: keras.callbacks.ModelCheckpoint("a.keras"), 0, ""),
        (lambda: keras.callbacks.ModelCheckpoint("a.keras", save_freq=2), 0, "train"),
        (lambda: OfItsOwn("a.keras"), 0, "train"),
        (lambda: keras.callbacks.BackupAndRestore("a"), 0, ""),
        (lambda: keras.callbacks.TensorBoard("a", write_graph=False), 0, ""),
        (
            lambda: keras.callbacks.TensorBoard("a", write_graph=False, update_freq="batch"),
            0,
            "train",
        ),
        (lambda: keras.callbacks.LambdaCallback(on_epoch_end=print), 0, ""),
        (lambda: keras.callbacks.LambdaCallback(on_train_batch_end=print), 0, "train"),
        (lambda: keras.callbacks.LambdaCallback(on_test_batch_end=print), 0, "test"),
        (AtBegin, 0, ""),
        (Seen, 0, "train test"),
    ],
)
def test_metrics_are_read_after_each_batch_only_for_those_who_look(callback, verbose, reads):
    strategy = jt.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = classifier()
    found = callback()
    given = [] if found is None else [found]
    callbacks = Callbacks(model, strategy, given, verbose, in_fit=True)
    callbacks.agree()
    kinds = [kind for kind in ("train", "test") if callbacks.reads_logs(kind)]
    assert kinds == reads.split()


def test_history_does_not_depend_on_who_looks(mirrored):
    histories = []
    for callbacks in ([], [Seen()]):
        keras.utils.set_random_seed(3)
        with mirrored.scope():
            model = classifier()
        history = model.fit(X, Y, shuffle=False, verbose=0, callbacks=callbacks, **FIT)
        histories.append(history.history)
    close(*histories)


def test_what_a_step_of_ones_own_reports_is_kept(mirrored):
    class Own(keras.Sequential):
        def train_step(self, state, data):
            logs, state = super().train_step(state, data)
            return logs | {"mine": 3.0}, state

    with mirrored.scope():
        model = Own([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert model.fit(X, Y, batch_size=8, verbose=0).history["mine"] == [3.0]
