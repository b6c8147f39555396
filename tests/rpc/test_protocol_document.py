"""docs/protocol.md tells of every message and limit that there is."""

import typing
from pathlib import Path

import msgspec
import pytest

from jaxtribute.coordinator import _messages as coordinator
from jaxtribute.ps import _messages as ps
from jaxtribute.rpc import _wire

DOCUMENT = Path(__file__).parents[2].joinpath("docs", "protocol.md").read_text()

MESSAGES = [
    (section, message)
    for section, union in [
        ("To parameter servers", ps.Request | ps.Reply),
        ("From the coordinator to a worker", coordinator.ToWorker),
        ("From a worker to the coordinator", coordinator.FromWorker),
    ]
    for message in typing.get_args(union)
]


@pytest.mark.parametrize(
    ("section", "message"), MESSAGES, ids=[f"{s} {m.__name__}" for s, m in MESSAGES]
)
def test_each_message_is_documented_with_its_entries(section, message):
    _, _, rest = DOCUMENT.partition(f"### {section}\n")
    text, _, _ = rest.partition("\n### ")
    tag = message.__struct_config__.tag
    rows = [line.split("|") for line in text.splitlines() if line.startswith(f"| `{tag}` |")]
    assert len(rows) == 1, f"`{tag}` has no row of its own"
    entries = [field.encode_name for field in msgspec.structs.fields(message)]
    assert rows[0][2].strip() == ", ".join(f"`{entry}`" for entry in entries)


def test_the_version_and_the_kinds_are_documented():
    assert f"version **{_wire.PROTOCOL}**" in DOCUMENT
    for kind in _wire.Kind:
        assert f"| {kind.value} | {kind.name.lower()} |" in DOCUMENT


def test_the_limits_are_documented():
    assert _wire.LONGEST_HEADER == 1 << 20
    assert _wire.LONGEST_GREETING == 4 << 10
    assert _wire.LARGEST_FRAME == 1 << 30
    for limit in ("1 MiB; 4 KiB", f"{_wire.MOST_FRAMES:,}", "1 GiB"):
        assert limit in DOCUMENT
