"""Variables divided into shards, and lookups of their rows."""

from ._embedding import embedding_lookup, safe_embedding_lookup_sparse
from ._partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
    div_sizes,
    number_of_shards,
)
from ._ragged import RaggedIds
from ._variable import ShardedVariable

__all__ = [
    "FixedShardsPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Partitioner",
    "RaggedIds",
    "ShardedVariable",
    "div_sizes",
    "embedding_lookup",
    "number_of_shards",
    "safe_embedding_lookup_sparse",
]
