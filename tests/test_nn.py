"""Losses of replicas that add up to the loss of the whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.variables._support import both_ways, local, mirrored, run


@pytest.fixture
def strategy():
    return mirrored(2)


class TestAverageLoss:
    @both_ways
    def test_shares_add_up_to_the_mean(self, strategy, way):
        batch = np.arange(8.0, dtype=np.float32)
        values = strategy.experimental_distribute_values_from_function(
            lambda ctx: batch[ctx.replica_id_in_sync_group * 4 :][:4]
        )
        for size in (None, 8, np.int64(8), jnp.int32(8)):
            shares = run(
                way,
                strategy,
                lambda x, size=size: jt.nn.compute_average_loss(x, global_batch_size=size),
                (values,),
            )
            assert local(strategy, shares) == [6 / 8, 22 / 8]
            assert strategy.reduce("SUM", shares, axis=None) == 3.5

    @both_ways
    def test_partial_batches(self, strategy, way):
        """With the global size given, an empty replica contributes nothing."""
        for cut in (1, 3, 0):
            values = strategy.experimental_distribute_values_from_function(
                lambda ctx, cut=cut: np.split(np.arange(3.0, dtype=np.float32), [cut])[
                    ctx.replica_id_in_sync_group
                ]
            )
            shares = run(
                way,
                strategy,
                lambda x: jt.nn.compute_average_loss(x, global_batch_size=3),
                (values,),
            )
            assert strategy.reduce("SUM", shares, axis=None) == 1

    def test_weights(self):
        losses = jnp.array([1.0, 2.0, 3.0])
        average = jt.nn.compute_average_loss
        assert average(losses, sample_weight=jnp.array([1.0, 0.0, 2.0])) == 7 / 3
        assert average(losses, sample_weight=2.0) == 4
        assert average(losses, sample_weight=[1, 0, 2], global_batch_size=7) == 1

    def test_weights_for_losses_with_more_axes(self):
        losses = jnp.ones((2, 3))
        loss = jt.nn.compute_average_loss(losses, sample_weight=[1.0, 2.0], global_batch_size=2)
        assert loss == (3 + 6) / 2

    def test_without_a_strategy(self):
        assert jt.nn.compute_average_loss([1.0, 2.0, 6.0]) == 3
        assert jt.nn.compute_average_loss(np.array([1.0, 2.0, 6.0]), global_batch_size=9) == 1

    def test_type_is_that_of_the_losses(self):
        for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
            losses = jnp.ones(4, dtype)
            assert jt.nn.compute_average_loss(losses).dtype == dtype
            weighted = jt.nn.compute_average_loss(losses, sample_weight=np.ones(4))
            assert weighted.dtype == dtype

    def test_gradients(self):
        gradient = jax.grad(lambda x: jt.nn.compute_average_loss(x**2, global_batch_size=8))
        assert gradient(jnp.array([1.0, 2.0])).tolist() == [0.25, 0.5]

    @pytest.mark.parametrize("loss", [1.0, jnp.float32(1.0), np.float32(1.0)], ids=repr)
    def test_a_single_loss_is_refused(self, loss):
        with pytest.raises(ValueError, match="scalar"):
            jt.nn.compute_average_loss(loss, global_batch_size=1)

    @pytest.mark.parametrize("size", [0, -1, np.int32(0), jnp.int32(0), np.array(-3)], ids=repr)
    def test_a_size_that_is_not_positive(self, size):
        with pytest.raises(ValueError, match="positive"):
            jt.nn.compute_average_loss(jnp.ones(2), global_batch_size=size)

    @pytest.mark.parametrize("size", [2.0, "2", jnp.float32(2.0), np.float64(2.0)], ids=repr)
    def test_a_size_that_is_no_whole_number(self, size):
        with pytest.raises(TypeError, match="whole number"):
            jt.nn.compute_average_loss(jnp.ones(2), global_batch_size=size)

    @pytest.mark.parametrize("size", [np.array([2]), jnp.array([2, 2])], ids=repr)
    def test_a_size_that_is_no_scalar(self, size):
        with pytest.raises(ValueError, match="scalar"):
            jt.nn.compute_average_loss(jnp.ones(2), global_batch_size=size)

    def test_a_size_known_only_to_the_step(self):
        average = jt.function(lambda x, n: jt.nn.compute_average_loss(x, global_batch_size=n))
        assert average(jnp.ones(2), jnp.int32(4)) == 0.5
        with pytest.raises(TypeError, match="whole number"):
            average(jnp.ones(2), jnp.float32(4.0))

    def test_outside_the_replicas(self, strategy):
        with strategy.scope():
            with pytest.raises(RuntimeError, match="global_batch_size"):
                jt.nn.compute_average_loss(jnp.ones(2))
            assert jt.nn.compute_average_loss(jnp.ones(2), global_batch_size=4) == 0.5


class TestRegularizationLoss:
    @both_ways
    @pytest.mark.parametrize("replicas", [1, 2, 4])
    def test_counts_once(self, way, replicas):
        strategy = mirrored(replicas)
        shares = run(way, strategy, lambda: jt.nn.scale_regularization_loss(jnp.float32(3.0)))
        assert local(strategy, shares) == [3 / replicas] * replicas

    def test_several_are_added_up(self, strategy):
        shares = strategy.run(lambda: jt.nn.scale_regularization_loss(jnp.array([1.0, 3.0])))
        assert local(strategy, shares) == [2, 2]
        assert jt.nn.scale_regularization_loss([1.0, 3.0]) == 4

    def test_without_a_strategy(self):
        assert jt.nn.scale_regularization_loss(3.0) == 3

    def test_outside_the_replicas(self, strategy):
        with strategy.scope(), pytest.raises(RuntimeError, match="cross-replica"):
            jt.nn.scale_regularization_loss(3.0)
