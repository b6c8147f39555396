"""A worker and a coordinator that the test plays by hand, over real sockets."""

import itertools
import threading
import time

import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.cluster._this_machine import free_ports
from jaxtribute.coordinator._current_worker import experimental_get_current_worker_index
from jaxtribute.coordinator._messages import (
    Adopt,
    Cancel,
    Forget,
    Pulse,
    Ready,
    Recall,
    Run,
    Status,
    Work,
    WorkerStatus,
)
from jaxtribute.rpc import Channel, exchange
from tests.coordinator._boss import KEY, SECONDS, Boss, RunningWorker, allow, meet, until, wait_for

_names = (f"meeting {number}" for number in itertools.count())


@pytest.fixture
def address():
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"


@pytest.fixture
def start(address):
    """Start a worker with certain options."""
    running = []

    def start(**options):
        running.append(RunningWorker(address, **options))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def connect(address):
    """Connect a coordinator, or somebody else."""
    connected = []

    def connect(*args, **kwargs):
        connected.append(Boss(address, *args, **kwargs))
        return connected[-1]

    yield connect
    for one in connected:
        one.close()


@pytest.fixture
def boss(start, connect):
    """The coordinator of a worker that is ready."""
    start()
    boss = connect()
    boss.adopt()
    return boss


@pytest.fixture
def meeting():
    """The name of a place where a closure and the test wait for each other."""
    name = next(_names)
    yield name
    allow(name)


def add(a, b=1):
    return a + b


# --- Closures --------------------------------------------------------------------------------


def test_a_worker_that_is_adopted_is_ready(start, connect):
    start()
    ready = connect().adopt()
    assert ready == Ready("first", 8)


def test_a_function_is_called_with_its_arguments(boss):
    assert boss.result(boss.run(add, 2, b=3)) == 5
    large = np.arange(100_000.0)
    np.testing.assert_array_equal(boss.result(boss.run(add, large, b=large)), 2 * large)


def test_closures_run_in_their_order_in_one_thread(boss):
    from_all = [
        (lambda n: (n, threading.get_ident(), time.perf_counter()), (n,), {}) for n in range(50)
    ]
    results = [boss.result(number) for number in boss.run_all(from_all)]
    assert [n for n, _, _ in results] == list(range(50))
    assert len({thread for _, thread, _ in results}) == 1
    times = [at for _, _, at in results]
    assert times == sorted(times)
    assert boss.order == list(range(50))


def test_a_result_that_nobody_wants_is_not_sent(boss):
    number = boss.run(add, 1, wants_result=False)
    assert boss.outcome(number) == ("done", None)
    assert boss.outcomes[number] == ("done", [])


def test_a_function_keeps_what_it_has_compiled(boss):
    traced = []

    @jt.function
    def double(x):
        traced.append(x)
        return 2 * x

    def call(x):
        return double(x), len(traced)

    numbers = [boss.run(double, np.float32(n)) for n in range(3)]
    assert [boss.result(number) for number in numbers] == [0, 2, 4]
    assert boss.result(boss.run(lambda: 1)) == 1
    assert traced == []  # it was another copy that was traced


def test_the_strategy_is_in_force_and_the_worker_is_known(boss):
    def where():
        strategy = jt.get_strategy()
        return type(strategy).__name__, experimental_get_current_worker_index()

    assert boss.result(boss.run(where)) == ("ParameterServerStrategy", 0)
    with pytest.raises(RuntimeError, match="no worker runs"):
        experimental_get_current_worker_index()


# --- Errors ----------------------------------------------------------------------------------


def test_an_error_comes_with_its_traceback_and_the_name_of_the_worker(boss):
    def divide(a, b):
        return a / b

    status, error = boss.outcome(boss.run(divide, 1, 0))
    assert status == "failed"
    assert isinstance(error, ZeroDivisionError)
    notes = "\n".join(error.__notes__)
    assert "worker:0" in notes
    assert "in divide" in notes


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_function_cannot_end_the_worker(boss, kind):
    def leave(kind):
        raise kind("now")

    status, error = boss.outcome(boss.run(leave, kind))
    assert status == "failed"
    assert kind.__name__ in str(error)
    assert boss.result(boss.run(add, 1)) == 2


