"""The way from JAX's client of the coordination service, in each worker, to the service.

JAX ends the process, from C++ and without an exception, as soon as the client's connection to the
service breaks; that is what happens to every worker when the chief dies. So the client connects to
a socket of its own process, which stays open when the way to the chief does not.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from . import _wire


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy what arrives until the connection ends, or the other one does."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # a connection that breaks has ended, too


class Tunnel:
    """Connects what connects to `path` with the coordination service of the chief."""

    def __init__(self, path: Path, host: str, port: int, worker: int) -> None:
        self._path = path
        self._chief = (host, port)
        self._worker = worker
        self._server: asyncio.Server | None = None
        self._clients: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        """Start accepting JAX's connections."""
        self._server = await asyncio.start_unix_server(self._accept, str(self._path))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.append(writer)
        chief: asyncio.StreamWriter | None = None
        try:
            chief_reader, chief = await asyncio.open_connection(*self._chief)
            await _wire.greet(chief_reader, chief, {"kind": "tunnel", "worker": self._worker})
            await asyncio.gather(pump(reader, chief), pump(chief_reader, writer))
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the link to the chief breaks as well, and says so to the user
        finally:
            if chief is not None:
                chief.close()
        # `writer` stays open: to close it would end the process.

    async def close(self) -> None:
        """Stop accepting, and leave open what is connected until the process ends."""
        if self._server is not None:
            self._server.close()
        for writer in self._clients:
            held = writer.get_extra_info("socket")
            if held is not None and held.fileno() >= 0:
                _kept_open.append(os.dup(held.fileno()))
            writer.close()


_kept_open: list[int] = []  # file descriptors, which nothing closes before the process ends
