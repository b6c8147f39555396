"""Objects that come into being after a checkpoint was restored: they get their values in time."""

import gc
import threading
from contextlib import nullcontext

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from zmq.utils import garbage

import jaxtribute as jt
from jaxtribute.testing import LocalCluster
from jaxtribute.variables import _awaited, _frames
from tests.checkpoint._support import strategy

Checkpoint = jt.train.Checkpoint
AT_ONCE = jt.train.CheckpointOptions(enable_async=False)


class Dense(jt.Module):
    def __init__(self, fill=0.0):
        super().__init__()
        self.w = jt.Variable(jnp.full(2, fill))


class Lazy(jt.Module):
    """A module that creates its variable, and a metric, when it is first called."""

    def __call__(self, x):
        if not hasattr(self, "w"):
            self.w = jt.Variable(jnp.zeros(2), aggregation=jt.VariableAggregation.MEAN)
        return x * self.w.value()


def value_of(variable):
    return float(np.asarray(variable.numpy()).reshape(-1)[0])


@pytest.fixture
def saved(tmp_path):
    """Return the path of a checkpoint of a model with everything that may be created later."""
    model = jt.Module()
    model.head = Dense(1.0)
    model.layers = [Dense(2.0), [Dense(3.0)]]
    model.named = {"a": Dense(4.0)}
    model.table = jt.Variable(np.full((5, 2), 5.0, np.float32))
    model.mean = jt.metrics.Mean()
    model.mean.update_state(6.0)
    optimizer = jt.Optimizer(optax.adam(0.1))
    optimizer.build([model.head.w])
    optimizer.iterations.assign(7)
    optimizer.variables[2].assign(jnp.full(2, 8.0))
    return Checkpoint(model=model, optimizer=optimizer, step=9).save(tmp_path / "ckpt", AT_ONCE)


@pytest.fixture(scope="module")
def cluster():
    garbage.gc.store(object())  # starts the thread of pyzmq that frees what was sent, and stays
    partitioner = jt.experimental.partitioners.FixedShardsPartitioner(2)
    with LocalCluster(workers=1, ps=2, variable_partitioner=partitioner) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _nothing_waits_afterwards():
    yield
    gc.collect()
    assert not _awaited.is_waiting()
    assert _frames.before_access is None


def begin(saved, **objects):
    model = jt.Module()
    model.layers, model.named = [], {}
    checkpoint = Checkpoint(model=model, **objects)
    return model, checkpoint, checkpoint.restore(saved).expect_partial()


