"""The meeting point of all workers, in the chief's process.

It accepts two kinds of connections at the chief's address: links, over which workers report and
are told what they need to know, and tunnels to JAX's coordination service, which listens on a
socket of this process only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from ..errors import JaxtributeError
from . import _wire
from ._roster import Outgoing, Roster
from ._tunnel import pump

_log = logging.getLogger("jaxtribute")
_GREETING_LIMIT = 10.0  # seconds; whoever says nothing is not kept


class Hub:
    """Accepts workers, and passes on what they and the roster have to say."""

    def __init__(self, roster: Roster, service: Path, beat: float) -> None:
        self._roster = roster
        self._service = service
        self._beat = beat
        self._links: dict[int, asyncio.StreamWriter] = {}
        self._tunnels: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def open(self, host: str | None, port: int) -> None:
        """Start accepting connections."""
        self._server = await asyncio.start_server(self._accept, host, port)
        self._ticking = asyncio.create_task(self._tick())

    async def close(self) -> None:
        """Stop: first the tunnels, so that nobody hears the coordination service go."""
        for tunnel in self._tunnels:
            tunnel.transport.abort()
        if self._ticking is not None:
            self._ticking.cancel()
        if self._server is not None:
            self._server.close()
        for link in list(self._links.values()):
            link.write(_wire.packed({"say": "closed"}))
            await _flushed(link)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._beat)
            self._send(self._roster.passed(time.monotonic()))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await asyncio.wait_for(_wire.admit(reader, writer), _GREETING_LIMIT)
            serve: Callable[..., Awaitable[None]] = {"link": self._link, "tunnel": self._tunnel}[
                request["kind"]
            ]
            await serve(request, reader, writer)
        except asyncio.CancelledError:
            return  # on closing; asyncio would report it as an error
        except (JaxtributeError, EOFError, OSError, KeyError, TimeoutError) as error:
            peer = writer.get_extra_info("peername")
            _log.info("A connection from %s ended: %s", peer, error)
        finally:
            writer.close()

    async def _link(
        self,
        request: _wire.Message,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        worker = int(request["worker"])
        refusal = self._roster.refusal(worker, request["facts"])
        if refusal is not None:
            writer.write(_wire.packed({"say": "refused", "why": refusal}))
            return
        self._links[worker] = writer
        self._send(self._roster.joined(worker, request["facts"], time.monotonic()))
        try:
            while True:
                message = await _wire.receive(reader)
                self._send(self._roster.said(worker, message, time.monotonic()))
        except (EOFError, OSError):
            del self._links[worker]
            self._send(self._roster.gone(worker))

    async def _tunnel(
        self,
        request: _wire.Message,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        while not self._service.exists():  # the chief may not have come as far
            await asyncio.sleep(0.01)
        service_reader, service = await asyncio.open_unix_connection(str(self._service))
        self._tunnels.add(writer)
        try:
            await asyncio.gather(pump(reader, service), pump(service_reader, writer))
        finally:
            self._tunnels.discard(writer)
            service.close()

    def _send(self, outgoing: Outgoing) -> None:
        for worker, message in outgoing:
            link = self._links.get(worker)
            if link is not None:
                link.write(_wire.packed(message))


async def _flushed(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, TimeoutError):  # one that is gone needs no farewell
        await asyncio.wait_for(writer.drain(), 1.0)
