"""A contestant of two processes: `python -m ... MODULE`, twice, each with its `TF_CONFIG`.

Every request goes to both workers, and the reply is that of the slower one. Only one line a
measurement passes through here, so relaying costs nothing that is measured.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

WORKERS = 2


def free_addresses(count: int) -> list[str]:
    """Addresses of this host that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def tf_config(addresses: Sequence[str], index: int) -> str:
    """The text that tells a worker who the others are, and who it is."""
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": list(addresses)}, "task": task})


def combine(replies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a pair answers: an error if there is one, else the slower worker's time."""
    for reply in replies:
        if "error" in reply:
            return reply
    if "versions" in replies[0]:
        return replies[0]
    outcomes = [reply["outcome"] for reply in replies]
    if len(set(outcomes)) > 1:  # all of them have the same sum from the same reduction
        return {"error": f"The workers came to different results: {outcomes}."}
    return {"seconds": max(reply["seconds"] for reply in replies), "outcome": outcomes[0]}


class Pair:
    """The started workers."""

    def __init__(self, module: str) -> None:
        addresses = free_addresses(WORKERS)
        self._workers = [
            subprocess.Popen(
                [sys.executable, "-m", module],
                env={**os.environ, "TF_CONFIG": tf_config(addresses, index)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for index in range(WORKERS)
        ]

    def ask(self, request: str) -> None:
        """Send a request to all."""
        for worker in self._workers:
            assert worker.stdin is not None
            with suppress(BrokenPipeError):  # it ended: `answer` says so better
                worker.stdin.write(request.encode())
                worker.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for all replies, or for the first error: the other worker might wait for ever."""
        replies: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as selector:
            for index, worker in enumerate(self._workers):
                assert worker.stdout is not None
                selector.register(worker.stdout, selectors.EVENT_READ, index)
            while len(replies) < WORKERS:
                for key, _ in selector.select():
                    replies[key.data] = reply = self._read(key.data)
                    selector.unregister(key.fileobj)
                    if "error" in reply:
                        return reply
        return combine([replies[index] for index in range(WORKERS)])

    def _read(self, index: int) -> dict[str, Any]:
        worker = self._workers[index]
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line:
            return {"error": f"worker:{index} ended with {worker.wait()} instead of answering"}
        return json.loads(line)

    def end(self) -> None:
        """Close what the workers read requests from, and wait for them a little."""
        for worker in self._workers:
            assert worker.stdin is not None
            with suppress(BrokenPipeError):
                worker.stdin.close()
        for worker in self._workers:
            try:
                worker.wait(timeout=3)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def main(module: str) -> None:
    """Relay until stdin ends, or a worker fails."""
    pair = Pair(module)
    try:
        reply = pair.answer()
        print(json.dumps(reply), flush=True)
        for line in sys.stdin:
            pair.ask(line)
            reply = pair.answer()
            print(json.dumps(reply), flush=True)
            if "error" in reply:
                break
    finally:
        pair.end()


if __name__ == "__main__":
    main(sys.argv[1])
