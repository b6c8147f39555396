"""Whether addresses work from here, with real sockets."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading

import pytest

import jaxtribute as jt
from jaxtribute.cluster import Task, _this_machine
from jaxtribute.cluster._reachability import can_connect, check_can_bind, resolve_host

WORKER = Task("worker", 1)
ELSEWHERE = "203.0.113.7"  # set aside for documentation, so it is nobody's

HOSTS = ["127.0.0.1", "localhost", "0.0.0.0"]
if "::1" in _this_machine.addresses():
    HOSTS += ["[::1]"]


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return port


@contextlib.contextmanager
def _held_by_another_process():
    program = (
        "import socket, sys; server = socket.create_server(('127.0.0.1', 0));"
        "print(server.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.stdin.close()


@pytest.fixture
def silent_name_server(monkeypatch):
    """Make looking up names last until the test is over, as a name server that is down does."""
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60) and [])
    yield
    over.set()


class TestResolveHost:
    @pytest.mark.parametrize(
        ("address", "number"),
        [("localhost:1", "127.0.0.1"), ("10.1.2.3:4", "10.1.2.3"), ("[::1]:4", "::1")],
    )
    def test_numbers(self, address, number):
        assert number in resolve_host(address)

    def test_a_name_nobody_knows(self):
        with pytest.raises(jt.errors.UnavailableError) as raised:
            resolve_host("no-such-host.invalid:2222", WORKER)
        assert isinstance(raised.value, ConnectionError)
        for part in ("'no-such-host.invalid'", "worker:1", "no-such-host.invalid:2222", "getent"):
            assert part in str(raised.value)

    def test_a_name_server_that_does_not_answer(self, silent_name_server):
        with pytest.raises(jt.errors.DeadlineExceededError, match=r"'slow'.*worker:1 \(slow:1\)"):
            resolve_host("slow:1", WORKER, timeout=0.05)

    def test_what_is_no_address(self):
        with pytest.raises(jt.errors.InvalidArgumentError, match=r"worker:1 \(host\).*no port"):
            resolve_host("host", WORKER)


class TestCheckCanBind:
    @pytest.mark.parametrize("host", HOSTS)
    def test_a_free_port(self, host, free_port):
        check_can_bind(WORKER, f"{host}:{free_port}")
        check_can_bind("worker:1", f"{host}:{free_port}")  # and it is free still

    def test_a_port_in_use(self, listening):
        with pytest.raises(jt.errors.FailedPreconditionError) as raised:
            check_can_bind(WORKER, f"127.0.0.1:{listening}")
        assert isinstance(raised.value, RuntimeError)
        assert "worker:1 cannot listen" in str(raised.value)
        assert f"port {listening} is in use" in str(raised.value)

    def test_a_port_in_use_on_all_addresses(self):
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
            with pytest.raises(jt.errors.FailedPreconditionError, match="in use"):
                check_can_bind(WORKER, f"127.0.0.1:{port}")

    @pytest.mark.processes
    def test_who_has_the_port_is_named(self):
        with _held_by_another_process() as (pid, port):
            said = rf"in use by process {pid} \(.*{re.escape(os.path.basename(sys.executable))}"
            with pytest.raises(jt.errors.FailedPreconditionError, match=said):
                check_can_bind(WORKER, f"127.0.0.1:{port}")

    def test_it_may_be_this_process(self, listening):
        with pytest.raises(jt.errors.FailedPreconditionError, match="this process itself"):
            check_can_bind(WORKER, f"127.0.0.1:{listening}")

    def test_a_connection_of_an_earlier_run_does_no_harm(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address) as client:
                accepted, _ = server.accept()
                accepted.close()  # first on this side, which leaves the port in TIME_WAIT
                assert client.recv(1) == b""
        check_can_bind(WORKER, f"127.0.0.1:{address[1]}")

    def test_the_address_of_another_machine(self):
        with pytest.raises(jt.errors.InvalidArgumentError) as raised:
            check_can_bind(WORKER, f"{ELSEWHERE}:2222")
        assert f"worker:1's address is {ELSEWHERE}, which is none of this machine's" in str(
            raised.value
        )

    def test_a_name_nobody_knows(self):
        with pytest.raises(jt.errors.UnavailableError, match=r"worker:1 \(no-such-host\.invalid:1"):
            check_can_bind(WORKER, "no-such-host.invalid:1")

    def test_what_is_no_address(self):
        with pytest.raises(jt.errors.InvalidArgumentError, match="1 to 65535"):
            check_can_bind(WORKER, "localhost:0")


class TestCanConnect:
    def test_somebody_listens(self, listening):
        reached = can_connect(f"127.0.0.1:{listening}", timeout=30)
        assert reached and reached.why == ""

    def test_nobody_listens(self, free_port):
        reached = can_connect(f"127.0.0.1:{free_port}", timeout=30)
        assert not reached
        assert "nothing listens" in reached.why

    def test_nobody_answers(self):
        # A full queue of connections that nobody accepts: Linux then answers no more.
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(socket.socket())
            server.bind(("127.0.0.1", 0))
            server.listen(0)
            waiting = [stack.enter_context(socket.socket()) for _ in range(4)]
            for client in waiting:
                client.setblocking(False)
                client.connect_ex(server.getsockname())
            reached = can_connect(f"127.0.0.1:{server.getsockname()[1]}", timeout=0.2)
        assert not reached
        assert "has not answered for 0.2 s" in reached.why

    def test_a_name_nobody_knows(self):
        reached = can_connect("no-such-host.invalid:1", timeout=30)
        assert not reached
        assert "'no-such-host.invalid'" in reached.why

    def test_a_name_server_that_does_not_answer(self, silent_name_server):
        reached = can_connect("slow:1", timeout=0.05)
        assert not reached
        assert "name servers" in reached.why

    def test_what_is_no_address(self):
        with pytest.raises(jt.errors.InvalidArgumentError, match="no port"):
            can_connect("host")


class TestThisMachine:
    def test_it_knows_its_addresses(self):
        assert "127.0.0.1" in _this_machine.addresses()
        assert ELSEWHERE not in _this_machine.addresses()

    def test_nobody_holds_a_free_port(self, free_port):
        assert _this_machine.port_holder(free_port) is None
