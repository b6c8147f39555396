"""Values of Keras files and of our own checkpoints are read by name, or not at all."""

import json
import random
import zipfile

import h5py
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.checkpoint._foreign import open_source
from jaxtribute.checkpoint._names import Finder

KERNEL = np.arange(6, dtype=np.float32).reshape(3, 2)
ARRAYS = {
    "layers/dense/vars/0": KERNEL,
    "layers/dense/vars/1": np.array([0.5, -2.0], ml_dtypes.bfloat16),
    "optimizer/vars/0": np.array(7, np.int64),
}


def write(path, arrays=ARRAYS):
    """Write arrays as Keras does."""
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            dataset = file.create_dataset(name, data=array)
            if array.dtype == ml_dtypes.bfloat16:
                dataset.attrs["dtype"] = "bfloat16"
    return path


def archive(path, compression=zipfile.ZIP_STORED):
    weights = write(path.with_name("model.weights.h5"))
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("config.json", "{}")
        file.write(weights, weights.name)
    weights.unlink()
    return path


def divided(path):
    names = list(ARRAYS)
    places = {}
    for number, name in enumerate(names):
        part = path.with_name(f"model_{number:05d}.weights.h5")
        write(part, {name: ARRAYS[name]})
        places.setdefault("/" + name.rpartition("/")[0], []).append(part.name)
    path.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


def directory(path):
    path.mkdir()
    (path / "config.json").write_text("{}")
    write(path / "model.weights.h5")
    return path


FORMS = {
    "model.weights.h5": write,
    "model.keras": archive,
    "model.weights.json": divided,
    "unpacked": directory,
}


@pytest.mark.parametrize("name", FORMS)
def test_values_of_a_file_are_read_by_name(name, tmp_path):
    path = FORMS[name](tmp_path / name)
    reader = jt.train.load_checkpoint(path)
    assert reader.get_variable_to_shape_map() == {n: list(a.shape) for n, a in ARRAYS.items()}
    assert reader.get_variable_to_dtype_map() == {n: a.dtype for n, a in ARRAYS.items()}
    for each, array in ARRAYS.items():
        assert reader.has_tensor(each)
        read = reader.get_tensor(each)
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, array)
    assert not reader.has_tensor("layers/dense")
    np.testing.assert_array_equal(
        open_source(str(path)).rows("layers/dense/vars/0", 1, 3), KERNEL[1:]
    )


def test_unknown_name_is_told_with_those_there_are(tmp_path):
    path = write(tmp_path / "model.weights.h5")
    with pytest.raises(jt.errors.NotFoundError, match=r"no 'kernel'.*layers/dense/vars/0"):
        jt.train.load_variable(path, "kernel")


def test_values_of_a_checkpoint_of_ours_are_read_by_name(tmp_path):
    write(tmp_path / "model.weights.h5")  # which is another matter
    checkpoint = jt.train.Checkpoint(v=jt.Variable(jnp.asarray(KERNEL)), step=3)
    path = checkpoint.save(tmp_path / "ckpt")
    for given in (path, tmp_path):
        assert jt.train.list_variables(given) == [("step", []), ("v", [3, 2])]
        np.testing.assert_array_equal(jt.train.load_variable(given, "v"), KERNEL)
        assert jt.train.load_variable(given, "step") == 3


# --- Damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.weights.h5", "model.keras"])
def test_truncated_file_is_named(name, tmp_path):
    path = FORMS[name](tmp_path / name)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(jt.errors.DataLossError, match=name):
        open_source(str(path))