def test_a_result_that_cannot_be_sent_is_an_error(boss):
    status, error = boss.outcome(boss.run(threading.Lock))
    assert status == "failed"
    assert "cannot be sent" in str(error)


def test_a_result_that_is_too_large_is_an_error(boss, monkeypatch):
    monkeypatch.setattr("jaxtribute.rpc._wire.LARGEST_FRAME", 1 << 20)
    status, error = boss.outcome(boss.run(np.zeros, 200_000))
    assert status == "failed"
    assert "does not fit" in str(error)
    assert boss.result(boss.run(add, 1)) == 2


def test_a_function_that_cannot_be_loaded_is_an_error(boss):
    boss.run(add, 1)
    digest = next(iter(boss._sent))
    boss.post(Run([Work(77, digest, [], 0, True, 1)], 0), [b"no pickle"])
    assert boss.outcome(77)[0] == "failed"
    assert boss.result(boss.run(add, 1)) == 2


# --- Blobs -----------------------------------------------------------------------------------


def test_what_is_not_there_is_asked_for_and_holds_nothing_up_for_ever(boss):
    first = boss.run(add, 1, blobs=False)
    second = boss.run(lambda: "second")
    missing = boss.needed()
    boss.send_blobs(missing)
    assert boss.result(first) == 2
    assert boss.result(second) == "second"
    assert boss.order == [first, second]


def test_what_was_dropped_to_save_memory_is_asked_for_again(start, connect):
    start(blob_bytes=600_000)
    boss = connect()
    boss.adopt()
    arrays = [np.full(50_000, float(n)) for n in range(3)]  # 400 kB each
    total = lambda array: float(array.sum())  # noqa: E731
    for n, array in enumerate(arrays):
        assert boss.result(boss.run(total, array)) == 50_000 * n
    again = boss.run(total, arrays[0], blobs=False)
    boss.send_blobs(boss.needed())
    assert boss.result(again) == 0


def test_a_closure_that_needs_more_than_is_kept_still_runs(start, connect):
    start(blob_bytes=1000)
    boss = connect()
    boss.adopt()
    arrays = [np.full(50_000, float(n)) for n in range(3)]
    number = boss.run(lambda *arrays: sum(float(a[0]) for a in arrays), *arrays, blobs=False)
    for digest in boss.needed():
        boss.send_blobs([digest])
    assert boss.result(number) == 3


# --- Resources -------------------------------------------------------------------------------


def test_a_resource_is_made_once_when_it_is_needed(boss):
    made = boss.resource(lambda: iter(range(100)), number=5)
    numbers = [boss.run(next, made) for _ in range(3)]
    assert [boss.result(number) for number in numbers] == [0, 1, 2]


def test_a_resource_may_be_made_of_another_and_knows_its_worker(boss):
    base = boss.resource(lambda: [experimental_get_current_worker_index(), 10], number=1)
    made = boss.resource(lambda: iter(base), number=2)
    assert boss.result(boss.run(next, made)) == 0
    assert boss.result(boss.run(next, made)) == 10


def test_an_error_in_making_a_resource_is_told_by_each_closure_that_uses_it(boss):
    fails = boss.resource(lambda: 1 / 0, number=0)
    used = [boss.run(add, fails), boss.run(add, fails)]
    other = boss.run(add, 1)
    for number in used:
        status, error = boss.outcome(number)
        assert status == "input_failed"
        assert isinstance(error, ZeroDivisionError)
    assert boss.result(other) == 2


