"""How two processes prove to each other that they know the cluster's key. No sockets here.

    client                                server
    Hello(task, server, nonce)     ->
                                   <-     Challenge(task, incarnation, nonce)
    Proof                          ->
                                   <-     Welcome(proof)

A proof is an HMAC over everything that was said, both nonces and the version of the protocol
included, so one that was overheard is worth nothing in another handshake. Both sides derive from
it the tokens that their later messages carry: a connection that was not there for the handshake
cannot pretend it was.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Annotated

import msgspec

from ..errors import FailedPreconditionError, UnauthenticatedError
from ._key import ClusterKey
from ._wire import PROTOCOL

_NAME = Annotated[str, msgspec.Meta(max_length=256)]
_NONCE = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Hello(msgspec.Struct, tag="hello", tag_field="message", frozen=True):
    """A client says who it is, and whom it wants to talk to."""

    task: _NAME
    incarnation: _NAME
    server: _NAME
    nonce: _NONCE


class Challenge(msgspec.Struct, tag="challenge", tag_field="message", frozen=True):
    """A server says who it is, and wants a proof."""

    task: _NAME
    incarnation: _NAME
    nonce: _NONCE


class Proof(msgspec.Struct, tag="proof", tag_field="message", frozen=True):
    """What only a client that knows the key can compute."""

    proof: _NONCE


class Welcome(msgspec.Struct, tag="welcome", tag_field="message", frozen=True):
    """What only a server that knows the key can compute."""

    proof: _NONCE


class Refused(msgspec.Struct, tag="refused", tag_field="message", frozen=True):
    """A server does not talk to this client; `again` if it may when introduced anew."""

    error: Annotated[str, msgspec.Meta(max_length=64)]
    """The name of the exception it means."""
    why: Annotated[str, msgspec.Meta(max_length=2048)]
    again: bool = False


@dataclass(frozen=True)
class Tokens:
    """What the messages of a session carry, in each direction."""

    to_server: bytes
    to_client: bytes


class ServerHandshake:
    """The server's side of one handshake.

    Args:
      key: of the cluster.
      task: which task the server is.
      incarnation: which life of it.
      hello: what the client has said.

    Raises:
      FailedPreconditionError: when the client wants another task.
    """

    def __init__(self, key: ClusterKey, task: str, incarnation: str, hello: Hello) -> None:
        if hello.server != task:
            raise FailedPreconditionError(
                f"{hello.task} expects {hello.server} at this address, and it is {task}'s. Do all "
                "tasks have the same description of the cluster?"
            )
        self.hello = hello
        self.challenge = Challenge(task, incarnation, secrets.token_bytes(32))
        self._key = key
        self._transcript = _transcript(hello, self.challenge)

    def admit(self, proof: Proof) -> tuple[Welcome, Tokens]:
        """Return what to answer, and the tokens of the session.

        Raises:
          UnauthenticatedError: when the client does not know the key.
        """
        if not hmac.compare_digest(proof.proof, _mac(self._key, "client", self._transcript)):
            raise UnauthenticatedError(
                f"{self.hello.task} and {self.challenge.task} have different cluster keys. Give "
                "all tasks of the cluster the same JAXTRIBUTE_CLUSTER_KEY."
            )
        welcome = Welcome(_mac(self._key, "server", self._transcript))
        return welcome, _tokens(self._key, self._transcript)


class ClientHandshake:
    """The client's side of one handshake.

    Args:
      key: of the cluster.
      task: which task the client is.
      incarnation: which life of it.
      server: the task it wants to talk to.
    """

    def __init__(self, key: ClusterKey, task: str, incarnation: str, server: str) -> None:
        self.hello = Hello(task, incarnation, server, secrets.token_bytes(32))
        self.challenge: Challenge | None = None
        self._key = key
        self._transcript = b""

    def prove(self, challenge: Challenge) -> Proof:
        """Return the answer to a challenge.

        Raises:
          FailedPreconditionError: when it is another task that answers.
          UnauthenticatedError: when it has been answered already.
        """
        if self.challenge is not None:
            raise UnauthenticatedError(f"{challenge.task} wants two proofs in one handshake.")
        if challenge.task != self.hello.server:
            raise FailedPreconditionError(
                f"{self.hello.server} was expected, and {challenge.task} answers. Do all tasks "
                "have the same description of the cluster?"
            )
        self.challenge = challenge
        self._transcript = _transcript(self.hello, challenge)
        return Proof(_mac(self._key, "client", self._transcript))

    def accept(self, welcome: Welcome) -> Tokens:
        """Return the tokens of the session.

        Raises:
          UnauthenticatedError: when the server does not know the key.
        """
        if self.challenge is None or not hmac.compare_digest(
            welcome.proof, _mac(self._key, "server", self._transcript)
        ):
            raise UnauthenticatedError(
                f"What answers as {self.hello.server} does not know the key of this cluster. Give "
                "all tasks the same JAXTRIBUTE_CLUSTER_KEY."
            )
        return _tokens(self._key, self._transcript)


def _transcript(hello: Hello, challenge: Challenge) -> bytes:
    # MessagePack says where each part ends, so that no two conversations look the same.
    return msgspec.msgpack.encode((PROTOCOL, hello, challenge))


def _mac(key: ClusterKey, side: str, transcript: bytes) -> bytes:
    return hmac.digest(key.derive(f"handshake of the {side}"), transcript, "sha256")


def _tokens(key: ClusterKey, transcript: bytes) -> Tokens:
    to_server = hmac.digest(key.derive("token to the server"), transcript, "sha256")[:8]
    to_client = hmac.digest(key.derive("token to the client"), transcript, "sha256")[:8]
    return Tokens(to_server, to_client)
