"""The secret that the tasks of a job recognise each other by."""

from __future__ import annotations

import os
import secrets

from .._job import CLUSTER_KEY
from ..rpc import ClusterKey

__all__ = ["job_secret"]


def job_secret() -> str:
    """Return the secret that this process was given, or a new one.

    It goes to actors as an argument: what Ray is told of environments, it shows to everybody.

    Raises:
      InvalidArgumentError: when the one it was given can be guessed.
    """
    if given := os.environ.get(CLUSTER_KEY, "").strip():
        ClusterKey.load()
        return given
    return secrets.token_hex(32)
