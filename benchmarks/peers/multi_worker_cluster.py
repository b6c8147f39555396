"""Who a worker is, for peers that do not read `TF_CONFIG` by themselves."""

from __future__ import annotations

import json
import os
from typing import NamedTuple


class Cluster(NamedTuple):
    """The workers, and which of them this process is."""

    chief: str
    workers: int
    index: int


def this_cluster() -> Cluster:
    """What `TF_CONFIG` says."""
    config = json.loads(os.environ["TF_CONFIG"])
    addresses = config["cluster"]["worker"]
    return Cluster(addresses[0], len(addresses), config["task"]["index"])
