import hypothesis.strategies as st
from hypothesis import given

from jaxtribute.ps._applied import Applied


def test_closures_are_recognised_in_any_order():
    applied = Applied()
    for closure in (7, 3, 5):
        applied.add(closure)
    assert [closure in applied for closure in range(3, 8)] == [True, False, True, False, True]


def test_what_is_settled_counts_as_applied_and_takes_no_room():
    applied = Applied()
    for closure in range(100):
        applied.add(closure)
    applied.settle(98)
    assert 5 in applied
    assert applied.closures == [98, 99]


def test_the_watermark_never_goes_back():
    applied = Applied()
    applied.settle(10)
    applied.settle(4)
    assert applied.settled == 10


def test_adding_something_settled_is_not_remembered_on_its_own():
    applied = Applied(settled=10)
    applied.add(4)
    assert applied.closures == []


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60))
def test_it_answers_as_a_plain_set_with_a_watermark_does(events):
    applied, plain, watermark = Applied(), set[int](), 0
    for number, settles in events:
        if settles:
            watermark = max(watermark, number)
            applied.settle(number)
        else:
            plain.add(number)
            applied.add(number)
        assert all((n in applied) == (n in plain or n < watermark) for n in range(31))
        assert applied.closures == sorted(n for n in plain if n >= watermark)
        assert Applied(applied.settled, applied.closures).closures == applied.closures
