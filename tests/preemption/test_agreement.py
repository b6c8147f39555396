"""All workers stop after the same call, wherever they are when one asks for it."""

import random
import threading
import time

import pytest

from jaxtribute._group import ALONE
from jaxtribute.errors import WorkerLostError
from jaxtribute.preemption._agreement import Agreement
from tests.preemption._support import SECONDS, run_workers

CALLS = 200


def stops(agreement, calls):
    """Make calls until the agreement says stop, and return after how many."""
    return next((n for n, call in enumerate(calls, 1) if call() or agreement.pass_call()), None)


def test_alone_it_is_the_call_in_which_it_is_asked():
    agreement = Agreement(ALONE, "test")
    assert [agreement.pass_call() for _ in range(3)] == [False] * 3
    agreement.ask()
    agreement.ask()
    assert [agreement.pass_call() for _ in range(3)] == [True, False, False]


def test_before_the_first_call_it_is_the_first():
    agreement = Agreement(ALONE, "test")
    agreement.ask()
    assert agreement.pass_call()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("together", [True, False], ids=["in step", "each for itself"])
def test_all_stop_after_the_same_call(seed, together):
    """In step, no call ends before all workers have begun it, as with a collective."""
    draw = random.Random(seed)
    workers = draw.choice([2, 3])
    asks = {w: draw.randrange(20) for w in draw.sample(range(workers), draw.randint(1, workers))}
    barrier = threading.Barrier(workers, timeout=SECONDS)

    def program(worker):
        agreement = Agreement(worker, "test")
        pauses = random.Random(seed * 10 + worker.index)

        def call(number):
            if asks.get(worker.index) == number:
                agreement.ask()
            if pauses.random() < 0.3:
                time.sleep(pauses.random() / 1000)
            if together:
                barrier.wait()

        return stops(agreement, [lambda n=n: call(n) for n in range(CALLS)])

    last = run_workers(program, workers)
    assert len(set(last)) == 1, (asks, last)
    assert last[0] is not None
    assert last[0] > min(asks.values())


def test_it_is_not_passed_by_one_that_is_ahead_and_heard_of_it_late():
    """One that has made many calls by itself is the one whose call counts."""
    ahead = threading.Event()

    def program(worker):
        agreement = Agreement(worker, "test")
        if worker.index == 0:
            before = [agreement.pass_call() for _ in range(50)]
            ahead.set()
            assert not any(before)
            return 50 + stops(agreement, [lambda: time.sleep(0.001)] * 1000)
        assert ahead.wait(SECONDS)
        agreement.ask()
        return stops(agreement, [lambda: None] * 1000)

    first, second = run_workers(program)
    assert first == second
    assert first > 50


def test_a_worker_that_is_told_before_it_listens_takes_part():
    told = threading.Event()

    def program(worker):
        if worker.index == 0:
            agreement = Agreement(worker, "test")
            agreement.ask()
            told.set()
        else:
            assert told.wait(SECONDS)
            agreement = Agreement(worker, "test")
        return [agreement.pass_call() for _ in range(2)]

    assert run_workers(program) == [[True, False], [True, False]]


def test_a_worker_that_is_lost_meanwhile_is_an_error_at_the_end_of_the_call():
    def program(worker):
        def lost(about, report, cancelled=None):
            raise WorkerLostError(["worker:1"], "it was killed")

        worker.exchange = lost
        agreement = Agreement(worker, "test")
        agreement.ask()
        agreement.pass_call()

    for error in run_workers(program):
        assert isinstance(error, WorkerLostError)
        assert error.tasks == ("worker:1",)
