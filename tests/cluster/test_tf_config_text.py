"""A TF_CONFIG that cannot work is told when a strategy is made of it (decision 9)."""

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jt
from jaxtribute.cluster import resolve
from jaxtribute.cluster._problems import EXAMPLE
from jaxtribute.cluster._tf_config_text import find_text_problems
from jaxtribute.cluster_resolver import TFConfigClusterResolver

RIGHT = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}


def corrected(text: str) -> dict:
    (word,) = shlex.split(find_text_problems(text)[0].fix)
    return json.loads(word.removeprefix("TF_CONFIG="))


@pytest.mark.parametrize(
    "config",
    [
        {},
        RIGHT,
        {**RIGHT, "environment": "cloud", "rpc_layer": "grpc", "anything": [1]},
        {"cluster": {"worker": ["a:1"]}},
        {"cluster": {}},
        {"cluster": {}, "task": {}},
        {"environment": "cloud"},
        {"cluster": {"worker": {"0": "a:1", "2": "b:1"}}, "task": {"type": "worker", "index": 2}},
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": "1"}},
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}},
        {"task": {"type": "evaluator", "index": 0}},
    ],
    ids=json.dumps,
)
def test_what_is_right_is_let_through(config):
    assert find_text_problems(json.dumps(config)) == []


WRONG = [
    # text or config, the offending part, why
    pytest.param("", 'TF_CONFIG = ""', "set and empty", id="empty"),
    pytest.param("  ", 'TF_CONFIG = "  "', "set and empty", id="blank"),
    pytest.param("{", "{\n ^", "not valid JSON", id="unfinished"),
    pytest.param("worker", "worker\n^", "not valid JSON", id="a word"),
    pytest.param(str(RIGHT), "{'cluster': {'worker': ['a:1', 'b...\n ^", "json.dumps", id="Python"),
    pytest.param(
        '{"cluster": {"worker": ["a:1" "b:1"]}}',
        '{"cluster": {"worker": ["a:1" "b:1"]}}\n                              ^',
        "Expecting ',' delimiter at character 30",
        id="comma",
    ),
    pytest.param("[1]", "TF_CONFIG = [1]", "JSON object, not [1]", id="list"),
    pytest.param("null", "TF_CONFIG = null", "JSON object", id="null"),
    pytest.param(json.dumps(json.dumps(RIGHT)), None, "JSON object, not text", id="encoded twice"),
    pytest.param({"cluster": "a:1"}, 'cluster = "a:1"', "from jobs to addresses", id="address"),
    pytest.param({"cluster": ["a:1"]}, 'cluster = ["a:1"]', "from jobs", id="addresses"),
    pytest.param({"cluster": None}, "cluster = null", "from jobs", id="no cluster"),
    pytest.param({"cluster": {"worker": "a:1"}}, 'cluster.worker = "a:1"', "a list", id="one"),
    pytest.param({"cluster": {"worker": 3}}, "cluster.worker = 3", "a list", id="number"),
    pytest.param(
        {"cluster": {"worker": [2222]}}, "cluster.worker[0] = 2222", "is text", id="only a port"
    ),
    pytest.param(
        {"cluster": {"worker": {"x": "a:1"}}},
        'cluster.worker["x"] = "a:1"',
        "'x' is no index",
        id="index of an address",
    ),
    pytest.param(
        {"cluster": {"worker": {"-1": "a:1"}}},
        'cluster.worker["-1"] = "a:1"',
        "'-1' is no index",
        id="negative index of an address",
    ),
    pytest.param(
        {"cluster": {"worker": {"1": "a:1", "01": "b:1"}}},
        'cluster.worker["01"] = "b:1"',
        "'01' is one that is taken",
        id="index of two addresses",
    ),
    pytest.param(
        {"task": {"type": "worker", "index": 0}},
        'task = {"type": "worker", "index": 0}',
        'no "cluster"',
        id="cluster missing",
    ),
    pytest.param(
        {"sparseCluster": {"worker": {"0": "a:1"}}, "task": {"type": "worker", "index": 0}},
        'task = {"type": "worker", "index": 0}',
        "enableDynamicWorker",
        id="sparseCluster",
    ),
    pytest.param({"cluster": RIGHT["cluster"]}, "task", "which of them", id="task missing"),
    pytest.param({**RIGHT, "task": "worker:1"}, 'task = "worker:1"', "JSON object", id="task"),
    pytest.param({**RIGHT, "task": ["worker", 1]}, 'task = ["worker", 1]', "object", id="pair"),
    pytest.param({**RIGHT, "task": None}, "task = null", "JSON object", id="null task"),
    *[
        pytest.param(
            {**RIGHT, "task": {"type": "worker", "index": index}},
            f"task.index = {json.dumps(index)}",
            "is a number",
            id=f"index {json.dumps(index)}",
        )
        for index in ("x", None, 1.5, True, [0])
    ],
    pytest.param(
        {**RIGHT, "task": {"type": "worker", "index": -1}}, "task.index = -1", "from 0", id="-1"
    ),
    pytest.param(
        {**RIGHT, "task": {"type": "worker", "index": 2}}, "task.index = 2", "exceeds", id="2 of 2"
    ),
    pytest.param(
        {**RIGHT, "task": {"type": 123, "index": 0}}, 'task.type = "123"', "Unrecognized", id="role"
    ),
]


