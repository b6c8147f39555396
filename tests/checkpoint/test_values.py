"""What was saved is what is restored, to the last bit."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

import jaxtribute as jt
from tests.checkpoint._support import Dense, copies, same_bits

Checkpoint = jt.train.Checkpoint


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(np.float32([1.5, -0.0, np.nan, np.inf, 1e-45]), id="special floats"),
        pytest.param(np.array([0x7FC00001, 0xFF800001], np.uint32).view(np.float32), id="nans"),
        pytest.param(np.float32(3.25), id="scalar"),
        pytest.param(np.zeros((0, 3), np.float32), id="no elements"),
        pytest.param(np.zeros((3, 0), np.int32), id="no columns"),
        pytest.param(np.array([True, False]), id="bool"),
        pytest.param(np.array([-128, 127], np.int8), id="int8"),
        pytest.param(np.array([2**32 - 1], np.uint32), id="uint32"),
        pytest.param(np.array([1 + 2j], np.complex64), id="complex64"),
        pytest.param(np.array([1.5, 6e-8], np.float16), id="float16"),
        pytest.param(np.arange(60, dtype=np.float32).reshape(3, 4, 5), id="3 axes"),
        pytest.param(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)), id="columns"),
        *[
            pytest.param(np.array([1, -2, 3]).astype(dtype), id=np.dtype(dtype).name)
            for dtype in (
                ml_dtypes.bfloat16,
                ml_dtypes.int4,
                ml_dtypes.float8_e4m3fn,
                ml_dtypes.float8_e5m2,
                ml_dtypes.float8_e4m3,
            )
        ],
        pytest.param(np.array([1, 2, 3]).astype(ml_dtypes.uint4), id="uint4"),
    ],
)
def test_arrays_of_all_types_come_back_bit_by_bit(tmp_path, value):
    v = jt.Variable(value)
    before = v.numpy()
    checkpoint = Checkpoint(v=v)
    path = checkpoint.save(tmp_path / "ckpt")
    v.assign(jnp.zeros(v.shape, v.dtype))
    checkpoint.restore(path).assert_consumed()
    assert same_bits(v.numpy(), before)
    assert v.dtype == before.dtype


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(np.array([1.0, 1e-320]), id="float64"),
        pytest.param(np.array([2**62 + 1]), id="int64"),
        pytest.param(np.float64(0.1), id="number of NumPy"),
        pytest.param(np.array(7, np.int16), id="array without axes"),
    ],
)
def test_arrays_of_numpy_stay_those_of_numpy(tmp_path, value):
    path = Checkpoint(x=value).save(tmp_path / "ckpt")
    other = Checkpoint(x=np.zeros_like(value)[()])
    other.restore(path).assert_consumed()
    assert same_bits(other.x, value)
    assert type(other.x) is type(np.zeros_like(value)[()])


@pytest.mark.parametrize("value", [True, 7, -(10**30), 0.1, float("inf"), "text/ü"])
def test_numbers_and_texts_come_back_as_they_were(tmp_path, value):
    path = Checkpoint(x=value).save(tmp_path / "ckpt")
    other = Checkpoint(x=type(value)())
    other.restore(path).assert_consumed()
    assert other.x == value
    assert type(other.x) is type(value)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_keys_go_on_where_they_were(tmp_path, impl):
    key = jax.random.key(3, impl=impl)
    path = Checkpoint(key=key).save(tmp_path / "ckpt")
    other = Checkpoint(key=jax.random.key(0, impl=impl))
    other.restore(path).assert_consumed()
    assert same_bits(jax.random.uniform(other.key), jax.random.uniform(key))


def test_arrays_come_back_to_their_devices(tmp_path):
    third = jax.device_put(jnp.arange(4.0), jax.devices()[2])
    anywhere = jnp.arange(4.0)
    checkpoint = Checkpoint(a=third, b=anywhere)
    checkpoint.restore(checkpoint.save(tmp_path / "ckpt"))
    assert checkpoint.a.devices() == {jax.devices()[2]}
    assert checkpoint.a.committed
    assert not checkpoint.b.committed


class _State(NamedTuple):
    count: Any
    mu: Any


def test_structures_keep_their_types_and_lists_and_dicts_their_identity(tmp_path):
    names = {"lr": 0.5, "inner": [1, {"x": jnp.ones(2)}], "kept": None}
    checkpoint = Checkpoint(names=names, state=_State(jnp.int32(3), {"w": jnp.arange(2.0)}))
    path = checkpoint.save(tmp_path / "ckpt")
    inner = names["inner"]
    names["lr"], inner[0] = 0.1, 2
    inner[1]["x"] = jnp.zeros(2)
    checkpoint.state = _State(jnp.int32(0), {"w": jnp.zeros(2)})
    checkpoint.restore(path).assert_consumed()
    assert checkpoint.names is names
    assert names["inner"] is inner
    assert names == {"lr": 0.5, "inner": [1, {"x": inner[1]["x"]}], "kept": None}
    assert inner[1]["x"].tolist() == [1.0, 1.0]
    assert isinstance(checkpoint.state, _State)
    assert int(checkpoint.state.count) == 3
    assert checkpoint.state.mu["w"].tolist() == [0.0, 1.0]


def test_parameters_and_state_of_plain_optax_programs_can_be_kept(tmp_path):
    params = {"w": jnp.ones(3)}
    state = optax.adam(0.1).init(params)
    path = Checkpoint(params=params, state=state).save(tmp_path / "ckpt")
    other = Checkpoint(params={"w": jnp.zeros(3)}, state=optax.adam(0.1).init(params))
    other.restore(path).assert_consumed()
    assert jax.tree.structure(other.state) == jax.tree.structure(state)
    assert other.params["w"].tolist() == [1.0, 1.0, 1.0]


def test_modules_in_modules_lists_and_dicts_are_followed(tmp_path):
    class Model(jt.Module):
        def __init__(self, fill):
            super().__init__()
            self.layers = [Dense(fill=fill), Dense(fill=fill + 1)]
            self.heads = {"a/b": Dense(fill=fill + 2), 3: (jt.Variable(fill),)}
            self.units = 5  # not state

    model = Model(1.0)
    path = Checkpoint(model=model).save(tmp_path / "ckpt")
    other = Model(0.0)
    other.units = 6
    Checkpoint(model=other).restore(path).assert_consumed()
    assert [v.numpy().tolist() for v in other.variables] == [
        v.numpy().tolist() for v in model.variables
    ]
    assert other.units == 6


def test_the_names_are_the_ways_to_the_objects(tmp_path):
    path = Checkpoint(model=Dense(fill=4.0)).save(tmp_path / "ckpt")
    w, b = jt.Variable(jnp.zeros((3, 2))), jt.Variable(jnp.zeros(2))
    Checkpoint(model={"w": w, "b": b}).restore(path).assert_consumed()
    assert copies(b) == [[4.0, 4.0]]


def test_the_attributes_of_the_root_are_those_of_the_checkpoint(tmp_path):
    path = Checkpoint(Dense(fill=4.0), step=7).save(tmp_path / "ckpt")
    w, b = jt.Variable(jnp.zeros((3, 2))), jt.Variable(jnp.zeros(2))
    other = Checkpoint(w=w, b=b, step=0)
    other.restore(path).assert_consumed()
    assert (copies(b), other.step) == ([[4.0, 4.0]], 7)


def test_checkpoints_may_be_nested(tmp_path):
    inner = Checkpoint(v=jt.Variable(3.0), n=5)
    path = Checkpoint(inner=inner).save(tmp_path / "ckpt")
    other = Checkpoint(v=jt.Variable(0.0), n=0)
    Checkpoint(inner=other).restore(path).assert_consumed()
    assert (float(other.v), other.n) == (3.0, 5)


def test_an_object_with_two_names_is_restored_by_either(tmp_path):
    model = Dense(fill=2.0)
    model.self = model  # nor does going in circles matter
    path = Checkpoint(a=model, b={"again": model, "w": model.w}).save(tmp_path / "ckpt")
    for name in ("a", "b"):
        other = Dense()
        objects = other if name == "a" else {"again": other}
        Checkpoint(**{name: objects}).restore(path).assert_existing_objects_matched()
        assert copies(other.b) == [[2.0, 2.0]], name
    both = Dense()
    path = Checkpoint(z=Dense(fill=9.0)).save(tmp_path / "other")
    Checkpoint(y=both, z=both).restore(path).assert_consumed()
    assert copies(both.b) == [[9.0, 9.0]]


class TestNumbers:
    def test_checkpoints_are_counted(self, tmp_path):
        checkpoint = Checkpoint(v=jt.Variable(1.0))
        assert checkpoint.save_counter == 0
        assert checkpoint.save(tmp_path / "ckpt") == str(tmp_path / "ckpt-1")
        assert checkpoint.save(str(tmp_path / "ckpt")) == str(tmp_path / "ckpt-2")
        assert checkpoint.save_counter == 2

    def test_counting_goes_on_from_what_was_restored(self, tmp_path):
        first = Checkpoint(v=jt.Variable(1.0))
        for _ in range(3):
            path = first.save(tmp_path / "ckpt")
        other = Checkpoint(v=jt.Variable(0.0))
        other.restore(path)
        assert other.save(tmp_path / "ckpt") == str(tmp_path / "ckpt-4")

    def test_write_and_read_do_not_count(self, tmp_path):
        first = Checkpoint(v=jt.Variable(1.0))
        first.save(tmp_path / "ckpt")
        assert first.write(tmp_path / "best") == str(tmp_path / "best")
        assert first.save_counter == 1
        other = Checkpoint(v=jt.Variable(0.0))
        other.read(tmp_path / "best").assert_consumed()
        assert (other.save_counter, float(other.v)) == (0, 1.0)

    def test_a_failed_save_is_not_counted(self, tmp_path):
        checkpoint = Checkpoint(v=jt.Variable(1.0))
        (tmp_path / "ckpt-1").write_text("in the way")
        with pytest.raises(jt.errors.AlreadyExistsError, match=r"ckpt-1.*is a file"):
            checkpoint.save(tmp_path / "ckpt")
        assert checkpoint.save_counter == 0
        assert [p.name for p in tmp_path.iterdir()] == ["ckpt-1"]


def test_training_may_go_on_before_what_was_saved_is_looked_at(tmp_path):
    v = jt.Variable(jnp.arange(4.0))
    step = jt.function(lambda: v.assign_add(jnp.ones(4)))
    step()
    path = Checkpoint(v=v).save(tmp_path / "ckpt")
    for _ in range(3):
        step()
    Checkpoint(v=v).restore(path)
    assert copies(v) == [[1.0, 2.0, 3.0, 4.0]]
    step()
    assert copies(v) == [[2.0, 3.0, 4.0, 5.0]]
