import hashlib
import json
import os
import shutil
import threading

import cloudpickle
import ml_dtypes
import numpy as np
import optax
import pytest

from jaxtribute.errors import (
    CancelledError,
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
)
from jaxtribute.ps._snapshot import Keeper, read_newest, write
from jaxtribute.ps._store import Store
from tests.ps._updates import op, store_with, update, value

KEY = b"of the cluster"


def trained(steps=3):
    """Return a store with dense values, a table, and optimizers with and without numbers."""
    generator = np.random.default_rng(0)
    store = store_with(
        generator.standard_normal((5, 3)).astype(np.float32),
        generator.standard_normal((8, 2)).astype(np.float32),
        np.int64(7),
        np.ones(3, ml_dtypes.bfloat16),
        np.zeros((0, 4), np.float32),
        np.array([True, False]),
    )
    store.register_optimizer(0, cloudpickle.dumps(optax.adam(0.1)))
    store.register_optimizer(1, cloudpickle.dumps(optax.sgd(0.1, momentum=0.9)))
    store.build_slots(0, 0, [20, 21, 22])
    for closure in range(steps):
        step(store, closure)
    return store


def step(store, closure):
    generator = np.random.default_rng(closure)
    dense = generator.standard_normal((5, 3)).astype(np.float32)
    rows = generator.standard_normal((3, 2)).astype(np.float32)
    indices = generator.integers(0, 8, 3)
    return update(
        store,
        closure,
        op(0, "apply", dense, optimizer=0),
        op(1, "apply", rows, indices, optimizer=1),
        op(2, "add", np.int64(1)),
        settled=max(0, closure - 1),
    )


def restored(directory, key=KEY, origin="origin", task="ps:0"):
    store = Store()
    store.adopt(origin)
    store.load(read_newest(directory, task, key, origin))
    return store


def assert_same(a, b):
    assert a.numbers == b.numbers
    for number in a.numbers:
        one, other = value(a, number), value(b, number)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
        assert a.version(number) == b.version(number)
    assert (a.clock, a.bytes_held) == (b.clock, b.bytes_held)


def test_a_restored_store_goes_on_as_the_first_one_does(tmp_path):
    store = trained()
    write(store.image(), tmp_path, "ps:0", KEY)
    other = restored(tmp_path)
    assert_same(store, other)
    for closure in range(3, 6):
        assert step(store, closure)
        assert step(other, closure)
    assert_same(store, other)


def test_updates_that_were_carried_out_before_the_snapshot_are_recognised_after_it(tmp_path):
    store = trained(steps=4)
    write(store.image(), tmp_path, "ps:0", KEY)
    other = restored(tmp_path)
    assert [step(other, closure) for closure in range(6)] == [False] * 4 + [True] * 2


def test_so_are_those_of_the_coordinator_itself(tmp_path):
    store = trained()
    store.update(8, 8, -1, [op(2, "add", np.int64(1))], [], direct=True)
    write(store.image(), tmp_path, "ps:0", KEY)
    again = [restored(tmp_path).update(n, n, -1, [], [], direct=True)[0] for n in (7, 8, 9)]
    assert again == [False, False, True]


def test_an_image_does_not_change_with_the_store():
    store = trained()
    image = store.image()
    arrays = [cell.array for cell in image.variables.values()]
    arrays += [leaf.array for state in image.states for leaf in state.leaves]
    copies = [array.copy() for array in arrays]
    for closure in range(3, 6):
        step(store, closure)
    store.write(1, 2, np.zeros((3, 2), np.float32))
    assert all(np.array_equal(a, b) for a, b in zip(arrays, copies, strict=True))


def test_the_newest_two_of_each_server_are_kept(tmp_path):
    store = trained()
    for _ in range(4):
        write(store.image(), tmp_path, "ps:0", KEY)
    write(store.image(), tmp_path, "ps:1", KEY)
    names = {folder.name: sorted(os.listdir(folder)) for folder in tmp_path.iterdir()}
    assert names == {"ps-0": ["000000000003", "000000000004"], "ps-1": ["000000000001"]}


def test_a_snapshot_never_holds_pickles_it_did_not_get(tmp_path):
    path = write(trained().image(), tmp_path, "ps:0", KEY)
    assert sorted(os.listdir(path)) == ["arrays", "manifest.json"]
    json.loads((path / "manifest.json").read_text())


# --- Damage ----------------------------------------------------------------------------------


def truncated_arrays(path):
    with (path / "arrays").open("r+b") as file:
        file.truncate(100)


def truncated_manifest(path):
    with (path / "manifest.json").open("r+b") as file:
        file.truncate(100)


def changed_arrays(path):
    content = bytearray((path / "arrays").read_bytes())
    content[3] ^= 1
    (path / "arrays").write_bytes(content)


def changed_manifest(path):
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"clock":5', '"clock":6'))


def no_arrays(path):
    (path / "arrays").unlink()


def no_manifest(path):
    (path / "manifest.json").unlink()


def other_json(path):
    (path / "manifest.json").write_text('{"seal": 3}')


