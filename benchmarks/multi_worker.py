"""A training step of two processes, and how fast two processes are started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata

from benchmarks.benchmark import Benchmark, Options
from benchmarks.contestant import Contestant
from benchmarks.environments import Environment
from benchmarks.launches import Launcher, Seconds, measure_in_turn
from benchmarks.race import Case, race
from benchmarks.report import SUBJECT, CaseReport, Report

ROUNDS = 7
LAUNCHES = 3  # a launch takes seconds
_JAX = {"JAX_PLATFORMS": "cpu"}
_TENSORFLOW = Environment("tensorflow", ("tensorflow-cpu==2.21.0",))
_TORCH = Environment("torch", ("torch==2.13.0", f"numpy=={metadata.version('numpy')}"))


def _pair(name: str, environment: Environment | None = None, **variables: str) -> Contestant:
    return Contestant(
        SUBJECT if name == "jaxtribute" else name,
        "benchmarks.peers.multi_worker_pair",
        environment or Environment("current"),
        (f"benchmarks.peers.multi_worker_{name}",),
        variables,
    )


CONTESTANTS = (
    _pair("jaxtribute", **_JAX),
    _pair("handwritten", **_JAX),
    _pair("tensorflow", _TENSORFLOW),
    # What torchrun sets, and one core a process is all there is.
    _pair("torch", _TORCH, OMP_NUM_THREADS="1"),
)

CASES = (
    Case("H=64, B=32", {"hidden": 64, "batch": 32}, steps=300),
    Case("H=256, B=256", {"hidden": 256, "batch": 256}, steps=100),
    Case("H=2048, B=512", {"hidden": 2048, "batch": 512}, steps=30),
)
TARGETS = {"handwritten": 1.0, "tensorflow": 0.7, "torch": 1.0}

_LAUNCHED = "benchmarks.peers.multi_worker_started"
LAUNCHERS = (
    Launcher(
        SUBJECT,
        Environment("current"),
        f"-m jaxtribute.cli launch --workers 2 --max-restarts 1 -m {_LAUNCHED} jaxtribute",
    ),
    Launcher(
        "torch",
        _TORCH,
        "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1 "
        f"-m {_LAUNCHED} torch",
    ),
)


def run(options: Options) -> Report:
    """Race the pairs through all cases, then the launchers."""
    rounds = options.rounds or ROUNDS
    cases = [Case(case.name, case.facts, options.steps or case.steps) for case in CASES]
    result = race([c for c in CONTESTANTS if options.takes(c.name)], cases, rounds)
    reports = [result.report(case, TARGETS) for case in cases]
    launchers = [one for one in LAUNCHERS if options.takes(one.name)]
    reports += launch_reports(measure_in_turn(launchers, min(rounds, LAUNCHES)))
    return Report("multi_worker", "ms", rounds, reports, result.versions)


def launch_reports(found: Mapping[str, Sequence[Seconds]]) -> list[CaseReport]:
    """Launches and restarts as cases, for which no target is set."""
    if not found:
        return []
    launch = {name: [one.launch * 1e3 for one in seconds] for name, seconds in found.items()}
    restart = {name: [one.restart * 1e3 for one in seconds] for name, seconds in found.items()}
    return [CaseReport("launch", launch), CaseReport("restart", restart)]


BENCHMARK = Benchmark(
    name="multi_worker",
    title="Training steps of two processes",
    description="""\
The network, the batches and the optimizer of the benchmark above, trained by two processes of one
CPU device each on this machine, which talk to each other through sockets. A batch of B examples is
divided between them, and each is fed with its half from NumPy arrays in host memory.

A contestant is a pair of processes, and the pairs are measured in turn, one at a time, for several
rounds. Both processes of a pair are told to start at once, and the slower one's time counts. A
measurement starts from the same weights and batches, warms up, and ends when all results are
computed; the losses of all contestants must then agree to 0.1 %, or the benchmark fails.

Two cases are about starting the training of H=64, B=32 on two workers, by a launcher that starts
them again when one fails. Each is measured three times, and no target is set:

- *launch*: from the launcher's start until both workers have trained a step.
- *restart*: from `kill -9` of one worker until both workers have trained a step again.""",
    contestants={
        SUBJECT: "`MultiWorkerMirroredStrategy`, fed through `experimental_distribute_dataset`; "
        "the rest is the same program as on two devices. Launched by `jaxtribute launch`.",
        "handwritten": "plain JAX over Gloo: `jax.jit` of `jax.shard_map` with donated weights, "
        "one `lax.psum` for the loss and all small gradients and one for each large gradient, fed "
        "through `jax.make_array_from_process_local_data`.",
        "tensorflow": "`MultiWorkerMirroredStrategy` with its defaults, `tf.function` and "
        "`strategy.run`, fed through `experimental_distribute_values_from_function`.",
        "torch": "PyTorch's `DistributedDataParallel` with its defaults on Gloo, with one thread "
        "a process, as torchrun sets. It adds up the loss of the two processes only in the end. "
        "Launched by `torchrun`.",
    },
    run=run,
)
