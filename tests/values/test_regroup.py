"""Merging one structure a replica into one, and splitting it again."""

import typing

import jax.numpy as jnp
import pytest

import jaxtribute as jt
from jaxtribute.values._regroup import regroup, select


class Pair(typing.NamedTuple):
    first: object
    second: object


def test_what_differs_becomes_per_replica():
    merged = regroup([{"a": 1, "b": [2]}, {"a": 3, "b": [4]}])
    assert merged["a"].values == (1, 3)
    assert merged["b"][0].values == (2, 4)


def test_one_object_stays_bare():
    thing = object()
    assert regroup([thing, thing]) is thing
    array = jnp.ones(2)
    assert regroup([[array], [array]])[0] is array


@pytest.mark.parametrize("constant", [0, 1.5, "text", b"b", True, 2j])
def test_equal_constants_stay_bare(constant):
    assert regroup([constant, constant, constant]) == constant


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1.0), (True, 1), (0, False), ("a", b"a"), (float("nan"), float("nan") * 1)]
)
def test_constants_of_different_types_do_not(a, b):
    merged = regroup([a, b])
    assert isinstance(merged, jt.PerReplica)
    assert [type(x) for x in merged.values] == [type(a), type(b)]


def test_equal_arrays_do_not():
    assert isinstance(regroup([jnp.ones(2), jnp.ones(2)]), jt.PerReplica)


def test_always_wrap():
    assert regroup([7, 7], always_wrap=True).values == (7, 7)
    assert regroup([7], always_wrap=True).values == (7,)


def test_one_structure_is_itself():
    assert regroup([{"a": [1, None]}]) == {"a": [1, None]}


def test_types_are_kept():
    merged = regroup([Pair(1, (2, [3])), Pair(4, (5, [6]))])
    assert isinstance(merged, Pair)
    assert isinstance(merged.second, tuple)
    assert merged.second[1][0].values == (3, 6)


@pytest.mark.parametrize(
    ("a", "b"),
    [([1], [1, 2]), ((1,), [1]), ({"a": 1}, {"b": 1}), (Pair(1, 2), (1, 2)), ([], [1])],
)
def test_structures_that_differ_are_an_error(a, b):
    with pytest.raises(AssertionError, match="different structures") as raised:
        regroup([a, b])
    assert "replica 1" in str(raised.value)


def test_none_is_a_value_like_any_other():
    merged = regroup([{"a": None}, {"a": 1}])
    assert merged["a"].values == (None, 1)
    assert regroup([None, None]) is None


def test_the_replica_that_differs_is_named():
    with pytest.raises(AssertionError, match="replica 2"):
        regroup([[1], [1], [1, 2]])


def test_select_is_the_inverse():
    trees = [{"a": [i], "b": Pair(i * 10, "same")} for i in range(3)]
    merged = regroup(trees)
    assert [select(i, merged) for i in range(3)] == trees


def test_select_leaves_variables_whole():
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = jt.Variable(1.0)
    assert select(1, {"v": v})["v"] is v


def test_select_leaves_other_things_alone():
    thing = object()
    assert select(0, [thing, None, 3])[0] is thing
