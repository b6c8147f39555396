"""Datasets of files: list_files, TextLineDataset, TFRecordDataset."""

import gzip
import os
import random
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest

import jaxtribute as jt
from tests.data._support import read, write_lines, write_records

Dataset, TextLineDataset = jt.data.Dataset, jt.data.TextLineDataset
TFRecordDataset = jt.data.TFRecordDataset

COMPRESSIONS = pytest.mark.parametrize(
    ("compression", "compress"),
    [(None, bytes), ("", bytes), ("GZIP", gzip.compress), ("ZLIB", zlib.compress)],
)


def names(dataset):
    return [Path(os.fsdecode(name)).name for name in dataset]


@pytest.fixture
def folder(tmp_path):
    for name in ("b.txt", "a.txt", "c.csv"):
        write_lines(tmp_path / name, [f"{name} {i}" for i in range(3)])
    return tmp_path


class TestListFiles:
    def test_names_are_bytes_that_readers_take(self, folder):
        (name,) = Dataset.list_files(str(folder / "c.*"))
        assert name == os.fsencode(folder / "c.csv")
        assert read(TextLineDataset(Dataset.list_files(folder / "c.*")))[0] == b"c.csv 0"

    def test_are_sorted_when_not_shuffled(self, folder):
        assert names(Dataset.list_files(folder / "*.txt", shuffle=False)) == ["a.txt", "b.txt"]

    def test_takes_several_patterns_and_lists_each_file_once(self, folder):
        patterns = [folder / "*.txt", str(folder / "a*"), os.fsencode(folder / "c.csv")]
        dataset = Dataset.list_files(patterns, shuffle=False)
        assert names(dataset) == ["a.txt", "b.txt", "c.csv"]
        assert len(dataset) == 3

    def test_are_shuffled_by_default_at_each_pass(self, tmp_path):
        for i in range(8):
            (tmp_path / f"{i}.txt").touch()
        dataset = Dataset.list_files(tmp_path / "*", seed=1)
        first, second = names(dataset), names(dataset)
        assert sorted(first) == sorted(second) == [f"{i}.txt" for i in range(8)]
        assert first != second
        assert names(Dataset.list_files(tmp_path / "*", seed=1)) == first

    def test_a_pattern_without_a_file_is_named(self, folder):
        with pytest.raises(jt.errors.NotFoundError, match=r"\*\.parquet"):
            Dataset.list_files([folder / "*.txt", folder / "*.parquet"])

    def test_element_spec_is_text(self, folder):
        assert Dataset.list_files(folder / "*").element_spec == jt.TensorSpec((), np.dtype(object))

    def test_names_that_are_not_utf8(self, tmp_path):
        name = os.path.join(os.fsencode(tmp_path), b"\xff.txt")
        with open(name, "wb") as file:
            file.write(b"found\n")
        assert read(Dataset.list_files(tmp_path / "*.txt")) == [name]
        assert read(TextLineDataset(Dataset.list_files(tmp_path / "*.txt"))) == [b"found"]
        assert read(TextLineDataset(name)) == [b"found"]


