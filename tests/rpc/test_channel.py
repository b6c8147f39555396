"""Asking a server over real sockets, and what happens when it goes away."""

import os
import socket
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from jaxtribute import errors
from jaxtribute.rpc import Channel, ClusterKey, Listener, _channel, exchange
from tests.rpc._support import (
    KEY,
    OTHER_KEY,
    Answer,
    Ask,
    Handler,
    cut_connections,
    free_address,
    serving,
    tcp_only,
    unix_socket,
    until,
)


def channel(address, *, task="ps:0", key: ClusterKey = KEY, encryption=True):
    return Channel(address, task, "worker:0", key, Answer, encryption=encryption)


def ask(channel, what="hello", frames=(), patience=20.0):
    (reply,) = exchange([(channel, Ask(what), frames)], what="an answer", patience=patience)
    return reply


@pytest.fixture(params=["unix", "tcp", "tcp, not encrypted"])
def way(request, monkeypatch):
    """Whether TCP is encrypted, for each way to reach a server."""
    if request.param == "unix":
        yield True
    else:
        with tcp_only(monkeypatch):
            yield request.param == "tcp"


class TestAsking:
    def test_a_request_is_answered_with_its_frames(self, way):
        address = free_address()
        arrays = [np.arange(5.0), np.zeros(0), np.arange(1_000_000)]
        with serving(address, encryption=way) as listener:
            asking = channel(address, encryption=way)
            assert asking.incarnation is None
            reply = ask(asking, "hello", [memoryview(array).cast("B") for array in arrays])
            assert asking.incarnation == listener.incarnation
            asking.close()
        assert reply.body == Answer("hello")
        for sent, arrived in zip(arrays, reply.frames, strict=True):
            assert memoryview(arrived).readonly
            assert bytes(arrived) == sent.tobytes()

    def test_many_frames_arrive_in_order(self, way):
        address = free_address()
        frames = [str(number).encode() for number in range(3000)]
        with serving(address, encryption=way):
            asking = channel(address, encryption=way)
            assert [bytes(frame) for frame in ask(asking, "hello", frames).frames] == frames
            asking.close()

    def test_a_large_frame_arrives_whole(self):
        address = free_address()
        large = np.random.default_rng(0).integers(0, 255, 32 << 20, np.uint8)
        with serving(address) as listener:
            asking = channel(address)
            (arrived,) = ask(asking, "hello", [large.data]).frames
            assert np.array_equal(np.frombuffer(arrived, np.uint8), large)
            assert listener.bytes_in > large.nbytes < listener.bytes_out
            asking.close()

    def test_several_servers_are_asked_at_the_same_time(self):
        addresses = [free_address() for _ in range(3)]
        slow = Handler()
        with serving(addresses[0], slow), serving(addresses[1]), serving(addresses[2]):
            channels = [channel(address) for address in addresses]
            requests = [(c, Ask(w), ()) for c, w in zip(channels, ["hold", "b", "c"], strict=True)]
            done = []
            thread = threading.Thread(
                target=lambda: done.extend(exchange(requests, what="all", patience=20))
            )
            thread.start()
            until(lambda: slow.asked)
            slow.hold.set()
            thread.join()
            assert [reply.body.what for reply in done] == ["hold", "b", "c"]
            for each in channels:
                each.close()

    def test_several_requests_to_one_server_are_answered_in_their_order(self):
        address = free_address()
        with serving(address):
            asking = channel(address)
            requests = [(asking, Ask(str(number)), ()) for number in range(50)]
            replies = exchange(requests, what="all", patience=20)
            assert [reply.body.what for reply in replies] == [str(n) for n in range(50)]
            asking.close()

    def test_a_request_may_be_answered_later_by_another_thread(self):
        address = free_address()
        handler = Handler()
        with serving(address, handler) as listener:
            asking = channel(address)

            def answer():
                until(lambda: handler.asked)
                peer, request, _ = handler.asked[0]
                listener.answer(peer, request, Answer("at last"), [b"frame"])

            thread = threading.Thread(target=answer)
            thread.start()
            reply = ask(asking, "later")
            thread.join()
            assert (reply.body.what, bytes(reply.frames[0])) == ("at last", b"frame")
            asking.close()

    def test_nothing_is_asked_of_nobody(self):
        assert exchange([], what="nothing", patience=1) == []

    def test_a_peer_is_known_by_its_task_and_its_life(self):
        address = free_address()
        handler = Handler()
        with serving(address, handler):
            for _ in range(2):
                asking = channel(address)
                ask(asking)
                asking.close()
                until(lambda: handler.gone == handler.peers)
        assert handler.gone == handler.peers
        assert {peer.task for peer in handler.peers} == {"worker:0"}
        assert len({peer.incarnation for peer in handler.peers}) == 2


