"""What the doctor finds."""

import json
import socket
from dataclasses import replace

import pytest

from jaxtribute.cli import _checks, _facts
from jaxtribute.cli._checks import Cluster
from jaxtribute.cli._findings import Verdict
from jaxtribute.cli._server_checks import check_encryption, check_key
from jaxtribute.cluster import Task
from jaxtribute.rpc import ClusterKey


def config(cluster, task_type="worker", index=0):
    return json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})


@pytest.fixture
def listener():
    """An address at which somebody listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def silent():
    """An address at which nobody listens, and nobody else will."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def free():
    """An address that is free."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
    return address


class TestDescriptions:
    @pytest.mark.parametrize(
        ("text", "task"),
        [
            (config({"worker": ["a:1", "b:1"]}, index=1), Task("worker", 1)),
            (config({"worker": ["a:1", "b:1"]}, index="1"), Task("worker", 1)),
            (config({"chief": ["a:1"], "worker": ["b:1"]}, "chief"), Task("chief", 0)),
            (config({"worker": ["a:1"]}, "evaluator"), Task("evaluator", 0)),
            (config({"worker": {"0": "a:1", "5": "b:1"}}, index=5), Task("worker", 5)),
            ('{"cluster": {"worker": ["a:1"]}}', Task("worker", 0)),
        ],
    )
    def test_that_work(self, text, task):
        findings, cluster, corrected = _checks.check_description(text)
        assert [finding.verdict for finding in findings] == [Verdict.OK]
        assert str(task) in findings[0].detail
        assert cluster is not None
        assert cluster.task == task
        assert corrected == ""

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('{"cluster": ', "not valid JSON"),
            ("{'cluster': {'worker': ['a:1']}}", "JSON has double quotes"),
            ("[]", "must be a JSON object"),
            (config({"boss": ["a:1"], "worker": ["b:1"]}), "cluster consists of chief, worker"),
            (config({"worker": ["a:1"]}, "ps"), "no job 'ps'"),
            (config({"worker": ["a:1", "b:1"]}, index=2), "exceeds the maximum id of worker"),
            (config({"worker": ["a:1", "a:1"]}), "has the same address"),
            (config({"worker": ["localhost:1", "b:1"]}), "localhost means each machine itself"),
            (config({"worker": ["a", "b:1"]}), "it has no port"),
        ],
    )
    def test_that_do_not_come_with_one_that_does(self, text, said):
        findings, cluster, corrected = _checks.check_description(text)
        assert any(said in finding.detail for finding in findings)
        assert all(finding.verdict is Verdict.PROBLEM for finding in findings)
        assert cluster is None
        repaired = corrected.removeprefix("TF_CONFIG='").removesuffix("'")
        assert _checks.check_description(repaired)[1] is not None

    def test_of_a_program_that_runs_alone(self, monkeypatch):
        monkeypatch.delenv("TF_CONFIG", raising=False)
        monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)
        for text in (None, "{}"):
            findings, cluster, _ = _checks.check_description(text)
            assert [finding.verdict for finding in findings] == [Verdict.OK]
            assert "runs alone" in findings[0].detail
            assert cluster is None


class TestAddresses:
    def test_names_are_looked_up_once_for_each_host(self):
        cluster = Cluster({Task("worker", i): f"127.0.0.1:{i + 1}" for i in range(3)}, None)
        findings, unknown = _checks.check_names(cluster, 20.0)
        assert [finding.detail for finding in findings] == ["known here: 127.0.0.1"]
        assert unknown == set()

    def test_a_name_that_nobody_knows_is_a_problem(self):
        cluster = Cluster({Task("worker", 0): "nowhere.invalid:1"}, None)
        findings, unknown = _checks.check_names(cluster, 20.0)
        assert [finding.verdict for finding in findings] == [Verdict.PROBLEM]
        assert "nowhere.invalid" in findings[0].detail
        assert unknown == {"nowhere.invalid"}
        assert list(_checks.check_others(cluster, unknown, 20.0)) == []  # said once

    def test_a_free_port_is_right_and_one_in_use_is_not(self, free, listener):
        task = Task("worker", 0)
        (finding,) = _checks.check_own_port(Cluster({task: free}, task), 20.0)
        assert finding.verdict is Verdict.OK
        (finding,) = _checks.check_own_port(Cluster({task: listener}, task), 20.0)
        assert finding.verdict is Verdict.PROBLEM
        assert "in use" in finding.detail

    def test_an_evaluator_needs_no_port(self, listener):
        evaluator = Task("evaluator", 0)
        cluster = Cluster({evaluator: listener}, evaluator)
        assert list(_checks.check_own_port(cluster, 20.0)) == []
        assert list(_checks.check_others(cluster, set(), 20.0)) == []

    def test_a_task_that_has_not_started_is_only_a_warning(self, listener, silent):
        own, other, missing = (Task("worker", index) for index in range(3))
        cluster = Cluster({own: "127.0.0.1:1", other: listener, missing: silent}, own)
        verdicts = {f.what: f.verdict for f in _checks.check_others(cluster, set(), 20.0)}
        assert verdicts == {"worker:1": Verdict.OK, "worker:2": Verdict.WARNING}


class TestServers:
    @pytest.fixture(autouse=True)
    def no_key(self, tmp_path, monkeypatch):
        monkeypatch.delenv("JAXTRIBUTE_CLUSTER_KEY", raising=False)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def test_connect_to_nobody_and_so_the_chief_need_not_listen(self, listener):
        chief, worker = Task("chief", 0), Task("worker", 0)
        cluster = Cluster({chief: listener, worker: listener, Task("ps", 0): listener}, chief)
        assert list(_checks.check_own_port(cluster, 20.0)) == []
        found = [f.what for f in _checks.check_others(replace(cluster, task=worker), set(), 20.0)]
        assert found == ["ps:0"]

    def test_do_not_use_proxies(self):
        cluster = Cluster({Task("ps", 0): "a:1"}, None)
        assert list(_checks.check_proxies(cluster, {"https_proxy": "http://p:1"})) == []

    @pytest.mark.parametrize(
        ("address", "verdict", "said"),
        [
            ("127.0.0.1:1", Verdict.OK, "the first task makes one"),
            ("host:1", Verdict.PROBLEM, "JAXTRIBUTE_CLUSTER_KEY"),
        ],
    )
    def test_need_a_key_if_other_machines_reach_them(self, address, verdict, said, tmp_path):
        (finding,) = check_key([address])
        assert (finding.verdict, said in finding.detail) == (verdict, True)
        assert not list(tmp_path.iterdir())  # looking makes none

    def test_keep_their_key_to_themselves(self, monkeypatch):
        ClusterKey.load()
        for address in ("127.0.0.1:1", "host:1"):
            (finding,) = check_key([address])
            assert finding.verdict is Verdict.OK
        monkeypatch.setenv("JAXTRIBUTE_CLUSTER_KEY", "short")
        (finding,) = check_key(["127.0.0.1:1"])
        assert finding.verdict is Verdict.PROBLEM
        assert "can be guessed" in finding.detail

    def test_have_a_key_that_others_can_read(self, tmp_path):
        ClusterKey.load()
        (tmp_path / "jaxtribute" / "cluster_key").chmod(0o644)
        (finding,) = check_key(["127.0.0.1:1"])
        assert finding.verdict is Verdict.PROBLEM
        assert "chmod 600" in finding.detail

    def test_can_encrypt_here(self):
        (finding,) = check_encryption()
        assert finding.verdict is Verdict.OK


class TestSettings:
    @pytest.mark.parametrize(
        ("environment", "verdict"),
        [
            ({}, Verdict.OK),
            ({"PJRT_NPROC": "1"}, Verdict.OK),
            ({"JAX_NUM_CPU_DEVICES": "4"}, Verdict.OK),  # as many threads as that needs
            ({"JAX_NUM_CPU_DEVICES": "4", "PJRT_NPROC": "8"}, Verdict.OK),
            ({"JAX_NUM_CPU_DEVICES": "4", "PJRT_NPROC": "7"}, Verdict.PROBLEM),
            ({"PJRT_NPROC": "many"}, Verdict.PROBLEM),
        ],
    )
    def test_threads(self, environment, verdict):
        (finding,) = _checks.check_threads(environment)
        assert finding.verdict is verdict

    @pytest.mark.parametrize(
        ("environment", "verdicts"),
        [
            ({}, []),
            ({"no_proxy": "a"}, []),
            ({"https_proxy": "http://p:1"}, [Verdict.WARNING]),
            ({"https_proxy": "http://p:1", "no_proxy": "a.example"}, [Verdict.WARNING]),
            ({"https_proxy": "http://p:1", "no_proxy": "a.example, b.example"}, [Verdict.OK]),
            ({"https_proxy": "http://p:1", "NO_PROXY": ".example"}, [Verdict.OK]),
            ({"HTTP_PROXY": "http://p:1", "no_proxy": "*"}, [Verdict.OK]),
        ],
    )
    def test_proxies(self, environment, verdicts):
        cluster = Cluster(
            {Task("worker", 0): "a.example:1", Task("worker", 1): "b.example:1"}, None
        )
        found = list(_checks.check_proxies(cluster, environment))
        assert [finding.verdict for finding in found] == verdicts
        assert list(_checks.check_proxies(None, environment)) == []

    def test_how_to_keep_a_proxy_out_is_said(self):
        cluster = Cluster({Task("worker", 0): "a:1"}, None)
        environment = {"https_proxy": "http://p:1", "no_proxy": "b"}
        (finding,) = _checks.check_proxies(cluster, environment)
        assert finding.fix == "export no_proxy=b,a"

    def test_versions_of_this_installation_are_right(self):
        assert {finding.verdict for finding in _checks.check_versions()} == {Verdict.OK}

    @pytest.mark.parametrize(
        ("version", "than", "older"),
        [
            ("0.9.9", "0.10", True),
            ("0.10.0", "0.10", False),
            ("0.10", "0.10", False),
            ("1.0.dev3", "0.10", False),
        ],
    )
    def test_versions_are_compared_by_number(self, version, than, older):
        assert _facts.is_older(version, than) is older


class TestBugReports:
    def test_show_nothing_secret(self):
        shown = _facts.variables(
            {
                "JAXTRIBUTE_CLUSTER_KEY": "hunter2",
                "JAX_SERVICE_TOKEN": "hunter2",
                "https_proxy": "http://me:hunter2@proxy:1",
                "JAX_COMPILATION_CACHE_DIR": "gs://me:hunter2@bucket/x",
                "TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "credentials": "hunter2"}',
                "AWS_SECRET_ACCESS_KEY": "hunter2",
                "HOME": "/home/me",
            }
        )
        assert "hunter2" not in str(shown)
        assert shown == {
            "JAXTRIBUTE_CLUSTER_KEY": "(set)",
            "JAX_SERVICE_TOKEN": "(set)",
            "https_proxy": "(set)",
            "JAX_COMPILATION_CACHE_DIR": "gs://(user)@bucket/x",
            "TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "credentials": "(set)"}',
        }

    def test_do_not_show_a_tf_config_that_cannot_be_read(self):
        assert "hunter2" not in str(_facts.variables({"TF_CONFIG": "{hunter2"}))

    def test_count_devices(self):
        two = _facts.Devices((("gpu", "A100", "cuda:0"), ("gpu", "A100", "cuda:1")))
        assert str(two) == "2 gpu (A100)"
        assert str(_facts.Devices((("cpu", "cpu", "TFRT_CPU_0"),))) == "1 cpu"
