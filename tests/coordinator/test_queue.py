"""The queue of closures: order, retries, blame, and what an error does to it."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtribute.coordinator._queue import CAPACITY, STRIKES, ClosureQueue


@dataclass(eq=False)
class Item:
    name: str = ""
    number: int = -1
    lost_on: list[str] = field(default_factory=list)
    cancelled: bool = False


def queue_of(count: int, **settings) -> ClosureQueue[Item]:
    queue: ClosureQueue[Item] = ClosureQueue(**settings)
    for _ in range(count):
        queue.put(Item())
    return queue


def numbers(items) -> list[int]:
    return [item.number for item in items]


def test_closures_are_taken_in_the_order_they_were_put():
    queue = queue_of(5)
    assert numbers(queue.take("a", 2)) == [0, 1]
    assert numbers(queue.take("b", 9)) == [2, 3, 4]
    assert (queue.waiting, queue.running) == (0, 5)


def test_the_watermark_stops_at_the_first_closure_that_is_not_settled():
    queue = queue_of(4)
    queue.take("a", 4)
    seen = []
    for number in (1, 2, 0, 3):
        queue.settle("a", number)
        seen.append(queue.settled)
    assert seen == [0, 0, 3, 4]
    assert queue.is_empty


def test_numbers_go_on_where_an_earlier_queue_ended():
    queue = queue_of(2, first=7)
    assert numbers(queue.take("a", 2)) == [7, 8]
    assert queue.settled == 7


def test_the_capacity_is_that_of_the_reference_unless_another_is_given():
    assert CAPACITY == 262144
    queue = queue_of(2, capacity=2)
    assert queue.is_full
    queue.take("a", 1)
    assert not queue.is_full


def test_what_is_given_back_goes_to_the_end():
    queue = queue_of(3)
    queue.take("a", 1)
    queue.give_back("a", 0)
    assert numbers(queue.take("b", 3)) == [1, 2, 0]


def test_a_lost_worker_leaves_its_closures_to_others_each_alone_first():
    queue = queue_of(4)
    queue.take("a", 3)
    lost = queue.lose("a")
    assert numbers(lost.put_back) == [0, 1, 2]
    assert numbers(queue.take("b", 9)) == [0]
    assert queue.take("b", 9) == []  # it has a suspect, which stays alone
    assert numbers(queue.take("c", 9)) == [1]
    queue.settle("b", 0)
    assert numbers(queue.take("b", 9)) == [2]
    queue.settle("c", 1)
    assert numbers(queue.take("c", 9)) == [3]


def test_a_busy_worker_gets_nothing_while_suspects_wait_for_an_idle_one():
    queue = queue_of(5)
    queue.take("a", 1)
    queue.take("b", 1)
    queue.lose("a")
    assert queue.take("b", 9) == []
    queue.settle("b", 1)
    assert numbers(queue.take("b", 9)) == [0]


def test_whichever_closure_is_to_blame_is_found():
    queue = queue_of(6)
    workers, number, losses, over = iter("abcdefgh"), 3, 0, set()
    worker = next(workers)
    while number not in over:
        for item in queue.take(worker, 4):
            if item.number == number:
                losses += 1
                over.update(numbers(queue.lose(worker).given_up))
                worker = next(workers)
                break
            if queue.held(worker) == 1:
                over.add(queue.settle(worker, item.number).number)
    assert losses == STRIKES
    assert queue.next == queue.waiting + queue.running + len(over)


def test_a_closure_whose_workers_are_lost_again_and_again_is_given_up():
    queue = queue_of(1)
    *workers, last = "abcdefgh"[:STRIKES]
    for worker in workers:
        queue.take(worker, 1)
        assert numbers(queue.lose(worker).put_back) == [0]
    queue.take(last, 1)
    (given_up,) = queue.lose(last).given_up
    assert given_up.lost_on == [*workers, last]
    assert queue.is_empty


def test_an_outcome_that_comes_late_counts_if_the_closure_waits_again():
    queue = queue_of(2)
    queue.take("a", 1)
    queue.lose("a")
    assert queue.settle("a", 0).number == 0
    assert numbers(queue.take("b", 9)) == [1]


def test_an_outcome_that_comes_late_counts_if_another_worker_has_the_closure():
    queue = queue_of(1)
    queue.take("a", 1)
    queue.lose("a")
    queue.take("b", 1)
    assert queue.settle("a", 0).number == 0
    assert queue.settle("b", 0) is None
    assert queue.held("b") == 0


def test_the_loss_of_a_worker_does_not_bring_back_what_is_settled():
    queue = queue_of(1)
    queue.take("a", 1)
    queue.lose("a")
    queue.take("b", 1)
    queue.settle("a", 0)
    assert queue.lose("b").put_back == []
    assert queue.is_empty


class TestErrors:
    def test_the_first_error_is_kept_and_what_waits_is_cancelled(self):
        queue = queue_of(3)
        queue.take("a", 1)
        queue.settle("a", 0)
        first, second = ValueError("first"), ValueError("second")
        assert numbers(queue.fail(first)) == [1, 2]
        queue.fail(second)
        assert queue.raise_error() is first
        assert queue.raise_error() is None

    def test_nothing_is_taken_until_the_error_was_raised(self):
        queue = queue_of(3)
        queue.fail(ValueError())
        assert queue.take("a", 3) == []

    def test_what_comes_back_after_an_error_is_cancelled(self):
        queue = queue_of(3)
        queue.take("a", 2)
        queue.take("b", 1)
        queue.fail(ValueError())
        assert numbers(queue.give_back("a", 0).cancelled) == [0]
        assert numbers(queue.lose("b").cancelled) == [2]
        assert queue.running == 1

    def test_what_ran_at_an_error_is_cancelled_when_it_comes_back_after_that_was_raised(self):
        queue = queue_of(2)
        queue.take("a", 1)
        queue.take("b", 1)
        queue.fail(ValueError())
        queue.raise_error()
        assert numbers(queue.give_back("a", 0).cancelled) == [0]
        assert numbers(queue.lose("b").cancelled) == [1]
        assert queue.is_empty

    def test_a_closure_is_not_given_up_after_an_error_but_cancelled(self):
        queue = queue_of(1)
        (item,) = queue.take("a", 1)
        item.lost_on = ["x"] * (STRIKES - 1)
        queue.fail(ValueError())
        lost = queue.lose("a")
        assert (numbers(lost.cancelled), lost.given_up) == ([0], [])

    def test_the_queue_is_usable_afterwards(self):
        queue = queue_of(2)
        queue.fail(ValueError())
        queue.raise_error()
        queue.put(Item())
        assert numbers(queue.take("a", 1)) == [2]
        assert queue.settled == 2


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "take", "settle", "give_back", "lose", "fail", "raise"]),
        st.sampled_from("abc"),
        st.integers(0, 12),
    ),
    max_size=60,
)


@given(OPERATIONS)
@settings(max_examples=300, deadline=None)
def test_every_closure_is_waiting_running_or_settled_whatever_happens(operations):
    queue: ClosureQueue[Item] = ClosureQueue()
    over: list[int] = []
    for operation, worker, number in operations:
        match operation:
            case "put" if queue.error is None:
                queue.put(Item())
            case "take":
                taken = queue.take(worker, number)
                assert not (taken and queue.error)
                assert not set(over).intersection(numbers(taken))
            case "settle" if number < queue.next:
                item = queue.settle(worker, number)
                over += [] if item is None else [item.number]
            case "give_back":
                over += numbers(queue.give_back(worker, number).cancelled)
            case "lose":
                lost = queue.lose(worker)
                over += numbers([*lost.cancelled, *lost.given_up])
            case "fail":
                over += numbers(queue.fail(ValueError()))
                assert queue.waiting == 0
            case "raise":
                queue.raise_error()
            case _:
                pass
        assert len(over) == len(set(over))
        assert queue.next == queue.waiting + queue.running + len(over)
        assert set(range(queue.settled)) <= set(over)
        assert queue.settled == queue.next or queue.settled not in over
