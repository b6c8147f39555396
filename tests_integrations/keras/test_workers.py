"""Keras models on several workers, each a process of its own.

Starting workers takes long, so that one program makes many observations. What a test asserts is
what its program has said.
"""

import json

import pytest

from tests.processes import _workers

_SECONDS = 240.0  # Keras takes long to start when the machine is busy
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

_PREAMBLE = """
import keras, warnings
# Of every `variable.numpy()` of Keras itself.
warnings.filterwarnings("ignore", ".*accept a copy keyword", DeprecationWarning)
strategy = jt.MultiWorkerMirroredStrategy()
rows = np.random.default_rng(0).normal(size=(44, 4)).astype("float32")
labels = (rows.sum(1) > 0).astype("int32")

def build(**compiled):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], **compiled)
    return model

def hexed(values):
    return [float(value).hex() for value in values]

def weights(model):
    return [hexed(np.ravel(w)) for w in model.get_weights()]

def refused(call):
    try:
        call()
    except Exception as error:
        return said(error)
    return {"kind": None, "text": ""}
"""


@pytest.fixture
def workers(tmp_path, monkeypatch):
    """Two workers, with time enough for both to start."""
    monkeypatch.setattr(_workers, "SECONDS", _SECONDS)
    with _workers.Cluster(tmp_path, environment={"KERAS_BACKEND": "jax"}) as cluster:
        yield cluster


def told(cluster, event):
    """Return what both workers have said of something."""
    return [cluster.until(task, event, _SECONDS) for task in cluster.tasks]


def without_event(fields):
    return {name: value for name, value in fields.items() if name != "event"}


def same(cluster, event):
    """Return what both workers have said of something, which has to be the same."""
    first, second = (without_event(fields) for fields in told(cluster, event))
    assert first == second
    return first


_MANNERS = """
class Recorder(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []
    def on_train_batch_end(self, batch, logs=None):
        self.seen += hexed(logs.values())
    def on_epoch_end(self, epoch, logs=None):
        self.seen += hexed(logs.values())

# One bar, one writer, and logs that are equal; also inside of the scope, where the chief alone must
# not create anything.
model, recorder = build(), Recorder()
own = Path(f"files{ME}")
with strategy.scope():
  history = model.fit(
    rows, labels, batch_size=8, epochs=2, validation_data=(rows[:10], labels[:10]),
    callbacks=[
        recorder,
        keras.callbacks.TensorBoard(f"board{ME}"),
        keras.callbacks.CSVLogger(f"log{ME}.csv"),
        keras.callbacks.ModelCheckpoint(f"{own}/best.keras", save_best_only=True, verbose=1),
        keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0, verbose=1),
    ],
  )
logs = {name: hexed(values) for name, values in history.history.items()}
say("logs", history=logs, seen=recorder.seen, weights=weights(model))
say("files", there=[Path(p).exists() for p in (own, f"log{ME}.csv", f"board{ME}")])

# The best weights come back on all.
stopping = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10.0,
                                         restore_best_weights=True, verbose=1)
history = model.fit(rows, labels, batch_size=8, epochs=9, verbose=2, callbacks=[stopping])
say("stopped early", epochs=len(history.epoch), weights=weights(model))

# One worker alone wants to stop, in the middle of an epoch.
class StopOnOne(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = ME == 1 and batch == 2
model = build()
history = model.fit(rows, labels, batch_size=8, epochs=3, verbose=0, callbacks=[StopOnOne()])
steps, epochs = int(model.optimizer.iterations.value), len(history.epoch)
say("stopped in the epoch", steps=steps, epochs=epochs, flag=model.stop_training)

# Or at its end, and only one has such a callback at all.
def stop(epoch, logs):
    model.stop_training = True
only_here = [keras.callbacks.LambdaCallback(on_epoch_end=stop)] if ME == 1 else []
history = model.fit(rows, labels, batch_size=8, epochs=3, verbose=0, callbacks=only_here)
say("stopped after the epoch", epochs=len(history.epoch))

# What cannot work is refused.
orbax = object.__new__(keras.callbacks.OrbaxCheckpoint)  # which needs a directory of all workers
say("orbax", **refused(lambda: model.fit(rows, labels, callbacks=[orbax])))
say("epochs", **refused(lambda: model.fit(rows, labels, epochs=1 + ME, verbose=0)))
"""


def test_callbacks_write_once_see_the_same_and_stop_together(workers):
    workers.start(_PREAMBLE + _MANNERS)

    logs = same(workers, "logs")
    assert set(logs["history"]) >= {"loss", "accuracy", "val_loss", "learning_rate"}
    assert len(logs["seen"]) == 2 * (6 * 2 + 4)
    files = [one["there"] for one in told(workers, "files")]
    assert files == [[True] * 3, [False] * 3]
    assert same(workers, "stopped early")["epochs"] == 2
    assert same(workers, "stopped in the epoch") == {"steps": 3, "epochs": 1, "flag": True}
    assert same(workers, "stopped after the epoch") == {"epochs": 1}
    refused = same(workers, "orbax")
    assert refused["kind"] == "UnimplementedError"
    assert "ModelCheckpoint" in refused["text"]
    refused = same(workers, "epochs")
    assert refused["kind"] == "FailedPreconditionError"
    assert "worker:0 passes epochs=1, worker:1 epochs=2" in refused["text"]
    workers.finish()
    written = [workers.stdout(task) for task in workers.tasks]
    assert "Epoch 2/2" in written[0]
    assert "saving model to" in written[0]
    assert not [line for line in written[1].splitlines() if not line.startswith("{")]


