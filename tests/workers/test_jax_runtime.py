"""The private parts of JAX that multi-worker training needs: noticed here when they change."""

import inspect
import re

import jax
import pytest
from jax._src import distributed
from jaxlib import _jax

from jaxtribute.workers import _jax_runtime


def parameters(function) -> set[str]:
    """Return the names of the parameters of a function from C++, out of its docstring."""
    signature = (function.__doc__ or "").splitlines()[0]
    return set(re.findall(r"(\w+):", signature))


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("get_distributed_runtime_service", {"heartbeat_timeout", "shutdown_timeout"}),
        (
            "get_distributed_runtime_client",
            {
                "init_timeout",
                "heartbeat_timeout",
                "shutdown_timeout",
                "shutdown_on_destruction",
                "use_compression",
            },
        ),
    ],
)
def test_the_functions_take_what_they_are_given(name, needed):
    assert needed <= parameters(getattr(_jax, name))


def test_a_service_and_a_client_meet_on_a_socket_of_the_machine(tmp_path):
    path = tmp_path / "service"
    service = _jax.get_distributed_runtime_service(
        f"unix:{path}", 1, heartbeat_timeout=100, shutdown_timeout=1
    )
    client = _jax.get_distributed_runtime_client(
        f"unix:{path}",
        0,
        init_timeout=20,
        heartbeat_timeout=100,
        shutdown_timeout=1,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    client.key_value_set("key", "value")
    assert client.blocking_key_value_get("key", 1000) == "value"
    client.shutdown()
    service.shutdown()


@pytest.mark.parametrize(
    "name", ["client", "service", "process_id", "num_processes", "coordinator_address"]
)
def test_jaxs_state_has_what_is_set_there(name):
    assert hasattr(distributed.global_state, name)


def test_jax_asks_its_state_for_the_client_when_it_makes_devices():
    from jax._src import xla_bridge

    source = inspect.getsource(xla_bridge.make_cpu_client)
    assert "global_state.client" in source
    for word in "process_id", "num_processes", "gloo":
        assert word in source


def test_a_thread_can_be_given_another_queue():
    number = _jax.get_execution_stream_id()
    _jax.set_execution_stream_id(-1)
    try:
        assert _jax.get_execution_stream_id() == -1
        assert jax.numpy.arange(3).sum() == 3
    finally:
        _jax.set_execution_stream_id(number)


def test_the_collectives_can_be_chosen():
    assert jax.config.jax_cpu_collectives_implementation in ("gloo", "mpi", "megascale", None, "")


def test_this_process_has_not_started_it():
    assert not _jax_runtime.is_running()
