"""Which task `jaxtribute server` serves as, and which tasks `jaxtribute status` asks."""

import json

import click
import pytest
from click.testing import CliRunner

from jaxtribute.cli import main
from jaxtribute.cli._server import own_task
from jaxtribute.cli._status import tasks_to_ask
from jaxtribute.cluster import Task

CLUSTER = {"chief": ["c:1"], "worker": ["w:1", "x:1"], "ps": ["p:1"]}


@pytest.fixture
def tf_config(monkeypatch):
    """A function that sets the variable."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)

    def set_to(cluster, job=None, index=0):
        task = {} if job is None else {"task": {"type": job, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, **task}))

    return set_to


@pytest.mark.parametrize(
    ("told", "options", "task"),
    [
        (("worker", 1), (None, None), Task("worker", 1)),
        (("ps", 0), (None, None), Task("ps", 0)),
        (("worker", 1), ("worker", 0), Task("worker", 0)),
        (("worker", 1), (None, 0), Task("worker", 0)),
        (("worker", 1), ("worker", None), Task("worker", 1)),
        (("worker", 1), ("ps", None), Task("ps", 0)),
        (("chief", 0), ("worker", 1), Task("worker", 1)),
        ((None, 0), ("worker", 1), Task("worker", 1)),
        ((None, 0), ("ps", None), Task("ps", 0)),
    ],
)
def test_options_are_stronger_than_the_environment(tf_config, told, options, task):
    tf_config(CLUSTER, *told)
    spec, own = own_task(*options)
    assert own == task
    assert spec.as_dict() == CLUSTER


def test_the_only_task_of_a_cluster_needs_no_name(tf_config):
    tf_config({"ps": ["p:1"]})
    assert own_task(None, None)[1] == Task("ps", 0)


@pytest.mark.parametrize(
    ("cluster", "told", "options", "said"),
    [
        (CLUSTER, ("chief", 0), (None, None), "the chief, which runs the program"),
        (CLUSTER, ("evaluator", 0), (None, None), "the evaluator, which works alone"),
        (CLUSTER, ("chief", 0), ("worker", None), "--job worker needs --index"),
        (CLUSTER, ("ps", 0), (None, 7), "exceeds the maximum id of ps"),
        (CLUSTER, (None, 0), (None, None), "nothing says which of them this process is"),
        ({"worker": ["w:1"]}, ("worker", 0), ("ps", 0), "no job 'ps'"),
        ({"worker": ["w"]}, ("worker", 0), (None, None), "it has no port"),
        ({}, (None, 0), (None, None), "describes no cluster"),
        ({}, (None, 0), ("ps", 0), "describes no cluster"),
    ],
)
def test_what_cannot_be_served_is_told(tf_config, cluster, told, options, said):
    tf_config(cluster, *told)
    with pytest.raises(click.UsageError) as caught:
        own_task(*options)
    assert said in caught.value.message


def test_without_a_cluster_there_is_nothing_to_serve(tf_config):
    result = CliRunner().invoke(main, ["server"], prog_name="jaxtribute")
    assert result.exit_code == 2
    assert "TF_CONFIG is not set" in result.output


def test_workers_and_servers_are_asked_and_no_others(tf_config):
    tf_config(CLUSTER | {"evaluator": ["e:1"]}, "chief")
    expected = {"worker:0": "w:1", "worker:1": "x:1", "ps:0": "p:1"}
    assert tasks_to_ask(None) == expected
    tf_config(CLUSTER)  # whoever asks need not be a task
    assert tasks_to_ask(None) == expected


def test_the_cluster_that_is_given_is_asked(tf_config):
    tf_config(CLUSTER, "chief")
    assert tasks_to_ask('{"ps": ["q:2"], "worker": {"3": "w:3"}}') == {
        "worker:3": "w:3",
        "ps:0": "q:2",
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "There is no worker and no parameter server to ask"),
        ("{}", "There is no worker and no parameter server to ask"),
        ('{"chief": ["c:1"]}', "There is no worker and no parameter server to ask"),
        ("worker", "describes no cluster"),
        ("[]", "describes no cluster"),
        ('{"worker": "w:1"}', "must be a list of addresses"),
        ('{"worker": ["w"]}', "it has no port"),
        ('{"server": ["w:1"]}', "a cluster consists of"),
    ],
)
def test_a_cluster_that_cannot_be_asked_is_told(tf_config, given, said):
    with pytest.raises(click.UsageError) as caught:
        tasks_to_ask(given)
    assert said in caught.value.message


def test_a_description_that_is_no_json_is_told(tf_config, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    for command in ("server", "status"):
        result = CliRunner().invoke(main, [command], prog_name="jaxtribute")
        assert result.exit_code == 2
        assert "TF_CONFIG" in result.output
        assert "Traceback" not in result.output
