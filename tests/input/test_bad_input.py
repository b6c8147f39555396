"""Input that cannot work: a clear error, on every worker, and no hang."""

import gzip
import struct
from typing import NamedTuple

import google_crc32c
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.data import Dataset, TextLineDataset, TFRecordDataset
from jaxtribute.input import distribute, distribute_from_function
from tests.input._workers import (
    distribute_to,
    mirrored,
    parts,
    run_workers,
    steps,
    with_policy,
)


class BrokenLine(Exception):
    pass


def breaks_at(bad):
    """Return a function for `map` that fails for one element."""

    def parse(x):
        if int(x) == bad:
            raise BrokenLine(f"cannot parse {int(x)}")
        return np.int32(x)

    return parse


class Outcome(NamedTuple):
    """What came out of a dataset before it failed, and how it failed."""

    steps: list
    errors: list[BaseException]

    @property
    def error(self):
        first, *others = self.errors
        assert all(type(other) is type(first) for other in others)
        return first

    @property
    def text(self):
        return "\n".join([str(self.error), *getattr(self.error, "__notes__", ())])


def outcome(dataset):
    """Go through a dataset until it fails, and ask twice more."""
    delivered, errors = [], []
    try:
        iterator = iter(dataset)
    except Exception as error:
        return Outcome(delivered, [error])
    while len(errors) < 3:
        try:
            element = next(iterator)
        except StopIteration:
            break
        except Exception as error:
            errors.append(error.with_traceback(None))  # which keeps the threads of `map` alive
        else:
            assert not errors, "it went on after an error"
            delivered.append(element if isinstance(element, (tuple, dict)) else parts(element))
    assert errors, f"no error, but {delivered}"
    return Outcome(delivered, errors)


def outcomes(workers, dataset_of):
    """Return the outcome of each worker, which may see a dataset of its own."""
    return run_workers(
        workers,
        1,
        lambda own: outcome(distribute(dataset_of(own.context.input_pipeline_id), own, None)),
    )


def write_records(path, records, damage=None):
    """Write a TFRecord file, with one byte changed at an offset."""
    data = bytearray()
    for record in records:
        length = struct.pack("<Q", len(record))
        data += length + _checksum(length) + record + _checksum(record)
    if damage is not None:
        data[damage] ^= 0xFF
    path.write_bytes(data)
    return str(path)


def _checksum(data):
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


# --- What is no dataset ----------------------------------------------------------------------


class TestWhatIsNoDataset:
    @pytest.mark.parametrize(
        "value",
        [None, 3, "data/*.txt", b"data", object(), lambda: [1], {"x": 1}, {"x": [1, 2]}],
        ids=["None", "number", "text", "bytes", "object", "function", "numbers", "lists"],
    )
    @pytest.mark.parametrize("replicas", [1, 2])
    def test_it_is_refused_at_once(self, value, replicas):
        with pytest.raises(TypeError, match="Expected a dataset"):
            mirrored(replicas).experimental_distribute_dataset(value)

    @pytest.mark.parametrize(
        "value",
        [(np.zeros(2) for _ in range(2)), iter([np.zeros(2)]), map(np.asarray, [[1, 2]])],
        ids=["generator", "iterator", "map"],
    )
    def test_what_can_be_read_only_once_is_refused(self, value):
        with pytest.raises(TypeError, match=r"read only once.*from_generator"):
            mirrored(2).experimental_distribute_dataset(value)

    def test_an_iterator_of_a_dataset_is_refused(self):
        iterator = iter(Dataset.range(4).batch(2))
        with pytest.raises(TypeError, match="read only once"):
            mirrored(2).experimental_distribute_dataset(iterator)

    @pytest.mark.parametrize("replicas", [1, 2])
    def test_a_dataset_is_not_distributed_twice(self, replicas):
        dataset = mirrored(replicas).experimental_distribute_dataset(Dataset.range(4).batch(2))
        with pytest.raises(TypeError, match=r"distributed already|already distributed"):
            mirrored(replicas).experimental_distribute_dataset(dataset)
        iterator = iter(dataset)
        with pytest.raises(TypeError, match=r"distributed already|already distributed|only once"):
            mirrored(replicas).experimental_distribute_dataset(iterator)

    def test_a_distributed_value_is_no_dataset(self):
        value = next(iter(mirrored(2).experimental_distribute_dataset(Dataset.range(4).batch(4))))
        with pytest.raises(TypeError):
            mirrored(2).experimental_distribute_dataset(value)

    @pytest.mark.parametrize(
        "elements",
        [[object()], [None], [np.zeros(2), None], [{"x": object()}]],
        ids=["object", "None", "None_later", "nested"],
    )
    @pytest.mark.parametrize("replicas", [1, 2])
    def test_elements_that_are_no_arrays_are_refused(self, elements, replicas):
        with pytest.raises(TypeError, match=r"element|arrays"):
            list(mirrored(replicas).experimental_distribute_dataset(elements))


