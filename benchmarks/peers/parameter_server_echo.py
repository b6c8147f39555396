"""What a raw ZeroMQ echo takes to move an array over an `ipc` socket; half of it is one way."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping

import numpy as np
import zmq

from benchmarks.peers.parameter_server_cluster import with_parent
from benchmarks.peers.parameter_server_work import Large
from benchmarks.peers.serve import Timed, serve, timed


class Echo:
    """The client's side."""

    def __init__(self, case: Mapping[str, int], socket: zmq.Socket[bytes]) -> None:
        self.array = Large(**case).array()
        self.socket = socket

    def reset(self) -> None:
        """There is nothing to go back to."""

    def run(self, steps: int) -> Timed:
        """Send the array and get it back; the last number of what came back is the outcome."""
        frame = zmq.Frame()

        def echo() -> None:
            nonlocal frame
            for _ in range(steps):
                self.socket.send(self.array, copy=False)
                frame = self.socket.recv(copy=False)

        outcome, seconds, _ = timed(echo, lambda: float(np.frombuffer(frame, np.float32)[-1]))
        return Timed(outcome, seconds / 2)


def answer(address: str) -> None:
    """Be the other process, which sends back what comes until an empty message does."""
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        socket.bind(address)
        size = -1
        while size:
            frame = socket.recv(copy=False)
            size = len(frame)
            socket.send(frame, copy=False)


def main() -> None:
    """Start the other process, and serve."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/echo"
        module = "benchmarks.peers.parameter_server_echo"
        other = with_parent(sys.executable, "-m", module, address)
        with (
            subprocess.Popen(other, stdin=subprocess.DEVNULL),
            zmq.Context() as context,
            context.socket(zmq.REQ) as socket,
        ):
            socket.connect(address)
            try:
                serve(lambda case: Echo(case, socket), ("pyzmq", "numpy"))
            finally:
                socket.send(b"")
                socket.recv()


if __name__ == "__main__":
    answer(sys.argv[1]) if sys.argv[1:] else main()
