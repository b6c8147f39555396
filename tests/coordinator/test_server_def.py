"""Which task a server is."""

import json

import pytest

import jaxtribute as jt
from jaxtribute.cluster_resolver import SimpleClusterResolver, TFConfigClusterResolver

CLUSTER = {
    "chief": ["127.0.0.1:4000"],
    "worker": ["127.0.0.1:4001", "127.0.0.1:4002"],
    "ps": ["127.0.0.1:4003"],
}


def task_of(*args, **kwargs):
    definition = jt.Server(*args, start=False, **kwargs).server_def
    return f"{definition.job_name}:{definition.task_index}"


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param(CLUSTER, id="dict"),
        pytest.param(jt.ClusterSpec(CLUSTER), id="spec"),
        pytest.param(SimpleClusterResolver(jt.ClusterSpec(CLUSTER)), id="resolver"),
    ],
)
def test_a_cluster_can_be_described_in_several_ways(cluster):
    server = jt.Server(cluster, job_name="worker", task_index=1, protocol="grpc", start=False)
    assert server.target == "jaxtribute://127.0.0.1:4002"
    assert server.server_def.cluster == jt.ClusterSpec(CLUSTER)
    assert server.server_def.protocol == "grpc"


def test_a_resolver_says_which_task_it_is(monkeypatch):
    task = {"type": "ps", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": task}))
    assert task_of(TFConfigClusterResolver()) == "ps:0"
    assert task_of(TFConfigClusterResolver(), "worker", 1) == "worker:1"


def test_the_definition_of_a_server_makes_another_one():
    one = jt.Server(CLUSTER, "worker", 1, start=False)
    assert jt.Server(one.server_def, start=False).server_def == one.server_def
    assert task_of(one.server_def, task_index=0) == "worker:0"


@pytest.mark.parametrize(
    ("cluster", "job", "index", "expected"),
    [
        pytest.param(CLUSTER, "ps", None, "ps:0", id="the only one of its job"),
        pytest.param(CLUSTER, None, 1, "worker:1", id="the only one with its index"),
        pytest.param({"worker": ["a:1"]}, None, None, "worker:0", id="the only one"),
        pytest.param(
            {"chief": ["a:1"], "ps": ["a:2"]}, None, None, "ps:0", id="a chief is no server"
        ),
        pytest.param({"worker": {3: "a:1"}}, None, None, "worker:3", id="numbered otherwise"),
    ],
)
def test_what_is_clear_need_not_be_said(cluster, job, index, expected):
    assert task_of(cluster, job, index) == expected


@pytest.mark.parametrize(
    ("cluster", "job", "index", "error", "text"),
    [
        pytest.param(CLUSTER, "worker", None, ValueError, "worker:0, worker:1", id="which worker"),
        pytest.param(CLUSTER, None, 0, ValueError, "worker:0, ps:0", id="which job"),
        pytest.param(CLUSTER, None, 7, ValueError, "none of its workers", id="no such index"),
        pytest.param(CLUSTER, "worker", 2, ValueError, "maximum id", id="too large an index"),
        pytest.param(CLUSTER, "worker", -1, ValueError, "numbered from 0", id="negative index"),
        pytest.param(CLUSTER, "wroker", 0, ValueError, "wroker", id="no such job"),
        pytest.param(CLUSTER, "chief", 0, ValueError, "ParameterServerStrategy", id="chief"),
        pytest.param(CLUSTER, "evaluator", 0, ValueError, "checkpoints", id="evaluator"),
        pytest.param({}, "worker", 0, ValueError, "empty", id="no cluster"),
        pytest.param({"worker": ["nonsense"]}, None, None, ValueError, "no port", id="address"),
        pytest.param(CLUSTER, "worker", "0", TypeError, "'0'", id="index as text"),
        pytest.param(CLUSTER, "worker", True, TypeError, "True", id="index as truth value"),
        pytest.param("worker:0", None, None, TypeError, "'worker:0'", id="text"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(cluster, job, index, error, text):
    with pytest.raises(error, match=text):
        task_of(cluster, job, index)
