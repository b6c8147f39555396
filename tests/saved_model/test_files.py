"""Saved models on disk: whole or not there, verified, and replaced as a whole."""

import hashlib
import json
import multiprocessing
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.saved_model import _files
from tests.saved_model import _saves_forever

INDEX = "saved_model.json"


@pytest.fixture
def model():
    return {"v": jt.Variable(np.arange(6, dtype=np.float32)), "n": jt.Variable(7)}


@pytest.fixture
def path(model, tmp_path):
    """Return the path of a saved model."""
    v = model["v"]
    signature = jt.saved_model.Signature(lambda x: v * x, jt.TensorSpec([]))
    jt.saved_model.save(model, tmp_path / "model", signature)
    return tmp_path / "model"


def flipped(file, offset=-1):
    """Change one bit of a file."""
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)


def rewritten(path, **changes):
    """Change the index of a model, and its checksum."""
    index = json.loads((path / INDEX).read_text()) | changes
    (path / INDEX).write_text(json.dumps(_files._sealed(index)))


# --- Damage --------------------------------------------------------------------------------


def test_damaged_weights_are_named_with_their_variable(path):
    record = json.loads((path / INDEX).read_text())["variables"]["v"]
    flipped(path / record["file"])
    with pytest.raises(jt.errors.DataLossError, match=r"variable 'v', '.*\.npy', is damaged"):
        jt.saved_model.load(path)


def test_a_damaged_program_is_named_with_its_signature(path):
    record = json.loads((path / INDEX).read_text())["programs"][0]
    flipped(path / record["file"], 100)
    with pytest.raises(jt.errors.DataLossError, match=r"program 'serving_default', '.*', is dam"):
        jt.saved_model.load(path)


def test_a_missing_file_is_named(path):
    record = json.loads((path / INDEX).read_text())["variables"]["n"]
    (path / record["file"]).unlink()
    with pytest.raises(jt.errors.DataLossError, match=r"variable 'n', .* cannot be read"):
        jt.saved_model.load(path)


@pytest.mark.parametrize(
    "change", [lambda text: text[:-20], lambda text: text.replace("6", "5", 1)]
)
def test_a_damaged_index_is_noticed(path, change):
    (path / INDEX).write_text(change((path / INDEX).read_text()))
    with pytest.raises(jt.errors.DataLossError, match=r"index of the saved model.*is damaged"):
        jt.saved_model.load(path)


def test_a_program_jax_cannot_read_tells_the_versions(path):
    index = json.loads((path / INDEX).read_text())
    record = index["programs"][0]
    (path / record["file"]).write_bytes(b"something else")
    digest = hashlib.sha256(b"something else").hexdigest()
    rewritten(path, programs=[record | {"sha256": digest}], jax="0.1.2")
    with pytest.raises(jt.errors.FailedPreconditionError, match=r"which JAX 0.1.2 wrote"):
        jt.saved_model.load(path)


def test_files_outside_of_the_model_are_not_read(path):
    index = json.loads((path / INDEX).read_text())
    index["variables"]["n"]["file"] = "../secret.npy"
    rewritten(path, variables=index["variables"])
    with pytest.raises(jt.errors.DataLossError, match=r"outside of it"):
        jt.saved_model.load(path)


def test_nothing_pickled_is_ever_loaded(path):
    index = json.loads((path / INDEX).read_text())
    file = path / index["variables"]["n"]["file"]
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    index["variables"]["n"]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    rewritten(path, variables=index["variables"])
    with pytest.raises(jt.errors.DataLossError, match=r"'n', .* no array of numbers"):
        jt.saved_model.load(path)


def test_a_newer_format_is_refused(path):
    rewritten(path, version=2, jaxtribute="9.9")
    with pytest.raises(
        jt.errors.FailedPreconditionError, match=r"format version 2.* jaxtribute 9.9"
    ):
        jt.saved_model.load(path)


def test_what_is_no_saved_model_is_not_found(tmp_path, model):
    with pytest.raises(jt.errors.NotFoundError, match=r"is no directory with a file 'saved_model"):
        jt.saved_model.load(tmp_path / "missing")
    jt.train.Checkpoint(**model).write(tmp_path / "checkpoint")
    with pytest.raises(jt.errors.NotFoundError, match=r"has no file .*jt.train.Checkpoint"):
        jt.saved_model.load(tmp_path / "checkpoint")
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(jt.errors.NotFoundError, match=r"none of ours"):
        jt.saved_model.load(tmp_path)
    with pytest.raises(ValueError, match=r"an address elsewhere"):
        jt.saved_model.load("gs://bucket/model")


@pytest.mark.parametrize("offset", range(0, 120, 7))
def test_no_bit_of_the_beginning_of_an_index_makes_it_another_matter(path, offset):
    """There, it says what kind of file it is, and of which version."""
    flipped(path / INDEX, offset)
    with pytest.raises(jt.errors.DataLossError, match=r"index of the saved model.*is damaged"):
        jt.saved_model.load(path)


