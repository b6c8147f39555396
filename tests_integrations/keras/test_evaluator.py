"""Evaluating what `fit` saves, in a process beside it: here one after the other, in one process."""

import os
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import jaxtribute as jt
from tests_integrations.keras._plain import X, Y, classifier, close

callbacks = keras.callbacks


@pytest.fixture(scope="module")
def servers():
    partitioner = jt.experimental.partitioners.FixedShardsPartitioner(2)
    with jt.testing.LocalCluster(workers=1, ps=2) as cluster:
        strategy = cluster.strategy(partitioner)
        yield cluster.coordinator(strategy).strategy


@pytest.fixture(params=["mirrored", "servers"])
def strategy(request, mirrored, servers):
    return {"mirrored": mirrored, "servers": servers}[request.param]


def compiled():
    return classifier(optimizer="adam", metrics=["accuracy"])


def trained(strategy, directory, ending, epochs=2):
    """Train a model that is saved after each epoch, and return what it came to."""
    with strategy.scope():
        model = compiled()
    saves = callbacks.ModelCheckpoint(
        os.path.join(directory, "epoch-{epoch}" + ending), save_weights_only=ending != ".keras"
    )
    model.fit(X, Y, batch_size=11, epochs=epochs, verbose=0, callbacks=[saves])
    return model.evaluate(X, Y, batch_size=22, verbose=0, return_dict=True), model


def evaluator(directory, model=None, **options):
    options = {"timeout": 0, "poll_seconds": 0.01} | options
    return jt.keras.SidecarEvaluator(model or compiled(), (X, Y), directory, **options)


@pytest.mark.parametrize("ending", [".weights.h5", ".keras"])
def test_what_model_checkpoint_writes_is_evaluated(strategy, tmp_path, ending):
    expected, _ = trained(strategy, tmp_path, ending)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, last = evaluator(tmp_path, evaluate_all=True).start()
    assert [os.path.basename(r["checkpoint"]) for r in (first, last)] == [
        f"epoch-1{ending}",
        f"epoch-2{ending}",
    ]
    assert [first["step"], last["step"]] == [2, 4]
    close(last["metrics"], expected)
    assert first["metrics"] != last["metrics"]


def test_checkpoints_of_ours_are_evaluated_whatever_the_optimizer_is_here(strategy, tmp_path):
    expected, model = trained(strategy, tmp_path / "keras", ".keras", 1)
    jt.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    jt.train.latest_checkpoint(tmp_path)
    model = classifier(optimizer="sgd", metrics=["accuracy"])
    (result,) = evaluator(tmp_path, model).start()
    close(result["metrics"], expected)
    assert result["step"] == 2
    assert int(model.optimizer.iterations) == 2


def test_a_model_without_variables_gets_them_first(mirrored, tmp_path):
    expected, model = trained(mirrored, tmp_path, ".weights.h5", 1)
    layers = [keras.layers.Dense(5, activation="relu"), keras.layers.Dense(3)]
    unbuilt = keras.Sequential(layers)
    unbuilt.compile(loss=model.loss, metrics=["accuracy"])
    (result,) = evaluator(tmp_path, unbuilt).start()
    close(result["metrics"], expected)


def test_data_that_cannot_be_read_is_an_error_and_no_matter_of_the_checkpoint(mirrored, tmp_path):
    class Gone(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            raise FileNotFoundError("tests.csv is gone")

    trained(mirrored, tmp_path, ".weights.h5", 1)
    unbuilt = keras.Sequential([keras.layers.Dense(3)])
    unbuilt.compile(loss="mse")
    with pytest.raises(FileNotFoundError, match=r"tests\.csv is gone"):
        jt.keras.SidecarEvaluator(unbuilt, Gone(), tmp_path, timeout=0).start()


def test_damaged_files_are_reported_and_skipped(mirrored, tmp_path, capsys):
    trained(mirrored, tmp_path, ".weights.h5", 1)
    whole = (tmp_path / "epoch-1.weights.h5").read_bytes()
    (tmp_path / "epoch-2.weights.h5").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "epoch-3.keras").write_bytes(b"no archive")
    results = evaluator(tmp_path, evaluate_all=True).start()
    assert [os.path.basename(r["checkpoint"]) for r in results] == ["epoch-1.weights.h5"]
    printed = capsys.readouterr().out
    assert "skipped epoch-2.weights.h5, which cannot be read: " in printed
    assert "skipped epoch-3.keras, which cannot be read: " in printed


