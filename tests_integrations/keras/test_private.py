"""What is used of Keras without being its public interface is still what it was.

When a test here fails after an upgrade of Keras, src/jaxtribute/keras/_private.py or _hooks.py is
where to look.
"""

import inspect
import re
import tempfile
from pathlib import Path

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.keras import _private
from tests_integrations.keras._plain import X, Y, classifier

# --- Names ---------------------------------------------------------------------------------


def test_each_private_use_is_tested_here():
    own = Path(_private.__file__).read_text()
    used = set(re.findall(r"^def ([a-z]\w*)", own, re.MULTILINE)) | set(_private.__all__)
    tested = set(re.findall(r"_private\.(\w+)", Path(__file__).read_text()))
    assert used <= tested, f"without a test: {sorted(used - tested)}"


def test_private_names_of_keras_are_in_one_file():
    folder = Path(_private.__file__).parent
    for path in folder.glob("*.py"):
        if path.name != "_private.py":
            assert "keras.src" not in path.read_text(), path.name


# --- Functions -----------------------------------------------------------------------------


def test_building():
    class Lazy(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x, training=False):
            return self.dense(x)

    spec = keras.KerasTensor((2, 4)), keras.KerasTensor((2, 3))
    model = Lazy()
    model.compile("adam", "mse", metrics=["mae"])
    assert not _private.is_built(model)
    _private.build(model, spec)
    assert _private.is_built(model)
    assert model.optimizer.built
    assert [v.path.split("/")[-1] for v in model.optimizer.variables[2:]] == [
        "lazy_dense_kernel_momentum",
        "lazy_dense_kernel_velocity",
        "lazy_dense_bias_momentum",
        "lazy_dense_bias_velocity",
    ]
    assert len(model.metrics_variables) == 4

    other = Lazy()
    _private.build_layers(other, spec[0])
    assert _private.is_built(other)
    assert _private.takes_training(other)
    assert _private.layers_of(other) == [other, other.dense]


def test_what_a_model_takes():
    (spec,) = _private.input_signature(classifier())
    assert (tuple(spec.shape), spec.dtype) == ((None, *X.shape[1:]), "float32")
    with pytest.raises(ValueError, match="not yet been built"):
        _private.input_signature(keras.Sequential([keras.layers.Dense(1)]))


def test_what_a_trainer_knows():
    model = classifier()
    model.fit(X, Y, verbose=0)
    assert _private.initial_epoch(model) is None
    _private.set_initial_epoch(model, 3)
    assert model.fit(X, Y, epochs=4, verbose=0).epoch == [3]
    _private.set_initial_epoch(model, None)
    results = model.get_metrics_result()
    assert _private.metrics_or_logs(model, dict.fromkeys(results, 0.0)).keys() == results.keys()
    assert _private.metrics_or_logs(model, {"own": 1.0}) == {"own": 1.0}
    assert _private.metrics_or_logs(model, None).keys() == results.keys()
    assert _private.flat_metrics(model, {"accuracy": 1.0, "loss": 2.0}) == [2.0, 1.0]
    assert [_private.should_evaluate(model, epoch, 2) for epoch in range(4)] == [0, 1, 0, 1]
    assert not _private.overrides(model, "train_step")

    class Own(keras.Model):
        def train_step(self, state, data):
            return {}, state

    assert _private.overrides(Own(), "train_step")
    assert not _private.overrides(Own(), "test_step")


def test_updating_metrics():
    model = classifier()
    model.fit(X, Y, verbose=0)
    model.reset_metrics()
    before = [v.value for v in model.metrics_variables]
    after = _private.updated_metrics(
        model, before, jnp.asarray(2.0), X, Y, jnp.asarray(model(X)), None
    )
    assert [float(v) for v in before[:2]] == [0, 0]  # the loss, and how many examples it is of
    assert [float(v) for v in after[:2]] == [2.0 * len(X), len(X)]


