"""Whatever arrives, a server answers or drops it, unpickles nothing, and goes on serving."""

import pickle
import socket
import struct

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxtribute.rpc import Channel, _door, _wire, exchange
from jaxtribute.rpc._handshake import Challenge, ClientHandshake, Proof, Refused, Welcome
from jaxtribute.rpc._wire import Kind
from tests.rpc._support import (
    KEY,
    OTHER_KEY,
    Answer,
    Ask,
    Handler,
    free_address,
    serving,
    unix_socket,
    until,
)

decode = _wire.decoder(Challenge | Welcome | Refused)


class Stranger:
    """A raw socket that speaks to a server without our client."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvtimeo = 20_000
        self._socket.connect(endpoint)
        self.token = _wire.NO_TOKEN

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._context.destroy(linger=0)

    def send(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def say(self, kind: Kind, body, request=0, version=_wire.PROTOCOL, frames=()) -> None:
        encoded = body if isinstance(body, bytes) else _wire.encode_body(body)
        self.send(_wire.encode(kind, request, self.token, encoded, version), *frames)

    def hear(self) -> tuple[Kind, object]:
        envelope = _wire.open_envelope(self._socket.recv_multipart()[0])
        if envelope.kind in (Kind.REPLY, Kind.ERROR, Kind.NOTICE):
            return envelope.kind, msgspec.msgpack.decode(envelope.body)
        return envelope.kind, decode(envelope.body)

    def introduce(self, key=KEY) -> tuple[Kind, object]:
        handshake = ClientHandshake(key, "worker:9", "life", "ps:0")
        self.say(Kind.HELLO, handshake.hello)
        _, challenge = self.hear()
        self.say(Kind.PROOF, handshake.prove(challenge))
        kind, answer = self.hear()
        if kind is Kind.WELCOME:
            self.token = handshake.accept(answer).to_server
        return kind, answer


@pytest.fixture(scope="module")
def module_server():
    address = free_address()
    handler = Handler()
    with serving(address, handler, encryption=False):
        yield address, handler


@pytest.fixture
def server(module_server, monkeypatch):
    """The address of a server, which must answer a good peer afterwards, and nobody else."""
    address, handler = module_server
    monkeypatch.setattr(pickle, "loads", _never)
    monkeypatch.setattr(pickle, "Unpickler", _never)
    handler.asked.clear()
    yield address
    asking = Channel(address, "ps:0", "worker:0", KEY, Answer, encryption=False)
    (reply,) = exchange([(asking, Ask("still there?"), [b"x"])], what="it", patience=20)
    asking.close()
    assert reply.body == Answer("still there?")


@pytest.fixture(params=["tcp", "unix"])
def stranger(request, server):
    where = f"tcp://{server}" if request.param == "tcp" else f"ipc://{unix_socket(server)}"
    with Stranger(where) as stranger:
        yield stranger


def _never(*args, **kwargs):
    raise AssertionError("something was unpickled")


class Bomb:
    def __reduce__(self):
        return _never, ()


BOMB = pickle.dumps(Bomb())


def test_one_who_knows_the_key_is_welcome_and_answered(stranger):
    assert stranger.introduce()[0] is Kind.WELCOME
    stranger.say(Kind.REQUEST, Ask("hello"), request=1)
    assert stranger.hear() == (Kind.REPLY, {"message": "answer", "what": "hello"})


def test_one_with_another_key_is_told_so(stranger):
    kind, refused = stranger.introduce(OTHER_KEY)
    assert kind is Kind.REFUSED
    assert refused.error == "UnauthenticatedError"
    assert "different cluster keys" in refused.why


@pytest.mark.parametrize("kind", [Kind.REQUEST, Kind.NOTICE, Kind.REPLY, Kind.PROOF, Kind.WELCOME])
def test_one_without_a_session_is_asked_to_introduce_itself(stranger, kind, module_server):
    body = Proof(bytes(32)) if kind is Kind.PROOF else Ask("let me in")
    stranger.say(kind, body, request=1, frames=[] if kind is Kind.PROOF else [BOMB])
    heard, refused = stranger.hear()
    assert heard is Kind.REFUSED
    assert refused.again
    assert not module_server[1].asked


@pytest.mark.parametrize("version", [0, 2, 65535])
def test_another_version_is_refused_by_naming_both(stranger, version):
    stranger.say(Kind.HELLO, b"in words of another time", version=version)
    kind, refused = stranger.hear()
    assert kind is Kind.REFUSED
    assert not refused.again
    assert f"speaks version 1 of the protocol, and was greeted in version {version}" in refused.why


def test_a_session_cannot_be_used_without_its_token(stranger, module_server):
    stranger.introduce()
    stranger.token = b"\0" * 8
    stranger.say(Kind.REQUEST, Ask("do it"), request=1)
    kind, refused = stranger.hear()
    assert (kind, refused.again) == (Kind.REFUSED, True)
    assert not module_server[1].asked


def test_a_handshake_that_was_overheard_opens_nothing(stranger, server, module_server):
    handshake = ClientHandshake(KEY, "worker:9", "life", "ps:0")
    stranger.say(Kind.HELLO, handshake.hello)
    _, challenge = stranger.hear()
    proof = handshake.prove(challenge)
    stranger.say(Kind.PROOF, proof)
    _, welcome = stranger.hear()
    with Stranger(f"tcp://{server}") as replaying:
        replaying.say(Kind.HELLO, handshake.hello)
        assert replaying.hear()[0] is Kind.CHALLENGE
        replaying.say(Kind.PROOF, proof)
        assert replaying.hear()[0] is Kind.REFUSED
        replaying.token = handshake.accept(welcome).to_server
        replaying.say(Kind.REQUEST, Ask("let me in"), request=1)
        assert replaying.hear()[0] is Kind.REFUSED
    assert not module_server[1].asked


def test_a_proof_can_be_tried_once_for_each_challenge(stranger):
    handshake = ClientHandshake(KEY, "worker:9", "life", "ps:0")
    stranger.say(Kind.HELLO, handshake.hello)
    _, challenge = stranger.hear()
    stranger.say(Kind.PROOF, Proof(bytes(32)))
    assert stranger.hear()[0] is Kind.REFUSED
    stranger.say(Kind.PROOF, handshake.prove(challenge))
    assert stranger.hear()[0] is Kind.REFUSED


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b""], id="empty"),
        pytest.param([b"", b""], id="empty twice"),
        pytest.param([BOMB], id="pickle"),
        pytest.param([b"x" * (5 << 20)], id="long header"),
        pytest.param([_wire.encode(Kind.HELLO, 0, _wire.NO_TOKEN, BOMB)], id="pickle as hello"),
        pytest.param([_wire.encode(Kind.HELLO, 0, _wire.NO_TOKEN, b"\x91" * 4000)], id="deep"),
        pytest.param([b"x"] * 70_000, id="too many frames"),
    ],
)
@pytest.mark.parametrize("known", [False, True], ids=["stranger", "peer"])
def test_garbage_is_answered_with_what_is_wrong(stranger, parts, known):
    if known:
        stranger.introduce()
    stranger.send(*parts)
    kind, _ = stranger.hear()
    assert kind in (Kind.REFUSED, Kind.ERROR)


@pytest.mark.parametrize(
    ("kind", "request_number", "body"),
    [
        (Kind.REQUEST, 0, Ask("x")),
        (Kind.NOTICE, 5, Ask("x")),
        (Kind.REPLY, 5, Ask("x")),
        (Kind.REQUEST, 5, Answer("not for servers")),
        (Kind.REQUEST, 5, BOMB),
        (Kind.REQUEST, 5, b""),
        (Kind.PROOF, 5, Proof(bytes(32))),
    ],
)
def test_a_peer_that_says_something_odd_gets_an_error_and_stays(
    stranger, kind, request_number, body
):
    stranger.introduce()
    stranger.say(kind, body, request=request_number)
    heard, failure = stranger.hear()
    assert heard is Kind.ERROR
    assert failure["name"] == "InvalidArgumentError"
    stranger.say(Kind.REQUEST, Ask("hello"), request=6)
    assert stranger.hear()[0] is Kind.REPLY


def test_a_peer_may_introduce_itself_anew(stranger, module_server):
    for _ in range(3):
        assert stranger.introduce()[0] is Kind.WELCOME
    _, handler = module_server
    own = handler.peers[-1].id  # those of earlier tests may go meanwhile
    assert [peer.id for peer in handler.gone].count(own) == 2
    stranger.say(Kind.REQUEST, Ask("hello"), request=1)
    assert stranger.hear()[0] is Kind.REPLY


def test_there_is_a_limit_to_peers(stranger, server, monkeypatch):
    monkeypatch.setattr(_door, "MOST_SESSIONS", 0)
    kind, refused = stranger.introduce()
    assert (kind, refused.error, refused.again) == (Kind.REFUSED, "ResourceExhaustedError", True)
    monkeypatch.undo()


def test_handshakes_that_are_not_finished_do_not_pile_up(module_server, server, monkeypatch):
    monkeypatch.setattr(_door, "_MOST_GREETED", 5)
    listener = module_server[1].listener
    strangers = [Stranger(f"tcp://{server}") for _ in range(20)]
    for each in strangers:
        each.say(Kind.HELLO, ClientHandshake(KEY, "worker:9", "life", "ps:0").hello)
        assert each.hear()[0] is Kind.CHALLENGE
    assert len(listener._doors[b"t"]._greeted) <= 5
    for each in strangers:
        each.__exit__()
    monkeypatch.undo()


HELLO = _wire.encode(
    Kind.HELLO,
    0,
    _wire.NO_TOKEN,
    _wire.encode_body(ClientHandshake(KEY, "worker:9", "life", "ps:0").hello),
)
REQUEST = _wire.encode(Kind.REQUEST, 3, _wire.NO_TOKEN, _wire.encode_body(Ask("something")))


@st.composite
def _damaged(draw):
    message = bytearray(draw(st.sampled_from([HELLO, REQUEST])))
    for place, byte in draw(
        st.lists(st.tuples(st.integers(0, len(message) - 1), st.integers(0, 255)), max_size=4)
    ):
        message[place] = byte
    return bytes(message[: draw(st.integers(0, len(message)))])


MESSAGES = st.lists(
    st.lists(st.binary(max_size=100) | _damaged() | st.just(BOMB), min_size=1, max_size=5),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize("known", [False, True], ids=["stranger", "peer"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=MESSAGES)
def test_no_sequence_of_messages_harms_a_server(server, known, messages):
    with Stranger(f"tcp://{server}") as stranger:
        if known:
            stranger.introduce()
        for parts in messages:
            stranger.send(*parts)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(min_size=1, max_size=300), greet=st.booleans())
def test_no_bytes_on_a_connection_harm_a_server(server, noise, greet):
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL" + bytes(16) + bytes(32)
    for family, where in (
        (socket.AF_INET, ("127.0.0.1", int(server.rpartition(":")[2]))),
        (socket.AF_UNIX, str(unix_socket(server))),
    ):
        with socket.socket(family) as connection:
            connection.connect(where)
            connection.sendall((greeting if greet else b"") + noise)


def test_a_frame_that_is_announced_as_huge_ends_the_connection(server):
    with socket.create_connection(("127.0.0.1", int(server.rpartition(":")[2])), 20) as connection:
        connection.sendall(b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL" + bytes(48))
        ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
        connection.sendall(bytes([4, len(ready)]) + ready)
        connection.sendall(b"\x02" + struct.pack(">Q", 1 << 50))
        while connection.recv(4096):  # until the server ends it
            pass


def test_encrypted_servers_stand_noise_too():
    address = free_address()
    handler = Handler()
    with serving(address, handler):
        where = ("127.0.0.1", int(address.rpartition(":")[2]))
        for mechanism in (b"NULL", b"CURVE", b"PLAIN", b"\xff" * 20):
            with socket.create_connection(where, 20) as connection:
                connection.sendall(
                    b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0")
                )
                connection.sendall(bytes(32) + b"\x04\xc8" + b"\x05HELLO" + bytes(194))
        with Stranger(f"tcp://{address}") as stranger:  # it does not encrypt
            stranger.say(Kind.HELLO, ClientHandshake(KEY, "worker:9", "life", "ps:0").hello)
        asking = Channel(address, "ps:0", "worker:0", KEY, Answer)
        (reply,) = exchange([(asking, Ask("still there?"), ())], what="it", patience=20)
        assert reply.body == Answer("still there?")
        asking.close()
        until(lambda: len(handler.gone) == 1)
        assert len(handler.peers) == 1
