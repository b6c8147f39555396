"""Which processes train together, in which order, and which of them this one is."""

import json

import pytest

import jaxtribute as jt
from jaxtribute.cluster import Task, resolve, workers_of
from jaxtribute.cluster_resolver import (
    SimpleClusterResolver,
    TFConfigClusterResolver,
    UnionResolver,
)


def workers(cluster, task_type=None, task_id=None):
    return workers_of(jt.ClusterSpec(cluster), task_type, task_id)


class TestOrder:
    def test_the_chief_comes_first_and_then_workers_by_number(self):
        cluster = {"worker": {10: "c:1", 2: "b:1"}, "ps": ["p:1"], "chief": ["a:1"]}
        roll = workers(cluster, "worker", 10)
        assert [str(task) for task in roll.tasks] == ["chief:0", "worker:2", "worker:10"]
        assert roll.addresses == ("a:1", "b:1", "c:1")
        assert (roll.index, roll.task) == (2, Task("worker", 10))

    def test_without_a_chief_the_first_worker_is_it(self):
        roll = workers({"worker": ["a:1", "b:1"]}, "worker", 1)
        assert roll.tasks[0] == Task("worker", 0)
        assert roll.index == 1

    @pytest.mark.parametrize(
        ("cluster", "task_type", "task_id", "task"),
        [
            ({"worker": ["a:1"]}, None, None, "worker:0"),
            ({"worker": {3: "a:1"}}, "worker", None, "worker:3"),
            ({"chief": ["a:1"], "worker": ["b:1"]}, "chief", None, "chief:0"),
        ],
    )
    def test_what_can_only_be_one_need_not_be_said(self, cluster, task_type, task_id, task):
        assert str(workers(cluster, task_type, task_id).task) == task


class TestAlone:
    @pytest.mark.parametrize(
        ("cluster", "task_type"),
        [
            ({}, None),
            ({}, "worker"),
            ({"worker": ["a:1", "b:1"]}, "evaluator"),
            ({"worker": ["a:1", "b:1"], "evaluator": ["e:1"]}, "evaluator"),
        ],
    )
    def test_no_cluster_and_evaluators(self, cluster, task_type):
        assert workers(cluster, task_type, 0) is None


class TestNoPlaceInTraining:
    def test_a_parameter_server_is_told_what_to_use(self):
        with pytest.raises(jt.errors.InvalidArgumentError, match=r"ps:1.*ParameterServerStrategy"):
            workers({"worker": ["a:1"], "ps": ["b:1", "c:1"]}, "ps", 1)

    def test_a_cluster_without_workers(self):
        with pytest.raises(jt.errors.InvalidArgumentError, match=r'jobs are ps\..*"worker"'):
            workers({"ps": ["b:1"]})

    def test_what_is_wrong_is_told(self):
        with pytest.raises(jt.errors.InvalidArgumentError, match="exceeds the maximum id"):
            workers({"worker": ["a:1"]}, "worker", 1)


class TestResolve:
    def test_of_tf_config(self, monkeypatch):
        config = {
            "cluster": {"worker": ["a:1", "b:1"]},
            "task": {"type": "worker", "index": "1"},
        }
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        assert resolve(TFConfigClusterResolver()).index == 1

    def test_of_nothing(self, monkeypatch):
        monkeypatch.delenv("TF_CONFIG", raising=False)
        assert resolve(TFConfigClusterResolver()) is None

    def test_of_other_resolvers(self):
        spec = jt.ClusterSpec({"worker": ["a:1", "b:1"]})
        chief = SimpleClusterResolver(jt.ClusterSpec({"chief": ["c:1"]}))
        workers = SimpleClusterResolver(spec, task_type="worker", task_id=1)
        assert resolve(workers).index == 1
        assert resolve(UnionResolver(workers, chief)).index == 2

    def test_what_is_wrong_with_another_resolver_is_told(self):
        spec = jt.ClusterSpec({"worker": ["a:1", "a:1"]})
        resolver = SimpleClusterResolver(spec, task_type="worker", task_id=1)
        with pytest.raises(jt.errors.InvalidArgumentError, match="has the same address"):
            resolve(resolver)
