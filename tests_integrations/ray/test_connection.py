"""A program that has not connected to a cluster is told how."""

import os

import pytest
import ray

import jaxtribute as jt


def test_a_program_that_is_not_connected_is_told_so_and_starts_nothing():
    with pytest.raises(jt.errors.FailedPreconditionError, match=r"ray\.init\(address='auto'\)"):
        jt.ray.run(os.getpid)
    with (
        pytest.raises(jt.errors.FailedPreconditionError, match=r"ray\.init\(address='auto'\)"),
        jt.ray.RayClusterResolver(),
    ):
        pass
    assert not ray.is_initialized()
    assert "JAXTRIBUTE_CLUSTER_KEY" not in os.environ
