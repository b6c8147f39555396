"""Messages between workers: small JSON objects, each with its length in front.

Nothing that arrives is ever unpickled or executed, and what is too long is refused before it is
read. A cluster that has a key (`JAXTRIBUTE_CLUSTER_KEY`) lets nobody in who does not know it: both
sides prove so without sending it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import secrets
import struct
from typing import Any

from .. import _job
from ..errors import UnauthenticatedError, UnavailableError

PROTOCOL = 1
KEY_VARIABLE = _job.CLUSTER_KEY
_LENGTH = struct.Struct("!I")
_LONGEST = 16 * 1024 * 1024
_LONGEST_GREETING = 64 * 1024

Message = dict[str, Any]


def packed(message: Message) -> bytes:
    """Return a message as it is sent."""
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


async def receive(reader: asyncio.StreamReader, longest: int = _LONGEST) -> Message:
    """Return the next message.

    Raises:
      EOFError: when the other side has closed the connection.
      UnavailableError: when something else than messages arrives.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > longest:
            raise UnavailableError(f"A message of {length} bytes was announced; that is no worker.")
        message = json.loads(await reader.readexactly(length))
    except asyncio.IncompleteReadError as error:
        raise EOFError("the connection was closed") from error
    except (ValueError, RecursionError) as error:
        raise UnavailableError("Something arrived that is no message of a worker.") from error
    if not isinstance(message, dict):
        raise UnavailableError("Something arrived that is no message of a worker.")
    return message


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Message
) -> Message:
    """Introduce this process to the chief, and return the chief's answer.

    Raises:
      UnauthenticatedError: when either side does not know the cluster's key.
      UnavailableError: when something else than a chief answers.
    """
    hello = await receive(reader, _LONGEST_GREETING)
    if hello.get("jaxtribute") != PROTOCOL or not isinstance(hello.get("nonce"), str):
        raise UnavailableError(f"It does not speak protocol {PROTOCOL} of jaxtribute.")
    nonce = secrets.token_hex(16)
    proof = _proof("worker", hello["nonce"], nonce)
    writer.write(packed({"request": request, "nonce": nonce, "proof": proof}))
    answer = await receive(reader)
    if "refused" in answer:
        raise UnauthenticatedError(answer["refused"])
    if not _is_proof(answer.get("proof"), _proof("chief", hello["nonce"], nonce)):
        raise UnauthenticatedError(f"The chief does not know this worker's {KEY_VARIABLE}.")
    return answer


async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Message:
    """Ask who connects, and return its request.

    Raises:
      UnauthenticatedError: when it does not know the cluster's key; it has been told.
    """
    nonce = secrets.token_hex(16)
    writer.write(packed({"jaxtribute": PROTOCOL, "nonce": nonce}))
    greeting = await receive(reader, _LONGEST_GREETING)
    other = greeting.get("nonce")
    proof, request = greeting.get("proof"), greeting.get("request")
    if not (isinstance(other, str) and isinstance(proof, str) and isinstance(request, dict)):
        raise UnavailableError("Something connected that is no worker.")
    if not _is_proof(proof, _proof("worker", nonce, other)):
        why = (
            f"The chief and this worker have a different {KEY_VARIABLE}, or only one of them has "
            "any. Give all workers of a cluster the same one."
        )
        writer.write(packed({"refused": why}))
        raise UnauthenticatedError(why)
    writer.write(packed({"proof": _proof("chief", nonce, other)}))
    return request


def _is_proof(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())


def _proof(side: str, chiefs_nonce: str, workers_nonce: str) -> str:
    key = os.environ.get(KEY_VARIABLE, "").encode()
    text = f"{side} {chiefs_nonce} {workers_nonce}".encode()
    return hmac.new(key, text, hashlib.sha256).hexdigest()
