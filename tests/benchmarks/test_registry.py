"""Which benchmarks run, and who takes part."""

import pytest

from benchmarks.__main__ import main
from benchmarks.benchmark import Options
from benchmarks.environments import Environment
from benchmarks.mirrored import CASES, CONTESTANTS, TARGETS
from benchmarks.race import Disagreement, check_agreement
from benchmarks.registry import BENCHMARKS, chosen


def test_each_benchmark_is_found_by_its_own_name() -> None:
    assert all(name == benchmark.name for name, benchmark in BENCHMARKS.items())
    assert {"mirrored", "input", "imports"} <= BENCHMARKS.keys()


def test_every_contestant_of_mirrored_is_described() -> None:
    assert [c.name for c in CONTESTANTS] == list(BENCHMARKS["mirrored"].contestants)
    assert len(CASES) == len(TARGETS)


def test_all_means_all_and_only_leaves_out_what_has_nobody_left() -> None:
    assert chosen("all", None) == list(BENCHMARKS.values())
    assert [b.name for b in chosen("all", frozenset({"jax"}))] == ["imports"]


def test_an_unknown_contestant_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"nobody.*these do: handwritten, jaxtribute"):
        chosen("mirrored", frozenset({"nobody"}))


def test_options_take_everybody_unless_told() -> None:
    assert Options().takes("anybody")
    assert not Options(only=frozenset({"jax"})).takes("jaxtribute")


def test_one_benchmark_alone_may_not_overwrite_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["imports", "--write", "page.md"])
    assert "drop the other benchmarks" in capsys.readouterr().err


def test_results_may_differ_by_rounding_only() -> None:
    check_agreement("c", {"a": 1.0, "b": 1.0005})
    with pytest.raises(Disagreement, match=r"a: 1.0, b: 1.01"):
        check_agreement("c", {"a": 1.0, "b": 1.01})
    with pytest.raises(Disagreement):
        check_agreement("c", {"a": float("nan"), "b": float("nan")})


def test_environments_of_other_requirements_live_elsewhere() -> None:
    one, other = Environment("e", ("a==1",)), Environment("e", ("a==2",))
    assert one.directory != other.directory
    assert one.directory == Environment("e", ("a==1",)).directory
    assert Environment("current").is_current
