"""Messages and greetings over real sockets: who is let in, and what is refused unread."""

import asyncio
import hashlib
import hmac
import json
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jaxtribute.errors import UnauthenticatedError, UnavailableError
from jaxtribute.workers import _wire

KEY = _wire.KEY_VARIABLE
REQUEST = {"kind": "link", "worker": 1}
SECONDS = 20.0

Side = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Any]]


def talk(chief: Side, worker: Side) -> tuple[Any, Any]:
    """Connect two sides by a socket, and return what each returned or raised."""

    async def outcome(side: Side, reader, writer) -> Any:
        try:
            return await asyncio.wait_for(side(reader, writer), SECONDS)
        except Exception as error:
            return error
        finally:
            writer.close()

    async def both() -> tuple[Any, Any]:
        accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def accept(reader, writer) -> None:
            accepted.set_result(await outcome(chief, reader, writer))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            result = await outcome(worker, reader, writer)
            return await asyncio.wait_for(accepted, SECONDS), result

    return asyncio.run(both())


def greeting(reader, writer):
    return _wire.greet(reader, writer, REQUEST)


def sending(*data: bytes, then: Side | None = None) -> Side:
    async def send(reader, writer) -> Any:
        for part in data:
            writer.write(part)
        await writer.drain()
        return None if then is None else await then(reader, writer)

    return send


async def reading_all(reader, writer) -> bytes:
    return await reader.read()


# --- Messages --------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [{}, {"a": [1, None, "ü"]}, {"text": "x" * 100_000}])
def test_a_message_arrives_as_it_was_sent(message):
    _, received = talk(sending(_wire.packed(message)), lambda reader, _: _wire.receive(reader))
    assert received == message


def test_messages_that_arrive_in_pieces_or_together_are_told_apart():
    first, second = _wire.packed({"n": 1}), _wire.packed({"n": 2})
    pieces = [first[:1], first[1:5], first[5:] + second]

    async def two(reader, writer):
        return [await _wire.receive(reader), await _wire.receive(reader)]

    assert talk(sending(*pieces), two)[1] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", EOFError),
        (b"\x00\x00", EOFError),
        (b"\x00\x00\x00\x09{}", EOFError),
        (b"\x00\x00\x00\x03abc", UnavailableError),
        (b"\x00\x00\x00\x02\xff\xfe", UnavailableError),
        (b"\x00\x00\x00\x02[]", UnavailableError),
        (b"\x00\x00\x00\x00", UnavailableError),
        (b"\xff\xff\xff\xff", UnavailableError),
        (b"GET / HTTP/1.1\r\n\r\n", UnavailableError),
        (_wire.packed({})[:4] + b"[" * 2, UnavailableError),
    ],
)
def test_what_is_no_message_is_refused(data, error):
    _, raised = talk(sending(data), lambda reader, _: _wire.receive(reader))
    assert type(raised) is error


def test_deeply_nested_data_is_refused():
    body = b"[" * 100_000
    data = struct.pack("!I", len(body)) + body
    _, raised = talk(sending(data), lambda reader, _: _wire.receive(reader))
    assert isinstance(raised, UnavailableError)


def test_what_is_too_long_is_refused_before_it_is_read():
    async def announce(reader, writer):
        writer.write(struct.pack("!I", 1001))
        await writer.drain()
        return await reader.read()  # the rest is never sent

    _, raised = talk(announce, lambda reader, _: _wire.receive(reader, 1000))
    assert isinstance(raised, UnavailableError)
    assert "1001 bytes" in str(raised)


# --- Greeting --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "sesame"])
def test_a_worker_with_the_clusters_key_is_let_in(monkeypatch, key):
    if key is None:
        monkeypatch.delenv(KEY, raising=False)
    else:
        monkeypatch.setenv(KEY, key)
    admitted, answer = talk(_wire.admit, greeting)
    assert admitted == REQUEST
    assert "proof" in answer


# The other side written down by hand, so that it can know another key, or cheat.


def proof(key: str, side: str, chiefs_nonce: str, workers_nonce: str) -> str:
    text = f"{side} {chiefs_nonce} {workers_nonce}".encode()
    return hmac.new(key.encode(), text, hashlib.sha256).hexdigest()


def worker_with(key: str) -> Side:
    async def greet(reader, writer):
        hello = await _wire.receive(reader)
        own = proof(key, "worker", hello["nonce"], "mine")
        writer.write(_wire.packed({"request": REQUEST, "nonce": "mine", "proof": own}))
        return await _wire.receive(reader)

    return greet


def chief_with(key: str) -> Side:
    async def admit(reader, writer):
        writer.write(_wire.packed({"jaxtribute": _wire.PROTOCOL, "nonce": "mine"}))
        greeting = await _wire.receive(reader)
        writer.write(_wire.packed({"proof": proof(key, "chief", "mine", greeting["nonce"])}))

    return admit