# --- What a distributed dataset is not for ---------------------------------------------------


class TestTransformations:
    @pytest.mark.parametrize(
        "name",
        [
            "map",
            "filter",
            "batch",
            "unbatch",
            "shuffle",
            "repeat",
            "take",
            "skip",
            "shard",
            "prefetch",
            "cache",
            "concatenate",
            "zip",
            "enumerate",
            "interleave",
            "with_options",
            "as_numpy_iterator",
        ],
    )
    def test_they_belong_before_the_distribution(self, name):
        dataset = mirrored(2).experimental_distribute_dataset(Dataset.range(4).batch(2))
        with pytest.raises(AttributeError, match=f"cannot be transformed.*'{name}'.*before"):
            getattr(dataset, name)

    def test_other_names_are_just_missing(self):
        dataset = mirrored(2).experimental_distribute_dataset(Dataset.range(4).batch(2))
        with pytest.raises(AttributeError, match="no attribute 'colour'"):
            _ = dataset.colour
        assert not hasattr(dataset, "__array__")

    @pytest.mark.parametrize(
        "combine",
        [
            lambda dataset: Dataset.zip(Dataset.range(4), dataset),
            lambda dataset: Dataset.range(4).concatenate(dataset),
            lambda dataset: Dataset.range(4).interleave(lambda _: dataset),
        ],
        ids=["zip", "concatenate", "interleave"],
    )
    def test_it_is_no_part_of_a_dataset(self, combine):
        dataset = mirrored(2).experimental_distribute_dataset(Dataset.range(4).batch(2))
        with pytest.raises(TypeError, match=r"expected a jt\.data\.Dataset"):
            list(combine(dataset))


class TestInOtherPrograms:
    """Where an element would be seen once and then never again."""

    @pytest.mark.parametrize("method", ["next", "get_next", "get_next_as_optional"])
    def test_next_inside_jit_is_refused(self, method):
        iterator = iter(mirrored(2).experimental_distribute_dataset(Dataset.range(8).batch(4)))
        call = next if method == "next" else lambda it: getattr(it, method)()

        @jax.jit
        def step(scale):
            call(iterator)
            return scale

        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"jax\.jit.*jt\.function"):
                step(1.0)
        assert parts(next(iterator)) == [[0, 1], [2, 3]]  # nothing was taken
        iterator.close()

    def test_a_loop_inside_jit_is_refused(self):
        dataset = mirrored(2).experimental_distribute_dataset(Dataset.range(8).batch(4))

        @jax.jit
        def epoch(scale):
            for _ in dataset:
                scale = scale + 1
            return scale

        with pytest.raises(RuntimeError, match=r"jax\.jit.*jt\.function"):
            epoch(1.0)

    @pytest.mark.parametrize("transform", [jax.grad, jax.vmap], ids=["grad", "vmap"])
    def test_next_inside_transformations_that_run_at_once_takes_an_element(self, transform):
        iterator = iter(mirrored(2).experimental_distribute_dataset(Dataset.range(8).batch(4)))

        def loss(w):
            return w * jnp.sum(next(iterator).values[1])

        given = jnp.float32(1.0) if transform is jax.grad else jnp.ones(2)
        assert jnp.all(transform(loss)(given) == 2 + 3)
        assert parts(next(iterator)) == [[4, 5], [6, 7]]
        iterator.close()

    def test_a_function_inside_jit_is_refused(self):
        strategy = mirrored(2)
        iterator = iter(strategy.experimental_distribute_dataset(Dataset.range(8).batch(4)))

        @jt.function
        def step():
            return strategy.reduce("SUM", next(iterator), axis=0)

        with pytest.raises(RuntimeError, match=r"jax\.jit.*jt\.function"):
            jax.jit(lambda: step())()

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_R133_next_inside_a_replica_is_refused(self, compiled):
        iterator = iter(mirrored(2).experimental_distribute_dataset(Dataset.range(8).batch(4)))

        def step():
            return mirrored(2).run(lambda: next(iterator))

        with pytest.raises(ValueError, match="outside, and pass the element"):
            (jt.function(step) if compiled else step)()

    @pytest.mark.parametrize("method", ["dataset", "function"])
    def test_distributing_inside_a_replica_is_refused(self, method):
        strategy = mirrored(2)
        source = Dataset.range(4).batch(2)

        def replica_fn():
            if method == "dataset":
                strategy.experimental_distribute_dataset(source)
            else:
                strategy.distribute_datasets_from_function(lambda _: source)

        with pytest.raises(RuntimeError, match=r"inside a replica|cross-replica"):
            strategy.run(replica_fn)

    def test_distributing_under_another_strategy_is_refused(self):
        with mirrored(1).scope(), pytest.raises(RuntimeError):
            mirrored(2).experimental_distribute_dataset(Dataset.range(4).batch(2))


