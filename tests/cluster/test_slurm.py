"""The cluster of a Slurm job step, from the variables that srun sets."""

import os
import stat
import subprocess

import pytest

import jaxtribute as jt
from jaxtribute.cluster import _slurm, default_resolver, resolve
from jaxtribute.cluster._slurm_lists import deal, expand_counts, expand_hosts
from jaxtribute.cluster_resolver import SlurmClusterResolver, TFConfigClusterResolver
from tests._interpreter import STRICT_PYTHON


class TestLists:
    @pytest.mark.parametrize(
        ("text", "hosts"),
        [
            ("node1", ["node1"]),
            ("a,b", ["a", "b"]),
            ("node[1-3]", ["node1", "node2", "node3"]),
            ("node[01-03,7],gpu1", ["node01", "node02", "node03", "node7", "gpu1"]),
            ("node[098-101]", ["node098", "node099", "node100", "node101"]),
            ("n[9-11]-ib", ["n9-ib", "n10-ib", "n11-ib"]),
            ("r[1-2]n[1,4]", ["r1n1", "r1n4", "r2n1", "r2n4"]),
            ("gnode[10,20,25]", ["gnode10", "gnode20", "gnode25"]),
        ],
    )
    def test_nodes(self, text, hosts):
        assert expand_hosts(text) == hosts

    @pytest.mark.parametrize("text", ["node[1-", "node]1", "a,,b", "node[x-y]", "node[1-2-3]", ""])
    def test_what_is_no_list_of_nodes(self, text):
        if text:
            with pytest.raises(ValueError, match=r"such as '(node\[01-03,7\],gpu1|01-03)'"):
                expand_hosts(text)
        else:
            assert expand_hosts(text) == []

    @pytest.mark.parametrize(
        ("text", "counts"),
        [("2", [2]), ("2(x3),1", [2, 2, 2, 1]), ("1,2(x2),3", [1, 2, 2, 3])],
    )
    def test_numbers(self, text, counts):
        assert expand_counts(text) == counts

    @pytest.mark.parametrize("text", ["", "x", "2(3)", "2(x)", "1,,2"])
    def test_what_is_no_list_of_numbers(self, text):
        with pytest.raises(ValueError, match=r"2\(x3\),1"):
            expand_counts(text)

    @pytest.mark.parametrize(
        ("at_a_time", "nodes"),
        [
            pytest.param(None, [0, 0, 0, 1, 2, 2], id="block"),
            pytest.param(1, [0, 1, 2, 0, 2, 0], id="cyclic"),
            pytest.param(2, [0, 0, 1, 2, 2, 0], id="plane"),
        ],
    )
    def test_tasks_are_dealt_out_to_nodes(self, at_a_time, nodes):
        places = deal([3, 1, 2], at_a_time)
        assert [node for node, _ in places] == nodes
        for node, count in enumerate([3, 1, 2]):
            assert [local for n, local in places if n == node] == list(range(count))


