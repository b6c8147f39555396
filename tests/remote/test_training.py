"""Steps that workers run on variables of parameter servers: the same as in one process."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from tests.remote._training import OPTIMIZERS, Training, batches, run

Aggregation = jt.VariableAggregation


every_optimizer = pytest.mark.parametrize("transformation", OPTIMIZERS.values(), ids=OPTIMIZERS)


class TestEquality:
    """One worker computes what one process computes."""

    @every_optimizer
    @pytest.mark.parametrize("shards", [1, 2], ids=["whole", "divided"])
    def test_of_training(self, begin, transformation, shards):
        strategy, coordinator = begin(shards)
        here = Training(jt.OneDeviceStrategy("CPU:0"), transformation())
        there = Training(strategy, transformation())
        local_step, step = jt.function(here.step), jt.function(there.step)
        for batch in batches(4):
            expected = local_step(*batch)
            np.testing.assert_allclose(run(coordinator, step, *batch), expected, rtol=1e-5)
        assert len(here.state()) == len(there.state())
        for expected, got in zip(here.state(), there.state(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(there.results(), here.results(), rtol=1e-5)
        names = [v.name for v in here.optimizer.variables]
        assert [v.name for v in there.optimizer.variables] == names

    @pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
    @pytest.mark.parametrize("shards", [1, 2], ids=["whole", "divided"])
    def test_of_several_steps_in_one_closure(self, begin, name, shards, way):
        strategy, coordinator = begin(shards)
        here = Training(jt.OneDeviceStrategy("CPU:0"), OPTIMIZERS[name](), inner_steps=3)
        there = Training(strategy, OPTIMIZERS[name](), inner_steps=3)
        local_step, step = jt.function(here.step), way(there.step)
        for batch in batches(3):
            expected = local_step(*batch)
            np.testing.assert_allclose(run(coordinator, step, *batch), expected, rtol=1e-5)
        for expected, got in zip(here.state(), there.state(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(there.results(), here.results(), rtol=1e-5)

    @pytest.mark.parametrize("name", ["sgd", "adam"])
    def test_of_compiled_steps_called_in_one_closure(self, begin, name):
        strategy, coordinator = begin(shards=2)
        here = Training(jt.OneDeviceStrategy("CPU:0"), OPTIMIZERS[name](), inner_steps=2)
        there = Training(strategy, OPTIMIZERS[name](), inner_steps=2)
        local_step, step = jt.function(here.step), jt.function(there.step)

        def twice(x, y):
            step(x, y)
            return step(x, y)

        for batch in batches(2):
            local_step(*batch)
            expected = local_step(*batch)
            np.testing.assert_allclose(run(coordinator, twice, *batch), expected, rtol=1e-5)
        for expected, got in zip(here.state(), there.state(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)

    def test_of_rows_with_an_optimizer_for_each_variable(self, begin):
        labelled = optax.multi_transform(
            {"rows": optax.adagrad(0.5), "rest": optax.sgd(0.1)}, ["rest", "rows"]
        )
        results = []
        for strategy, coordinator in [(jt.OneDeviceStrategy("CPU:0"), None), begin(2)]:
            with strategy.scope():
                bias = jt.Variable(np.ones(2, np.float32))
                table = jt.Variable(np.ones((4, 2), np.float32))
                optimizer = jt.Optimizer(labelled)

            def step(strategy=strategy, bias=bias, table=table, optimizer=optimizer):
                def loss():
                    return jnp.sum((jt.nn.embedding_lookup(table, np.array([3, 0, 3])) + bias) ** 2)

                _, gradients = jt.value_and_grad(loss, [bias, table])()
                optimizer.apply_gradients(zip(gradients, [bias, table], strict=True))

            for _ in range(2):
                run(coordinator, step) if coordinator else step()
            results.append([bias.numpy(), table.numpy()])
        for here, there in zip(*results, strict=True):
            np.testing.assert_allclose(there, here, rtol=1e-5)

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            pytest.param(["a", "b"], r"made for 2 variables.*applied to 3: \['w'", id="too few"),
            pytest.param({"w": "a"}, "a list with one for each variable", id="by name"),
            pytest.param(
                lambda p: ["b" if i == 3 else "a" for i in range(len(p))],
                "a function that tells variables apart by their places",
                id="function of places",
            ),
        ],
    )
    def test_of_labels_that_do_not_fit_is_refused(self, begin, labels, message):
        transformation = optax.multi_transform({"a": optax.sgd(0.1), "b": optax.sgd(0.2)}, labels)
        strategy, _ = begin()
        training = Training(strategy, transformation)
        with pytest.raises(jt.errors.InvalidArgumentError, match=message):
            training.optimizer.build(training.model.logical)

    def test_on_the_coordinator_itself(self, strategy):
        here = Training(jt.OneDeviceStrategy("CPU:0"), optax.adam(0.1))
        there = Training(strategy, optax.adam(0.1))
        local_step, step = jt.function(here.step), jt.function(there.step)
        for batch in batches(3):
            np.testing.assert_allclose(step(*batch), local_step(*batch), rtol=1e-5)
        for expected, got in zip(here.state(), there.state(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


class TestReplicas:
    """R178."""

    @pytest.mark.parametrize(
        ("aggregation", "assigned", "added"),
        [("SUM", 3, 13), ("MEAN", 1.5, 11.5), ("ONLY_FIRST_REPLICA", 1, 11)],
    )
    def test_assign_by_aggregation(self, two_replicas, aggregation, assigned, added, way):
        strategy, coordinator = two_replicas
        with strategy.scope():
            v, w = (jt.Variable(10.0, aggregation=Aggregation[aggregation]) for _ in range(2))

        def replica_step():
            number = jt.get_replica_context().replica_id_in_sync_group
            v.assign(number + 1.0)
            w.assign_add(number + 1.0)

        run(coordinator, way(lambda: strategy.run(replica_step)))
        assert (v.numpy(), w.numpy()) == (assigned, added)

    def test_without_aggregation_are_refused(self, two_replicas, way):
        strategy, coordinator = two_replicas
        with strategy.scope():
            v = jt.Variable(10.0, name="v")
        coordinator.schedule(way(lambda: strategy.run(lambda: v.assign_add(1.0))))
        with pytest.raises(ValueError, match=r"aggregation.*'v'"):
            coordinator.join()
        assert v.numpy() == 10
        run(coordinator, lambda: v.assign_add(1.0))  # outside of run there is only one
        assert v.numpy() == 11

    def test_read_what_they_have_written(self, two_replicas, way):
        strategy, coordinator = two_replicas
        with strategy.scope():
            v = jt.Variable(10.0, aggregation=Aggregation.SUM)

        def replica_step():
            v.assign_add(jt.get_replica_context().replica_id_in_sync_group + 1.0)
            return v.value()

        def step():
            read = strategy.run(replica_step)
            return strategy.experimental_local_results(read), jnp.asarray(v)

        values, after = run(coordinator, way(step))
        assert [float(value) for value in values] == [13, 13]
        assert float(after) == v.numpy() == 13

    @pytest.mark.parametrize("name", ["sgd", "adam"])
    def test_train_as_mirrored_ones_do(self, two_replicas, name, way):
        strategy, coordinator = two_replicas
        mirrored = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        here = Training(mirrored, OPTIMIZERS[name]())
        there = Training(strategy, OPTIMIZERS[name]())

        def halves(step, x, y):
            strategy = jt.get_strategy()
            deal = strategy.experimental_distribute_values_from_function
            return step(
                deal(lambda c: x[c.replica_id_in_sync_group :: 2]),
                deal(lambda c: y[c.replica_id_in_sync_group :: 2]),
            )

        local_step, step = jt.function(here.step), way(there.step)
        for batch in batches(3):
            with mirrored.scope():
                expected = halves(local_step, *batch)
            got = run(coordinator, lambda *batch: halves(step, *batch), *batch)
            np.testing.assert_allclose(got, expected, rtol=1e-5)
        for expected, got in zip(here.state(), there.state(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(there.results(), here.results(), rtol=1e-5)

    def test_divide_datasets(self, two_replicas):
        strategy, coordinator = two_replicas
        source = strategy.experimental_distribute_dataset(jt.data.Dataset.range(8).batch(4))
        iterator = iter(coordinator.create_per_worker_dataset(source))

        @jt.function
        def step(iterator):
            sums = strategy.run(jnp.sum, args=(next(iterator),))
            return strategy.experimental_local_results(sums)

        assert [int(part) for part in run(coordinator, step, iterator)] == [1, 5]

    def test_look_up_rows_of_their_own(self, two_replicas, way):
        strategy, coordinator = two_replicas
        with strategy.scope():
            table = jt.Variable(np.arange(8, dtype=np.float32).reshape(4, 2))
            optimizer = jt.Optimizer(optax.sgd(1.0))

        def replica_step():
            number = jt.get_replica_context().replica_id_in_sync_group
            ids = jnp.asarray(number) * jnp.array([1, 3])
            loss, gradient = jt.value_and_grad(
                lambda: jnp.sum(jt.nn.embedding_lookup(table, ids)), table
            )()
            optimizer.apply_gradients([(gradient, table)])
            return loss

        losses = run(
            coordinator,
            way(lambda: strategy.experimental_local_results(strategy.run(replica_step))),
        )
        assert [float(loss) for loss in losses] == [2, 18]
        assert table.numpy()[:, 0].tolist() == [0 - 2, 2 - 1, 4, 6 - 1]

    def test_more_than_a_worker_has_devices_say_so(self, begin):
        _, coordinator = begin(replicas=99)
        with pytest.raises(ValueError, match=r"99 devices.*this one has 8"):
            run(coordinator, lambda: 1)
