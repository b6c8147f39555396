"""The names under which `tf.data.experimental` knows them."""

from ._ops import INFINITE_CARDINALITY, SHARD_HINT, UNKNOWN_CARDINALITY
from ._options import AutoShardPolicy, DistributeOptions

__all__ = [
    "INFINITE_CARDINALITY",
    "SHARD_HINT",
    "UNKNOWN_CARDINALITY",
    "AutoShardPolicy",
    "DistributeOptions",
]
