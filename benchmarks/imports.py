"""How long `import jaxtribute` takes, against `import jax`."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

from benchmarks.benchmark import Benchmark, Options
from benchmarks.report import SUBJECT, CaseReport, Report

ROUNDS = 15
FEWEST_ROUNDS = 9  # an import is short and noisy
TARGETS = {"jax": 1.5}

_PROGRAM = """\
import time
start = time.perf_counter()
import {module}
print(time.perf_counter() - start)
"""


class ImportFailed(RuntimeError):
    """A module that is to be measured cannot be imported."""


def run(options: Options) -> Report:
    """Import the modules in turn, each time in a fresh interpreter."""
    rounds = max(options.rounds or ROUNDS, FEWEST_ROUNDS)
    modules = [name for name in BENCHMARK.contestants if options.takes(name)]
    samples: dict[str, list[float]] = {module: [] for module in modules}
    for number in range(rounds + 1):
        for module in modules:
            taken = _import_milliseconds(module)
            if number:  # the first time writes bytecode and fills the file cache
                samples[module].append(taken)
    print(f"imported {', '.join(modules)}, {rounds} times each", file=sys.stderr)
    case = CaseReport("import", samples, TARGETS)
    versions = {module: {module: metadata.version(module)} for module in modules}
    return Report("imports", "ms", rounds, [case], versions)


def _import_milliseconds(module: str) -> float:
    program = _PROGRAM.format(module=module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        raise ImportFailed(
            f"import {module} failed in {sys.executable}:\n{done.stderr.strip()}\n"
            "Run the benchmarks with an interpreter that has it, as `make bench` does."
        )
    return float(done.stdout) * 1e3


BENCHMARK = Benchmark(
    name="imports",
    title="Import time",
    description="""\
The time of the import statement alone, in a fresh interpreter each time, in turn.
`import jaxtribute` includes importing JAX, so 1 would be the best possible ratio.""",
    contestants={SUBJECT: "`import jaxtribute`", "jax": "`import jax`"},
    run=run,
)
