"""The names under which `tf.data.experimental` knows them."""

from ._dataset import AUTOTUNE, Dataset
from ._ops import INFINITE_CARDINALITY, SHARD_HINT, UNKNOWN_CARDINALITY
from ._options import AutoShardPolicy, DistributeOptions

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "SHARD_HINT",
    "UNKNOWN_CARDINALITY",
    "AutoShardPolicy",
    "DistributeOptions",
    "cardinality",
]


def cardinality(dataset: Dataset) -> int:
    """Return the number of elements of a dataset; see `Dataset.cardinality`.

    >>> jt.data.experimental.cardinality(jt.data.Dataset.range(3))
    3
    """
    return dataset.cardinality()