class TestErrors:
    @pytest.mark.parametrize(
        ("what", "type", "text"),
        [
            ("missing", errors.NotFoundError, "there is no such thing"),
            ("unavailable", errors.TaskUnavailableError, "ps:7 is not available: it is asleep."),
            ("taken over", errors.FailedPreconditionError, "another coordinator has taken over"),
            ("bug", errors.InternalError, "ZeroDivisionError: division by zero"),
            ("huge", errors.InvalidArgumentError, "Send several messages"),
        ],
    )
    def test_what_a_handler_raises_is_raised_where_it_was_asked(self, what, type, text, capsys):
        address = free_address()
        with serving(address):
            asking = channel(address)
            with pytest.raises(type, match=text) as raised:
                ask(asking, what)
            assert raised.value.__notes__ == ["This happened on ps:0."]
            assert ask(asking).body == Answer("hello")
            asking.close()
        assert ("ZeroDivisionError" in capsys.readouterr().err) == (what == "bug")

    def test_an_error_of_one_server_is_raised_when_all_have_answered(self):
        one, other = free_address(), free_address()
        handler = Handler()
        with serving(one), serving(other, handler):
            channels = [channel(one), channel(other)]
            requests = [(c, Ask(w), ()) for c, w in zip(channels, ["missing", "x"], strict=True)]
            with pytest.raises(errors.NotFoundError):
                exchange(requests, what="all", patience=20)
            assert handler.asked
            for each in channels:
                each.close()

    def test_an_answer_that_was_not_expected_is_an_error(self):
        address = free_address()
        with serving(address):
            asking = Channel(address, "ps:0", "worker:0", KEY, Ask)
            with pytest.raises(errors.InvalidArgumentError, match="cannot be understood"):
                ask(asking)
            asking.close()

    def test_a_channel_is_for_one_thread(self):
        address = free_address()
        handler = Handler()
        with serving(address, handler):
            asking = channel(address)
            thread = threading.Thread(target=ask, args=(asking, "hold"))
            thread.start()
            until(lambda: handler.asked)
            with pytest.raises(errors.FailedPreconditionError, match="two threads"):
                ask(asking)
            handler.hold.set()
            thread.join()
            asking.close()


