"""One process of a cluster, by name."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Task"]


@dataclass(frozen=True, order=True)
class Task:
    """One process of the cluster, such as `worker:1`."""

    job: str
    index: int

    @classmethod
    def parse(cls, text: str) -> Task:
        """Return the task that is called `text`.

        Raises:
          ValueError: when it is no name of a task.
        """
        job, colon, index = text.rpartition(":")
        if not (job and colon and index.isdecimal()):
            raise ValueError(f"Expected a task such as 'worker:1', got {text!r}.")
        return cls(job, int(index))

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"
