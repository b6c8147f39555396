"""ClusterSpec: which tasks there are, and where (R157, R162)."""

import pytest

import jaxtribute as jt


class TestClusterSpec:
    def test_lists_and_dicts(self):
        spec = jt.ClusterSpec({"worker": ["a:1", "b:1"], "ps": {"1": "c:1", 3: "d:1"}})
        assert spec.jobs == ["worker", "ps"]
        assert spec.num_tasks("worker") == 2
        assert spec.task_indices("ps") == [1, 3]  # sparse indices stay as they are
        assert spec.task_address("ps", 3) == "d:1"
        assert spec.as_dict() == {"worker": ["a:1", "b:1"], "ps": {1: "c:1", 3: "d:1"}}
        assert spec.as_cluster_def() == {
            "worker": {0: "a:1", 1: "b:1"},
            "ps": {1: "c:1", 3: "d:1"},
        }

    def test_gaps_are_none(self):
        assert jt.ClusterSpec({"w": {0: "a", 2: "b"}}).job_tasks("w") == ["a", None, "b"]

    def test_a_dict_without_gaps_is_a_list(self):
        assert jt.ClusterSpec({"w": {1: "b", 0: "a"}}).as_dict() == {"w": ["a", "b"]}

    def test_a_copy_is_equal_and_independent(self):
        spec = jt.ClusterSpec({"worker": ["a:1"]})
        copy = jt.ClusterSpec(spec)
        assert copy == spec and hash(copy) == hash(spec)
        copy.as_dict()["worker"] = []
        assert spec.num_tasks("worker") == 1
        assert spec != jt.ClusterSpec({"worker": ["b:1"]})

    def test_an_empty_one_is_false(self):
        assert not jt.ClusterSpec({})
        assert jt.ClusterSpec({"worker": ["a:1"]})

    @pytest.mark.parametrize("method", ["num_tasks", "task_indices", "job_tasks"])
    def test_an_unknown_job_is_named(self, method):
        with pytest.raises(ValueError, match=r"'ps'.*'worker'"):
            getattr(jt.ClusterSpec({"worker": ["a:1"]}), method)("ps")

    def test_an_unknown_task_is_named(self):
        spec = jt.ClusterSpec({"worker": ["a:1"]})
        with pytest.raises(ValueError, match=r"no task 1.*\[0\]"):
            spec.task_address("worker", 1)
        with pytest.raises(ValueError, match="'ps'"):
            spec.task_address("ps", 0)

    @pytest.mark.parametrize(
        ("cluster", "message"),
        [
            pytest.param(["a:1"], "dict from each job", id="no mapping"),
            pytest.param({"worker": "a:1"}, "'worker'.*'a:1'", id="address for a job"),
            pytest.param({"worker": 3}, "'worker'.*3", id="number for a job"),
            pytest.param({"worker": [1]}, r"worker:0.*1", id="number for an address"),
            pytest.param({"worker": {"x": "a:1"}}, "'worker'.*'x'", id="text for an index"),
        ],
    )
    def test_other_types_are_refused_by_name(self, cluster, message):
        with pytest.raises(TypeError, match=message):
            jt.ClusterSpec(cluster)

    def test_it_is_known_under_train_as_well(self):
        assert jt.train.ClusterSpec is jt.ClusterSpec
