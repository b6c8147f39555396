"""What a worker hears without having asked."""

import asyncio
import math

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


def test_the_last_to_end_wait_for_nobody_when_the_chief_has_finished():
    link = Link(("worker:0", "worker:1"), 1, 10.0, 0.25, lambda: None)
    link._told({"say": "closed"})
    asyncio.run(asyncio.wait_for(link.others_out(math.inf), 60))