def test_what_an_optimizer_knows():
    variable = keras.Variable([1.0])
    optimizer = keras.optimizers.AdamW(0.5)
    optimizer.build([variable])
    assert _private.trained_by(optimizer) == [variable]
    assert _private.schedule_of(optimizer) is None
    assert not _private.excludes_from_weight_decay(optimizer)
    optimizer.apply([jnp.ones(1)])
    assert int(_private.iterations(optimizer)) == 1
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    other = keras.optimizers.AdamW(schedule)
    other.exclude_from_weight_decay(var_names=["bias"])
    assert _private.schedule_of(other) is schedule
    assert _private.excludes_from_weight_decay(other)


def test_what_objects_consist_of():
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)
            self.seen = keras.metrics.Mean()
            self.noise = keras.random.SeedGenerator(1)
            self.add_weight(shape=(2,))

        def call(self, x):
            return self.dense(x)

    model = Model()
    model.compile("adam", "mse", metrics=["mae"])
    _private.build(model, (keras.KerasTensor((2, 4)), keras.KerasTensor((2, 3))))
    kinds = (keras.Variable, keras.layers.Layer, keras.metrics.Metric, keras.optimizers.Optimizer)
    held = _private.attributes(model)
    assert {name for name, value in held.items() if isinstance(value, kinds)} == {
        "dense",
        "optimizer",
        "seen",
    }
    tracked = _private.tracked(model)
    assert [len(tracked["variables"]), tracked["layers"]] == [1, [model.dense]]
    assert [tracked["metrics"], tracked["seed_generators"]] == [[model.seen], [model.noise]]
    assert _private.tracked(model.seen)["variables"] == model.seen.variables
    assert not _private.has_ordered_layers(model)
    inputs = keras.Input((4,))
    layer = keras.layers.Conv1D(2, 1)
    for ordered in (keras.Sequential([layer]), keras.Model(inputs, layer(inputs[..., None]))):
        assert _private.has_ordered_layers(ordered)
        assert layer in ordered.layers
        assert set(map(id, _private.tracked(ordered)["layers"])) >= {id(layer)}
    assert _private.class_name(layer) == "conv1d"
    outer = keras.optimizers.LossScaleOptimizer(model.optimizer)
    assert len(_private.own_variables(outer)) == 2
    assert _private.own_variables(model.optimizer) == model.optimizer.variables
    model.listed = [1]
    assert isinstance(model.listed, _private.CONTAINERS)


def test_the_axes_of_a_mean():
    layer = keras.layers.BatchNormalization()
    layer.build((2, 4, 4, 1))
    assert _private.reduced_axes(layer) == [0, 1, 2]


def test_where_assigning_is_for_nothing():
    assert not _private.in_stateless_scope()
    with keras.StatelessScope():
        assert _private.in_stateless_scope()
    answers = []

    class Asking(keras.layers.Layer):
        def call(self, x):
            answers.append(_private.in_stateless_scope())
            return x

    Asking()(keras.KerasTensor((2, 3)))
    assert answers == [True]


def test_scopes():
    variable = keras.Variable(1.0)
    assert _private.stateless_value(variable) is None
    with keras.StatelessScope([(variable, jnp.asarray(2.0))]):
        assert float(_private.stateless_value(variable)) == 2
    assert not _private.in_symbolic_scope()
    seen = []

    class Noting(keras.layers.Layer):
        def call(self, x):
            seen.append(_private.in_symbolic_scope())
            return x

    Noting()(keras.KerasTensor((2, 3)))
    assert seen[-1]


