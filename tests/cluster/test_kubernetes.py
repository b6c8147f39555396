"""The cluster that pods make, as a client of Kubernetes tells of them."""

import sys
from types import ModuleType
from types import SimpleNamespace as Object

import pytest

import jaxtribute as jt
from jaxtribute.cluster import resolve
from jaxtribute.cluster_resolver import KubernetesClusterResolver, KubernetesExecutableLocation


def pod(name, ip, phase="Running", hostname=None):
    return Object(
        metadata=Object(name=name),
        spec=Object(hostname=hostname),
        status=Object(phase=phase, pod_ip=ip, host_ip="192.168.0.1"),
    )


class Client:
    """Has the one method of `kubernetes.client.CoreV1Api` that is asked for."""

    def __init__(self, **pods):
        self.pods = pods
        self.asked = []

    def list_pod_for_all_namespaces(self, label_selector, **options):
        self.asked.append((label_selector, options))
        return Object(items=self.pods[label_selector])


@pytest.fixture(autouse=True)
def _in_no_pod(monkeypatch):
    for name in ("HOSTNAME", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)


def two_jobs(**kwargs):
    client = Client(
        chief=[pod("c-0", "10.0.0.1")],
        a=[pod("a-1", "10.0.0.3"), pod("a-0", "10.0.0.2")],
        b=[pod("b-0-x7k2p", "10.0.0.4", hostname="b-0")],
    )
    labels = {"chief": ["chief"], "worker": ["a", "b"]}
    return KubernetesClusterResolver(labels, override_client=client, **kwargs)


class TestPods:
    def test_by_selector_and_then_by_name(self):
        assert two_jobs().cluster_spec().as_dict() == {
            "chief": ["10.0.0.1:8470"],
            "worker": ["10.0.0.2:8470", "10.0.0.3:8470", "10.0.0.4:8470"],
        }

    def test_numbers_in_names_count_as_numbers(self):
        pods = [pod(f"w-{i}", f"10.0.0.{i}") for i in (10, 9, 1)]
        resolver = KubernetesClusterResolver({"worker": ["w"]}, 1, override_client=Client(w=pods))
        assert resolver.cluster_spec().job_tasks("worker") == [
            "10.0.0.1:1",
            "10.0.0.9:1",
            "10.0.0.10:1",
        ]

    def test_the_default_selector(self):
        client = Client(**{"job-name=tensorflow": [pod("t", "10.0.0.1")]})
        spec = KubernetesClusterResolver(override_client=client).cluster_spec()
        assert spec.as_dict() == {"worker": ["10.0.0.1:8470"]}
        assert client.asked == [("job-name=tensorflow", {})]

    def test_numbers_of_ipv6_stand_in_brackets(self):
        client = Client(w=[pod("t", "fd00::7")])
        resolver = KubernetesClusterResolver({"worker": ["w"]}, override_client=client)
        assert resolver.cluster_spec().job_tasks("worker") == ["[fd00::7]:8470"]

    def test_a_pod_without_a_number_has_that_of_its_host(self):
        client = Client(w=[pod("t", None)])
        resolver = KubernetesClusterResolver({"worker": ["w"]}, override_client=client)
        assert resolver.cluster_spec().job_tasks("worker") == ["192.168.0.1:8470"]

    @pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed", "Unknown"])
    def test_all_must_be_running(self, phase):
        client = Client(w=[pod("w-0", "10.0.0.1"), pod("w-1", None, phase)])
        resolver = KubernetesClusterResolver({"worker": ["w"]}, override_client=client)
        with pytest.raises(jt.errors.FailedPreconditionError, match=f"'w-1'.*'{phase}'") as raised:
            resolver.cluster_spec()
        assert isinstance(raised.value, RuntimeError)

    def test_they_are_asked_for_anew_each_time(self):
        client = Client(w=[])
        resolver = KubernetesClusterResolver({"worker": ["w"]}, override_client=client)
        assert resolver.cluster_spec().num_tasks("worker") == 0
        client.pods["w"].append(pod("w-0", "10.0.0.1"))
        assert resolver.cluster_spec().num_tasks("worker") == 1


