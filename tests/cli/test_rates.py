"""What is shown of a cluster, from what its tasks counted."""

import pytest
from rich.console import Console

from jaxtribute.cli._rates import Sample, Samples, rows
from jaxtribute.cli._status_table import as_json, render
from jaxtribute.coordinator._messages import WorkerStatus
from jaxtribute.ps._messages import ServerStatus


def worker(task="worker:0", life="a", **changes):
    fields = {
        "task": task,
        "seconds": 10.0,
        "origin": "o",
        "running": -1,
        "waiting": 0,
        "finished": 0,
        "failed": 0,
        "bytes_in": 0,
        "bytes_out": 0,
        "queued": 0,
        "running_everywhere": 0,
        "finished_everywhere": 0,
    }
    return Sample(task, f"{task}-host:1", WorkerStatus(**(fields | changes)), life)


def server(task="ps:0", life="a", **changes):
    fields = {
        "task": task,
        "seconds": 10.0,
        "variables": 0,
        "bytes_held": 0,
        "updates": 0,
        "repeated_updates": 0,
        "reads": 0,
        "bytes_in": 0,
        "bytes_out": 0,
        "staleness": 0.0,
        "peers": 0,
    }
    return Sample(task, f"{task}-host:1", ServerStatus(**(fields | changes)), life)


def down(task, why="nothing listens there"):
    return Sample(task, f"{task}-host:1", why=why)


@pytest.mark.parametrize(
    ("before", "now", "closures", "received", "sent"),
    [
        pytest.param(
            worker(finished=5, bytes_in=100, bytes_out=7),
            worker(seconds=12.0, finished=25, bytes_in=1100, bytes_out=7),
            *(10.0, 500.0, 0.0),
            id="by its own clock",
        ),
        pytest.param(None, worker(finished=5), *(None, None, None), id="seen for the first time"),
        pytest.param(
            worker(seconds=1.0),
            worker(life="b", seconds=3.0, finished=9),
            *(None, None, None),
            id="started again",
        ),
        pytest.param(
            down("worker:0"), worker(finished=9), *(None, None, None), id="it was not reached"
        ),
        pytest.param(worker(), worker(), *(None, None, None), id="no time has passed"),
        pytest.param(
            worker("worker:1"),
            worker(seconds=12.0, finished=9),
            *(None, None, None),
            id="another one",
        ),
    ],
)
def test_rates_of_a_worker(before, now, closures, received, sent):
    earlier = Samples([before] if before else [])
    _, (row,), _ = rows(earlier, Samples([now]))
    assert row.state == "up"
    assert row.closures_per_second == closures
    assert row.bytes_in_per_second == received
    assert row.bytes_out_per_second == sent


def test_figures_of_a_worker():
    now = worker(running=17, waiting=3, finished=9, failed=1, seconds=61.0)
    _, (row,), _ = rows(Samples(), Samples([now]))
    assert (row.running, row.waiting, row.finished, row.failed) == (1, 3, 9, 1)
    assert row.seconds == 61.0
    _, (row,), _ = rows(Samples(), Samples([worker(running=-1)]))
    assert row.running == 0
    _, (row,), _ = rows(Samples(), Samples([worker(running=0)]))
    assert row.running == 1  # the closure that is numbered 0


def test_figures_of_a_server():
    before = server(updates=10, reads=2, bytes_in=0, bytes_out=50)
    now = server(
        seconds=14.0,
        updates=50,
        reads=2,
        bytes_in=8,
        bytes_out=450,
        variables=3,
        bytes_held=4096,
        staleness=1.5,
        peers=4,
    )
    _, _, (row,) = rows(Samples([], [before]), Samples([], [now]))
    assert (row.updates_per_second, row.reads_per_second) == (10.0, 0.0)
    assert (row.bytes_in_per_second, row.bytes_out_per_second) == (2.0, 100.0)
    assert (row.variables, row.bytes_held, row.staleness) == (3, 4096, 1.5)
    assert (row.updates, row.peers) == (50, 4)


def test_one_that_does_not_answer_is_down_and_says_why():
    cluster, (one,), (two,) = rows(Samples(), Samples([down("worker:0")], [down("ps:0", "late")]))
    assert (one.state, one.why, one.seconds) == ("down", "nothing listens there", None)
    assert (two.state, two.why, two.updates) == ("down", "late", None)
    assert (cluster.tasks, cluster.up, cluster.coordinator) == (2, 0, False)
    assert (cluster.queued, cluster.closures_per_second) == (None, None)


