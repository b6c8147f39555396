"""A training step on two CPU devices of one process."""

from __future__ import annotations

from benchmarks.benchmark import Benchmark, Options
from benchmarks.contestant import Contestant
from benchmarks.environments import Environment
from benchmarks.race import Case, race
from benchmarks.report import SUBJECT, Report

ROUNDS = 7
_JAX = {"JAX_PLATFORMS": "cpu"}
_TENSORFLOW = Environment("tensorflow", ("tensorflow-cpu==2.21.0",))

CONTESTANTS = (
    Contestant(SUBJECT, "benchmarks.peers.mirrored_jaxtribute", variables=_JAX),
    Contestant("handwritten", "benchmarks.peers.mirrored_handwritten", variables=_JAX),
    Contestant("tensorflow", "benchmarks.peers.mirrored_tensorflow", _TENSORFLOW),
    Contestant(
        "tensorflow_tuned", "benchmarks.peers.mirrored_tensorflow", _TENSORFLOW, ("--tuned",)
    ),
)

# Steps such that a measurement lasts most of a second or more on two cores.
CASES = (
    Case("H=64, B=32", {"hidden": 64, "batch": 32}, steps=800),
    Case("H=256, B=256", {"hidden": 256, "batch": 256}, steps=250),
    Case("H=2048, B=512", {"hidden": 2048, "batch": 512}, steps=40),
)
TARGETS = (
    {"handwritten": 1.25, "tensorflow": 0.5},
    {"handwritten": 1.05, "tensorflow": 0.8},
    {"handwritten": 1.05, "tensorflow": 1.1},
)


def run(options: Options) -> Report:
    """Race the contestants through all cases."""
    rounds = options.rounds or ROUNDS
    cases = [Case(case.name, case.facts, options.steps or case.steps) for case in CASES]
    result = race([c for c in CONTESTANTS if options.takes(c.name)], cases, rounds)
    reports = [result.report(*aim) for aim in zip(cases, TARGETS, strict=True)]
    return Report("mirrored", "ms/step", rounds, reports, result.versions)


BENCHMARK = Benchmark(
    name="mirrored",
    title="Training steps on two devices of one process",
    description="""\
A network 784-H-10 with one hidden layer (relu), the mean softmax cross-entropy over a global batch
of B examples, plain SGD, float32, on two CPU devices of one process. Every step gets its batch from
host memory, as NumPy arrays; a step is started from Python each time.

Each contestant is a process of its own. They are measured in turn, one at a time, for several
rounds. A measurement starts from the same weights and batches, warms up, and ends when all results
are computed; the losses of all contestants must then agree to 0.1 %, or the benchmark fails.""",
    contestants={
        SUBJECT: "`MirroredStrategy`, `jt.function` and `strategy.run`, written as a user would, "
        "fed through `experimental_distribute_values_from_function`.",
        "handwritten": "plain JAX: `jax.jit` of `jax.shard_map` with `lax.psum` and donated "
        "weights, fed through `jax.device_put` with a `NamedSharding`.",
        "tensorflow": "`MirroredStrategy` with its defaults, `tf.function` and `strategy.run`, fed "
        "through `experimental_distribute_values_from_function`, chosen because a distributed "
        "dataset was slower when this benchmark was written.",
        "tensorflow_tuned": "the fastest way found in TensorFlow when this benchmark was "
        "written: the whole batch as one tensor, split inside the `tf.function`, "
        "`HierarchicalCopyAllReduce` instead of the default, and a fused update operation. "
        "No target is set against it.",
    },
    run=run,
)
