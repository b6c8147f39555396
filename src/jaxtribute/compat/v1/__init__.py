"""Names under which programs for TensorFlow 1 know the library.

>>> strategy = jt.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
>>> iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(4).batch(4))
>>> iterator.initialize()
[]
>>> strategy.reduce("SUM", strategy.experimental_run(jnp.sum, iterator))
Array(6, dtype=int32)

What has a successor says so, once in each process, with a `DeprecationWarning`.
"""

from . import distribute
from ._config import ConfigProto, ExperimentalConfig

__all__ = ["ConfigProto", "ExperimentalConfig", "distribute"]