def test_the_whole_is_the_sum_of_those_that_are_up():
    before = Samples(
        [worker("worker:0"), worker("worker:1"), down("worker:2")],
        [server("ps:0"), server("ps:1")],
    )
    now = Samples(
        [
            worker("worker:0", seconds=12.0, finished=20, bytes_in=2, bytes_out=8),
            worker("worker:1", seconds=11.0, finished=5, bytes_in=4, origin=""),
            down("worker:2"),
        ],
        [
            server("ps:0", seconds=12.0, updates=2, variables=2, bytes_held=10, bytes_in=20),
            server("ps:1", life="b", updates=9, variables=1, bytes_held=5, bytes_in=99),
        ],
    )
    cluster, _, _ = rows(before, now)
    assert (cluster.tasks, cluster.up) == (5, 4)
    assert cluster.closures_per_second == 15.0
    assert cluster.updates_per_second == 1.0
    assert cluster.bytes_per_second == 19.0
    assert (cluster.variables, cluster.bytes_held) == (3, 15)


def test_the_worker_that_heard_last_speaks_for_the_coordinator():
    now = Samples(
        [
            worker("worker:0", queued=7, running_everywhere=2, finished_everywhere=10),
            worker("worker:1", queued=3, running_everywhere=1, finished_everywhere=15),
            worker("worker:2", origin="", queued=9, finished_everywhere=99),
        ]
    )
    cluster, _, _ = rows(Samples(), now)
    assert cluster.coordinator
    assert (cluster.queued, cluster.running, cluster.finished) == (3, 1, 15)


def shown(before, now, width=140):
    console = Console(width=width, highlight=False, markup=False, color_system=None)
    with console.capture() as capture:
        console.print(render(*rows(before, now), width))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_table_for_people():
    before = Samples([worker()], [server()])
    now = Samples(
        [
            worker(seconds=12.0, finished=2469, running=3, waiting=2, queued=40, bytes_in=3000000),
            down("worker:1", "it has not answered for 2 s"),
        ],
        [
            server(
                seconds=3725.0,
                updates=7430,
                variables=3,
                bytes_held=2_500_000,
                staleness=0.25,
                bytes_out=1000,
            )
        ],
    )
    assert shown(before, now) == [
        "2 of 3 tasks up; closures: 40 queued, 0 running, 0 finished, 1234/s; "
        "3 variables of 2.5 MB, 2 updates/s; 1.5 MB/s",
        "",
        "worker    address          state  since   closures/s  finished  failed  running  waiting"
        "    in/s  out/s",
        "worker:0  worker:0-host:1  up     12.0 s        1234      2469       0        1        2"
        "  1.5 MB    0 B",
        "worker:1  worker:1-host:1  down   -                -         -       -        -        -"
        "       -      -",
        "",
        "server  address      state  since    updates/s  updates  variables    held  staleness"
        "  reads/s  in/s  out/s",
        "ps:0    ps:0-host:1  up     1:02:05          2     7430          3  2.5 MB        0.2"
        "        0   0 B  0.3 B",
        "",
        "worker:1 is down: it has not answered for 2 s",
    ]


def test_the_table_on_a_narrow_terminal_has_fewer_columns():
    now = Samples([worker("worker:10", finished=1_000_000)], [server(bytes_held=123_000_000)])
    lines = shown(Samples(), now, width=80)
    assert all(len(line) <= 80 for line in lines)
    assert not any("…" in line for line in lines)
    workers, servers = (x.split() for x in lines if x.startswith(("worker ", "server ")))
    assert not {"address", "failed"} & {*workers, *servers}
    assert {"worker", "state", "closures/s", "finished", "running"} <= {*workers}
    assert {"server", "state", "updates/s", "variables", "held", "staleness"} <= {*servers}


def test_the_table_says_when_there_is_no_coordinator():
    (first, *_) = shown(Samples(), Samples([worker(origin="")], [server()]))
    assert first == "2 of 2 tasks up; no coordinator; 0 variables of 0 B, - updates/s; -/s"


def test_the_same_for_programs():
    values = as_json(*rows(Samples([worker()]), Samples([worker(seconds=11.0, finished=4)])))
    assert values["cluster"]["closures_per_second"] == 4.0
    assert values["workers"][0]["task"] == "worker:0"
    assert values["servers"] == []
