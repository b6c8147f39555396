"""Messages and arrays as bytes; what is damaged is noticed and nothing else happens."""

import jax.numpy as jnp
import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute.errors import InvalidArgumentError
from jaxtribute.rpc import ArrayType, WireError, _wire, array_type, as_array, frame_of, owned
from tests.rpc._support import Ask, Tell

TOKEN = b"8 bytes."
HEADER = _wire.encode(_wire.Kind.REQUEST, 7, TOKEN, _wire.encode_body(Ask("is it so?")))
decode = _wire.decoder(Ask | Tell)


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.arange(6.0).reshape(2, 3), id="float64"),
        pytest.param(np.arange(6, dtype=np.int8).reshape(2, 3).T, id="not contiguous"),
        pytest.param(np.arange(6, dtype=">i4")[::-2], id="other byte order"),
        pytest.param(np.float32(3), id="scalar"),
        pytest.param(np.array(True), id="truth value"),
        pytest.param(np.zeros((0, 3), np.complex64), id="empty"),
        pytest.param(np.arange(4).astype(ml_dtypes.bfloat16), id="bfloat16"),
        pytest.param(np.arange(4).astype(ml_dtypes.float8_e4m3fn), id="float8"),
        pytest.param(np.arange(4).astype(ml_dtypes.int4), id="int4"),
        pytest.param(jnp.arange(4, dtype=jnp.bfloat16), id="jax"),
    ],
)
def test_an_array_arrives_as_it_was(array):
    arrived = as_array(array_type(array), bytes(frame_of(array)))
    expected = np.asarray(array)
    assert arrived.shape == expected.shape
    assert arrived.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(arrived, expected)


def test_a_contiguous_array_is_not_copied_and_an_arrived_one_cannot_be_written_to():
    array = np.arange(6.0)
    assert np.shares_memory(array, np.frombuffer(frame_of(array)))
    frame = bytearray(frame_of(array))
    arrived = as_array(array_type(array), frame)
    assert np.shares_memory(arrived, np.frombuffer(frame))
    with pytest.raises(ValueError, match="read-only"):
        arrived[0] = 1


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.float32(2.0)])
def test_whoever_owns_an_arrived_array_may_write_to_it_without_a_copy(array):
    frame = bytearray(frame_of(array))
    mine = owned(as_array(array_type(array), memoryview(frame).toreadonly()))
    assert np.shares_memory(mine, np.frombuffer(frame, np.uint8))
    mine[...] = 1
    np.testing.assert_array_equal(mine, np.ones_like(array))


@pytest.mark.parametrize(
    "frame",
    [bytes(16), memoryview(bytearray(32))[8:24].toreadonly()],
    ids=["read-only", "a part of something"],
)
def test_its_owner_copies_what_may_belong_to_others(frame):
    mine = owned(as_array(ArrayType("float64", (2,)), frame))
    mine[...] = 1
    assert bytes(frame) == bytes(16)


def test_an_empty_array_can_be_owned():
    assert owned(as_array(ArrayType("float32", (0, 2)), b"")).shape == (0, 2)


