"""Descriptions of arrays."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt


class TestTensorSpec:
    @pytest.mark.parametrize(
        ("shape", "value_shape", "fits"),
        [
            ([], (), True),
            ([], (1,), False),
            ([3], (3,), True),
            ([3], (4,), False),
            ([3], (3, 1), False),
            ([None], (0,), True),
            ([None], (7,), True),
            ([None, 3], (5, 3), True),
            ([None, 3], (5, 4), False),
            ([None, 3], (3,), False),
            (None, (), True),
            (None, (2, 3, 4), True),
        ],
    )
    def test_none_stands_for_any_size_or_rank(self, shape, value_shape, fits):
        spec = jt.TensorSpec(shape, jnp.float32)
        value = np.zeros(value_shape, np.float32)
        assert spec.is_compatible_with(value) is fits
        assert spec.is_compatible_with(jnp.asarray(value)) is fits
        assert spec.is_compatible_with(jt.TensorSpec(value_shape, jnp.float32)) is fits

    def test_the_type_must_be_the_same(self):
        spec = jt.TensorSpec([2], jnp.float32)
        assert not spec.is_compatible_with(np.zeros(2, np.int32))
        assert not spec.is_compatible_with(jnp.zeros(2, jnp.bfloat16))

    def test_a_wider_description_does_not_fit(self):
        narrow = jt.TensorSpec([2], jnp.float32)
        assert not narrow.is_compatible_with(jt.TensorSpec([None], jnp.float32))
        assert not narrow.is_compatible_with(jt.TensorSpec(None, jnp.float32))

    @pytest.mark.parametrize("value", ["text", None, object(), [1.0]])
    def test_what_is_no_array_does_not_fit(self, value):
        assert jt.TensorSpec(None, jnp.float32).is_compatible_with(value) is False

    def test_a_number_fits_a_scalar(self):
        assert jt.TensorSpec([], jnp.float32).is_compatible_with(1.0)
        assert jt.TensorSpec([], jnp.int32).is_compatible_with(1)

    def test_from_tensor(self):
        spec = jt.TensorSpec.from_tensor(np.zeros((2, 3), np.int32), name="x")
        assert spec == jt.TensorSpec((2, 3), jnp.int32, name="x")

    def test_equal_descriptions_are_one_key(self):
        a, b = jt.TensorSpec([None, 3]), jt.TensorSpec((None, 3), "float32")
        assert a == b
        assert hash(a) == hash(b)
        assert a != jt.TensorSpec([None, 4])
        assert a != jt.TensorSpec([None, 3], jnp.int32)
        assert a != "TensorSpec"

    def test_repr_is_that_of_the_reference(self):
        spec = jt.TensorSpec([None, 1], jnp.float32)
        assert repr(spec) == "TensorSpec(shape=(None, 1), dtype=float32, name=None)"


class TestPerReplicaSpec:
    SPEC = jt.PerReplicaSpec(jt.TensorSpec([None]), jt.TensorSpec([None]))

    def test_each_component_must_fit(self):
        fits = jt.PerReplica([np.zeros(2, np.float32), np.zeros(3, np.float32)])
        differs = jt.PerReplica([np.zeros(2, np.float32), np.zeros((3, 1), np.float32)])
        assert self.SPEC.is_compatible_with(fits)
        assert not self.SPEC.is_compatible_with(differs)

    def test_the_number_of_components_must_be_the_same(self):
        one = jt.PerReplica([np.zeros(2, np.float32)])
        assert not self.SPEC.is_compatible_with(one)

    def test_a_narrower_description_fits(self):
        narrow = jt.PerReplicaSpec(jt.TensorSpec([2]), jt.TensorSpec([3]))
        assert self.SPEC.is_compatible_with(narrow)
        assert not narrow.is_compatible_with(self.SPEC)

    @pytest.mark.parametrize("value", [1.0, np.zeros(2), "text", {"a": 1}, None], ids=repr)
    def test_what_has_no_components_does_not_fit(self, value):
        assert self.SPEC.is_compatible_with(value) is False

    def test_equal_descriptions_are_one_key(self):
        same = jt.PerReplicaSpec(jt.TensorSpec([None]), jt.TensorSpec([None]))
        assert same == self.SPEC
        assert hash(self.SPEC) == hash(same)
        assert jt.PerReplicaSpec(jt.TensorSpec([None])) != self.SPEC

    def test_repr_is_that_of_the_reference(self):
        assert repr(self.SPEC) == (
            "PerReplicaSpec(TensorSpec(shape=(None,), dtype=float32, name=None), "
            "TensorSpec(shape=(None,), dtype=float32, name=None))"
        )
