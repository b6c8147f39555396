"""`fit` of Keras on two CPU devices of one process."""

from __future__ import annotations

from importlib import metadata

from benchmarks.benchmark import Benchmark, Options
from benchmarks.contestant import Contestant
from benchmarks.environments import Environment
from benchmarks.race import Case, race
from benchmarks.report import SUBJECT, Report

ROUNDS = 7
_JAX = {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
_SAME_KERAS = f"keras=={metadata.version('keras')}"
_TENSORFLOW = Environment("tensorflow", ("tensorflow-cpu==2.21.0", _SAME_KERAS))

CONTESTANTS = (
    Contestant(SUBJECT, "benchmarks.peers.keras_jaxtribute", variables=_JAX),
    Contestant("data_parallel", "benchmarks.peers.keras_data_parallel", variables=_JAX),
    Contestant(
        "tensorflow",
        "benchmarks.peers.keras_tensorflow",
        _TENSORFLOW,
        variables={"KERAS_BACKEND": "tensorflow"},
    ),
)

# Whole epochs, such that a measurement lasts most of a second or more on two cores.
CASES = (
    Case("MLP, H=256, B=256", {"hidden": 256, "batch": 256}, steps=250),
    Case("convolutional, F=16, B=64", {"filters": 16, "batch": 64}, steps=50),
)
TARGETS = ({"data_parallel": 1.05, "tensorflow": 0.5}, {})


def run(options: Options) -> Report:
    """Race the contestants through all cases."""
    rounds = options.rounds or ROUNDS
    cases = [Case(case.name, case.facts, options.steps or case.steps) for case in CASES]
    result = race([c for c in CONTESTANTS if options.takes(c.name)], cases, rounds)
    reports = [result.report(*aim) for aim in zip(cases, TARGETS, strict=True)]
    return Report("keras", "ms/step", rounds, reports, result.versions)


BENCHMARK = Benchmark(
    name="keras",
    title="Keras's `fit` on two devices of one process",
    description="""\
`model.fit` of Keras 3 from NumPy arrays in memory, which it shuffles, with plain SGD, the softmax
cross-entropy and the accuracy, float32, on two CPU devices of one process. B is the global batch,
and an epoch has 50 of them:

- *MLP*: the network 784-H-10 of the benchmarks above.
- *convolutional*: two convolutions with F and 2F filters of 3x3 (relu), each followed by pooling,
  and a layer that classifies, for pictures of 28x28 pixels. No target is set.

All contestants run the same program with the same version of Keras, and create the model in
another scope. Each is a process of its own. They are measured in turn, one at a time, for several
rounds, after some steps that warm up; the time is that of whole calls of `fit`. After each
measurement all train 10 batches in the same order, from the same weights; the losses must then
agree to 0.1 %, or the benchmark fails.""",
    contestants={
        SUBJECT: "Keras on JAX, the model created in the scope of `jt.MirroredStrategy`.",
        "data_parallel": "Keras on JAX, under its own `keras.distribution.DataParallel`.",
        "tensorflow": "Keras on TensorFlow, the model created in the scope of "
        "`tf.distribute.MirroredStrategy`.",
    },
    run=run,
)