@pytest.fixture
def step(monkeypatch):
    """Set the variables of a step: by default the third of four tasks on two nodes."""
    for name in [*os.environ]:
        if name.startswith(("SLURM", "TF_CONFIG", "CUDA_VISIBLE")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(_slurm, "_visible_set", None)

    def set_variables(**variables):
        for name, value in variables.items():
            if value is None:
                monkeypatch.delenv(f"SLURM_{name}", raising=False)
            else:
                monkeypatch.setenv(f"SLURM_{name}", str(value))

    set_variables(
        PROCID=2,
        NODEID=1,
        LOCALID=0,
        STEP_NODELIST="node[01-02]",
        STEP_TASKS_PER_NODE="2(x2)",
        STEP_NUM_TASKS=4,
    )
    return set_variables


FOUR = ["node01:8888", "node01:8889", "node02:8888", "node02:8889"]


class TestCluster:
    def test_all_tasks_are_workers_by_default(self, step):
        resolver = SlurmClusterResolver()
        assert resolver.cluster_spec().as_dict() == {"worker": FOUR}
        assert (resolver.task_type, resolver.task_id) == ("worker", 2)
        assert resolver.get_task_info() == ("worker", 2)
        assert resolver.environment == ""

    def test_jobs_take_tasks_in_their_order(self, step):
        resolver = SlurmClusterResolver({"ps": 1, "chief": 1, "worker": 2})
        assert resolver.cluster_spec().as_dict() == {
            "ps": FOUR[:1],
            "chief": FOUR[1:2],
            "worker": FOUR[2:],
        }
        assert resolver.get_task_info() == ("worker", 0)

    def test_ports_begin_where_they_are_told_to(self, step):
        spec = SlurmClusterResolver(port_base=5000).cluster_spec()
        assert spec.task_address("worker", 3) == "node02:5001"

    def test_master(self, step):
        resolver = SlurmClusterResolver()
        assert resolver.master() == "grpc://node02:8888"
        assert resolver.master("worker", 0, rpc_layer="zmq") == "zmq://node01:8888"
        assert SlurmClusterResolver(rpc_layer=None).master() == "node02:8888"
        with pytest.raises(ValueError, match="no task 4"):
            resolver.master("worker", 4)

    def test_the_job_says_what_the_step_does_not(self, step):
        step(STEP_NODELIST=None, STEP_TASKS_PER_NODE=None)
        step(JOB_NODELIST="node[01-02]", TASKS_PER_NODE="2(x2)")
        assert SlurmClusterResolver().cluster_spec().as_dict() == {"worker": FOUR}

    @pytest.mark.parametrize("tasks", [2, {"node01": 2, "node02": 2}])
    def test_tasks_per_node_can_be_given(self, step, tasks):
        step(STEP_TASKS_PER_NODE=None)
        spec = SlurmClusterResolver(tasks_per_node=tasks).cluster_spec()
        assert spec.as_dict() == {"worker": FOUR}

    def test_nodes_may_have_different_numbers_of_tasks(self, step):
        step(PROCID=3, LOCALID=0, STEP_TASKS_PER_NODE="3,1")
        spec = SlurmClusterResolver().cluster_spec()
        assert spec.job_tasks("worker") == [*FOUR[:2], "node01:8890", "node02:8888"]

    @pytest.mark.parametrize(
        ("variables", "own"),
        [
            ({"DISTRIBUTION": "block:cyclic"}, "node02:8888"),
            ({"DISTRIBUTION": "cyclic", "NODEID": 0, "LOCALID": 1}, "node01:8889"),
            ({"DISTRIBUTION": "cyclic:block", "NODEID": 0, "LOCALID": 1}, "node01:8889"),
            ({"DISTRIBUTION": "plane", "DIST_PLANESIZE": 2}, "node02:8888"),
        ],
    )
    def test_distributions(self, step, variables, own):
        step(**variables)
        assert SlurmClusterResolver(rpc_layer=None).master() == own

    def test_it_can_be_trained_with(self, step):
        roll = resolve(SlurmClusterResolver())
        assert (roll.addresses, roll.index) == (tuple(FOUR), 2)


class TestErrors:
    @pytest.mark.parametrize(
        ("variable", "named"),
        [
            ("PROCID", "SLURM_PROCID"),
            ("STEP_NODELIST", "SLURM_STEP_NODELIST or SLURM_JOB_NODELIST"),
            ("STEP_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE or SLURM_TASKS_PER_NODE"),
        ],
    )
    def test_a_missing_variable_is_named(self, step, variable, named):
        step(**{variable: None})
        with pytest.raises(jt.errors.FailedPreconditionError, match=f"{named} is not set.*srun"):
            SlurmClusterResolver()

    @pytest.mark.parametrize(
        ("variables", "message"),
        [
            ({"PROCID": "x"}, "SLURM_PROCID must be a number, is 'x'"),
            ({"STEP_NODELIST": "node[1-"}, r"SLURM_STEP_NODELIST cannot be read: 'node\[1-'"),
            ({"STEP_TASKS_PER_NODE": "x"}, "SLURM_STEP_TASKS_PER_NODE cannot be read: 'x'"),
            ({"STEP_TASKS_PER_NODE": "4"}, "about 1 nodes.*runs on 2: node01, node02"),
        ],
    )
    def test_a_variable_that_cannot_be_read_is_named(self, step, variables, message):
        step(**variables)
        with pytest.raises(jt.errors.InvalidArgumentError, match=message):
            SlurmClusterResolver()

    @pytest.mark.parametrize("jobs", [{"worker": 3}, {"worker": 5}, {"ps": 1, "worker": 1}])
    def test_there_must_be_as_many_tasks_as_the_jobs_have(self, step, jobs):
        with pytest.raises(jt.errors.FailedPreconditionError, match=r"Slurm runs 4.*srun --ntasks"):
            SlurmClusterResolver(jobs)

    def test_tasks_per_node_must_name_every_node(self, step):
        with pytest.raises(jt.errors.InvalidArgumentError, match="nothing about node02"):
            SlurmClusterResolver(tasks_per_node={"node01": 4})

    @pytest.mark.parametrize("variables", [{"NODEID": 0}, {"LOCALID": 1}])
    def test_another_place_than_expected_is_an_error_instead_of_a_hang(self, step, variables):
        step(**variables)
        with pytest.raises(jt.errors.FailedPreconditionError, match="--distribution=block"):
            SlurmClusterResolver()


_ON_GPUS = """
import os, sys
import jaxtribute as jt
if "started" in sys.argv:
    import jax
    jax.devices()
options = eval(sys.argv[1])
resolver = jt.cluster_resolver.SlurmClusterResolver(**options)
jt.cluster_resolver.SlurmClusterResolver(**options)  # a second one changes nothing
print(os.environ.get("CUDA_VISIBLE_DEVICES"), resolver.cluster_spec().num_tasks("worker"))
"""


@pytest.mark.processes
class TestGpus:
    """In a process of its own: JAX must not have started when GPUs are divided."""

    @staticmethod
    def run(options, *arguments, path=None, **variables):
        names = {"JAX_PLATFORMS": "cpu", "PATH": path or os.defpath}
        kept = {k: v for k, v in os.environ.items() if k in ("PYTHONPATH", "HOME")}
        return subprocess.run(
            [*STRICT_PYTHON, "-c", _ON_GPUS, repr(options), *arguments],
            env={**kept, **names, **variables},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    @pytest.fixture
    def variables(self, step):
        return {name: value for name, value in os.environ.items() if name.startswith("SLURM")}

    @pytest.mark.parametrize(
        ("visible", "extra", "options", "left"),
        [
            pytest.param("0,1,2,3", {"LOCALID": "0"}, {}, "0,1", id="first half"),
            pytest.param("4,5,6,7", {"LOCALID": "1", "PROCID": "3"}, {}, "6,7", id="second half"),
            pytest.param("0,1,2,3", {}, {"gpus_per_task": 1}, "0", id="one each"),
            pytest.param("0,1,2,3", {}, {"gpus_per_node": 2}, "0", id="of two"),
            pytest.param(None, {}, {"gpus_per_node": 4}, "0,1", id="none visible"),
            pytest.param("0,1,2,3", {}, {"auto_set_gpu": False}, "0,1,2,3", id="not divided"),
            pytest.param("0", {"GPUS_PER_TASK": "1"}, {}, "0", id="by Slurm"),
            pytest.param("0", {"TRES_PER_TASK": "gres/gpu=1"}, {}, "0", id="by Slurm as TRES"),
            pytest.param(None, {}, {}, "None", id="no GPUs"),
        ],
    )
    def test_each_task_has_its_share(self, variables, visible, extra, options, left):
        variables |= {f"SLURM_{name}": value for name, value in extra.items()}
        if visible is not None:
            variables["CUDA_VISIBLE_DEVICES"] = visible
        done = self.run(options, **variables)
        assert done.stdout.split() == [left, "4"], done.stderr

    def test_nvidia_smi_counts_them(self, variables, tmp_path):
        command = tmp_path / "nvidia-smi"
        command.write_text("#!/bin/sh\necho 'GPU 0: A'\necho 'GPU 1: A'\n")
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        done = self.run({}, path=f"{tmp_path}:{os.defpath}", **variables)
        assert done.stdout.split() == ["0", "4"], done.stderr

    def test_too_few(self, variables):
        done = self.run({}, CUDA_VISIBLE_DEVICES="0", **variables)
        assert "2 tasks on this node need 1 GPU(s) each, and it has 1" in done.stderr
        done = self.run({"gpus_per_task": 2}, CUDA_VISIBLE_DEVICES="0,1", **variables)
        assert "2 tasks on this node need 2 GPU(s) each, and it has 2" in done.stderr

    def test_too_late(self, variables):
        done = self.run({}, "started", CUDA_VISIBLE_DEVICES="0,1", **variables)
        assert "since JAX has started" in done.stderr
        assert "FailedPreconditionError" in done.stderr


class TestAccelerators:
    def test_as_many_as_were_given(self, step):
        resolver = SlurmClusterResolver(gpus_per_task=2, auto_set_gpu=False)
        assert resolver.num_accelerators("worker", 0) == {"GPU": 2}

    def test_otherwise_those_of_this_process(self, step):
        resolver = SlurmClusterResolver()
        assert resolver.num_accelerators() == {}
        with pytest.raises(ValueError, match=r"worker:0.*worker:2"):
            resolver.num_accelerators("worker", 0)


class TestDefaultResolver:
    def test_slurm_in_a_step_of_several_tasks(self, step):
        assert isinstance(default_resolver(), SlurmClusterResolver)

    def test_tf_config_comes_first(self, step, monkeypatch):
        monkeypatch.setenv("TF_CONFIG", "{}")
        assert isinstance(default_resolver(), TFConfigClusterResolver)

    @pytest.mark.parametrize("tasks", ["1", None, "x"])
    def test_a_step_of_one_task_is_alone(self, step, tasks):
        step(STEP_NUM_TASKS=tasks)  # None: in a batch script, outside of srun
        assert isinstance(default_resolver(), TFConfigClusterResolver)
        assert resolve(default_resolver()) is None
