"""`ClusterCoordinator`: schedules functions on the workers of a parameter-server cluster."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _tree
from .._jax_compat import is_tracing
from .._limits import join_limit, say
from ..remote import CoordinatorSession
from ..rpc import Connections
from ..strategies import ParameterServerStrategy
from ._dispatcher import Cluster, Dispatcher
from ._messages import FromWorker
from ._packing import Packer
from ._per_worker import PerWorkerDataset, PerWorkerValues, Resources, check_source
from ._remote_value import RemoteValue
from ._restore_policy import RestorePolicy
from ._restorer import Restorer

__all__ = ["ClusterCoordinator"]


class _Life:
    """What outlives the coordinator of a strategy: numbers that must not be used again."""

    def __init__(self) -> None:
        self.coordinator: Callable[[], ClusterCoordinator | None] = lambda: None
        self.next_number: Callable[[], int] = lambda: 0  # of closures


_lives: weakref.WeakKeyDictionary[ParameterServerStrategy, _Life] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def known_coordinator(strategy: ParameterServerStrategy) -> ClusterCoordinator | None:
    """Return the coordinator of a strategy, if it has one."""
    with _lock:
        life = _lives.get(strategy)
        return None if life is None else life.coordinator()


class ClusterCoordinator:
    """Schedules functions on the workers of a cluster, and survives the loss of any of them.

    >>> with jt.testing.LocalCluster(workers=2, ps=1) as cluster:
    ...     strategy = cluster.strategy()
    ...     coordinator = cluster.coordinator(strategy)
    ...     with strategy.scope():
    ...         total = jt.Variable(0.0)
    ...     for x in range(5):
    ...         _ = coordinator.schedule(lambda x: total.assign_add(x), args=(float(x),))
    ...     coordinator.join()
    ...     print(total.numpy())
    10.0

    A function may run more than once if its worker is lost, but what it does to variables happens
    once. The first error that a function raises is raised by the next `schedule`, `join` or `done`;
    what had not run by then is cancelled, and the coordinator can be used on.

    There is one for each strategy: a second one is the same object. It stops when it is no longer
    used, or closed, or at the end of the program.

    Args:
      strategy: a `ParameterServerStrategy`.
      restore_policy: what to do when a parameter server is lost; without it, that is an error.

    Raises:
      ValueError: for another strategy, or when the strategy has a coordinator with another policy.
      DeadlineExceededError: when no worker is there in time.
    """

    _dispatcher: Dispatcher

    def __new__(
        cls, strategy: ParameterServerStrategy, restore_policy: RestorePolicy | None = None
    ) -> ClusterCoordinator:
        if not isinstance(strategy, ParameterServerStrategy) or strategy.is_on_worker:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                "ClusterCoordinator coordinates the cluster of a ParameterServerStrategy, on the "
                f"coordinator; got {strategy!r}."
            )
        with _lock:
            life = _lives.setdefault(strategy, _Life())
            known = life.coordinator()
            if known is None:
                known = super().__new__(cls)
                known._begin(strategy, restore_policy, life)
                life.coordinator = weakref.ref(known)
            elif restore_policy is not None and restore_policy != known._policy:
                raise ValueError(
                    f"The strategy has a coordinator already, with restore_policy={known._policy!r}"
                    f", so it cannot have one with {restore_policy!r}."
                )
            return known

    def _begin(
        self, strategy: ParameterServerStrategy, policy: RestorePolicy | None, life: _Life
    ) -> None:
        session = strategy.session
        assert isinstance(session, CoordinatorSession)
        self._strategy = strategy
        self._policy = policy
        self._packer = Packer()
        restorer = None
        if policy is not None:
            directory = os.path.abspath(policy.directory)
            session.keep_snapshots(directory, policy.every_seconds)
            restorer = Restorer(session, directory, policy.every_seconds, policy.wait_seconds)
        cluster = Cluster(
            session.origin,
            strategy.worker_addresses,
            strategy.server_addresses,
            strategy.num_replicas_in_sync,
        )
        dispatcher = Dispatcher(
            cluster,
            session,
            self._packer,
            restore=None if restorer is None else restorer.begin,
            patience=None if policy is None else policy.wait_seconds,
            built=strategy.note_built,
            clocks=session.note_clocks,
            first=life.next_number(),
        )
        queue = dispatcher.closures.queue
        life.next_number = lambda: queue.next
        if restorer is not None:
            restorer.report = dispatcher.restored
        self._dispatcher = dispatcher
        self._resources = Resources(self._packer, dispatcher)
        connections = Connections(
            "chief", session.key, dispatcher, FromWorker, encryption=session.encryption
        )
        # It does not hold this object, so that it is noticed when nobody else does.
        self._end = _End(dispatcher, connections, restorer)
        self._dropped = weakref.finalize(self, self._end.come_soon)
        self._dropped.atexit = False
        try:
            dispatcher.start(connections)
            for view in dispatcher.workers.values():
                connections.connect(view.task, view.address)
            for index, address in enumerate(strategy.server_addresses):
                connections.connect(f"ps:{index}", address)
            dispatcher.wait_for_a_worker(join_limit())
        except BaseException:
            self.close()
            raise
        lines = "".join(f"\n  {line}" for line in dispatcher.who_is_there())
        say(f"this process coordinates {len(dispatcher.workers)} workers:{lines}")

    @property
    def strategy(self) -> ParameterServerStrategy:
        """The strategy it was made with."""
        return self._strategy

    # --- Closures --------------------------------------------------------------------------

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RemoteValue:
        """Have a function called on some worker, in the strategy's scope; return at once.

        The function is sent as it is now: a `jt.function` with what it captures when it is first
        scheduled, any other with what it refers to at this moment. Big arrays are sent to each
        worker once. Workers must be able to import the modules that it uses, apart from the main
        script and what lies beside it.

        Args:
          fn: a `jt.function` or any other function.
          args: its arguments. Of `PerWorkerValues` it gets that of its worker.
          kwargs: its keyword arguments.

        Returns:
          A `RemoteValue`, with which to wait for the result.

        Raises:
          TypeError: when the function or an argument cannot be sent.
          ValueError: when a `RemoteValue` is among the arguments.
          Exception: the first error of a function that was scheduled before, with a note that says
            so, also if `fetch` raised it already. This function is then not scheduled.
        """
        if not callable(fn):
            raise TypeError(f"schedule takes a function, got {fn!r}.")
        if is_tracing():
            raise RuntimeError(
                "schedule was called inside a function that is being traced, so it would be called "
                "once and not each time. Call it outside of jt.function and jax.jit."
            )
        function = self._packer.function(fn)
        return self._dispatcher.schedule(function, self._packer.arguments(args or (), kwargs or {}))

    def join(self) -> None:
        """Wait until all scheduled functions have run.

        Raises:
          Exception: the first error that a function raised; what had not run is cancelled.
          PSUnavailableError: when a parameter server is lost and cannot be restored.
        """
        self._dispatcher.closures.join()
        self._strategy.finish_building()

    def done(self) -> bool:
        """Tell whether all scheduled functions have run.

        Raises:
          Exception: as `join` does.
        """
        is_done = self._dispatcher.closures.done()
        if is_done:
            self._strategy.finish_building()
        return is_done

    def wait_for_fewer(self, most: int) -> int:
        """Wait until fewer functions than so many have not ended, and return how many have not.

        Whoever passes data with functions can so keep little of it waiting.

        Raises:
          Exception: as `join` does.
        """
        return self._dispatcher.closures.wait_for_fewer(most)

    def fetch(self, val: Any) -> Any:
        """Wait for results, and return them in place of the `RemoteValue`s in a structure.

        >>> with jt.testing.LocalCluster(workers=1, ps=1) as cluster:
        ...     coordinator = cluster.coordinator()
        ...     squares = [coordinator.schedule(lambda x: x * x, args=(x,)) for x in range(3)]
        ...     coordinator.fetch({"squares": squares, "of": 3})
        {'of': 3, 'squares': [0, 1, 4]}

        Raises:
          Exception: what one of the functions raised.
        """
        return _tree.map_leaves(lambda v: v.fetch() if isinstance(v, RemoteValue) else v, val)

    # --- On each worker --------------------------------------------------------------------

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """Have a dataset on each worker, each with all the elements.

        Datasets that shuffle without a seed do so differently on each worker.

        Args:
          dataset_fn: a function without arguments, called on each worker, that returns a dataset;
            or a `jt.data.Dataset`; or what the strategy's `experimental_distribute_dataset` or
            `distribute_datasets_from_function` returned.

        Raises:
          ValueError: when it is something else.
        """
        check_source(dataset_fn)
        return PerWorkerDataset(self._resources, dataset_fn)

    def create_per_worker_values(self, fn: Callable[[], Any]) -> PerWorkerValues:
        """Have a function make something on each worker, when it is first needed there.

        Args:
          fn: called without arguments.

        Raises:
          TypeError: when it cannot be called.
        """
        if not callable(fn):
            raise TypeError(f"create_per_worker_values takes a function, got {fn!r}.")
        return PerWorkerValues(self._resources, fn)

    # --- Its end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Stop: functions that have not run are cancelled, and workers are free for another."""
        self._dropped.detach()
        self._end.come()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a ClusterCoordinator exists on the coordinator only. Do not refer to it in functions "
            "that workers run; what they need can be passed as arguments"
        )

    def __repr__(self) -> str:
        return f"<ClusterCoordinator of {self._strategy!r}>"


class _End:
    """Ends the threads and connections of a coordinator, once."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        connections: Connections,
        restorer: Restorer | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._connections = connections
        self._restorer = restorer
        self._lock = threading.Lock()
        self._is_over = False
        atexit.register(self.come)

    def come(self) -> None:
        """End now, and wait for it."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            atexit.unregister(self.come)
            self._dispatcher.closures.close()
            self._connections.close()
            if self._restorer is not None:
                self._restorer.close()

    def come_soon(self) -> None:
        """End in a thread; called when objects are collected, which may be at any point of any."""
        threading.Thread(target=self.come, name="closing a coordinator", daemon=True).start()
