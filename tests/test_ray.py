"""What `jt.ray` says where no cluster is needed; tests_integrations/ray has one."""

import subprocess
import sys
import threading

import pytest

import jaxtribute as jt
from tests._interpreter import STRICT_PYTHON


def train():
    return 1


@pytest.mark.processes
def test_it_is_there_without_ray_and_imports_nothing_of_it():
    probe = """
import sys
import jaxtribute as jt
print("jaxtribute.ray" in sys.modules, jt.ray.run.__name__, "ray" in sys.modules)
"""
    done = subprocess.run(
        [*STRICT_PYTHON, "-c", probe], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout.split() == ["False", "run", "False"], done.stderr


def test_it_says_how_to_install_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # which is how an import fails
    with pytest.raises(ImportError, match=r"pip install 'jaxtribute\[ray\]'"):
        jt.ray.run(train)
    with (
        pytest.raises(ImportError, match=r"pip install 'jaxtribute\[ray\]'"),
        jt.ray.RayClusterResolver(),
    ):
        pass


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"workers": 0}, "workers must be a whole number from 1 on, got 0"),
        ({"workers": 1.5}, "workers must be a whole number"),
        ({"max_restarts": -1}, "max_restarts must be a whole number from 0 on, got -1"),
        ({"resources_per_worker": 2}, "must be a dict such as {'CPU': 1}, got 2"),
        ({"resources_per_worker": {"CPU": "2"}}, "for 'CPU' it says '2'"),
        ({"resources_per_worker": {"GPU": -1}}, "for 'GPU' it says -1"),
        ({"resources_per_worker": {"CPU": 0}}, "must ask for something"),
        ({"placement": "ANYWHERE"}, "placement must be one of .*'STRICT_SPREAD'.* got 'ANYWHERE'"),
        ({"timeout_seconds": 0}, "timeout_seconds must be a positive number, got 0"),
        ({"ports": [80, 123456]}, "ports must be numbers from 1 to 65535, and 123456 is not"),
        ({"environment": {"A": 1}}, "environment must have text for each name, got 1 for 'A'"),
    ],
)
def test_arguments_that_cannot_work_are_refused_before_anything_is_asked_of_ray(arguments, why):
    with pytest.raises(jt.errors.InvalidArgumentError, match=why):
        jt.ray.run(train, **arguments)


def test_the_resolver_refuses_them_too():
    with pytest.raises(jt.errors.InvalidArgumentError, match="ps must be a whole number"):
        jt.ray.RayClusterResolver(ps=0)
    with pytest.raises(jt.errors.InvalidArgumentError, match="resources_per_ps must ask for"):
        jt.ray.RayClusterResolver(resources_per_ps={})
    with pytest.raises(jt.errors.InvalidArgumentError, match="placement must be one of"):
        jt.ray.RayClusterResolver(placement="near")


def test_what_cannot_be_sent_is_named():
    with pytest.raises(TypeError, match=r"The arguments cannot be sent to workers: .*lock"):
        jt.ray.run(train, args=(threading.Lock(),))
    with pytest.raises(jt.errors.InvalidArgumentError, match="train_fn must be a function, got 3"):
        jt.ray.run(3)