def test_making_a_resource_is_tried_again(boss, meeting):
    def make(tries=[]):  # noqa: B006
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return len(tries)

    resource = boss.resource(make, number=0)
    statuses = [boss.outcome(boss.run(add, resource))[0] for _ in range(2)]
    assert statuses == ["input_failed", "input_failed"]
    assert boss.result(boss.run(add, resource)) == 4


def test_a_resource_that_is_described_again_is_made_again(boss):
    resource = boss.resource(lambda: iter("abc"), number=3)
    assert boss.result(boss.run(next, resource)) == "a"
    assert boss.result(boss.run(next, resource)) == "b"
    resource = boss.resource(lambda: iter("abc"), number=3)
    assert boss.result(boss.run(next, resource)) == "a"


def test_a_resource_that_was_forgotten_is_unknown(boss):
    resource = boss.resource(lambda: 1, number=3)
    assert boss.result(boss.run(add, resource)) == 2
    boss.post(Forget([3]))
    status, error = boss.outcome(boss.run(add, resource))
    assert status == "failed"
    assert "resource 3" in str(error)


def test_a_resource_survives_the_error_of_a_function(boss):
    resource = boss.resource(lambda: iter("abc"), number=3)

    def take_and_fail(letters):
        raise ValueError(next(letters))

    assert boss.outcome(boss.run(take_and_fail, resource))[0] == "failed"
    assert boss.result(boss.run(next, resource)) == "b"


# --- Taking back -----------------------------------------------------------------------------


def test_closures_that_have_not_begun_are_cancelled_and_the_one_that_runs_counts(boss, meeting):
    running = boss.run(meet, meeting)
    waiting = [boss.run(add, n) for n in range(3)]
    wait_for(meeting)
    boss.post(Cancel([running, waiting[0], waiting[2], 1234]))
    assert boss.outcome(waiting[0]) == ("cancelled", None)
    assert boss.outcome(waiting[2]) == ("cancelled", None)
    allow(meeting)
    assert boss.outcome(running)[0] == "done"
    assert boss.result(waiting[1]) == 2


def test_closures_are_given_back_the_last_ones_first(boss, meeting):
    running = boss.run(meet, meeting)
    waiting = [boss.run(add, n) for n in range(4)]
    wait_for(meeting)
    boss.post(Recall(2))
    until(lambda: len(boss.order) == 2, "two closures")
    assert boss.order == [waiting[3], waiting[2]]
    assert boss.outcome(waiting[3]) == ("returned", None)
    boss.post(Recall(100))
    until(lambda: len(boss.order) == 4, "all closures that have not begun")
    allow(meeting)
    assert boss.outcome(running)[0] == "done"
    assert boss.order == [waiting[3], waiting[2], waiting[1], waiting[0], running]


# --- Signs of life ---------------------------------------------------------------------------


def test_a_worker_beats_while_a_closure_runs(boss, meeting):
    assert boss.result(boss.run(add, 1)) == 2
    running = boss.run(meet, meeting)
    boss.run(add, 1)
    wait_for(meeting)
    seen = [boss.beats.get(timeout=SECONDS) for _ in range(3)]
    until(lambda: boss.beats.get(timeout=SECONDS).running == running, "a beat")
    beat = boss.beats.get(timeout=SECONDS)
    assert (beat.running, beat.waiting, beat.finished) == (running, 1, 1)
    assert len(seen) == 3
    allow(meeting)


def test_anybody_of_the_cluster_may_ask_how_a_worker_is(boss, address, meeting):
    assert boss.outcome(boss.run(lambda: 1 / 0))[0] == "failed"
    running = boss.run(meet, meeting)
    boss.run(add, 1)
    wait_for(meeting)
    boss.post(Pulse(queued=7, running=2, finished=1))
    observer = Channel(address, "worker:0", "observer", KEY, WorkerStatus)
    try:
        until(lambda: ask(observer).queued == 7, "the pulse")
        status = ask(observer)
    finally:
        observer.close()
    assert (status.task, status.origin) == ("worker:0", "first")
    assert (status.running, status.waiting, status.finished, status.failed) == (running, 1, 1, 1)
    assert (status.running_everywhere, status.finished_everywhere) == (2, 1)
    assert status.bytes_in > 0
    assert status.bytes_out > 0
    allow(meeting)


