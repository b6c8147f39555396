"""What TensorFlow saved is read without it, equal to what TensorFlow reads."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import jaxtribute as jt
from jaxtribute.checkpoint._foreign import open_source
from tests._interpreter import STRICT_PYTHON

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(np.arange(6, dtype=np.float32).reshape(3, 2))
        self.layers = [tf.Variable([1.5], dtype=tf.bfloat16), {"a/b.c": tf.Variable(True)}]
        self.again = self.layers[0]


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of objects, of which one has several names."""
    model = Model()
    optimizer = tf.compat.v1.train.AdamOptimizer(0.1)
    optimizer.apply_gradients([(tf.ones((3, 2)), model.w)])
    checkpoint = tf.train.Checkpoint(
        model=model, optimizer=optimizer, step=tf.Variable(5, dtype=tf.int64), text=tf.Variable("x")
    )
    return checkpoint.save(str(tmp_path / "ckpt"))


def assert_read_alike(path):
    """Compare every value with what TensorFlow reads."""
    own, theirs = jt.train.load_checkpoint(path), tf.train.load_checkpoint(str(path))
    shapes = theirs.get_variable_to_shape_map()
    assert own.get_variable_to_shape_map() == shapes
    assert (
        sorted(shapes.items())
        == jt.train.list_variables(path)
        == tf.train.list_variables(str(path))
    )
    for name, dtype in theirs.get_variable_to_dtype_map().items():
        expected = theirs.get_tensor(name)
        value = own.get_tensor(name)
        assert own.has_tensor(name)
        assert value.dtype == dtype.as_numpy_dtype
        np.testing.assert_array_equal(value, np.asarray(expected, value.dtype))
    return own


# --- Reading -------------------------------------------------------------------------------


def test_objects_are_read_as_tensorflow_reads_them(saved):
    reader = assert_read_alike(saved)
    assert reader.has_tensor(f"model/w{VALUE}")
    assert reader.get_tensor(f"text{VALUE}") == b"x"
    # The directory stands for its newest checkpoint, and an index for its checkpoint.
    assert_read_alike(Path(saved).parent)
    assert jt.train.list_variables(f"{saved}.index") == jt.train.list_variables(saved)


def test_directory_that_was_moved_has_its_checkpoints_with_it(saved, tmp_path):
    moved = tmp_path.with_name(tmp_path.name + "_moved")
    noted = tmp_path / "checkpoint"
    noted.write_text(noted.read_text().replace('"ckpt-1"', f'"{saved}"'))
    tmp_path.rename(moved)
    assert jt.train.load_variable(moved, f"step{VALUE}") == 5
    moved.rename(tmp_path)


def test_saved_model_has_its_variables(tmp_path):
    model = Model()
    tf.saved_model.save(model, str(tmp_path / "model"))
    reader = jt.train.load_checkpoint(tmp_path / "model")
    np.testing.assert_array_equal(reader.get_tensor(f"w{VALUE}"), model.w.numpy())


def test_names_of_tensorflow_1_and_partitioned_variables(tmp_path):
    table = np.arange(20000 * 3, dtype=np.float32).reshape(20000, 3)
    square = np.arange(300 * 70, dtype=np.int32).reshape(300, 70)
    parts = [
        ("table", f"20000 3 {start},{stop - start}:-", table[start:stop])
        for start, stop in ((0, 63), (63, 127), (127, 9000), (9000, 20000))
    ] + [
        ("square", f"300 70 {i},{j - i}:{k},{m - k}", square[i:j, k:m])
        for i, j in ((0, 200), (200, 300))
        for k, m in ((0, 64), (64, 70))
    ]
    parts += [("dense/kernel", "", np.ones((2, 0))), ("texts", "", np.array([["a", "b" * 300]]))]
    names, slices, values = zip(*parts, strict=True)
    path = str(tmp_path / "old")
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=names,
        shape_and_slices=slices,
        tensors=[*map(tf.constant, values)],
    )
    assert_read_alike(path)
    source = open_source(path)
    np.testing.assert_array_equal(source.rows("table", 60, 9001), table[60:9001])
    np.testing.assert_array_equal(source.rows("square", 150, 250), square[150:250])
    assert "texts" not in source.index["arrays"]


