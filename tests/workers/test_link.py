"""What a worker hears without having asked."""

from jaxtribute.workers._link import Link


def told(link, about, by):
    link._told({"say": "told", "about": about, "by": by})


def test_a_listener_is_called_also_for_what_was_told_before():
    link = Link(("worker:0", "worker:1", "worker:2"), 0, 10.0, 0.25, lambda: None)
    heard = []
    told(link, "rain", by=2)
    told(link, "snow", by=1)
    link.hear("rain", heard.append)
    assert heard == [2]
    told(link, "rain", by=1)
    assert heard == [2, 1]
