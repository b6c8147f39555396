"""The actors: a worker that runs a training function, and a task that serves."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Mapping
from typing import Any

from .._limits import say
from ..checkpoint._background import finish_all
from ..cluster._address import Address
from ..coordinator import Server
from ..coordinator._packing import (
    Packer,
    load_arguments,
    load_function,
    pack_error,
    pack_result,
)
from ..errors import DataLossError, FailedPreconditionError

__all__ = ["Ending", "Program", "ServingTask", "TrainingTask", "pack_program"]

Program = tuple[bytes, tuple[bytes, ...], dict[str, bytes]]
"""A function, its arguments, and the arrays in both of them."""

Ending = tuple[str, Any]
"""How a function ended: ("result" or "error", frames), or ("exit", code)."""


def pack_program(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Program:
    """Return a function and its arguments, ready to be sent.

    Raises:
      TypeError: when something cannot be sent.
    """
    packer = Packer()
    packed = packer.function(function)
    arguments = packer.arguments(args, kwargs)
    blobs = {blob.digest: blob.data for blob in (*packed.blobs, *arguments.blobs)}
    return packed.blob.data, arguments.frames, blobs


class TrainingTask:
    """A worker: it runs one function.

    Args:
      name: what it is called.
      environment: the variables that tell which task of which cluster it is.
    """

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        self._name = name

    def __repr__(self) -> str:  # what Ray puts before the lines that it prints
        return self._name

    def ready(self) -> int:
        """Return the number of the process."""
        return os.getpid()

    def train(self, program: Program) -> Ending:
        """Run a function, and return how it ended."""
        function, arguments, constants = program
        try:
            train_fn = load_function(function, constants, _nothing_made_here)
            args, kwargs = load_arguments(arguments, constants, _nothing_made_here)
            code: Any = None
            try:
                frames = pack_result(train_fn(*args, **kwargs))
            except SystemExit as error:
                code, frames = error.code, pack_result(None)
            finish_all()  # as Ray kills the process, and what it is writing with it
        except BaseException as error:  # told where the function was given
            _finish_after(error)
            return "error", [bytes(frame) for frame in pack_error(error, self._name)]
        if code not in (None, 0):
            return "exit", code
        return "result", [bytes(frame) for frame in frames]


def _finish_after(error: BaseException) -> None:
    """Let what is being written be complete, to go on from; the error is what is told of."""
    try:
        finish_all()
    except DataLossError as lost:
        error.add_note(str(lost))


def _nothing_made_here(number: int) -> Any:
    raise AssertionError(f"A training function refers to value {number} of a coordinator.")


class ServingTask:
    """A worker or a parameter server, which serves from the beginning, also in a new process.

    Args:
      cluster: the addresses of all tasks.
      job: the job of this one.
      index: its index.
      environment: variables that it needs.

    Raises:
      FailedPreconditionError: when Ray has started it on another node than its address is on.
    """

    def __init__(
        self, cluster: Mapping[str, list[str]], job: str, index: int, environment: Mapping[str, str]
    ) -> None:
        os.environ.update(environment)
        self._name = f"{job}:{index}"
        host = Address.parse(cluster[job][index]).host
        here = importlib.import_module("ray").util.get_node_ip_address()
        if here != host:
            raise FailedPreconditionError(
                f"{self._name} was on the node {host}, which is gone, and the others look for it "
                f"there; it cannot go on on {here}."
            )
        self._server = Server(dict(cluster), job, index)
        self._stopping = False
        threading.Thread(target=self._serve, name=f"{self._name} serves", daemon=True).start()

    def __repr__(self) -> str:
        return self._name

    def ready(self) -> int:
        """Return the number of the process."""
        return os.getpid()

    def stop(self) -> None:
        """Say goodbye to the others, and free the address."""
        self._stopping = True
        self._server.stop()

    def _serve(self) -> None:
        try:
            self._server.join()
        except BaseException as error:
            say(f"{self._name} failed: {error!r}")
        if not self._stopping:
            os._exit(1)  # so that Ray starts it again: it would only look as if it served