def test_weights_of_another_model_are_no_result(mirrored, tmp_path):
    trained(mirrored, tmp_path, ".weights.h5", 1)
    other = classifier(keras.layers.Dense(6))
    with pytest.raises(ValueError, match=r"shape|Layer"):
        evaluator(tmp_path, other).start()


def test_a_model_that_is_not_compiled_is_refused(tmp_path):
    with pytest.raises(ValueError, match="compile"):
        jt.keras.SidecarEvaluator(classifier(compiled=False), X, tmp_path)


def test_data_and_callbacks_are_those_of_evaluate(mirrored, tmp_path):
    trained(mirrored, tmp_path, ".weights.h5", 1)
    seen = []
    told = callbacks.LambdaCallback()
    told.on_test_batch_end = lambda batch, logs=None: seen.append(batch)
    with mirrored.scope():
        model = compiled()
    data = jt.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    jt.keras.SidecarEvaluator(model, data, tmp_path, 2, 1, [told]).start()
    assert seen == [0, 1]


def test_a_dataset_of_ours_needs_a_strategy_and_is_read_anew_for_each_checkpoint(tmp_path):
    one_device = jt.OneDeviceStrategy("CPU:0")
    expected, _ = trained(one_device, tmp_path, ".weights.h5")
    data = jt.data.Dataset.from_tensor_slices((X, Y)).batch(11)
    with pytest.raises(ValueError, match=r"OneDeviceStrategy.*scope"):
        jt.keras.SidecarEvaluator(compiled(), data, tmp_path)
    with one_device.scope():
        model = compiled()
    results = jt.keras.SidecarEvaluator(model, data, tmp_path, timeout=0, evaluate_all=True).start()
    assert len(results) == 2
    close(results[-1]["metrics"], expected)


class TestTensorBoard:
    def test_numbers_are_read_back_at_their_steps(self, mirrored, tmp_path):
        trained(mirrored, tmp_path, ".weights.h5")
        results = evaluator(tmp_path, evaluate_all=True).start()
        board = EventAccumulator(str(tmp_path / "evaluation"))
        board.Reload()
        assert sorted(board.Tags()["scalars"]) == ["accuracy", "loss"]
        for tag in ("accuracy", "loss"):
            events = board.Scalars(tag)
            assert [event.step for event in events] == [2, 4]
            assert [event.wall_time for event in events] == [r["time"] for r in results]
            values = [np.float32(r["metrics"][tag]) for r in results]
            assert [np.float32(event.value) for event in events] == values

    def test_tensorflow_reads_the_records_too(self, mirrored, tmp_path):
        trained(mirrored, tmp_path, ".weights.h5", 1)
        evaluator(tmp_path).start()
        (file,) = (tmp_path / "evaluation").glob("events.out.tfevents.*")
        records = list(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
        first, second = [tf.compat.v1.Event.FromString(record) for record in records]
        assert first.file_version == "brain.Event:2"
        assert (second.step, {v.tag for v in second.summary.value}) == (2, {"loss", "accuracy"})

    def test_a_callback_of_keras_writes_at_the_steps_of_training(self, mirrored, tmp_path):
        trained(mirrored, tmp_path, ".weights.h5", 1)
        written = callbacks.TensorBoard(tmp_path / "board")
        evaluator(tmp_path, callbacks=[written]).start()
        board = EventAccumulator(str(tmp_path / "board" / "validation"))
        board.Reload()
        events = board.Tensors("evaluation_loss_vs_iterations")
        assert [event.step for event in events] == [2]
