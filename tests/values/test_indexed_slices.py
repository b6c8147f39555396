"""Some rows of an array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt


def test_rows_named_twice_are_added_up():
    slices = jt.IndexedSlices(jnp.array([[1.0], [2.0], [4.0]]), jnp.array([2, 0, 2]), (3, 1))
    assert slices.to_dense().tolist() == [[2.0], [0.0], [5.0]]


def test_it_converts_to_the_whole_array():
    slices = jt.IndexedSlices(np.float32([[1, 2]]), np.array([1]), (2, 2))
    assert np.asarray(slices).tolist() == [[0.0, 0.0], [1.0, 2.0]]
    assert jnp.asarray(slices).tolist() == [[0.0, 0.0], [1.0, 2.0]]


def test_lists_will_do():
    slices = jt.IndexedSlices([[1.0, 2.0]], [1], (2, 2))
    assert slices.to_dense().tolist() == [[0.0, 0.0], [1.0, 2.0]]


def test_without_a_shape_it_cannot_be_whole():
    slices = jt.IndexedSlices(jnp.ones((1, 2)), jnp.array([0]))
    with pytest.raises(ValueError, match="dense_shape"):
        slices.to_dense()
    assert slices.to_dense((1, 2)).tolist() == [[1.0, 1.0]]


def test_no_rows():
    slices = jt.IndexedSlices(jnp.zeros((0, 2)), jnp.zeros((0,), jnp.int32), (2, 2))
    assert slices.to_dense().tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_the_type_is_that_of_the_rows():
    slices = jt.IndexedSlices(jnp.ones((1, 2), jnp.bfloat16), jnp.array([0]), (1, 2))
    assert slices.dtype == jnp.bfloat16
    assert slices.to_dense().dtype == jnp.bfloat16


def test_jax_sees_rows_and_indices():
    slices = jt.IndexedSlices(jnp.ones((1, 2)), jnp.array([1]), (3, 2))
    doubled = jax.jit(lambda s: jax.tree.map(lambda x: x * 2, s))(slices)
    assert isinstance(doubled, jt.IndexedSlices)
    assert doubled.values.tolist() == [[2.0, 2.0]]
    assert doubled.indices.tolist() == [2]
    assert doubled.dense_shape == (3, 2)


def test_repr_names_its_parts():
    text = repr(jt.IndexedSlices([1.0], [0], (3,)))
    assert text == "IndexedSlices(indices=[0], values=[1.0], dense_shape=(3,))"


def test_a_gradient_flows_through_the_rows():
    def loss(rows):
        return jnp.sum(jt.IndexedSlices(rows, jnp.array([0, 0]), (2, 1)).to_dense() ** 2)

    assert jax.grad(loss)(jnp.array([[1.0], [2.0]])).tolist() == [[6.0], [6.0]]
