"""Runs the tests that are installed with Keras in the scope of a strategy, and compares.

By hand, from the root of the repository, with the parts that are to run, and all of them if none
are named:

    python -m tests_integrations.keras._own_tests trainers/trainer_test.py optimizers

Each part runs in the scope and without it, and what fails in the scope only is printed with the
processor time of both. With --quick it runs in the scope, and what fails there without it as well.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PARTS = (
    "trainers/trainer_test.py",
    "optimizers",
    "metrics",
    "losses",
    "callbacks",
    "saving",
    "models",
    "export",
    "layers",
)

# Tests that hold without a scope and cannot hold in one, with the reason. One that passes does not
# belong here.
_EXPORTED_AS_CONSTANTS = (
    "It has jax2tf convert a function that reads variables, and those of a strategy are state, "
    "which jax2tf cannot convert. ExportArchive.track tells Keras of them."
)
KNOWN = {
    "trainers/trainer_test.py::TestTrainer::test_fit_eval_flow_for_jax_model_weights": (
        "It looks whether variables have lost their values between the steps of Keras's own loop. "
        "Those of a strategy have theirs at all times."
    ),
    "trainers/trainer_test.py::JAXTrainerCorrectnessTest::"
    "test_jit_fit_with_out_shardings_logic_distributed": (
        "It divides a model by keras.distribution, which does not go together with a strategy."
    ),
    "callbacks/tensorboard_test.py::TestTensorBoardV2::test_custom_summary": (
        "A layer writes a summary of TensorFlow, whose writer is that of a thread, and replicas "
        "that are not compiled run in threads of their own."
    ),
    **{
        f"export/saved_model_test.py::{name}": _EXPORTED_AS_CONSTANTS
        for name in (
            *(
                f"ExportSavedModelTest::test_jax_specific_kwargs_{kind}_true_{options}"
                for kind in ("functional", "sequential", "subclass")
                for options in ("none", "{'enable_xla': true, 'native_serialization': true}")
            ),
            "ExportArchiveTest::test_jax_endpoint_registration_tf_function",
            "ExportArchiveTest::test_jax_multi_unknown_endpoint_registration",
            "ExportArchiveTest::test_track_multiple_layers",
        )
    },
    "optimizers/optimizer_sparse_test.py::OptimizerSparseTest::"
    "test_sparse_gradients_loss_scale_optimizer_sgd": (
        "It tells arrays by their identity inside of jax.lax.cond, where reading a variable of a "
        "strategy makes another one of the trace each time."
    ),
}


class Outcome(NamedTuple):
    """What running a part came to."""

    failed: dict[str, str]
    """The tests that failed only in the scope, with the first line of the error."""
    unexpected: list[str]
    """Those that are listed as known and passed."""
    seconds: dict[str, float]
    """The processor time that the tests took, which ran both times, in the scope and without."""


def compare(part: str, quick: bool = False) -> Outcome:
    """Run the tests of a part in the scope of a strategy and without.

    Raises:
      RuntimeError: when pytest found no tests, or ended before they did.
    """
    scoped = _run([part], scoped=True)
    failed = [name for name, test in scoped.items() if test["outcome"] == "failed"]
    plain = (_run(failed, scoped=False) if failed else {}) if quick else _run([part], scoped=False)
    only = {
        name: scoped[name]["why"].partition("\n")[0]
        for name in failed
        if plain[name]["outcome"] != "failed"
    }
    known = [name for name in KNOWN if name.startswith(part)]
    both = [name for name in scoped if name in plain]
    return Outcome(
        {name: why for name, why in only.items() if name not in KNOWN},
        [name for name in known if name not in only],
        {
            "in the scope": sum(scoped[name]["seconds"] for name in both),
            "without": sum(plain[name]["seconds"] for name in both),
        },
    )


def _run(tests: list[str], scoped: bool) -> dict[str, dict[str, Any]]:
    """Run tests by pytest, and return what became of each, by its name."""
    spec = importlib.util.find_spec("keras")
    assert spec is not None and spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0]) / "src"
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        settings = Path(directory) / "pytest.ini"  # not those of this repository
        settings.write_text("[pytest]\n")
        paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "PYTHONPATH": os.pathsep.join(paths),
            "OWN_TESTS_SCOPED": str(int(scoped)),
            "OWN_TESTS_REPORT": str(report),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-c", str(settings), f"--rootdir={source}"]
        command += ["--import-mode=importlib", "--noconftest", "--tb=short"]
        command += ["-p", "no:cacheprovider"]
        command += ["--continue-on-collection-errors", "-p", "no:warnings", "--timeout=600"]
        command += ["-p", "tests_integrations.keras._own_plugin"]
        command += [str(source / test) for test in tests]
        # Elsewhere, as folders of Keras have names of the standard library.
        ended = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, check=False
        )
        results = json.loads(report.read_text()) if report.exists() else {}
    if ended.returncode not in (0, 1) or not results:
        raise RuntimeError(
            f"pytest ended with {ended.returncode}, after {len(results)} tests:\n"
            f"{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
        )
    return results


def main() -> int:
    """Run what the command line says; the result is 1 when there is something to look at."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="run without scope what fails in it")
    arguments = parser.parse_args()
    status = 0
    for part in arguments.parts or PARTS:
        outcome = compare(part, arguments.quick)
        times = ", ".join(f"{seconds:.0f} s {where}" for where, seconds in outcome.seconds.items())
        print(f"{part}: {len(outcome.failed)} fail only in the scope; {times}")
        for name, why in outcome.failed.items():
            print(f"  {name}\n    {why}")
        for name in outcome.unexpected:
            print(f"  {name}\n    is listed as known, and passed")
        status |= bool(outcome.failed or outcome.unexpected)
    return status


if __name__ == "__main__":
    sys.exit(main())