@pytest.mark.parametrize(("given", "part", "why"), WRONG)
class TestWhatIsWrong:
    def test_is_told_by_the_part_and_the_reason(self, given, part, why):
        found = find_text_problems(given if isinstance(given, str) else json.dumps(given))
        matching = [problem for problem in found if part in (None, problem.part)]
        assert any(why in problem.why for problem in matching), found

    def test_gets_an_example_that_is_right(self, given, part, why):
        config = corrected(given if isinstance(given, str) else json.dumps(given))
        assert find_text_problems(json.dumps(config)) == []

    def test_is_an_error_when_a_strategy_is_made(self, given, part, why, monkeypatch):
        text = given if isinstance(given, str) else json.dumps(given)
        monkeypatch.setenv("TF_CONFIG", text)
        resolver = TFConfigClusterResolver()  # which says nothing yet
        for refuse in (resolver.check, lambda: resolve(resolver)):
            with pytest.raises(jt.errors.InvalidArgumentError) as raised:
                refuse()
            assert why in str(raised.value)
            assert find_text_problems(text)[0].fix in str(raised.value)


class TestTheExample:
    @pytest.mark.parametrize(
        "text",
        [
            pytest.param(str(RIGHT), id="Python"),
            pytest.param(json.dumps(json.dumps(RIGHT)), id="encoded twice"),
            pytest.param(json.dumps(RIGHT).replace(",", " "), id="no commas"),
            pytest.param(json.dumps(RIGHT).replace("]}", "],}"), id="one comma too many"),
            pytest.param(json.dumps({**RIGHT, "task": "worker:0"}), id="task as text"),
            pytest.param(json.dumps({**RIGHT, "cluster": {"worker": "a:1, b:1"}}), id="addresses"),
        ],
    )
    def test_is_what_was_meant(self, text):
        assert corrected(text) == RIGHT

    def test_keeps_what_else_there_is(self):
        config = {**RIGHT, "environment": "cloud", "task": {"type": "worker", "index": 5}}
        fixed = corrected(json.dumps(config))
        assert fixed == {**config, "task": {"type": "worker", "index": 1}}

    def test_survives_a_shell(self):
        config = {**RIGHT, "note": "it's", "task": {"type": "worker", "index": 5}}
        assert corrected(json.dumps(config))["note"] == "it's"

    def test_is_a_general_one_where_nothing_can_be_kept(self):
        assert find_text_problems("{")[0].fix == EXAMPLE
        assert find_text_problems(EXAMPLE.split("'")[1]) == []


def test_a_long_text_is_shown_around_the_mistake():
    text = json.dumps({"cluster": {"worker": [f"host{i}:2222" for i in range(50)]}})
    broken = text.replace('"host25:2222"', "host25:2222")
    shown, caret = find_text_problems(broken)[0].part.split("\n")
    assert shown.startswith("...") and shown.endswith("...")
    assert shown[caret.index("^") :].startswith("host25:2222")


def test_lines_of_a_text_are_shown_as_one():
    shown, _ = find_text_problems('{"cluster":\n\t{"worker": nothing}}')[0].part.split("\n")
    assert shown == '{"cluster":  {"worker": nothing}}'


def test_a_task_given_to_the_resolver_need_not_be_in_the_text(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": RIGHT["cluster"]}))
    TFConfigClusterResolver(task_type="worker", task_id=1).check()
    with pytest.raises(jt.errors.InvalidArgumentError, match="exceeds the maximum id"):
        TFConfigClusterResolver(task_type="worker", task_id=2).check()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["cluster", "task", "type", "index", "worker", "ps", "chief", "0", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_json)
def test_whatever_it_is_the_example_is_right(config):
    text = json.dumps(config)
    if find_text_problems(text):
        assert find_text_problems(json.dumps(corrected(text))) == []


@given(st.text(max_size=40) | st.text("{}[]\",:'worker01 ", max_size=40))
def test_any_text_is_told_of_and_not_crashed_on(text):
    for problem in find_text_problems(text):
        assert problem.part and problem.why and problem.fix.startswith("TF_CONFIG=")
