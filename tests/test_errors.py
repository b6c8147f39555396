"""The exception tree."""

import inspect
import pickle
import re

import pytest

from jaxtribute import errors

BUILT_INS = {
    "InvalidArgumentError": ValueError,
    "OutOfRangeError": IndexError,
    "NotFoundError": LookupError,
    "AlreadyExistsError": ValueError,
    "FailedPreconditionError": RuntimeError,
    "TracerLeakError": RuntimeError,
    "AbortedError": RuntimeError,
    "CancelledError": RuntimeError,
    "InternalError": RuntimeError,
    "UnknownError": RuntimeError,
    "DataLossError": OSError,
    "ResourceExhaustedError": MemoryError,
    "UnimplementedError": NotImplementedError,
    "DeadlineExceededError": TimeoutError,
    "UnavailableError": ConnectionError,
    "WorkerLostError": ConnectionError,
    "TaskUnavailableError": ConnectionError,
    "PSUnavailableError": ConnectionError,
    "ClosureInputError": RuntimeError,
    "ClosureAbortedError": RuntimeError,
    "PermissionDeniedError": PermissionError,
    "UnauthenticatedError": PermissionError,
}


@pytest.mark.parametrize(("name", "built_in"), BUILT_INS.items())
def test_each_is_also_the_nearest_built_in_exception(name, built_in):
    error = getattr(errors, name)
    assert issubclass(error, errors.JaxtributeError)
    assert issubclass(error, built_in)


def test_the_public_names_are_the_exceptions_that_exist():
    defined = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert set(errors.__all__) == defined
    assert set(BUILT_INS) | {"JaxtributeError"} == defined


def test_the_tree_in_the_docstring_is_the_real_one():
    drawn = re.findall(r"── (\w+)(?: +\((\w+)\))?", errors.__doc__)
    assert {name for name, _ in drawn} == set(BUILT_INS)
    for name, built_in in drawn:
        if built_in:
            assert BUILT_INS[name].__name__ == built_in


def test_a_leaked_tracer_is_a_failed_precondition():
    assert issubclass(errors.TracerLeakError, errors.FailedPreconditionError)


@pytest.mark.parametrize("name", errors.__all__)
def test_each_keeps_its_message_also_between_processes(name):
    whose = {
        "WorkerLostError": ["worker:1"],
        "TaskUnavailableError": "worker:1",
        "PSUnavailableError": "ps:0",
    }
    details = (whose[name],) if name in whose else ()
    error = getattr(errors, name)(*details, "what happened")
    assert "what happened" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
