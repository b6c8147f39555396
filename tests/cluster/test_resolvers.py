"""Resolvers: where the description of a cluster comes from (R151-R161)."""

import json

import pytest

import jaxtribute as jt
from jaxtribute.cluster_resolver import (
    SimpleClusterResolver,
    TFConfigClusterResolver,
    UnionResolver,
)

TWO_WORKERS = {"worker": ["a:1", "b:1"]}


@pytest.fixture
def tf_config(monkeypatch):
    def set_config(config):
        text = config if isinstance(config, str) else json.dumps(config)
        monkeypatch.setenv("TF_CONFIG", text)

    monkeypatch.delenv("TF_CONFIG", raising=False)
    return set_config


class TestTFConfig:
    @pytest.mark.parametrize("text", [None, "{}"])
    def test_R151_nothing_is_nothing(self, tf_config, text):
        if text is not None:
            tf_config(text)
        resolver = TFConfigClusterResolver()
        assert not resolver.cluster_spec()
        assert resolver.master() == ""
        assert (resolver.task_type, resolver.task_id) == (None, None)
        assert (resolver.rpc_layer, resolver.environment) == (None, None)

    def test_R152_the_environment_is_read_anew(self, tf_config):
        resolver = TFConfigClusterResolver()
        tf_config({"cluster": TWO_WORKERS, "task": {"type": "worker", "index": 0}})
        assert resolver.master() == "a:1"
        tf_config({"cluster": TWO_WORKERS, "task": {"type": "worker", "index": 1}})
        assert resolver.master() == "b:1"

    @pytest.mark.parametrize("text", ["", "{", "worker"])
    def test_R153_what_is_no_json_is_told_when_it_is_read(self, tf_config, text):
        tf_config(text)
        resolver = TFConfigClusterResolver()
        for read in (resolver.cluster_spec, resolver.master, lambda: resolver.task_type):
            with pytest.raises(ValueError, match=r"not valid JSON.*TF_CONFIG="):
                read()

    def test_R153_what_is_no_object_is_told(self, tf_config):
        tf_config("[1]")
        with pytest.raises(TypeError, match=r"JSON object, got \[1\].*TF_CONFIG="):
            TFConfigClusterResolver().cluster_spec()
        tf_config({"task": ["worker", 0]})
        with pytest.raises(TypeError, match=r'"task".*\[\'worker\', 0\]'):
            _ = TFConfigClusterResolver().task_type

    def test_R154_types_are_converted(self, tf_config):
        tf_config({"task": {"type": 123, "index": "1"}})
        resolver = TFConfigClusterResolver()
        assert (resolver.task_type, resolver.task_id) == ("123", 1)

    @pytest.mark.parametrize(("index", "error"), [("x", ValueError), (None, TypeError)])
    def test_R154_an_index_must_be_a_number(self, tf_config, index, error):
        tf_config({"task": {"type": "worker", "index": index}})
        with pytest.raises(error, match=r'"index".*TF_CONFIG='):
            _ = TFConfigClusterResolver().task_id

    def test_R154_a_type_without_an_index(self, tf_config):
        tf_config({"task": {"type": "worker"}})
        resolver = TFConfigClusterResolver()
        assert (resolver.task_type, resolver.task_id) == ("worker", None)

    def test_R155_arguments_and_setters_come_first(self, tf_config):
        tf_config(
            {
                "cluster": TWO_WORKERS,
                "task": {"type": "ps", "index": 7},
                "rpc_layer": "grpc",
                "environment": "cloud",
            }
        )
        resolver = TFConfigClusterResolver("worker", 0, "zmq", "google")
        assert (resolver.task_type, resolver.task_id) == ("worker", 0)
        assert (resolver.rpc_layer, resolver.environment) == ("zmq", "google")
        resolver.task_id, resolver.rpc_layer, resolver.task_type = 1, "http", "worker"
        assert resolver.master() == "http://b:1"

    @pytest.mark.parametrize(
        ("config", "master"),
        [
            pytest.param({"session_master": "s:1", "cluster": TWO_WORKERS}, "s:1", id="session"),
            pytest.param({"cluster": {}}, "", id="no job"),
            pytest.param({"cluster": {"worker": ["a:1"]}}, "", id="one task"),
            pytest.param(
                {"cluster": {"chief": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}},
                "b:1",
                id="two jobs",
            ),
            pytest.param(
                {
                    "cluster": TWO_WORKERS,
                    "task": {"type": "worker", "index": 1},
                    "rpc_layer": "grpc",
                },
                "grpc://b:1",
                id="protocol",
            ),
        ],
    )
    def test_R156_master(self, tf_config, config, master):
        tf_config(config)
        assert TFConfigClusterResolver().master() == master

    def test_R156_the_master_of_another_task(self, tf_config):
        tf_config({"cluster": TWO_WORKERS, "task": {"type": "worker", "index": 1}})
        resolver = TFConfigClusterResolver()
        assert resolver.master("worker", 0) == "a:1"
        assert resolver.master("worker", 0, rpc_layer="grpc") == "grpc://a:1"

    @pytest.mark.parametrize(
        ("task", "message"),
        [
            pytest.param({"type": "ps", "index": 0}, "'ps'", id="job"),
            pytest.param({"type": "worker", "index": 2}, "no task 2", id="index"),
            pytest.param({}, '"task".*TF_CONFIG=', id="nothing"),
        ],
    )
    def test_R156_a_task_that_is_not_there(self, tf_config, task, message):
        tf_config({"cluster": TWO_WORKERS, "task": task})
        with pytest.raises(ValueError, match=message):
            TFConfigClusterResolver().master()

    @pytest.mark.parametrize("cluster", ["worker", {"worker": 1}, {"worker": [1]}])
    def test_R157_what_is_no_cluster(self, tf_config, cluster):
        tf_config({"cluster": cluster})
        with pytest.raises(TypeError):
            TFConfigClusterResolver().cluster_spec()

    def test_R158_accelerators_are_those_of_this_process(self, tf_config):
        tf_config({"cluster": TWO_WORKERS, "task": {"type": "worker", "index": 1}})
        resolver = TFConfigClusterResolver()
        assert resolver.num_accelerators() == {}  # CPUs are none
        assert resolver.num_accelerators("worker", 1) == {}
        with pytest.raises(ValueError, match=r"worker:0.*worker:1"):
            resolver.num_accelerators("worker", 0)


