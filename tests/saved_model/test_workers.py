"""Models that several workers save and load together."""

import numpy as np
import pytest

import jaxtribute as jt
from tests.processes._workers import Cluster
from tests.saved_model._support import Model, at, make_random, same_bits

pytestmark = pytest.mark.processes

_PROGRAM = """
    from tests.saved_model._support import Model, at, make_random

    strategy = jt.MultiWorkerMirroredStrategy()
    with strategy.scope():
        loaded = jt.saved_model.load("model")
    ids = jnp.int32([ME, 2])
    say("loaded", table=loaded.table.numpy().tolist(), seen=float(loaded.seen.numpy()))
    say("answer", y=np.asarray(loaded(ids)["y"]).tolist())

    def replica_step(ids):
        def loss_fn():
            return jnp.mean(loaded(ids)["y"] ** 2)

        loss, gradients = jt.value_and_grad(loss_fn, list(loaded.trainable_variables))()
        loaded.counted(ids)
        return loss

    jt.function(lambda ids: strategy.run(replica_step, args=(ids,)))(ids)
    say("counted", calls=int(loaded.calls.numpy()), seen=float(loaded.seen.numpy()))
    with strategy.scope():
        model = Model()
    make_random(model, seed=1)
    # The path of the first counts.
    jt.saved_model.save(model, f"saved-by-{ME}")
    if ME == 0:
        model.extra = jt.Variable(1.0)
    try:
        jt.saved_model.save(model, "other")
    except ValueError as error:
        say("refused", **said(error))
    try:
        jt.saved_model.load("missing" if ME else "model")
    except Exception as error:
        say("failed", **said(error))
    with strategy.scope():
        try:
            jt.saved_model.load("missing" if ME else "model")
        except Exception as error:
            say("failed together", **said(error))
"""


def test_workers_load_train_and_save_one_model(tmp_path):
    model = Model()
    values = make_random(model)
    jt.saved_model.save(model, tmp_path / "model")
    with Cluster(tmp_path) as cluster:
        cluster.start(_PROGRAM)
        cluster.finish()
        for index, task in enumerate(cluster.tasks):
            said = cluster.until(task, "loaded")
            assert same_bits(np.float32(said["table"]), values["table"])
            assert np.float32(said["seen"]) == values["seen"]
            answer = model(np.int32([index, 2]))["y"]
            np.testing.assert_allclose(cluster.until(task, "answer")["y"], answer, rtol=1e-5)
            counted = cluster.until(task, "counted")
            assert counted["calls"] == values["calls"] + 2
            assert counted["seen"] == pytest.approx(values["seen"] + 4, rel=1e-6)
            assert "Workers save models with different" in cluster.until(task, "refused")["text"]
        assert cluster.until("worker:1", "failed")["kind"] == "NotFoundError"
        assert not any(said["event"] == "failed" for said in cluster.said("worker:0"))
        assert cluster.until("worker:1", "failed together")["kind"] == "NotFoundError"
        together = cluster.until("worker:0", "failed together")
        assert together["kind"] == "AbortedError"
        assert "worker:1 could not read a saved model" in together["text"]
    loaded = jt.saved_model.load(tmp_path / "saved-by-0")
    for path, value in make_random(Model(), seed=1).items():
        assert same_bits(at(loaded, path).numpy(), value), path
    assert not list((tmp_path / "saved-by-1").iterdir())
    assert not (tmp_path / "other").exists()
