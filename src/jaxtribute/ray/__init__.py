"""Training on an existing Ray cluster; needs `pip install 'jaxtribute[ray]'`.

`run` trains with several workers, each of them an actor of Ray. `RayClusterResolver` places the
workers and the parameter servers of a `ParameterServerStrategy`.

>>> import ray
>>> _ = ray.init(ignore_reinit_error=True)  # address="auto" on a machine of a cluster
>>> def train(amount):
...     strategy = jt.MultiWorkerMirroredStrategy()
...     total = strategy.run(lambda: jt.get_replica_context().all_reduce("SUM", amount))
...     return float(strategy.experimental_local_results(total)[0])
>>> jt.ray.run(train, workers=2, args=(21.0,))
[42.0, 42.0]
"""

from ._resolver import RayClusterResolver
from ._run import run

__all__ = ["RayClusterResolver", "run"]
