"""How the pairs of `multi_worker` are started, told apart and put together."""

import json

import pytest

from benchmarks.launches import Seconds, first_steps
from benchmarks.multi_worker import CONTESTANTS, LAUNCHERS, TARGETS, launch_reports
from benchmarks.peers.multi_worker_cluster import Cluster, this_cluster
from benchmarks.peers.multi_worker_pair import combine, free_addresses, tf_config
from benchmarks.registry import BENCHMARKS
from benchmarks.report import SUBJECT


def test_every_contestant_is_described_and_every_target_has_an_opponent() -> None:
    names = [contestant.name for contestant in CONTESTANTS]
    assert names == list(BENCHMARKS["multi_worker"].contestants)
    assert names[0] == SUBJECT and TARGETS.keys() == set(names[1:])
    assert {launcher.name for launcher in LAUNCHERS} <= set(names)


def test_addresses_are_of_this_host_and_differ() -> None:
    addresses = free_addresses(3)
    assert len(set(addresses)) == 3
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_each_worker_reads_from_its_tf_config_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(["127.0.0.1:1", "127.0.0.1:2"], 1))
    assert this_cluster() == Cluster("127.0.0.1:1", 2, 1)


def test_a_pair_is_as_slow_as_its_slower_worker() -> None:
    replies = [{"seconds": 2.0, "outcome": 0.5}, {"seconds": 3.0, "outcome": 0.5}]
    assert combine(replies) == {"seconds": 3.0, "outcome": 0.5}


@pytest.mark.parametrize(
    ("second", "error"),
    [
        ({"seconds": 1.0, "outcome": 0.25}, r"different results: \[0.5, 0.25\]"),
        ({"error": "no memory"}, "no memory"),
    ],
)
def test_a_pair_fails_when_workers_differ_or_one_fails(second: dict, error: str) -> None:
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(combine([{"seconds": 1.0, "outcome": 0.5}, second])["error"])


def test_the_packages_of_a_pair_are_those_of_its_first_worker() -> None:
    assert combine([{"versions": {"a": "1"}}] * 2) == {"versions": {"a": "1"}}


def _told(*workers: tuple[int, int, int]) -> str:
    keys = ("restarts", "rank", "pid")
    return "".join(json.dumps(dict(zip(keys, one, strict=True))) + "\n" for one in workers)


@pytest.mark.parametrize(
    ("text", "restarts", "pids"),
    [
        (_told(), 0, None),
        (_told((0, 1, 11)), 0, None),
        (_told((0, 1, 11), (0, 0, 10)), 0, [10, 11]),
        (_told((0, 1, 11), (0, 0, 10)), 1, None),
        (_told((0, 0, 10), (0, 1, 11), (1, 1, 21), (1, 0, 20)), 1, [20, 21]),
    ],
)
def test_a_start_counts_when_all_its_workers_have_trained(
    text: str, restarts: int, pids: list[int] | None
) -> None:
    found = first_steps(text, restarts)
    assert (found and [one["pid"] for one in found]) == pids


def test_launches_become_two_cases_without_targets() -> None:
    launch, restart = launch_reports({SUBJECT: [Seconds(1.0, 2.0)], "torch": [Seconds(4.0, 4.0)]})
    assert launch.compared()["torch"].median == 0.25
    assert restart.measured()[SUBJECT].median == 2000.0
    assert launch.met() == restart.met() == {}
    assert launch_reports({}) == []
