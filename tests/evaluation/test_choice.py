"""Which checkpoint is evaluated next."""

import pytest

from jaxtribute.evaluation._choice import next_due
from jaxtribute.evaluation._found import Found, find_checkpoints, find_files
from jaxtribute.evaluation._steps import number_in_name

OLD, MIDDLE, NEW = (Found(f"ckpt-{n}", f"id-{n}", float(n)) for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("found", "done", "every", "due"),
    [
        pytest.param([], set(), False, None, id="nothing saved"),
        pytest.param([OLD, MIDDLE, NEW], set(), False, NEW, id="the newest"),
        pytest.param([OLD, MIDDLE, NEW], {"id-3"}, False, None, id="none that is older"),
        pytest.param([OLD, MIDDLE, NEW], set(), True, OLD, id="all: the oldest"),
        pytest.param([OLD, MIDDLE, NEW], {"id-1", "id-3"}, True, MIDDLE, id="all: one left out"),
        pytest.param([OLD], {"id-1"}, True, None, id="all: done"),
    ],
)
def test_each_state_has_one_answer(found, done, every, due):
    assert next_due(found, done, every) is due


def test_files_that_are_being_written_are_not_found(tmp_path):
    for name in ("b.weights.h5", ".saving-c.weights.h5", "notes.txt", "a.keras"):
        (tmp_path / name).write_bytes(b"-")
    found = find_files(tmp_path, (".weights.h5", ".keras"))
    assert sorted(each.name for each in found) == ["a.keras", "b.weights.h5"]


def test_a_file_that_is_written_again_is_another_checkpoint(tmp_path):
    file = tmp_path / "model.keras"
    file.write_bytes(b"one")
    before = find_files(tmp_path, (".keras",))
    file.write_bytes(b"two, longer")
    after = find_files(tmp_path, (".keras",))
    assert before[0].path == after[0].path
    assert before[0].id != after[0].id


def test_a_directory_that_does_not_exist_yet_has_no_checkpoints(tmp_path):
    assert find_files(tmp_path / "later", (".keras",)) == []
    assert find_checkpoints(tmp_path / "later") == []


@pytest.mark.parametrize(
    ("name", "number"),
    [("ckpt-12", 12), ("epoch-03.weights.h5", 3), ("v2-7.keras", 7), ("best.weights.h5", None)],
)
def test_the_number_of_a_checkpoint_is_the_last_in_its_name(name, number):
    assert number_in_name(name) == number
