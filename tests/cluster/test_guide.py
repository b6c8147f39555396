"""What the guide on clusters lets people start describes the cluster it means."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

import jaxtribute as jt
from jaxtribute.cluster import default_resolver, resolve
from jaxtribute.cluster_resolver import SlurmClusterResolver, TFConfigClusterResolver
from jaxtribute.rpc import ClusterKey

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "clusters.md").read_text()


def _blocks(mark):
    return re.findall(rf"^```{mark}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def _resources():
    documents = [document for block in _blocks("yaml") for document in yaml.safe_load_all(block)]
    found = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    assert len(found) == len(documents)
    return found


@pytest.fixture(autouse=True)
def _outside_of_any_cluster(monkeypatch):
    for name in ("TF_CONFIG", "SLURM_STEP_NUM_TASKS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def _workers_of(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return resolve(default_resolver())


def test_all_resources_are_known():
    assert set(_resources()) == {
        ("TFJob", "train"),
        ("Service", "train"),
        ("Job", "train"),
        ("NetworkPolicy", "train"),
        ("ConfigMap", "recommender"),
        ("Service", "recommender"),
        ("StatefulSet", "recommender-ps"),
        ("StatefulSet", "recommender-worker"),
        ("Job", "recommender-chief"),
    }


def _environment(container, metadata):
    """Return what Kubernetes makes of `env`: `$(NAME)` stands for what is listed before.

    Args:
      container: with the `env`.
      metadata: the labels and annotations that the pod has been given.
    """
    values = {}
    for entry in container["env"]:
        source = entry.get("valueFrom", {})
        if "secretKeyRef" in source:
            assert source["secretKeyRef"] == _secret()
            value = "0123456789abcdef"
        elif "configMapKeyRef" in source:
            place = source["configMapKeyRef"]
            value = _resources()["ConfigMap", place["name"]]["data"][place["key"]]
        elif "fieldRef" in source:
            path = source["fieldRef"]["fieldPath"]
            kind, name = re.fullmatch(r"metadata\.(annotations|labels)\['(.*)'\]", path).groups()
            value = metadata[kind][name]
        else:
            value = re.sub(
                r"\$\((\w+)\)", lambda name: values.get(name[1], name[0]), entry["value"]
            )
        values[entry["name"]] = value
    return values


def _secret():
    """Return the Secret that the guide has people make."""
    (command,) = [block for block in _blocks("sh") if "create secret" in block]
    name, key = re.search(r"secret generic (\S+) --from-literal=(\w+)=", command).groups()
    return {"name": name, "key": key}


class TestByHand:
    def test_the_two_machines_are_the_two_workers(self, monkeypatch):
        exported = [
            config for block in _blocks("sh") for config in re.findall(r"TF_CONFIG='(.*)'", block)
        ]
        rolls = [_workers_of(monkeypatch, {"TF_CONFIG": config}) for config in exported]
        assert [roll.index for roll in rolls] == [0, 1]
        assert rolls[0].addresses == rolls[1].addresses == ("host0:2222", "host1:2222")

    def test_an_empty_one_trains_alone(self, monkeypatch):
        assert _workers_of(monkeypatch, {"TF_CONFIG": "{}", "SLURM_STEP_NUM_TASKS": "2"}) is None


class TestKubeflow:
    """With `TF_CONFIG` as the Training Operator writes it."""

    @staticmethod
    def tf_config(job, role, index):
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        cluster = {}
        for other, spec in job["spec"]["tfReplicaSpecs"].items():
            (container,) = spec["template"]["spec"]["containers"]
            assert container["name"] == "tensorflow"  # the only one that is given TF_CONFIG
            (port,) = [p for p in container["ports"] if p["name"] == "tfjob-port"]
            cluster[other.lower()] = [
                f"{name}-{other.lower()}-{i}.{namespace}.svc:{port['containerPort']}"
                for i in range(spec["replicas"])
            ]
        task = {"type": role.lower(), "index": index}
        return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})

    @pytest.mark.parametrize("index", [0, 1])
    def test_replicas_are_workers(self, monkeypatch, index):
        config = self.tf_config(_resources()["TFJob", "train"], "Worker", index)
        roll = _workers_of(monkeypatch, {"TF_CONFIG": config})
        assert roll.addresses == (
            "train-worker-0.team.svc:2222",
            "train-worker-1.team.svc:2222",
        )
        assert str(roll.task) == f"worker:{index}"


class TestIndexedJob:
    @pytest.mark.parametrize("index", [0, 1])
    def test_pods_are_workers(self, monkeypatch, index):
        job = _resources()["Job", "train"]
        (container,) = job["spec"]["template"]["spec"]["containers"]
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        environment = _environment(container, {"annotations": annotations})
        assert len(environment["JAXTRIBUTE_CLUSTER_KEY"]) >= 16
        roll = _workers_of(monkeypatch, environment)
        assert roll.index == index
        assert len(roll.tasks) == job["spec"]["completions"] == job["spec"]["parallelism"]

    def test_addresses_are_the_names_that_pods_get(self, monkeypatch):
        job, service = _resources()["Job", "train"], _resources()["Service", "train"]
        template = job["spec"]["template"]["spec"]
        (container,) = template["containers"]
        annotations = {"batch.kubernetes.io/job-completion-index": "0"}
        roll = _workers_of(monkeypatch, _environment(container, {"annotations": annotations}))
        assert job["spec"]["completionMode"] == "Indexed"
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
        assert service["metadata"]["name"] == template["subdomain"]
        names = [f"{job['metadata']['name']}-{i}.{template['subdomain']}" for i in range(2)]
        port = container["ports"][0]["containerPort"]
        assert roll.addresses == tuple(f"{name}:{port}" for name in names)

    def test_the_policy_lets_in_the_workers_only(self):
        policy = _resources()["NetworkPolicy", "train"]["spec"]
        workers = {"matchLabels": _resources()["Service", "train"]["spec"]["selector"]}
        assert policy["podSelector"] == workers
        assert policy["policyTypes"] == ["Ingress"]
        assert policy["ingress"] == [{"from": [{"podSelector": workers}]}]


class TestStatefulSets:
    """Workers and parameter servers, and a Job for their chief."""

    @staticmethod
    def pod(kind, role):
        """Return a resource, and the pod and the container that it describes."""
        resource = _resources()[kind, f"recommender-{role}"]
        pod = resource["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        return resource, pod, container

    @pytest.mark.parametrize("index", [0, 1])
    @pytest.mark.parametrize("role", ["ps", "worker"])
    def test_pods_are_servers_under_the_names_they_get(self, monkeypatch, role, index):
        resource, pod, container = self.pod("StatefulSet", role)
        labels = {"apps.kubernetes.io/pod-index": str(index)}
        for name, value in _environment(container, {"labels": labels}).items():
            monkeypatch.setenv(name, value)
        assert container["command"] == ["jaxtribute", "server"]
        server = jt.Server(TFConfigClusterResolver(), start=False)
        definition = server.server_def
        assert (definition.job_name, definition.task_index) == (role, index)
        spec, port = resource["spec"], container["ports"][0]["containerPort"]
        name = f"{resource['metadata']['name']}-{index}.{spec['serviceName']}"
        assert server.target == f"jaxtribute://{name}:{port}"
        assert definition.cluster.num_tasks(role) == spec["replicas"]
        assert spec["selector"]["matchLabels"] == pod["metadata"]["labels"]

    def test_the_chief_is_the_coordinator_of_all_of_them(self, monkeypatch):
        _, pod, container = self.pod("Job", "chief")
        for name, value in _environment(container, {}).items():
            monkeypatch.setenv(name, value)
        resolver = TFConfigClusterResolver()
        assert (resolver.task_type, resolver.task_id) == ("chief", 0)
        spec = resolver.cluster_spec()
        assert {job: spec.num_tasks(job) for job in spec.jobs} == {"chief": 1, "worker": 2, "ps": 2}
        name = f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}"
        assert spec.task_address("chief", 0) == f"{name}:2222"
        ClusterKey.load(spec.task_address("ps", 0))  # the secret is long enough for a public one

    def test_one_service_gives_all_pods_names(self):
        service = _resources()["Service", "recommender"]["spec"]
        assert service["clusterIP"] == "None"
        for kind, role in (("StatefulSet", "ps"), ("StatefulSet", "worker"), ("Job", "chief")):
            _, pod, _ = self.pod(kind, role)
            assert service["selector"].items() <= pod["metadata"]["labels"].items()


class TestSlurm:
    @pytest.mark.parametrize("rank", range(4))
    def test_tasks_of_the_script_are_workers(self, monkeypatch, rank):
        (script,) = [block for block in _blocks("sh") if "--job-name=train\n" in block]
        options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)", script, re.MULTILINE))
        nodes, each = int(options["nodes"]), int(options["ntasks-per-node"])
        assert re.search(r"^ *srun .*python train\.py && break$", script, re.MULTILINE)
        environment = {
            "SLURM_PROCID": str(rank),
            "SLURM_NODEID": str(rank // each),
            "SLURM_LOCALID": str(rank % each),
            "SLURM_STEP_NODELIST": f"node[1-{nodes}]",
            "SLURM_STEP_TASKS_PER_NODE": f"{each}(x{nodes})",
            "SLURM_STEP_NUM_TASKS": str(nodes * each),
            "SLURM_DISTRIBUTION": options["distribution"],
            # As with --gpus-per-task, so that nothing is divided in the process of the tests.
            "SLURM_GPUS_PER_TASK": "1",
        }
        roll = _workers_of(monkeypatch, environment)
        assert isinstance(default_resolver(), SlurmClusterResolver)
        assert roll.addresses == ("node1:8888", "node1:8889", "node2:8888", "node2:8889")
        assert roll.index == rank

    def test_the_script_itself_is_alone(self, monkeypatch):
        assert _workers_of(monkeypatch, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None
        assert isinstance(default_resolver(), TFConfigClusterResolver)


_STUBS = {
    "scontrol": "printf 'node1\\nnode2\\nnode3\\n'",
    "srun": 'while [[ $1 == --* ]]; do echo "$1"; shift; done > "srun-$$"; exec "$@"',
    # In one piece, as the chief looks for it.
    "jaxtribute": 'echo "$1" $TF_CONFIG > "new-$$"; mv "new-$$" "task-$$"; exec sleep 100',
    "python": """
        if [[ $1 == -c ]]; then echo 0123456789abcdef; exit; fi
        while [[ $(ls task-* 2> /dev/null | wc -l) -lt 4 ]]; do sleep 0.05; done
        echo "$1" $TF_CONFIG > "chief-$$"
        [[ $(ls chief-* | wc -l) == 2 ]]  # fails when it is first called
    """,
}


class TestServersOnSlurm:
    """The script runs, with programs in the place of Slurm's and ours that note what they get."""

    def test_all_tasks_are_started_and_the_chief_again_when_it_fails(self, tmp_path):
        (script,) = [block for block in _blocks("sh") if "--job-name=train-ps\n" in block]
        (tmp_path / "script").write_text(script)
        for name, text in _STUBS.items():
            stub = tmp_path / "bin" / name
            stub.parent.mkdir(exist_ok=True)
            stub.write_text(f"#!/bin/bash\n{text}\n")
            stub.chmod(0o755)
        environment = {"SLURM_JOB_NODELIST": "node[1-3]", "SLURM_JOB_ID": "4711"}
        environment["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        batch = subprocess.Popen(
            ["bash", "script"], cwd=tmp_path, env=environment, start_new_session=True
        )
        try:
            assert batch.wait(60) == 0
        finally:
            os.killpg(batch.pid, signal.SIGKILL)  # as Slurm does when the script has ended
        tasks = [path.read_text().partition(" ") for path in sorted(tmp_path.glob("task-*"))]
        chiefs = [path.read_text().partition(" ") for path in sorted(tmp_path.glob("chief-*"))]
        assert [what for what, _, _ in tasks] == ["server"] * 4
        assert [what for what, _, _ in chiefs] == ["train.py"] * 2
        found = {}
        for _, _, config in tasks + chiefs:
            described = json.loads(config)
            spec = jt.ClusterSpec(described["cluster"])
            job, index = described["task"]["type"], described["task"]["index"]
            found[f"{job}:{index}"] = spec.task_address(job, index)
        assert found == {
            "chief:0": "node1:24711",
            "worker:0": "node2:24711",
            "worker:1": "node3:24711",
            "ps:0": "node2:24712",
            "ps:1": "node3:24712",
        }
        placed = sorted(path.read_text().split()[-1] for path in tmp_path.glob("srun-*"))
        assert placed == ["--nodelist=node2"] * 2 + ["--nodelist=node3"] * 2
