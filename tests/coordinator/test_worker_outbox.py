"""How outcomes travel together."""

import threading

import pytest

from jaxtribute.coordinator._messages import Outcome
from jaxtribute.coordinator._outbox import Outbox


class Sent:
    """What an outbox has sent; nothing gets through while `is_connected` is false."""

    def __init__(self):
        self.messages = []
        self.attempts = 0
        self.now = 0.0
        self.is_connected = True
        self.outbox = Outbox(self._send, lambda: self.now)
        self.outbox.begin("one")

    def _send(self, body, frames):
        self.attempts += 1
        if self.is_connected:
            self.messages.append((body, list(frames)))
        return self.is_connected

    @property
    def numbers(self):
        return [[outcome.number for outcome in body.outcomes] for body, _ in self.messages]


@pytest.fixture
def sent():
    return Sent()


def done(number, seconds=0.0, frames=0):
    return Outcome(number, "done", seconds, frames)


def test_the_last_outcome_for_now_goes_at_once(sent):
    sent.outbox.add("one", done(0), last=True)
    assert sent.numbers == [[0]]


def test_outcomes_of_short_closures_go_together(sent):
    for number in range(3):
        sent.outbox.add("one", done(number, frames=1), [b"%d" % number], last=False)
    assert not sent.messages
    sent.outbox.add("one", done(3), last=True, clocks=[5])
    sent.outbox.add("one", done(4), last=True)
    assert sent.numbers == [[0, 1, 2, 3], [4]]
    assert [frames for _, frames in sent.messages] == [[b"0", b"1", b"2"], []]
    assert [body.clocks for body, _ in sent.messages] == [[5], [5]]


def test_a_message_has_room_for_so_much(sent):
    sent.outbox.add("one", done(0), [b""] * 600, last=False)
    sent.outbox.add("one", done(1), [b""] * 600, last=False)
    assert sent.numbers == [[0]]
    sent.outbox.add("one", done(2), [bytes(9 << 20)], last=False)
    assert sent.numbers == [[0], [1, 2]]


def test_no_outcome_is_held_back_for_long(sent):
    sent.outbox.add("one", done(0), last=False)
    sent.now = 0.011
    sent.outbox.add("one", done(1), last=False)
    assert sent.numbers == [[0, 1]]


def test_the_outcome_of_a_long_closure_goes_at_once(sent):
    sent.outbox.add("one", done(0, seconds=0.5), last=False)
    assert sent.numbers == [[0]]


def test_what_is_held_back_goes_while_the_next_closure_runs(sent):
    waiting = threading.Thread(target=sent.outbox.wait, args=(60,))
    waiting.start()
    sent.outbox.add("one", done(0), last=False)
    waiting.join(30)  # for 2 ms
    assert not waiting.is_alive()
    assert sent.numbers == [[0]]


def test_outcomes_wait_for_a_coordinator_that_returns(sent):
    sent.is_connected = False
    sent.outbox.add("one", done(0), last=True)
    sent.outbox.add("one", done(1), last=True)
    sent.is_connected = True
    sent.outbox.begin("one")
    assert sent.numbers == [[0, 1]]


def test_a_coordinator_that_is_away_is_not_tried_all_the_time(sent):
    sent.is_connected = False
    sent.outbox.add("one", done(0), last=True)
    for _ in range(5):
        sent.outbox.wait(0.001)
    assert sent.attempts == 1


def test_another_coordinator_does_not_get_them(sent):
    sent.is_connected = False
    sent.outbox.add("one", done(0), last=True)
    sent.is_connected = True
    sent.outbox.begin("two")
    sent.outbox.add("one", done(1), last=True)  # of a closure that was still running
    sent.outbox.add("two", done(0), last=True)
    assert [(body.origin, len(body.outcomes)) for body, _ in sent.messages] == [("two", 1)]