def test_tensorflow_is_not_needed(saved):
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"  # importing it fails
        "import jaxtribute as jt\n"
        f"print(jt.train.load_variable({saved!r}, 'step{VALUE}'))"
    )
    ran = subprocess.run(
        [*STRICT_PYTHON, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "5\n"), ran.stderr


# --- Names here ----------------------------------------------------------------------------


def test_every_way_to_an_object_leads_to_its_value(saved):
    source = open_source(saved)
    arrays = source.index["arrays"]
    assert arrays["model/w"] == {"shape": [3, 2], "dtype": "float32"}
    assert arrays["step"] == {"shape": [], "dtype": "int32"}
    assert source.index["save_counter"] == 1
    assert "save_counter" not in arrays and "text" not in arrays
    assert source.find("model/layers/0") == source.find("model/again") is not None
    assert source.find("model/layers/1/a%2Fb.c") in arrays
    assert source.find(f"model/w{VALUE}") == "model/w"
    assert source.find("model") is source.find("model/x") is None


def test_state_of_an_optimizer_is_found_where_optax_has_it(saved):
    source = open_source(saved)
    theirs = tf.train.load_checkpoint(saved)
    for own, slot in (("mu", "m"), ("nu", "v")):
        for way in ("0", "1/0", "inner_state/0"):
            name = source.find(f"optimizer/state/{way}/{own}/model/w")
            np.testing.assert_array_equal(
                source.load([name])[name],
                theirs.get_tensor(f"model/w/.OPTIMIZER_SLOT/optimizer/{slot}{VALUE}"),
            )
    assert source.find("optimizer/state/0/trace/model/w") is None


@pytest.fixture(scope="module")
def keras_files(tmp_path_factory):
    """What Keras writes with TensorFlow behind it, which takes a process of its own."""
    directory = tmp_path_factory.mktemp("keras")
    script = Path(__file__).with_name("_written_by_tensorflow.py")
    environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
    ran = subprocess.run(
        [sys.executable, str(script), str(directory)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=110,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    with np.load(directory / "expected.npz") as arrays:
        return directory, dict(arrays)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Adam", {"mu": "momentum", "nu": "velocity"}),
        ("Adamax", {"mu": "momentum", "nu": "norm"}),
        ("RMSprop", {"nu": "velocity"}),
        ("Adagrad", {"sum_of_squares": "accumulator"}),
        ("Adadelta", {"e_g": "accumulated_grad", "e_x": "accumulated_delta_var"}),
        ("Lion", {"mu": "momentum"}),
        # Their momentum means something else than that of Optax.
        ("SGD", {}),
        ("Nadam", {}),
    ],
)
def test_state_of_keras_optimizers_is_found_where_it_means_the_same(name, parts, keras_files):
    directory, expected = keras_files
    source = open_source(str(directory / name))
    kernel = source.find("net/dense/kernel")
    np.testing.assert_array_equal(source.load([kernel])[kernel], expected[f"{name}_kernel"])
    assert source.load([source.find("optimizer/iterations")]) == {"optimizer/iterations": 2}
    assert source.find("optimizer/state/0/count") == "optimizer/iterations"
    known = ("mu", "nu", "trace", "sum_of_squares", "e_g", "e_x")
    found = {each: source.find(f"optimizer/state/0/{each}/net/dense/kernel") for each in known}
    assert {each for each in known if found[each]} == parts.keys()
    for each, theirs in parts.items():
        (own,) = [
            n for n in expected if n.startswith(f"{name}_") and n.endswith(f"kernel_{theirs}")
        ]
        np.testing.assert_array_equal(source.load([found[each]])[found[each]], expected[own])


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_files_of_keras_have_all_weights(name, keras_files):
    directory, expected = keras_files
    reader = jt.train.load_checkpoint(directory / name)
    ways = ["dense/vars/0", "dense/vars/1", *(f"batch_normalization/vars/{i}" for i in range(4))]
    ways += ["dense_1/vars/0", "dense_1/vars/1"]
    for number, way in enumerate(ways):
        value = reader.get_tensor(f"layers/{way}")
        np.testing.assert_array_equal(value, expected[f"weights_{number}"])
    for number in range(14):
        value = reader.get_tensor(f"optimizer/vars/{number}")
        np.testing.assert_array_equal(value, expected[f"optimizer_{number}"])


def test_files_of_keras_2_have_all_weights(keras_files):
    directory, expected = keras_files
    shapes = [shape for _, shape in jt.train.list_variables(directory / "model.h5")]
    assert sorted(shapes) == sorted(
        list(array.shape) for n, array in expected.items() if n.startswith(("weights", "optimizer"))
    )


# --- Damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
def test_truncated_file_is_named(ending, saved):
    path = Path(f"{saved}.{ending}")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(jt.errors.DataLossError, match=path.name):
        jt.train.load_checkpoint(saved)


def test_every_changed_byte_is_found(saved):
    index, values = Path(f"{saved}.index"), Path(f"{saved}.data-00000-of-00001")
    for path in (index, values):
        data = path.read_bytes()
        for position in range(0, len(data) - 8, 7):
            changed = bytearray(data)
            changed[position] ^= 0x10
            path.write_bytes(changed)
            try:
                source = open_source(saved)
            except jt.errors.DataLossError as error:
                assert path.name in str(error)
            else:  # a byte that means nothing: after the blocks of the index
                assert path == index and position > len(data) - 48, (path.name, position)
                assert "model/w" in source.index["arrays"]
        path.write_bytes(data)


def test_missing_files_are_named(saved, tmp_path):
    Path(f"{saved}.data-00000-of-00001").rename(tmp_path / "kept")
    with pytest.raises(jt.errors.NotFoundError, match=r"ckpt-1\.data-00000-of-00001' is missing"):
        jt.train.load_checkpoint(saved)
    (tmp_path / "kept").rename(f"{saved}.data-00000-of-00001")
    Path(f"{saved}.index").unlink()
    with pytest.raises(jt.errors.NotFoundError, match=r"ckpt-1\.index' is missing"):
        jt.train.load_checkpoint(saved)
    with pytest.raises(jt.errors.NotFoundError, match="newest checkpoint is 'ckpt-1'"):
        jt.train.load_checkpoint(tmp_path)
    with pytest.raises(jt.errors.NotFoundError, match="nowhere"):
        jt.train.load_checkpoint(tmp_path / "nowhere")