def test_changed_byte_of_an_archive_is_found_before_anything_is_restored(tmp_path):
    path = archive(tmp_path / "model.keras")
    data = bytearray(path.read_bytes())
    data[data.index(KERNEL.tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(jt.errors.DataLossError, match=r"checksum of 'model.weights.h5'"):
        open_source(str(path))


def test_missing_files_are_named(tmp_path):
    with pytest.raises(jt.errors.NotFoundError, match=r"other\.keras"):
        jt.train.load_checkpoint(tmp_path / "other.keras")
    path = divided(tmp_path / "model.weights.json")
    (tmp_path / "model_00001.weights.h5").unlink()
    with pytest.raises(jt.errors.NotFoundError, match=r"model_00001"):
        jt.train.load_checkpoint(path)


def test_nothing_is_read_from_other_files_a_file_refers_to(tmp_path):
    secret = write(tmp_path / "secret.h5", {"x": KERNEL})
    path = tmp_path / "model.weights.h5"
    with h5py.File(path, "w") as file:
        file["linked"] = h5py.ExternalLink(secret.name, "x")
        file.create_dataset("outside", (2,), "f4", external=[(str(secret), 0, 8)])
        layout = h5py.VirtualLayout((3, 2), "f4")
        layout[:] = h5py.VirtualSource(str(secret), "x", (3, 2))
        file.create_virtual_dataset("virtual", layout)
        file["own"] = KERNEL
    assert jt.train.list_variables(path) == [("own", [3, 2])]


def test_integers_that_jax_cannot_hold_are_not_cut_off(tmp_path):
    path = write(tmp_path / "a.weights.h5", {"n": np.array([2**40]), "m": np.array([-(2**31)])})
    source = open_source(str(path))
    assert source.index["arrays"]["n"] == {"shape": [1], "dtype": "int32"}
    assert source.load(["m"])["m"] == [-(2**31)]
    with pytest.raises(jt.errors.InvalidArgumentError, match=r"'n'.*JAX_ENABLE_X64"):
        source.load(["n"])


# --- Names that differ -----------------------------------------------------------------------


def finder(names, *saved):
    index = {"arrays": {name: {"shape": [3], "dtype": "float32"} for name in saved}}
    return Finder("file.keras", index, lambda name: name if name in saved else None, names)


def test_names_count_for_what_is_in_an_object_and_for_the_state_of_optimizers():
    find = finder({"model": "net", "model/b": "bias"}, "net/w", "bias", "opt/state/0/mu/net/w")
    assert find("model/w") == "net/w"
    assert find("model/b") == "bias"
    assert find("opt/state/0/mu/model/w") == "opt/state/0/mu/net/w"
    assert find("modelled/w") is None
    assert find("model/other") is None


def test_names_may_be_a_function():
    find = finder(lambda name: {"w": "layers/dense/vars/0"}.get(name), "layers/dense/vars/0", "b")
    assert find("w") == "layers/dense/vars/0"
    assert find("b") == "b"


def test_wrong_names_are_refused_with_what_there_is():
    find = finder({"w": "layers/dens"}, "layers/dense/vars/10", "layers/dense/vars/9")
    with pytest.raises(jt.errors.NotFoundError, match=r"(?s)'layers/dens' in.*vars/9'.*vars/10'"):
        find("w")
    with pytest.raises(jt.errors.InvalidArgumentError, match=r"\['w'\].*'model/w'"):
        find.check(["model/w"])
    find.check(["w"])


@pytest.mark.parametrize("kind", ["archive", "file"])
def test_damage_of_any_kind_is_an_error_that_names_the_file(tmp_path, kind):
    path = tmp_path / ("model.keras" if kind == "archive" else "model.weights.h5")
    content = (archive(path) if kind == "archive" else write(path)).read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged[: rng.choice([len(content), rng.randrange(len(content))])])
        try:
            reader = jt.train.load_checkpoint(path)
            found = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        except jt.errors.DataLossError as error:
            assert str(path) in str(error)
            refused += 1
            continue
        if kind == "archive":  # HDF5 alone has no checksums of values
            assert {n: a.tobytes() for n, a in found.items()} == {
                n: a.tobytes() for n, a in ARRAYS.items()
            }
    assert refused > 50


@pytest.mark.parametrize("content", [b"\xff", b'model_checkpoint_pXth: "c"', b""], ids=repr)
def test_a_damaged_note_of_the_newest_checkpoint_of_tensorflow(tmp_path, content):
    (tmp_path / "ckpt-1.index").write_bytes(b"")
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.raises(jt.errors.DataLossError, match=f"The file '{tmp_path}/checkpoint'"):
        jt.train.load_checkpoint(tmp_path)
