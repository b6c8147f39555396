"""What the contestants of `parameter_server` are given, and how what they find is reported."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.parameter_server import CONTESTS, ECHO, WORKER_COUNTS, report_of
from benchmarks.peers.parameter_server_cluster import Cluster, free_spec, tf_config
from benchmarks.peers.parameter_server_recovery import Ran, absence, standstill
from benchmarks.peers.parameter_server_work import Embedding, Large, Mlp, mean_loss
from benchmarks.registry import BENCHMARKS
from benchmarks.report import SUBJECT


def test_every_contestant_is_described_and_every_target_has_an_opponent() -> None:
    described = BENCHMARKS["parameter_server"].contestants
    for contest in CONTESTS:
        names = [contestant.name for contestant in contest.contestants]
        assert names[0] == SUBJECT and set(names) <= described.keys()
        assert all(aim.targets.keys() <= set(names[1:]) for aim in contest.aims)


def test_no_two_cases_have_one_name_and_simulated_workers_are_called_so() -> None:
    cases = [aim.case for contest in CONTESTS for aim in contest.aims]
    assert len({case.name for case in cases}) == len(cases)
    simulated = [case for case in cases if "simulated" in case.facts]
    assert len(simulated) == 2 * len(WORKER_COUNTS)
    assert all("simulated" in case.name for case in simulated)


@pytest.mark.parametrize(
    ("case", "milliseconds", "met"),
    [("empty closure", 0.1, True), ("empty closure", 0.3, False)],
)
def test_a_rate_is_told_beside_its_target(case: str, milliseconds: float, met: bool) -> None:
    (aim,) = (aim for contest in CONTESTS for aim in contest.aims if aim.case.name == case)
    report = report_of(aim, aim.case, {SUBJECT: [milliseconds / 1e3]}).as_json()
    assert report["rates"] == {SUBJECT: pytest.approx(1e3 / milliseconds)}
    assert (report["rate_unit"], report["target_rate"]) == ("closures/s", 5000)
    assert report["met_rate"] is met


@pytest.mark.parametrize(("ours", "met"), [(50.0, True), (60.0, False)])
def test_reading_must_reach_seven_tenths_of_the_echo(ours: float, met: bool) -> None:
    (aim,) = (aim for contest in CONTESTS for aim in contest.aims if ECHO in aim.targets)
    report = report_of(aim, aim.case, {SUBJECT: [ours / 1e3], ECHO: [40.0 / 1e3]})
    assert report.met() == {ECHO: met}
    assert report.rates()[ECHO] == pytest.approx(1600)


def test_the_loss_is_the_mean_cross_entropy() -> None:
    logits = np.log(np.array([[0.25, 0.75], [0.5, 0.5]], np.float32))
    assert mean_loss(logits, np.array([1, 0])) == pytest.approx(-np.log([0.75, 0.5]).mean())


def test_the_network_starts_near_the_loss_of_guessing() -> None:
    work = Mlp(hidden=8, batch=4)
    xs, ys = work.stacked()
    assert xs.shape == (8, 4, 784) and ys.shape == (8, 4)
    assert 2 < work.loss(work.weights()) < 4


def test_ids_are_rows_of_the_table_few_of_them_popular_and_shared_by_the_servers() -> None:
    work = Embedding(rows=10_000, width=4, ids=1024)
    ids, labels = work.stacked()
    assert ids.shape == (8, 64, 16) and labels.shape == (8, 64)
    assert ids.min() >= 0 and ids.max() < work.rows
    _, counts = np.unique(ids, return_counts=True)
    assert counts.max() > 0.1 * ids.size and np.median(counts) < 5
    assert 0.2 < np.mean(ids < work.rows / 2) < 0.8


def test_a_table_of_zeros_knows_nothing() -> None:
    work = Embedding(rows=100, width=4, ids=64)
    rows = np.zeros((*work.stacked()[0].shape, work.width), np.float32)
    assert work.loss(rows, *work.head()) == pytest.approx(np.log(10))


def test_a_large_array_has_so_many_megabytes() -> None:
    assert Large(3).array().nbytes == 3 * 2**20


def test_all_tasks_of_a_cluster_have_addresses_of_their_own() -> None:
    spec = free_spec(workers=2, servers=1)
    assert {job: len(addresses) for job, addresses in spec.items()} == {
        "chief": 1,
        "worker": 2,
        "ps": 1,
    }
    assert len({address for addresses in spec.values() for address in addresses}) == 4
    config = json.loads(tf_config(spec, "ps", 0))
    assert config == {"cluster": spec, "task": {"type": "ps", "index": 0}}


@pytest.mark.processes
def test_a_killed_task_can_be_started_again_and_all_end_with_their_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_CONFIG", "")  # puts back what there was before
    with Cluster(1, 1, ("-c", "import time; time.sleep(100)")) as cluster:
        assert json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief"
        killed = cluster.kill("worker", 0)
        again = cluster.start("worker", 0)
        assert again != killed
        os.kill(again, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(again, 0)


def _ran(*times: tuple[int, float]) -> list[Ran]:
    return [Ran(process, began) for process, began in times]


@pytest.mark.parametrize(
    ("ran", "seconds"),
    [
        (_ran(), None),
        (_ran((1, 9.0), (1, 9.5)), None),  # before the death
        (_ran((1, 9.5), (1, 10.5)), None),  # begun, which is not applied
        (_ran((1, 11.0), (2, 10.25), (1, 10.5)), 1.0),  # in the order of fetching
        (_ran((1, 10.5), (2, 10.75)), None),  # two that each began one
    ],
)
def test_an_update_is_applied_when_its_process_goes_on(
    ran: list[Ran], seconds: float | None
) -> None:
    assert standstill(ran, killed=10.0) == seconds


@pytest.mark.parametrize(
    ("ran", "seconds"), [(_ran((1, 11.0)), None), (_ran((2, 13.0), (1, 11.0), (2, 12.5)), 2.5)]
)
def test_a_worker_is_back_when_it_begins_its_first_closure(
    ran: list[Ran], seconds: float | None
) -> None:
    assert absence(ran, process=2, killed=10.0) == seconds


@pytest.mark.processes
def test_the_raw_echo_gives_back_what_it_was_sent() -> None:
    request = {"case": {"megabytes": 1}, "steps": 2, "warmup": 1}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.parameter_server_echo"],
        input=json.dumps(request) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    versions, reply = (json.loads(line) for line in done.stdout.splitlines())
    assert versions["versions"].keys() == {"pyzmq", "numpy"}
    assert reply["outcome"] == 2**18 - 1 and reply["seconds"] > 0
