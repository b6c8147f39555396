"""Saving and restoring 1 GB, many small variables, and the variables of parameter servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata

from benchmarks.benchmark import Benchmark, Options
from benchmarks.contestant import Contestant
from benchmarks.environments import Environment
from benchmarks.peers.checkpoint_work import PARTS
from benchmarks.race import Case, Result, race
from benchmarks.report import SUBJECT, CaseReport, Report

ROUNDS = 7

_PEERS = "benchmarks.peers.checkpoint"
_JAX = {"JAX_PLATFORMS": "cpu"}
_NUMPY = f"numpy=={metadata.version('numpy')}"
_OURS = tuple(f"{name}=={metadata.version(name)}" for name in ("jax", "jaxlib", "tensorstore"))
_ORBAX = Environment("orbax", ("orbax-checkpoint==0.12.8", *_OURS, _NUMPY))
_TENSORFLOW = Environment("tensorflow", ("tensorflow-cpu==2.21.0",))
_TORCH = Environment("torch", ("torch==2.13.0", _NUMPY))

LOCAL = (
    Contestant(SUBJECT, f"{_PEERS}_jaxtribute", variables=_JAX),
    Contestant("orbax", f"{_PEERS}_orbax", _ORBAX, variables=_JAX),
    Contestant("orbax_uncompressed", f"{_PEERS}_orbax", _ORBAX, ("--uncompressed",), _JAX),
    # The allocator of oneDNN would keep gigabytes while others are measured.
    Contestant(
        "tensorflow",
        f"{_PEERS}_tensorflow",
        _TENSORFLOW,
        variables={"TF_ENABLE_ONEDNN_OPTS": "0"},
    ),
    Contestant("torch", f"{_PEERS}_torch", _TORCH),
)


@dataclass(frozen=True)
class Contest:
    """A case, who takes part in it, and the ratios aimed at, by what is measured."""

    case: Case
    contestants: tuple[Contestant, ...] = LOCAL
    targets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


# A step is a save and a restore. To warm up once more before each round would double the time.
CONTESTS = (
    Contest(
        Case("1 GB", {"width": 1152}, steps=1, warms_up=False),
        targets={
            "blocking": {"orbax": 1.1, "orbax_uncompressed": 1.1, "tensorflow": 0.3},
            "restore": {"orbax": 1.1, "orbax_uncompressed": 1.1},
        },
    ),
    Contest(Case("2000 x 1 KB", {"arrays": 2000}, steps=1, warms_up=False)),
    Contest(
        Case("250 MB on 2 servers", {"width": 576}, steps=1, warms_up=False),
        (Contestant(SUBJECT, f"{_PEERS}_servers", variables=_JAX),),
    ),
)


def run(options: Options) -> Report:
    """Race through one case after the other, so that not more is in memory than one needs."""
    rounds = options.rounds or ROUNDS
    reports: list[CaseReport] = []
    versions: dict[str, Mapping[str, str]] = {}
    for contest in CONTESTS:
        if taking := [c for c in contest.contestants if options.takes(c.name)]:
            case = replace(contest.case, steps=options.steps or contest.case.steps)
            result = race(taking, [case], rounds)
            reports += part_reports(case, result, contest.targets)
            versions = {**result.versions, **versions}
    return Report("checkpoint", "ms", rounds, reports, versions)


def part_reports(
    case: Case, result: Result, targets: Mapping[str, Mapping[str, float]]
) -> list[CaseReport]:
    """What was measured of a case, each as a case of its own."""
    reports: list[CaseReport] = []
    for part in PARTS:
        unit, scale = ("MB", 1e-6) if part == "size" else (None, 1e3)
        samples = {
            name: [one * scale for one in found]
            for name, found in result.parts[case.name][part].items()
        }
        facts = {**case.facts, "steps": case.steps}
        reports.append(
            CaseReport(f"{case.name}, {part}", samples, targets.get(part, {}), facts, unit=unit)
        )
    return reports


BENCHMARK = Benchmark(
    name="checkpoint",
    title="Checkpoints",
    description="""\
Saving float32 state that is being trained, and restoring it, on one CPU device of one process:

- *1 GB*: 67 arrays of 4 bytes to 64 MB, the parameters of a small transformer and two slots for
  each as Adam has. Their numbers are normally distributed, which compresses by less than a tenth.
- *2000 x 1 KB*: as many small variables. No target is set.
- *250 MB on 2 servers*: a quarter of the first, divided between two parameter servers, which are
  processes of this machine, and trained by a worker. Nobody else takes part.

A program trains a step, which changes all state, saves, trains the next step at once, starts again
with zeros, and restores. Measured of it are:

- *blocking*: how long the call that saves holds up the training.
- *next step*: the step right after it, which may share the machine with what is written in the
  background, or have to leave the memory that is being written alone.
- *total*: from the call until the checkpoint is complete, while that step is trained. jaxtribute
  and Orbax then have it on the disk (`fsync`); TensorFlow and PyTorch leave that to the kernel.
- *restore*: the call that restores from files that the kernel has in memory, until all arrays are
  on the device.
- *size*: the bytes of all files.

Each contestant is a process of its own, and all are measured in turn, one at a time, for several
rounds. What is restored must equal, bit for bit, the state when it was saved, or the benchmark
fails.""",
    contestants={
        SUBJECT: "`jt.train.Checkpoint` of `jt.Variable`s, and `jt.function` for the step, written "
        "as a user would.",
        "orbax": "`AsyncCheckpointer` with `StandardSave`, and `StandardRestore` to the device; "
        "the step is a `jax.jit` that donates its arguments.",
        "orbax_uncompressed": "the fastest of Orbax's settings tried: `PyTreeSave` and "
        "`PyTreeRestore` of a handler that does not compress.",
        "tensorflow": "`tf.train.Checkpoint` of `tf.Variable`s with its defaults, which saves "
        "before it returns, and `tf.function` for the step.",
        "torch": "`torch.save` and `torch.load` of tensors, which are trained in place. No target "
        "is set against it.",
    },
    run=run,
)
