"""TFRecord files that TensorFlow wrote."""

import json
import zlib

import numpy as np
import pytest
import tensorflow as tf

import jaxtribute as jt
from tests.input._workers import steps_of_workers, with_policy

COMPRESSIONS = ["", "GZIP", "ZLIB"]
RECORDS = [b"first", b"", b"\0\xff" * 40, b"x" * 100_000, b"last"]


def write(path, records=RECORDS, compression=""):
    """Write a file of records by TensorFlow, and return its name."""
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def read(names, compression=""):
    return list(jt.data.TFRecordDataset(names, compression))


@pytest.mark.parametrize("compression", COMPRESSIONS)
class TestEveryCompression:
    def test_records_are_read_as_they_were_written(self, tmp_path, compression):
        name = write(tmp_path / "a", compression=compression)
        assert read(name, compression) == RECORDS
        assert read(name, compression) == list(
            tf.data.TFRecordDataset(name, compression).as_numpy_iterator()
        )

    def test_a_file_of_no_records_is_empty(self, tmp_path, compression):
        assert read(write(tmp_path / "a", [], compression), compression) == []

    def test_files_are_read_one_after_the_other(self, tmp_path, compression):
        names = [
            write(tmp_path / name, [f"{name}{i}".encode() for i in range(3)], compression)
            for name in "abc"
        ]
        assert read(names, compression) == [f"{n}{i}".encode() for n in "abc" for i in range(3)]

    @pytest.mark.parametrize("taken", range(6))
    def test_reading_goes_on_from_a_state(self, tmp_path, compression, taken):
        first = write(tmp_path / "a", RECORDS[:3], compression)
        second = write(tmp_path / "b", RECORDS[3:], compression)
        dataset = jt.data.TFRecordDataset([first, second], compression)
        iterator = iter(dataset)
        for _ in range(taken):
            next(iterator)
        again = iter(dataset)
        again.set_state(json.loads(json.dumps(iterator.get_state())))
        assert list(again) == RECORDS[taken:]

    def test_a_file_that_ends_too_early_is_reported_after_its_whole_records(
        self, tmp_path, compression
    ):
        path = tmp_path / "cut.tfrecord"
        write(path, [b"whole", bytes(range(256)) * 20], compression)
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(jt.errors.DataLossError, match=r"cut\.tfrecord"):
            read(str(path), compression)


@pytest.mark.parametrize(
    ("position", "what"),
    [
        pytest.param(0, "length", id="length"),
        pytest.param(8, "length", id="checksum of the length"),
        pytest.param(12, "checksum of a record", id="record"),
        pytest.param(17, "checksum of a record", id="checksum of the record"),
    ],
)
def test_a_damaged_byte_is_noticed_as_by_tensorflow(tmp_path, position, what):
    path = tmp_path / "damaged.tfrecord"
    good, bad = b"good!", b"bad!!"
    write(path, [good, bad])
    content = bytearray(path.read_bytes())
    start = 8 + 4 + len(good) + 4  # length, its checksum, the record, its checksum
    content[start + position] ^= 1
    path.write_bytes(content)
    iterator = iter(jt.data.TFRecordDataset(path))
    assert next(iterator) == good
    with pytest.raises(
        jt.errors.DataLossError, match=rf"damaged\.tfrecord' is damaged at byte {start}: .*{what}"
    ):
        next(iterator)
    theirs = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    assert next(theirs) == good
    with pytest.raises(tf.errors.DataLossError):
        next(theirs)


@pytest.mark.parametrize("cut", [1, 4, 11, 13, 20])
def test_a_file_that_is_cut_anywhere_is_noticed(tmp_path, cut):
    path = tmp_path / "cut.tfrecord"
    write(path, [b"record"])  # of 22 bytes
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(jt.errors.DataLossError, match=r"cut\.tfrecord' is damaged at byte 0"):
        read(path)


@pytest.mark.parametrize(
    ("written", "asked"), [("", "GZIP"), ("", "ZLIB"), ("GZIP", ""), ("GZIP", "ZLIB"), ("ZLIB", "")]
)
def test_the_wrong_compression_is_noticed(tmp_path, written, asked):
    name = write(tmp_path / "file.tfrecord", compression=written)
    with pytest.raises(jt.errors.DataLossError, match=r"file\.tfrecord"):
        read(name, asked)


def test_a_compressed_file_with_a_damaged_middle_is_noticed(tmp_path):
    for compression in ("GZIP", "ZLIB"):
        path = tmp_path / f"{compression}.tfrecord"
        rng = np.random.default_rng(0)
        write(path, [rng.bytes(5000)], compression)
        content = bytearray(path.read_bytes())
        content[2000] ^= 0xFF
        path.write_bytes(content)
        with pytest.raises(jt.errors.DataLossError, match=rf"{compression}\.tfrecord"):
            read(path, compression)


def test_a_file_that_is_no_tfrecord_is_noticed(tmp_path):
    (tmp_path / "a.txt").write_text("just some text, which is long enough to hold a header")
    with pytest.raises(jt.errors.DataLossError, match=r"a\.txt"):
        read(tmp_path / "a.txt")
    (tmp_path / "b.zz").write_bytes(zlib.compress(b"just some text, compressed"))
    with pytest.raises(jt.errors.DataLossError, match=r"b\.zz"):
        read(tmp_path / "b.zz", "ZLIB")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(jt.errors.NotFoundError, match=r"missing\.tfrecord"):
        read(tmp_path / "missing.tfrecord")


# --- Examples --------------------------------------------------------------------------------


def example(i):
    def ints(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def floats(values):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    def texts(values):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    features = {"id": ints([i]), "x": floats([i, i + 0.5]), "name": texts([f"n{i}".encode()])}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


FEATURES = {
    "id": tf.io.FixedLenFeature([], tf.int64),
    "x": tf.io.FixedLenFeature([2], tf.float32),
    "name": tf.io.FixedLenFeature([], tf.string),
}


def test_examples_can_be_parsed_by_tensorflow_in_a_map(tmp_path):
    name = write(tmp_path / "a", [example(i) for i in range(5)])
    dataset = jt.data.TFRecordDataset(name).batch(3)
    first, last = dataset.map(lambda records: tf.io.parse_example(records, FEATURES))
    np.testing.assert_array_equal(first["id"], [0, 1, 2])
    np.testing.assert_array_equal(last["x"], np.array([[3, 3.5], [4, 4.5]], np.float32))
    assert last["name"].tolist() == [b"n3", b"n4"]
    assert [first["id"].dtype, first["x"].dtype] == [np.int64, np.float32]


def test_single_examples_can_be_parsed_too(tmp_path):
    name = write(tmp_path / "a", [example(i) for i in range(2)])
    parsed = jt.data.TFRecordDataset(name).map(
        lambda record: tf.io.parse_single_example(record, FEATURES)
    )
    first, second = parsed
    assert (first["id"], second["id"], second["name"]) == (0, 1, b"n1")
    (batch,) = parsed.batch(2)
    assert batch["x"].shape == (2, 2)


@pytest.mark.parametrize("policy", ["AUTO", "FILE", "DATA"])
def test_workers_share_the_records_of_files(tmp_path, policy):
    names = [write(tmp_path / n, [bytes([i]) for i in range(5)]) for n in "abc"]
    dataset = jt.data.TFRecordDataset(names).map(lambda record: np.int32(record[0])).batch(4)
    own = steps_of_workers(with_policy(dataset, policy), 2, 1)
    flat = [number for one in own for step in one for part in step for number in part]
    assert sorted(flat) == sorted(list(range(5)) * 3)
