"""Random orders and keys that depend on a seed and on what an element is, and on nothing else.

Every element has an id: its place in the source it comes from, not in the stream that happens to
deliver it. So it does not matter how many workers share the elements, which of them reads this
one, and whether it was read before.
"""

from __future__ import annotations

import functools
import secrets
from typing import Any, cast

import jax
import numpy as np

_MASK = (1 << 64) - 1
_FACTOR, _OFFSET = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03

Ids = np.ndarray[Any, np.dtype[np.uint64]]


def mix(first: int, second: int) -> int:
    """Return 64 bits that stand for a pair of numbers (the finaliser of splitmix64)."""
    z = (first * _FACTOR + second + _OFFSET) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def mix_each(ids: Ids, second: int) -> Ids:
    """Return `mix(id, second)` for each id."""
    return _finished(ids * np.uint64(_FACTOR) + np.uint64((second + _OFFSET) & _MASK))


def mix_with_each(first: int, seconds: Ids) -> Ids:
    """Return `mix(first, second)` for each second number."""
    return _finished(seconds + np.uint64((first * _FACTOR + _OFFSET) & _MASK))


def _finished(z: Ids) -> Ids:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def epoch_of_pass(number: int) -> int:
    """Return the epoch of the operations of a dataset in one pass over it."""
    return mix(0, number)


def fresh_seed() -> int:
    """Return a seed nobody has used."""
    return secrets.randbits(63)


def window_order(seed: int, window: int, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the order in which a shuffle delivers the elements of one window."""
    return np.random.Generator(np.random.Philox(key=mix(seed, window))).permutation(length)


def element_key(seed: int, element_id: int) -> jax.Array:
    """Return the random key of one element."""
    # Not jax.random.key(number), which keeps 32 bits of it: too few for millions of elements.
    words: list[int] = []
    bits = mix(seed, element_id)
    for _ in range(0, _words_in_a_key(), 2):
        words += [bits >> 32, bits & 0xFFFFFFFF]
        bits = mix(bits, 1)
    return jax.random.wrap_key_data(cast(jax.Array, np.array(words, np.uint32)))  # the fast way


@functools.cache
def _words_in_a_key() -> int:
    return jax.random.key_data(jax.random.key(0)).size  # 2, or 4 with the generator "rbg"
