"""What workers compare before they begin."""

import jax
import pytest

import jaxtribute as jt
from jaxtribute.workers._facts import differences, differing, own_facts

TASKS = ("worker:0", "worker:1", "worker:2")
FACTS = {"jaxtribute": "1.0", "jax": "2.0", "options": "none", "process": "process 1"}


def found(*changes):
    """Return the differences between workers of which each has some facts of its own."""
    facts = [FACTS | change for change in changes]
    return differences(TASKS[: len(facts)], facts)


def test_workers_that_agree():
    assert found({}, {}, {}) is None


def test_each_is_a_process_of_its_own():
    assert found({}, {"process": "process 2"}) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{}, {"jax": "3.0"}, {}], "jax: worker:0 has 2.0, worker:1 has 3.0."),
        (
            [{}, {"jax": "3.0"}, {"jax": "4.0"}],
            "jax: worker:0 has 2.0, worker:1 has 3.0, worker:2 has 4.0.",
        ),
        ([{"jax": "3.0"}, {}, {}], "jax: worker:0 has 3.0, worker:1 has 2.0, worker:2 has 2.0."),
    ],
    ids=["one", "two", "the chief"],
)
def test_those_who_differ_from_the_chief_are_named(changes, expected):
    assert found(*changes).startswith(expected)


def test_each_difference_has_a_line_and_a_remedy():
    lines = found({}, {"jax": "3.0", "options": "others"}).splitlines()
    assert len(lines) == 2
    assert "same version of JAX" in lines[0]
    assert "same communication options" in lines[1]


def test_a_fact_that_is_not_known_everywhere_is_a_difference():
    assert "worker:1 has None" in differences(TASKS[:2], [{"jax": "2.0"}, {}])


def test_the_error_says_what_was_found():
    error = differing("jax: worker:0 has 2.0")
    assert isinstance(error, jt.errors.FailedPreconditionError)
    assert "jax: worker:0 has 2.0" in str(error)


def test_own_facts_tell_versions_cluster_and_options():
    facts = own_facts("worker:0=a:1", "none")
    assert facts["jaxtribute"] == jt.__version__
    assert facts["jax"] == jax.__version__
    assert facts["cluster"] == "worker:0=a:1"
    assert facts["options"] == "none"
