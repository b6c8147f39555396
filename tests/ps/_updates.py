"""Shorthand for the operations of an update."""

from typing import Any

import numpy as np

from jaxtribute import rpc
from jaxtribute.ps import Operation, Span
from jaxtribute.ps._store import Store

Pair = tuple[Operation, list[Any]]


def op(number: int, kind: str, *arrays: Any, optimizer: int = -1) -> Pair:
    held = [np.asarray(array) for array in arrays]
    return Operation(number, kind, [rpc.array_type(array) for array in held], optimizer), held


def store_with(*values: Any) -> Store:
    """Return a store whose variables 0, 1... hold the values, under the names v0, v1..."""
    store = Store()
    store.adopt("origin")
    for number, value in enumerate(values):
        store.create(number, f"v{number}", np.array(value))
    return store


def value(store: Store, number: int = 0) -> Any:
    return store.read([Span(number)])[0]


def update(store: Store, closure: int, *operations: Pair, settled: int = 0) -> bool:
    return store.update(closure, settled, -1, operations, [])[0]