def test_reading_a_dataset():
    class Numbers(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return [np.full(2, index)]

    for workers in (1, 2):
        reader = _private.py_dataset_reader(Numbers(workers=workers))
        reader.on_epoch_begin()
        try:
            found = [batch[0][0] for batch in reader.get_numpy_iterator()]
        finally:
            reader.on_epoch_end()
        assert found == [0, 1, 2]


def test_keras_reads_by_an_adapter_of_ones_own():
    class Adapter(_private.DataAdapter):
        num_batches = 3

        def get_jax_iterator(self):
            return iter([(X[:2], Y[:2])] * 3)

    model = classifier()
    model.fit(Adapter(), verbose=0)
    assert model.optimizer.iterations == 3


def test_what_is_sent():
    model = classifier()
    state = _private.portable_state(model)
    assert state["train_function"] is None
    assert state["_inbound_nodes"] == []
    assert "build" not in _private.portable_state(model.layers[0])

    tracked = keras.layers.Layer()
    tracked.parts = [1, 2]
    tracked.named = {"a": 1}
    for value, expected in ((tracked.parts, [1, 2]), (tracked.named, {"a": 1})):
        make, args, _, *items = _private.reduced_tracking(value)
        made = make(*args)
        (made.extend if isinstance(made, list) else made.update)(items[-1])
        assert made == expected
    assert _private.reduced_tracking(3) is NotImplemented
    tracker = tracked._tracker
    make, args, state, _, _, set_state = _private.reduced_tracking(tracker)
    again = make(*args)
    set_state(again, state)
    assert vars(again).keys() == vars(tracker).keys()

    optimizer = keras.optimizers.SGD(momentum=0.9)
    variables = [keras.Variable([1.0]), keras.Variable([2.0])]
    optimizer.build(variables)
    optimizer._trainable_variables_indices = {}
    _private.renumber(optimizer)
    optimizer.apply([jnp.ones(1), jnp.ones(1)])


# --- What is replaced ----------------------------------------------------------------------

OPTIMIZER = _private.definer(keras.optimizers.Optimizer, "apply")
TRAINER = _private.definer(keras.Model, "fit")


def images():
    return jnp.ones((2, 4, 4, 1))


def apply():
    variable = keras.Variable([1.0])
    keras.optimizers.SGD(momentum=0.9).apply_gradients([(jnp.ones(1), variable)])


def save():
    with tempfile.TemporaryDirectory() as folder:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.save(f"{folder}/model.keras")
        _private.saving_api.load_model(f"{folder}/model.keras")


HOOKS = {
    "load_model": (
        _private.saving_api,
        "load_model",
        "(filepath, custom_objects=None, compile=True, safe_mode=True)",
        save,
    ),
    "get_attr_skipset": (_private.saving_lib, "get_attr_skipset", "(obj_type)", save),
    "variables": (keras.Variable, "__new__", None, lambda: keras.Variable(1.0)),
    "models": (keras.layers.Layer, "__new__", None, lambda: classifier(compiled=False)),
    "moments": (
        _private.backend_nn,
        "moments",
        "(x, axes, keepdims=False, synchronized=False)",
        lambda: keras.layers.BatchNormalization()(images(), training=True),
    ),
    "masked moments": (
        keras.layers.BatchNormalization,
        _private.MOMENTS,
        "(self, inputs, mask)",
        lambda: keras.layers.BatchNormalization()(images(), training=True),
    ),
    "building": (
        keras.layers.Layer,
        _private.BUILDING,
        "(self, call_spec)",
        lambda: keras.layers.Dense(1)(jnp.ones((2, 3))),
    ),
    "take": (
        _private.backend_numpy,
        "take",
        "(x, indices, axis=None)",
        lambda: keras.layers.Embedding(3, 2)(jnp.ones(2, jnp.int32)),
    ),
    "reduce_values": (
        _private.loss_module,
        "reduce_values",
        "(values, sample_weight=None, reduction='sum_over_batch_size')",
        lambda: keras.losses.MeanSquaredError()(images(), images()),
    ),
    "apply_mask": (
        _private.loss_module,
        "apply_mask",
        "(sample_weight, mask, dtype, reduction)",
        lambda: keras.losses.MeanSquaredError()(images(), images()),
    ),
    "next": (
        keras.random.SeedGenerator,
        "next",
        "(self, ordered=True)",
        lambda: keras.layers.Dropout(0.5)(images(), training=True),
    ),
    "apply": (OPTIMIZER, "apply", "(self, grads, trainable_variables=None)", apply),
    "add_variable_from_reference": (
        OPTIMIZER,
        "add_variable_from_reference",
        "(self, reference_variable, name=None, initializer='zeros')",
        apply,
    ),
    "stateless_apply": (
        OPTIMIZER,
        "stateless_apply",
        "(self, optimizer_variables, grads, trainable_variables)",
        lambda: classifier().fit(X, Y, verbose=0),
    ),
    _private.AFTER_BUILDING: (
        keras.layers.Layer,
        _private.AFTER_BUILDING,
        "(self)",
        lambda: keras.layers.Dense(2).build((None, 3)),
    ),
    "compile": (TRAINER, "compile", None, classifier),
    **{
        name: (
            _private.definer(keras.Model, name),
            name,
            "(self, force=False)",
            lambda: classifier().fit(X, Y, verbose=0, validation_split=0.5).model.predict(X),
        )
        for name in _private.MAKING
    },
}


@pytest.mark.parametrize("name", HOOKS)
def test_keras_calls_what_is_replaced(monkeypatch, name):
    owner, attribute, signature, act = HOOKS[name]
    replaced = getattr(owner, attribute)
    own = replaced.__wrapped__
    if signature is not None:
        assert str(inspect.signature(own)) == signature
    calls = []

    def spy(*args, **kwargs):
        calls.append(args)
        return replaced(*args, **kwargs)

    monkeypatch.setattr(owner, attribute, staticmethod(spy) if attribute == "__new__" else spy)
    act()
    assert calls


@pytest.mark.parametrize(
    ("module", "name", "signature"),
    [
        (_private.saving_api, "save_model", "(model, filepath, overwrite=True, zipped=None"),
        (_private.saving_api, "save_weights", "(model, filepath, overwrite=True, max_shard_size"),
        (_private.saving_api, "load_weights", "(model, filepath, skip_mismatch=False"),
        (_private.saving_lib, "get_attr_skipset", "(obj_type)"),
    ],
)
def test_models_are_saved_and_loaded_by_what_is_replaced(
    monkeypatch, tmp_path, module, name, signature
):
    replaced = getattr(module, name)
    assert str(inspect.signature(replaced.__wrapped__)).startswith(signature)
    calls = []
    monkeypatch.setattr(module, name, lambda *a, **k: [calls.append(a), replaced(*a, **k)][1])
    model = classifier(compiled=False)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5")
    assert calls


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        (
            "fit",
            "x y batch_size epochs verbose callbacks validation_split validation_data shuffle "
            "class_weight sample_weight initial_epoch steps_per_epoch validation_steps "
            "validation_batch_size validation_freq",
        ),
        (
            "evaluate",
            "x y batch_size verbose sample_weight steps callbacks return_dict kwargs",
        ),
        ("predict", "x batch_size verbose steps callbacks"),
        ("train_on_batch", "x y sample_weight class_weight return_dict"),
        ("test_on_batch", "x y sample_weight return_dict"),
        ("predict_on_batch", "x"),
    ],
)
def test_methods_of_models_take_what_they_took(method, arguments):
    own = getattr(TRAINER, method).__wrapped__
    assert list(inspect.signature(own).parameters) == ["self", *arguments.split()]


@pytest.mark.parametrize(
    ("step", "state"), [("train_step", 4), ("test_step", 3), ("predict_step", 2)]
)
def test_steps_are_functions_of_state_and_data(step, state):
    model = classifier()
    model.fit(X, Y, verbose=0)
    kinds = {
        4: [
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        ],
        3: [model.trainable_variables, model.non_trainable_variables, model.metrics_variables],
        2: [model.trainable_variables, model.non_trainable_variables],
    }[state]
    values = tuple([v.value for v in variables] for variables in kinds)
    _, after = getattr(model, step)(values, (X, Y))
    expected = values if state > 2 else values[1]
    assert [len(each) for each in after] == [len(each) for each in expected]


def test_all_of_keras_that_creates_variables_asks_for_keras_variable():
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = classifier(keras.layers.BatchNormalization(), keras.layers.Dropout(0.1))
        model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    assert all(v.strategy is strategy for v in variables)
    # Keras checks for its own class, and makes names of the name of the class.
    assert all(isinstance(v, keras.Variable) for v in variables)