_SAVING = """
model = build()
model.fit(rows, labels, batch_size=8, verbose=0)

def written():
    return sorted(path.name for path in Path().iterdir() if path.suffix in (".keras", ".h5"))

# All call `save`, and the file is there for all of them when it returns.
model.save("whole.keras")
with strategy.scope():
    loaded = keras.saving.load_model("whole.keras")
history = loaded.fit(rows, labels, batch_size=8, shuffle=False, verbose=0).history
say("loaded", weights=weights(loaded), loss=hexed(history["loss"]))

class Saver(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save_weights(f"after{epoch}.weights.h5")
        self.same = Path(f"after{epoch}.weights.h5").exists()
saver = Saver()
model.fit(rows, labels, batch_size=8, epochs=2, verbose=0, callbacks=[saver])
say("saved in a callback", there=saver.same, files=written())

# As programs for tf.distribute do: all but the chief write elsewhere, and remove it.
Path(f"temporary{ME}").mkdir(exist_ok=True)
path = "chief.keras" if ME == 0 else f"temporary{ME}/chief.keras"
model.save(path)
say("own path", there=Path(path).exists())

# What the chief could not do, no worker takes for done.
say("failed", **refused(lambda: model.save("missing/model.keras")))

# Files that differ: the chief's counts.
loaded.save_weights("loaded.weights.h5")
if ME == 0:
    Path("mine0.weights.h5").write_bytes(Path("after1.weights.h5").read_bytes())
loaded.load_weights("mine0.weights.h5" if ME == 0 else "loaded.weights.h5")
say("weights of the chief", same=weights(loaded) == weights(model))
say("missing on one", **refused(lambda: model.load_weights(f"mine{ME}.weights.h5")))

# A dataset that ends early on one worker.
def short(context):
    return jt.data.Dataset.from_tensor_slices((rows, labels)).take(40 - 16 * ME).batch(4)
dataset = strategy.distribute_datasets_from_function(short)
model = build()
history = model.fit(dataset, epochs=2, verbose=0).history
say("ends early", loss=hexed(history["loss"]), steps=int(model.optimizer.iterations.value))
"""


def test_saved_once_for_all_and_loaded_alike(workers):
    workers.start(_PREAMBLE + _SAVING)

    same(workers, "loaded")
    after = same(workers, "saved in a callback")
    assert after == {
        "there": True,
        "files": ["after0.weights.h5", "after1.weights.h5", "whole.keras"],
    }
    assert same(workers, "own path") == {"there": True}
    chief, other = told(workers, "failed")
    assert chief["kind"] == "FileNotFoundError"
    assert other["kind"] == "AbortedError"
    assert "worker:0 could not save the model" in other["text"]
    assert same(workers, "weights of the chief")["same"]
    chief, other = told(workers, "missing on one")
    assert chief["kind"] == "AbortedError"
    assert "worker:1 could not load weights" in chief["text"]
    assert same(workers, "ends early")["steps"] > 0
    workers.finish()


_BACKUP = """
class Pause(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        say("epoch", number=epoch)
        if epoch == 2 and ME == 1 and os.environ.get("PAUSE"):
            hold("never")

def train(*callbacks):
    model = build()
    history = model.fit(
        rows, labels, batch_size=8, epochs=4, shuffle=False, verbose=0, callbacks=callbacks
    )
    return {"epochs": history.epoch, "loss": hexed(history.history["loss"]),
            "weights": weights(model)}

# Each worker has a directory of its own, so that the others see nothing of the chief's.
say("done", **train(keras.callbacks.BackupAndRestore(f"backup{ME}"), Pause()))
say("uninterrupted", **train())
"""


def test_job_that_was_killed_goes_on_where_it_was(workers, tmp_path):
    workers.start(_PREAMBLE + _BACKUP, environment={"PAUSE": "1"})
    workers.until_true(
        lambda: all(
            {"event": "epoch", "number": 2} in workers.said(task) for task in workers.tasks
        ),
        "in epoch 2",
        _SECONDS,
    )
    workers.kill("worker:1")
    assert 0 not in workers.codes()
    assert "WorkerLostError" in workers.stderr("worker:0")
    metadata = json.loads((tmp_path / "backup0" / "training_metadata.json").read_text())
    assert metadata["epoch"] == 2

    workers.start(_PREAMBLE + _BACKUP)
    result = same(workers, "done")
    expected = same(workers, "uninterrupted")
    workers.finish()
    assert result["epochs"] == [2, 3]
    assert result["loss"] == expected["loss"][2:]
    assert result["weights"] == expected["weights"]
    assert not (tmp_path / "backup1").exists()
