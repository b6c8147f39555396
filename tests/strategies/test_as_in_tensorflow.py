"""What programs written for TensorFlow rely on without saying so."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from tests.input._workers import mirrored

ON_READ = jt.VariableSynchronization.ON_READ
SUM = jt.VariableAggregation.SUM

both_ways = pytest.mark.parametrize("way", [lambda fn: fn, jt.function], ids=["eager", "compiled"])


@pytest.fixture(scope="module")
def two():
    return mirrored(2)


def replica():
    return jt.get_replica_context().replica_id_in_sync_group


def merged(merge_fn, *args):
    return jt.get_replica_context().merge_call(merge_fn, args=args)


class Settings(dict):
    """A dict of a class of its own."""


class TestWhatAllReplicasShare:
    @both_ways
    def test_comes_back_bare_from_run(self, two, way):
        assert two.run(way(lambda: 3)) == 3
        assert two.run(way(lambda: merged(lambda _: jnp.float32(4.0)))) == 4
        given = jax.device_put(jnp.float32(5.0), two.topology.devices[0])
        assert two.run(way(lambda x: x), args=(given,)) == 5

    @both_ways
    def test_is_not_added_up(self, two, way):
        given = jax.device_put(jnp.float32(5.0), two.topology.devices[0])
        for fn in (lambda x: x, lambda x: 3.0, lambda x: merged(lambda _, x: x, x)):
            with pytest.raises(ValueError, match="same for all 2 replicas"):
                two.reduce("SUM", two.run(way(fn), args=(given,)), axis=None)
        with pytest.raises(ValueError, match="same for all 2 replicas"):
            two.run(
                way(lambda x: merged(lambda s, x: s.extended.reduce_to("SUM", x, x), x)),
                args=(given,),
            )

    @both_ways
    def test_what_each_has_for_itself_is_not_bare(self, two, way):
        result = two.run(way(lambda: merged(lambda _, x: x, jnp.float32(replica()))))
        assert [float(x) for x in result.values] == [0, 1]

    def test_structures_without_distributed_values_have_a_copy_for_each(self, two):
        assert two.experimental_local_results({"a": 1}) == ({"a": 1},) * 2
        assert two.experimental_local_results(1) == (1,)


class TestContainers:
    @both_ways
    @pytest.mark.parametrize("make", [Settings, collections.OrderedDict, dict])
    def test_dicts_keep_their_class_order_and_attributes(self, two, way, make):
        def replica_fn(given):
            assert type(given) is make
            return make(b=jnp.float32(replica()), a=given["x"] + 1.0)

        result = two.run(way(replica_fn), args=(make(x=jnp.float32(1.0)),))
        assert type(result) is make
        assert [float(x) for x in result["b"].values] == [0, 1]
        if make is not dict:
            assert list(result) == ["b", "a"]

    def test_attributes_are_kept(self, two):
        given = Settings(x=jnp.float32(1.0))
        given.note = "kept"
        assert two.run(lambda given: given.note, args=(given,)) == "kept"

    def test_lists_and_tuples(self, two):
        for base in (list, tuple):
            own = type("Own", (base,), {})
            result = two.run(lambda own=own: own([jnp.float32(replica())]))
            assert type(result) is own
            assert [float(x) for x in result[0].values] == [0, 1]


class TestVariables:
    def test_with_on_read_may_be_trainable(self, two):
        with two.scope():
            v = jt.Variable(1.0, trainable=True, synchronization=ON_READ)
        assert v.trainable

    @both_ways
    def test_without_aggregation_are_assigned_what_all_share(self, two, way):
        with two.scope():
            v = jt.Variable(1.0)
        two.run(way(lambda: v.assign(3.0).assign_add(1.0)))
        assert [float(c) for c in v.values] == [4, 4]
        with pytest.raises(ValueError, match="You must specify an aggregation"):
            two.run(way(lambda: v.assign(jnp.float32(replica()))))
        assert [float(c) for c in v.values] == [4, 4]

    @both_ways
    @pytest.mark.parametrize("place", ["outside", "inside", "merge call"])
    def test_with_on_read_are_updated_on_each_replica(self, two, way, place):
        with two.scope():
            v = jt.Variable(1.0, synchronization=ON_READ, aggregation=SUM)

        def update(x):
            two.extended.update(v, lambda v, x: v.assign_add(x), args=(x,))

        x = two.run(lambda: jnp.float32(replica()) + 1.0)
        if place == "outside":
            way(update)(x)
        elif place == "inside":
            two.run(way(update), args=(x,))
        else:
            two.run(way(lambda x: merged(lambda _, x: update(x), x)), args=(x,))
        assert [float(c) for c in v.values] == [2, 3]


class TestGradients:
    @both_ways
    def test_of_what_is_not_used_do_not_move_variables(self, two, way):
        with two.scope():
            w, b = jt.Variable(1.0), jt.Variable(1.0)
            optimizer = jt.Optimizer(optax.sgd(0.1, momentum=0.9))

        def step(with_b):
            def replica_fn():
                loss = lambda: w * 1.0 + (b * 1.0 if with_b else 0.0)  # noqa: E731
                _, gradients = jt.value_and_grad(loss, [w, b])()
                optimizer.apply_gradients(zip(gradients, [w, b], strict=True))

            two.run(replica_fn)

        step = way(step)
        step(True)
        step(False)
        assert np.allclose([float(w), float(b)], [0.42, 0.8])  # 1 - 0.2, then - 0.38 of w only
        step(True)
        assert np.allclose(float(b), 0.42)  # its momentum is that of the first step

    @both_ways
    def test_of_nothing_are_refused(self, two, way):
        with two.scope():
            w = jt.Variable(1.0, name="w")
            optimizer = jt.Optimizer(optax.sgd(0.1))

        def replica_fn():
            optimizer.apply_gradients([(jt.grad(lambda: 1.0, w)(), w)])

        with pytest.raises(ValueError, match="No gradients provided for any variable"):
            two.run(way(replica_fn))

    def test_of_a_replica_without_examples_are_zeros(self, two):
        with two.scope():
            w = jt.Variable(1.0)
            optimizer = jt.Optimizer(optax.sgd(0.1))

        def replica_fn(x):
            loss = lambda: jnp.sum(w * x) if x.size else 0.0  # noqa: E731
            optimizer.apply_gradients([(jt.grad(loss, w)(), w)])

        x = two.experimental_distribute_values_from_function(
            lambda context: np.ones(1 - context.replica_id_in_sync_group, np.float32)
        )
        two.run(replica_fn, args=(x,))
        assert np.isclose(float(w), 0.9)


def test_a_value_that_all_share_is_reduced_to_itself(two):
    assert two.extended.reduce_to("MEAN", 3.0, "CPU:1") == 3.0


def test_an_array_that_is_being_computed_is_a_destination(two):
    def replica_sum(x):
        return two.extended.reduce_to("SUM", x, destinations=jnp.sum(jnp.ones(2)) * 2)

    x = two.run(lambda: jnp.float32(replica()))
    assert jt.function(replica_sum)(x) == 1


def test_replicas_that_pass_different_structures_are_told(two):
    def replica_fn():
        return jt.get_replica_context().all_reduce("SUM", [1.0] * (1 + replica()))

    with pytest.raises(RuntimeError, match="different merge calls"):
        two.run(replica_fn)


def test_a_scope_that_is_left_too_often(two):
    with pytest.raises(RuntimeError, match="more often than it was entered"):
        two.scope().__exit__(None, None, None)


def test_a_task_is_no_device():
    with pytest.raises(ValueError, match="names a task"), jt.device("/job:ps/task:1"):
        pass


def test_names_of_the_documents():
    assert jt.ValueContext is jt.experimental.ValueContext
    assert jt.InputIterator is jt.compat.v1.distribute.InputIterator
