"""Resolvers: where the description of a cluster comes from."""

from .cluster import (
    ClusterResolver,
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    UnionResolver,
)

__all__ = [
    "ClusterResolver",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "UnionResolver",
]
