"""Bad input gets a typed error that names what is wrong, where, and what would work."""

import gc

import jax
import numpy as np
import pytest

import jaxtribute as jt
from tests.data._support import read, rest, stream_of, streamed, write_lines, write_records

Dataset = jt.data.Dataset

SOURCES = pytest.mark.parametrize("source", [Dataset.range, stream_of], ids=["table", "stream"])


def told(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


class TestArguments:
    """What can be refused is refused where it is given, not where it is read."""

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            pytest.param(lambda d: d.map(3), "map", id="map"),
            pytest.param(lambda d: d.map(None), "map", id="map None"),
            pytest.param(lambda d: d.filter(True), "filter", id="filter"),
            pytest.param(lambda d: d.interleave(d), "interleave", id="interleave"),
            pytest.param(lambda d: d.apply(None), "apply", id="apply"),
            pytest.param(lambda d: d.concatenate([1]), "concatenate", id="concatenate"),
            pytest.param(lambda d: d.take(1.5), "take", id="take 1.5"),
            pytest.param(lambda d: d.take("2"), "take", id="take text"),
            pytest.param(lambda d: d.take(None), "take", id="take None"),
            pytest.param(lambda d: d.skip(1.5), "skip", id="skip 1.5"),
            pytest.param(lambda d: d.skip(None), "skip", id="skip None"),
            pytest.param(lambda d: d.repeat(1.5), "repeat", id="repeat 1.5"),
            pytest.param(lambda d: d.repeat("2"), "repeat", id="repeat text"),
            pytest.param(lambda d: d.enumerate("a"), "enumerate", id="enumerate text"),
            pytest.param(lambda d: d.shard(2.0, 1), "shard", id="shard float"),
            pytest.param(lambda d: d.shard("2", 1), "shard", id="shard text"),
            pytest.param(lambda d: d.batch("2"), "batch", id="batch text"),
            pytest.param(lambda d: d.shuffle("2"), "shuffle", id="shuffle text"),
            pytest.param(lambda d: d.prefetch("2"), "prefetch", id="prefetch text"),
            pytest.param(lambda d: d.cache(5), "cache|path|str", id="cache number"),
            pytest.param(lambda d: d.map(abs, num_parallel_calls=0), "num_parallel_calls", id="0"),
            pytest.param(
                lambda d: d.map(abs, num_parallel_calls=-2), "num_parallel_calls", id="-2"
            ),
            pytest.param(
                lambda d: d.map(abs, num_parallel_calls=1.5), "num_parallel_calls", id="1.5"
            ),
            pytest.param(lambda d: d.interleave(abs, cycle_length=1.5), "cycle_length", id="cycle"),
        ],
    )
    def test_are_refused_by_name(self, call, message):
        with pytest.raises((TypeError, jt.errors.InvalidArgumentError), match=message):
            call(Dataset.range(3))

    def test_files_are_refused_by_name(self):
        with pytest.raises((TypeError, jt.errors.InvalidArgumentError)):
            Dataset.list_files(5)
        with pytest.raises((TypeError, jt.errors.InvalidArgumentError)):
            Dataset.list_files([])


@SOURCES
class TestFunctionsThatRaise:
    @pytest.mark.parametrize("parallel", [None, 2])
    def test_the_function_and_the_element_are_named(self, source, parallel):
        def parse_example(x):
            return 10 // (x - 4)

        with pytest.raises(ZeroDivisionError) as raised, np.errstate(all="raise"):
            read(source(8).map(lambda x: int(x)).map(lambda x: parse_example(int(x)), parallel))
        assert "element 4" in told(raised.value) and "map" in told(raised.value)

    def test_the_name_of_the_function_is_told(self, source):
        def parse_example(x):
            raise KeyError("label")

        for method in ("map", "filter", "interleave"):
            with pytest.raises(KeyError) as raised:
                read(getattr(source(3), method)(parse_example))
            assert "parse_example" in told(raised.value)
            assert f"Dataset.{method}" in told(raised.value)
            assert "element 0" in told(raised.value)

    def test_the_error_is_the_one_that_was_raised(self, source):
        class MyError(Exception):
            def __init__(self, code, where):
                super().__init__(code, where)
                self.code = code

        def fails(x):
            raise MyError(7, "here") from KeyError("cause")

        for parallel in (None, 2):
            with pytest.raises(MyError) as raised:
                read(source(3).map(fails, parallel).batch(2))
            assert raised.value.code == 7
            assert isinstance(raised.value.__cause__, KeyError)

    def test_the_traceback_leads_to_the_function(self, source):
        def fails(x):
            raise ValueError("here")

        for parallel in (None, 2):
            with pytest.raises(ValueError, match="here") as raised:
                read(source(3).map(fails, parallel).prefetch(2))
            assert raised.traceback[-1].name == "fails"

    def test_elements_are_counted_as_the_function_sees_them(self, source):
        def fails_at_seven(x):
            if x == 7:
                raise ValueError("seven")
            return x

        dataset = source(10).filter(lambda x: x % 2).map(fails_at_seven)
        with pytest.raises(ValueError, match="seven") as raised:
            read(dataset)
        assert "element 3" in told(raised.value)  # 1, 3, 5, 7

    def test_with_the_wrong_number_of_arguments(self, source):
        pairs = source(3).map(lambda x: (x, x))
        with pytest.raises(TypeError, match="argument") as raised:
            read(pairs.map(lambda pair: pair))
        assert "element 0" in told(raised.value)

    def test_a_key_nobody_asked_for(self, source):
        with pytest.raises(TypeError, match="argument"):
            read(source(3).map(lambda x: x, seed=1))

    def test_keyboard_interrupts_are_not_swallowed(self, source):
        def interrupted(x):
            raise KeyboardInterrupt

        for dataset in (source(3).map(interrupted), source(3).map(interrupted).prefetch(1)):
            with pytest.raises(KeyboardInterrupt):
                read(dataset)


