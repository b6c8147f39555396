"""Flax NNX in `jt.function`, `run` and gradients: what is assigned stays, nothing is baked in."""

import functools
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import errors as flax_errors
from flax import nnx

import jaxtribute as jt
from jaxtribute.coordinator import _packing
from tests._interpreter import STRICT_PYTHON

X = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
Y = X.sum(1)


class Model(nnx.Module):
    """Has parameters, one of them shared, statistics and random numbers."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.hidden = nnx.Linear(2, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(4, 1, rngs=rngs)
        self.tied = self.out

    def __call__(self, x: Any) -> Any:
        return self.tied(self.dropout(self.norm(self.hidden(x))))[:, 0]


def begin() -> tuple[Model, Any, Any]:
    model = Model()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    return model, optimizer, nnx.MultiMetric(loss=nnx.metrics.Average())


def step(model: Any, optimizer: Any, metrics: Any, x: Any, y: Any) -> Any:
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    metrics.update(values=loss)
    return loss


def values(objects: Any) -> list[np.ndarray]:
    leaves = jax.tree.leaves(nnx.state(list(objects)))
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [
        np.asarray(jax.random.key_data(v) if k else v) for v, k in zip(leaves, is_key, strict=True)
    ]


def assert_same(objects: Any, others: Any) -> None:
    for value, other in zip(values(objects), values(others), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-5)


@pytest.fixture
def mirrored() -> jt.Strategy:
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


def parts(strategy: jt.Strategy, value: Any) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: value[context.replica_id_in_sync_group :: 2]
    )


# --- As arguments --------------------------------------------------------------------------


def _in_run(strategy: Any) -> Any:
    return lambda *args: strategy.run(step, args=args)


WAYS = {
    "function": lambda: jt.function(step),
    "nested": lambda: jt.function(jt.function(lambda *args: jt.function(step)(*args))),
    "nnx.jit inside": lambda: jt.function(nnx.jit(step)),
    "inside nnx.jit": lambda: nnx.jit(jt.function(step)),
    "eager run": lambda: _in_run(jt.OneDeviceStrategy("CPU:1")),
    "compiled run": lambda: jt.function(_in_run(jt.OneDeviceStrategy("CPU:1"))),
    "run of the default strategy": lambda: _in_run(jt.get_strategy()),
    "one mirrored replica": lambda: jt.function(_in_run(jt.MirroredStrategy(["CPU:0"]))),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_updates_are_kept_as_nnx_jit_keeps_them(way):
    expected, objects = begin(), begin()
    train, reference = WAYS[way](), nnx.jit(step)
    for _ in range(3):
        loss = train(*objects, X, Y)
        np.testing.assert_allclose(loss, reference(*expected, X, Y), rtol=1e-4)
    assert_same(objects, expected)
    assert int(objects[1].step[...]) == 3
    if isinstance(train, jt.Function):
        assert train.experimental_get_tracing_count() == 1


def test_the_objects_are_the_same_ones_afterwards_and_go_on_outside():
    objects, expected = begin(), begin()
    kernel = objects[0].hidden.kernel
    jt.function(step)(*objects, X, Y)
    step(*objects, X, Y)
    for _ in range(2):
        step(*expected, X, Y)
    assert objects[0].hidden.kernel is kernel
    assert objects[0].tied is objects[0].out
    assert_same(objects, expected)


def test_in_lists_and_dicts_and_as_bare_variables():
    def add(tree):
        tree["a"][0].bias[...] += 1
        tree["a"][1][...] += 2

    tree = {"a": [nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.Param(jnp.zeros(2))]}
    function = jt.function(add)
    function(tree)
    function(tree)
    assert tree["a"][0].bias[...].tolist() == [2, 2]
    assert tree["a"][1][...].tolist() == [4, 4]
    assert function.experimental_get_tracing_count() == 1


def test_variables_of_every_kind_of_value():
    class Odd(nnx.Module):
        def __init__(self):
            self.number = nnx.Variable(1)
            self.array = nnx.Variable(np.zeros(2, np.float32))
            self.pair = nnx.Variable((jnp.zeros(2), jnp.ones(2)))
            self.ref = nnx.Variable(jnp.zeros(2), ref=True)
            self.rngs = nnx.Rngs(0, noise=1)

    def change(odd):
        odd.number.set_value(odd.number.get_value() + 1)
        odd.array.set_value(odd.array.get_value() + 1)
        first, second = odd.pair.get_value()
        odd.pair.set_value((first + 1, second + first))
        odd.ref[...] += 1
        return jax.random.key_data(odd.rngs.noise())

    odd, expected = Odd(), Odd()
    function = jt.function(change)
    for _ in range(3):
        assert function(odd).tolist() == change(expected).tolist()
    assert int(odd.number.get_value()) == 4
    assert odd.array.get_value().tolist() == [3, 3]
    assert [v.tolist() for v in odd.pair.get_value()] == [[3, 3], [4, 4]]
    assert odd.ref[...].tolist() == [3, 3]
    with pytest.raises(ValueError, match="keeps its structure"):
        jt.function(lambda odd: odd.pair.set_value((jnp.zeros(2),)))(odd)


def test_attributes_that_change_between_calls_are_seen():
    model = Model()
    apply = jt.function(lambda model, x: model(x))
    model.train()
    apply(model, X)
    assert int(model.dropout.rngs.count[...]) == 1
    model.eval()
    np.testing.assert_allclose(apply(model, X), model(X), rtol=1e-5)
    assert int(model.dropout.rngs.count[...]) == 1
    model.out.bias = nnx.Param(jnp.full(1, 7.0))
    np.testing.assert_allclose(apply(model, X), model(X), rtol=1e-5)


def test_arrays_that_are_no_variables_are_seen():
    class Scaled(nnx.Module):
        def __init__(self):
            self.param = nnx.Param(jnp.ones(()))
            self.scale = nnx.data(jnp.float32(2))

    scaled = Scaled()
    function = jt.function(lambda scaled: scaled.param[...] * scaled.scale)
    assert float(function(scaled)) == 2
    scaled.scale = jnp.float32(5)
    assert float(function(scaled)) == 5


@pytest.mark.parametrize("compiled", [True, False])
def test_changes_of_the_structure_are_refused(compiled, mirrored):
    def run(fn):
        def on_replicas(model):
            return mirrored.run(fn, args=(model,))

        return (jt.function(on_replicas) if compiled else on_replicas)(model)

    def add(model):
        model.more = nnx.Param(jnp.ones(2))

    model = Model()
    for change in (Model.eval, add):
        with pytest.raises(ValueError, match="structure or the attributes of the NNX Model"):
            run(change)
        with pytest.raises(ValueError, match="structure or the attributes of the NNX Model"):
            jt.function(change)(model)
    assert not hasattr(model, "more")
    assert not model.dropout.deterministic


def test_a_failure_changes_nothing(mirrored):
    def fail(model):
        model.dropout.rngs()
        raise KeyError("failed")

    model = Model()
    before = values([model])
    for call in (
        jt.function(fail),
        lambda model: mirrored.run(fail, args=(model,)),
        lambda model: jt.OneDeviceStrategy("CPU:0").run(fail, args=(model,)),
        lambda model: jt.get_strategy().run(fail, args=(model,)),
    ):
        with pytest.raises(KeyError):
            call(model)
        assert all(map(np.array_equal, values([model]), before))


def test_arrays_that_were_handed_out_stay():
    linear = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    function = jt.function(lambda linear: linear.bias.set_value(linear.bias[...] + 1))
    seen = []
    for _ in range(3):
        seen.append(linear.bias[...])
        function(linear)
    assert [v.tolist() for v in seen] == [[0], [1], [2]]


def test_a_state_is_a_structure_of_values():
    structure, state = nnx.split(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
    given = state

    def add(state):
        linear = nnx.merge(structure, state)
        linear.bias[...] += 1
        return nnx.state(linear)

    function = jt.function(add)
    for _ in range(3):
        state = function(state)
    assert state["bias"][...].tolist() == [3]
    assert given["bias"][...].tolist() == [0]
    assert function.experimental_get_tracing_count() == 1


def test_a_container_of_data_is_an_input():
    class Batch(nnx.Pytree):
        def __init__(self, x):
            self.x = nnx.data(x)

    function = jt.function(lambda batch: batch.x * 2)
    assert [float(function(Batch(jnp.float32(i)))) for i in range(3)] == [0, 2, 4]
    assert function.experimental_get_tracing_count() == 1


def test_modules_that_are_returned(mirrored):
    model = Model()
    assert jt.function(lambda model: model)(model) is model
    assert jt.function(lambda model: {"hidden": model.hidden})(model)["hidden"] is model.hidden
    assert jt.function(lambda m: mirrored.run(lambda m: m, args=(m,)))(model) is model
    structure, state = nnx.split(model.hidden)
    made = jt.function(lambda state: nnx.merge(structure, state))(state)
    assert_same([made], [model.hidden])


@pytest.mark.parametrize("compiled", [True, False])
def test_a_state_that_is_returned_has_what_was_assigned(compiled, mirrored):
    def statistics(model, x):
        model(x)
        return nnx.state(model, nnx.BatchStat)

    model = Model()
    function = jt.function(statistics) if compiled else statistics
    state = function(model, X)
    np.testing.assert_array_equal(state["norm"]["mean"][...], model.norm.mean[...])

    def on_replicas(model, x):
        return mirrored.run(statistics, args=(model, x))

    state = (jt.function(on_replicas) if compiled else on_replicas)(model, X)
    for local in mirrored.experimental_local_results(state):
        np.testing.assert_array_equal(local["norm"]["mean"][...], model.norm.mean[...])


# --- Captured ------------------------------------------------------------------------------


def test_a_captured_module_is_read_as_it_is():
    linear = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    function = jt.function(lambda x: linear(x))
    function(X)
    linear.kernel[...] = jnp.ones((2, 1))
    np.testing.assert_allclose(function(X), linear(X), rtol=1e-6)
    nnx.update(linear, {"bias": jnp.full(1, 3.0)})
    np.testing.assert_allclose(function(X), linear(X), rtol=1e-6)
    assert function.experimental_get_tracing_count() == 1


def test_what_is_assigned_to_captured_objects_stays():
    model, expected = nnx.Linear(2, 1, rngs=nnx.Rngs(0)), nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    metric = nnx.metrics.Average()

    def train(model, optimizer):
        loss, gradients = jt.value_and_grad(
            lambda: jnp.mean((model(X)[:, 0] - Y) ** 2), {"w": model.kernel, "b": model.bias}
        )()
        state = {"kernel": model.kernel.replace(gradients["w"]), "bias": model.bias.replace(0.0)}
        optimizer.update(model, nnx.State(state))
        metric.update(values=loss)

    both = [nnx.Optimizer(each, optax.adam(0.1), wrt=nnx.Param) for each in (model, expected)]
    compiled = jt.function(lambda: train(model, both[0]))
    for _ in range(3):
        compiled()
        train(expected, both[1])
    assert_same((model, both[0]), (expected, both[1]))
    assert int(metric.count[...]) == 6
    metric.reset()
    compiled()
    assert int(metric.count[...]) == 1


GLOBAL = nnx.Dropout(0.5, rngs=nnx.Rngs(0))


def through_a_helper(x: Any) -> Any:
    return GLOBAL(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda dropout: lambda x: dropout(x),
        lambda dropout: lambda x: (lambda: dropout(x))(),
        lambda dropout: functools.partial(lambda dropout, x: dropout(x), dropout),
        lambda dropout: lambda x, dropout=dropout: dropout(x),
        lambda dropout: dropout.__call__,
        lambda dropout: lambda x: through_a_helper(x),
        lambda dropout: (lambda inner: lambda x: inner(x))(jt.function(through_a_helper)),
    ],
)
def test_attributes_of_captured_modules_are_seen(make):
    function = jt.function(make(GLOBAL))
    GLOBAL.train()
    assert not np.array_equal(function(X), X)
    GLOBAL.eval()
    assert np.array_equal(function(X), X)


def test_a_function_that_is_a_method():
    class Counting(nnx.Module):
        def __init__(self):
            self.count = nnx.Variable(jnp.zeros(()))
            self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

        @jt.function
        def __call__(self, x):
            self.count[...] += 1
            return self.dropout(x)

    counting = Counting()
    counting(X)
    counting.eval()
    assert np.array_equal(counting(X), X)
    assert float(counting.count[...]) == 2
    assert np.array_equal(jt.function(lambda c: c(X))(counting), X)
    assert float(counting.count[...]) == 3


def test_what_nnx_refuses_of_captured_modules_says_what_to_write():
    objects = begin()
    before = values(objects)
    with pytest.raises(flax_errors.TraceContextError) as caught:
        jt.function(lambda: step(*objects, X, Y))()
    assert "Pass the module to the jt.function" in "".join(caught.value.__notes__)
    with pytest.raises(flax_errors.TraceContextError):
        jt.function(lambda: objects[0].eval())()
    assert all(map(np.array_equal, values(objects), before))
    step(*objects, X, Y)  # which can still be used


def test_captured_arrays_are_constants():
    class Holder:
        array = jnp.float32(1)

    params, changed, number = {"w": jnp.float32(1)}, np.ones(()), [1]
    function = jt.function(lambda: params["w"] + Holder.array + jnp.asarray(changed) + number[0])
    assert float(function()) == 4
    params["w"], Holder.array, number[0] = jnp.float32(10), jnp.float32(10), 10
    changed[...] = 10
    assert float(function()) == 4


def test_outside_of_jaxtribute_nnx_is_what_it_was():
    jt.function(lambda x: x)(X)
    linear = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    baked = jax.jit(lambda x: linear(x))
    first = baked(X)
    linear.kernel[...] = jnp.ones((2, 1))
    assert np.array_equal(baked(X), first)
    with pytest.raises(flax_errors.TraceContextError):
        jax.jit(lambda: linear.bias.set_value(jnp.ones(1)))()


# --- On replicas ---------------------------------------------------------------------------


@pytest.fixture(params=["eager", "compiled"])
def run(request: Any, mirrored: jt.Strategy) -> Any:
    def on_replicas(fn, *args):
        return mirrored.run(fn, args=args)

    return jt.function(on_replicas) if request.param == "compiled" else on_replicas


def test_replicas_read_one_model(run, mirrored):
    model = Model()
    model.eval()
    for captured in (True, False):
        answers = run((lambda m, x: model(x)) if captured else (lambda m, x: m(x)), model, X)
        for answer in mirrored.experimental_local_results(answers):
            np.testing.assert_allclose(answer, model(X), rtol=1e-5)


def test_replicas_cannot_assign_parameters_optimizers_or_metrics(run):
    objects = begin()
    before = values(objects)
    with pytest.raises(ValueError, match=r"'Model\.\w+\.\w+ \(nnx.Param\)'.* 2 replicas cannot"):
        run(step, *objects, X, Y)
    with pytest.raises(ValueError, match=r"MultiMetric.*nnx.MetricState.* 2 replicas cannot"):
        run(lambda metrics: metrics.update(values=1.0), objects[2])
    assert all(map(np.array_equal, values(objects), before))


def test_replicas_average_statistics_and_draw_their_own_numbers(run, mirrored):
    def forward(model, x):
        model(x)
        return model.dropout(jnp.ones(32))

    model, halves = Model(), [Model(), Model()]
    drawn = mirrored.experimental_local_results(run(forward, model, parts(mirrored, X)))
    for i, half in enumerate(halves):
        own = forward(half, X[i::2])
        if i == 0:
            np.testing.assert_array_equal(drawn[0], own)
    assert not np.array_equal(*drawn)
    for name in ("mean", "var"):
        average = sum(getattr(half.norm, name)[...] for half in halves) / 2
        np.testing.assert_allclose(getattr(model.norm, name)[...], average, rtol=1e-5)
    assert int(model.dropout.rngs.count[...]) == 2


@pytest.mark.parametrize("compiled", [True, False])
def test_gradients_of_replicas_and_an_update_after(compiled, mirrored):
    def gradients(model, x, y):
        def loss_fn(model):
            return jt.nn.compute_average_loss((model(x) - y) ** 2, global_batch_size=8)

        return nnx.value_and_grad(loss_fn)(model)

    def train(model, optimizer, x, y):
        loss, grads = mirrored.run(gradients, args=(model, x, y))
        optimizer.update(model, mirrored.reduce("SUM", grads, axis=None))
        return mirrored.reduce("SUM", loss, axis=None)

    objects, expected = begin(), begin()
    for model in (objects[0], expected[0]):
        model.eval()
    function = jt.function(train) if compiled else train
    for _ in range(3):
        loss = function(*objects[:2], parts(mirrored, X), parts(mirrored, Y))
        np.testing.assert_allclose(loss, step(*expected, X, Y), rtol=1e-4)
    assert_same(objects[:2], expected[:2])


def test_a_module_made_in_the_function_is_a_copy_for_replicas(mirrored):
    model = Model()
    structure, state = nnx.split(model)

    def forward(state):
        return mirrored.run(lambda m, x: m(x), args=(nnx.merge(structure, state), X))

    with pytest.raises(ValueError, match="Replicas have a copy"):
        jt.function(forward)(state)
    model.eval()
    structure, state = nnx.split(model)
    for answer in mirrored.experimental_local_results(jt.function(forward)(state)):
        np.testing.assert_allclose(answer, model(X), rtol=1e-5)


# --- Gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [True, False])
def test_gradients_by_parameters(compiled):
    linear = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    gradient = jt.grad(lambda: jnp.sum(linear(X) ** 2), linear.kernel)
    expected = nnx.grad(lambda linear: jnp.sum(linear(X) ** 2))(linear)["kernel"][...]
    np.testing.assert_allclose((jt.function(gradient) if compiled else gradient)(), expected)


def test_gradients_by_something_else_are_refused():
    linear = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"pass the nnx\.Param objects"):
        jt.grad(lambda: jnp.sum(linear(X)), linear)
    structure, state = nnx.split(linear)

    def of_a_merged_one(state):
        merged = nnx.merge(structure, state)
        return jt.grad(lambda: jnp.sum(merged(X)), merged.kernel)()

    with pytest.raises(TypeError, match=r"or use nnx\.value_and_grad"):
        jt.function(of_a_merged_one)(state)


# --- Elsewhere -----------------------------------------------------------------------------


def test_a_module_is_not_sent_to_workers():
    linear = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    packer = _packing.Packer()
    for pack in (
        lambda: packer.arguments((linear,), {}),
        lambda: packer.function(lambda x: linear(x)),
        lambda: packer.function(jt.function(lambda x: linear(x))),
    ):
        with pytest.raises(TypeError, match=r"nnx\.Param.*exists on the coordinator only"):
            pack()


def test_a_state_is_sent_to_workers():
    structure, state = nnx.split(Model())
    packed = _packing.Packer().arguments((structure, state), {})
    blobs = {blob.digest: blob.data for blob in packed.blobs}
    (structure, received), _ = _packing.load_arguments(packed.frames, blobs, lambda number: None)
    assert_same([nnx.merge(structure, received)], [nnx.merge(structure, state)])


def test_it_does_not_matter_which_was_imported_first():
    program = """
import jaxtribute as jt
import jax.numpy as jnp
f = jt.function(lambda x: linear(x))
jt.function(lambda x: x)(1.0)
import sys
assert "flax" not in sys.modules
from flax import nnx
linear = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
f(jnp.ones((1, 1)))
linear.kernel[...] = jnp.full((1, 1), 4.0)
print(f(jnp.ones((1, 1))))
"""
    done = subprocess.run([*STRICT_PYTHON, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[[4.]]\n", done.stderr
