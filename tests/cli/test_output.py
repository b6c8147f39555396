"""How the output of a task is cut into lines, and what is kept of it."""

from jaxtribute.cli._output import Lines, Tail


def test_lines_are_put_together():
    lines = Lines()
    assert lines.feed(b"one\ntw", 0) == [b"one"]
    assert lines.feed(b"o\n\nthree", 0) == [b"two", b""]
    assert lines.close() == [b"three"]
    assert lines.close() == []


def test_line_ends_of_other_systems_are_removed():
    assert Lines().feed(b"one\r\ntwo\r\n", 0) == [b"one", b"two"]


def test_the_noise_of_a_library_is_dropped():
    lines = Lines()
    assert lines.feed(b"[Gloo] Rank 0 is connected\nkept\n[Gloo] Rank 1", 0) == [b"kept"]
    assert lines.close() == []


def test_a_progress_bar_is_a_line_now_and_then_and_in_the_end():
    lines = Lines()
    assert lines.feed(b"\r10%", 0) == [b"10%"]
    assert lines.feed(b"\r20%", 1) == []
    assert lines.feed(b"\r30%", 11) == [b"30%"]
    assert lines.feed(b"\r100%\n", 12) == [b"100%"]


def test_a_progress_bar_that_returns_after_drawing_is_one_too():
    lines = Lines()
    assert lines.feed(b"10%\r", 0) == [b"10%"]
    assert lines.feed(b"20%\r", 1) == []
    assert lines.feed(b"30%\r40%\r", 11) == [b"40%"]
    assert lines.close() == [b"40%"]


def test_a_line_without_end_does_not_fill_the_memory():
    lines = Lines()
    received = [line for _ in range(40) for line in lines.feed(b"x" * 10_000, 0)]
    assert sum(map(len, [*received, *lines.close()])) == 400_000
    assert max(map(len, received)) < 100_000


def test_the_tail_is_bounded():
    tail = Tail()
    tail.extend(b"%d" % number for number in range(10_000))
    assert tail.lines()[-1] == "9999"
    assert len(tail.lines()) == 300
    tail.extend([b"y" * 100_000, b"\xff"])
    assert len(tail.lines()[-2]) == 2000
    assert tail.lines()[-1] == "\N{REPLACEMENT CHARACTER}"
