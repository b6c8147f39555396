"""What exists once on each worker: datasets, their iterators, and whatever a function makes.

The coordinator holds a number and a packed function. A worker calls the function when a closure
first needs the value, and again if it was started anew in the meantime.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from .._creation import variable_creator_scope
from .._jax_compat import is_tracing
from ..data import Dataset
from ..data._ops import unset_seeds, with_unset_seeds
from ..data._randomness import fresh_seed, mix
from ..errors import UnimplementedError
from ..input import DistributedDataset
from ..input._sources import as_op
from ..strategies._deferred_input import PerWorkerInput
from ._packing import Packed, PackedFunction, Packer, Resource
from ._remote_value import RemoteValue

__all__ = [
    "PerWorkerDataset",
    "PerWorkerIterator",
    "PerWorkerValue",
    "PerWorkerValues",
    "Resources",
]

_READ_AHEAD = 2

_numbers = itertools.count()  # of all coordinators, as a worker may keep what an earlier one made


class _Scheduler(Protocol):
    def schedule(self, function: PackedFunction, arguments: Packed) -> RemoteValue: ...
    def drop_resource(self, number: int) -> None: ...


class Resources:
    """Makes the coordinator's side of what exists on workers.

    Args:
      packer: packs the functions.
      scheduler: told when the last reference to something is gone; asks workers.
    """

    def __init__(self, packer: Packer, scheduler: _Scheduler) -> None:
        self._packer = packer
        self._scheduler = scheduler

    def ask(self, function: Callable[[Any], Any], resource: Resource) -> Any:
        """Return what a function says of a resource on some worker."""
        arguments = self._packer.arguments((resource,), {})
        return self._scheduler.schedule(self._packer.function(function), arguments).fetch()

    def register(self, resource: Resource, make: Callable[[], Any]) -> None:
        """Give a resource its number, and a function that makes it on workers."""
        Resource.__init__(resource, next(_numbers), self._packer.function(make))
        dropped = weakref.finalize(resource, self._scheduler.drop_resource, resource.number)
        dropped.atexit = False


class PerWorkerValues(Resource):
    """One value on each worker; as an argument, a function gets that of the worker it runs on.

    Made by `ClusterCoordinator.create_per_worker_values`, and by iterating what
    `create_per_worker_dataset` returns.

    >>> with jt.testing.LocalCluster(workers=2, ps=1) as cluster:
    ...     coordinator = cluster.coordinator()
    ...     scale = coordinator.create_per_worker_values(lambda: jnp.float32(10))
    ...     coordinator.schedule(lambda x, y: x * y, args=(scale, 2)).fetch()
    np.float32(20.0)
    """

    instead_of_saving = (  # what a checkpoint says that is given one
        "What is on the workers is made anew as they come and go, and has no one state. Save what "
        "is on the coordinator: for data an iterator, `iter(dataset)`, whose batches are passed to "
        "scheduled functions, `coordinator.schedule(step, args=(next(iterator),))`."
    )

    def __init__(self, resources: Resources, make: Callable[[], Any]) -> None:
        self._resources = resources
        resources.register(self, make)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"A {type(self).__name__} stands for what is on the workers, and can only be sent to "
            "them, as an argument of a scheduled function."
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.number}>"


PerWorkerValue = PerWorkerValues
"""The name that `PerWorkerValues` has outside of `experimental`."""


class PerWorkerIterator(PerWorkerValues):
    """An iterator on each worker; `next` of it is called in scheduled functions.

    >>> with jt.testing.LocalCluster(workers=1, ps=1) as cluster:
    ...     coordinator = cluster.coordinator()
    ...     iterator = iter(coordinator.create_per_worker_dataset(jt.data.Dataset.range(3)))
    ...     values = [coordinator.schedule(next, args=(iterator,)) for _ in range(3)]
    ...     print(*coordinator.fetch(values))
    0 1 2
    """

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> Any:
        raise UnimplementedError(
            "The iterators are on the workers. Pass this to a scheduled function, and call `next` "
            "there."
        )

    def get_next(self) -> Any:
        """Refuse: elements are on the workers.

        Raises:
          UnimplementedError: always.
        """
        return next(self)


class PerWorkerDataset(PerWorkerValues):
    """A dataset on each worker, each of which has all the elements.

    Made by `ClusterCoordinator.create_per_worker_dataset`. Iterating it gives an iterator on each
    worker, to be passed to scheduled functions:

    >>> with jt.testing.LocalCluster(workers=2, ps=1) as cluster:
    ...     coordinator = cluster.coordinator()
    ...     dataset = coordinator.create_per_worker_dataset(jt.data.Dataset.range(1, 4))
    ...     iterator = iter(dataset)
    ...     values = [coordinator.schedule(next, args=(iterator,)) for _ in range(2)]
    ...     sorted(coordinator.fetch(values)) in ([1, 1], [1, 2])
    True
    """

    def __init__(self, resources: Resources, source: Any) -> None:
        self._source = source
        self._element_spec: Any = None
        super().__init__(resources, partial(make_dataset, source))

    @property
    def element_spec(self) -> Any:
        """The structure of the elements; a worker is asked for it if a function makes the dataset.

        Raises:
          Exception: what the function raises.
        """
        if self._element_spec is None:
            if isinstance(self._source, Dataset):
                self._element_spec = self._source.element_spec
            else:
                self._element_spec = self._resources.ask(_element_spec, self)
        return self._element_spec

    def __iter__(self) -> PerWorkerIterator:
        if is_tracing():
            raise RuntimeError(
                "iter() of a per-worker dataset was called inside a function that is being traced. "
                "Call it on the coordinator, and pass the iterator to the scheduled function."
            )
        return PerWorkerIterator(self._resources, partial(make_iterator, self))


def check_source(source: Any) -> None:
    """Refuse what is no dataset.

    Raises:
      ValueError: when it is none, and no function that could make one.
    """
    if isinstance(source, DistributedDataset) or not (
        isinstance(source, (Dataset, PerWorkerInput)) or callable(source)
    ):
        raise ValueError(
            "create_per_worker_dataset takes a function without arguments that returns a dataset, "
            "a jt.data.Dataset, or what the strategy's experimental_distribute_dataset or "
            f"distribute_datasets_from_function returned, got {source!r}."
        )


# --- On a worker -----------------------------------------------------------------------------


def make_dataset(source: Any) -> Any:
    """Return the dataset of this worker, which shuffles unlike those of others.

    One that is made again, as the worker returned, has another order as well: with the same one,
    examples at its end would be read less often the more often the worker is lost.

    Raises:
      ValueError: when a function creates variables.
    """
    with variable_creator_scope(_refuse_variables):
        made = source if isinstance(source, (Dataset, PerWorkerInput)) else source()
        if isinstance(made, PerWorkerInput):
            made = made.build()
    number = fresh_seed()
    if isinstance(made, DistributedDataset):
        made.reseed(number)
        return made
    op = as_op(made)
    return Dataset(with_unset_seeds(op, [mix(seed, number) for seed in unset_seeds(op)]))


def _element_spec(dataset: Any) -> Any:
    return dataset.element_spec


def make_iterator(dataset: Any) -> Any:
    """Return an iterator over the dataset of this worker, whose next elements are read ahead."""
    return iter(dataset.prefetch(_READ_AHEAD) if isinstance(dataset, Dataset) else dataset)


def _refuse_variables(next_creator: Callable[..., Any], **spec: Any) -> Any:
    raise ValueError(
        f"The variable {spec.get('name') or 'Variable'!r} was created in a function that makes a "
        "dataset on a worker. Create variables on the coordinator, in the strategy's scope."
    )