DAMAGES = [
    truncated_arrays,
    truncated_manifest,
    changed_arrays,
    changed_manifest,
    no_arrays,
    no_manifest,
    other_json,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_snapshot_is_passed_over_for_the_one_before(tmp_path, damage, capfd):
    store = trained(steps=4)
    write(store.image(), tmp_path, "ps:0", KEY)
    step(store, 4)
    damage(write(store.image(), tmp_path, "ps:0", KEY))
    assert restored(tmp_path).clock == 4
    assert "passed over damaged snapshots" in capfd.readouterr().err


def test_a_damaged_snapshot_takes_nobodys_place(tmp_path):
    store = trained()
    for _ in range(2):
        path = write(store.image(), tmp_path, "ps:0", KEY)
    truncated_arrays(path)
    for _ in range(3):
        write(store.image(), tmp_path, "ps:0", KEY)
    names = [f"{number:012d}" for number in (2, 4, 5)]
    assert sorted(os.listdir(path.parent)) == names


def test_those_sealed_with_another_key_are_removed_in_their_turn(tmp_path):
    for key in (b"another", b"another", KEY, KEY):
        path = write(trained().image(), tmp_path, "ps:0", key)
    assert sorted(os.listdir(path.parent)) == ["000000000003", "000000000004"]


def test_an_old_snapshot_under_the_name_of_the_newest_is_not_taken_for_it(tmp_path):
    store = trained()
    old = write(store.image(), tmp_path, "ps:0", KEY)
    step(store, 4)
    new = write(store.image(), tmp_path, "ps:0", KEY)
    shutil.rmtree(new)
    shutil.copytree(old, new)
    old.rename(old.with_name("away"))
    with pytest.raises(DataLossError, match="000000000002: it is number 1, under the name of an"):
        restored(tmp_path)


def test_what_a_killed_server_was_writing_is_not_a_snapshot(tmp_path):
    store = trained()
    path = write(store.image(), tmp_path, "ps:0", KEY)
    (path.parent / "000000000002.partial").mkdir()
    (path.parent / "000000000002.partial" / "arrays").write_bytes(b"half of")
    assert restored(tmp_path).clock == store.clock
    write(store.image(), tmp_path, "ps:0", KEY)
    assert sorted(os.listdir(path.parent)) == ["000000000001", "000000000002"]


def test_a_snapshot_that_is_given_up_leaves_nothing_behind(tmp_path):
    with pytest.raises(CancelledError):
        write(trained().image(), tmp_path, "ps:0", KEY, lambda: True)
    assert os.listdir(tmp_path / "ps-0") == []


def test_without_a_usable_snapshot_the_error_says_why(tmp_path):
    with pytest.raises(NotFoundError, match="there is none"):
        restored(tmp_path)
    no_arrays(write(trained().image(), tmp_path, "ps:0", KEY))
    with pytest.raises(DataLossError, match=r"000000000001: .*No such file"):
        restored(tmp_path)


# --- Whose it is -----------------------------------------------------------------------------


class Exploit:
    """Makes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("how", ["written with another key", "changed afterwards"])
def test_nothing_is_unpickled_that_was_not_sealed_with_the_key(tmp_path, how):
    trap = tmp_path / "executed"
    store = trained()
    # Registering would run it here, so it is put in by hand.
    image = store.image()
    image.optimizers[5] = cloudpickle.dumps(Exploit(str(trap)))
    if how == "written with another key":
        write(image, tmp_path, "ps:0", b"another key")
    else:
        good = write(store.image(), tmp_path, "ps:0", KEY)
        seal = json.loads((good / "manifest.json").read_text())["seal"]
        evil = json.loads((write(image, tmp_path, "ps:0", KEY) / "manifest.json").read_text())
        (good.parent / "000000000002" / "manifest.json").unlink()
        (good / "manifest.json").write_text(json.dumps({**evil, "seal": seal}))
    error = NotFoundError if how == "written with another key" else DataLossError
    with pytest.raises(error, match="another cluster key"):
        restored(tmp_path)
    assert not trap.exists()


def test_the_snapshot_of_another_task_or_coordinator_is_not_used(tmp_path):
    path = write(trained().image(), tmp_path, "ps:0", KEY)
    with pytest.raises(NotFoundError, match="another coordinator's"):
        restored(tmp_path, origin="another")
    path.parent.rename(tmp_path / "ps-1")
    with pytest.raises(NotFoundError, match="it is of ps:0"):
        restored(tmp_path, task="ps:1")


def test_loading_what_belongs_to_another_coordinator_is_refused():
    store = Store()
    store.adopt("another")
    with pytest.raises(FailedPreconditionError):
        store.load(trained().image())


def test_the_bytes_on_disk_are_those_of_the_arrays(tmp_path):
    big = np.arange(5_000_000, dtype=np.float32)  # more than is written at once
    store = store_with(big)
    path = write(store.image(), tmp_path, "ps:0", KEY)
    digest = hashlib.sha256((path / "arrays").read_bytes()).digest()
    assert digest == hashlib.sha256(big.tobytes()).digest()
    assert np.array_equal(value(restored(tmp_path)), big)


# --- Keeping ---------------------------------------------------------------------------------


def test_a_keeper_reports_what_fails_and_tries_again(capfd):
    attempts, succeeded = [], threading.Event()

    def save(image, is_cancelled):
        attempts.append(image)
        if len(attempts) < 3:
            raise OSError("the disk is full")
        succeeded.set()

    keeper = Keeper(lambda: store_with().image(), save, "a snapshot of ps:0", 0.01)
    try:
        assert succeeded.wait(30)
    finally:
        keeper.close()
    err = capfd.readouterr().err
    assert err.count("jaxtribute: a snapshot of ps:0 could not be written: OSError") == 2


def test_closing_a_keeper_gives_up_what_is_being_written(tmp_path):
    store, began = store_with(np.zeros(10)), threading.Event()
    image = store.image()

    def save(image, is_cancelled):
        def asked():
            began.set()
            return is_cancelled()

        while True:
            write(image, tmp_path, "ps:0", KEY, asked)

    keeper = Keeper(lambda: image, save, "a snapshot of ps:0", 0.01)
    assert began.wait(30)
    keeper.close()
    assert not list((tmp_path / "ps-0").glob("*.partial"))
