"""`jt.variable_creator_scope` and `jt.device`."""

import jax
import jax.numpy as jnp
import pytest

import jaxtribute as jt
from tests.variables._support import SUM, components, mirrored, one_device


def device_of(array):
    (device,) = array.devices()
    return device.id


class TestCreators:
    def test_are_called_from_the_inside_out(self):
        calls = []

        def creator(name):
            def create(next_creator, **kwargs):
                calls.append((name, kwargs["name"]))
                return next_creator(**(kwargs | {"name": f"{kwargs['name']}/{name}"}))

            return create

        with jt.variable_creator_scope(creator("outer")):
            with jt.variable_creator_scope(creator("inner")):
                v = jt.Variable(1.0, name="v")
            w = jt.Variable(1.0, name="w")
        u = jt.Variable(1.0, name="u")
        assert calls == [("inner", "v"), ("outer", "v/inner"), ("outer", "w")]
        assert [v.name, w.name, u.name] == ["v/inner/outer", "w/outer", "u"]

    def test_see_the_arguments_by_name(self):
        seen = []

        def create(next_creator, **kwargs):
            seen.append(kwargs)
            return next_creator(**kwargs)

        with jt.variable_creator_scope(create):
            jt.Variable(1.0, False, "v", aggregation=SUM)
        (kwargs,) = seen
        assert kwargs == {
            "initial_value": 1.0,
            "trainable": False,
            "name": "v",
            "aggregation": SUM,
        }

    def test_may_return_something_else(self):
        with jt.variable_creator_scope(lambda next_creator, **kwargs: "nothing of the kind"):
            assert jt.Variable(1.0) == "nothing of the kind"

    def test_may_fail(self):
        def create(next_creator, **kwargs):
            raise ZeroDivisionError("mine")

        with (
            jt.variable_creator_scope(create),
            pytest.raises(ZeroDivisionError, match="mine"),
        ):
            jt.Variable(1.0)
        assert jt.Variable(1.0).numpy() == 1

    @pytest.mark.parametrize("inside", [False, True])
    def test_with_a_strategy(self, inside):
        strategy = mirrored(2)

        def frozen(next_creator, **kwargs):
            return next_creator(**(kwargs | {"trainable": False}))

        if inside:
            with strategy.scope(), jt.variable_creator_scope(frozen):
                v = jt.Variable(1.0)
        else:
            with jt.variable_creator_scope(frozen), strategy.scope():
                v = jt.Variable(1.0)
        assert type(v) is jt.MirroredVariable
        assert not v.trainable

    def test_in_replicas(self):
        strategy = mirrored(2)
        made = []

        def renamed(next_creator, **kwargs):
            return next_creator(**(kwargs | {"name": "renamed"}))

        with jt.variable_creator_scope(renamed):
            strategy.run(lambda: made.append(jt.Variable(1.0)))
        assert {v.name for v in made} == {"renamed"}
        assert components(made[0]) == [1, 1]

    def test_in_functions(self):
        made = []

        def frozen(next_creator, **kwargs):
            return next_creator(**(kwargs | {"trainable": False}))

        @jt.function
        def step():
            if not made:
                with jt.variable_creator_scope(frozen):
                    made.append(jt.Variable(1.0))
            return made[0] + 1

        assert step() == 2
        assert not made[0].trainable

    def test_closed_out_of_order(self):
        """R8."""
        strategy = mirrored(2)
        creator = jt.variable_creator_scope(lambda next_creator, **kwargs: next_creator(**kwargs))
        scope = strategy.scope()
        scope.__enter__()
        creator.__enter__()
        with pytest.raises(RuntimeError, match="nesting error"):
            scope.__exit__(None, None, None)
        assert not jt.has_strategy()
        with pytest.raises(RuntimeError, match="nesting error"):
            creator.__exit__(None, None, None)

    def test_a_device_closed_out_of_order(self):
        """R8."""
        strategy = mirrored(2)
        before = device_of(jnp.ones(1))
        device, scope = jt.device("CPU:1"), strategy.scope()
        scope.__enter__()
        device.__enter__()
        with pytest.raises(RuntimeError, match="nesting error"):
            scope.__exit__(None, None, None)
        with pytest.raises(RuntimeError, match="nesting error"):
            device.__exit__(None, None, None)
        assert device_of(jnp.ones(1)) == before
        assert not jt.has_strategy()

    def test_an_error_inside_is_not_hidden(self):
        with (
            pytest.raises(ZeroDivisionError, match="mine"),
            mirrored(2).scope(),
            jt.device("CPU:1"),
            jt.variable_creator_scope(lambda next_creator, **kwargs: next_creator(**kwargs)),
        ):
            raise ZeroDivisionError("mine")
        assert not jt.has_strategy()


class TestDevice:
    @pytest.mark.parametrize(
        "name",
        [
            "CPU:3",
            "/cpu:3",
            "cpu:3",
            "/device:CPU:3",
            "/job:localhost/replica:0/task:0/device:CPU:3",
        ],
    )
    def test_names(self, name):
        with jt.device(name):
            v = jt.Variable([1.0, 2.0])
            assert device_of(jnp.ones(2)) == 3
        assert v.device == "/job:localhost/replica:0/task:0/device:CPU:3"
        assert device_of(v.value()) == 3

    def test_objects(self):
        with jt.device(jax.devices()[2]):
            assert device_of(jt.Variable(1.0).value()) == 2

    def test_nested(self):
        with jt.device("CPU:1"):
            with jt.device("CPU:2"):
                inner = jt.Variable(1.0)
            outer = jt.Variable(1.0)
        outside = jt.Variable(1.0)
        assert [device_of(v.value()) for v in (inner, outer, outside)] == [2, 1, 0]

    def test_variables_stay_where_they_are(self):
        with jt.device("CPU:1"):
            v = jt.Variable([1.0, 2.0])
        v.assign(jnp.ones(2))
        v.assign(jax.device_put(jnp.ones(2), jax.devices()[2]))
        assert device_of(v.value()) == 1
        v.assign_add(jnp.ones(2))
        v.assign_add(jax.device_put(jnp.ones(2), jax.devices()[2]))
        assert device_of(v.value()) == 1
        jt.function(lambda: v.assign_add(jnp.ones(2)))()
        assert device_of(v.value()) == 1
        assert v.numpy().tolist() == [4, 4]

    def test_a_strategy_has_devices_of_its_own(self):
        strategy = mirrored(2)
        with jt.device("CPU:5"), strategy.scope():
            v = jt.Variable(1.0)
        with strategy.scope(), jt.device("CPU:5"):
            w = jt.Variable(1.0)
        for variable in (v, w):
            assert tuple(c.device for c in variable.values) == strategy.extended.worker_devices
        with one_device("CPU:1").scope(), jt.device("CPU:5"):
            assert device_of(jt.Variable(1.0).value()) == 1

    def test_replicas_run_on_their_own(self):
        strategy = mirrored(2)
        with jt.device("CPU:5"):
            ids = strategy.run(lambda: jnp.ones(1))
        assert [device_of(x) for x in strategy.experimental_local_results(ids)] == [0, 1]

    @pytest.mark.parametrize("name", ["CPU:99", "GPU:0", "nonsense", "", "CPU:-1", "CPU:x"])
    def test_unknown(self, name):
        with pytest.raises(ValueError), jt.device(name):
            pass
        assert device_of(jnp.ones(1)) == 0

    def test_errors_inside(self):
        with pytest.raises(ZeroDivisionError), jt.device("CPU:1"):
            raise ZeroDivisionError
        assert device_of(jnp.ones(1)) == 0
