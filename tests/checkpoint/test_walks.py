"""How often a checkpoint goes through the objects of a program, which may be thousands."""

from __future__ import annotations

import pytest

import jaxtribute as jt
from jaxtribute.checkpoint._adapters import Adapter, register


class Counted:
    """An object that counts how often it is asked for its parts."""

    def __init__(self):
        self.v = jt.Variable(1.0)
        self.walks = 0

    def parts(self):
        self.walks += 1
        return [(("v",), self.v)]


register(Counted, Adapter(parts=Counted.parts))


@pytest.fixture
def counted():
    return Counted()


@pytest.fixture
def checkpoint(counted):
    return jt.train.Checkpoint(counted=counted)


@pytest.mark.parametrize("is_async", [True, False])
def test_saving_goes_through_objects_once(counted, checkpoint, tmp_path, is_async):
    manager = jt.train.CheckpointManager(checkpoint, tmp_path)
    manager.save(options=jt.train.CheckpointOptions(enable_async=is_async))
    assert counted.walks == 1
    manager.wait_until_finished()


def test_saving_while_values_wait_goes_through_objects_once(counted, checkpoint, tmp_path):
    other = jt.train.Checkpoint(counted=Counted(), more=jt.Variable(2.0))
    checkpoint.restore(other.save(tmp_path / "other"))
    counted.walks = 0
    checkpoint.save(tmp_path / "ckpt")
    assert counted.walks == 1
    checkpoint.wait_until_finished()


def test_restoring_goes_through_objects_once_and_each_question_once_more(
    counted, checkpoint, tmp_path
):
    path = checkpoint.save(tmp_path / "ckpt")
    counted.walks = 0
    status = checkpoint.restore(path)
    assert counted.walks == 1
    status.assert_consumed()
    assert counted.walks == 2
