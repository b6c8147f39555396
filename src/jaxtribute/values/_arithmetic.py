"""Operators for objects that stand for an array."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import jax


class Arithmetic(ABC):
    """Gives a class the operators of an array, by way of `_operand`.

    Comparison is elementwise, so such objects cannot be dictionary keys.
    """

    # NumPy arrays leave operators with such objects to the methods here.
    __array_priority__ = 1000

    __hash__: ClassVar[None]  # pyright: ignore[reportIncompatibleMethodOverride]

    @abstractmethod
    def _operand(self) -> jax.Array:
        """Return the array this object stands for."""

    def __add__(self, other: Any) -> Any:
        return self._operand() + operand(other)

    def __radd__(self, other: Any) -> Any:
        return operand(other) + self._operand()

    def __sub__(self, other: Any) -> Any:
        return self._operand() - operand(other)

    def __rsub__(self, other: Any) -> Any:
        return operand(other) - self._operand()

    def __mul__(self, other: Any) -> Any:
        return self._operand() * operand(other)

    def __rmul__(self, other: Any) -> Any:
        return operand(other) * self._operand()

    def __truediv__(self, other: Any) -> Any:
        return self._operand() / operand(other)

    def __rtruediv__(self, other: Any) -> Any:
        return operand(other) / self._operand()

    def __floordiv__(self, other: Any) -> Any:
        return self._operand() // operand(other)

    def __rfloordiv__(self, other: Any) -> Any:
        return operand(other) // self._operand()

    def __mod__(self, other: Any) -> Any:
        return self._operand() % operand(other)

    def __rmod__(self, other: Any) -> Any:
        return operand(other) % self._operand()

    def __pow__(self, other: Any) -> Any:
        return self._operand() ** operand(other)

    def __rpow__(self, other: Any) -> Any:
        return operand(other) ** self._operand()

    def __matmul__(self, other: Any) -> Any:
        return self._operand() @ operand(other)

    def __rmatmul__(self, other: Any) -> Any:
        return operand(other) @ self._operand()

    def __and__(self, other: Any) -> Any:
        return self._operand() & operand(other)

    def __rand__(self, other: Any) -> Any:
        return operand(other) & self._operand()

    def __or__(self, other: Any) -> Any:
        return self._operand() | operand(other)

    def __ror__(self, other: Any) -> Any:
        return operand(other) | self._operand()

    def __xor__(self, other: Any) -> Any:
        return self._operand() ^ operand(other)

    def __rxor__(self, other: Any) -> Any:
        return operand(other) ^ self._operand()

    def __lt__(self, other: Any) -> Any:
        return self._operand() < operand(other)

    def __le__(self, other: Any) -> Any:
        return self._operand() <= operand(other)

    def __gt__(self, other: Any) -> Any:
        return self._operand() > operand(other)

    def __ge__(self, other: Any) -> Any:
        return self._operand() >= operand(other)

    def __eq__(self, other: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._operand() == operand(other)

    def __ne__(self, other: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._operand() != operand(other)

    def __neg__(self) -> Any:
        return -self._operand()

    def __pos__(self) -> Any:
        return +self._operand()

    def __invert__(self) -> Any:
        return ~self._operand()

    def __abs__(self) -> Any:
        return abs(self._operand())

    def __bool__(self) -> bool:
        return bool(self._operand())

    def __int__(self) -> int:
        return int(self._operand())

    def __float__(self) -> float:
        return float(self._operand())

    def __complex__(self) -> complex:
        return complex(self._operand())

    def __index__(self) -> int:
        return self._operand().__index__()

    def __format__(self, spec: str) -> str:
        return format(self._operand(), spec) if spec else str(self)

    def __len__(self) -> int:
        return len(self._operand())

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self._operand())

    def __getitem__(self, index: Any) -> jax.Array:
        return self._operand()[operand(index)]


def operand(value: Any) -> Any:
    """Return the array `value` stands for, or `value` itself."""
    return value._operand() if isinstance(value, Arithmetic) else value  # pyright: ignore[reportPrivateUsage]