# --- Options ---------------------------------------------------------------------------------


class TestOptions:
    """R132, and values that mean nothing."""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                jt.InputOptions(experimental_place_dataset_on_device=True),
                "PER_REPLICA",
            ),
            (
                jt.InputOptions(
                    experimental_place_dataset_on_device=True,
                    experimental_replication_mode=jt.InputReplicationMode.PER_REPLICA,
                ),
                "exclude each other",
            ),
            (jt.InputOptions(experimental_per_replica_buffer_size=0), "at least 1, got 0"),
            (jt.InputOptions(experimental_per_replica_buffer_size=-2), "at least 1, got -2"),
        ],
        ids=["R132-per-worker", "R132-fetched", "no_buffer", "negative_buffer"],
    )
    @pytest.mark.parametrize("method", ["dataset", "function"])
    def test_contradictions_are_refused(self, options, message, method):
        with pytest.raises(jt.errors.InvalidArgumentError, match=message):
            self._distribute(method, options)

    @pytest.mark.parametrize(
        "options",
        [
            jt.InputOptions(experimental_replication_mode="PER_REPLICA"),
            jt.InputOptions(experimental_per_replica_buffer_size=1.5),
            jt.InputOptions(experimental_per_replica_buffer_size="2"),
            jt.data.Options(),
            jt.RunOptions(),
            "fetch",
            {"experimental_fetch_to_device": False},
        ],
        ids=["mode", "float", "text_as_number", "data.Options", "RunOptions", "text", "dict"],
    )
    @pytest.mark.parametrize("method", ["dataset", "function"])
    def test_other_types_are_refused(self, options, method):
        with pytest.raises((TypeError, ValueError), match=r"InputOptions|experimental_"):
            self._distribute(method, options)

    def _distribute(self, method, options):
        source = Dataset.range(4).batch(2)
        if method == "dataset":
            mirrored(2).experimental_distribute_dataset(source, options)
        else:
            mirrored(2).distribute_datasets_from_function(lambda _: source, options)


# --- Functions that make datasets ------------------------------------------------------------


