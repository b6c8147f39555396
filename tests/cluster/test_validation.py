"""What cannot be right about a cluster is told, with a corrected example (R163, decision 9)."""

import json
import shlex

import pytest

import jaxtribute as jt
from jaxtribute.cluster._problems import Problem
from jaxtribute.cluster._validation import check, find_problems

TWO = ["host0:2222", "host1:2222"]


def problems(cluster, task_type="worker", task_id=0) -> list[Problem]:
    return find_problems(jt.ClusterSpec(cluster), task_type, task_id)


def corrected(problem: Problem) -> dict:
    """Return what the example of a problem says, read as a shell would read it."""
    (word,) = shlex.split(problem.fix)
    assert word.startswith("TF_CONFIG=")
    return json.loads(word.removeprefix("TF_CONFIG="))


def fixed(cluster, task_type="worker", task_id=0) -> tuple[dict, str]:
    config = corrected(problems(cluster, task_type, task_id)[0])
    return config["cluster"], f"{config['task']['type']}:{config['task']['index']}"


class TestWhatIsRight:
    @pytest.mark.parametrize(
        ("cluster", "task_type", "task_id"),
        [
            pytest.param({}, None, None, id="nothing"),
            pytest.param({}, "worker", 0, id="a task and no cluster: the program runs alone"),
            pytest.param({"worker": TWO}, "worker", 1, id="workers"),
            pytest.param({"chief": ["a:1"], "worker": TWO}, "chief", 0, id="chief"),
            pytest.param({"chief": ["a:1"], "ps": ["b:1"], "worker": TWO}, "ps", 0, id="ps"),
            pytest.param({"chief": ["a:1"]}, "chief", 0, id="chief alone"),
            pytest.param({"worker": ["a:1"]}, None, None, id="one task needs no name"),
            pytest.param({"chief": ["a:1"], "worker": TWO}, "chief", None, id="one of its job"),
            pytest.param({"worker": TWO}, "evaluator", 0, id="evaluator outside"),
            pytest.param({"worker": TWO}, "evaluator", None, id="evaluator without a number"),
            pytest.param({"worker": TWO, "evaluator": ["e:1"]}, "evaluator", 0, id="evaluator in"),
            pytest.param({"worker": {0: "a:1", 2: "b:1"}}, "worker", 2, id="sparse"),
            pytest.param({"chief": [], "worker": TWO}, "worker", 0, id="a job without tasks"),
            pytest.param({"worker": ["[fe80::1]:1", "[fe80::2]:1"]}, "worker", 0, id="IPv6"),
            pytest.param({"worker": ["localhost:1", "127.0.0.1:2"]}, "worker", 0, id="all here"),
            pytest.param({"worker": ["host0:1", "host0:2"]}, "worker", 0, id="two on a host"),
            pytest.param(
                {"worker": TWO, "evaluator": ["localhost:2222"]}, "worker", 0, id="evaluator here"
            ),
            pytest.param(
                {"worker": TWO, "evaluator": ["host0:2222"]}, "worker", 0, id="which never listens"
            ),
        ],
    )
    def test_is_let_through(self, cluster, task_type, task_id):
        assert problems(cluster, task_type, task_id) == []
        check(jt.ClusterSpec(cluster), task_type, task_id)


WRONG = [
    # cluster, task, the offending part, why
    pytest.param(
        {"workers": TWO}, "workers:0", "cluster.workers", "Disallowed task type", id="job"
    ),
    pytest.param(
        {"master": ["m:1"], "worker": TWO}, "worker:0", "cluster.master", "Disallowed", id="master"
    ),
    pytest.param(
        {"worker": TWO}, "wrker:0", 'task.type = "wrker"', "Unrecognized task_type", id="type"
    ),
    pytest.param(
        {"worker": TWO}, "chief:0", 'task.type = "chief"', "no job 'chief'; it has", id="no chief"
    ),
    pytest.param({"worker": TWO}, "ps:0", 'task.type = "ps"', "no job 'ps'", id="no ps"),
    pytest.param(
        {"worker": TWO}, "worker:2", "task.index = 2", "exceeds the maximum id", id="index"
    ),
    pytest.param({"worker": TWO}, ("worker", -1), "task.index = -1", "from 0", id="negative"),
    pytest.param(
        {"worker": {0: "a:1", 2: "b:1"}}, "worker:1", "task.index = 1", "0 and 2", id="gap"
    ),
    pytest.param({"worker": TWO}, (None, None), "task", "which of them", id="no task"),
    pytest.param({"worker": TWO}, (None, 1), "task", "which of them", id="no type"),
    pytest.param({"worker": ["a:1"]}, (None, 1), "task.index = 1", "exceeds", id="not the one"),
    pytest.param({"worker": TWO}, ("worker", None), "task.index", "which worker", id="no index"),
    pytest.param(
        {"chief": ["a:1", "b:1"]}, "chief:1", "cluster.chief", "at most one chief", id="chiefs"
    ),
    pytest.param(
        {"worker": TWO, "evaluator": ["a:1", "b:1"]},
        "evaluator:1",
        "cluster.evaluator",
        "at most one evaluator",
        id="evaluators",
    ),
    pytest.param(
        {"worker": ["host0", "host1:1"]},
        "worker:0",
        'cluster.worker[0] = "host0"',
        "no port",
        id="no port",
    ),
    pytest.param(
        {"worker": ["host0:1", "grpc://host1:1"]},
        "worker:0",
        'cluster.worker[1] = "grpc://host1:1"',
        "protocol",
        id="protocol",
    ),
    pytest.param(
        {"worker": ["host0:1", "host1:99999"]},
        "worker:0",
        'cluster.worker[1] = "host1:99999"',
        "1 to 65535",
        id="port",
    ),
    pytest.param(
        {"worker": ["fe80::1:2222", "[fe80::2]:2222"]},
        "worker:0",
        'cluster.worker[0] = "fe80::1:2222"',
        "brackets",
        id="IPv6",
    ),
    pytest.param(
        {"worker": ["", "host1:1"]}, "worker:0", 'cluster.worker[0] = ""', "no host", id="no host"
    ),
    pytest.param(
        {"chief": ["host0:2222"], "worker": ["HOST0:2222"]},
        "worker:0",
        'cluster.worker[0] = "HOST0:2222"',
        "cluster.chief[0] has the same address",
        id="duplicate",
    ),
    *[
        pytest.param(
            {"worker": ["host0:2222", f"{host}:2222"]},
            "worker:0",
            f'cluster.worker[1] = "{host}:2222"',
            "cannot reach it",
            id=f"{host} among others",
        )
        for host in ("localhost", "127.0.1.1", "[::1]", "0.0.0.0")
    ],
]


