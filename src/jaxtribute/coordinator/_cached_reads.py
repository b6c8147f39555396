"""Reading variables of parameter servers once."""

from __future__ import annotations

from collections.abc import Generator

from .._context import lasting
from ..variables._caching import cached_reads

__all__ = ["experimental_cache_variable_reads"]


@lasting
def experimental_cache_variable_reads() -> Generator[None]:
    """Have variables of parameter servers keep, while the block runs, the value first read.

    For functions that read the same variables again and again where a value that is some steps old
    will do, such as an evaluation.

    >>> with jt.testing.LocalCluster(workers=1, ps=1) as cluster:
    ...     strategy = cluster.strategy()
    ...     with strategy.scope():
    ...         v = jt.Variable(1.0)
    ...     with jt.experimental.coordinator.experimental_cache_variable_reads():
    ...         before = float(v)
    ...         _ = v.assign(5.0)
    ...         print(before, float(v))
    ...     print(float(v))
    1.0 1.0
    5.0

    Raises:
      ValueError: inside another such block.
    """
    with cached_reads():
        yield
