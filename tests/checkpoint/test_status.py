"""What is left over, what comes later, and what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.checkpoint._support import Dense, copies, on_read, strategy

Checkpoint = jt.train.Checkpoint


@pytest.fixture
def saved(tmp_path):
    """Return the path of a checkpoint of `model/w`, `model/b` and `step`."""
    return Checkpoint(model=Dense(fill=4.0), step=7).save(tmp_path / "ckpt")


class TestLeftOver:
    def test_everything_matches(self, saved):
        status = Checkpoint(model=Dense(), step=0).restore(saved)
        assert status.assert_consumed() is status
        assert status.assert_existing_objects_matched() is status
        assert status.assert_nontrivial_match() is status

    def test_a_value_without_an_object(self, saved):
        status = Checkpoint(model=Dense()).restore(saved)
        status.assert_existing_objects_matched()
        with pytest.raises(
            AssertionError, match=r"no object was there for: 'step'.*expect_partial"
        ):
            status.assert_consumed()
        status.expect_partial().assert_existing_objects_matched()

    def test_an_object_without_a_value(self, saved, caplog):
        new = jt.Variable(1.5)
        model = Dense()
        status = Checkpoint(model=model, step=0, new=new).restore(saved)
        assert "no values for 'new', which keep those they had" in caplog.text
        assert (float(new), copies(model.b)) == (1.5, [[4.0, 4.0]])
        for check in (status.assert_consumed, status.assert_existing_objects_matched):
            with pytest.raises(AssertionError, match=r"no values for 'new'.*It has 'model/b'"):
                check()
        status.assert_nontrivial_match()

    def test_nothing_in_common(self, saved):
        status = Checkpoint(other=Dense()).restore(saved)
        with pytest.raises(AssertionError, match=r"Nothing was restored.*'model/b'"):
            status.assert_nontrivial_match()

    def test_no_checkpoint_at_all(self, tmp_path):
        checkpoint = Checkpoint(model=Dense(fill=1.0))
        status = checkpoint.restore(jt.train.latest_checkpoint(tmp_path))
        assert copies(checkpoint.model.b) == [[1.0, 1.0]]
        assert status.expect_partial() is status
        for check in (status.assert_consumed, status.assert_nontrivial_match):
            with pytest.raises(AssertionError, match="No checkpoint was given"):
                check()


class TestLater:
    def test_an_object_given_to_the_checkpoint_later_gets_its_value_then(self, saved):
        checkpoint = Checkpoint(step=0)
        status = checkpoint.restore(saved)
        model = Dense()
        checkpoint.model = model
        assert copies(model.b) == [[4.0, 4.0]]
        status.assert_consumed()

    def test_attributes_set_again_are_not_restored_again(self, saved):
        checkpoint = Checkpoint(step=0)
        checkpoint.restore(saved)
        checkpoint.step += 1
        assert checkpoint.step == 8


def _module(**attributes):
    module = jt.Module()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


W = np.zeros((3, 2), np.float32)
B = np.zeros(2, np.float32)

_MISFITS = [
    pytest.param(
        lambda: {"model": _module(w=jt.Variable(W.T), b=jt.Variable(B))},
        r"'model/w' has shape \(3, 2\) and dtype float32 in the checkpoint, and shape \(2, 3\)",
        id="shape",
    ),
    pytest.param(
        lambda: {"model": _module(w=jt.Variable(W), b=jt.Variable(B.astype(np.int32)))},
        r"'model/b' has .* float32 in the checkpoint, and shape \(2,\) and dtype int32 here",
        id="type",
    ),
    pytest.param(
        lambda: {"model": _module(w=jt.Variable(W), b=jt.Variable(B.astype(jnp.bfloat16)))},
        r"'model/b' has .* float32 in the checkpoint, and .* bfloat16 here",
        id="type that could be converted",
    ),
    pytest.param(
        lambda: {"model": Dense(), "step": 0.0},
        "'step' is 7 in the checkpoint, and 0.0 here: another type",
        id="type of a number",
    ),
    pytest.param(
        lambda: {"model": Dense(), "step": jt.Variable(0)},
        "'step' is a number or text in the checkpoint, and an array here",
        id="number for a variable",
    ),
    pytest.param(
        lambda: {"model": Dense(), "step": iter(jt.data.Dataset.range(3))},
        "'step' is a number or text in the checkpoint, and an iterator here",
        id="number for an iterator",
    ),
    pytest.param(
        lambda: {"model": {"w": jt.Variable(W), "b": jax.random.key(0)}},
        "'model/b' is no random key in the checkpoint, and a random key of",
        id="array for a random key",
    ),
]


@pytest.mark.parametrize(("objects", "message"), _MISFITS)
def test_what_does_not_fit_is_named_and_nothing_is_restored(saved, objects, message):
    checkpoint = Checkpoint(**objects())
    variables = [v for v in jax.tree.leaves(vars(checkpoint)) if isinstance(v, jt.Variable)]
    if isinstance(checkpoint.model, jt.Module):
        variables += checkpoint.model.variables
    with pytest.raises(jt.errors.InvalidArgumentError, match=message) as raised:
        checkpoint.restore(saved)
    assert "nothing was restored" in str(raised.value)
    assert all(not np.any(v.numpy()) for v in variables)
    assert checkpoint.save_counter == 0


def test_a_variable_that_cannot_be_divided_is_refused(saved):
    with strategy("2").scope():
        b = on_read(B, "NONE")
        w = jt.Variable(W)
    with pytest.raises(jt.errors.InvalidArgumentError, match=r"'model/b' is a variable.*NONE"):
        Checkpoint(model={"b": b, "w": w}).restore(saved)
    assert not np.any(w.numpy())


def test_the_state_of_another_dataset_is_refused_and_variables_stay(tmp_path):
    path = Checkpoint(a=jt.Variable(1.0), it=iter(jt.data.Dataset.range(5))).save(tmp_path / "ckpt")
    v, other = jt.Variable(0.0), iter(jt.data.Dataset.range(6).batch(2))
    good = iter(jt.data.Dataset.range(5))
    next(good), next(other)
    checkpoint = Checkpoint(a=v, it=other)
    with pytest.raises(jt.errors.InvalidArgumentError, match="this one is of"):
        checkpoint.restore(path)
    assert float(v) == 0.0
    assert next(other).tolist() == [2, 3]


def test_iterators_are_put_back_when_a_later_one_is_refused(tmp_path):
    path = Checkpoint(a=iter(jt.data.Dataset.range(5)), b=iter(jt.data.Dataset.range(5))).save(
        tmp_path / "ckpt"
    )
    a, b = iter(jt.data.Dataset.range(5)), iter(jt.data.Dataset.range(6).batch(2))
    next(a)
    with pytest.raises(jt.errors.InvalidArgumentError):
        Checkpoint(a=a, b=b).restore(path)
    assert int(next(a)) == 1


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        pytest.param({"x": object()}, "cannot keep 'x', which is <object", id="object"),
        pytest.param({"x": {"y": [print]}}, "cannot keep 'x/y/0', which is <built", id="function"),
        pytest.param({"x": np.array(["text"])}, "cannot keep 'x'", id="array of texts"),
        pytest.param({"x": 1j}, "cannot keep 'x'", id="complex number"),
        pytest.param({"save": 1}, "cannot be called 'save'", id="method"),
        pytest.param({"save_counter": 1}, "cannot be called 'save_counter'", id="property"),
        pytest.param({"_x": 1}, "start with an underscore, such as '_x'", id="private"),
        pytest.param({"root": jt.train.latest_checkpoint}, "The root of a", id="root"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_once(objects, message):
    with pytest.raises(ValueError, match=message):
        Checkpoint(**objects)


def test_values_of_replicas_are_refused():
    value = strategy("2").run(lambda: jnp.ones(()))
    with pytest.raises(ValueError, match=r"cannot keep 'x'.*PerReplica"):
        Checkpoint(x=value)


def test_two_things_with_one_name_are_refused(tmp_path):
    checkpoint = Checkpoint(Dense(), w=jt.Variable(1.0))
    with pytest.raises(ValueError, match="Two different things would have the name 'w'"):
        checkpoint.save(tmp_path / "ckpt")


def test_copies_that_nothing_says_how_to_combine_are_not_saved(tmp_path):
    with strategy("2").scope():
        v = on_read(1.0, "NONE")
    with pytest.raises(ValueError, match=r"'metrics/v' cannot be saved.*VariableAggregation.NONE"):
        Checkpoint(metrics={"v": v}).save(tmp_path / "ckpt")
    assert list(tmp_path.iterdir()) == []


class TestInside:
    def test_a_compiled_function(self, tmp_path):
        checkpoint = Checkpoint(v=jt.Variable(1.0))
        with pytest.raises(RuntimeError, match="saved inside a compiled function"):
            jt.function(lambda: checkpoint.save(tmp_path / "ckpt"))()
        with pytest.raises(RuntimeError, match="restored inside a compiled function"):
            jt.function(lambda: checkpoint.restore(tmp_path / "ckpt-1"))()

    def test_a_replica(self, tmp_path):
        with strategy("2").scope():
            checkpoint = Checkpoint(v=jt.Variable(1.0))
        with pytest.raises(RuntimeError, match="saved inside a replica"):
            strategy("2").run(lambda: checkpoint.save(tmp_path / "ckpt"))


def test_other_kinds_of_addresses_are_refused():
    checkpoint = Checkpoint(v=jt.Variable(1.0))
    for use in (checkpoint.save, checkpoint.write, checkpoint.restore):
        with pytest.raises(ValueError, match="gs://bucket/ckpt"):
            use("gs://bucket/ckpt")