async def echoing_chief(reader, writer):
    writer.write(_wire.packed({"jaxtribute": _wire.PROTOCOL, "nonce": "mine"}))
    greeting = await _wire.receive(reader)
    writer.write(_wire.packed({"proof": greeting["proof"]}))


@pytest.mark.parametrize("key", ["", "sesame"])
def test_the_greeting_is_what_it_is_said_to_be(monkeypatch, key):
    monkeypatch.setenv(KEY, key)
    assert talk(_wire.admit, worker_with(key))[0] == REQUEST
    assert "proof" in talk(chief_with(key), greeting)[1]


@pytest.mark.parametrize(
    ("chiefs", "workers"), [("sesame", "barley"), ("sesame", ""), ("", "barley")]
)
def test_a_worker_without_the_key_is_refused_and_told(monkeypatch, chiefs, workers):
    monkeypatch.setenv(KEY, chiefs)
    admitted, answer = talk(_wire.admit, worker_with(workers))
    assert isinstance(admitted, UnauthenticatedError)
    assert KEY in answer["refused"]
    assert "proof" not in answer


@pytest.mark.parametrize("chief", [chief_with("barley"), chief_with(""), echoing_chief])
def test_a_chief_without_the_key_is_not_believed(monkeypatch, chief):
    monkeypatch.setenv(KEY, "sesame")
    assert isinstance(talk(chief, greeting)[1], UnauthenticatedError)


def test_a_refusal_is_raised_with_its_reason():
    async def refuse(reader, writer):
        writer.write(_wire.packed({"jaxtribute": _wire.PROTOCOL, "nonce": "mine"}))
        await _wire.receive(reader)
        writer.write(_wire.packed({"refused": "not today"}))

    with pytest.raises(UnauthenticatedError, match="not today"):
        raise talk(refuse, greeting)[1]


def test_the_key_itself_is_never_sent(monkeypatch):
    monkeypatch.setenv(KEY, "sesame")

    async def listening_chief(reader, writer):
        writer.write(_wire.packed({"jaxtribute": _wire.PROTOCOL, "nonce": "mine"}))
        return await reader.read(65536)

    heard, _ = talk(listening_chief, greeting)
    assert b"proof" in heard
    assert b"sesame" not in heard


def test_each_greeting_is_another(monkeypatch):
    monkeypatch.setenv(KEY, "sesame")
    nonces = set()

    async def note(reader, writer):
        nonces.add((await _wire.receive(reader))["nonce"])

    for _ in range(3):
        talk(_wire.admit, note)
    assert len(nonces) == 3


@pytest.mark.parametrize(
    "greeting",
    [
        {},
        {"nonce": 1, "proof": "x", "request": {}},
        {"nonce": "x", "proof": None, "request": {}},
        {"nonce": "x", "proof": "x", "request": []},
        {"nonce": "x", "proof": "ü", "request": {}},
    ],
)
def test_a_greeting_that_is_none_is_refused(greeting):
    admitted, _ = talk(_wire.admit, sending(_wire.packed(greeting), then=reading_all))
    assert isinstance(admitted, (UnavailableError, UnauthenticatedError))


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", struct.pack("!I", 65 * 1024), b""])
def test_a_stranger_gets_nothing_but_the_first_word(data):
    async def probe(reader, writer):
        writer.write(data)
        writer.write_eof()
        return await reader.read()

    admitted, heard = talk(_wire.admit, probe)
    assert isinstance(admitted, (UnavailableError, EOFError))
    assert heard == b"" or json.loads(heard[4:]).keys() == {"jaxtribute", "nonce"}


@pytest.mark.parametrize(
    "hello",
    [
        _wire.packed({"jaxtribute": _wire.PROTOCOL + 1, "nonce": "x"}),
        _wire.packed({"jaxtribute": _wire.PROTOCOL, "nonce": 5}),
        _wire.packed({}),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_something_that_is_no_chief_is_told_nothing(hello):
    heard, raised = talk(sending(hello, then=reading_all), greeting)
    assert isinstance(raised, UnavailableError)
    assert heard == b""


@pytest.mark.parametrize("answer", [{}, {"proof": None}, {"proof": 3}, {"proof": "ü"}])
def test_an_answer_without_a_proof_is_not_believed(answer):
    async def chief(reader, writer):
        writer.write(_wire.packed({"jaxtribute": _wire.PROTOCOL, "nonce": "mine"}))
        await _wire.receive(reader)
        writer.write(_wire.packed(answer))

    assert isinstance(talk(chief, greeting)[1], UnauthenticatedError)
