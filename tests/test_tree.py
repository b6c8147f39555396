"""Nested structures."""

import collections
import dataclasses
import typing

import jax
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute import _tree

# Arrays to build structures of: objects of their own, compared by identity below.
A, B, C = (np.float32(i) for i in (1, 2, 3))


class Point(typing.NamedTuple):
    x: object
    y: object


@dataclasses.dataclass
class Batch:
    images: object
    labels: object = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: object


@dataclasses.dataclass
class Checked:
    value: object

    def __post_init__(self):
        if not isinstance(self.value, np.generic):
            raise TypeError("value must be a number")


@dataclasses.dataclass
class Derived:
    value: object
    twice: object = dataclasses.field(init=False)

    def __post_init__(self):
        self.twice = self.value * 2


@dataclasses.dataclass
class Counting:
    value: object

    def __post_init__(self):
        self.count = 5  # not a field


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    data: object
    note: str = dataclasses.field(metadata={"static": True}, default="note")


ONE, THREE = np.int32(1), np.int32(3)  # dataclasses are opened for the arrays in them


def doubled(tree):
    return _tree.map_leaves(lambda leaf: leaf if leaf is None else leaf * 2, tree)


@pytest.mark.parametrize(
    ("tree", "leaves"),
    [
        (A, [A]),
        (None, [None]),
        ([A, None], [A, None]),
        ((A, (B, C)), [A, B, C]),
        ({"a": A, "b": [B]}, [A, B]),
        (Point(A, B), [A, B]),
        (collections.OrderedDict(b=A, a=B), [A, B]),
        ([], []),
        (Batch(A, B), [A, B]),
        (Batch(A), [A, None]),
        (Batch(A, "text"), [A, "text"]),
        ([Batch({"x": A}, (B, C))], [A, B, C]),
        (Batch(Frozen(A), [Batch(B, C)]), [A, B, C]),
        (Batch("text", Frozen(A)), ["text", A]),
        (Registered(A), [A]),
    ],
)
def test_flatten_and_unflatten_are_inverse(tree, leaves):
    found, structure = _tree.flatten(tree)
    assert len(found) == len(leaves)
    assert all(x is y for x, y in zip(found, leaves, strict=True))
    rebuilt = structure.unflatten(found)
    assert rebuilt == tree
    assert type(rebuilt) is type(tree)


@pytest.mark.parametrize("tree", [Batch(1, "text"), Frozen(None), Batch([1.5], {"a": 2})], ids=repr)
def test_a_dataclass_without_arrays_is_an_object_like_any_other(tree):
    leaves, structure = _tree.flatten([tree])
    assert len(leaves) == 1
    assert leaves[0] is tree
    assert structure.unflatten(leaves)[0] is tree


def test_a_variable_or_distributed_value_counts_as_an_array():
    v = jt.Variable(1.0)
    per_replica = jt.PerReplica([1, 2])
    leaves, _ = _tree.flatten(Batch(v, Frozen(per_replica)))
    assert leaves[0] is v
    assert leaves[1] is per_replica


def test_map_keeps_the_types():
    assert doubled([Point(A, Batch(B, C))]) == [Point(2, Batch(4, 6))]
    assert doubled(collections.OrderedDict(b=A, a=B)) == collections.OrderedDict(b=2, a=4)
    counts = doubled(collections.defaultdict(list, a=A))
    assert isinstance(counts, collections.defaultdict)
    assert counts["missing"] == []


def test_a_frozen_dataclass_is_rebuilt():
    assert doubled(Frozen(C)) == Frozen(6)


def test_rebuilding_does_not_check_again():
    # Leaves may be tracers or per-replica values for a while, which a check would refuse.
    leaves, structure = _tree.flatten(Checked(A))
    assert leaves == [A]
    assert structure.unflatten(["no number"]).value == "no number"


def test_fields_that_are_computed_are_carried_along():
    rebuilt = doubled(Derived(C))
    assert (rebuilt.value, rebuilt.twice) == (6, 12)


def test_attributes_that_are_no_fields_are_carried_along():
    rebuilt = doubled(Counting(C))
    assert (rebuilt.value, rebuilt.count) == (6, 10)


def test_a_dataclass_that_jax_knows_is_left_to_jax():
    assert doubled(Registered(C, note="kept")) == Registered(6, note="kept")


def test_a_class_is_a_leaf():
    assert _tree.flatten([Batch])[0] == [Batch]


def test_is_leaf_stops_the_descent_also_inside_dataclasses():
    tree = Batch([A, B], {"a": [C]})
    leaves, structure = _tree.flatten(tree, lambda x: isinstance(x, list))
    assert leaves == [[A, B], [C]]
    assert structure.unflatten(leaves) == tree


def test_is_leaf_may_stop_at_a_dataclass():
    tree = [Batch(A, B)]
    leaves, structure = _tree.flatten(tree, lambda x: isinstance(x, Batch))
    assert leaves == [Batch(A, B)]
    assert structure.unflatten(leaves) == tree


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ([A], [B], True),
        ([A], (A,), False),
        ({"a": A}, {"b": A}, False),
        (None, A, True),
        (Batch(A, B), Batch(B, C), True),
        (Batch(A, B), Batch(A, None), True),
        (Batch(A, B), Batch(A, [B]), False),
        (Frozen(A), Checked(A), False),
        (Frozen(A), Point(A, B), False),
    ],
)
def test_structures_compare_without_their_leaves(a, b, same):
    first, second = _tree.flatten(a)[1], _tree.flatten(b)[1]
    assert (first == second) is same
    if same:
        assert hash(first) == hash(second)
