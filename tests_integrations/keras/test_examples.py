"""Each Keras example trains with every strategy, and those in step end as one device does.

Strategies of one process train in this one, by the function that the example is about; workers are
real ones, started by the launcher.
"""

import functools
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "keras"
NAMES = ["image_classification", "text_classification", "two_tower"]
EPOCHS = 10  # after the first one, which compiles, they take little time
# With parameter servers, at least so much of what training in step reaches, in twice the epochs:
# on a busy machine gradients are many steps old when they arrive.
QUALITY = 0.9

every_example = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def _examples_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)


def trained(name, strategy_name, epochs=EPOCHS):
    """Return the losses, the weights, and what is reached on examples that were not seen."""
    program = importlib.import_module(name)
    with importlib.import_module("strategies").strategy_called(strategy_name) as strategy:
        data, test = program.load(small=True)
        model, losses = program.train(strategy, data, epochs)
        _, reached = model.evaluate(*test, batch_size=len(test[1]), verbose=0)
        return losses, model.get_weights(), reached


one_device = functools.cache(functools.partial(trained, strategy_name="default"))


def assert_equal(losses, weights, name):
    expected_losses, expected_weights, _ = one_device(name)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    assert len(weights) == len(expected_weights)
    for weight, expected in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-3, atol=1e-4)


@every_example
@pytest.mark.parametrize("strategy", ["one", "mirrored"])
def test_training_in_step_ends_as_one_device_does(name, strategy):
    losses, weights, reached = trained(name, strategy)
    assert_equal(losses, weights, name)
    assert reached == pytest.approx(one_device(name)[2], abs=0.01)
    assert losses[-1] < losses[0]


@every_example
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_two_workers_end_as_one_device_does(name, tmp_path):
    saved = tmp_path / "model.keras"
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "jaxtribute.cli", "launch", "--workers=2"),
            str(EXAMPLES / f"{name}.py"),
            *("--strategy=workers", "--small", f"--epochs={EPOCHS}", f"--save={saved}"),
        ],
        env={k: v for k, v in os.environ.items() if k not in ("PJRT_NPROC", "XLA_FLAGS")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    losses = dict(re.findall(r"^(worker:\d).*loss of each epoch: (.*)$", ran.stdout, re.MULTILINE))
    assert set(losses) == {"worker:0", "worker:1"}
    assert losses["worker:0"] == losses["worker:1"]
    importlib.import_module("jaxtribute.keras")  # without it Keras knows no synchronized layers
    model = keras.saving.load_model(saved)  # of this process, and of no strategy
    assert_equal([float(loss) for loss in losses["worker:0"].split()], model.get_weights(), name)


@every_example
def test_parameter_servers_reach_nearly_what_one_device_does(name):
    losses, _, reached = trained(name, "ps", epochs=2 * EPOCHS)
    assert losses[-1] < losses[0]
    assert reached >= QUALITY * one_device(name)[2]


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NAMES, "strategies"}
