"""Reading ahead of the consumer, in a thread."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any, Generic, Protocol, TypeVar

from ..errors import DeadlineExceededError

State = dict[str, Any]

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

_SECONDS_TO_END = 5.0


class Resumable(Protocol[T_co]):
    """An iterator whose position can be saved and restored."""

    def __next__(self) -> T_co: ...

    def get_state(self) -> State:
        """Return where the next element is found."""
        ...

    def set_state(self, state: State) -> None:
        """Go on from a state."""
        ...

    def close(self) -> None:
        """Release files and threads."""
        ...


class Background(Generic[T]):
    """The elements of an iterator, up to `buffer_size` of which a thread has read already.

    An error of the iterator is raised where its element was due, and again when asked again. The
    thread ends with the iterator, or when this object is closed or no longer used.
    """

    def __init__(self, source: Resumable[T], buffer_size: int) -> None:
        self._source = source
        self._buffer_size = buffer_size
        self._state = source.get_state()
        self._start()

    def _start(self) -> None:
        self._shared = _Shared[T](self._buffer_size)
        self._thread: threading.Thread | None = None
        self._ended = False
        self._error: BaseException | None = None
        # The thread holds what is shared, not this object: that it is gone must be noticed.
        self._finalizer = weakref.finalize(self, _Shared.stop, self._shared)

    def start(self) -> None:
        """Begin to read, if not yet begun."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_read, args=(self._source, self._shared), name="jaxtribute-input"
            )
            self._thread.daemon = True
            self._shared.thread = self._thread
            self._thread.start()

    def __next__(self) -> T:
        if self._error is not None:
            raise self._error
        if self._ended:
            raise StopIteration
        self.start()
        element, state, error = self._shared.get()
        if isinstance(error, StopIteration):  # kept, it would keep all that called this
            self._ended = True
            raise StopIteration
        if error is not None:
            self._error = error
            raise error
        assert state is not None
        self._state = state
        return element  # pyright: ignore[reportReturnType]

    def get_state(self) -> State:
        """Return the state after the last element that was delivered."""
        return self._state

    def set_state(self, state: State) -> None:
        """Go on from a state; what was read ahead is forgotten."""
        self._finalizer()
        if self._thread is not None and self._thread.is_alive():
            raise DeadlineExceededError(
                f"The input was still reading an element after {_SECONDS_TO_END:.0f} s, so its "
                "state cannot be set. Restore a new iterator instead."
            )
        self._source.set_state(state)
        self._state = state
        self._start()

    def close(self) -> None:
        """Stop reading."""
        self._finalizer()
        self._source.close()
        self._ended = True


class _Shared(Generic[T]):
    """What the thread and the consumer both hold."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[tuple[T | None, State | None, BaseException | None]] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self.thread: threading.Thread | None = None

    def put(self, element: T | None, state: State | None, error: BaseException | None) -> bool:
        """Hand over an element, as soon as there is room; False when nobody wants it."""
        with self._changed:
            while len(self._items) >= self._size and not self._stopped:
                self._changed.wait()
            self._items.append((element, state, error))
            self._changed.notify_all()
            return not self._stopped

    def get(self) -> tuple[T | None, State | None, BaseException | None]:
        """Return the next element, as soon as there is one."""
        with self._changed:
            while not self._items:
                self._changed.wait()
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def stop(self) -> None:
        """End the thread, which may first have to finish the element it is reading."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(_SECONDS_TO_END)


def _read(source: Resumable[T], shared: _Shared[T]) -> None:
    wanted = True
    while wanted:
        try:
            element = next(source)
            wanted = shared.put(element, source.get_state(), None)
        except BaseException as error:  # the consumer raises it
            shared.put(None, None, error)
            wanted = False
