"""What the contestants of `input` are given, and how they are compared."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.input import CONTESTS
from benchmarks.peers.input_work import (
    BATCH,
    BATCHES,
    CLASSES,
    EPOCHS,
    EXAMPLES,
    Proof,
    Work,
    augment,
    parse,
)
from benchmarks.registry import BENCHMARKS
from benchmarks.report import SUBJECT


def test_every_contestant_is_described() -> None:
    taking_part = {c.name for contest in CONTESTS for c in contest.contestants}
    assert taking_part == BENCHMARKS["input"].contestants.keys()


@pytest.mark.parametrize("contest", CONTESTS, ids=lambda contest: contest.case.name)
def test_targets_are_against_opponents_that_take_part(contest) -> None:
    names = [c.name for c in contest.contestants]
    assert names[0] == SUBJECT
    assert contest.targets.keys() <= set(names[1:])


def test_the_proof_is_over_whole_epochs() -> None:
    assert BATCHES * BATCH == EPOCHS * EXAMPLES


def test_arrays_are_the_same_each_time() -> None:
    (x, y), again = Work("arrays", 3).arrays(), Work("arrays", 3).arrays()
    assert x.shape == (EXAMPLES, 3) and x.dtype == np.float32
    assert y.shape == (EXAMPLES,) and y.dtype == np.int32 and set(y) == set(range(CLASSES))
    np.testing.assert_array_equal(x, again[0])


def test_lines_are_written_once_and_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = Path(Work("text", 4).lines())
    lines = path.read_bytes().splitlines()
    assert len(lines) == EXAMPLES
    assert parse(lines[0]).shape == (4,) and parse(lines[0]).dtype == np.float32
    path.write_bytes(b"kept")
    assert Path(Work("text", 4).lines()).read_bytes() == b"kept"
    assert list(path.parent.iterdir()) == [path]


def test_odd_labels_reverse_an_example() -> None:
    x = np.arange(3, dtype=np.float32)
    even, odd = augment(x, np.int32(2)), augment(x, np.int32(3))
    np.testing.assert_array_equal(even[0], odd[0][::-1])
    assert (even[1], odd[1]) == (2, 3)
    assert even[0].dtype == np.float32


def _proof(*parts: tuple[np.ndarray, ...]) -> float:
    proof = Proof()
    for part in parts:
        proof.add(*part)
    return proof.total


def test_the_proof_knows_examples_but_not_their_order() -> None:
    x, y = Work("arrays", 5).arrays()
    whole = _proof((x, y))
    order = np.random.default_rng(0).permutation(EXAMPLES)
    parts = [(x[i], y[i]) for i in np.array_split(order, 7)]
    assert _proof(*parts) == pytest.approx(whole, rel=1e-9)
    assert _proof((x, np.roll(y, 1))) != pytest.approx(whole, rel=1e-3)  # labels of others
    assert _proof((x[:, ::-1], y)) != pytest.approx(whole, rel=1e-3)  # features of others
    assert _proof((x[BATCH:], y[BATCH:])) != pytest.approx(whole, rel=1e-3)  # a batch is missing
    assert _proof((x,)) != pytest.approx(whole, rel=1e-3)
