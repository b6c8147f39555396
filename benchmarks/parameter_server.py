"""Asynchronous training with parameter servers, and what its runtime costs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.benchmark import Benchmark, Options
from benchmarks.contestant import Contestant, Running
from benchmarks.environments import Environment
from benchmarks.race import Case, race
from benchmarks.report import SUBJECT, CaseReport, Rate, Report

ROUNDS = 5
LOSSES = 3  # a killed worker takes seconds to be back
WORKER_COUNTS = (1, 2, 4, 8, 16, 32, 64)
MEGABYTES = 64
ECHO = "raw_echo"

_PEERS = "benchmarks.peers.parameter_server"
_JAX = {"JAX_PLATFORMS": "cpu"}
_TENSORFLOW = Environment("tensorflow", ("tensorflow-cpu==2.21.0",))
CLOSURES = Rate("closures/s", 1)


@dataclass(frozen=True)
class Aim:
    """A case, and what is to be reached in it."""

    case: Case
    targets: Mapping[str, float] = field(default_factory=dict)
    rate: Rate | None = None
    at_least: float | None = None


@dataclass(frozen=True)
class Contest:
    """Contestants, and the cases in which they meet."""

    contestants: tuple[Contestant, ...]
    aims: tuple[Aim, ...]


def _ours(kind: str) -> Contestant:
    return Contestant(SUBJECT, f"{_PEERS}_jaxtribute", arguments=(kind,), variables=_JAX)


def _tensorflow(kind: str) -> Contestant:
    return Contestant("tensorflow", f"{_PEERS}_tensorflow", _TENSORFLOW, (kind,))


def _of_many(workers: int) -> Contest:
    """Closures of nothing and of 2 ms on simulated workers."""
    contestant = Contestant(SUBJECT, f"{_PEERS}_many", arguments=(str(workers),), variables=_JAX)
    simulated = f"{workers} simulated workers" if workers > 1 else "1 simulated worker"
    facts = {"workers": workers, "simulated": 1}
    return Contest(
        (contestant,),
        (
            Aim(Case(f"empty, {simulated}", {**facts, "sleep_ms": 0}, 4000), rate=CLOSURES),
            Aim(
                Case(f"2 ms, {simulated}", {**facts, "sleep_ms": 2}, min(400 * workers, 4000)),
                rate=CLOSURES,
            ),
        ),
    )


CONTESTS = (
    Contest(
        (_ours("mlp"), _tensorflow("mlp")),
        (
            Aim(Case("H=64, B=32", {"hidden": 64, "batch": 32}, 400), {"tensorflow": 0.4}),
            Aim(Case("H=256, B=256", {"hidden": 256, "batch": 256}, 200), {"tensorflow": 0.6}),
            Aim(Case("H=2048, B=512", {"hidden": 2048, "batch": 512}, 50), {"tensorflow": 0.95}),
        ),
    ),
    Contest(
        (_ours("embedding"), _tensorflow("embedding")),
        (
            Aim(
                Case("embedding", {"rows": 1_000_000, "width": 64, "ids": 4096}, 150),
                {"tensorflow": 0.5},
            ),
        ),
    ),
    Contest(
        (_ours("closures"), _tensorflow("closures")),
        (Aim(Case("empty closure", {"workers": 2}, 3000), rate=CLOSURES, at_least=5000),),
    ),
    Contest(
        (
            _ours("reading"),
            Contestant(ECHO, f"{_PEERS}_echo"),
            _tensorflow("reading"),
        ),
        (
            Aim(
                Case(f"reading {MEGABYTES} MB", {"megabytes": MEGABYTES}, 15),
                {ECHO: 1 / 0.7},  # at least 70 % of its bytes a second
                Rate("MB/s", MEGABYTES),
            ),
        ),
    ),
    *(_of_many(workers) for workers in WORKER_COUNTS),
)

RECOVERY = Contestant(SUBJECT, f"{_PEERS}_recovery", variables=_JAX)


def run(options: Options) -> Report:
    """Race through one contest after the other, then kill workers."""
    rounds = options.rounds or ROUNDS
    reports: list[CaseReport] = []
    versions: dict[str, Mapping[str, str]] = {}
    for contest in CONTESTS:
        if not (taking := [c for c in contest.contestants if options.takes(c.name)]):
            continue
        cases = [
            Case(aim.case.name, aim.case.facts, options.steps or aim.case.steps)
            for aim in contest.aims
        ]
        result = race(taking, cases, rounds)
        versions = {**result.versions, **versions}
        for aim, case in zip(contest.aims, cases, strict=True):
            reports.append(report_of(aim, case, result.seconds[case.name]))
    if options.takes(SUBJECT):
        reports += recovery_reports(min(rounds, LOSSES))
    return Report("parameter_server", "ms", rounds, reports, versions)


def report_of(aim: Aim, case: Case, seconds: Mapping[str, Sequence[float]]) -> CaseReport:
    """What was measured, and what was aimed at."""
    return CaseReport(
        name=case.name,
        samples={name: [one * 1e3 for one in samples] for name, samples in seconds.items()},
        targets=aim.targets,
        facts={**case.facts, "steps": case.steps},
        rate=aim.rate,
        at_least=aim.at_least,
    )


def recovery_reports(losses: int) -> list[CaseReport]:
    """Kill workers, for the time without updates and for the time until it is back."""
    reports: list[CaseReport] = []
    with Running(RECOVERY) as running:
        for name, restarted in (("killed worker: next update", 0), ("killed worker: back", 1)):
            samples: list[float] = []
            for number in range(losses + 1):  # round 0 compiles, and is not counted
                seconds = running.measure({"restarted": restarted}, steps=1, warmup=0).seconds
                print(f"{name}, {number}/{losses}: {seconds * 1e3:.0f} ms", file=sys.stderr)
                samples += [seconds * 1e3] if number else []
            reports.append(CaseReport(name, {SUBJECT: samples}))
    return reports


BENCHMARK = Benchmark(
    name="parameter_server",
    title="Training with parameter servers",
    description="""\
