"""Both sides prove that they know the key; nothing that was overheard helps."""

import msgspec
import pytest

from jaxtribute.errors import FailedPreconditionError, UnauthenticatedError
from jaxtribute.rpc._handshake import ClientHandshake, Proof, ServerHandshake, Welcome
from tests.rpc._support import KEY, OTHER_KEY


def client(key=KEY, server="ps:0"):
    return ClientHandshake(key, "worker:1", "life 1", server)


def server(hello, key=KEY):
    return ServerHandshake(key, "ps:0", "life 2", hello)


def test_both_sides_end_with_the_same_tokens_which_no_other_session_has():
    seen = set()
    for _ in range(3):
        one = client()
        other = server(one.hello)
        welcome, tokens = other.admit(one.prove(other.challenge))
        assert one.accept(welcome) == tokens
        seen |= {tokens.to_server, tokens.to_client}
    assert len(seen) == 6


def test_a_client_with_another_key_is_not_admitted():
    one = client(OTHER_KEY)
    other = server(one.hello)
    with pytest.raises(UnauthenticatedError, match="different cluster keys"):
        other.admit(one.prove(other.challenge))


def test_a_server_with_another_key_is_not_accepted():
    one = client()
    impostor = server(one.hello, OTHER_KEY)
    one.prove(impostor.challenge)
    fake, _ = server((mine := client(OTHER_KEY)).hello, OTHER_KEY), mine
    welcome, _ = fake.admit(mine.prove(fake.challenge))
    with pytest.raises(UnauthenticatedError, match="does not know the key"):
        one.accept(welcome)


def test_a_proof_that_was_overheard_is_worth_nothing_later():
    one = client()
    first = server(one.hello)
    overheard = one.prove(first.challenge)
    first.admit(overheard)
    again = server(one.hello)
    with pytest.raises(UnauthenticatedError):
        again.admit(overheard)


def test_a_welcome_that_was_overheard_is_worth_nothing_later():
    one = client()
    first = server(one.hello)
    overheard, _ = first.admit(one.prove(first.challenge))
    another = client()
    another.prove(first.challenge)
    with pytest.raises(UnauthenticatedError):
        another.accept(overheard)


def test_a_proof_cannot_be_sent_back_as_a_welcome():
    one = client()
    other = server(one.hello)
    proof = one.prove(other.challenge)
    with pytest.raises(UnauthenticatedError):
        one.accept(Welcome(proof.proof))


@pytest.mark.parametrize("field", ["task", "incarnation", "nonce"])
def test_what_was_said_cannot_be_changed_on_the_way(field):
    one = client()
    value = b"x" * 32 if field == "nonce" else "other"
    other = server(msgspec.structs.replace(one.hello, **{field: value}))
    with pytest.raises(UnauthenticatedError):
        other.admit(one.prove(other.challenge))


def test_a_welcome_without_a_challenge_is_not_accepted():
    with pytest.raises(UnauthenticatedError):
        client().accept(Welcome(bytes(32)))


def test_a_challenge_is_answered_once():
    one = client()
    challenge = server(one.hello).challenge
    one.prove(challenge)
    with pytest.raises(UnauthenticatedError, match="two proofs"):
        one.prove(challenge)


def test_another_task_is_noticed_by_the_server_and_by_the_client():
    with pytest.raises(FailedPreconditionError, match=r"expects ps:1 at this address.*ps:0's"):
        server(client(server="ps:1").hello)
    one = client(server="ps:1")
    challenge = server(client().hello).challenge
    with pytest.raises(FailedPreconditionError, match="ps:1 was expected, and ps:0 answers"):
        one.prove(challenge)


def test_an_empty_proof_is_none():
    other = server(client().hello)
    with pytest.raises(UnauthenticatedError):
        other.admit(Proof(bytes(32)))
