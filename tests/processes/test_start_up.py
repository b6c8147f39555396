"""Workers find each other, or say why not: who is missing, who differs, who is in the way."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from jaxtribute.cluster._this_machine import free_ports
from tests.processes._workers import Cluster

pytestmark = pytest.mark.processes

SHORT = {"JAXTRIBUTE_JOIN_TIMEOUT": "2"}

JOIN = """
try:
    strategy = jt.MultiWorkerMirroredStrategy(communication_options=OPTIONS)
    total = strategy.reduce("SUM", strategy.run(lambda: jnp.float32(replica() + 1)), None)
    say("together", total=float(total))
except Exception as error:
    say("failed", **said(error))
    raise
"""


def join(options: str = "None") -> str:
    return JOIN.replace("OPTIONS", options)


@pytest.fixture
def cluster(tmp_path):
    """Return a function that describes a cluster."""
    opened: list[Cluster] = []

    def describe(*args, **kwargs) -> Cluster:
        opened.append(Cluster(tmp_path, *args, **kwargs))
        return opened[-1]

    yield describe
    for one in opened:
        one.__exit__()


def failure(cluster: Cluster, name: str) -> dict:
    """Return why a process failed, and make sure that it ended for that reason."""
    error = cluster.until(name, "failed")
    assert cluster.code(name) == 1
    return error


# --- Those who do not come -------------------------------------------------------------------


def test_a_worker_that_does_not_come_is_named_on_all_others(cluster):
    cluster = cluster(3)
    cluster.start(join(), ["worker:0", "worker:1"], environment=SHORT)
    errors = [failure(cluster, task) for task in ("worker:0", "worker:1")]
    assert any(error["kind"] == "DeadlineExceededError" for error in errors)
    for error in errors:
        assert "worker:2" in error["text"]
        assert "has waited 2 s" in error["text"]
        assert "has waited 2 s for worker:1" not in error["text"]


def test_a_chief_that_does_not_come_is_named_with_its_address(cluster):
    cluster = cluster(2)
    cluster.start(join(), ["worker:1"], environment=SHORT)
    error = failure(cluster, "worker:1")
    assert error["kind"] == "DeadlineExceededError"
    assert f"worker:0 at {cluster.spec['worker'][0]}" in error["text"]
    assert "has waited 2 s" in error["text"] or "has waited 3 s" in error["text"]


def test_a_long_wait_is_not_silent(cluster):
    cluster = cluster(3)
    cluster.start(join(), ["worker:0", "worker:1"])
    for task in "worker:0", "worker:1":
        cluster.until_written(task, f"jaxtribute: {task} has waited 10 s for worker:2")
    cluster.start(join(), ["worker:2"])
    assert [one["total"] for one in cluster.until_all("together")] == [6.0, 6.0, 6.0]
    cluster.finish()


@contextlib.contextmanager
def listening(port: int, answer: bytes) -> Iterator[None]:
    """Accept whoever connects, and answer always the same, or nothing."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", port)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):  # shut down below
                while True:
                    connection, _ = server.accept()
                    kept.append(connection)
                    with contextlib.suppress(OSError):  # the other side did not like it
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x02{}", b"\x00\x00\x00\x03\xff\xfe{"],
    ids=["nothing", "http", "another protocol", "no json"],
)
def test_something_else_listens_where_the_chief_should(cluster, answer):
    cluster = cluster(2)
    address = cluster.spec["worker"][0]
    with listening(int(address.rpartition(":")[2]), answer):
        cluster.start(join(), ["worker:1"], environment=SHORT)
        error = failure(cluster, "worker:1")
    assert error["kind"] == "DeadlineExceededError"
    assert f"worker:0 at {address}" in error["text"]
    assert ": ." not in error["text"], "the reason is empty"


def test_a_chief_whose_name_is_unknown_may_yet_become_known(cluster):
    cluster = cluster(2)
    spec = {"worker": ["chief.invalid:2222", "other.invalid:2222"]}
    cluster.start(join(), ["worker:1"], environment=SHORT, spec=spec)
    cluster.until_written("worker:1", "The host 'chief.invalid' of worker:0")
    error = failure(cluster, "worker:1")
    assert error["kind"] == "UnavailableError"
    assert "worker:0 (chief.invalid:2222)" in error["text"]


