"""Input pipelines: `jt.data.Dataset`, named after tf.data."""

from . import experimental
from ._dataset import AUTOTUNE, Dataset
from ._file_datasets import TextLineDataset, TFRecordDataset
from ._options import AutoShardPolicy, DistributeOptions, Options
from .experimental import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "AutoShardPolicy",
    "Dataset",
    "DistributeOptions",
    "Options",
    "TFRecordDataset",
    "TextLineDataset",
    "experimental",
]
