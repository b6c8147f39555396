"""Which tasks a cluster has, where they are, and which of them this process is."""

from ._resolver import ClusterResolver, SimpleClusterResolver
from ._spec import ClusterSpec
from ._tf_config import TFConfigClusterResolver
from ._union import UnionResolver

__all__ = [
    "ClusterResolver",
    "ClusterSpec",
    "SimpleClusterResolver",
    "TFConfigClusterResolver",
    "UnionResolver",
]