# --- Those who are in the way ----------------------------------------------------------------


def test_strangers_and_doubles_are_refused_and_do_no_harm(cluster):
    cluster = cluster(3, environment={"JAXTRIBUTE_CLUSTER_KEY": "sesame"})
    cluster.start(join(), ["worker:0", "worker:1"])
    cluster.until_joined("worker:1")
    chief = cluster.spec["worker"][0]
    port = int(chief.rpartition(":")[2])
    for junk in b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]":
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(junk)

    larger = {"worker": [*cluster.spec["worker"], f"127.0.0.1:{free_ports(1)[0]}"]}
    cluster.start(join(), ["worker:1"], called="second worker:1")
    cluster.start(join(), ["worker:0"], called="second worker:0")
    cluster.start(
        join(), ["worker:2"], {"JAXTRIBUTE_CLUSTER_KEY": "barley"}, called="without the key"
    )
    cluster.start(join(), ["worker:3"], spec=larger, called="worker of a larger cluster")

    double = failure(cluster, "second worker:1")
    assert double["kind"] == "AlreadyExistsError"
    assert "worker:1 has joined already" in double["text"]
    second_chief = failure(cluster, "second worker:0")
    assert second_chief["kind"] == "FailedPreconditionError"
    assert f"worker:0 cannot listen on {chief}" in second_chief["text"]
    stranger = failure(cluster, "without the key")
    assert stranger["kind"] == "UnauthenticatedError"
    assert "JAXTRIBUTE_CLUSTER_KEY" in stranger["text"]
    one_more = failure(cluster, "worker of a larger cluster")
    assert "worker:0, worker:1, worker:2" in one_more["text"]

    cluster.start(join(), ["worker:2"])
    assert [one["total"] for one in cluster.until_all("together")] == [6.0, 6.0, 6.0]
    assert cluster.codes(*cluster.tasks) == [0, 0, 0]


# --- Those who differ ------------------------------------------------------------------------


def test_what_differs_is_named_with_who_differs(cluster):
    cluster = cluster(3)
    other = {"worker": [*cluster.spec["worker"][:2], f"127.0.0.1:{free_ports(1)[0]}"]}
    cluster.start(join(), ["worker:0", "worker:2"])
    pretend = "import jaxtribute.workers._facts as facts; facts.__version__ = '99.0'"
    options = "jt.experimental.CommunicationOptions(bytes_per_pack=12345)"
    cluster.start(f"{pretend}\n{join(options)}", ["worker:1"], spec=other)
    for task in cluster.tasks:
        error = failure(cluster, task)
        text = error["text"]
        assert error["kind"] == "FailedPreconditionError"
        assert "worker:1 has 99.0" in text
        assert "bytes_per_pack=12345" in text
        assert other["worker"][2] in text
        assert cluster.spec["worker"][2] in text
        assert "worker:2 has" not in text
        assert "jax:" not in text


def test_unequal_numbers_of_devices_are_named(cluster):
    cluster = cluster(2)
    cluster.start(join(), ["worker:0"])
    cluster.start(join(), ["worker:1"], devices=2)
    for task in cluster.tasks:
        error = failure(cluster, task)
        assert error["kind"] == "FailedPreconditionError"
        assert "worker:0 has 1 CPU" in error["text"]
        assert "worker:1 has 2 CPU" in error["text"]


def test_workers_that_create_different_variables_are_told(cluster):
    cluster = cluster(2)
    cluster.start(
        """
        strategy = jt.MultiWorkerMirroredStrategy()
        try:
            with strategy.scope():
                jt.Variable(jnp.zeros(2 + ME), name="v")
        except jt.errors.FailedPreconditionError as error:
            say("failed", **said(error))
        """
    )
    for error in cluster.until_all("failed"):
        assert "(2,)" in error["text"]
        assert "(3,)" in error["text"]
        assert "worker:1" in error["text"]
    cluster.finish()


# --- Kinds of clusters -----------------------------------------------------------------------

