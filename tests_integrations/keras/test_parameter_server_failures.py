"""fit under parameter servers when data is bad, and workers or servers are lost."""

import keras
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.coordinator import ClusterCoordinator
from tests_integrations.keras._plain import X, Y, classifier
from tests_integrations.keras.test_parameter_server_fit import counting


@pytest.fixture
def cluster():
    with jt.testing.LocalCluster(workers=2, ps=2) as cluster:
        yield cluster


def batches(count, at=None, event=None):
    """Deliver batches, and have something happen in the middle."""
    for number in range(count):
        if number == at:
            event()
        yield X[number % 20 : number % 20 + 2], Y[number % 20 : number % 20 + 2]


def test_killed_workers_cost_no_example():
    with jt.testing.ProcessCluster(workers=2, ps=1) as cluster:
        strategy = cluster.strategy()
        with strategy.scope():
            model = counting()

        def kill():
            cluster.kill("worker:0")

        def kill_and_start():
            cluster.start("worker:0")
            cluster.kill("worker:1")

        history = model.fit(batches(150, 100, kill), verbose=0).history
        assert history["count"] == [300]
        history = model.fit(batches(150, 100, kill_and_start), verbose=0).history
        assert history["count"] == [300]
        assert int(model.optimizer.iterations) == 300
        assert model.predict(X, verbose=0).shape == (22, 3)


def test_an_error_of_a_step_is_raised_by_fit_and_the_model_goes_on(cluster):
    strategy = cluster.strategy()

    @keras.saving.register_keras_serializable(package="failures")
    class Picky(keras.layers.Layer):
        def call(self, x):
            if x.shape[0] == 5:
                raise ZeroDivisionError("five examples")
            return x

    with strategy.scope():
        model = classifier(Picky())
    with pytest.raises(ZeroDivisionError, match="five examples"):
        model.fit(X[:20], Y[:20], batch_size=5, verbose=0)
    done = int(model.optimizer.iterations)
    model.fit(X, Y, batch_size=11, verbose=0)
    assert int(model.optimizer.iterations) == done + 2
    with pytest.raises(ZeroDivisionError, match="five examples"):
        model.predict(X[:15], batch_size=5, verbose=0)
    assert model.predict(X, verbose=0).shape == (22, 3)


def test_an_error_of_the_data_leaves_nothing_running(cluster):
    strategy = cluster.strategy()
    with strategy.scope():
        model = classifier()

    def fail():
        raise KeyError("no such file")

    with pytest.raises(KeyError, match="no such file"):
        model.fit(batches(20, 10, fail), verbose=0)
    assert ClusterCoordinator(strategy).done()
    assert int(model.optimizer.iterations) == 10


def test_a_lost_server_is_named(cluster):
    strategy = cluster.strategy()
    with strategy.scope():
        model = classifier()
    model.fit(X, Y, verbose=0)
    with pytest.raises(jt.errors.PSUnavailableError, match="ps:1"):
        model.fit(batches(10_000, 5, lambda: cluster.kill("ps:1")), verbose=0)


def test_numbers_that_are_not_finite_are_reported_as_they_are(cluster):
    strategy = cluster.strategy()
    with strategy.scope():
        model = classifier()
    history = model.fit(np.full_like(X, np.nan), Y, verbose=0).history
    assert np.isnan(history["loss"]).all()
