"""Which rows of a table are asked of which server."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jt
from jaxtribute.remote._rows import Distinct, split

IDS = st.lists(st.integers(0, 19), max_size=40)


@given(ids=IDS)
def test_each_row_is_asked_for_once_and_delivered_as_often_as_it_was_named(ids):
    table = np.arange(40).reshape(20, 2)
    found = Distinct.of(np.array(ids, np.int32), 20, "table")
    assert found.unique.tolist() == sorted(set(ids))
    assert found.unique.dtype == np.int64
    np.testing.assert_array_equal(found.expanded(table[found.unique]), table[ids])


@given(ids=IDS)
def test_rows_named_twice_are_added_up(ids):
    rows = np.arange(1.0, 2 * len(ids) + 1).reshape(-1, 2)
    found = Distinct.of(np.array(ids, np.int64), 20, "table")
    dense = np.zeros((20, 2))
    dense[found.unique] = found.summed(rows)
    expected = np.zeros((20, 2))
    np.add.at(expected, np.array(ids, int), rows)
    np.testing.assert_allclose(dense, expected)


@pytest.mark.parametrize("wrong", [-1, 20])
def test_a_row_that_does_not_exist_is_named(wrong):
    with pytest.raises(jt.errors.InvalidArgumentError, match=f"'table' has 20 rows.*row {wrong} "):
        Distinct.of(np.array([3, wrong]), 20, "table")


@given(ids=IDS, sizes=st.lists(st.integers(0, 7), min_size=1, max_size=5))
def test_each_shard_is_asked_for_its_own_rows_by_their_place_in_it(ids, sizes):
    rows = sum(sizes)
    unique = np.unique(np.array([i for i in ids if i < rows], np.int64))
    shards = np.split(np.arange(rows), np.cumsum(sizes)[:-1])
    parts = split(unique, sizes)
    assert len(parts) == len(sizes)
    for shard, (place, own) in zip(shards, parts, strict=True):
        assert shard[own].tolist() == unique[place].tolist()
    assert sum(own.size for _, own in parts) == unique.size
