"""Arrays in files: in parts, in rows, and not a bit of damage unnoticed."""

import itertools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxtribute import _array_files
from jaxtribute._array_files import DamagedArray, Part, Stored, read, write


def stored(name, array, rows=None, offsets=None):
    """Describe an array that is divided at offsets between places "0", "1" and so on."""
    ends = offsets or [0, len(array) if array.shape else 1]
    bounds = itertools.pairwise(ends)
    parts = tuple(Part(str(place), *each) for place, each in enumerate(bounds))
    return Stored(name, array.shape, str(array.dtype), parts, rows)


def write_in_parts(directory, name, array, offsets):
    for place, (start, stop) in enumerate(itertools.pairwise(offsets)):
        write(directory / str(place), [(name, start, array[start:stop])])


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_rows_of_an_array_in_any_parts(tmp_path_factory, data):
    size = data.draw(st.integers(1, 40))
    cuts = data.draw(st.sets(st.integers(1, size), max_size=4))
    first = data.draw(st.integers(0, size))
    last = data.draw(st.integers(first, size))
    array = np.random.default_rng(size).normal(size=(size, 3)).astype(np.float32)
    directory = tmp_path_factory.mktemp("arrays")
    offsets = sorted({0, size} | cuts)
    write_in_parts(directory, "a/b", array, offsets)
    whole, rows = read(
        directory,
        [stored("a/b", array, None, offsets), stored("a/b", array, (first, last), offsets)],
    )
    np.testing.assert_array_equal(whole, array)
    np.testing.assert_array_equal(rows, array[first:last])


@pytest.mark.parametrize(
    "array",
    [
        np.float64(2.5),
        np.array(True),
        np.zeros((0, 3), np.int8),
        np.arange(6, dtype=np.uint16).reshape(1, 2, 3),
        np.array([1 + 2j]),
        np.arange(4).astype(jnp.bfloat16),
        np.arange(4).astype(jnp.float8_e4m3fn),
        np.arange(4).astype(jnp.int4),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::-2],
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_arrays_of_any_type_and_shape(array, tmp_path):
    write(tmp_path / "0", [("a", 0, array)])
    (found,) = read(tmp_path, [stored("a", np.asarray(array))])
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == np.asarray(array).tobytes()


def test_more_than_fits_into_memory_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(_array_files, "_AT_ONCE", 1000)
    monkeypatch.setattr(_array_files, "_CHUNK", 300)
    arrays = {f"a{i}": np.full((50 + i, 2), i, np.float32) for i in range(12)}
    write(tmp_path / "0", [(name, 0, array) for name, array in arrays.items()])
    found = read(tmp_path, [stored(name, array) for name, array in arrays.items()])
    for value, (name, array) in zip(found, arrays.items(), strict=True):
        np.testing.assert_array_equal(value, array, name)


def test_names_that_begin_with_other_names(tmp_path):
    names = ["a", "a/b", "a/c/0", "a@0", "a@0/zarr.json", "ä", "a%2Fb", ""]
    arrays = {name: np.full(3, i) for i, name in enumerate(names)}
    write(tmp_path / "0", [(name, 0, array) for name, array in arrays.items()])
    for value, name in zip(
        read(tmp_path, [stored(n, a) for n, a in arrays.items()]), names, strict=True
    ):
        assert value.tolist() == arrays[name].tolist(), name


# --- Damage --------------------------------------------------------------------------------

ARRAY = np.arange(600, dtype=np.float32).reshape(200, 3)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def directory(tmp_path):
    write_in_parts(tmp_path, "model/w", ARRAY, [0, 120, 200])
    return tmp_path


def _read(directory):
    (found,) = read(directory, [stored("model/w", ARRAY, None, [0, 120, 200])])
    return found


@pytest.mark.parametrize("file", [0, 1, 2, 3])
@pytest.mark.parametrize("damage", ["cut off", "gone", "empty"])
def test_files_that_are_damaged_are_named_with_the_variable(directory, damage, file):
    path = _files(directory)[file]
    if damage == "gone":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(b"" if damage == "empty" else content[: len(content) // 2])
    place = path.relative_to(directory).parts[0]
    with pytest.raises(DamagedArray, match=rf"'model/w' in {directory}/{place} cannot be read: "):
        _read(directory)


def test_no_flipped_bit_passes_unnoticed(directory):
    bits = np.random.default_rng(0)
    for path in _files(directory):
        content = path.read_bytes()
        for position in bits.choice(len(content), 40, replace=False):
            damaged = bytearray(content)
            damaged[position] ^= 1 << int(bits.integers(8))
            path.write_bytes(damaged)
            try:
                np.testing.assert_array_equal(_read(directory), ARRAY)  # a bit nobody reads
            except DamagedArray as error:
                assert "'model/w'" in str(error)
        path.write_bytes(content)
    np.testing.assert_array_equal(_read(directory), ARRAY)


def test_rows_that_nobody_wrote_are_missed(directory):
    with pytest.raises(DamagedArray, match="has 120 of the rows 0 to 200"):
        list(read(directory, [stored("model/w", ARRAY, (0, 200), [0, 120])]))


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "0").write_text("a file")
    with pytest.raises(OSError, match=f"could not be written to {tmp_path}/0"):
        write(tmp_path / "0", [("a", 0, ARRAY)])
