"""Functions that are saved: what they take, what they do, and what is refused."""

import copy
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.saved_model._support import strategy

Signature, Spec = jt.saved_model.Signature, jt.TensorSpec


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves and loads."""

    def save_and_load(obj, signatures=None, options=None):
        jt.saved_model.save(obj, tmp_path / "model", signatures, options)
        return jt.saved_model.load(tmp_path / "model")

    return save_and_load


def answer(saved, function, *specs, **named):
    """Return a function that was saved and loaded."""
    return saved({}, Signature(function, *specs, **named)).signatures["serving_default"]


# --- What functions take and return --------------------------------------------------------


def test_sizes_that_are_none_may_be_any_and_those_of_one_name_are_equal(saved):
    def outer(x, y, z):
        return x[:, None] * y[None, :] + jnp.sum(z)

    f = answer(saved, outer, Spec([None]), Spec(["other"]), Spec([None, None]))
    assert f(np.ones(2), np.ones(3), np.ones((2, 5))).shape == (2, 3)
    assert f(np.ones(4), np.ones(1), np.ones((4, 1))).shape == (4, 1)
    assert repr(f) == (
        "<LoadedFunction serving_default(x: float32(batch,), y: float32(other,), "
        "z: float32(batch, d0)) -> float32(batch, other)>"
    )
    with pytest.raises(ValueError, match=r"'z' .* size 5 in the dimension 'batch', and .*'x' .* 4"):
        f(np.ones(4), np.ones(1), np.ones((5, 1)))


def test_specs_of_jax_are_taken_as_well(saved):
    f = answer(saved, lambda x: x + 1, jax.ShapeDtypeStruct((None, "n"), jnp.bfloat16))
    assert f(jnp.ones((2, 3), jnp.bfloat16)).dtype == jnp.bfloat16
    f = answer(saved, lambda x: x + 1, jax.ShapeDtypeStruct((2,), jnp.int32))
    assert f([1, 2]).tolist() == [2, 3]


def test_arguments_and_results_may_be_nested(saved):
    def f(pair, *, named):
        return {"sum": pair[0]["a"] + pair[1], "all": [named, (pair[1], None)], "number": 3}

    loaded = answer(saved, f, ({"a": Spec([2])}, Spec([2])), named=Spec([], jnp.int32))
    result = loaded(({"a": [1.0, 2.0]}, np.float32([3, 4])), named=7)
    assert jax.tree.map(lambda x: x.tolist(), result) == {
        "sum": [4.0, 6.0],
        "all": [7, ([3.0, 4.0], None)],
        "number": 3,
    }
    with pytest.raises(
        ValueError, match=r"'pair' .*, at 0, has to be a dict with the keys \['a'\]"
    ):
        loaded(({"b": [1.0, 2.0]}, [3.0, 4.0]), named=7)
    with pytest.raises(ValueError, match=r"'pair' .* a tuple of 2 parts"):
        loaded([{"a": [1.0, 2.0]}], named=7)


def test_specs_may_name_their_arguments(saved):
    f = answer(saved, lambda *args: args[0] - args[1], Spec([], name="a"), Spec([]))
    assert float(f(a=3.0, args_1=1.0)) == 2.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": np.ones((4, 2), np.float32)}, r"shape \(batch, 3\) .*, got one of shape \(4, 2\)"),
        ({"x": np.ones(3, np.float32)}, r"got one of shape \(3,\)"),
        ({"x": np.ones((4, 3), np.int32)}, "dtype float32, got .* dtype int32"),
        ({"x": "text"}, "dtype float32, got 'text'"),
        ({"x": [[1.0], [1.0, 2.0]]}, "inhomogeneous"),
        ({"y": np.ones((4, 3))}, "takes the arguments x, each once; got 0 .* and y by name"),
        ({}, "takes the arguments x"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(saved, given, message):
    f = answer(saved, lambda x: x, Spec([None, 3]))
    with pytest.raises(jt.errors.InvalidArgumentError, match=message):
        f(**given)


def test_numbers_of_python_become_what_is_asked_for_but_not_less(saved):
    f = answer(saved, lambda x: x, Spec([], jnp.int32))
    assert int(f(3)) == 3
    with pytest.raises(ValueError, match=r"dtype int32, got .* float32"):
        f(3.5)


# --- Which functions are saved -------------------------------------------------------------


class Counter(jt.Module):
    def __init__(self):
        super().__init__()
        self.total = jt.Variable(1.0)
        self.optimizer = None

    @jt.function(input_signature=[Spec([])])
    def add(self, x):
        self.total.assign_add(x)
        return self.total * 1

    @jt.function
    def unspecified(self, x):
        return x


def test_the_only_method_with_an_input_signature_is_the_default(saved):
    loaded = saved(Counter())
    assert list(loaded.signatures) == ["serving_default"]
    assert float(loaded.signatures["serving_default"](x=2.0)) == 3.0
    assert float(loaded.add(1.0)) == 4.0  # the same variable
    assert float(loaded.total) == 4.0


def test_a_method_that_cannot_be_saved_says_why_when_it_is_used(saved):
    class Sub(Counter):
        @jt.function(input_signature=[Spec([None])])
        def of_that_size(self, x):
            return x if x.shape[0] > 3 else 2 * x

        @jt.function(input_signature=[Spec([])])
        def __call__(self, x):
            return x + outside

    outside = jt.Variable(1.0, name="outside")
    loaded = saved(Sub())
    with pytest.raises(AttributeError, match=r"'unspecified' was not saved: it has no input_sig"):
        loaded.unspecified(1.0)
    with pytest.raises(
        AttributeError, match=r"'of_that_size' was not saved: .*(?s:.*)Give the size"
    ):
        loaded.of_that_size([1.0])
    with pytest.raises(TypeError, match=r"cannot be called, .* uses the variable 'outside'"):
        loaded(1.0)
    with pytest.raises(AttributeError, match=r"'sub' has no 'missing'.* there is total, add"):
        loaded.missing  # noqa: B018
    with pytest.raises(
        jt.errors.NotFoundError, match=r"no signature 'x'; it has 'serving_default'"
    ):
        loaded.signatures["x"]


def test_what_is_asked_for_has_to_be_saved(saved):
    outside = jt.Variable(1.0, name="outside")
    with pytest.raises(ValueError, match=r"'f' cannot be saved. It uses the variable 'outside'"):
        saved(Counter(), {"f": Signature(lambda x: x + outside, Spec([]))})
    with pytest.raises(ValueError, match=r"ZeroDivisionError"):
        saved({}, Signature(lambda x: 1 / 0, Spec([])))
    with pytest.raises(ValueError, match=r"The result is <object"):
        saved({}, Signature(lambda x: object(), Spec([])))


def test_what_several_replicas_do_is_refused(saved):
    two = strategy("2")
    with two.scope():
        v = jt.Variable(1.0)

    def step(x):
        return two.reduce("SUM", two.run(lambda: v * x), axis=None)

    with pytest.raises(ValueError, match=r"Save what one replica does"):
        saved({"v": v}, Signature(step, Spec([])))
    with pytest.raises(ValueError, match=r"Save what one replica does"):
        saved({}, Signature(lambda x: two.reduce("SUM", two.run(lambda: x), axis=None), Spec([])))


@pytest.mark.parametrize(
    ("signatures", "error", "message"),
    [
        (lambda x: x, ValueError, r"'serving_default', '<lambda>', takes. Pass .*Signature\("),
        ({"f": jt.function(lambda x: x)}, ValueError, "not known which arrays the signature 'f'"),
        ({"f": 3}, TypeError, "The signature 'f' is 3"),
        ({3: lambda x: x}, TypeError, "name of a signature is a text, got 3"),
    ],
)
def test_signatures_without_specs_are_refused(saved, signatures, error, message):
    with pytest.raises(error, match=message):
        saved({}, signatures)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([3], "described by 3. Use a jt.TensorSpec"),
        ([Spec(None)], "any number of dimensions"),
        ([Spec(["not a name"])], "cannot be used"),
    ],
)
def test_specs_that_are_none_are_refused(saved, specs, message):
    with pytest.raises(ValueError, match=message):
        saved({}, Signature(lambda x: x, *specs))


def test_signatures_are_checked_when_they_are_made():
    with pytest.raises(TypeError, match=r"made of a function, got 3"):
        Signature(3)
    with pytest.raises(ValueError, match=r"takes 1 positional arguments, .* describes 2"):
        Signature(lambda x: x, Spec([]), Spec([]))
    with pytest.raises(ValueError, match=r"have the same name: x, x"):
        Signature(lambda x, y: x, Spec([]), Spec([], name="x"))


@pytest.mark.parametrize("obj", [3, None, "text", np.ones(3), object()])
def test_other_objects_are_refused(saved, obj):
    with pytest.raises(TypeError, match=r"A saved model is made of"):
        saved(obj)


def test_a_checkpoint_may_be_saved_and_optimizers_are_left_out(saved):
    import optax

    model = Counter()
    model.optimizer = jt.Optimizer(optax.adam(0.1))
    model.optimizer.build([model.total])
    loaded = saved(jt.train.Checkpoint(model=model, step=3))
    assert [v.name for v in loaded.variables] == ["Variable"]
    assert float(loaded.model.add(2.0)) == 3.0


def test_variables_alone_may_be_saved(saved):
    loaded = saved((jt.Variable(1.0), {"b": jt.Variable([2], dtype=jnp.int8)}, "text"))
    assert (float(loaded[0]), loaded[1]["b"].dtype, loaded[2]) == (1.0, jnp.int8, None)
    assert len(loaded) == 3
    assert saved(jt.Variable(jnp.zeros((0, 3)))).variables[0].shape == (0, 3)


# --- Platforms and gradients ---------------------------------------------------------------


def test_programs_are_for_platforms_that_need_not_be_there(saved):
    signature = Signature(lambda x: jnp.sort(x @ x.T), Spec([None, 3]))
    f = saved({}, signature).signatures["serving_default"]
    assert f.platforms == ("cpu", "cuda", "rocm", "tpu")
    only = saved({}, signature, jt.saved_model.SaveOptions(platforms=["tpu"]))
    f = only.signatures["serving_default"]
    assert f.platforms == ("tpu",)
    with pytest.raises(ValueError, match=r"platform.*'tpu'"):
        f(np.ones((2, 3)))


def test_a_function_that_one_platform_lacks_is_saved_for_the_others(saved):
    signature = Signature(lambda x: jnp.linalg.eigvals(x), Spec([3, 3]))
    with pytest.raises(ValueError, match=r"cpu, cuda, rocm, tpu. .*SaveOptions\(platforms"):
        saved({}, signature)
    loaded = saved({}, signature, jt.saved_model.SaveOptions(platforms="cpu"))
    eigenvalues = loaded.signatures["serving_default"](np.eye(3))
    np.testing.assert_allclose(np.real(eigenvalues), np.ones(3), rtol=1e-6)


def test_options_are_checked(saved):
    with pytest.raises(ValueError, match=r"some of the platforms .* got \('gpu',\)"):
        jt.saved_model.SaveOptions(platforms=["gpu"])
    with pytest.raises(TypeError, match=r"SaveOptions, got 3"):
        saved({}, options=3)


def test_a_function_without_a_gradient_is_saved_without_one(saved, caplog):
    v = jt.Variable(1.0)

    def doubled(x):
        return jax.lax.while_loop(lambda y: y < 10, lambda y: 2 * y, x * v.value())

    with caplog.at_level(logging.WARNING, "jaxtribute"):
        loaded = saved({"v": v}, Signature(doubled, Spec([])))
    assert "'serving_default' is saved without its gradient" in caplog.text
    f = loaded.signatures["serving_default"]
    assert float(f(3.0)) == 12.0
    with pytest.raises(ValueError, match=r"No VJP"):
        jt.grad(lambda: f(3.0), loaded["v"])()


def test_gradients_are_those_of_the_function_also_by_its_arguments(saved):
    v = jt.Variable([1.0, 2.0])
    f = answer_with(saved, v, lambda x, ids: jnp.sum(jnp.sin(v * x)[ids]))
    x, ids = np.float32([3, 4]), np.int32([0, 0, 1])
    loss, gradient = jt.value_and_grad(lambda: f(x, ids), f.v)()
    expected = jax.value_and_grad(lambda v: jnp.sum(jnp.sin(v * x)[ids]))(v.value())
    np.testing.assert_allclose((loss, *gradient), (expected[0], *expected[1]), rtol=1e-6)
    by_x = jax.grad(lambda x: f(x, ids))(x)
    np.testing.assert_allclose(by_x, jax.grad(lambda x: jnp.sum(jnp.sin(v.value() * x)[ids]))(x))


def answer_with(saved, v, function):
    loaded = saved({"v": v}, Signature(function, Spec([2]), Spec([None], jnp.int32)))
    f = loaded.signatures["serving_default"]
    f.v = loaded["v"]
    return f


def test_a_loaded_model_can_be_copied_and_is_another_one(saved):
    loaded = saved(Counter())
    other = copy.deepcopy(loaded)
    assert float(other.add(2.0)) == 3.0
    assert (float(loaded.total), float(other.total)) == (1.0, 3.0)


def test_saving_and_loading_have_no_place_in_steps(saved, tmp_path):
    with pytest.raises(RuntimeError, match=r"saved inside a compiled function"):
        jt.function(lambda: saved(Counter()))()
    with pytest.raises(RuntimeError, match=r"loaded inside a replica"):
        strategy("2").run(lambda: jt.saved_model.load(tmp_path))


# --- Loaded functions ----------------------------------------------------------------------


def test_a_loaded_model_is_saved_with_all_it_had(saved):
    class Pair(jt.Module):
        def __init__(self):
            super().__init__()
            self.first = Counter()

        @jt.function(input_signature=[Spec([None, "width"]), Spec([], jnp.int32)])
        def __call__(self, x, n):
            return {"y": self.first.total * x + n}

    pair = Pair()
    own = Signature(lambda x, *, n: pair(x, n), Spec([None, 3]), n=Spec([], jnp.int32))
    options = jt.saved_model.SaveOptions(platforms=["cpu", "tpu"])
    once = saved(pair, {"own": own}, options)
    once.first.add(2.0)
    twice = saved(once)
    x = np.ones((2, 3), np.float32)
    assert {name: f.platforms for name, f in twice.signatures.items()} == {"own": ("cpu", "tpu")}
    assert repr(twice.signatures["own"]) == repr(once.signatures["own"])
    assert repr(twice.functions["__call__"]) == repr(once.functions["__call__"])
    assert twice.signatures["own"](x, n=1)["y"].tolist() == [[4.0] * 3] * 2
    assert twice(x, 1)["y"].tolist() == [[4.0] * 3] * 2
    assert float(twice.first.add(1.0)) == 4.0
    gradient = jt.grad(lambda: jnp.sum(twice(x, 1)["y"]), twice.first.total)()
    assert float(gradient) == 6.0
    inside = saved({"a": [twice]})
    assert float(inside["a"][0].first.add(1.0)) == 5.0
    v = jt.Variable(3.0)
    again = saved(saved({"v": v}, Signature(lambda x: v * x, Spec([]))))
    assert float(again.signatures["serving_default"](again["v"])) == 9.0


def test_nothing_is_made_of_no_examples(saved):
    f = answer(saved, lambda x, w: {"y": x @ w, "n": [x[:, 0]]}, Spec([None, 3]), Spec([3, 2]))
    w = np.ones((3, 2), np.float32)
    result = f(np.ones((0, 3)), w)
    assert (result["y"].shape, result["n"][0].shape) == ((0, 2), (0,))
    gradient = jax.grad(lambda w: jnp.sum(f(jnp.ones((0, 3)), w)["y"]))(w)
    np.testing.assert_array_equal(gradient, np.zeros((3, 2)))
    f = answer(saved, lambda x: jnp.mean(x), Spec([None]))
    with pytest.raises(ValueError, match=r"no elements in the dimension batch.*drop_remainder"):
        f(np.ones(0))


def test_replicas_without_examples_take_part_in_training(saved, tmp_path):
    w = jt.Variable(jnp.ones(3))
    saved({"w": w}, Signature(lambda x: x @ w.value(), Spec([None, 3])))
    two = strategy("2")
    with two.scope():
        loaded = jt.saved_model.load(tmp_path / "model")
    f = loaded.signatures["serving_default"]

    def replica_step(x):
        return jt.grad(lambda: jt.nn.compute_average_loss(f(x), global_batch_size=1), loaded["w"])()

    data = jt.data.Dataset.from_tensor_slices(np.ones((3, 3), np.float32)).batch(2)
    step = jt.function(lambda x: two.reduce("SUM", two.run(replica_step, args=(x,)), axis=None))
    gradients = [step(x).tolist() for x in two.experimental_distribute_dataset(data)]
    assert gradients == [[2.0] * 3, [1.0] * 3]  # of two examples, and of one