@SOURCES
class TestResultsThatAreNoElements:
    @pytest.mark.parametrize(
        ("result", "message"),
        [
            pytest.param(lambda x: None, "None", id="None"),
            pytest.param(lambda x: (x, None), "None", id="None inside"),
            pytest.param(lambda x: object(), "object", id="object"),
            pytest.param(lambda x: {1, 2}, "set", id="set"),
            pytest.param(lambda x: [x, [x, x]], "tuple", id="ragged list"),
            pytest.param(lambda x: [1, "a"], "text", id="mixed list"),
            pytest.param(lambda x: jax.random.key(0), "key", id="random key"),
            pytest.param(lambda x: iter([x]), "iterator", id="iterator"),
            pytest.param(lambda x: Dataset.range(3), "Dataset", id="dataset"),
        ],
    )
    def test_are_refused_with_their_element(self, source, result, message):
        with pytest.raises((TypeError, ValueError), match=message) as raised:
            read(source(3).map(result))
        assert "element 0" in told(raised.value) and "map" in told(raised.value)


class TestGenerators:
    @pytest.mark.parametrize(
        "bad", [pytest.param(v, id=type(v).__name__) for v in (None, object(), {1}, [1, [2]])]
    )
    def test_elements_that_are_none_are_named(self, bad):
        def my_examples():
            yield 1
            yield 2
            yield bad

        iterator = iter(Dataset.from_generator(my_examples))
        assert rest(iterator, 2) == [1, 2]
        with pytest.raises((TypeError, ValueError)) as raised:
            next(iterator)
        assert "my_examples" in told(raised.value)
        assert "lement 2" in told(raised.value)

    def test_an_error_inside_is_named(self):
        def my_examples():
            yield 1
            raise OSError("disk")

        with pytest.raises(OSError, match="disk") as raised:
            read(Dataset.from_generator(my_examples))
        assert "my_examples" in told(raised.value)
        assert "lement 1" in told(raised.value)

    def test_a_function_that_returns_no_iterable(self):
        with pytest.raises(TypeError, match=r"iterable|from_generator"):
            read(Dataset.from_generator(lambda: 5))

    def test_one_generator_object_cannot_be_read_twice(self):
        def numbers():
            yield 1

        with pytest.raises(TypeError, match="function"):
            Dataset.from_generator(numbers())


class TestChangingStructure:
    @pytest.mark.parametrize(
        ("elements", "message"),
        [
            pytest.param([(1, 2), (1, 2, 3)], "structure", id="longer tuple"),
            pytest.param([(1, 2), {"a": 1}], "structure", id="dict"),
            pytest.param([{"a": 1}, {"b": 1}], "structure", id="other key"),
            pytest.param([{"a": 1}, {"a": 1, "b": 1}], "structure", id="more keys"),
            pytest.param([1, "a"], "structure", id="text"),
            pytest.param(["a", 1], "structure", id="number"),
            pytest.param([np.zeros(2), np.zeros(3)], "shape", id="shape"),
            pytest.param([np.zeros(2), 0.0], "shape", id="rank"),
            pytest.param([(1, {"a": [1]}), (1, {"a": [1, 2]})], "shape", id="shape inside"),
        ],
    )
    @pytest.mark.parametrize("table", [True, False], ids=["table", "stream"])
    def test_no_batch_is_made_of_it(self, elements, message, table):
        mapped = Dataset.range(2).map(lambda x: elements[int(x)])
        dataset = mapped if table else streamed(*elements)
        assert len(read(dataset)) == 2, "alone they are fine"
        with pytest.raises(jt.errors.InvalidArgumentError, match=message):
            read(dataset.batch(2))


