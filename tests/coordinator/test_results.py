"""Results and errors on their way back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.coordinator._packing import load_error, load_result, pack_error, pack_result


def sent(value):
    return load_result(pack_result(value))


def raised(function, task="worker:1"):
    try:
        function()
    except BaseException as error:
        return load_error(pack_error(error, task))
    raise AssertionError("nothing was raised")


class TestResults:
    def test_arrays_of_jax_arrive_as_those_of_numpy(self):
        arrived = sent({"a": jnp.arange(3), "b": [jnp.float32(2)], "c": None, "d": "text"})
        assert isinstance(arrived["a"], np.ndarray)
        assert isinstance(arrived["b"][0], np.float32)
        assert (arrived["c"], arrived["d"]) == (None, "text")

    def test_python_values_stay_what_they_are(self):
        assert sent((1, 2.5, True)) == (1, 2.5, True)

    @pytest.mark.parametrize("make", [jnp.arange, np.arange], ids=["jax", "numpy"])
    @pytest.mark.parametrize("size", [3, 100_000])
    def test_what_was_fetched_can_be_written_to(self, make, size):
        arrived = sent(make(size))
        arrived += 1
        assert arrived[-1] == size

    def test_big_arrays_of_jax_are_frames_of_their_own(self):
        frames = pack_result(jnp.zeros(100_000))
        assert [memoryview(frame).nbytes >= 400_000 for frame in frames] == [False, True]

    def test_the_function_may_go_on_writing_to_what_it_returned(self):
        buffer = np.zeros(100_000)
        frames = pack_result(buffer)
        buffer += 1
        assert load_result(frames).sum() == 0

    def test_types_unknown_to_numpy_are_kept(self):
        assert sent(jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16

    def test_random_keys_are_kept(self):
        assert isinstance(sent(jax.random.key(0)), jax.Array)

    def test_what_cannot_be_sent_is_an_error_that_says_so(self):
        with pytest.raises(TypeError, match=r"cannot be sent to the coordinator.*generator"):
            pack_result(x for x in ())


class Strange(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class Stubborn(Exception):
    def __reduce__(self):
        raise RuntimeError("no")


class TestErrors:
    def test_the_class_is_kept_and_the_place_is_a_note(self):
        error = raised(lambda: 1 // 0)
        assert isinstance(error, ZeroDivisionError)
        (note,) = error.__notes__
        assert "Raised on worker:1" in note
        assert "1 // 0" in note

    def test_ours_are_kept_with_their_data(self):
        def lose():
            raise jt.errors.PSUnavailableError("ps:1", "it is gone")

        error = raised(lose)
        assert (type(error), error.task) == (jt.errors.PSUnavailableError, "ps:1")

    def test_notes_are_kept(self):
        def fail():
            error = ValueError("x")
            error.add_note("remember")
            raise error

        assert raised(fail).__notes__[0] == "remember"

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (Strange(1, 2), "Strange: 1 and 2"),
            (Stubborn("why"), "Stubborn: why"),
            (SystemExit(3), "SystemExit: 3"),
            (KeyboardInterrupt(), "KeyboardInterrupt"),
        ],
        ids=["cannot be rebuilt", "cannot be pickled", "would end this process", "interrupts"],
    )
    def test_one_that_cannot_be_raised_here_becomes_one_that_says_the_same(self, error, text):
        def fail():
            raise error

        arrived = raised(fail)
        assert type(arrived) is RuntimeError
        assert text in str(arrived)

    def test_the_end_of_an_iterator_is_as_in_a_compiled_function(self):
        assert isinstance(raised(lambda: next(iter(()))), jt.errors.OutOfRangeError)

    def test_an_error_with_an_array_arrives(self):
        def fail():
            raise ValueError(jnp.ones(2))

        assert raised(fail).args[0].tolist() == [1.0, 1.0]