class TestTextLines:
    @COMPRESSIONS
    def test_are_bytes_without_their_ends(self, tmp_path, compression, compress):
        path = tmp_path / "lines"
        path.write_bytes(compress("one\n\ntwo words\nthrée\n".encode()))
        dataset = TextLineDataset(path, compression)
        assert read(dataset) == [b"one", b"", b"two words", "thrée".encode()]
        assert read(dataset) == read(dataset), "each pass reads the file again"

    @pytest.mark.parametrize(
        ("content", "lines"),
        [
            pytest.param(b"", [], id="empty file"),
            pytest.param(b"\n", [b""], id="one empty line"),
            pytest.param(b"one", [b"one"], id="no newline"),
            pytest.param(b"one\ntwo", [b"one", b"two"], id="last without newline"),
            pytest.param(b"one\r\n\r\ntwo\r\n", [b"one", b"", b"two"], id="CRLF"),
            pytest.param(b"one\r\ntwo", [b"one", b"two"], id="CRLF, last without"),
            pytest.param(b"a\0b\xff\n", [b"a\0b\xff"], id="any bytes"),
            pytest.param(b"x" * 300_000 + b"\ny\n", [b"x" * 300_000, b"y"], id="long line"),
        ],
    )
    def test_ends_of_lines(self, tmp_path, content, lines):
        path = tmp_path / "lines"
        path.write_bytes(content)
        assert read(TextLineDataset(path)) == lines

    def test_files_follow_each_other(self, folder):
        expected = [f"{name} {i}".encode() for name in ("b.txt", "a.txt") for i in range(3)]
        paths = [folder / "b.txt", folder / "a.txt"]
        for given in (
            paths,
            tuple(map(str, paths)),
            [os.fsencode(path) for path in paths],
            np.array([str(path) for path in paths]),
            Dataset.from_tensor_slices([str(path) for path in paths]),
        ):
            assert read(TextLineDataset(given)) == expected
        assert read(TextLineDataset(str(folder / "a.txt"))) == expected[3:]

    def test_empty_files_between_others(self, tmp_path):
        contents = ["", "a\n", "", "", "b\n", ""]
        paths = [tmp_path / str(i) for i in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_text(content)
        assert read(TextLineDataset(paths)) == [b"a", b"b"]

    def test_skip_the_header_of_each_file(self, folder):
        dataset = Dataset.list_files(folder / "*.txt", shuffle=False).interleave(
            lambda name: TextLineDataset(name).skip(1), cycle_length=2
        )
        assert read(dataset) == [b"a.txt 1", b"b.txt 1", b"a.txt 2", b"b.txt 2"]

    def test_a_name_in_a_dataset_may_be_any_text(self, folder):
        dataset = Dataset.from_tensors(str(folder / "a.txt")).flat_map(TextLineDataset)
        assert len(read(dataset)) == 3

    def test_can_be_parsed_and_batched(self, tmp_path):
        write_lines(tmp_path / "n", range(5))
        assert read(TextLineDataset(tmp_path / "n").map(int).batch(2)) == [[0, 1], [2, 3], [4]]
        assert read(TextLineDataset(tmp_path / "n").batch(3)) == [[b"0", b"1", b"2"], [b"3", b"4"]]

    def test_files_are_opened_when_they_are_read(self, folder):
        dataset = TextLineDataset([folder / "a.txt", folder / "missing"])
        assert read(dataset.take(3)) == [f"a.txt {i}".encode() for i in range(3)]
        with pytest.raises(jt.errors.NotFoundError, match="missing"):
            read(dataset)

    def test_files_are_closed(self, folder):
        def is_open():
            return str(folder / "a.txt") in {file.path for file in psutil.Process().open_files()}

        iterator = iter(TextLineDataset(folder / "a.txt").map(lambda line: line))
        next(iterator)
        assert is_open()
        iterator.close()
        assert not is_open()
        assert len(read(TextLineDataset(folder / "a.txt"))) == 3
        assert not is_open()

    def test_repr(self, folder):
        assert "TextLineDataset" in repr(TextLineDataset(folder / "a.txt"))


class TestTFRecords:
    RECORDS = (b"first", b"", b"\0\xff" * 10, b"x" * 100_000, b"last")

    @COMPRESSIONS
    def test_are_bytes(self, tmp_path, compression, compress):
        path = write_records(tmp_path / "records", self.RECORDS, compress)
        dataset = TFRecordDataset(path, compression)
        assert read(dataset) == list(self.RECORDS)
        assert read(dataset) == list(self.RECORDS)

    def test_files_follow_each_other(self, tmp_path):
        paths = [write_records(tmp_path / str(i), [b"%d" % i] * i) for i in range(4)]
        assert read(TFRecordDataset(paths)) == [b"1", b"2", b"2", b"3", b"3", b"3"]
        mixed = Dataset.list_files(tmp_path / "*", shuffle=False).interleave(TFRecordDataset)
        assert read(mixed) == [b"1", b"2", b"3", b"2", b"3", b"3"]

    def test_an_empty_file_has_no_records(self, tmp_path):
        (tmp_path / "empty").touch()
        assert read(TFRecordDataset(tmp_path / "empty")) == []

    def test_a_file_of_tensorflow(self, tmp_path):
        """Written by tf.io.TFRecordWriter of TensorFlow 2.21."""
        path = tmp_path / "records"
        path.write_bytes(
            bytes.fromhex(
                "0300000000000000b099490e6162636e57f121"  # abc
                "000000000000000029039807d8ea82a2"  # nothing
            )
        )
        assert read(TFRecordDataset(path)) == [b"abc", b""]
        assert path.read_bytes() == write_records(tmp_path / "ours", [b"abc", b""]).read_bytes()

    @pytest.mark.parametrize(
        ("damage", "why"),
        [
            pytest.param(lambda data: data[:-1], "ends within a record", id="cut in checksum"),
            pytest.param(lambda data: data[:-6], "ends within a record", id="cut in record"),
            pytest.param(lambda data: data[:26], "ends within the header", id="cut in header"),
            pytest.param(lambda data: _flipped(data, 22), "length", id="length"),
            pytest.param(lambda data: _flipped(data, 31), "length", id="checksum of length"),
            pytest.param(lambda data: _flipped(data, 35), "checksum", id="record"),
            pytest.param(lambda data: _flipped(data, len(data) - 1), "checksum", id="checksum"),
        ],
    )
    def test_damage_is_found_and_located(self, tmp_path, damage, why):
        path = write_records(tmp_path / "records", [b"first!", b"second"])  # 22 bytes each
        path.write_bytes(damage(path.read_bytes()))
        iterator = iter(TFRecordDataset(path))
        assert next(iterator) == b"first!"
        with pytest.raises(jt.errors.DataLossError, match=why) as raised:
            next(iterator)
        assert "byte 22" in str(raised.value)
        assert str(path) in str(raised.value)

    def test_a_text_file_is_not_taken_for_records(self, tmp_path):
        path = write_lines(tmp_path / "text", ["some text that is long enough"])
        with pytest.raises(jt.errors.DataLossError, match="byte 0"):
            read(TFRecordDataset(path))

    def test_random_damage_never_goes_unnoticed(self, tmp_path):
        path = write_records(tmp_path / "records", [b"abcdefgh", b"ijklmnop"])
        data, chance = path.read_bytes(), random.Random(1)
        for _ in range(100):
            position = chance.randrange(len(data))
            path.write_bytes(_flipped(data, position, 1 << chance.randrange(8)))
            with pytest.raises(jt.errors.DataLossError):
                read(TFRecordDataset(path))


def _flipped(data: bytes, position: int, bits: int = 0x10) -> bytes:
    changed = bytearray(data)
    changed[position] ^= bits
    return bytes(changed)


class TestUnreadableFiles:
    READERS = pytest.mark.parametrize("reader", [TextLineDataset, TFRecordDataset])

    @READERS
    @pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
    def test_a_missing_file_is_named(self, tmp_path, reader, compression):
        with pytest.raises(jt.errors.NotFoundError, match="nowhere"):
            read(reader(tmp_path / "nowhere", compression))

    @READERS
    @pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
    def test_a_directory_is_named(self, tmp_path, reader, compression):
        with pytest.raises(jt.errors.InvalidArgumentError, match="list_files"):
            read(reader(tmp_path, compression))

    @READERS
    @pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
    def test_what_is_not_compressed_is_named(self, tmp_path, reader, compression):
        path = write_lines(tmp_path / "text", ["plain"])
        with pytest.raises(jt.errors.DataLossError, match="byte 0") as raised:
            read(reader(path, compression))
        assert str(path) in str(raised.value)

    @READERS
    @pytest.mark.parametrize(
        ("compression", "compress"), [("GZIP", gzip.compress), ("ZLIB", zlib.compress)]
    )
    def test_a_cut_file_is_named(self, tmp_path, reader, compression, compress):
        noise = random.Random(1).randbytes(200_000)
        path = write_records(tmp_path / "cut", [noise, b"last"], compress)
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(jt.errors.DataLossError, match="cut"):
            read(reader(path, compression))

    @READERS
    @pytest.mark.parametrize("compression", ["gzip", "BZ2", 1])
    def test_an_unknown_compression_is_refused_at_once(self, reader, compression):
        with pytest.raises(jt.errors.InvalidArgumentError, match="GZIP"):
            reader("file", compression)

    @READERS
    def test_elements_that_are_no_names_are_refused(self, reader):
        with pytest.raises(jt.errors.InvalidArgumentError, match="name of a file"):
            read(reader(Dataset.range(3)))

    @READERS
    @pytest.mark.parametrize("given", [5, None, [1, 2], [["a"]]])
    def test_names_that_are_no_text_are_refused_at_once(self, reader, given):
        with pytest.raises(TypeError):
            reader(given)