KINDS = """
first = jt.MultiWorkerMirroredStrategy()
total = first.reduce("SUM", first.run(lambda: jnp.float32(replica() + 1)), None)
say("together", replicas=first.num_replicas_in_sync, total=float(total),
    ids=[int(one) for one in first.experimental_local_results(first.run(replica))])
if TASK["type"] == "evaluator":
    sys.exit(0)

second = jt.MultiWorkerMirroredStrategy()
with second.scope():
    v = jt.Variable(1.0, aggregation=jt.VariableAggregation.SUM)
second.run(lambda: v.assign_add(1.0 * replica()))
say("second", value=float(v), replicas=second.num_replicas_in_sync)

spec = jt.ClusterSpec({"worker": ["127.0.0.1:1", "127.0.0.1:2"]})
try:
    jt.MultiWorkerMirroredStrategy(
        jt.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=0))
except jt.errors.FailedPreconditionError as error:
    say("other cluster", **said(error))

alone = jt.OneDeviceStrategy("CPU:0")
say("alone", value=float(alone.reduce("SUM", alone.run(lambda: jnp.float32(2.0)), None)))
"""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """Return what the tasks of a cluster of many kinds said, by task and event."""
    jobs = {"chief": 1, "worker": [1, 4], "evaluator": 1}
    with Cluster(tmp_path_factory.mktemp("kinds"), jobs=jobs) as cluster:
        cluster.start(KINDS)
        cluster.finish()
        return {task: {one["event"]: one for one in cluster.said(task)} for task in cluster.tasks}


def test_a_chief_and_workers_with_gaps_between_their_numbers_train_together(kinds):
    for index, task in enumerate(["chief:0", "worker:1", "worker:4"]):
        together = kinds[task]["together"]
        assert (together["replicas"], together["total"], together["ids"]) == (3, 6.0, [index])


def test_an_evaluator_works_alone(kinds):
    together = kinds["evaluator:0"]["together"]
    assert (together["replicas"], together["total"], together["ids"]) == (1, 1.0, [0])


def test_a_second_strategy_has_the_same_workers(kinds):
    for task in "chief:0", "worker:1", "worker:4":
        assert (kinds[task]["second"]["value"], kinds[task]["second"]["replicas"]) == (4.0, 3)


def test_a_process_is_part_of_one_cluster_only(kinds):
    for task in "chief:0", "worker:1", "worker:4":
        assert "cannot be part of" in kinds[task]["other cluster"]["text"]
        assert "127.0.0.1:2" in kinds[task]["other cluster"]["text"]


def test_other_strategies_can_be_used_beside(kinds):
    for task in "chief:0", "worker:1", "worker:4":
        assert kinds[task]["alone"]["value"] == 2.0


def test_resolvers_may_be_given(cluster):
    cluster = cluster(2)
    cluster.start(
        """
        config = json.loads(os.environ.pop("TF_CONFIG"))
        resolver = jt.cluster_resolver.SimpleClusterResolver(
            jt.ClusterSpec(config["cluster"]), task_type="worker", task_id=ME)
        strategy = jt.experimental.MultiWorkerMirroredStrategy(
            communication=jt.experimental.CollectiveCommunication.RING, cluster_resolver=resolver)
        assert strategy.cluster_resolver is resolver
        total = strategy.reduce("SUM", strategy.run(lambda: jnp.float32(replica() + 1)), None)
        say("together", total=float(total))
        """
    )
    assert [one["total"] for one in cluster.until_all("together")] == [3.0, 3.0]
    cluster.finish()


def test_a_cluster_of_one_worker_needs_nobody(cluster):
    cluster = cluster(1, devices=2)
    cluster.start(join())
    assert cluster.until("worker:0", "together")["total"] == 3.0
    cluster.finish()


@pytest.mark.parametrize("use", ["jnp.zeros(())", "jax.devices()"])
def test_a_strategy_that_comes_too_late_says_so(cluster, use):
    cluster = cluster(2)
    cluster.start(f"{use}\n{join()}", ["worker:1"])
    error = failure(cluster, "worker:1")
    assert error["kind"] == "FailedPreconditionError"
    assert "after JAX had been used" in error["text"]