class TestDatasetFunctions:
    @pytest.mark.parametrize(
        "value", [None, 3, "text", Dataset.range(4)], ids=["None", "number", "text", "dataset"]
    )
    def test_what_is_no_function_is_refused(self, value):
        with pytest.raises(TypeError, match="takes a function of an InputContext"):
            mirrored(2).distribute_datasets_from_function(value)

    @pytest.mark.parametrize(
        "made",
        [None, 3, "data/*.txt", iter([np.zeros(2)]), lambda: None],
        ids=["None", "number", "text", "iterator", "function"],
    )
    def test_what_makes_no_dataset_is_refused(self, made):
        with pytest.raises(TypeError, match=r"dataset|read only once"):
            mirrored(2).distribute_datasets_from_function(lambda context: made)

    def test_what_makes_a_distributed_dataset_is_refused(self):
        dataset = mirrored(2).experimental_distribute_dataset(Dataset.range(4).batch(2))
        with pytest.raises(TypeError, match=r"distributed already|already distributed"):
            mirrored(2).distribute_datasets_from_function(lambda context: dataset)

    def test_its_errors_are_raised_at_once(self):
        def dataset_fn(context):
            raise BrokenLine("no data today")

        with pytest.raises(BrokenLine, match="no data today"):
            mirrored(2).distribute_datasets_from_function(dataset_fn)

    def test_a_global_batch_that_does_not_divide(self):
        def dataset_fn(context):
            return Dataset.range(10).batch(context.get_per_replica_batch_size(5))

        with pytest.raises(ValueError, match=r"5 examples.*2 replicas.*such as 6"):
            mirrored(2).distribute_datasets_from_function(dataset_fn)

    def test_elements_of_replicas_that_are_built_differently(self):
        made = [Dataset.range(2), Dataset.zip(Dataset.range(2), Dataset.range(2))]
        dataset = mirrored(2).distribute_datasets_from_function(
            lambda context: made[context.input_pipeline_id],
            jt.InputOptions(experimental_replication_mode=jt.InputReplicationMode.PER_REPLICA),
        )
        assert "built differently" in outcome(dataset).text


# --- Batches ---------------------------------------------------------------------------------


class TestBatches:
    @pytest.mark.parametrize("policy", ["AUTO", "OFF"])
    @pytest.mark.parametrize(
        "dataset",
        [
            Dataset.range(4),
            Dataset.range(4).batch(2).unbatch(),
            Dataset.from_generator(lambda: iter(range(4))),
            Dataset.from_tensor_slices({"x": np.zeros((4, 2)), "y": np.zeros(4)}),
        ],
        ids=["range", "unbatch", "generator", "one_of_two_components"],
    )
    def test_R118_an_unbatched_dataset(self, dataset, policy):
        found = outcome(mirrored(2).experimental_distribute_dataset(with_policy(dataset, policy)))
        assert isinstance(found.error, ValueError)
        assert "no batch dimension" in found.text
        assert "Call `batch`" in found.text
        assert found.steps == []

    def test_R118_an_unbatched_text_dataset(self, tmp_path):
        (tmp_path / "a").write_text("one\ntwo\n")
        dataset = mirrored(2).experimental_distribute_dataset(TextLineDataset(tmp_path / "a"))
        assert "Call `batch`" in outcome(dataset).text

    @pytest.mark.parametrize("worker", [0, 1])
    def test_R118_on_every_worker(self, worker):
        found = outcome(distribute_to(Dataset.range(4), workers=2, worker=worker, replicas=1))
        assert "Call `batch`" in found.text

    def test_components_with_different_numbers_of_examples(self):
        elements = [(np.zeros(4), np.zeros(4)), (np.zeros(4), np.zeros(3))]
        found = outcome(mirrored(2).experimental_distribute_dataset(elements))
        assert len(found.steps) == 1
        assert isinstance(found.error, ValueError)
        assert "Element 1" in found.text
        assert "different numbers of examples" in found.text

    @pytest.mark.parametrize("replicas", [1, 2])
    @pytest.mark.parametrize(
        ("second", "text"),
        [
            ({"x": np.zeros(4), "y": np.zeros(4)}, "'y'"),
            ((np.zeros(4),), "(float64(4,),)"),
            (np.zeros(4), "float64(4,)"),
            ({"x": np.zeros(4, np.int32)}, "int32"),
            ({"z": np.zeros(4)}, "'z'"),
        ],
        ids=["more", "tuple", "array", "type", "name"],
    )
    def test_elements_of_changing_structure(self, second, text, replicas):
        first = {"x": np.zeros(4)}
        dataset = mirrored(replicas).experimental_distribute_dataset([first, first, second])
        iterator = iter(dataset)
        for _ in range(2):
            assert set(next(iterator)) == {"x"}
        for _ in range(3):
            with pytest.raises(jt.errors.InvalidArgumentError, match="step 2 is built") as raised:
                next(iterator)
            assert text in str(raised.value)
            assert "the first one was {'x': float64(4,)}" in str(raised.value)

    def test_elements_of_changing_shape_may_vary_in_their_examples_only(self):
        elements = [np.zeros((4, 2)), np.zeros((2, 2)), np.zeros((3, 2))]
        dataset = mirrored(2).experimental_distribute_dataset(elements)
        assert [[part.shape for part in x.values] for x in dataset] == [
            [(2, 2), (2, 2)],
            [(1, 2), (1, 2)],
            [(2, 2), (1, 2)],
        ]


