"""How many closures workers get, and when they give some back."""

import pytest

from jaxtribute.coordinator._pace import Load, recalls, room, shares


@pytest.mark.parametrize(
    ("mean_seconds", "expected"),
    [(None, 2), (0.0, 64), (1e-5, 64), (0.001, 20), (0.005, 4), (0.01, 2), (0.3, 2), (60.0, 2)],
)
def test_short_closures_go_out_in_greater_numbers(mean_seconds, expected):
    assert room(mean_seconds) == expected


FAST, SLOW = 1e-5, 1.0


@pytest.mark.parametrize(
    ("waiting", "loads", "expected"),
    [
        pytest.param(1000, [Load(0, FAST), Load(0, FAST)], [64, 64], id="enough for all"),
        pytest.param(10, [Load(0, FAST), Load(0, FAST)], [5, 5], id="shared evenly"),
        pytest.param(1, [Load(2, FAST), Load(0, FAST)], [0, 1], id="the idle one first"),
        pytest.param(1000, [Load(33, FAST), Load(32, FAST)], [0, 32], id="only below half"),
        pytest.param(1000, [Load(1, SLOW), Load(2, SLOW)], [1, 0], id="two at least"),
        pytest.param(0, [Load(0, FAST)], [0], id="nothing waits"),
        pytest.param(5, [], [], id="nobody there"),
    ],
)
def test_what_waits_is_shared(waiting, loads, expected):
    assert shares(waiting, loads) == expected


@pytest.mark.parametrize(
    ("waiting", "loads", "expected"),
    [
        pytest.param(0, {"a": Load(2, SLOW), "b": Load(0, SLOW)}, {"a": 1}, id="one is idle"),
        pytest.param(1, {"a": Load(2, SLOW), "b": Load(0, SLOW)}, {}, id="something waits"),
        pytest.param(0, {"a": Load(2, SLOW), "b": Load(1, SLOW)}, {}, id="nobody is idle"),
        pytest.param(0, {"a": Load(1, SLOW), "b": Load(0, SLOW)}, {}, id="all have begun"),
        pytest.param(0, {"a": Load(9, FAST), "b": Load(0, FAST)}, {}, id="not worth it"),
        pytest.param(
            0, {"a": Load(9, FAST, since=5.0), "b": Load(0, FAST)}, {"a": 4}, id="it hangs"
        ),
        pytest.param(
            0, {"a": Load(2, None, since=5.0), "b": Load(0, None)}, {"a": 1}, id="its first hangs"
        ),
        pytest.param(
            0, {"a": Load(2, SLOW, recalled=True), "b": Load(0, SLOW)}, {}, id="asked already"
        ),
    ],
)
def test_idle_workers_get_what_others_have_not_begun(waiting, loads, expected):
    assert recalls(waiting, loads) == expected
