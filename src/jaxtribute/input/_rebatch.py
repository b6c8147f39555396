"""How global batches are divided between replicas: arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidArgumentError


@dataclass(frozen=True)
class Layout:
    """The workers and replicas a dataset is divided between, and which worker this is."""

    workers: int
    worker: int
    replicas: int  # of each worker

    def __post_init__(self) -> None:
        if not 0 <= self.worker < self.workers:
            raise InvalidArgumentError(
                f"There is no worker {self.worker}: {self.workers} share the input, counted from 0."
            )

    @classmethod
    def of(cls, workers: int, worker: int, replicas_in_sync: int) -> Layout:
        """Return the layout of that many replicas, divided evenly between the workers.

        Raises:
          InvalidArgumentError: when they cannot be divided evenly.
        """
        replicas, left_over = divmod(replicas_in_sync, workers)
        if left_over:
            raise InvalidArgumentError(
                f"{replicas_in_sync} replicas cannot be divided evenly between {workers} workers; "
                "every worker must have equally many."
            )
        return cls(workers, worker, replicas)

    def __str__(self) -> str:
        replicas = f"{self.replicas} replica{'s' * (self.replicas > 1)}"
        return replicas if self.workers == 1 else f"{self.workers} workers with {replicas} each"

    @property
    def replicas_in_sync(self) -> int:
        """How many replicas there are on all workers together."""
        return self.workers * self.replicas


def cut_evenly(batch_size: int, layout: Layout) -> list[tuple[int, int]]:
    """Return which examples of one global batch each replica of this worker gets.

    The batch is cut into pieces of equal size, rounded up; the last ones may be short or empty.
    They are dealt to the workers in turn.

    >>> cut_evenly(5, Layout(workers=1, worker=0, replicas=2))
    [(0, 3), (3, 5)]
    """
    size = -(-batch_size // layout.replicas_in_sync)
    own = range(layout.worker, layout.replicas_in_sync, layout.workers)
    return [(min(i * size, batch_size), min((i + 1) * size, batch_size)) for i in own]


def sizes_everywhere(batch_size: int, layout: Layout) -> tuple[int, ...]:
    """Return the sizes of the pieces that `cut_evenly` makes on all workers, by replica.

    >>> sizes_everywhere(5, Layout(workers=2, worker=1, replicas=2))
    (2, 1, 2, 0)
    """
    layouts = [Layout(layout.workers, w, layout.replicas) for w in range(layout.workers)]
    return tuple(stop - start for own in layouts for start, stop in cut_evenly(batch_size, own))


def piece_sizes(batch_size: int, layout: Layout) -> list[int]:
    """Return the sizes of the pieces in which this worker delivers the batches it reads.

    One step takes a piece for each of its replicas, so that one of its batches lasts as many steps
    as there are workers. The lists of the workers are rotated against each other, so that each
    step's pieces add up to a batch.

    >>> piece_sizes(7, Layout(workers=2, worker=1, replicas=2))
    [2, 1, 2, 2]
    """
    count = layout.replicas_in_sync
    size, larger = divmod(batch_size, count)
    sizes = [size + 1] * larger + [size] * (count - larger)
    start = layout.worker * layout.replicas % count
    return sizes[start:] + sizes[:start]