# --- Functions that fail ---------------------------------------------------------------------


class TestFunctionsThatFail:
    @pytest.mark.parametrize("policy", ["AUTO", "OFF"])
    @pytest.mark.parametrize("parallel", [None, 2])
    def test_the_steps_before_it_are_delivered(self, policy, parallel):
        dataset = Dataset.range(20).map(breaks_at(9), num_parallel_calls=parallel).batch(4)
        found = outcome(mirrored(2).experimental_distribute_dataset(with_policy(dataset, policy)))
        assert found.steps == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        assert isinstance(found.error, BrokenLine)
        assert "cannot parse 9" in found.text
        assert "breaks_at.<locals>.parse" in found.text
        assert "Dataset.map" in found.text
        assert "element 9" in found.text

    @pytest.mark.parametrize("replicas", [1, 2])
    def test_whole_batches(self, replicas):
        def parse(batch):
            if 9 in batch:
                raise BrokenLine("nine")
            return batch

        dataset = Dataset.range(20).batch(4).map(parse)
        found = outcome(mirrored(replicas).experimental_distribute_dataset(dataset))
        assert len(found.steps) == 2
        assert isinstance(found.error, BrokenLine)
        assert "element 2" in found.text

    def test_the_element_is_named_after_a_shuffle_and_a_repeat(self):
        dataset = Dataset.range(4).map(breaks_at(3)).shuffle(4, seed=1).repeat(2).batch(2)
        found = outcome(mirrored(2).experimental_distribute_dataset(dataset))
        assert "element 3" in found.text

    def test_lines_of_a_file(self, tmp_path):
        (tmp_path / "a").write_text("".join(f"{i}\n" for i in range(10)))
        dataset = TextLineDataset(tmp_path / "a").map(breaks_at(5)).batch(2)
        found = outcome(mirrored(2).experimental_distribute_dataset(dataset))
        assert found.steps == [[[0], [1]], [[2], [3]]]
        assert isinstance(found.error, BrokenLine)
        assert "element 5" in found.text

    def test_a_predicate(self):
        def keep(x):
            if x == 5:
                raise BrokenLine("five")
            return True

        dataset = Dataset.range(10).filter(keep).batch(2)
        found = outcome(mirrored(2).experimental_distribute_dataset(dataset))
        assert found.steps == [[[0], [1]], [[2], [3]]]
        assert isinstance(found.error, BrokenLine)
        assert "Dataset.filter" in found.text
        assert "element 5" in found.text

    def test_a_generator(self):
        def source():
            yield np.zeros(2)
            raise BrokenLine("out of data")

        dataset = mirrored(2).experimental_distribute_dataset(Dataset.from_generator(source))
        found = outcome(dataset)
        assert found.steps == [[[0.0], [0.0]]]
        assert isinstance(found.error, BrokenLine)
        assert "out of data" in found.text

    def test_an_iterable(self):
        class Source:
            def __iter__(self):
                yield np.zeros(2)
                raise BrokenLine("out of data")

        found = outcome(mirrored(2).experimental_distribute_dataset(Source()))
        assert found.steps == [[[0.0], [0.0]]]
        assert isinstance(found.error, BrokenLine)

    def test_a_function_that_ends_the_iteration_by_accident(self):
        dataset = Dataset.range(4).batch(2).map(lambda x: next(iter([])))
        found = outcome(mirrored(2).experimental_distribute_dataset(dataset))
        assert isinstance(found.error, RuntimeError)
        assert "StopIteration" in found.text

    def test_a_dataset_for_each_worker(self):
        dataset = mirrored(2).distribute_datasets_from_function(
            lambda _: Dataset.range(20).map(breaks_at(9)).batch(2)
        )
        found = outcome(dataset)
        assert found.steps == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        assert "element 9" in found.text

    def test_another_pass_starts_anew(self):
        bad = [9]
        dataset = Dataset.range(12).map(lambda x: breaks_at(bad[0])(x)).batch(4)
        distributed = mirrored(2).experimental_distribute_dataset(dataset)
        assert len(outcome(distributed).steps) == 2
        bad[0] = -1
        assert len(steps(distributed)) == 3

    @pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
    def test_inside_a_function(self, captured):
        strategy = mirrored(2)
        dataset = Dataset.range(20).map(breaks_at(9)).batch(4)
        its = iter(strategy.experimental_distribute_dataset(dataset))

        @jt.function
        def step(iterator):
            return strategy.reduce("SUM", next(its if captured else iterator), axis=0)

        assert [int(step(its)), int(step(its))] == [6, 22]
        for _ in range(3):
            with pytest.raises(BrokenLine, match="cannot parse 9"):
                step(its)

    def test_inside_a_loop_of_a_function(self):
        strategy = mirrored(2)
        dataset = strategy.experimental_distribute_dataset(
            Dataset.range(20).map(breaks_at(9)).batch(4)
        )
        with strategy.scope():
            total = jt.Variable(0, aggregation=jt.VariableAggregation.SUM)

        @jt.function
        def epoch():
            for x in dataset:
                strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(x,))

        with pytest.raises(BrokenLine, match="cannot parse 9"):
            epoch()
        assert int(total.numpy()) == 28