class TestSimple:
    def test_R159_it_tells_what_it_was_told(self):
        spec = jt.ClusterSpec(TWO_WORKERS)
        resolver = SimpleClusterResolver(
            spec, "m:1", "worker", 1, "google", {"GPU": 2}, rpc_layer="grpc"
        )
        assert resolver.cluster_spec() is spec
        assert (resolver.task_type, resolver.task_id) == ("worker", 1)
        assert (resolver.environment, resolver.num_accelerators()) == ("google", {"GPU": 2})
        assert resolver.master() == "grpc://m:1"
        assert resolver.master("worker", 0) == "grpc://a:1"
        assert resolver.master("worker", 0, rpc_layer="zmq") == "zmq://a:1"

    def test_R159_nothing_is_nothing(self):
        resolver = SimpleClusterResolver(jt.ClusterSpec({}))
        assert resolver.num_accelerators() == {}
        assert resolver.master() == resolver.environment == ""

    @pytest.mark.parametrize("arguments", [(TWO_WORKERS,), (jt.ClusterSpec({}), 3)])
    def test_R159_other_types_are_refused(self, arguments):
        with pytest.raises(TypeError):
            SimpleClusterResolver(*arguments)


def _simple(workers, **kwargs):
    return SimpleClusterResolver(jt.ClusterSpec({"worker": workers}), **kwargs)


class TestUnion:
    @pytest.mark.parametrize(
        ("parts", "union"),
        [
            pytest.param(
                [["w4", "w5"], ["w0", "w1", "w2"]], ["w4", "w5", "w0", "w1", "w2"], id="lists"
            ),
            pytest.param(
                [{5: "a", 9: "b"}, {3: "c", 6: "d", 7: "e"}],
                {5: "a", 9: "b", 3: "c", 6: "d", 7: "e"},
                id="dicts",
            ),
            pytest.param(
                [["w4", "w5"], {3: "c", 6: "d", 7: "e"}],
                {0: "w4", 1: "w5", 3: "c", 6: "d", 7: "e"},
                id="both",
            ),
        ],
    )
    def test_R161_tasks_are_put_together(self, parts, union):
        assert UnionResolver(*map(_simple, parts)).cluster_spec() == jt.ClusterSpec(
            {"worker": union}
        )

    def test_R161_an_index_twice_is_an_error(self):
        resolver = UnionResolver(_simple({7: "a", 9: "b"}), _simple({3: "c", 6: "d", 7: "e"}))
        with pytest.raises(KeyError, match="worker:7"):
            resolver.cluster_spec()

    def test_R160_different_jobs_stand_side_by_side(self):
        other = SimpleClusterResolver(jt.ClusterSpec({"ps": ["p:1"]}))
        spec = UnionResolver(_simple(["w:1"]), other).cluster_spec()
        assert spec.as_dict() == {"worker": ["w:1"], "ps": ["p:1"]}

    def test_R160_the_first_tells_what_this_process_is(self):
        first = _simple(
            ["a:1"],
            task_type="worker",
            task_id=3,
            environment="x",
            rpc_layer="grpc",
            num_accelerators={"GPU": 1},
        )
        resolver = UnionResolver(first, _simple(["b:1"], task_type="ps", task_id=4))
        assert (resolver.task_type, resolver.task_id) == ("worker", 3)
        assert (resolver.environment, resolver.rpc_layer) == ("x", "grpc")
        assert resolver.num_accelerators() == {"GPU": 1}
        assert resolver.master("worker", 1) == "grpc://b:1"

    def test_R160_unless_it_is_told_otherwise(self):
        first = _simple(["a:1"], task_type="worker", task_id=3)
        resolver = UnionResolver(first, task_type="ps", task_id=0, rpc_layer="zmq")
        assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("ps", 0, "zmq")

    def test_the_first_master_that_is_known(self):
        assert UnionResolver(_simple(["a:1"]), _simple(["b:1"], master="m:1")).master() == "m:1"

    def test_R160_bad_arguments(self):
        with pytest.raises(ValueError, match="at least one"):
            UnionResolver()
        with pytest.raises(TypeError, match="3"):
            UnionResolver(3)
        with pytest.raises(ValueError, match="colour"):
            UnionResolver(_simple(["a:1"]), colour="red")