@pytest.mark.parametrize("what", ["index", "no index", "weights"])
def test_what_is_left_of_a_damaged_model_is_kept(path, tmp_path, model, what):
    if what == "no index":
        (path / INDEX).unlink()
    else:
        flipped(path / INDEX if what == "index" else next(path.glob("data-*/*.npy")))
    with pytest.raises(jt.errors.DataLossError, match=str(path)):
        jt.saved_model.load(path)
    before = {file.relative_to(path): file.read_bytes() for file in path.glob("data-*/*")}
    jt.saved_model.save(model, path)
    assert jt.saved_model.load(path)["n"].numpy() == 7
    (aside,) = tmp_path.glob("model.damaged-*")
    assert {f.relative_to(aside): f.read_bytes() for f in aside.glob("data-*/*")} == before


def test_a_file_of_somebody_else_is_not_replaced(tmp_path, model):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / INDEX).write_text("{}")
    with pytest.raises(jt.errors.AlreadyExistsError, match="is no saved model"):
        jt.saved_model.save(model, tmp_path / "other")
    assert (tmp_path / "other" / INDEX).read_text() == "{}"


# --- Replacing -----------------------------------------------------------------------------


def test_a_model_replaces_another_and_leaves_nothing_of_it(path, tmp_path):
    before = set(os.listdir(path))
    jt.saved_model.save({"w": jt.Variable(3.0)}, path)
    assert list(jt.saved_model.load(path)._root) == ["w"]
    assert len(os.listdir(path)) == 2
    assert set(os.listdir(path)) & before == {INDEX}
    assert os.listdir(tmp_path) == ["model"]


def test_what_is_no_model_is_not_replaced(tmp_path, model):
    (tmp_path / "notes.txt").write_text("important")
    for target in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(jt.errors.AlreadyExistsError, match=r"is no saved model, so it is not"):
            jt.saved_model.save(model, target)
    assert (tmp_path / "notes.txt").read_text() == "important"
    (tmp_path / "empty").mkdir()
    jt.saved_model.save(model, tmp_path / "empty")
    assert int(jt.saved_model.load(tmp_path / "empty")["n"]) == 7


def test_a_save_that_fails_leaves_what_was_there(path, model, tmp_path):
    before = (path / INDEX).read_bytes()
    names = sorted(os.listdir(path))
    model["key"] = jt.Variable(0)
    object.__setattr__(model["key"], "_dtype", np.dtype("datetime64[s]"))  # fails while written
    for target in (path, tmp_path / "new"):
        with pytest.raises(ValueError, match=r"keeps numbers only"):
            jt.saved_model.save(model, target)
    assert (path / INDEX).read_bytes() == before
    assert sorted(os.listdir(path)) == names
    assert os.listdir(tmp_path) == ["model"]


def test_what_fails_after_a_model_has_replaced_another_leaves_the_new_one(path, monkeypatch):
    real = _files.sync_directory

    def fail(directory):
        real(directory)
        if directory == path:  # where the new index is in place by now
            raise OSError("an error of the disk")

    with monkeypatch.context() as patch:
        patch.setattr(_files, "sync_directory", fail)
        with pytest.raises(OSError, match=r"of the disk"):
            jt.saved_model.save({"w": jt.Variable(4.0)}, path)
    assert float(jt.saved_model.load(path)["w"]) == 4.0
    jt.saved_model.save({"w": jt.Variable(5.0)}, path)
    assert len(os.listdir(path)) == 2


def test_weights_of_a_loaded_model_are_its_own(path, model):
    loaded = jt.saved_model.load(path)
    jt.saved_model.save({"v": jt.Variable(np.zeros(6, np.float32))}, path)  # the files are gone
    loaded["v"].assign_add(np.ones(6, np.float32))
    np.testing.assert_array_equal(loaded["v"].numpy(), np.arange(6) + 1)
    np.testing.assert_array_equal(model["v"].numpy(), np.arange(6))


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(path):
    def replace_for_ever():
        number = 0
        while not ended.is_set():
            number += 1
            values = {name: jt.Variable(np.full(1000, number)) for name in "abc"}
            jt.saved_model.save(values, path)
            replaced.set()

    ended, replaced = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as thread:
        replacing = thread.submit(replace_for_ever)
        assert replaced.wait(60)
        try:
            for _ in range(20):
                loaded = jt.saved_model.load(path)
                assert len({int(n) for name in "abc" for n in loaded[name].numpy()}) == 1
        finally:
            ended.set()
        replacing.result()


# --- Killed --------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.slow
def test_killed_at_any_moment_there_is_a_whole_model_or_none(tmp_path):
    moments = random.Random(0)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jaxtribute"])
    seen = set()
    for name in ["a", "b", "replaced", "replaced"]:
        path = tmp_path / name
        progress, end = context.Pipe(duplex=False)
        process = context.Process(target=_saves_forever.run, args=(str(path), end))
        process.start()
        end.close()
        try:
            if name == "replaced":
                assert progress.poll(60)  # until the first is there
            else:
                deadline = time.monotonic() + 60
                while not list(tmp_path.glob(f".saving-{name}/data-*")):
                    assert time.monotonic() < deadline
                    if path.exists():
                        break
            time.sleep(moments.uniform(0, 0.05))
        finally:
            process.kill()
            process.join()
            progress.close()
        if path.exists():
            loaded = jt.saved_model.load(path)
            step = int(loaded["step"])
            assert float(loaded["v"].numpy().min()) == float(loaded["v"].numpy().max()) == step
            seen.add(name)
    assert "replaced" in seen
    jt.saved_model.save({"v": jt.Variable(0.0)}, tmp_path / "replaced")
    assert len(os.listdir(tmp_path / "replaced")) == 2  # what the killed ones left is gone
