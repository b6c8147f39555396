"""All benchmarks, by name; a new one is a file here and a line in `BENCHMARKS`."""

from __future__ import annotations

from benchmarks import checkpoint, imports, input, keras, mirrored, multi_worker, parameter_server
from benchmarks.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        mirrored.BENCHMARK,
        multi_worker.BENCHMARK,
        parameter_server.BENCHMARK,
        keras.BENCHMARK,
        input.BENCHMARK,
        checkpoint.BENCHMARK,
        imports.BENCHMARK,
    )
}


def chosen(name: str, only: frozenset[str] | None) -> list[Benchmark]:
    """The benchmarks that a name and a choice of contestants stand for."""
    named = list(BENCHMARKS.values()) if name == "all" else [BENCHMARKS[name]]
    if only is None:
        return named
    known = {contestant for benchmark in named for contestant in benchmark.contestants}
    if unknown := sorted(only - known):
        raise ValueError(
            f"--only names {', '.join(unknown)}, which does not take part in {name}; "
            f"these do: {', '.join(sorted(known))}."
        )
    return [benchmark for benchmark in named if only & benchmark.contestants.keys()]