# --- Files -----------------------------------------------------------------------------------


class TestFiles:
    def test_a_missing_file_is_named(self, tmp_path):
        present, missing = tmp_path / "a.txt", tmp_path / "missing.txt"
        present.write_text("1\n2\n3\n4\n")
        dataset = TextLineDataset([str(present), str(missing)]).map(int).batch(2)
        found = outcome(mirrored(2).experimental_distribute_dataset(dataset))
        assert found.steps == [[[1], [2]], [[3], [4]]]
        assert isinstance(found.error, jt.errors.NotFoundError)
        assert str(missing) in found.text

    def test_a_pattern_that_matches_nothing_is_named(self, tmp_path):
        with pytest.raises(jt.errors.NotFoundError, match=r"nothing-\*"):
            Dataset.list_files(str(tmp_path / "nothing-*"))

    def test_a_folder_is_no_file(self, tmp_path):
        dataset = TextLineDataset(str(tmp_path)).batch(2)
        found = outcome(mirrored(2).experimental_distribute_dataset(dataset))
        assert str(tmp_path) in found.text
        assert "directory" in found.text

    @pytest.mark.parametrize(
        ("damage", "why"),
        [(0, "length"), (12 + 3 + 4 + 12, "record of 3 bytes"), (12, "record of 3 bytes")],
        ids=["length", "second_record", "first_record"],
    )
    def test_a_damaged_record_is_named(self, damage, why, tmp_path):
        name = write_records(tmp_path / "a.tfrecord", [b"one", b"two"], damage)
        dataset = TFRecordDataset(name).batch(1)
        found = outcome(mirrored(1).experimental_distribute_dataset(dataset))
        assert isinstance(found.error, jt.errors.DataLossError)
        assert name in found.text
        assert why in found.text
        assert len(found.steps) == (1 if damage > 19 else 0)

    def test_a_file_that_ends_too_early_is_named(self, tmp_path):
        name = write_records(tmp_path / "a.tfrecord", [b"one", b"two"])
        path = tmp_path / "a.tfrecord"
        path.write_bytes(path.read_bytes()[:-2])
        found = outcome(mirrored(2).experimental_distribute_dataset(TFRecordDataset(name).batch(1)))
        assert isinstance(found.error, jt.errors.DataLossError)
        assert name in found.text
        assert "byte 19" in found.text

    def test_a_huge_length_is_no_reason_to_allocate_it(self, tmp_path):
        length = struct.pack("<Q", 1 << 62)
        path = tmp_path / "a.tfrecord"
        path.write_bytes(length + _checksum(length) + b"one")
        dataset = TFRecordDataset(str(path)).batch(1)
        found = outcome(mirrored(1).experimental_distribute_dataset(dataset))
        assert isinstance(found.error, jt.errors.DataLossError)
        assert str(path) in found.text

    @pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
    @pytest.mark.parametrize("reader", [TextLineDataset, TFRecordDataset])
    def test_a_file_that_is_not_compressed_is_named(self, reader, compression, tmp_path):
        path = tmp_path / "a.txt"
        path.write_text("not compressed\n" * 10)
        dataset = reader(str(path), compression_type=compression).batch(1)
        found = outcome(mirrored(2).experimental_distribute_dataset(dataset))
        assert isinstance(found.error, jt.errors.DataLossError)
        assert str(path) in found.text

    def test_a_compressed_file_that_ends_too_early_is_named(self, tmp_path):
        path = tmp_path / "a.gz"
        path.write_bytes(gzip.compress(b"".join(b"%d\n" % i for i in range(5000)))[:-9])
        dataset = TextLineDataset(str(path), compression_type="GZIP").batch(4)
        found = outcome(mirrored(2).experimental_distribute_dataset(dataset))
        assert isinstance(found.error, jt.errors.DataLossError)
        assert str(path) in found.text

    def test_another_compression_is_refused_at_once(self, tmp_path):
        with pytest.raises(ValueError, match="BZIP"):
            TextLineDataset(str(tmp_path / "a"), compression_type="BZIP")


