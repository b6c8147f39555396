"""Which tasks a cluster has, where they are, and which of them this process is."""

from ._detect import default_resolver
from ._kubernetes import KubernetesClusterResolver, KubernetesExecutableLocation
from ._resolver import ClusterResolver, SimpleClusterResolver
from ._slurm import SlurmClusterResolver
from ._spec import ClusterSpec
from ._task import Task
from ._tf_config import TFConfigClusterResolver
from ._union import UnionResolver
from ._workers import Workers, resolve, workers_of

__all__ = [
    "ClusterResolver",
    "ClusterSpec",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "Task",
    "UnionResolver",
    "Workers",
    "default_resolver",
    "resolve",
    "workers_of",
]