def test_an_array_between_the_places_of_its_numbers_is_copied_by_its_owner():
    frame = memoryview(bytearray(1) + bytearray(frame_of(np.arange(6.0))))[1:]
    mine = owned(as_array(array_type(np.arange(6.0)), frame))
    assert mine.flags.aligned
    mine[0] = 5
    np.testing.assert_array_equal(mine, [5, 1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    "array",
    [np.array([None]), np.array(["text"]), np.zeros(2, "M8[s]"), np.zeros(2, [("a", int)])],
    ids=["object", "text", "time", "structured"],
)
def test_what_is_no_number_is_not_sent(array):
    with pytest.raises(InvalidArgumentError, match="Convert it first"):
        array_type(array)


@pytest.mark.parametrize(
    ("type", "frame"),
    [
        (("float32", (2,)), b"1234567"),
        (("float32", (2,)), b"123456789"),
        (("float32", (-2, -1)), b"12345678"),
        (("float32", (1 << 62, 1 << 62)), b""),
        (("float32", (0, 1 << 48, 1 << 48)), b""),
        (("float32", (1,) * 65), b"1234"),
        (("object", (1,)), b"12345678"),
        (("O", (1,)), b"12345678"),
        (("V8", (1,)), b"12345678"),
        (("f4,f4", (1,)), b"12345678"),
        (("", (8,)), b"12345678"),
    ],
)
def test_an_array_that_cannot_be_is_refused(type, frame):
    with pytest.raises(WireError):
        as_array(ArrayType(*type), frame)


@given(
    st.builds(
        ArrayType,
        st.sampled_from(["float32", "bool", "bfloat16", "object", "int4", "x"]) | st.text(),
        st.lists(st.integers(-3, 5) | st.integers()).map(tuple),
    ),
    st.binary(max_size=64),
)
def test_any_description_of_an_array_is_an_array_or_refused(type, frame):
    try:
        array = as_array(type, frame)
    except WireError:
        return
    assert array.shape == type.shape
    assert array.nbytes == len(frame)


def test_a_message_arrives_as_it_was():
    envelope = _wire.open_envelope(HEADER)
    assert (envelope.version, envelope.kind, envelope.request) == (1, _wire.Kind.REQUEST, 7)
    assert envelope.token == TOKEN
    assert decode(envelope.body) == Ask("is it so?")


def opened(header: bytes) -> object:
    return decode(_wire.open_envelope(header).body)


@given(st.binary(max_size=200))
def test_random_bytes_are_no_message(noise):
    with pytest.raises(WireError):
        opened(noise)


@given(st.integers(0, len(HEADER) - 1))
def test_a_part_of_a_message_is_no_message(length):
    with pytest.raises(WireError):
        opened(HEADER[:length])


@given(st.integers(0, len(HEADER) - 1), st.integers(0, 255))
def test_a_changed_message_is_another_message_or_none(place, byte):
    changed = bytearray(HEADER)
    changed[place] = byte
    try:
        body = opened(bytes(changed))
    except WireError:
        return
    assert isinstance(body, Ask | Tell)


@given(st.recursive(st.none() | st.integers() | st.text() | st.binary(), st.lists))
def test_a_body_of_other_things_is_no_message(thing):
    try:
        body = msgspec.msgpack.encode(thing)
    except (OverflowError, UnicodeEncodeError):  # what MessagePack has no place for
        return
    with pytest.raises(WireError):
        decode(body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x91" * 100_000, id="deep"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="four thousand million members"),
        pytest.param(b"\xdd\xff\xff\xff\xff" * 10, id="long lists"),
        pytest.param(b"\xc6\xff\xff\xff\xff", id="long bytes"),
        pytest.param(b"\x82\xa7message\xa3ask\xa4what\xa2\xff\xfe", id="no UTF-8"),
    ],
)
def test_what_takes_more_than_there_is_is_no_message(body):
    with pytest.raises(WireError):
        decode(body)


def test_a_header_has_a_limit_and_who_is_not_known_has_a_smaller_one():
    with pytest.raises(WireError, match="bytes"):
        _wire.open_envelope(HEADER + bytes(2 << 20))
    with pytest.raises(WireError, match="4096 bytes"):
        _wire.open_envelope(HEADER + bytes(5000), _wire.LONGEST_GREETING)


def test_the_version_of_another_protocol_can_be_read():
    header = _wire.encode(_wire.Kind.HELLO, 0, TOKEN, b"whatever", version=9)
    assert _wire.open_envelope(header).version == 9


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (Ask("x" * (2 << 20)), "Send several messages"),
        (Ask(object()), "Ask cannot be sent"),
        (Ask(1 << 70), "Ask cannot be sent"),
    ],
    ids=["long", "object", "large number"],
)
def test_what_could_not_be_read_is_not_sent(body, message):
    with pytest.raises(InvalidArgumentError, match=message):
        _wire.encode_body(body)


def test_frames_have_limits():
    with pytest.raises(InvalidArgumentError, match="65536 frames"):
        _wire.checked_frames([b""] * 65537)
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (1 << 31,), (0,), writeable=False)
    with pytest.raises(InvalidArgumentError, match="Send it in parts"):
        _wire.checked_frames([memoryview(huge)])
