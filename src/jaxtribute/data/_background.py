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
        self._prepare()

    def _prepare(self) -> None:
        self._reading = _Reading(self._source, self._buffer_size)
        # The thread holds `_reading`, not this object: that this is gone must be noticed.
        self._stop = weakref.finalize(self, self._reading.stop)

    def __next__(self) -> T:
        try:
            element, self._state = self._reading.get()
        except BaseException:
            # The thread has ended, and what is to be done at the end of the program must not keep
            # the error alive, and with it all that called this.
            self._stop.detach()
            raise
        return element

    def get_state(self) -> State:
        """Return the state after the last element that was delivered."""
        return self._state

    def set_state(self, state: State) -> None:
        """Go on from a state; what was read ahead is forgotten."""
        self._reading.stop()
        if self._reading.is_busy:
            raise DeadlineExceededError(
                f"The input was still reading an element after {_SECONDS_TO_END:.0f} s, so its "
                "state cannot be set. Restore a new iterator instead."
            )
        self._source.set_state(state)
        self._state = state
        self._prepare()

    def close(self) -> None:
        """Stop reading, and release what the iterator holds as soon as it is not being read."""
        self._reading.closes_source = True
        self._reading.stop()
        if not self._reading.is_busy:
            self._source.close()


class _Reading(Generic[T]):
    """A thread that reads, and what it shares with those who take from it."""

    def __init__(self, source: Resumable[T], size: int) -> None:
        self._source = source
        self._size = size
        self._changed = threading.Condition()
        self._waiting: deque[tuple[T, State]] = deque()
        self._ended = False
        self._error: BaseException | None = None  # with which it ended
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.closes_source = False

    def get(self) -> tuple[T, State]:
        """Return the next element and the state after it, as soon as there is one."""
        with self._changed:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="jaxtribute-input")
                self._thread.daemon = True
                self._thread.start()
            while not (self._waiting or self._ended or self._stopped):
                self._changed.wait()
            if self._waiting and not self._stopped:
                self._changed.notify_all()
                return self._waiting.popleft()
            if self._error is not None:
                raise self._error
            raise StopIteration

    def _run(self) -> None:
        try:
            while not self._stopped:
                element = next(self._source)
                self._put(element, self._source.get_state())
        except StopIteration:
            pass
        except BaseException as error:  # whoever asks next raises it
            self._error = error
        if self.closes_source or not self._stopped:
            self._source.close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _put(self, element: T, state: State) -> None:
        with self._changed:
            while len(self._waiting) >= self._size and not self._stopped:
                self._changed.wait()
            self._waiting.append((element, state))
            self._changed.notify_all()

    @property
    def is_busy(self) -> bool:
        """Whether the thread is still reading."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """End the thread, which may first have to finish the element it is reading."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify_all()
        if self.is_busy and self._thread is not threading.current_thread():
            cancel = getattr(self._source, "cancel", None)
            if cancel is not None:  # it may be waiting for others
                cancel()
            assert self._thread is not None
            self._thread.join(_SECONDS_TO_END)
