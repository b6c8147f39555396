"""A process's way to the parameter servers.

The coordinator creates variables and changes them directly. A worker reads what a closure needs,
and sends what it did when it is over: one request to each server, to all of them at the same time.
The answer brings the new values of what was read, so that the next closure need not ask.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import msgspec
import numpy as np

from .. import ps
from .._limits import silence_limit
from ..errors import PSUnavailableError, TaskUnavailableError
from ..rpc import Channel, ClusterKey, as_array, exchange, frame_of
from ..variables import Variable, _frames
from ..variables._effects import Effect
from . import _current
from ._frame import ClosureFrame
from ._rows import Array, Distinct, split
from ._updates import Part, parts
from ._variable import Described, RemoteVariable

_LARGEST = 64 * 1024 * 1024  # bytes of a variable that travel in one piece
_REMEMBERED = 16  # sets of ids whose distinct ones were found in the closure

Requests = Mapping[int, tuple[msgspec.Struct, Sequence[Any]]]  # by server: message, frames


class Session:
    """The connections of one process to all parameter servers, and what it knows of them.

    Args:
      own_task: who this process is, such as "worker:0".
      servers: the addresses of the servers.
      key: the secret of the cluster.
      origin: the life of the coordinator it belongs to.
      encryption: whether what goes to other machines is encrypted.
    """

    strategy: Any = None

    def __init__(
        self,
        own_task: str,
        servers: Sequence[str],
        key: ClusterKey,
        origin: str,
        *,
        encryption: bool = True,
    ) -> None:
        self.own_task = own_task
        self.servers = tuple(servers)
        self.key = key
        self.origin = origin
        self.encryption = encryption
        self.patience = silence_limit()
        self._channels = [self._channel(task) for task in range(len(servers))]
        self._lock = threading.RLock()  # a callback of a running step may read as well
        self.clocks = [0] * len(servers)  # how many updates each had, as far as is known here
        self._variables: weakref.WeakValueDictionary[int, RemoteVariable] = (
            weakref.WeakValueDictionary()
        )
        self._cached: dict[int, Array] = {}
        self._cached_for = -1  # the epoch
        self._distinct: list[Distinct] = []
        self._numbers = itertools.count()
        self.failures: list[Exception] = []  # in callbacks, of which JAX keeps the text only

    def _channel(self, task: int) -> Channel:
        return Channel(
            self.servers[task],
            f"ps:{task}",
            self.own_task,
            self.key,
            ps.Reply,
            encryption=self.encryption,
        )

    def _renew(self, task: int) -> None:
        """Begin anew with a server, which may have been restarted."""
        self.clocks[task] = 0
        self._channels[task].close()
        self._channels[task] = self._channel(task)

    def close(self) -> None:
        """End the connections."""
        self.closer()()

    def closer(self) -> Callable[[], None]:
        """Return what ends the connections, and does not keep this object alive."""
        channels = self._channels

        def close() -> None:
            for channel in channels:
                channel.close()

        return close

    @contextmanager
    def entered(self) -> Generator[None]:
        """Have variables that are unpickled in this thread belong to this session."""
        with _current.entered(self):
            yield

    def variable(self, described: Described) -> RemoteVariable:
        """Return the one object that stands here for a variable of the cluster."""
        variable = self._variables.get(described.number)
        if variable is None:
            variable = self._variables[described.number] = RemoteVariable(described, self)
        return variable

    # --- Reading ---------------------------------------------------------------------------

    def read(self, variables: Sequence[Any]) -> list[Array]:
        """Return the values of variables, as arrays that must not be written to.

        Raises:
          PSUnavailableError: when a server is lost.
        """
        large = [v for v in variables if _is_large(v)]
        small = {v.number: v for v in variables if not _is_large(v)}
        values = self._read_spans({number: [ps.Span(number)] for number in small}, small)
        found = {number: values[number][0] for number in small}
        for variable in large:
            found[variable.number] = self._read_in_pieces(variable)
        return [found[variable.number] for variable in variables]

    def _read_in_pieces(self, variable: RemoteVariable) -> Array:
        whole = np.empty(variable.shape, variable.dtype)
        for start, stop in pieces(variable.shape, variable.described.nbytes):
            span = {variable.number: [ps.Span(variable.number, start, stop)]}
            whole[start:stop] = self._read_spans(span, {variable.number: variable})[
                variable.number
            ][0]
        return whole

    def _read_spans(
        self, spans: Mapping[int, list[ps.Span]], variables: Mapping[int, RemoteVariable]
    ) -> dict[int, list[Array]]:
        asked: dict[int, list[ps.Span]] = {}
        for number, own in spans.items():
            asked.setdefault(variables[number].described.task, []).extend(own)
        replies = self.ask(
            {task: (ps.Read(self.origin, own), ()) for task, own in asked.items()},
            "values of variables",
        )
        found: dict[int, list[Array]] = {}
        for task, (reply, frames) in replies.items():
            for span, kind, frame in zip(asked[task], reply.types, frames, strict=True):
                found.setdefault(span.number, []).append(as_array(kind, frame))
        return found

    def read_cached(self, variables: Sequence[Any]) -> list[Array]:
        """Return the values of variables, those that came with the last update without asking."""
        missing = [v for v in variables if v.number not in self._cached]
        if missing:
            for variable, value in zip(missing, self.read(missing), strict=True):
                self._cached[variable.number] = value
        return [self._cached[variable.number] for variable in variables]

    def gather(self, lookups: Sequence[tuple[str, Sequence[RemoteVariable], Array]]) -> list[Array]:
        """Return rows of tables: of each, those that are asked for, repeated as they are.

        Args:
          lookups: the name of each table, its shards, and ids of one axis.

        Raises:
          InvalidArgumentError: when a table has no such row.
          PSUnavailableError: when a server is lost.
        """
        asked: dict[int, tuple[list[int], list[Array]]] = {}
        places: list[list[tuple[int, slice]]] = []
        distinct: list[Distinct] = []
        for name, shards, ids in lookups:
            sizes = [shard.shape[0] for shard in shards]
            found = self._distinct_ids(ids, sum(sizes), name)
            distinct.append(found)
            places.append([])
            for shard, (place, own) in zip(shards, split(found.unique, sizes), strict=True):
                if own.size:
                    numbers, frames = asked.setdefault(shard.described.task, ([], []))
                    numbers.append(shard.number)
                    frames.append(own)
                    places[-1].append((shard.described.task, place))
        replies = self.ask(
            {
                task: (ps.Gather(self.origin, numbers), [frame_of(own) for own in frames])
                for task, (numbers, frames) in asked.items()
            },
            "rows of tables",
        )
        arrived = {
            task: iter([as_array(kind, f) for kind, f in zip(reply.types, frames, strict=True)])
            for task, (reply, frames) in replies.items()
        }
        results: list[Array] = []
        for (_, shards, _), found, own_places in zip(lookups, distinct, places, strict=True):
            rows = np.empty((found.unique.size, *shards[0].shape[1:]), shards[0].dtype)
            for task, place in own_places:
                rows[place] = next(arrived[task])
            results.append(found.expanded(rows))
        return results

    def _distinct_ids(self, ids: Array, rows: int, name: str) -> Distinct:
        """Find distinct ids; the gradient of a lookup has those of the lookup."""
        for known in self._distinct:
            fits = not known.unique.size or known.unique[-1] < rows
            if fits and known.ids.shape == ids.shape and np.array_equal(known.ids, ids):
                return known
        found = Distinct.of(ids, rows, name)
        self._distinct = [*self._distinct[1 - _REMEMBERED :], found]
        return found

    def build_slots(self, optimizer: int, variable: RemoteVariable, slots: Sequence[int]) -> None:
        """Have the state of an optimizer for a variable made, and its parts called `slots`."""
        message = ps.BuildSlots(self.origin, optimizer, variable.number, list(slots))
        self.ask({variable.described.task: (message, ())}, "the state of an optimizer")

    # --- Writing ---------------------------------------------------------------------------

    def update(self, effects: Sequence[Effect]) -> None:
        """Change variables directly, outside of closures.

        Raises:
          PSUnavailableError: when a server is lost.
        """
        with self._lock:
            number = next(self._numbers)
            self._send(parts(effects, self._distinct_ids), number, number, {}, direct=True)
            self._distinct.clear()

    @contextmanager
    def closure(self, number: int, settled: int, epoch: int) -> Generator[None]:
        """Collect what a closure does to variables, and send it if it ends without an exception.

        Args:
          number: that of the closure, by which servers tell whether its updates were sent before.
          settled: all closures with smaller numbers are.
          epoch: values that were read in an earlier one are too old.

        Raises:
          PSUnavailableError: when a server is lost.
        """
        if epoch != self._cached_for:
            self._cached.clear()
            self._cached_for = epoch
        frame = ClosureFrame(self)
        self.failures.clear()
        try:
            with _frames.opened(frame):
                yield
            told = parts(frame.effects, self._distinct_ids)
            wanted: dict[int, list[Variable]] = {}
            for variable in frame.programs_read.values():
                assert isinstance(variable, RemoteVariable)
                wanted.setdefault(variable.described.task, []).append(variable)
        except jax.errors.JaxRuntimeError as error:
            if self.failures:
                raise self.failures[0] from error
            raise
        finally:
            # What no update brings anew may have been changed by others.
            self._cached.clear()
            self._distinct.clear()
        self._send(told, number, settled, wanted)

    def _send(
        self,
        told: Mapping[int, Part],
        number: int,
        settled: int,
        wanted: Mapping[int, Sequence[Any]],
        direct: bool = False,
    ) -> None:
        if not told:
            return
        requests = {
            task: (
                ps.Update(
                    self.origin,
                    number,
                    settled,
                    self.clocks[task],
                    part.operations,
                    [variable.number for variable in wanted.get(task, ())],
                    direct,
                ),
                [frame_of(array) for array in part.arrays],
            )
            for task, part in told.items()
        }
        for task, (reply, frames) in self.ask(requests, "an update").items():
            for variable, kind, frame in zip(
                wanted.get(task, ()), reply.types, frames, strict=True
            ):
                self._cached[variable.number] = as_array(kind, frame)

    # --- Asking ----------------------------------------------------------------------------

    def ask(
        self, requests: Requests, what: str, patience: float | None = None
    ) -> dict[int, tuple[Any, Sequence[Any]]]:
        """Send a request to each of some servers, and return their answers."""
        if not requests:
            return {}
        tasks = list(requests)
        with self._lock:
            try:
                replies = exchange(
                    [(self._channels[task], *requests[task]) for task in tasks],
                    what=what,
                    patience=self.patience if patience is None else patience,
                )
            except TaskUnavailableError as error:
                self._renew(int(error.task.partition(":")[2]))
                raise PSUnavailableError(error.task, error.why) from error
        for task, reply in zip(tasks, replies, strict=True):
            self.clocks[task] = max(self.clocks[task], getattr(reply.body, "clock", 0))
        return {t: (r.body, r.frames) for t, r in zip(tasks, replies, strict=True)}


def _is_large(variable: RemoteVariable) -> bool:
    return variable.described.nbytes > _LARGEST and bool(variable.shape)


def pieces(shape: Sequence[int], nbytes: int) -> list[tuple[int, int]]:
    """Divide the rows of a large array into spans that travel one by one."""
    rows = shape[0]
    at_once = max(1, rows // max(1, math.ceil(nbytes / _LARGEST)))
    return [(start, min(start + at_once, rows)) for start in range(0, rows, at_once)]
