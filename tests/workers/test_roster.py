"""What the chief tells the workers, for every order in which things may happen to them."""

import itertools

import pytest

from jaxtribute.workers._roster import ENDED, Roster

TASKS = ("worker:0", "worker:1", "worker:2")
LIMIT = 10.0
FACTS = {"jax": "1.0"}
ORDERS = list(itertools.permutations(range(3)))


class Meeting:
    """A roster, to which events are told in short words."""

    def __init__(self, silence_limit=LIMIT):
        self.roster = Roster(TASKS, silence_limit)
        self.now = 0.0

    def join(self, *workers, **facts):
        told = []
        for worker in workers:
            told = self.roster.joined(worker, FACTS | {"process": str(worker)} | facts, self.now)
        return told

    def say(self, worker, do, **fields):
        return self.roster.said(worker, {"do": do, **fields}, self.now)

    def report(self, worker, text, about="x"):
        return self.say(worker, "report", about=about, report=text)

    def leave(self, worker, why=None):
        return self.say(worker, "leave", why=why)

    def beat(self, *workers, count=1, what=""):
        for worker in workers:
            assert self.say(worker, "beat", place={"count": count, "what": what}) == []

    def pass_time(self, seconds):
        self.now += seconds
        return self.roster.passed(self.now)


@pytest.fixture
def gathering():
    return Meeting()


@pytest.fixture
def meeting():
    meeting = Meeting()
    meeting.join(0, 1, 2)
    return meeting


def to_all(message, *workers):
    return [(worker, message) for worker in workers or range(len(TASKS))]


def lost(worker, why):
    return {"say": "lost", "worker": worker, "why": why}


def everything(outgoing):
    return [message["say"] for _, message in outgoing]


# --- Gathering -------------------------------------------------------------------------------


def test_those_who_wait_are_told_who_is_missing(gathering):
    assert gathering.join(1) == [(1, {"say": "missing", "tasks": ["worker:0", "worker:2"]})]
    assert gathering.join(0) == to_all({"say": "missing", "tasks": ["worker:2"]}, 1, 0)
    assert gathering.pass_time(0.1) == to_all({"say": "missing", "tasks": ["worker:2"]}, 1, 0)


@pytest.mark.parametrize("order", ORDERS)
def test_all_begin_when_the_last_has_come(gathering, order):
    *first, last = order
    assert "begin" not in everything(gathering.join(*first))
    told = gathering.join(last)
    assert sorted(told, key=lambda one: one[0]) == to_all({"say": "begin", "differences": None})


def test_all_are_told_what_differs(gathering):
    gathering.join(0)
    gathering.join(1, jax="2.0")
    told = gathering.join(2)
    assert everything(told) == ["begin"] * 3
    assert "worker:1 has 2.0" in told[0][1]["differences"]


def test_one_that_goes_before_all_have_come_may_come_again(gathering):
    gathering.join(0, 1)
    missing = {"say": "missing", "tasks": ["worker:1", "worker:2"]}
    assert gathering.roster.gone(1) == [(0, missing)]
    assert gathering.roster.refusal(1, FACTS) is None
    assert everything(gathering.join(1, 2)) == ["begin"] * 3


def test_waiting_for_others_is_no_silence(gathering):
    gathering.join(0, 1)
    assert everything(gathering.pass_time(100 * LIMIT)) == ["missing"] * 2


def test_a_second_process_of_a_task_is_refused_and_both_are_named(gathering):
    gathering.join(0, 1)
    why = gathering.roster.refusal(1, {"process": "process 7"})
    assert "worker:1 has joined already, as 1" in why
    assert "process 7" in why


def test_a_second_process_is_refused_also_later(meeting):
    assert meeting.roster.refusal(2, FACTS) is not None


@pytest.mark.parametrize("worker", [3, -1, 100])
def test_one_that_is_not_of_the_cluster_is_refused(gathering, worker):
    gathering.join(0)
    why = gathering.roster.refusal(worker, {"process": "process 7"})
    assert why is not None
    assert "worker:2" in why, "who belongs to the cluster"


# --- Telling ---------------------------------------------------------------------------------


def test_what_one_tells_all_others_hear(meeting):
    told = meeting.say(1, "tell", about="the weather")
    assert told == to_all({"say": "told", "about": "the weather", "by": 1}, 0, 2)