class TestReadAtOnce:
    """What is given to an object has its value when it is read for the first time."""

    def test_attributes_of_modules(self, saved):
        model, _, _ = begin(saved)
        model.head = Dense()
        assert value_of(model.head.w) == 1.0

    def test_variables_of_modules_that_are_attached_already(self, saved):
        model, _, _ = begin(saved)
        model.head = jt.Module()
        model.head.w = jt.Variable(jnp.zeros(2))
        assert value_of(model.head.w) == 1.0

    def test_in_lists_and_dicts(self, saved):
        model, _, _ = begin(saved)
        model.layers.append(Dense())
        assert value_of(model.layers[0].w) == 2.0
        model.layers.append([])
        assert value_of(model.layers[0].w) == 2.0
        model.layers[1].append(Dense())
        assert value_of(model.layers[1][0].w) == 3.0
        model.named["a"] = Dense()
        assert value_of(model.named["a"].w) == 4.0

    def test_what_existed_and_was_used_before(self, saved):
        head, layer = Dense(), Dense()
        model, _, _ = begin(saved)
        model.layers.append(None)  # in whose place it comes
        for each in (head, layer):
            each.w.assign_add([10.0, 10.0])
        model.head = head
        model.layers[0] = layer
        assert [value_of(each.w) for each in (head, layer)] == [1.0, 2.0]

    def test_assigning_goes_on_from_there(self, saved):
        model, _, _ = begin(saved)
        model.layers.append(Dense())
        model.layers[0].w.assign_add([0.5, 0.5])
        assert value_of(model.layers[0].w) == 2.5

    def test_a_program_that_is_compiled_already(self, saved):
        layer = Dense()
        model, _, _ = begin(saved)
        double = jt.function(lambda: layer.w * 2)
        assert float(double()[0]) == 0.0
        model.layers.append(layer)
        assert float(double()[0]) == 4.0

    def test_lists_that_the_checkpoint_itself_holds(self, tmp_path):
        path = Checkpoint(models=[Dense(1.0)], inner=Checkpoint(v=jt.Variable(2.0), n=3)).save(
            tmp_path / "ckpt", AT_ONCE
        )
        checkpoint = Checkpoint(models=[], inner=Checkpoint())
        status = checkpoint.restore(path)
        checkpoint.models.append(Dense())
        assert value_of(checkpoint.models[0].w) == 1.0
        checkpoint.inner.v = jt.Variable(0.0)
        assert value_of(checkpoint.inner.v) == 2.0
        checkpoint.inner.n = 0
        assert checkpoint.inner.n == 3
        status.assert_consumed()

    def test_metrics(self, saved):
        model, _, _ = begin(saved)
        model.mean = jt.metrics.Mean()
        assert float(model.mean.result()) == 6.0

    def test_iterators(self, tmp_path):
        model = jt.Module()
        model.input = iter(jt.data.Dataset.range(5))
        next(model.input)
        path = Checkpoint(model=model).save(tmp_path / "ckpt", AT_ONCE)
        model = jt.Module()
        checkpoint = Checkpoint(model=model)
        checkpoint.restore(path)
        model.input = iter(jt.data.Dataset.range(5))
        assert int(next(model.input)) == 1

    def test_modules_of_nnx(self, tmp_path):
        class Net(nnx.Module):
            def __init__(self):
                self.layers = nnx.List([])

        def grown(net, seed):
            net.head = nnx.Linear(2, 2, rngs=nnx.Rngs(seed))
            net.layers.append(nnx.Linear(2, 2, rngs=nnx.Rngs(seed + 1)))
            return net

        made = grown(Net(), 0)
        path = Checkpoint(net=made).save(tmp_path / "ckpt", AT_ONCE)
        net = Net()
        checkpoint = Checkpoint(net=net)
        status = checkpoint.restore(path)
        grown(net, 5)
        for own, other in ((net.head, made.head), (net.layers[0], made.layers[0])):
            np.testing.assert_array_equal(own.kernel[...], other.kernel[...])
        status.assert_consumed()

    def test_of_a_checkpoint_that_nobody_has_any_more(self, saved):
        model = jt.Module()
        model.layers = []
        Checkpoint(model=model).restore(saved).expect_partial()
        gc.collect()
        model.head = Dense()
        model.layers.append(Dense())
        assert [value_of(model.head.w), value_of(model.layers[0].w)] == [1.0, 2.0]

    def test_from_another_thread(self, saved):
        model, _, _ = begin(saved)
        model.layers.append(Dense())
        read = []
        threads = [
            threading.Thread(target=lambda: read.append(value_of(model.layers[0].w)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert read == [2.0] * 4


class TestOptimizers:
    def test_are_built_as_soon_as_their_variables_are_there(self, saved):
        model, checkpoint, _ = begin(saved, optimizer=jt.Optimizer(optax.adam(0.1)))
        assert not checkpoint.optimizer.is_built
        model.head = Dense()
        assert int(checkpoint.optimizer.iterations) == 7
        assert value_of(checkpoint.optimizer.variables[2]) == 8.0

    @pytest.mark.parametrize("name", ["default", "2"])
    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_whose_variables_are_no_part_of_the_checkpoint(self, name, compiled, tmp_path):
        def make():
            with strategy(name).scope():
                v = jt.Variable(jnp.zeros(2))
                optimizer = jt.Optimizer(optax.sgd(1.0, momentum=0.5))

            def replica_step():
                optimizer.apply_gradients([(jnp.ones(2) / replicas, v)])

            replicas = strategy(name).num_replicas_in_sync

            def step():
                strategy(name).run(replica_step)

            return v, optimizer, jt.function(step) if compiled else step

        _, optimizer, step = make()
        step()
        path = Checkpoint(optimizer=optimizer).save(tmp_path / "ckpt", AT_ONCE)
        v, optimizer, step = make()
        checkpoint = Checkpoint(optimizer=optimizer)
        status = checkpoint.restore(path)
        step()  # builds the optimizer
        assert value_of(v) == -1.5
        status.assert_consumed()


@pytest.mark.parametrize("name", ["default", "one device", "2"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_module_that_creates_its_variables_in_a_step(name, compiled, tmp_path):
    first = Lazy()
    first(jnp.ones(2))
    first.w.assign([3.0, 4.0])
    path = Checkpoint(model=first).save(tmp_path / "ckpt", AT_ONCE)
    model = Lazy()
    checkpoint = Checkpoint(model=model)
    status = checkpoint.restore(path)
    own = strategy(name)
    with own.scope() if name != "default" else nullcontext():

        def step():
            return own.run(lambda: model(jnp.ones(2)))

        result = (jt.function(step) if compiled else step)()
    local = own.experimental_local_results(result)
    assert [each.tolist() for each in local] == [[3.0, 4.0]] * len(local)
    status.assert_consumed()


def test_a_step_that_fails_does_not_undo_it(tmp_path):
    path = Checkpoint(model=Dense(3.0)).save(tmp_path / "ckpt", AT_ONCE)
    model = Lazy()
    checkpoint = Checkpoint(model=model)
    checkpoint.restore(path)

    def failing():
        model(jnp.ones(2))
        raise ZeroDivisionError

    with strategy("2").scope(), pytest.raises(ZeroDivisionError):
        strategy("2").run(failing)
    assert value_of(model.w) == 3.0


class TestOnServers:
    def test_variables_have_their_values_when_workers_use_them(self, cluster, saved):
        strategy = cluster.strategy()
        coordinator = cluster.coordinator(strategy)
        with strategy.scope():
            model, checkpoint, _ = begin(saved, optimizer=jt.Optimizer(optax.adam(0.1)))
            model.table = jt.Variable(np.zeros((5, 2), np.float32))
            model.layers.append(Dense())
            table, layer, mean = model.table, model.layers[0], jt.metrics.Mean()
            model.mean = mean
            model.head = Dense()
        head, optimizer = model.head, checkpoint.optimizer

        def step():
            optimizer.apply_gradients([(jnp.zeros(2), head.w)])
            return table.numpy(), layer.w.value(), mean.result()

        found = coordinator.schedule(step)
        coordinator.join()
        assert [float(np.asarray(each).reshape(-1)[-1]) for each in found.fetch()] == [
            5.0,
            2.0,
            6.0,
        ]
        assert int(optimizer.iterations) == 8
        assert value_of(optimizer.variables[2]) == pytest.approx(0.9 * 8.0)
        coordinator.close()

    def test_an_optimizer_that_workers_built_is_too_late(self, cluster, tmp_path):
        strategy = cluster.strategy()
        coordinator = cluster.coordinator(strategy)

        def make():
            with strategy.scope():
                return jt.Variable(0.0), jt.Optimizer(optax.sgd(1.0, momentum=0.5))

        v, optimizer = make()
        optimizer.apply_gradients([(jnp.float32(1), v)])
        path = Checkpoint(optimizer=optimizer).save(tmp_path / "ckpt", AT_ONCE)
        w, optimizer = make()
        checkpoint = Checkpoint(optimizer=optimizer)
        checkpoint.restore(path)
        coordinator.schedule(lambda: optimizer.apply_gradients([(jnp.float32(1), w)]))
        with pytest.raises(jt.errors.FailedPreconditionError, match="'optimizer/state"):
            coordinator.join()
            checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        coordinator.close()


class TestTold:
    def test_what_does_not_fit_is_an_error_where_it_is_attached(self, saved):
        model, _, _ = begin(saved)
        with pytest.raises(jt.errors.InvalidArgumentError, match=r"'model/table' has shape"):
            model.table = jt.Variable(np.zeros((4, 2), np.float32))

    def test_saving_restores_what_is_new_first(self, saved, tmp_path):
        model, checkpoint, _ = begin(saved)
        model.layers.append(Dense())
        path = checkpoint.save(tmp_path / "other")
        assert jt.train.load_variable(path, "model/layers/0/w").tolist() == [2.0, 2.0]

    def test_values_that_nobody_asked_for_are_told_of_when_others_are_saved(
        self, saved, tmp_path, caplog
    ):
        model = jt.Module()
        checkpoint = Checkpoint(model=model, step=0)
        status = checkpoint.restore(saved)
        model.head = Dense()
        for _ in range(2):
            path = checkpoint.save(tmp_path / "other", AT_ONCE)
        (said,) = [r.getMessage() for r in caplog.records if "are not in" in r.getMessage()]
        assert "'model/layers/0/w'" in said
        assert "'model/head/w'" not in said
        assert path.endswith("other-3")
        with pytest.raises(AssertionError, match="'model/layers/0/w'"):
            status.assert_consumed()

    def test_or_when_the_checkpoint_goes(self, saved, caplog):
        checkpoint = Checkpoint(step=0)
        checkpoint.restore(saved)
        del checkpoint
        gc.collect()
        assert "values for 'model/head/w'" in caplog.text
        assert "were never used" in caplog.text

    @pytest.mark.parametrize("how", ["expected", "all used", "restored again"])
    def test_but_not_if(self, saved, how, caplog):
        checkpoint = Checkpoint(step=0)
        status = checkpoint.restore(saved)
        if how == "restored again":
            status = checkpoint.restore(saved)
        if how == "all used":
            model = jt.Module()
            model.layers, model.named = [Dense(), [Dense()]], {"a": Dense()}
            model.head, model.mean = Dense(), jt.metrics.Mean()
            model.table = jt.Variable(np.zeros((5, 2), np.float32))
            checkpoint.optimizer = jt.Optimizer(optax.adam(0.1))
            checkpoint.model = model
            status.assert_consumed()
        else:
            status.expect_partial()
        del checkpoint, status
        gc.collect()
        assert "never used" not in caplog.text

    def test_what_came_unseen_is_not_saved_with_another_value(self, saved, tmp_path):
        model = jt.Module()
        checkpoint = Checkpoint(model=model)
        status = checkpoint.restore(saved)
        vars(model)["head"] = Dense()  # which tells nobody
        with pytest.raises(
            jt.errors.FailedPreconditionError, match=r"'model/head/w' came into being after"
        ):
            checkpoint.save(tmp_path / "other")
        status.assert_existing_objects_matched()
        checkpoint.save(tmp_path / "other", AT_ONCE)
        assert value_of(model.head.w) == 1.0
        status.expect_partial()
