"""What distributed elements look like: the rules R136 and R137."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.data import Dataset, TextLineDataset
from jaxtribute.input import distribute_from_function
from tests.input._workers import distribute_to, mirrored, parts, setting, with_policy

INT = jnp.int32  # what int64 becomes on the devices


def spec(*shape, dtype=INT):
    return jt.TensorSpec(shape, dtype)


def twice(*shape, dtype=INT):
    return jt.PerReplicaSpec(spec(*shape, dtype=dtype), spec(*shape, dtype=dtype))


def distributed(dataset, replicas):
    return mirrored(replicas).experimental_distribute_dataset(dataset)


class Pair(NamedTuple):
    x: object
    y: object


# --- The size of a batch ---------------------------------------------------------------------


class TestOneReplica:
    """R136: the plain description."""

    @pytest.mark.parametrize(
        ("dataset", "expected"),
        [
            (Dataset.range(8), spec()),
            (Dataset.range(8).batch(4), spec(None)),
            (Dataset.range(8).batch(4, drop_remainder=True), spec(4)),
            (Dataset.range(8).batch(5, drop_remainder=True), spec(5)),
            (Dataset.from_tensors(np.zeros((3, 2), np.float32)), spec(3, 2, dtype=jnp.float32)),
        ],
        ids=["unbatched", "batch", "batch_4_drop", "batch_5_drop", "one_tensor"],
    )
    def test_R136(self, dataset, expected):
        assert distributed(dataset, 1).element_spec == expected


class TestTwoReplicas:
    """R136: None, unless every batch is full and divides evenly."""

    @pytest.mark.parametrize("policy", ["AUTO", "DATA", "OFF"])
    @pytest.mark.parametrize(
        ("dataset", "expected"),
        [
            (Dataset.range(8).batch(4), twice(None)),
            (Dataset.range(8).batch(4, drop_remainder=True), twice(2)),
            (Dataset.range(8).batch(5, drop_remainder=True), twice(None)),
            (Dataset.range(8).batch(4, drop_remainder=True).prefetch(1), twice(2)),
            (Dataset.range(8).batch(4, drop_remainder=True).map(lambda x: x + 1), twice(2)),
            (Dataset.range(8).batch(4).map(lambda x: x + 1), twice(None)),
            (Dataset.range(8).batch(4, drop_remainder=True).repeat(), twice(2)),
        ],
        ids=["b4", "b4_drop", "b5_drop", "prefetch", "map", "map_none", "repeat"],
    )
    def test_R136(self, dataset, expected, policy):
        assert distributed(with_policy(dataset, policy), 2).element_spec == expected

    def test_R136_one_tensor_is_a_batch_of_known_size(self):
        dataset = Dataset.from_tensors(np.zeros((4, 3), np.float32))
        assert distributed(dataset, 2).element_spec == twice(2, 3, dtype=jnp.float32)

    def test_R136_other_dimensions_are_kept(self):
        dataset = Dataset.from_tensor_slices(np.zeros((8, 3, 5), np.float32)).batch(4)
        assert distributed(dataset, 2).element_spec == twice(None, 3, 5, dtype=jnp.float32)

    def test_R136_lines_of_text(self, tmp_path):
        (tmp_path / "a").write_text("one\ntwo\n")
        dataset = TextLineDataset(tmp_path / "a").batch(2)
        assert distributed(dataset, 2).element_spec == twice(None, dtype=object)

    def test_R136_on_three_replicas_there_is_one_description_each(self):
        dataset = Dataset.range(6).batch(6, drop_remainder=True)
        assert distributed(dataset, 3).element_spec == jt.PerReplicaSpec(spec(2), spec(2), spec(2))


class TestSeveralWorkers:
    """R136: always None, since workers end with empty batches."""

    @pytest.mark.parametrize("drop_remainder", [False, True])
    @pytest.mark.parametrize("policy", ["AUTO", "DATA", "OFF"])
    def test_R136(self, policy, drop_remainder):
        dataset = with_policy(Dataset.range(8).batch(4, drop_remainder), policy)
        expected = jt.PerReplicaSpec(spec(None))
        assert distribute_to(dataset, workers=2, worker=0, replicas=1).element_spec == expected
        assert distribute_to(dataset, workers=2, worker=1, replicas=2).element_spec == twice(None)


class TestFromFunction:
    """R136; what is None here because of R124 is None, since nothing is left out."""

    @pytest.mark.parametrize(
        ("dataset", "expected"),
        [
            (Dataset.range(8).batch(4), twice(None)),
            (Dataset.range(8).batch(4, drop_remainder=True), twice(None)),
            (Dataset.range(8).batch(4, drop_remainder=True).repeat(), twice(4)),
            (Dataset.range(8).repeat().batch(4, drop_remainder=True), twice(4)),
            (Dataset.range(8).repeat().batch(4), twice(None)),
        ],
        ids=["b4", "b4_drop", "repeated", "repeated_before", "repeated_b4"],
    )
    def test_R136(self, dataset, expected):
        found = mirrored(2).distribute_datasets_from_function(lambda _: dataset)
        assert found.element_spec == expected

    def test_R136_one_replica(self):
        dataset = Dataset.range(8).batch(4, drop_remainder=True)
        found = mirrored(1).distribute_datasets_from_function(lambda _: dataset)
        assert found.element_spec == spec(4)

    def test_R136_several_workers(self):
        dataset = Dataset.range(8).batch(4, drop_remainder=True)
        found = distribute_from_function(lambda _: dataset, setting(2, 0, 1), None)
        assert found.element_spec == jt.PerReplicaSpec(spec(None))


# --- Structures ------------------------------------------------------------------------------


class TestStructures:
    """R137."""

    def test_R137_leaf_by_leaf(self):
        data = {
            "x": np.zeros((8, 3), np.float32),
            "y": (np.zeros(8, np.int32), np.zeros((8, 2), np.bool_)),
        }
        dataset = distributed(Dataset.from_tensor_slices(data).batch(4, drop_remainder=True), 2)
        assert dataset.element_spec == {
            "x": twice(2, 3, dtype=jnp.float32),
            "y": (twice(2), twice(2, 2, dtype=jnp.bool_)),
        }

    def test_R137_named_tuples(self):
        data = Pair(np.zeros(4, np.float32), np.zeros(4, np.int32))
        found = distributed(Dataset.from_tensor_slices(data).batch(4), 2).element_spec
        assert found == Pair(twice(None, dtype=jnp.float32), twice(None))
        assert isinstance(found, Pair)

    @pytest.mark.parametrize("replicas", [1, 2])
    @pytest.mark.parametrize("count", [7, 8])
    def test_R137_every_element_fits(self, replicas, count):
        data = {"x": np.zeros((count, 3), np.float32), "y": np.zeros(count, np.int32)}
        dataset = distributed(Dataset.from_tensor_slices(data).batch(4), replicas)
        for element in dataset:
            for name, leaf_spec in dataset.element_spec.items():
                assert leaf_spec.is_compatible_with(element[name])

    def test_R137_the_iterator_knows_it_as_well(self):
        dataset = distributed(Dataset.range(8).batch(4), 2)
        iterator = iter(dataset)
        assert iterator.element_spec == dataset.element_spec == twice(None)
        assert iterator.get_next_as_optional().element_spec == dataset.element_spec
        iterator.close()

    def test_it_can_be_asked_for_without_reading_anything_away(self):
        dataset = distributed(Dataset.from_generator(lambda: iter([np.zeros(4), np.ones(4)])), 2)
        assert dataset.element_spec == dataset.element_spec
        assert len(list(dataset)) == 2


# --- As an input signature -------------------------------------------------------------------


class TestInputSignature:
    """R137: it can be the signature of a function."""

    @pytest.mark.parametrize("replicas", [1, 2])
    def test_R137_elements_fit_it(self, replicas):
        strategy = mirrored(replicas)
        dataset = distributed(Dataset.range(8).batch(4), replicas)

        @jt.function(input_signature=[dataset.element_spec])
        def step(x):
            return strategy.reduce("SUM", strategy.run(lambda x: x * 2, args=(x,)), axis=0)

        assert [int(step(x)) for x in dataset] == [12, 44]

    def test_R137_a_short_last_batch_fits_it(self):
        strategy = mirrored(2)
        dataset = distributed(Dataset.range(9).batch(4), 2)

        @jt.function(input_signature=[dataset.element_spec])
        def step(x):
            return strategy.reduce("SUM", strategy.run(lambda x: x * 2, args=(x,)), axis=0)

        assert [int(step(x)) for x in dataset] == [12, 44, 16]

    @pytest.mark.parametrize("kind", ["list", "generator", "map"])
    def test_R137_a_short_last_batch_of_other_things_fits_it(self, kind):
        strategy = mirrored(2)
        batches = [np.zeros((4, 3), np.float32), np.zeros((3, 3), np.float32)]
        source = batches if kind == "list" else Dataset.from_generator(lambda: iter(batches))
        if kind == "map":
            source = source.map(lambda x: x + 1)
        dataset = distributed(source, 2)

        @jt.function(input_signature=[dataset.element_spec])
        def step(x):
            return strategy.run(lambda x: x * 2, args=(x,))

        shapes = [[part.shape for part in step(x).values] for x in dataset]
        assert shapes == [[(2, 3), (2, 3)], [(2, 3), (1, 3)]]

    def test_R137_structures_and_other_arguments(self):
        strategy = mirrored(2)
        data = {"x": np.arange(4, dtype=np.float32), "y": np.arange(4, dtype=np.int32)}
        dataset = distributed(Dataset.from_tensor_slices(data).batch(4), 2)

        @jt.function(input_signature=[dataset.element_spec, jt.TensorSpec([], jnp.float32)])
        def step(element, scale):
            return strategy.run(lambda e: e["x"] * scale + e["y"], args=(element,))

        assert parts(step(next(iter(dataset)), 10)) == [[0.0, 11.0], [22.0, 33.0]]

    def test_R137_other_elements_are_refused(self):
        strategy = mirrored(2)
        integers = distributed(Dataset.range(8).batch(4, drop_remainder=True), 2)
        larger = distributed(Dataset.range(8).batch(8), 2)
        floats = distributed(Dataset.from_tensor_slices(np.zeros(8, np.float32)).batch(4), 2)

        @jt.function(input_signature=[integers.element_spec])
        def step(x):
            return strategy.run(lambda x: x, args=(x,))

        for dataset in (larger, floats):
            with pytest.raises(ValueError, match="does not fit its input signature"):
                step(next(iter(dataset)))


# --- The number of steps ---------------------------------------------------------------------


class TestCardinality:
    """A7."""

    @pytest.mark.parametrize(
        ("dataset", "replicas", "steps"),
        [
            (Dataset.range(8).batch(4), 1, 2),
            (Dataset.range(9).batch(4), 2, 3),
            (Dataset.range(9).batch(4, drop_remainder=True), 2, 2),
            (Dataset.range(9).batch(4).repeat(), 2, jt.data.INFINITE_CARDINALITY),
            (Dataset.range(9).filter(bool).batch(4), 2, jt.data.UNKNOWN_CARDINALITY),
        ],
        ids=["even", "short", "drop", "infinite", "unknown"],
    )
    def test_A7_of_a_divided_dataset(self, dataset, replicas, steps):
        found = distributed(dataset, replicas)
        assert found.cardinality() == steps
        if steps >= 0:
            assert len(list(found)) == steps

    def test_A7_several_workers(self):
        found = distribute_to(Dataset.range(9).batch(4), 2, 1, 1)
        assert found.cardinality() == 3

    @pytest.mark.parametrize("count", [8, 14])
    def test_A7_batches_that_are_filled_anew(self, count):
        found = distributed(with_policy(Dataset.range(count).batch(5), "OFF"), 2)
        assert found.cardinality() == len(list(found))

    def test_A7_short_batches_in_between_are_filled_up(self):
        dataset = with_policy(Dataset.range(3).batch(2).repeat(2), "OFF")  # 2, 1, 2, 1 examples
        found = distributed(dataset, 2)
        assert found.cardinality() in (len(list(found)), jt.data.UNKNOWN_CARDINALITY)

    def test_A7_from_a_function(self):
        found = mirrored(2).distribute_datasets_from_function(lambda _: Dataset.range(9).batch(2))
        assert found.cardinality() == len(list(found)) == 3
