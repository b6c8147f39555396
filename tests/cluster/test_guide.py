"""What the guide on clusters lets people start describes the cluster it means."""

import json
import re
from pathlib import Path

import pytest
import yaml

from jaxtribute.cluster import default_resolver, resolve
from jaxtribute.cluster_resolver import SlurmClusterResolver, TFConfigClusterResolver

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "clusters.md").read_text()


def _blocks(mark):
    return re.findall(rf"^```{mark}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def _resources():
    documents = [document for block in _blocks("yaml") for document in yaml.safe_load_all(block)]
    return {document["kind"]: document for document in documents}


@pytest.fixture(autouse=True)
def _outside_of_any_cluster(monkeypatch):
    for name in ("TF_CONFIG", "SLURM_STEP_NUM_TASKS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def _workers_of(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return resolve(default_resolver())


def test_all_resources_are_known():
    assert set(_resources()) == {"TFJob", "Service", "Job"}


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
        config = self.tf_config(_resources()["TFJob"], "Worker", index)
        roll = _workers_of(monkeypatch, {"TF_CONFIG": config})
        assert roll.addresses == (
            "train-worker-0.team.svc:2222",
            "train-worker-1.team.svc:2222",
        )
        assert str(roll.task) == f"worker:{index}"


class TestIndexedJob:
    @staticmethod
    def environment(container, annotations):
        """Return what Kubernetes makes of `env`: `$(NAME)` stands for what is listed before."""
        values = {}
        for entry in container["env"]:
            if "valueFrom" in entry:
                path = entry["valueFrom"]["fieldRef"]["fieldPath"]
                value = annotations[re.fullmatch(r"metadata\.annotations\['(.*)'\]", path)[1]]
            else:
                value = re.sub(
                    r"\$\((\w+)\)", lambda name: values.get(name[1], name[0]), entry["value"]
                )
            values[entry["name"]] = value
        return values

    @pytest.mark.parametrize("index", [0, 1])
    def test_pods_are_workers(self, monkeypatch, index):
        job = _resources()["Job"]
        (container,) = job["spec"]["template"]["spec"]["containers"]
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        roll = _workers_of(monkeypatch, self.environment(container, annotations))
        assert roll.index == index
        assert len(roll.tasks) == job["spec"]["completions"] == job["spec"]["parallelism"]

    def test_addresses_are_the_names_that_pods_get(self, monkeypatch):
        job, service = _resources()["Job"], _resources()["Service"]
        template = job["spec"]["template"]["spec"]
        (container,) = template["containers"]
        annotations = {"batch.kubernetes.io/job-completion-index": "0"}
        roll = _workers_of(monkeypatch, self.environment(container, annotations))
        assert job["spec"]["completionMode"] == "Indexed"
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
        assert service["metadata"]["name"] == template["subdomain"]
        names = [f"{job['metadata']['name']}-{i}.{template['subdomain']}" for i in range(2)]
        port = container["ports"][0]["containerPort"]
        assert roll.addresses == tuple(f"{name}:{port}" for name in names)


class TestSlurm:
    @pytest.mark.parametrize("rank", range(4))
    def test_tasks_of_the_script_are_workers(self, monkeypatch, rank):
        (script,) = [block for block in _blocks("sh") if "#SBATCH" in block]
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
