"""Callbacks of fit under parameter servers: those of epochs work, those of batches are refused."""

import csv

import keras
import numpy as np
import pytest

import jaxtribute as jt
from tests_integrations.keras._plain import X, Y, classifier, close

callbacks = keras.callbacks


@pytest.fixture(scope="module")
def strategy():
    with jt.testing.LocalCluster(workers=2, ps=1) as cluster:
        yield cluster.coordinator().strategy


@pytest.fixture
def model(strategy):
    with strategy.scope():
        return classifier(optimizer=keras.optimizers.SGD(0.5))


def test_callbacks_of_epochs(model, tmp_path):
    rates = []
    history = model.fit(
        X,
        Y,
        batch_size=11,
        epochs=4,
        verbose=0,
        validation_data=(X, Y),
        callbacks=[
            callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
            callbacks.ReduceLROnPlateau("loss", patience=10),
            callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True),
            callbacks.CSVLogger(tmp_path / "log.csv"),
            callbacks.TensorBoard(tmp_path / "board", histogram_freq=1),
            callbacks.BackupAndRestore(tmp_path / "backup"),
            callbacks.EarlyStopping("val_loss", min_delta=100, restore_best_weights=True),
            callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: rates.append(
                    float(model.optimizer.learning_rate)
                )
            ),
        ],
    )
    assert history.epoch == [0, 1]  # as the second was not better by 100
    assert rates == [0.25, 0.125]
    assert all(type(v) is float for values in history.history.values() for v in values)
    with open(tmp_path / "log.csv") as log:
        logged = list(csv.DictReader(log))
    assert [float(row["val_loss"]) for row in logged] == history.history["val_loss"]
    assert list(tmp_path.glob("board/*/events*"))
    best = [np.asarray(w) for w in model.get_weights()]
    model.load_weights(tmp_path / "2.weights.h5")
    assert any(np.any(w != b) for w, b in zip(model.get_weights(), best, strict=True))
    model.load_weights(tmp_path / "1.weights.h5")
    close(model.get_weights(), best)


def test_training_goes_on_from_a_backup(strategy, model, tmp_path):
    class Interrupted(callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    backup = tmp_path / "backup"
    with pytest.raises(KeyboardInterrupt):
        model.fit(
            X, Y, epochs=4, verbose=0, callbacks=[callbacks.BackupAndRestore(backup), Interrupted()]
        )
    with strategy.scope():
        again = classifier(optimizer=keras.optimizers.SGD(0.5))
    history = again.fit(X, Y, epochs=4, verbose=0, callbacks=[callbacks.BackupAndRestore(backup)])
    assert history.epoch == [2, 3]
    assert int(again.optimizer.iterations) == 4


def test_the_learning_rate_is_used_from_then_on(model):
    model.fit(X, Y, verbose=0)
    before = model.get_weights()
    model.optimizer.learning_rate = 0.0
    model.fit(X, Y, verbose=0)
    close(model.get_weights(), before)


class OfBatches(callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise AssertionError("It was called.")


class OfTestBatches(callbacks.Callback):
    def on_test_batch_begin(self, batch, logs=None):
        raise AssertionError("It was called.")


@pytest.mark.parametrize(
    ("make", "named", "instead"),
    [
        (OfBatches, r"OfBatches .*on_train_batch_end", "on_epoch_end"),
        (OfTestBatches, r"OfTestBatches .*on_test_batch_begin", "on_epoch_end"),
        (
            lambda: callbacks.LambdaCallback(on_train_batch_begin=print),
            "LambdaCallback .*on_train_batch_begin",
            "on_epoch_end",
        ),
        (callbacks.TerminateOnNaN, "TerminateOnNaN .*on_batch_end", "on_epoch_end"),
        (
            lambda: callbacks.ModelCheckpoint("x.keras", save_freq=3),
            "ModelCheckpoint .*save_freq=3",
            'save_freq="epoch"',
        ),
        (
            lambda: callbacks.BackupAndRestore("x", save_freq=3),
            "BackupAndRestore .*save_freq=3",
            'save_freq="epoch"',
        ),
        (
            lambda: callbacks.TensorBoard("x", update_freq="batch"),
            "TensorBoard .*update_freq=1",
            'update_freq="epoch"',
        ),
    ],
)
def test_callbacks_of_batches_are_refused(model, make, named, instead, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some make a directory at once
    message = f"{named}.*workers.*{instead}.*ClusterCoordinator"
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y, verbose=0, validation_data=(X, Y), callbacks=[make()])
    assert int(model.optimizer.iterations) == 0


def test_one_line_tells_of_each_epoch(model, capsys):
    model.fit(X, Y, batch_size=4, epochs=2, verbose=2, validation_data=(X, Y))
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[::2] == ["Epoch 1/2", "Epoch 2/2"]
    for line in lines[1::2]:
        assert line.startswith("6/6 - ")
        assert [word[:-1] for word in line.split() if word.endswith(":")] == [
            "accuracy",
            "loss",
            "val_accuracy",
            "val_loss",
        ]


def test_the_bar_shows_batches_that_workers_have_done(model, capsys):
    model.fit(X, Y, batch_size=1, verbose=1)
    model.evaluate(X, Y, batch_size=2, verbose=1)
    shown = capsys.readouterr().out
    assert "22/22" in shown
    assert "11/11" in shown
