"""However updates are duplicated, delayed and sent again, each counts once."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from tests.ps._updates import op, store_with, update, value


@st.composite
def deliveries(draw):
    """Return closures with their amounts, and an order in which copies of updates arrive.

    As from a coordinator, a closure is settled only after its update has arrived at least once,
    and a copy may arrive at any time after that.
    """
    amounts = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=12))
    arrivals = draw(st.lists(st.sampled_from(range(len(amounts))), max_size=40))
    rest = draw(st.permutations(range(len(amounts))))  # so that each arrives at least once
    return amounts, [*arrivals, *rest]


@given(deliveries(), st.booleans())
def test_the_sum_is_that_of_each_closure_once(delivered, by_rows):
    amounts, arrivals = delivered
    store = store_with(np.zeros(3, np.int64), np.zeros((), np.int64))
    arrived = set[int]()
    for closure in arrivals:
        settled = next(n for n in range(len(amounts) + 1) if n not in arrived)
        amount = amounts[closure]
        change = (
            op(0, "scatter_add", np.array([amount, amount]), np.array([1, 1]))
            if by_rows
            else op(0, "add", np.array([0, 2 * amount, 0]))
        )
        is_new = update(store, closure, change, op(1, "add", np.array(1)), settled=settled)
        assert is_new == (closure not in arrived)
        arrived.add(closure)
    assert value(store).tolist() == [0, 2 * sum(amounts), 0]
    assert value(store, 1) == len(amounts) == store.clock
