"""What the tests of datasets share: plain elements, files, and the check that states resume."""

import contextlib
import itertools
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

import jaxtribute as jt

Dataset = jt.data.Dataset


def plain(element: Any) -> Any:
    """Return an element as Python numbers, bytes, lists (for arrays), tuples and dicts."""
    if isinstance(element, tuple):
        parts = [plain(part) for part in element]
        return type(element)(*parts) if hasattr(element, "_fields") else tuple(parts)
    if isinstance(element, dict):
        return {key: plain(part) for key, part in element.items()}
    return element.tolist() if isinstance(element, (np.ndarray, np.generic)) else element


def read(dataset: Iterable[Any], limit: int | None = None) -> list[Any]:
    """Return the (first) elements of one pass, as plain values."""
    with contextlib.closing(iter(dataset)) as iterator:
        return [plain(element) for element in itertools.islice(iterator, limit)]


def rest(iterator: Any, limit: int | None = None) -> list[Any]:
    """Return what an iterator still has, as plain values."""
    return [plain(element) for element in itertools.islice(iterator, limit)]


def streamed(*elements: Any) -> jt.data.Dataset:
    """Return a dataset that must be read one element after the other."""
    return Dataset.from_generator(lambda: iter(elements))


def stream_of(size: int) -> jt.data.Dataset:
    """Return `Dataset.range(size)`, to be read one element after the other."""
    return Dataset.from_generator(lambda: iter(np.arange(size)))


class Counted:
    """A function for `map` that counts its calls, and can be made to fail."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.fails_at: int | None = None

    def __call__(self, x: Any) -> Any:
        self.calls[int(x)] += 1
        if x == self.fails_at:
            raise ValueError("told to fail")
        return x * 10


def write_lines(path: Path, lines: Iterable[Any]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def write_records(path: Path, records: Iterable[bytes], compress: Any = bytes) -> Path:
    """Write a TFRecord file, as the format is documented."""
    data = bytearray()
    for record in records:
        length = struct.pack("<Q", len(record))
        data += length + _masked(length) + record + _masked(record)
    path.write_bytes(compress(bytes(data)))
    return path


def _masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def saved(iterator: Any) -> Any:
    """Return the state of an iterator, as it comes back from a file."""
    return json.loads(json.dumps(iterator.get_state()))


def check_resumes(
    make: Callable[[], jt.data.Dataset], *, limit: int | None = None, first_pass: int = 0
) -> None:
    """Check that a state saved anywhere leads to exactly the elements that are left.

    Args:
      make: makes the dataset; again for each restoration, as another process would.
      limit: how many elements to look at, for a dataset without end.
      first_pass: how many passes to make over the dataset before the one that is saved.
    """
    dataset = make()
    for _ in range(first_pass):
        read(dataset, limit)
    states, elements = [], []
    with contextlib.closing(iter(dataset)) as iterator:
        states.append(saved(iterator))
        for element in itertools.islice(iterator, limit):
            elements.append(plain(element))
            states.append(saved(iterator))
        if limit is None:
            assert rest(iterator) == []
            at_the_end = saved(iterator)
            assert rest(iterator) == [], "the end is not final"
            states.append(at_the_end)
            elements.append(None)  # nothing is left after the last two states

        def left(number: int) -> list[Any]:
            return [element for element in elements[number:] if element is not None]

        # Forwards and backwards, into the iterator that was saved.
        for number in [*range(len(states)), *reversed(range(len(states)))]:
            iterator.set_state(states[number])
            assert rest(iterator, len(left(number))) == left(number), f"same iterator, {number}"

    for number, state in enumerate(states):
        with contextlib.closing(iter(make())) as fresh:
            fresh.set_state(state)
            if limit is None:
                assert rest(fresh) == left(number), f"fresh iterator, state {number}"
            else:
                assert rest(fresh, len(left(number))) == left(number), f"fresh, state {number}"

    with contextlib.closing(iter(make())) as used:  # one that has been read already
        rest(used, 2)
        used.set_state(states[len(states) // 2])
        assert rest(used, len(left(len(states) // 2))) == left(len(states) // 2)
