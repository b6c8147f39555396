"""The names under which `tf.train` knows them."""

from .cluster import ClusterSpec

__all__ = ["ClusterSpec"]
