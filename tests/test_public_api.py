"""The public names: complete, sorted, documented, with examples, and free of side effects."""

import enum
import inspect
import json
import subprocess
import sys
import types
from typing import Any

import pytest

import jaxtribute as jt
from tests._interpreter import STRICT_PYTHON


def _public_modules(module: types.ModuleType) -> list[types.ModuleType]:
    """Return the public modules of a module, and theirs."""
    own = [value for name in module.__all__ if _is_module(value := getattr(module, name))]
    return [one for public in own for one in (public, *_public_modules(public))]


def _is_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType)


_MODULES = _public_modules(jt)


def _public_objects() -> list[Any]:
    """Return every public function and class, of the package and of its public modules."""
    return [
        pytest.param(getattr(module, name), id=f"{module.__name__}.{name}")
        for module in [jt, *_MODULES]
        for name in module.__all__
        if not isinstance(getattr(module, name), (types.ModuleType, str, int))
    ]


def _public_members() -> list[Any]:
    """Return every public method and property of public classes."""
    return [
        pytest.param(member, id=f"{param.id}.{name}")
        for param in _public_objects()
        if inspect.isclass(param.values[0])
        for name, member in inspect.getmembers(param.values[0])
        if not name.startswith("_") and _is_ours(param.values[0], name) and _has_docs(member)
    ]


def _is_ours(cls: type, name: str) -> bool:
    owner = next(base for base in cls.__mro__ if name in vars(base))
    return owner.__module__.partition(".")[0] == "jaxtribute"


def _has_docs(member: Any) -> bool:
    return isinstance(member, property) or inspect.isroutine(member)


def test_all_is_sorted():
    def constants_then_classes(name: str) -> tuple[bool, bool, str]:
        return not name.isupper(), not name[0].isupper(), name

    for module in [jt, *_MODULES]:
        ordered = sorted(module.__all__, key=constants_then_classes)
        assert list(module.__all__) == ordered, module.__name__


def test_all_names_are_all_public_names():
    public = {
        name
        for name, value in vars(jt).items()
        if not name.startswith("_") and not _is_internal_module(value)
    }
    assert public <= set(jt.__all__)  # which exist: below
    assert set(jt.__all__) <= set(dir(jt))


def _is_internal_module(value: Any) -> bool:
    """Tell the package's own folders, which become attributes of it when they are imported."""
    return isinstance(value, types.ModuleType) and value.__name__.startswith("jaxtribute.")


def test_the_names_in_all_exist_once():
    for module in [jt, *_MODULES]:
        assert len(module.__all__) == len(set(module.__all__))
        for name in module.__all__:
            assert hasattr(module, name)


@pytest.mark.parametrize("module", [jt, *_MODULES], ids=lambda module: module.__name__)
def test_modules_are_documented(module):
    assert module.__doc__
    assert module.__doc__.strip()


@pytest.mark.parametrize("thing", _public_objects())
def test_functions_and_classes_are_documented(thing):
    # Not inherited: a class says itself what it is for.
    assert thing.__doc__
    assert thing.__doc__.strip()
    if inspect.isclass(thing):
        assert thing.__doc__ not in {base.__doc__ for base in thing.__mro__[1:]}


@pytest.mark.parametrize("member", _public_members())
def test_methods_and_properties_are_documented(member):
    assert (inspect.getdoc(member) or "").strip()


@pytest.mark.parametrize("thing", _public_objects())
def test_functions_and_classes_have_an_example(thing):
    if inspect.isclass(thing) and issubclass(thing, (enum.Enum, BaseException)):
        return
    docs = [inspect.getdoc(thing)]
    if inspect.isclass(thing):
        docs += [
            inspect.getdoc(member)
            for name, member in vars(thing).items()
            if not name.startswith("_") and _has_docs(member)
        ]
    assert any(">>> " in (doc or "") for doc in docs)


def test_public_things_say_where_they_come_from():
    for param in _public_objects():
        assert param.values[0].__module__.partition(".")[0] == "jaxtribute", param.id


_IMPORT_PROBE = """
import json, os, sys, threading, warnings
import jax

def state():
    return {
        "environment": dict(os.environ),
        "threads": sorted(t.name for t in threading.enumerate()),
        "configuration": {k: repr(v) for k, v in jax.config.values.items()},
        "directory": os.getcwd(),
        "filters": len(warnings.filters),
        "children": os.listdir(f"/proc/{os.getpid()}/task"),
    }

before = state()
import jaxtribute
after = state()
unwanted = {"optax", "flax", "keras", "tensorflow", "torch", "grain", "orbax", "zmq"}
unwanted |= {"h5py", "libcst", "ray", "tensorboardX", "tensorstore"}
unwanted |= {"jax.extend", "jax._src.pallas.core", "jax._src.checkify"}
unwanted |= {f"jaxtribute.{part}" for part in (
    "checkpoint", "compat", "coordinator", "evaluation", "keras", "preemption", "ps", "remote",
    "rpc", "saved_model", "testing",
)}
heavy = sorted(unwanted & set(sys.modules))
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 3)  # refused once a backend has been started
print(json.dumps([before, after, heavy, len(jax.devices())]))
"""


def test_keras_is_imported_when_it_is_asked_for():
    probe = """
import sys
import jaxtribute as jt
print("keras" in sys.modules, jt.keras.DatasetCreator.__name__, "keras" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout.split() == ["False", "DatasetCreator", "True"], done.stderr


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="'jaxtribute' has no attribute 'kerras'"):
        jt.kerras  # noqa: B018


@pytest.fixture(scope="module")
def imported() -> Any:
    done = subprocess.run(
        [*STRICT_PYTHON, "-c", _IMPORT_PROBE],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize("what", ["environment", "configuration", "directory", "filters"])
def test_importing_changes_no_settings(imported, what):
    before, after, *_ = imported
    assert after[what] == before[what]


def test_importing_starts_no_backend(imported):
    assert imported[3] == 3


def test_importing_starts_no_threads(imported):
    before, after, *_ = imported
    assert after["threads"] == before["threads"] == ["MainThread"]
    assert len(after["children"]) == len(before["children"])


def test_importing_imports_nothing_heavy(imported):
    assert imported[2] == []
