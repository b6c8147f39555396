"""The secret of a cluster: where it comes from, and who must not be able to read it."""

import os
import stat

import pytest

from jaxtribute.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from jaxtribute.rpc import ClusterKey


@pytest.fixture
def file(monkeypatch, tmp_path):
    monkeypatch.delenv("JAXTRIBUTE_CLUSTER_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "jaxtribute" / "cluster_key"


def same(one: ClusterKey, other: ClusterKey) -> bool:
    return one.derive("a test") == other.derive("a test")


def test_a_key_is_made_when_it_is_first_needed_and_kept(file):
    first = ClusterKey.load()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [file] == list(file.parent.iterdir())
    assert same(first, ClusterKey.load())
    file.unlink()
    assert not same(first, ClusterKey.load())


def test_the_variable_comes_before_the_file(file, monkeypatch):
    in_file = ClusterKey.load()
    monkeypatch.setenv("JAXTRIBUTE_CLUSTER_KEY", "0123456789abcdef")
    assert same(ClusterKey.load(), ClusterKey(b"0123456789abcdef"))
    assert not same(ClusterKey.load(), in_file)


def test_a_secret_that_can_be_guessed_is_refused_and_not_printed(file, monkeypatch):
    monkeypatch.setenv("JAXTRIBUTE_CLUSTER_KEY", "hunter2")
    with pytest.raises(InvalidArgumentError, match=r"7 characters.*16 or more") as refused:
        ClusterKey.load()
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_file_that_others_can_read_is_refused(file, mode):
    ClusterKey.load()
    file.chmod(mode)
    with pytest.raises(PermissionDeniedError, match="chmod 600"):
        ClusterKey.load()


def test_a_file_without_a_key_is_refused(file):
    file.parent.mkdir()
    file.touch(0o600)
    with pytest.raises(UnauthenticatedError, match="holds no cluster key"):
        ClusterKey.load()


def test_a_file_that_cannot_be_made_is_explained(file, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", os.devnull)
    with pytest.raises(FailedPreconditionError, match="Set JAXTRIBUTE_CLUSTER_KEY instead"):
        ClusterKey.load()


@pytest.mark.parametrize("address", ["10.0.0.1:2222", "host0:2222", "0.0.0.0:2222", "[::]:2222"])
def test_a_public_address_needs_a_key_that_was_given(file, address):
    with pytest.raises(FailedPreconditionError, match="Set JAXTRIBUTE_CLUSTER_KEY to the same"):
        ClusterKey.load(address)
    assert not file.exists()
    made = ClusterKey.load()
    assert same(ClusterKey.load(address), made)


@pytest.mark.parametrize("address", ["127.0.0.1:2222", "localhost:2222", "[::1]:2222", None])
def test_an_address_of_this_machine_needs_none(file, address):
    ClusterKey.load(address)
    assert file.exists()


def test_keys_for_different_purposes_and_of_different_secrets_differ():
    one, other = ClusterKey(b"one"), ClusterKey(b"other")
    assert len({one.derive("a"), one.derive("b"), other.derive("a"), other.derive("b")}) == 4
    assert len({*one.server_pair, *one.client_pair, *other.server_pair, *other.client_pair}) == 8
    assert one.server_pair == ClusterKey(b"one").server_pair


def test_a_secret_is_not_shown():
    key = ClusterKey(b"a very secret secret")
    assert "secret" not in repr(key)
    assert b"a very secret secret" not in str(vars(key)).encode()


def test_nothing_is_no_secret():
    with pytest.raises(InvalidArgumentError, match="empty"):
        ClusterKey(b"")
