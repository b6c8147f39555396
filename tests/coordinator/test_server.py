"""`jt.Server` in this process: starting, serving, stopping."""

import signal
import threading
import time

import pytest

import jaxtribute as jt
from jaxtribute.cluster._this_machine import free_ports


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("JAXTRIBUTE_CLUSTER_KEY", "the secret of this test")


@pytest.fixture
def spec():
    chief, worker, ps = (f"127.0.0.1:{port}" for port in free_ports(3))
    return jt.ClusterSpec({"chief": [chief], "worker": [worker], "ps": [ps]})


@pytest.fixture
def servers(spec):
    """A worker and a parameter server, which serve in the background."""
    servers = [jt.Server(spec, job) for job in ("worker", "ps")]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def coordinator(spec, servers):
    resolver = jt.cluster_resolver.SimpleClusterResolver(spec, task_type="chief", task_id=0)
    strategy = jt.experimental.ParameterServerStrategy(resolver)
    coordinator = jt.coordinator.ClusterCoordinator(strategy)
    yield coordinator
    coordinator.close()
    strategy.session.close()


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_servers_serve_without_being_joined(coordinator):
    with coordinator.strategy.scope():
        v = jt.Variable(1.0)
    assert coordinator.schedule(lambda: v.read_value() + 1).fetch() == 2
    coordinator.join()


def test_the_thread_that_joins_a_worker_runs_its_functions(coordinator, servers):
    before = coordinator.schedule(threading.get_ident).fetch()
    joined = threading.Thread(target=servers[0].join)
    joined.start()
    until(lambda: coordinator.schedule(threading.get_ident).fetch() == joined.ident)
    assert before != joined.ident
    servers[0].stop()
    joined.join(30)
    assert not joined.is_alive()


@pytest.mark.parametrize("index", [0, 1], ids=["worker", "ps"])
def test_joins_end_when_the_server_is_stopped(servers, index):
    joined = [threading.Thread(target=servers[index].join) for _ in range(2)]
    for thread in joined:
        thread.start()
    servers[index].stop()
    for thread in joined:
        thread.join(30)
    assert not any(thread.is_alive() for thread in joined)


def test_a_server_says_what_it_is_and_for_whom_it_works(capsys, coordinator, spec):
    told = capsys.readouterr().err
    assert f"worker:0 listens on {spec.task_address('worker', 0)} (tcp, encrypted; ipc)" in told
    assert "ps:0 listens on" in told
    assert told.count("worker:0 works for a coordinator now") == 1


def test_two_servers_do_not_share_a_port(spec, servers):
    with pytest.raises(jt.errors.FailedPreconditionError, match="in use"):
        jt.Server(spec, "worker")


def test_an_address_is_free_again_after_a_stop(spec, servers):
    servers[0].stop()
    again = jt.Server(spec, "worker")
    again.stop()
    again.stop()  # does no harm


def test_starting_may_be_put_off(spec):
    server = jt.Server(spec, "worker", start=False)
    server.stop()
    server.start()
    server.start()  # does no harm
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("moment", ["jax.config.update", "jaxtribute.coordinator._server.say"])
def test_a_signal_may_come_while_it_starts_and_as_soon_as_it_listens(
    spec, monkeypatch, number, moment
):
    before = signal.getsignal(number)
    with monkeypatch.context() as patched:
        patched.setattr("jaxtribute._devices.jax_has_started", lambda: False)
        patched.setattr(moment, lambda *args: signal.raise_signal(number))
        jt.Server(spec, "ps", start=False).join()
    assert signal.getsignal(number) is before
    jt.Server(spec, "ps").stop()  # the address is free


def test_a_public_address_needs_a_key(monkeypatch, tmp_path):
    monkeypatch.delenv("JAXTRIBUTE_CLUSTER_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(jt.errors.FailedPreconditionError, match="JAXTRIBUTE_CLUSTER_KEY"):
        jt.Server({"worker": ["somewhere.example:2222"]})


def test_a_local_server_is_a_cluster_of_its_own():
    server = jt.Server.create_local_server()
    assert server.target.startswith("jaxtribute://127.0.0.1:")
    assert server.server_def.cluster.jobs == ["worker"]
    server.stop()