Asynchronous training by a coordinator, 2 workers and 1 or 2 parameter servers, each a process of
this machine. Both sides keep their defaults for threads: in every process, pools of as many threads
as the machine has cores. A coordinator schedules all closures of a measurement at once and joins;
the time of a step is all of the time divided by the number of closures.

- *H, B*: a 784-H-10 network on one server; every closure trains on a batch of B examples, which its
  worker's dataset takes from arrays in memory.
- *embedding*: a table of 1,000,000 x 64 numbers on two servers. A closure looks up 256 bags of 16
  ids, which follow Zipf's law, classifies the mean of each bag, and updates the rows it used.
- *empty closure*: a traced function without arguments, result or content.
- *reading*: a variable of 64 MB, from a server to an array of the coordinator.
- *simulated workers*: functions that do nothing, or sleep for 2 ms, on many workers that are not
  machines but threads of at most 4 processes of this one; so all of them share its cores.
- *killed worker*: from `kill -9` of one of two workers, under load, until the other one has applied
  the next update, and until the killed one, which is started again at once, begins its first
  closure. Every closure increments a variable by one, which must end at their number.

Contestants are measured in turn, one at a time, for several rounds. A measurement starts from the
same weights and warms up. As workers update in no fixed order, what must agree between contestants
to 0.1 % is the loss of the final weights over all batches.""",
    contestants={
        SUBJECT: "`ParameterServerStrategy` and `ClusterCoordinator`, with `jt.function`, "
        "`strategy.run`, an Optax optimizer and `create_per_worker_dataset`, written as a user "
        "would; tasks run `jaxtribute server`.",
        "tensorflow": "`tf.distribute.ParameterServerStrategy`, the same program with "
        "`tf.function`, whose updates are `assign_sub` and `scatter_sub` without an optimizer "
        "around them; tasks run `tf.distribute.Server`.",
        ECHO: "ZeroMQ alone: two processes send an array to and fro through an `ipc` socket, "
        "without copying more than ZeroMQ does; half of the time of a round trip counts.",
    },
    run=run,
)
