"""Messages of Protocol Buffers, of which nothing is known but the numbers of their fields.

As much of it as reading TensorFlow's checkpoints takes, so that TensorFlow need not be installed.
"""

from __future__ import annotations

from collections import defaultdict


class Message:
    """The fields of a message.

    Args:
      data: the message, as it is stored.

    Raises:
      ValueError: when it is none.
    """

    def __init__(self, data: bytes) -> None:
        self._integers: defaultdict[int, list[int]] = defaultdict(list)
        self._bytes: defaultdict[int, list[bytes]] = defaultdict(list)
        try:
            self._read(data)
        except IndexError as error:
            raise ValueError("A message ends too early.") from error

    def _read(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            tag, position = varint(data, position)
            number, kind = tag >> 3, tag & 7
            if kind == 0:
                value, position = varint(data, position)
                self._integers[number].append(value)
                continue
            if kind == 2:
                size, position = varint(data, position)
                self._bytes[number].append(data[position : position + size])
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
                value = int.from_bytes(data[position : position + size], "little")
                self._integers[number].append(value)
            else:
                raise ValueError(f"A field of kind {kind} cannot be read.")
            position += size
        if position > len(data):
            raise ValueError("A field is longer than its message.")

    def has(self, number: int) -> bool:
        """Tell whether a field that is an integer is there."""
        return number in self._integers

    def integer(self, number: int) -> int:
        """Return a field that is an integer; one that is left out is 0."""
        values = self._integers.get(number, [0])
        return values[-1] - (1 << 64) if values[-1] >> 63 else values[-1]

    def text(self, number: int) -> str:
        """Return a field that is a text."""
        return self._bytes.get(number, [b""])[-1].decode()

    def messages(self, number: int) -> list[Message]:
        """Return a field that is any number of messages."""
        return [Message(data) for data in self._bytes.get(number, [])]


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Return an integer that is stored in as many bytes as it needs, and where it ends.

    Raises:
      IndexError: when the data ends before.
    """
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
