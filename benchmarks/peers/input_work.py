"""What every contestant of `input` delivers: the cases, the data and what proves it arrived."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

REPLICAS = 2
EXAMPLES = 20_000
BATCH = 256
CLASSES = 10
SEED = 1
MEAN, DEVIATION = 2.75, 2.5  # about those of the features

EPOCHS = 8
"""The fewest that are a whole number of batches: a batch may hold the end of one and the start of
the next."""
BATCHES = EXAMPLES * EPOCHS // BATCH

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Work:
    """One case: global batches of 256, out of 20000 examples with this many features."""

    kind: str
    """`arrays`, `text` or `map`."""
    features: int

    def arrays(self) -> Arrays:
        """The examples in memory: features, and a label that scales them."""
        random = _random()
        y = random.randint(0, CLASSES, EXAMPLES).astype(np.int32)
        return (self._features(random) * (1 + y[:, None])).astype(np.float32), y

    def lines(self) -> str:
        """The path of the text file, which is written if nobody has done so yet."""
        path = _cache_directory() / f"input-{EXAMPLES}x{self.features}.csv"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
                np.savetxt(file, self._features(_random()), "%.5f", ",")
            os.replace(file.name, path)  # at once, as others may look for it right now
        return str(path)

    def _features(self, random: np.random.RandomState) -> np.ndarray:
        """Larger to the right, so that it matters where a feature is."""
        ramp = np.linspace(0.5, 1.5, self.features)
        return random.random_sample((EXAMPLES, self.features)) * ramp


def parse(line: bytes) -> np.ndarray:
    """The numbers of one line."""
    return np.fromstring(line, np.float32, sep=",")


def augment(x: np.ndarray, y: np.ndarray) -> Arrays:
    """One example of `map`: normalised, and the other way round for some labels."""
    x = (x - np.float32(MEAN)) / np.float32(DEVIATION)
    return (x[::-1] if y % 2 else x), y


class Proof:
    """Adds up what was delivered, in a way in which the order of the examples has no part."""

    def __init__(self) -> None:
        self.total = 0.0

    def add(self, x: np.ndarray, y: np.ndarray | None = None) -> None:
        """Count a batch, or a part of one."""
        # Weights, so that neither features nor labels can change places unnoticed.
        weights = np.arange(1, x.shape[1] + 1) / x.shape[1]
        sums = np.asarray(x, np.float64) ** 2 @ weights
        self.total += float(sums.sum() if y is None else sums @ (1 + np.asarray(y)))


def _random() -> np.random.RandomState:
    """A seeded generator; RandomState, as its numbers are frozen across NumPy versions."""
    return np.random.RandomState(20240229)


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "jaxtribute-benchmarks"
