"""The plan of a two-level reduction, without devices."""

from collections import Counter

import pytest

from jaxtribute.collectives._all_reduce import copy_plan

NUMBERS = pytest.mark.parametrize("n", range(1, 33))


def follow(n):
    """Carry out the plan; a value is the multiset of the devices whose numbers it contains."""
    plan = copy_plan(n)
    held = [Counter({i: 1}) for i in range(n)]
    for copies in plan.collect:
        sent = {to: held[source] for source, to in copies}
        for to, value in sent.items():
            held[to] = held[to] + value
    for copies in plan.spread:
        sent = {to: held[source] for source, to in copies}
        for to, value in sent.items():
            held[to] = value
    return held


@NUMBERS
def test_every_device_ends_with_the_sum_of_all(n):
    everything = Counter(range(n))
    assert follow(n) == [everything] * n


@NUMBERS
def test_each_device_but_the_first_is_collected_from_once(n):
    senders = [source for copies in copy_plan(n).collect for source, _ in copies]
    assert sorted(senders) == list(range(1, n))


@NUMBERS
def test_each_device_but_the_first_is_copied_to_once(n):
    receivers = [to for copies in copy_plan(n).spread for _, to in copies]
    assert sorted(receivers) == list(range(1, n))


@NUMBERS
def test_in_a_round_a_device_sends_once_and_receives_once(n):
    # What `jax.lax.ppermute` asks for.
    plan = copy_plan(n)
    for copies in plan.collect + plan.spread:
        for side in (0, 1):
            devices = [copy[side] for copy in copies]
            assert len(set(devices)) == len(devices)


@NUMBERS
def test_a_device_does_not_send_before_it_has_collected(n):
    plan = copy_plan(n)
    sent = set()
    for copies in plan.collect:
        for source, to in copies:
            assert to not in sent
            sent.add(source)


@pytest.mark.parametrize(("n", "rounds"), [(1, 0), (2, 1), (3, 2), (4, 2), (8, 4), (16, 6), (9, 4)])
def test_two_levels_take_fewer_rounds_than_one(n, rounds):
    plan = copy_plan(n)
    assert len(plan.collect) == len(plan.spread) == rounds
