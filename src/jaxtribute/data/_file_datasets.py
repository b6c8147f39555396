"""Datasets of what files hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from . import _files, _ops
from ._dataset import Dataset

__all__ = ["TFRecordDataset", "TextLineDataset"]


class _FileDataset(Dataset):
    """What a kind of reader finds in files."""

    _reader: Callable[[str], _ops.Reader]

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
    ) -> None:
        reader = type(self)._reader(_files.check_compression(compression_type))
        super().__init__(_ops.ReadFiles(_names(filenames), reader))


class TextLineDataset(_FileDataset):
    r"""The lines of text files, as bytes without their ends.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "poem.txt"
    >>> _ = path.write_text("one\ntwo\n")
    >>> list(jt.data.TextLineDataset(path))
    [b'one', b'two']

    Args:
      filenames: the name of a file, a list of names, or a dataset of them; read in this order.
      compression_type: None, "GZIP" or "ZLIB".
      buffer_size: accepted for compatibility.
      num_parallel_reads: accepted for compatibility; `Dataset.interleave` mixes files.

    Raises:
      NotFoundError: when a file that is to be read does not exist.
    """

    _reader = _files.TextLines


class TFRecordDataset(_FileDataset):
    """The records of TFRecord files, as bytes.

    >>> jt.data.TFRecordDataset(["train-0.tfrecord", "train-1.tfrecord"])
    <TFRecordDataset of ReadFiles <- FileNames>

    Args:
      filenames: the name of a file, a list of names, or a dataset of them; read in this order.
      compression_type: None, "GZIP" or "ZLIB".
      buffer_size: accepted for compatibility.
      num_parallel_reads: accepted for compatibility; `Dataset.interleave` mixes files.

    Raises:
      NotFoundError: when a file that is to be read does not exist.
      DataLossError: when a record does not fit its checksum.
    """

    _reader = _files.TFRecords


def _names(filenames: Any) -> _ops.Op:
    if isinstance(filenames, Dataset):
        return filenames.op
    if isinstance(filenames, (str, bytes, os.PathLike)):
        filenames = [filenames]
    return _ops.FileNames(tuple(os.fsencode(name) for name in filenames))
