"""Files that are damaged are refused by name, or it does no harm; nothing intact is deleted."""

import random
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute import _array_files
from jaxtribute.errors import DataLossError
from jaxtribute.ps._snapshot import read_newest
from jaxtribute.ps._snapshot import write as write_snapshot
from jaxtribute.ps._store import Store
from jaxtribute.testing import LocalCluster
from tests.checkpoint._damage import Damage, assert_intact, damage, files_in
from tests.ps._updates import op, store_with, update, value

Checkpoint = jt.train.Checkpoint
CheckpointManager = jt.train.CheckpointManager
AT_ONCE = jt.train.CheckpointOptions(enable_async=False)

NEWEST = 3
KEY = b"of the cluster"

few_or_many = pytest.mark.parametrize(
    "trials",
    [
        pytest.param(1, id="a few"),
        pytest.param(
            25,
            marks=[pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(3600)],
            id="for minutes",
        ),
    ],
)
"""How often to try, as a multiple of the number each test has for a few."""


def trials_on(template: Path, tmp_path: Path, trials: int, seed: int):
    """Yield copies of a directory, each damaged in another way."""
    rng = random.Random(seed)
    first = rng.randrange(1000) if trials < 100 else 0  # not always the same few files
    for number in range(first, first + trials):
        directory = tmp_path / f"trial-{number}"
        shutil.copytree(template, directory)
        done = damage(directory, number, rng)
        yield directory, done
        shutil.rmtree(directory)


# --- Checkpoints -----------------------------------------------------------------------------


def make() -> Checkpoint:
    return Checkpoint(
        small=jt.Variable(np.zeros(3, np.float32)),
        matrix=jt.Variable(np.zeros((300, 20), np.float32)),
        count=jt.Variable(0),
        array=np.zeros(4),
        key=jax.random.key(0),
        iterator=iter(jt.data.Dataset.range(100).shuffle(100, seed=1)),
        text="",
        step=0,
    )


def fill(checkpoint: Checkpoint, step: int) -> None:
    noise = np.random.default_rng(step)
    checkpoint.small.assign(noise.standard_normal(3, np.float32))
    checkpoint.matrix.assign(noise.standard_normal((300, 20), np.float32))
    checkpoint.count.assign(step)
    checkpoint.array = noise.standard_normal(4)
    checkpoint.key = jax.random.key(step)
    checkpoint.text = f"after step {step}"
    checkpoint.step = step
    next(checkpoint.iterator)