# --- Exchanges -------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_an_exchange_is_answered_in_the_order_of_the_workers(meeting, order):
    *first, last = order
    for worker in first:
        assert meeting.report(worker, f"of {worker}") == []
    assert meeting.report(last, f"of {last}") == to_all(
        {"say": "all", "about": "x", "reports": ["of 0", "of 1", "of 2"]}
    )


def test_exchanges_about_different_things_do_not_mix(meeting):
    for worker in 0, 1:
        meeting.report(worker, f"x{worker}", "x")
        meeting.report(worker, f"y{worker}", "y")
    assert meeting.report(2, "y2", "y")[0][1]["reports"] == ["y0", "y1", "y2"]
    assert meeting.report(2, "x2", "x")[0][1]["reports"] == ["x0", "x1", "x2"]


def test_a_name_can_be_used_again(meeting):
    for text in "a", "b":
        meeting.report(0, text), meeting.report(1, text)
        assert meeting.report(2, text)[0][1]["reports"] == [text] * 3


# --- Losses ----------------------------------------------------------------------------------


def test_one_that_goes_without_a_word_is_lost(meeting):
    assert meeting.roster.gone(1) == to_all(lost(1, ENDED))


def test_one_that_says_why_it_fails_is_lost_for_that(meeting):
    told = meeting.leave(1, "it raised KeyError: 'fish'")
    assert told == [*to_all(lost(1, "it raised KeyError: 'fish'")), (1, {"say": "bye"})]


def test_only_the_first_loss_is_told(meeting):
    meeting.leave(1, "it raised KeyError")
    assert meeting.roster.gone(1) == []
    assert meeting.leave(2, "it raised WorkerLostError") == [(2, {"say": "bye"})]
    assert meeting.roster.gone(0) == []


def test_one_that_is_silent_for_too_long_is_lost(meeting):
    meeting.now = LIMIT
    meeting.beat(0, 2)
    told = meeting.pass_time(0.5)
    assert [(worker, message["worker"]) for worker, message in told] == [(0, 1), (1, 1), (2, 1)]
    assert "has not answered for 10 s" in told[0][1]["why"]


def test_a_sign_of_life_of_any_kind_counts(meeting):
    meeting.now = LIMIT
    meeting.beat(0)
    meeting.report(1, "something")
    meeting.beat(2)
    assert everything(meeting.pass_time(0.5)) == ["beats"] * 3


def test_one_that_gives_up_stops_all(meeting):
    told = meeting.say(2, "broke", why="worker:0 did not arrive")
    assert told == to_all({"say": "broke", "by": 2, "why": "worker:0 did not arrive"})
    assert meeting.roster.gone(1) == []


def test_after_a_loss_there_are_still_signs_of_life_from_the_chief(meeting):
    meeting.roster.gone(1)
    assert {worker for worker, _ in meeting.pass_time(0.1)} >= {0, 2}


# --- Finishing -------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_nobody_is_lost_when_all_finish(meeting, order):
    for worker in order:
        told = meeting.leave(worker)
        assert told == [(worker, {"say": "bye"}), *to_all({"say": "finished", "worker": worker})]
        assert meeting.roster.gone(worker) == []
        assert "lost" not in everything(meeting.pass_time(2 * LIMIT / 3))
        meeting.beat(*order)


def test_one_that_has_finished_need_not_give_signs_of_life(meeting):
    meeting.leave(1)
    meeting.now = 2 * LIMIT
    meeting.beat(0, 2)
    assert everything(meeting.pass_time(0.1)) == ["beats"] * 3


@pytest.mark.parametrize("asked_first", [True, False])
def test_one_that_has_finished_is_lost_when_it_is_asked(meeting, asked_first):
    if asked_first:
        meeting.report(0, "anybody?")
        told = meeting.leave(1)
    else:
        meeting.leave(1)
        told = meeting.report(0, "anybody?")
    assert lost(1, "it has finished") in [message for _, message in told]


def test_an_exchange_that_one_took_part_in_before_it_finished_succeeds(meeting):
    meeting.report(1, "b"), meeting.leave(1)
    meeting.report(0, "a")
    assert meeting.report(2, "c")[0][1]["reports"] == ["a", "b", "c"]


# --- Places ----------------------------------------------------------------------------------


def test_all_are_told_where_everybody_is(meeting):
    meeting.beat(0, count=5, what="step")
    meeting.beat(1, count=4)
    places = [{"count": 5, "what": "step"}, {"count": 4, "what": ""}, None]
    assert meeting.pass_time(0.1) == to_all({"say": "beats", "places": places})
