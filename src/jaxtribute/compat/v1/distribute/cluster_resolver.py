"""The path under which `tf.compat.v1` keeps `jt.cluster_resolver`."""

from ....cluster_resolver import *  # noqa: F403
from ....cluster_resolver import __all__ as __all__