class TestFiles:
    """More in test_files: here the errors pass through a whole pipeline."""

    WAYS = pytest.mark.parametrize(
        "way",
        [
            pytest.param(lambda names, reader: reader(names), id="reader"),
            pytest.param(lambda names, reader: names.interleave(reader, 2), id="interleave"),
            pytest.param(
                lambda names, reader: (
                    names.interleave(reader, 2).map(len, 2).shuffle(9).batch(2).prefetch(2)
                ),
                id="pipeline",
            ),
            pytest.param(lambda names, reader: reader(names).cache().repeat(), id="cache"),
        ],
    )

    @WAYS
    def test_a_missing_file_is_named(self, tmp_path, way):
        write_lines(tmp_path / "a", "12")
        names = Dataset.from_tensor_slices([str(tmp_path / "a"), str(tmp_path / "gone")])
        with pytest.raises(jt.errors.NotFoundError, match="gone"):
            read(way(names, jt.data.TextLineDataset), 10)

    @WAYS
    def test_a_damaged_file_is_named_with_the_byte(self, tmp_path, way):
        good = write_records(tmp_path / "good", [b"abc", b"def"])
        bad = write_records(tmp_path / "bad", [b"abc", b"def"])
        bad.write_bytes(bad.read_bytes()[:-1])
        names = Dataset.from_tensor_slices([str(good), str(bad)])
        with pytest.raises(jt.errors.DataLossError, match=r"bad.*byte 19"):
            read(way(names, jt.data.TFRecordDataset), 10)

    def test_a_file_that_vanished_since_the_state_was_saved(self, tmp_path):
        path = write_lines(tmp_path / "lines", range(5))
        dataset = jt.data.TextLineDataset(path)
        iterator = iter(dataset)
        rest(iterator, 2)
        state = iterator.get_state()
        path.unlink()
        fresh = iter(dataset)
        with pytest.raises(jt.errors.NotFoundError, match="lines"):
            fresh.set_state(state)
            rest(fresh)

    def test_a_file_that_got_shorter_since_the_state_was_saved(self, tmp_path):
        path = write_records(tmp_path / "records", [b"%d" % i for i in range(5)])
        dataset = jt.data.TFRecordDataset(path)
        iterator = iter(dataset)
        rest(iterator, 3)
        state = iterator.get_state()
        write_records(path, [b"0"])
        fresh = iter(dataset)
        with pytest.raises((jt.errors.DataLossError, jt.errors.InvalidArgumentError)):
            fresh.set_state(state)
            rest(fresh)


class TestAfterTheMistake:
    """The dataset, and other iterators over it, go on working."""

    @SOURCES
    def test_a_new_pass_starts_afresh(self, source):
        fails = True

        def sometimes(x):
            if fails and x == 2:
                raise ValueError("now")
            return x

        dataset = source(4).map(sometimes).batch(2)
        with pytest.raises(ValueError, match="now"):
            read(dataset)
        fails = False
        assert read(dataset) == [[0, 1], [2, 3]]

    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda d: d, id="alone"),
            pytest.param(lambda d: d.filter(bool).batch(2), id="filter"),
            pytest.param(lambda d: d.filter(bool).repeat(), id="repeat"),
            pytest.param(lambda d: stream_of(2).concatenate(d), id="concatenate"),
            pytest.param(lambda d: Dataset.zip(stream_of(2).prefetch(1), d), id="zip"),
            pytest.param(lambda d: d.map(abs, 2).shuffle(2).prefetch(2), id="prefetch"),
            pytest.param(lambda d: stream_of(3).interleave(lambda x: d), id="interleave"),
            pytest.param(lambda d: d.filter(bool).cache().unbatch(), id="cache"),
        ],
    )
    def test_a_dataset_that_cannot_be_read_leaves_nothing_behind(self, make):
        hint = jt.data.experimental.SHARD_HINT
        dataset = make(Dataset.range(4).shard(hint, hint))
        for _ in range(2):
            with pytest.raises(jt.errors.InvalidArgumentError, match="HINT"):
                read(dataset)
        gc.collect()