class TestComingAndGoing:
    def test_a_server_that_starts_later_is_found(self):
        address = free_address()
        asking = channel(address)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(ask(asking)))
        thread.start()
        until(lambda: "nothing listens" in asking.link.why)
        with serving(address):
            thread.join()
        assert answers[0].body == Answer("hello")
        asking.close()

    def test_a_server_that_is_not_there_is_named(self):
        address = free_address()
        asking = channel(address)
        with pytest.raises(errors.TaskUnavailableError, match=f"nothing listens at {address}"):
            ask(asking, patience=0.2)
        asking.close()

    def test_a_server_that_was_restarted_is_noticed_once(self):
        address = free_address()
        asking = channel(address)
        with serving(address):
            ask(asking)
        with serving(address) as listener:
            with pytest.raises(errors.TaskUnavailableError, match="it was restarted"):
                ask(asking)
            assert asking.incarnation == listener.incarnation
            assert ask(asking).body == Answer("hello")
        asking.close()

    def test_a_server_that_ends_while_it_is_asked_is_noticed(self):
        address = free_address()
        handler = Handler()
        asking = channel(address)
        with serving(address, handler) as listener:

            def end():
                until(lambda: handler.asked)
                listener.abandon()

            thread = threading.Thread(target=end)
            thread.start()
            with pytest.raises(errors.TaskUnavailableError, match="ps:0 is not available"):
                ask(asking, "later", patience=0.3)
            thread.join()
        asking.close()

    def test_a_request_is_sent_again_when_only_the_connection_ended(self):
        address = free_address()
        handler = Handler()
        with serving(address, handler) as listener:
            asking = channel(address)
            answers = []
            thread = threading.Thread(target=lambda: answers.append(ask(asking, "hold")))
            thread.start()
            until(lambda: handler.asked)
            cut_connections(listener)
            handler.hold.set()
            thread.join()
            assert answers[0].body == Answer("hold")
            assert len({peer.id for peer in handler.peers}) == 2
            assert len({peer.incarnation for peer in handler.peers}) == 1
            asking.close()

    def test_closing_ends_the_waiting(self):
        address = free_address()
        handler = Handler()
        with serving(address, handler):
            asking = channel(address)
            raised = []

            def wait():
                with pytest.raises(errors.CancelledError, match="was closed while waiting") as info:
                    ask(asking, "later")
                raised.append(info)

            thread = threading.Thread(target=wait)
            thread.start()
            until(lambda: handler.asked)
            asking.close()
            asking.close()
            thread.join()
            assert raised
            until(lambda: handler.gone)

    def test_an_answer_that_nobody_waits_for_any_more_is_ignored(self):
        address = free_address()
        handler = Handler()
        with serving(address, handler) as listener:
            one, other = channel(address), channel(free_address(), task="ps:1")
            with pytest.raises(errors.TaskUnavailableError, match="ps:1"):
                requests = [(one, Ask("later"), ()), (other, Ask("x"), ())]
                exchange(requests, what="all", patience=0.3)
            peer, request, _ = handler.asked[0]
            listener.answer(peer, request, Answer("too late"))
            assert ask(one).body == Answer("hello")
            one.close()
            other.close()

    def test_a_stale_unix_socket_is_passed_by_and_replaced(self):
        address = free_address()
        path = unix_socket(address)
        with serving(address):
            os.link(path, stale := path.with_suffix(".stale"))
        assert not path.exists()
        stale.rename(path)  # as a server leaves it that is killed
        asking = channel(address)
        with pytest.raises(errors.TaskUnavailableError):
            ask(asking, patience=0.2)
        asking.close()
        with serving(address):
            asking = channel(address)
            assert ask(asking).body == Answer("hello")
            assert asking.link.socket.last_endpoint.startswith(b"ipc://")
            asking.close()

    def test_who_waits_long_says_for_whom(self, monkeypatch, capsys):
        monkeypatch.setattr(_channel, "_FIRST_WORD", 0.1)
        address = free_address()
        handler = Handler()
        gone = free_address()
        with serving(address, handler):
            channels = [channel(address), channel(gone, task="ps:1")]
            with pytest.raises(errors.TaskUnavailableError):
                exchange([(c, Ask("later"), ()) for c in channels], what="values", patience=0.5)
            for each in channels:
                each.close()
        said = capsys.readouterr().err
        assert "jaxtribute: worker:0 has been waiting for values for 0 s: ps:0 (which is" in said
        assert f"ps:1 (nothing listens at {gone})" in said


class TestStrangers:
    def test_another_key_is_refused_at_once_where_nothing_is_encrypted(self, monkeypatch):
        address = free_address()
        with serving(address, encryption=False):
            asking = channel(address, key=OTHER_KEY, encryption=False)
            with pytest.raises(errors.UnauthenticatedError, match="different cluster keys"):
                ask(asking)
            asking.close()

    def test_another_key_gets_no_answer_where_all_is_encrypted(self):
        address = free_address()
        handler = Handler()
        with serving(address, handler):
            asking = channel(address, key=OTHER_KEY)
            with pytest.raises(errors.TaskUnavailableError, match="cluster key may be another"):
                ask(asking, patience=1.0)
            asking.close()
        assert not handler.peers

    def test_another_key_is_not_waited_for_however_patient_one_is(self):
        address = free_address()
        with serving(address):
            asking = channel(address, key=OTHER_KEY)
            with pytest.raises(errors.UnauthenticatedError, match="ps:0 does not let this task in"):
                ask(asking, patience=100.0)
            asking.close()

    @pytest.mark.parametrize("encrypting", ["client", "server"])
    def test_encryption_on_one_side_only_is_explained(self, encrypting, monkeypatch):
        address = free_address()
        with serving(address, encryption=encrypting == "server"), tcp_only(monkeypatch):
            asking = channel(address, encryption=encrypting == "client")
            with pytest.raises(errors.TaskUnavailableError, match="may not encrypt as this"):
                ask(asking, patience=1.0)
            asking.close()

    def test_another_task_at_the_address_is_named(self):
        address = free_address()
        with serving(address, task="worker:3"):
            asking = channel(address)
            with pytest.raises(errors.FailedPreconditionError, match=r"expects ps:0 .* worker:3's"):
                ask(asking)
            asking.close()


