"""The time limits that are read from the environment."""

import pytest

from jaxtribute._limits import seconds as seconds_of

NAME = "JAXTRIBUTE_SOME_TIMEOUT"


def test_the_default_counts_where_nothing_is_said(monkeypatch):
    monkeypatch.delenv(NAME, raising=False)
    assert seconds_of(NAME, 7.0) == 7.0


@pytest.mark.parametrize(("text", "seconds"), [("3", 3.0), ("0.5", 0.5), (" 20 ", 20.0)])
def test_a_number_ofseconds_of(monkeypatch, text, seconds):
    monkeypatch.setenv(NAME, text)
    assert seconds_of(NAME, 7.0) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "5s"])
def test_anything_else_is_refused_with_its_name(monkeypatch, text):
    monkeypatch.setenv(NAME, text)
    with pytest.raises(ValueError, match=f"{NAME} must be a positive number of seconds, got"):
        seconds_of(NAME, 7.0)
