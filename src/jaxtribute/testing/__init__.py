"""Parameter-server clusters for tests: in this process, or in processes of their own."""

from ._local_cluster import LocalCluster
from ._process_cluster import ProcessCluster

__all__ = ["LocalCluster", "ProcessCluster"]