@pytest.fixture
def runtime_directory(monkeypatch):
    """A place for unix sockets with a name that is short enough."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory)


class TestListening:
    def test_a_port_in_use_is_refused_with_who_has_it(self):
        address = free_address()
        with (
            serving(address),
            pytest.raises(errors.FailedPreconditionError, match="in use by this process itself"),
        ):
            Listener(address, "ps:0", KEY, Handler())

    def test_what_is_no_address_is_refused(self):
        with pytest.raises(errors.InvalidArgumentError, match="host and a port"):
            Listener("nowhere", "ps:0", KEY, Handler())
        with pytest.raises(errors.InvalidArgumentError, match="host and a port"):
            channel("nowhere")

    def test_stopping_before_serving_frees_the_port_and_may_repeat(self):
        address = free_address()
        for _ in range(3):
            listener = Listener(address, "ps:0", KEY, Handler())
            listener.stop()
            listener.stop()
            listener.serve()

    def test_only_one_thread_serves(self):
        address = free_address()
        with serving(address) as listener:
            asking = channel(address)
            ask(asking)
            with pytest.raises(errors.FailedPreconditionError, match="another thread"):
                listener.serve()
            asking.close()

    def test_a_name_and_ipv6_can_be_listened_on(self, monkeypatch):
        for host in ("localhost", "[::1]"):
            address = f"{host}:{free_address().rpartition(':')[2]}"
            with serving(address), tcp_only(monkeypatch):
                asking = channel(address)
                assert ask(asking).body == Answer("hello")
                asking.close()

    def test_a_directory_that_others_can_enter_is_not_used(self, runtime_directory, capsys):
        address = free_address()
        directory = unix_socket(address).parent
        directory.mkdir(mode=0o755)
        with serving(address):
            assert not list(directory.iterdir())
            asking = channel(address)
            assert ask(asking).body == Answer("hello")
            assert asking.link.socket.last_endpoint.startswith(b"tcp://")
            asking.close()
        assert "on TCP only" in capsys.readouterr().err

    def test_the_directory_of_unix_sockets_is_private(self, runtime_directory):
        address = free_address()
        with serving(address):
            path = unix_socket(address)
            assert path.is_socket()
            assert path.parent.stat().st_mode & 0o777 == 0o700
            asking = channel(address)
            ask(asking)
            assert asking.link.socket.last_endpoint == f"ipc://{path}".encode()
            asking.close()
        assert not path.exists()

    def test_sockets_that_were_left_behind_are_removed(self, runtime_directory):
        address = free_address()
        path = unix_socket(address)
        path.parent.mkdir(mode=0o700)
        sockets = {name: socket.socket(socket.AF_UNIX) for name in ("old", "new", "in use")}
        for name, each in sockets.items():
            each.bind(str(path.with_name(name)))
            if name == "in use":
                each.listen()
            else:
                each.close()
            if name != "new":
                os.utime(path.with_name(name), (0, 0))
        with serving(address):
            assert sorted(path.parent.iterdir()) == sorted(
                [path, path.with_name("in use"), path.with_name("new")]
            )
        sockets["in use"].close()

    def test_a_directory_with_a_long_name_is_not_used(self, monkeypatch, tmp_path):
        long = tmp_path / ("x" * 100)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
        assert len(bytes(unix_socket(free_address()))) < 100