class TestTask:
    @pytest.mark.parametrize(
        ("host", "task"),
        [
            pytest.param("c-0", ("chief", 0), id="by the name of the pod"),
            pytest.param("a-1", ("worker", 1), id="of a StatefulSet"),
            pytest.param("b-0", ("worker", 2), id="by the name of the host, in an Indexed Job"),
            pytest.param("elsewhere", (None, None), id="no pod of ours"),
        ],
    )
    def test_is_that_of_the_pod_this_is(self, monkeypatch, host, task):
        monkeypatch.setenv("HOSTNAME", host)
        resolver = two_jobs()
        assert (resolver.task_type, resolver.task_id) == task

    def test_is_the_number_in_an_indexed_job(self, monkeypatch):
        monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
        client = Client(w=[pod("w-0-abc", "10.0.0.1"), pod("w-1-xyz", "10.0.0.2")])
        resolver = KubernetesClusterResolver({"worker": ["w"]}, override_client=client)
        assert (resolver.task_type, resolver.task_id) == ("worker", 1)
        assert two_jobs().task_type is None  # there, the number could mean either

    def test_can_be_set(self, monkeypatch):
        monkeypatch.setenv("HOSTNAME", "c-0")
        resolver = two_jobs()
        resolver.task_type, resolver.task_id = "worker", 0
        assert (resolver.task_type, resolver.task_id) == ("worker", 0)
        assert resolver.master() == "grpc://10.0.0.2:8470"

    def test_is_not_known_elsewhere(self):
        resolver = two_jobs()
        assert (resolver.task_type, resolver.task_id, resolver.master()) == (None, None, "")
        assert resolver.master("chief", 0, rpc_layer="zmq") == "zmq://10.0.0.1:8470"

    def test_it_can_be_trained_with(self, monkeypatch):
        monkeypatch.setenv("HOSTNAME", "a-0")
        roll = resolve(two_jobs())
        assert [str(task) for task in roll.tasks] == ["chief:0", "worker:0", "worker:1", "worker:2"]
        assert roll.index == 1


@pytest.fixture
def kubernetes(monkeypatch):
    """Put a package in the place of the real one, which notes what is called."""
    called = []
    package, config, client = (
        ModuleType(name) for name in ("kubernetes", "kubernetes.config", "kubernetes.client")
    )
    config.load_incluster_config = lambda: called.append("in the cluster")
    config.load_kube_config = lambda: called.append("as kubectl")
    api = Client(w=[pod("w-0", "10.0.0.1")])
    client.CoreV1Api = lambda: api
    for module in (package, config, client):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return Object(called=called, api=api)


class TestClient:
    @pytest.mark.parametrize(
        ("location", "how"),
        [
            (KubernetesExecutableLocation.WITHIN_CLUSTER, "in the cluster"),
            (KubernetesExecutableLocation.OFF_CLUSTER, "as kubectl"),
        ],
    )
    def test_is_made_for_where_the_program_runs(self, kubernetes, location, how):
        resolver = KubernetesClusterResolver({"worker": ["w"]}, executable_location=location)
        assert resolver.cluster_spec().job_tasks("worker") == ["10.0.0.1:8470"]
        assert kubernetes.called == [how]
        assert kubernetes.api.asked[0][1]["_request_timeout"] > 0  # it never waits without end

    def test_another_location_is_refused(self, kubernetes):
        with pytest.raises(ValueError, match="got 'home'"):
            KubernetesClusterResolver(executable_location="home")

    def test_without_the_package_it_is_said_how_to_install_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "kubernetes", None)
        with pytest.raises(ImportError, match=r"pip install 'jaxtribute\[kubernetes\]'"):
            KubernetesClusterResolver()