# --- On every worker -------------------------------------------------------------------------


def lines(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts))
    return str(path)


class TestOnEveryWorker:
    """The worker that fails says why; the others say which worker it was."""

    def test_R147_fewer_files_than_workers(self, tmp_path):
        name = lines(tmp_path / "a", range(4))

        def program(own):
            with pytest.raises(jt.errors.InvalidArgumentError, match="not enough files: 1 for 2"):
                distribute(TextLineDataset(name).batch(2), own, None)

        run_workers(2, 1, program)

    def test_no_hint(self):
        def program(own):
            with pytest.raises(jt.errors.InvalidArgumentError, match="no hint"):
                distribute(with_policy(Dataset.range(4).batch(2), "HINT"), own, None)

        run_workers(2, 1, program)

    @pytest.mark.parametrize("policy", ["FILE", "DATA"])
    def test_a_map_function_that_raises(self, policy, tmp_path):
        names = [lines(tmp_path / "a", range(8)), lines(tmp_path / "b", range(100, 108))]
        dataset = TextLineDataset(names).map(breaks_at(103)).batch(4)
        failing, others = 1, 0
        found = outcomes(2, lambda worker: with_policy(dataset, policy))
        assert isinstance(found[failing].error, BrokenLine)
        assert "element 3" in found[failing].text or "element 11" in found[failing].text
        assert "103" in found[others].text
        assert len(found[0].steps) == len(found[1].steps)

    @pytest.mark.parametrize("failing", [0, 1])
    def test_a_map_function_that_raises_in_the_part_of_one_worker(self, failing):
        # Batches of arrays in memory: no worker computes the parts of the others.
        dataset = Dataset.range(20).map(breaks_at(8 + 2 * failing)).batch(4)
        found = outcomes(2, lambda worker: dataset)
        assert isinstance(found[failing].error, BrokenLine)
        assert f"worker {failing}" in found[1 - failing].text or isinstance(
            found[1 - failing].error, BrokenLine
        )
        assert len(found[0].steps) == len(found[1].steps) == 2

    @pytest.mark.parametrize("policy", ["FILE", "DATA", "OFF"])
    def test_a_file_that_one_worker_lacks(self, policy, tmp_path):
        present = [lines(tmp_path / x, range(4)) for x in "abcd"]
        missing = [*present[:3], str(tmp_path / "missing")]
        names = [present, missing]
        found = outcomes(
            2,
            lambda worker: with_policy(TextLineDataset(names[worker]).map(int).batch(4), policy),
        )
        assert isinstance(found[1].error, jt.errors.NotFoundError)
        assert isinstance(found[0].error, jt.errors.AbortedError)
        assert "worker 1" in found[0].text
        assert "missing" in found[0].text
        assert len(found[0].steps) == len(found[1].steps)

    def test_a_damaged_file(self, tmp_path):
        names = [
            write_records(tmp_path / "a", [b"x"] * 4),
            write_records(tmp_path / "b", [b"x"] * 4, damage=12),
        ]
        found = outcomes(2, lambda worker: TFRecordDataset(names).batch(2).map(len_of_each))
        assert isinstance(found[1].error, jt.errors.DataLossError)
        assert isinstance(found[0].error, jt.errors.AbortedError)
        assert "worker 1" in found[0].text
        assert names[1] in found[0].text

    @pytest.mark.parametrize("policy", ["AUTO", "OFF"])
    def test_elements_of_changing_structure_on_one_worker(self, policy):
        good = [np.zeros(4), np.zeros(4), np.zeros(4)]
        bad = [np.zeros(4), np.zeros(4, np.int32), np.zeros(4)]

        def dataset_of(worker):
            return with_policy(Dataset.from_generator(lambda: iter([good, bad][worker])), policy)

        found = outcomes(2, dataset_of)
        assert "worker 1" in found[0].text
        assert isinstance(found[0].error, jt.errors.AbortedError)
        assert isinstance(found[1].error, jt.errors.InvalidArgumentError)

    def test_an_unbatched_dataset_on_one_worker(self):
        def dataset_of(worker):
            return with_policy(Dataset.range(4) if worker else Dataset.range(4).batch(2), "OFF")

        found = outcomes(2, dataset_of)
        assert "worker 1" in found[0].text
        assert "Call `batch`" in found[1].text

    def test_a_dataset_made_by_a_function_fails_on_one_worker(self):
        def dataset_fn(context):
            bad = 5 if context.input_pipeline_id else -1
            return Dataset.range(20).map(breaks_at(bad)).batch(2)

        found = run_workers(
            2, 1, lambda own: outcome(distribute_from_function(dataset_fn, own, None))
        )
        assert isinstance(found[1].error, BrokenLine)
        assert isinstance(found[0].error, jt.errors.AbortedError)
        assert "worker 1" in found[0].text
        assert "cannot parse 5" in found[0].text
        assert found[0].steps == found[1].steps == [[[0, 1]], [[2, 3]]]

    def test_a_worker_that_ends_first_hears_of_a_failure_later(self):
        def dataset_fn(context):
            own = Dataset.range(20 if context.input_pipeline_id else 2)
            return own.map(breaks_at(9)).batch(2)

        found = run_workers(
            2, 1, lambda own: outcome(distribute_from_function(dataset_fn, own, None))
        )
        assert found[0].steps == [[[0, 1]], [[]], [[]], [[]]]
        assert "worker 1" in found[0].text
        assert "cannot parse 9" in found[1].text


def len_of_each(batch):
    return np.array([len(record) for record in batch], np.int32)


class TestOrdersThatDiffer:
    """With DATA all workers see the same batches; a source with a mind of its own may not know."""

    def test_workers_that_read_in_different_orders_are_told_so(self):
        batches = [np.arange(4), np.arange(4, 8)]

        def read(own):
            worker = own.context.input_pipeline_id
            source = batches[::-1] if worker else batches
            with pytest.raises(
                jt.errors.InvalidArgumentError, match=r"Worker 0 and worker 1.*seed"
            ):
                list(distribute(source, own, None))
            return True

        assert run_workers(2, 1, read) == [True, True]

    def test_workers_that_read_in_the_same_order_are_not(self):
        batches = [np.arange(4), np.arange(4, 7)]
        found = run_workers(2, 1, lambda own: steps(distribute(batches, own, None)))
        assert found == [[[[0, 1]], [[4, 5]]], [[[2, 3]], [[6]]]]
