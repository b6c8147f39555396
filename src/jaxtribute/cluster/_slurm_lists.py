"""The short forms in which Slurm writes lists in environment variables."""

from __future__ import annotations

import re

__all__ = ["deal", "expand_counts", "expand_hosts"]

_HOST = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_hosts(text: str) -> list[str]:
    """Return the names of nodes that are written as `node[01-03,7],gpu1`.

    Raises:
      ValueError: when it is written in another way.
    """
    hosts = _HOST.findall(text)
    if ",".join(hosts) != text:
        raise ValueError(f"{text!r} is no list of nodes such as 'node[01-03,7],gpu1'.")
    return [name for host in hosts for name in _expand_host(host)]


def _expand_host(host: str) -> list[str]:
    before, bracket, rest = host.partition("[")
    if not bracket:
        return [host]
    ranges, _, after = rest.partition("]")
    return [
        f"{before}{number}{end}"
        for part in ranges.split(",")
        for number in _expand_range(part)
        for end in _expand_host(after)
    ]


def _expand_range(text: str) -> list[str]:
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise ValueError(f"{text!r} is no range of nodes such as '01-03'.")
    # "01-03" keeps its zeros: node01, not node1.
    return [f"{n:0{len(first)}}" for n in range(int(first), int(last if dash else first) + 1)]


def expand_counts(text: str) -> list[int]:
    """Return the numbers that are written as `2(x3),1`.

    Raises:
      ValueError: when they are written in another way.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r} is no list of numbers such as '2(x3),1'.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def deal(counts: list[int], at_a_time: int | None) -> list[tuple[int, int]]:
    """Return the node of each task, and its number there, in the order of the tasks.

    Args:
      counts: how many tasks each node takes.
      at_a_time: how many a node is given before it is the next one's turn; all of its own if None.
    """
    placed: list[tuple[int, int]] = []
    taken = [0] * len(counts)
    while len(placed) < sum(counts):
        for node, count in enumerate(counts):
            more = min(count - taken[node], at_a_time or count)
            placed += [(node, taken[node] + i) for i in range(more)]
            taken[node] += more
    return placed
