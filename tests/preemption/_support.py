"""Workers without processes, which can also tell each other what nobody waits for."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.checkpoint import _support

SECONDS = 60.0
"""How long anything may take before the test fails."""


class Worker(_support.Worker):
    """One of several workers in threads; each hears in the thread of who tells."""

    def __init__(self, index: int, meeting: Any, all_workers: list["Worker"]) -> None:
        super().__init__(index, meeting)
        self.given_up: list[str] = []
        self._all = all_workers
        self._hearing = threading.Lock()
        self._listeners: dict[str, Callable[[int], None]] = {}
        self._unheard: dict[str, int] = {}

    def tell(self, about: str) -> None:
        for worker in self._all:
            if worker is not self:
                worker.hears(about, self.index)

    def hear(self, about: str, listener: Callable[[int], None]) -> None:
        with self._hearing:
            self._listeners[about] = listener
            teller = self._unheard.pop(about, None)
        if teller is not None:
            listener(teller)

    def hears(self, about: str, teller: int) -> None:
        with self._hearing:
            listener = self._listeners.get(about)
            if listener is None:
                self._unheard[about] = teller
        if listener is not None:
            listener(teller)

    def give_up(self, why: str) -> None:
        for worker in self._all:
            worker.given_up.append(why)


def run_workers(program: Callable[[Worker], Any], workers: int = 2) -> list[Any]:
    """Run a program on each worker, and return what each returned or raised."""
    meeting = _support._Meeting(workers)
    everybody: list[Worker] = []
    everybody.extend(Worker(i, meeting, everybody) for i in range(workers))
    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(program, worker) for worker in everybody]
    return [one.exception() or one.result() for one in running]