@pytest.mark.parametrize(("cluster", "task", "part", "why"), WRONG)
class TestWhatIsWrong:
    @staticmethod
    def found(cluster, task):
        if isinstance(task, str):
            job, _, index = task.partition(":")
            task = (job, int(index))
        return task, problems(cluster, *task)

    def test_is_told_by_the_part_and_the_reason(self, cluster, task, part, why):
        _, found = self.found(cluster, task)
        assert part in [problem.part for problem in found]
        assert any(why in problem.why for problem in found if problem.part == part)

    def test_gets_an_example_that_is_right(self, cluster, task, part, why):
        _, found = self.found(cluster, task)
        config = corrected(found[0])
        right = config["task"]["type"], config["task"]["index"]
        assert problems(config["cluster"], *right) == []

    def test_is_an_error_that_prints_both(self, cluster, task, part, why):
        own, found = self.found(cluster, task)
        with pytest.raises(jt.errors.InvalidArgumentError) as raised:
            check(jt.ClusterSpec(cluster), *own)
        assert isinstance(raised.value, ValueError)
        for text in (part, why, found[0].fix):
            assert text in str(raised.value)


class TestTheExample:
    def test_keeps_what_was_right(self):
        cluster, task = fixed({"worker": ["a:1", "b:x"], "ps": ["p:1"]}, "worker", 1)
        assert cluster == {"worker": ["a:1", "b:2222"], "ps": ["p:1"]}
        assert task == "worker:1"

    @pytest.mark.parametrize(
        ("job", "right"),
        [
            ("workers", "worker"),
            ("Worker", "worker"),
            ("wroker", "worker"),
            ("worker_hosts", "worker"),
            ("ps_hosts", "ps"),
            ("master", "chief"),
            ("evaluators", "evaluator"),
            ("xyz", "worker"),
        ],
    )
    def test_names_the_job_that_was_meant(self, job, right):
        cluster, task = fixed({job: ["a:1"]}, job, 0)
        assert (cluster, task) == ({right: ["a:1"]}, f"{right}:0")

    def test_makes_further_chiefs_workers(self):
        cluster, task = fixed({"chief": ["a:1", "b:1"], "worker": ["c:1"]}, "worker", 0)
        assert cluster == {"chief": ["a:1"], "worker": ["c:1", "b:1"]}
        assert task == "worker:0"

    def test_a_second_master_is_a_worker(self):
        cluster, _ = fixed({"chief": ["a:1"], "master": ["b:1"]}, "chief", 0)
        assert cluster == {"chief": ["a:1"], "worker": ["b:1"]}

    def test_gives_the_same_host_another_port(self):
        cluster, _ = fixed({"worker": ["a:65535", "a:65535", "a:1"]})
        assert cluster == {"worker": ["a:65535", "a:1", "a:2"]}

    def test_names_a_host_for_localhost(self):
        cluster, _ = fixed({"worker": ["localhost:2222", "b:1"]})
        assert cluster == {"worker": ["host-of-worker-0:2222", "b:1"]}

    def test_keeps_the_gaps_of_a_sparse_cluster(self):
        cluster, task = fixed({"worker": {0: "a:1", 4: "b:1"}}, "worker", 3)
        assert (cluster, task) == ({"worker": {"0": "a:1", "4": "b:1"}}, "worker:4")


def test_everything_is_told_at_once():
    found = problems({"worker": ["a", "localhost:1"], "boss": ["c:1"]}, "worker", 7)
    assert [problem.part for problem in found] == [
        'cluster.worker[0] = "a"',
        'cluster.worker[1] = "localhost:1"',
        "cluster.boss",
        "task.index = 7",
    ]
    assert len({problem.fix for problem in found}) == 1


def test_an_error_reads_like_this():
    with pytest.raises(jt.errors.InvalidArgumentError) as raised:
        check(jt.ClusterSpec({"worker": ["a:1", "a:1"]}), "worker", 0)
    assert str(raised.value) == (
        "The description of the cluster cannot work.\n"
        '  cluster.worker[1] = "a:1"\n'
        "    cluster.worker[0] has the same address. Each task listens on its own: give them "
        "different hosts or ports.\n"
        "It should look like this:\n"
        '  TF_CONFIG=\'{"cluster": {"worker": ["a:1", "a:2"]}, '
        '"task": {"type": "worker", "index": 0}}\''
    )
