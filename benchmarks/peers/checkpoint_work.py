"""What every contestant of `checkpoint` does: train, save, train on at once, and restore."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.peers.serve import Timed

DECAY = 0.999
"""A step multiplies all state by it: one rounding, which is the same in every library."""

PARTS = ("blocking", "next step", "total", "restore", "size")
"""What is measured: seconds, and of `size` bytes."""

Arrays = list[np.ndarray]
Shapes = list[tuple[int, ...]]


def network(width: int) -> Shapes:
    """The parameters of a small transformer, two slots for each as Adam has, and the step."""
    square = (width, width)
    block = [(width, 3 * width), square, (width, 4 * width), (4 * width, width), (width,)]
    parameters = [(12 * width, width), *(4 * block), (width, 3 * width)]
    return [*(3 * parameters), ()]


def many(arrays: int) -> Shapes:
    """Many arrays of 1 KB."""
    return [(256,)] * arrays


_STATES = {"width": network, "arrays": many}


def shapes_of(case: Mapping[str, int]) -> Shapes:
    """The shapes of a case's state, by the name and the size of what it is the state of."""
    ((name, size),) = case.items()
    return _STATES[name](size)


class Work:
    """The state of one case."""

    def __init__(self, **case: int) -> None:
        self.shapes = shapes_of(case)
        most = max(math.prod(shape) for shape in self.shapes)
        # RandomState, as its numbers are frozen across NumPy versions. No array is large enough
        # for a compressor to see that the next one begins one number later.
        random = np.random.RandomState(20240229)
        self._numbers = random.standard_normal(most + len(self.shapes)).astype(np.float32)

    def array(self, index: int) -> np.ndarray:
        """One of the initial arrays, all of which differ."""
        shape = self.shapes[index]
        return self._numbers[index : index + math.prod(shape)].reshape(shape)

    def arrays(self) -> Arrays:
        """The initial state; nothing is copied."""
        return [self.array(index) for index in range(len(self.shapes))]

    def check(self, found: Sequence[Any], steps: int) -> float:
        """Compare with the state after some steps, bit for bit, and return the sum of all.

        Raises:
          ValueError: when a number differs.
        """
        if len(found) != len(self.shapes):
            raise ValueError(f"{len(found)} of {len(self.shapes)} arrays were restored.")
        total = 0.0
        for index, one in enumerate(found):
            expected = self.array(index)
            for _ in range(steps):
                expected = expected * np.float32(DECAY)
            value = np.asarray(one)
            if value.dtype != np.float32 or not np.array_equal(value, expected):
                raise ValueError(
                    f"Array {index} of {len(self.shapes)} was restored as "
                    f"{value.dtype}{value.shape}, and not as the {expected.shape} that there was "
                    f"after {steps} steps, when it was saved: the checkpoint is wrong."
                )
            total += float(value.sum(dtype=np.float64))
        return total


class Program(Protocol):
    """State that is trained, saved and restored; made from its first values."""

    asynchronous: bool
    """Whether `save` returns before the checkpoint is complete."""

    def step(self) -> None:
        """Multiply all state by `DECAY`, and wait until that is done."""
        ...

    def save(self, directory: str) -> str:
        """Save, and return the path of the checkpoint."""
        ...

    def wait(self) -> None:
        """Wait until what is being saved is complete."""
        ...

    def restore(self, path: str) -> None:
        """Restore, and wait until all state is there."""
        ...

    def state(self) -> Sequence[Any]:
        """What NumPy can read as the arrays."""
        ...


class Saving:
    """The session of one case; between measurements it holds no state, as all of them wait."""

    def __init__(self, case: Mapping[str, int], make: Callable[[Arrays], Program]) -> None:
        self.work = Work(**case)
        self.make = make

    def reset(self) -> None:
        """Every run makes its own state."""

    def run(self, steps: int) -> Timed:
        """As often as there are steps: train, save, start again, and restore."""
        parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        outcome = 0.0
        program = self.make(self.work.arrays()) if steps else None
        for number in range(1, steps + 1):
            with tempfile.TemporaryDirectory(prefix="jaxtribute-checkpoint-") as directory:
                path = _save(program, directory, parts)
                program = None  # all state is in memory twice only while it is saved
                program = self.make([np.zeros(shape, np.float32) for shape in self.work.shapes])
                _restore(program, path, parts)
                outcome = self.work.check(program.state(), number)
        program = None
        _give_memory_back()
        return Timed(outcome, parts["total"], parts)


def _give_memory_back() -> None:
    """Free what is not used: the others need the memory next."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
        if trim is not None:
            trim(0)


def _save(program: Program, directory: str, parts: dict[str, float]) -> str:
    """Save between two steps; the second must not change what is saved after the first."""
    program.step()
    gc.collect()
    with ThreadPoolExecutor(1) as waiting:  # a step may take longer than all of the writing
        start = time.perf_counter()
        path = program.save(directory)
        returned = time.perf_counter()
        completion = waiting.submit(_completion, program)
        program.step()
        stepped = time.perf_counter()
        complete = completion.result() if program.asynchronous else returned
    parts["blocking"] += returned - start
    parts["next step"] += stepped - returned
    parts["total"] += complete - start
    files = [file for file in Path(directory).rglob("*") if file.is_file()]
    parts["size"] += sum(file.stat().st_size for file in files)
    return path


def _completion(program: Program) -> float:
    program.wait()
    return time.perf_counter()


def _restore(program: Program, path: str, parts: dict[str, float]) -> None:
    gc.collect()
    start = time.perf_counter()
    program.restore(path)
    parts["restore"] += time.perf_counter() - start
