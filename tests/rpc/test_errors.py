"""Errors arrive as what they were."""

import pytest

from jaxtribute import errors
from jaxtribute.rpc import WireError
from jaxtribute.rpc._errors import Failure, error_of, failure_of


@pytest.mark.parametrize("name", sorted(set(errors.__all__) - {"JaxtributeError"}))
def test_each_of_our_errors_arrives_as_itself(name):
    made_with = {
        "WorkerLostError": (["worker:1"], "it ended"),
        "TaskUnavailableError": ("ps:1", "it ended"),
        "PSUnavailableError": ("ps:1", "it ended"),
    }.get(name, ("some text",))
    error = getattr(errors, name)(*made_with)
    arrived = error_of(failure_of(error), "ps:0")
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived).items() >= vars(error).items()
    assert arrived.__notes__ == ["This happened on ps:0."]


@pytest.mark.parametrize(
    ("error", "type", "text"),
    [
        (ZeroDivisionError("by zero"), errors.InternalError, "ZeroDivisionError: by zero"),
        (WireError("garbage"), errors.InvalidArgumentError, "garbage"),
        (errors.NotFoundError(object), errors.NotFoundError, "<class 'object'>"),
        (errors.NotFoundError("x" * 300_000), errors.NotFoundError, "x" * 100_000),
    ],
    ids=["not ours", "subclass", "odd argument", "long"],
)
def test_other_errors_arrive_as_the_nearest_one(error, type, text):
    arrived = error_of(failure_of(error), "ps:0")
    assert arrived.__class__ is type
    assert str(arrived) == text


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("Nonsense", []), ("TaskUnavailableError", []), ("__builtins__", ["x"]), ("eval", ["1"])],
)
def test_an_error_that_is_not_known_is_internal(name, arguments):
    arrived = error_of(Failure(name, arguments, "the text"), "ps:0")
    assert isinstance(arrived, errors.InternalError)
    assert str(arrived) == f"{name}: the text"
