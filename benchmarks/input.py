"""Input pipelines, from arrays and from text to two CPU devices of one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from benchmarks.benchmark import Benchmark, Options
from benchmarks.contestant import Contestant
from benchmarks.environments import Environment
from benchmarks.race import Case, race
from benchmarks.report import SUBJECT, CaseReport, Report

ROUNDS = 5
_JAX = {"JAX_PLATFORMS": "cpu"}
_SAME_JAX = tuple(f"{name}=={metadata.version(name)}" for name in ("jax", "jaxlib", "numpy"))
_TENSORFLOW = Environment("tensorflow", ("tensorflow-cpu==2.21.0",))
_GRAIN = Environment("grain", ("grain==0.2.18", *_SAME_JAX))
_TORCH = Environment("torch", ("torch==2.13.0", *_SAME_JAX))


@dataclass(frozen=True)
class Contest:
    """A case, who takes part in it, and the ratios aimed at."""

    case: Case
    contestants: tuple[Contestant, ...]
    targets: Mapping[str, float]


def _loaders(kind: str) -> tuple[Contestant, ...]:
    peers = "benchmarks.peers"
    return (
        Contestant(SUBJECT, f"{peers}.input_jaxtribute", arguments=(kind,), variables=_JAX),
        Contestant("tf_data", f"{peers}.input_tf_data", _TENSORFLOW, (kind,)),
        Contestant("tf_data_tuned", f"{peers}.input_tf_data", _TENSORFLOW, (kind, "--tuned")),
        Contestant("grain", f"{peers}.input_grain", _GRAIN, (kind,), _JAX),
        Contestant("torch", f"{peers}.input_torch", _TORCH, (kind,), _JAX),
    )


def _training(**fed: str) -> tuple[Contestant, ...]:
    module = "benchmarks.peers.input_training"
    return tuple(
        Contestant(name, module, arguments=(kind,), variables=_JAX) for name, kind in fed.items()
    )


_MIRRORED = {"hidden": 256, "batch": 256}  # as in `mirrored`

# Steps such that the slowest measurement of a case lasts about a second on two cores.
CONTESTS = (
    Contest(
        Case("arrays", {"features": 784}, steps=300),
        _loaders("arrays"),
        {"tf_data": 0.5, "grain": 1.0},
    ),
    Contest(Case("text", {"features": 16}, steps=250), _loaders("text"), {"grain": 1.0}),
    Contest(Case("map", {"features": 64}, steps=200), _loaders("map"), {"grain": 1.0}),
    Contest(
        Case("waiting", _MIRRORED, steps=150),
        _training(jaxtribute="next", whole_step="blocking"),
        {"whole_step": 0.05},
    ),
    Contest(
        Case("training", _MIRRORED, steps=150),
        _training(jaxtribute="dataset", from_memory="memory"),
        {},
    ),
)


def run(options: Options) -> Report:
    """Race through one case after the other, as not all contestants take part in each."""
    rounds = options.rounds or ROUNDS
    reports: list[CaseReport] = []
    versions: dict[str, Mapping[str, str]] = {}
    for contest in CONTESTS:
        contestants = [c for c in contest.contestants if options.takes(c.name)]
        if not contestants:
            continue
        case = contest.case
        case = Case(case.name, case.facts, options.steps or case.steps)
        result = race(contestants, [case], rounds)
        samples = {
            name: [seconds * 1e6 for seconds in found]
            for name, found in result.seconds[case.name].items()
        }
        facts = {**case.facts, "steps": case.steps}
        reports.append(CaseReport(case.name, samples, contest.targets, facts))
        versions.update(result.versions)
    return Report("input", "us/batch", rounds, reports, versions)


BENCHMARK = Benchmark(
    name="input",
    title="Input pipelines",
    description="""\
The time from one global batch of 256 examples to the next, out of 20000 examples without end, when
a batch counts once it is on both of two CPU devices of one process, 128 examples on each:

- *arrays*: 784 float32 features and an int32 label in memory, all of them shuffled.
- *text*: a file of lines of 16 numbers, which are read and parsed anew in every epoch.
- *map*: as *arrays*, with 64 features, and a function that normalises an example, and reverses it
  for some labels. jaxtribute, Grain and PyTorch call the same Python functions, for every line and
  every example; TensorFlow does the same by operations on whole batches.

A training step does not only wait for its input, so two cases look at the step of 784-256-10 with
256 examples that the benchmark above measures, trained by jaxtribute from shuffled *arrays*:

- *waiting*: the time spent in `next(iterator)`, against all of the time, when every step is waited
  for before the next batch is asked for.
- *training*: the time of a step when nothing is waited for before the end, against the same steps
  on batches that are on the devices already. The pipeline's own work is part of it, and has to
  share two cores with the devices; no target is set.

Each contestant is a process of its own, and all are measured in turn, one at a time, for several
rounds. The features and labels of eight epochs, added up, have to agree between all contestants
of a case to 0.1 %, or the benchmark fails; of training, it is the losses.""",
    contestants={
        SUBJECT: "`jt.data` and `strategy.experimental_distribute_dataset`, written as a user "
        "would.",
        "tf_data": "`tf.data` as its guides advise, with automatic tuning and prefetching, and "
        "`experimental_distribute_dataset` of a `MirroredStrategy`, read in a Python loop.",
        "tf_data_tuned": "the fastest way found in TensorFlow when this benchmark was written: "
        "indices are shuffled and examples gathered, and all batches are read within one call of "
        "a `tf.function`. No target is set against it.",
        "grain": "Grain with two worker processes, the fastest of the settings tried, then "
        "`jax.device_put` with a `NamedSharding`. *arrays* gathers batches of shuffled indices.",
        "torch": "PyTorch's `DataLoader` without worker processes, which were slower, with NumPy "
        "batches, then `jax.device_put` as for Grain, as PyTorch has but one CPU device. *arrays* "
        "takes whole batches from a `TensorDataset`. No target is set against it.",
        "whole_step": "the steps of *waiting*, with all that they do.",
        "from_memory": "the steps of *training*, fed with batches that are on the devices.",
    },
    run=run,
)