def state(checkpoint: Checkpoint) -> tuple[object, ...]:
    """Return everything in a checkpoint, to the last bit."""
    return (
        checkpoint.small.numpy().tobytes(),
        checkpoint.matrix.numpy().tobytes(),
        int(checkpoint.count),
        np.asarray(checkpoint.array).tobytes(),
        np.asarray(jax.random.key_data(checkpoint.key)).tobytes(),
        str(checkpoint.iterator.get_state()),
        checkpoint.text,
        checkpoint.step,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a directory with three checkpoints, and the state in each."""
    directory = tmp_path_factory.mktemp("saved")
    checkpoint = make()
    manager = CheckpointManager(checkpoint, directory, max_to_keep=None)
    states: dict[int, tuple[object, ...]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_array_files, "_CHUNK", 4096)  # several pieces with checksums
        patch.setattr(_array_files, "_AT_ONCE", 10_000)  # and several files
        for step in range(1, NEWEST + 1):
            fill(checkpoint, step)
            states[step] = state(checkpoint)
            manager.save(options=AT_ONCE)
    return directory, states


class Refused(Exception):
    """A damaged file was named."""


def attempt(restore, checkpoint: Checkpoint, directory: Path) -> None:
    """Restore; if that is refused, by name and without having changed anything, say so."""
    before = state(checkpoint)
    try:
        restore()
    except DataLossError as error:
        assert str(directory) in str(error), "nothing is named"
        assert state(checkpoint) == before, "something was changed"
        raise Refused from error


def step_in(path: str) -> int:
    return int(Path(path).name.rpartition("-")[2])


def by_restore(directory: Path, states, step: int) -> None:
    checkpoint = make()
    attempt(lambda: checkpoint.restore(directory / f"ckpt-{step}"), checkpoint, directory)
    assert state(checkpoint) == states[step]


def by_reading(directory: Path, states, step: int) -> None:
    checkpoint = make()
    attempt(lambda: checkpoint.read(directory / f"ckpt-{step}"), checkpoint, directory)
    assert state(checkpoint) == states[step]


def by_single_values(directory: Path, states, step: int) -> None:
    checkpoint = make()
    found = {}

    def restore():
        reader = jt.train.load_checkpoint(directory / f"ckpt-{step}")
        found.update({name: reader.get_tensor(name) for name in ("small", "matrix", "count")})

    attempt(restore, checkpoint, directory)
    assert (
        found["small"].tobytes(),
        found["matrix"].tobytes(),
        int(found["count"]),
    ) == states[step][:3]


def by_latest(directory: Path, states, step: int) -> None:
    checkpoint = make()
    latest = jt.train.latest_checkpoint(directory)
    assert latest == str(directory / f"ckpt-{NEWEST}"), "it went back in silence"
    attempt(lambda: checkpoint.restore(latest), checkpoint, directory)
    assert state(checkpoint) == states[NEWEST]


def by_manager(directory: Path, states, step: int) -> None:
    checkpoint = make()
    manager = CheckpointManager(checkpoint, directory)
    attempt(manager.restore_or_initialize, checkpoint, directory)
    assert state(checkpoint) == states[NEWEST], "it went back in silence"


def by_handler(directory: Path, states, step: int) -> None:
    checkpoint = make()

    def restore():
        handler = jt.experimental.PreemptionCheckpointHandler(None, checkpoint, directory)
        handler.close()

    attempt(restore, checkpoint, directory)
    assert state(checkpoint) == states[NEWEST], "it went back in silence"


def by_evaluator(directory: Path, states, step: int) -> None:
    checkpoint = make()
    evaluator = jt.train.SidecarEvaluator(
        checkpoint,
        lambda: {"step": checkpoint.step},
        directory,
        timeout=0,
        log_dir=directory.with_name("results"),
        evaluate_all=True,
    )
    results = evaluator.start()
    shutil.rmtree(directory.with_name("results"))
    for result in results:
        assert result["metrics"]["step"] == step_in(result["checkpoint"]) == result["step"]
    if step_in(results[-1]["checkpoint"] if results else "-0") != NEWEST:
        raise Refused
    assert state(checkpoint) == states[NEWEST]


WAYS = [by_restore, by_reading, by_single_values]
WAYS_TO_THE_NEWEST = [by_latest, by_manager, by_handler, by_evaluator]


def is_refused(way, directory: Path, states, step: int, done: Damage) -> bool:
    """Restore in some way; what was not damaged has to be restored."""
    try:
        way(directory, states, step)
    except Refused:
        assert done.touches(directory / f"ckpt-{step}"), "something intact was refused"
        return True
    return False


def save_again(directory: Path, states, step: int) -> None:
    """Go on from the newest checkpoint that is whole, as a program does after an error."""
    checkpoint = make()
    if step:
        checkpoint.restore(directory / f"ckpt-{step}")
        assert state(checkpoint) == states[step]
    manager = CheckpointManager(checkpoint, directory, max_to_keep=None)
    fill(checkpoint, 10)
    path = manager.save(options=AT_ONCE)
    assert jt.train.latest_checkpoint(directory) == path == manager.latest_checkpoint
    expected = state(checkpoint)
    other = make()
    CheckpointManager(other, directory).restore_or_initialize()
    assert state(other) == expected


@few_or_many
def test_a_checkpoint_is_restored_to_the_bit_or_refused(saved, tmp_path, trials, caplog):
    template, states = saved
    refused = 0
    for directory, done in trials_on(template, tmp_path, 20 * trials, seed=trials):
        whole = 0
        for step in states:
            outcomes = [is_refused(way, directory, states, step, done) for way in WAYS]
            if not any(outcomes):
                whole = step
        newest = [is_refused(way, directory, states, NEWEST, done) for way in WAYS_TO_THE_NEWEST]
        refused += any(newest)
        assert_intact(directory, done)
        save_again(directory, states, whole)
        assert_intact(directory, done)
        by_restore(directory, states, whole) if whole else None
    assert 0 < refused < 20 * trials


# --- Checkpoints of parameter servers ----------------------------------------------------------


@pytest.fixture(scope="module")
def cluster():
    gc.store(object())  # starts the thread of pyzmq that frees what was sent; it stays for ever
    with LocalCluster(workers=1, ps=2) as cluster:
        yield cluster


TABLES = {step: np.full((10, 4), step, np.float32) + np.arange(4) for step in (1, 2, 9)}


@few_or_many
def test_servers_restore_to_the_bit_or_refuse(cluster, tmp_path, trials):
    with cluster.strategy(jt.experimental.partitioners.FixedShardsPartitioner(2)).scope():
        table = jt.Variable(TABLES[9], name="table")
    checkpoint = Checkpoint(table=table, here=jt.Variable(9.0))
    (tmp_path / "template").mkdir()
    for step in (1, 2):
        table.assign(TABLES[step])
        checkpoint.here.assign(step)
        checkpoint.save(tmp_path / "template" / "ckpt", AT_ONCE)
    for directory, done in trials_on(tmp_path / "template", tmp_path, 8 * trials, seed=trials):
        for step in (1, 2):
            table.assign(TABLES[9])
            checkpoint.here.assign(9.0)
            expected = step
            try:
                checkpoint.restore(directory / f"ckpt-{step}")
            except DataLossError as error:
                assert str(directory) in str(error)
                assert done.touches(directory / f"ckpt-{step}")
                expected = 9
            np.testing.assert_array_equal(table.numpy(), TABLES[expected])
            assert float(checkpoint.here) == expected
        checkpoint.write(directory / "ckpt-2", AT_ONCE)  # in the place of the second
        checkpoint.restore(directory / "ckpt-2")
        touched = [path for path in done.touched if directory / "ckpt-2" in path.parents]
        if touched and expected == 9:
            assert_intact(directory, done)


# --- Backups -----------------------------------------------------------------------------------


@few_or_many
def test_a_training_loop_goes_on_from_its_last_backup_or_not_at_all(tmp_path, trials):
    def train(directory, steps):
        checkpoint = Checkpoint(v=jt.Variable(0.0))
        made = []
        with jt.train.BackupAndRestore(checkpoint, directory, save_freq=2) as backup:
            for step in backup.steps(steps):
                checkpoint.v.assign_add(1.0)
                made.append(step)
        assert float(checkpoint.v) == steps
        return made

    train(tmp_path / "template", 6)
    for directory, done in trials_on(tmp_path / "template", tmp_path, 10 * trials, seed=trials):
        try:
            assert train(directory, 8) == [6, 7]
        except DataLossError as error:
            assert str(directory) in str(error)
            assert done.touches(directory / "backup-3")
            assert_intact(directory, done)
            shutil.move(directory / "backup-3", tmp_path / "away")  # as the message says
            try:
                assert train(directory, 8) == [4, 5, 6, 7]
            except DataLossError:
                assert done.touches(directory / "backup-2")
            shutil.rmtree(tmp_path / "away")


# --- Snapshots -----------------------------------------------------------------------------------


@few_or_many
def test_a_server_goes_on_from_a_snapshot_as_it_was_or_not_at_all(tmp_path, trials):
    store = store_with(np.arange(600, dtype=np.float32), np.int64(7))
    values = {}
    for closure in (1, 2):
        update(
            store,
            closure,
            op(0, "add", np.full(600, closure, np.float32)),
            op(1, "add", np.int64(1)),
        )
        values[store.clock] = [value(store, number).tobytes() for number in (0, 1)]
        write_snapshot(store.image(), tmp_path / "template", "ps:0", KEY)
    newest = store.clock
    for directory, done in trials_on(tmp_path / "template", tmp_path, 15 * trials, seed=trials):
        folder = directory / "ps-0"
        other = Store()
        other.adopt("origin")
        try:
            other.load(read_newest(directory, "ps:0", KEY, "origin"))
        except DataLossError as error:
            assert str(directory) in str(error)
            assert all(done.touches(folder / f"{number:012d}") for number in (1, 2))
        else:
            assert [value(other, number).tobytes() for number in (0, 1)] == values[other.clock]
            assert other.clock == newest or done.touches(folder / f"{2:012d}")
        assert_intact(directory, done)
        path = write_snapshot(store.image(), directory, "ps:0", KEY)
        assert read_newest(directory, "ps:0", KEY, "origin").clock == newest
        others = [each for each in folder.iterdir() if each != path]
        assert others, "the only one beside it was deleted"


# --- Saved models --------------------------------------------------------------------------------


@few_or_many
def test_a_model_is_loaded_to_the_bit_or_refused(tmp_path, trials):
    weights = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)

    def save(path):
        v = jt.Variable(weights, name="v")
        n = jt.Variable(weights + 1, name="n")
        signature = jt.saved_model.Signature(lambda x: x * v, jt.TensorSpec([]))
        jt.saved_model.save({"v": v, "n": n}, path, signature)

    def check(path):
        loaded = jt.saved_model.load(path)
        np.testing.assert_array_equal(loaded["v"].numpy(), weights)
        np.testing.assert_array_equal(loaded["n"].numpy(), weights + 1)

    save(tmp_path / "template" / "model")
    for directory, done in trials_on(tmp_path / "template", tmp_path, 8 * trials, seed=trials):
        is_harmless = False
        try:
            check(directory / "model")
            is_harmless = True
        except DataLossError as error:
            assert str(directory) in str(error)
        assert_intact(directory, done)
        save(directory / "model")
        check(directory / "model")
        if not is_harmless:
            assert_intact(directory, done)


# --- Caches --------------------------------------------------------------------------------------


@few_or_many
def test_a_cache_is_read_to_the_bit_or_refused(tmp_path, trials):
    def elements(path):
        dataset = jt.data.Dataset.range(40).map(lambda x: {"x": np.full(5, x), "t": b"%d" % x})
        return [(each["x"].tobytes(), each["t"]) for each in dataset.cache(path)]

    expected = elements(tmp_path / "template" / "cache")
    elements(tmp_path / "template" / "other")
    for directory, done in trials_on(tmp_path / "template", tmp_path, 8 * trials, seed=trials):
        for name in ("cache", "other"):
            try:
                assert elements(directory / name) == expected
            except DataLossError as error:
                assert str(directory / name) in str(error)
                assert directory / name in done.touched
        assert_intact(directory, done)


def test_all_kinds_of_files_are_among_those_that_are_damaged(saved):
    directory, _ = saved
    names = {path.name for path in files_in(directory)}
    assert {"checkpoint.json", "commit.json", "index.json", "manifest.ocdbt"} <= names
    assert len(list((directory / "ckpt-1").glob("data-*/arrays/d/*"))) > 1