def ask(channel):
    (reply,) = exchange([(channel, Status(), ())], what="the status", patience=SECONDS)
    return reply.body


# --- Coordinators come and go ----------------------------------------------------------------


def test_another_coordinator_takes_over(start, connect, meeting):
    executor = start().worker.executor
    boss = connect()
    boss.adopt()
    boss.resource(lambda: iter("abc"), number=0)
    running = boss.run(meet, meeting)
    waiting = boss.run(add, 1)
    wait_for(meeting)
    second = connect(origin="second")
    second.wait_until_up()
    second.post(Adopt("second", 0, 2, []))
    number = second.run(add, 20)
    until(lambda: executor.adoption.origin == "second", "the other coordinator")
    allow(meeting)
    second.expect(Ready)
    assert second.result(number) == 21
    third = boss.run(add, 1)  # is not its worker any more
    assert second.result(second.run(add, 30)) == 31
    assert not {running, waiting, third} & boss.outcomes.keys()


def test_a_coordinator_that_returns_finds_everything_and_hears_what_it_missed(
    boss, connect, meeting
):
    resource = boss.resource(lambda: iter("abc"), number=0)
    assert boss.result(boss.run(next, resource)) == "a"
    running = boss.run(meet, meeting)
    boss.run(next, resource)  # never begins: it was given to another worker meanwhile
    wait_for(meeting)
    boss.close()
    again = connect()
    again.wait_until_up()
    again._numbers = iter(range(100, 200))
    again.post(Adopt("first", 0, 2, []))
    again.expect(Ready)
    allow(meeting)
    assert again.outcome(running)[0] == "done"
    assert again.result(again.run(next, resource)) == "b"


def test_an_outcome_waits_for_the_coordinator_to_return(start, connect, meeting):
    worker = start()
    boss = connect()
    boss.adopt()
    running = boss.run(meet, meeting)
    waiting = boss.run(add, 1)
    wait_for(meeting)
    boss.close()
    until(lambda: worker.worker._coordinator is None, "the end of the connection")
    allow(meeting)
    until(lambda: worker.worker.executor.running == -1, "the end of the closure")
    assert worker.worker.executor.waiting == 1  # nothing begins meanwhile
    again = connect()
    again.adopt()
    assert again.outcome(running)[0] == "done"
    assert waiting not in again.outcomes


def test_a_coordinator_that_stays_away_is_forgotten(start, connect, monkeypatch):
    monkeypatch.setattr("jaxtribute.coordinator._worker._KEPT_SECONDS", 0.1)
    executor = start().worker.executor
    boss = connect()
    boss.adopt()
    resource = boss.resource(lambda: iter("abc"), number=0)
    assert boss.result(boss.run(next, resource)) == "a"
    boss.close()
    until(lambda: executor.adoption is None, "the end of patience")
    again = connect()
    again.adopt()
    resource = again.resource(lambda: iter("abc"), number=0)
    assert again.result(again.run(next, resource)) == "a"


@pytest.mark.parametrize("task", ["worker:1", "ps:0", "observer"])
def test_only_a_coordinator_is_obeyed(boss, connect, task):
    other = connect(origin="other", task=task)
    other.wait_until_up()
    other.post(Adopt("other", 0, 2, []))
    other.run(add, 1)
    for _ in range(3):
        assert boss.result(boss.run(add, 1)) == 2
    assert not other.outcomes
    assert other.messages.empty()


def test_a_message_that_contradicts_itself_harms_nobody(boss):
    digest = boss.packer.function(add).blob.digest
    for frames in (-1, 5):
        boss.post(Run([Work(50, digest, [], 0, True, frames)], 0), [b"x"])
    assert boss.result(boss.run(add, 1)) == 2
    assert 50 not in boss.outcomes
