"""How global batches are divided: the rules R108 to R125 of semantics.md."""

import itertools

import jax
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.data import Dataset, TextLineDataset
from jaxtribute.input import distribute, distribute_from_function
from jaxtribute.input._autoshard import global_batch_size
from jaxtribute.input._rebatch import Layout, cut_evenly, piece_sizes
from tests.input._workers import (
    distribute_to,
    mirrored,
    run_workers,
    setting,
    steps,
    steps_of_workers,
    steps_on,
    with_policy,
)


def lines(path, texts):
    """Write a file of these lines, and return its name."""
    path.write_text("".join(f"{text}\n" for text in texts))
    return str(path)


def numbered_lines(path, count):
    return lines(path, range(count))


def numbers(batch):
    """Turn a batch of lines into numbers."""
    return np.array([int(line) for line in batch], np.int32)


# --- The arithmetic --------------------------------------------------------------------------


class TestCutEvenly:
    """R111: pieces of equal size, rounded up; the last ones may be short or empty."""

    @pytest.mark.parametrize(
        ("batch_size", "replicas", "bounds"),
        [
            (4, 1, [(0, 4)]),
            (4, 2, [(0, 2), (2, 4)]),
            (5, 2, [(0, 3), (3, 5)]),
            (1, 2, [(0, 1), (1, 1)]),
            (0, 2, [(0, 0), (0, 0)]),
            (10, 4, [(0, 3), (3, 6), (6, 9), (9, 10)]),
            (7, 4, [(0, 2), (2, 4), (4, 6), (6, 7)]),
            (5, 4, [(0, 2), (2, 4), (4, 5), (5, 5)]),
            (9, 8, [(0, 2), (2, 4), (4, 6), (6, 8), (8, 9), (9, 9), (9, 9), (9, 9)]),
        ],
    )
    def test_R111_on_one_worker(self, batch_size, replicas, bounds):
        assert cut_evenly(batch_size, Layout(1, 0, replicas)) == bounds

    @pytest.mark.parametrize(("worker", "bounds"), [(0, [(0, 2), (4, 6)]), (1, [(2, 4), (6, 8)])])
    def test_R120_pieces_are_dealt_to_workers_in_turn(self, worker, bounds):
        assert cut_evenly(8, Layout(workers=2, worker=worker, replicas=2)) == bounds

    @pytest.mark.parametrize("batch_size", [0, 1, 2, 5, 7, 12, 13, 64])
    def test_every_example_of_a_batch_goes_to_one_replica(self, batch_size):
        for workers, replicas in itertools.product((1, 2, 3, 4), (1, 2, 3)):
            found = [
                example
                for worker in range(workers)
                for start, stop in cut_evenly(batch_size, Layout(workers, worker, replicas))
                for example in range(start, stop)
            ]
            assert sorted(found) == list(range(batch_size))


class TestPieceSizes:
    """R110: the larger pieces first, and the list of each worker rotated."""

    @pytest.mark.parametrize(
        ("batch_size", "workers", "worker", "replicas", "sizes"),
        [
            (7, 2, 0, 2, [2, 2, 2, 1]),
            (7, 2, 1, 2, [2, 1, 2, 2]),
            (5, 1, 0, 2, [3, 2]),
            (3, 1, 0, 4, [1, 1, 1, 0]),
            (10, 3, 0, 1, [4, 3, 3]),
            (10, 3, 1, 1, [3, 3, 4]),
            (10, 3, 2, 1, [3, 4, 3]),
            (8, 2, 1, 2, [2, 2, 2, 2]),
            (4, 1, 0, 1, [4]),
        ],
    )
    def test_R110(self, batch_size, workers, worker, replicas, sizes):
        assert piece_sizes(batch_size, Layout(workers, worker, replicas)) == sizes

    @pytest.mark.parametrize("batch_size", [1, 2, 5, 7, 12, 13, 64])
    def test_the_pieces_of_every_step_add_up_to_a_batch(self, batch_size):
        for workers, replicas in itertools.product((1, 2, 3, 4), (1, 2, 3)):
            lists = [piece_sizes(batch_size, Layout(workers, w, replicas)) for w in range(workers)]
            for step in range(workers):
                turn = slice(step * replicas, (step + 1) * replicas)
                assert sum(sum(sizes[turn]) for sizes in lists) == batch_size


class TestLayout:
    @pytest.mark.parametrize(("replicas", "workers"), [(3, 2), (1, 2), (10, 4)])
    def test_R108_replicas_are_divided_evenly_between_workers(self, replicas, workers):
        with pytest.raises(ValueError, match=f"{replicas} replicas.*{workers} workers"):
            Layout.of(workers, 0, replicas)

    def test_R108_is_checked_when_a_dataset_is_distributed(self):
        uneven = setting(1, 0, 1)
        uneven = type(uneven)(uneven.topology, jt.InputContext(2, 0, 3))
        with pytest.raises(ValueError, match=r"3 replicas.*2 workers"):
            distribute(Dataset.range(4).batch(2), uneven, None)

    def test_replicas_of_each_worker(self):
        assert Layout.of(2, 1, 6) == Layout(workers=2, worker=1, replicas=3)
        assert Layout(2, 1, 3).replicas_in_sync == 6


# --- One replica -----------------------------------------------------------------------------


class TestOneReplica:
    """R108: with one replica the dataset is untouched."""

    @pytest.mark.parametrize(
        ("dataset", "elements"),
        [
            (Dataset.range(3), [0, 1, 2]),
            (Dataset.range(5).batch(2), [[0, 1], [2, 3], [4]]),
            (Dataset.range(5).batch(2, drop_remainder=True), [[0, 1], [2, 3]]),
            (Dataset.range(4).batch(2).batch(2), [[[0, 1], [2, 3]]]),
            (Dataset.range(0).batch(2), []),
        ],
        ids=["unbatched", "batched", "drop_remainder", "batched_twice", "empty"],
    )
    @pytest.mark.parametrize("policy", ["AUTO", "DATA", "OFF"])
    def test_R108(self, dataset, elements, policy):
        assert steps_on(1, with_policy(dataset, policy)) == [[e] for e in elements]

    def test_R108_shapes_that_vary_are_untouched(self):
        batches = [np.zeros((2, 3)), np.zeros((5, 1)), np.zeros(())]
        shapes = [x.shape for x in mirrored(1).experimental_distribute_dataset(batches)]
        assert shapes == [(2, 3), (5, 1), ()]


# --- The size of a global batch --------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "size"),
    [
        (Dataset.range(20).batch(6), 6),
        (Dataset.range(20).batch(6).map(lambda x: x + 1), 6),
        (Dataset.range(20).batch(6).prefetch(2), 6),
        (Dataset.range(20).batch(6).with_options(jt.data.Options()), 6),
        (Dataset.range(20).batch(6).map(abs).prefetch(1).repeat(2).take(5), 6),
        (Dataset.range(20).batch(6).cache().shuffle(2, seed=1), 6),
        (Dataset.range(20).batch(6, drop_remainder=True), 6),
        (Dataset.range(20).batch(2).batch(5), 5),
        (Dataset.range(20).batch(2).unbatch().batch(7), 7),
        (Dataset.from_tensors(np.zeros((4, 3))), 4),
        (Dataset.from_tensor_slices(np.zeros((2, 6, 3))), 6),
        (Dataset.zip(Dataset.range(8).batch(4), Dataset.range(8).batch(4)), 4),
        (Dataset.range(8).batch(4).concatenate(Dataset.range(3).batch(4)), 4),
        (Dataset.from_generator(lambda: iter([np.zeros(5), np.zeros(2)])), 5),
    ],
    ids=[
        "batch",
        "map",
        "prefetch",
        "options",
        "several",
        "cache_and_shuffle",
        "drop_remainder",
        "batched_twice",
        "unbatched_between",
        "one_tensor",
        "slices",
        "zip",
        "concatenate",
        "generator",
    ],
)
def test_R109_the_size_of_a_global_batch_is_found(dataset, size):
    assert global_batch_size(dataset.op) == size


@pytest.mark.parametrize("policy", ["AUTO", "OFF"])
@pytest.mark.parametrize(
    "after",
    [
        lambda batches: batches.map(lambda x: x * 10),
        lambda batches: batches.prefetch(2).map(lambda x: x * 10).prefetch(1),
        lambda batches: batches.map(lambda x: x * 10).with_options(jt.data.Options()),
    ],
    ids=["map", "prefetch", "options"],
)
def test_R109_what_follows_the_batching_does_not_matter(after, policy):
    dataset = with_policy(after(Dataset.range(8).batch(4)), policy)
    assert steps_on(2, dataset) == [[[0, 10], [20, 30]], [[40, 50], [60, 70]]]


# --- On one worker ---------------------------------------------------------------------------

DATA_STEPS = [
    pytest.param(
        2, 13, 5, [[[0, 1, 2], [3, 4]], [[5, 6, 7], [8, 9]], [[10, 11], [12]]], id="R112-2-13-5"
    ),
    pytest.param(
        2, 14, 5, [[[0, 1, 2], [3, 4]], [[5, 6, 7], [8, 9]], [[10, 11], [12, 13]]], id="R112-2-14-5"
    ),
    pytest.param(2, 9, 4, [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]], id="R112-2-9-4"),
    pytest.param(2, 7, 4, [[[0, 1], [2, 3]], [[4, 5], [6]]], id="R112-2-7-4"),
    pytest.param(4, 10, 10, [[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]], id="R113-4-10-10"),
    pytest.param(
        4,
        8,
        3,
        [[[0], [1], [2], []], [[3], [4], [5], []], [[6], [7], [], []]],
        id="R114-4-8-3",
    ),
    pytest.param(2, 6, 1, [[[k], []] for k in range(6)], id="R114-2-6-1"),
    pytest.param(
        3,
        14,
        5,
        [[[0, 1], [2, 3], [4]], [[5, 6], [7, 8], [9]], [[10, 11], [12, 13], []]],
        id="R115-3-14-5",
    ),
    pytest.param(
        3,
        16,
        5,
        [
            [[0, 1], [2, 3], [4]],
            [[5, 6], [7, 8], [9]],
            [[10, 11], [12, 13], [14]],
            [[15], [], []],
        ],
        id="R115-3-16-5",
    ),
    pytest.param(
        4,
        12,
        7,
        [[[0, 1], [2, 3], [4, 5], [6]], [[7, 8], [9, 10], [11], []]],
        id="R115-4-12-7",
    ),
]

OFF_STEPS = [
    pytest.param(
        2,
        14,
        5,
        [[[0, 1, 2], [3, 4]], [[5, 6, 7], [8, 9]], [[10, 11, 12], [13]]],
        id="R113-2-14-5",
    ),
    pytest.param(
        2, 13, 5, [[[0, 1, 2], [3, 4]], [[5, 6, 7], [8, 9]], [[10, 11, 12], []]], id="R113-2-13-5"
    ),
    pytest.param(4, 10, 10, [[[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]], id="R113-4-10-10"),
    pytest.param(
        4,
        8,
        3,
        [[[0], [1], [2], []], [[3], [4], [5], []], [[6], [7], [], []]],
        id="R114-4-8-3",
    ),
    pytest.param(2, 6, 1, [[[k], []] for k in range(6)], id="R114-2-6-1"),
    pytest.param(2, 8, 4, [[[0, 1], [2, 3]], [[4, 5], [6, 7]]], id="R110-2-8-4"),
]


class TestData:
    """R111: each batch, also a short last one, is cut into pieces of equal size."""

    @pytest.mark.parametrize("policy", ["AUTO", "DATA"])
    @pytest.mark.parametrize(("replicas", "count", "batch_size", "expected"), DATA_STEPS)
    def test_numbers(self, policy, replicas, count, batch_size, expected):
        dataset = with_policy(Dataset.range(count).batch(batch_size), policy)
        assert steps_on(replicas, dataset) == expected

    @pytest.mark.parametrize(("replicas", "count", "batch_size", "expected"), DATA_STEPS)
    def test_batches_from_elsewhere(self, replicas, count, batch_size, expected):
        batches = list(Dataset.range(count).batch(batch_size))
        assert steps_on(replicas, batches) == expected
        assert steps_on(replicas, Dataset.from_generator(lambda: iter(batches))) == expected

    @pytest.mark.parametrize(("replicas", "count", "batch_size", "expected"), DATA_STEPS)
    def test_lines_of_a_file(self, replicas, count, batch_size, expected, tmp_path):
        dataset = TextLineDataset(numbered_lines(tmp_path / "a", count)).map(int)
        dataset = with_policy(dataset.batch(batch_size), "DATA")
        assert steps_on(replicas, dataset) == expected


class TestOffAndFile:
    """R111: the pieces of R110, filled across batches."""

    @pytest.mark.parametrize(("replicas", "count", "batch_size", "expected"), OFF_STEPS)
    def test_off(self, replicas, count, batch_size, expected):
        dataset = with_policy(Dataset.range(count).batch(batch_size), "OFF")
        assert steps_on(replicas, dataset) == expected

    @pytest.mark.parametrize("policy", ["AUTO", "FILE"])
    @pytest.mark.parametrize(("replicas", "count", "batch_size", "expected"), OFF_STEPS)
    def test_file(self, policy, replicas, count, batch_size, expected, tmp_path):
        dataset = TextLineDataset(numbered_lines(tmp_path / "a", count)).map(int)
        dataset = with_policy(dataset.batch(batch_size), policy)
        assert steps_on(replicas, dataset) == expected

    @pytest.mark.parametrize("policy", ["AUTO", "FILE"])
    def test_mapped_batches_of_one_worker_are_cut_one_by_one(self, policy, tmp_path):
        dataset = TextLineDataset(numbered_lines(tmp_path / "a", 6))
        dataset = with_policy(dataset.batch(4).map(numbers), policy)
        assert steps_on(2, dataset) == [[[0, 1], [2, 3]], [[4], [5]]]

    def test_one_worker_needs_no_files(self):
        dataset = with_policy(Dataset.range(6).batch(4), "FILE")
        assert steps_on(2, dataset) == [[[0, 1], [2, 3]], [[4, 5], []]]


class TestEmptyParts:
    """R116: an empty part keeps type, rank and the other dimensions."""

    @pytest.mark.parametrize("policy", ["DATA", "OFF"])
    def test_R116_shapes(self, policy):
        features = np.arange(15, dtype=np.float32).reshape(5, 3)
        dataset = with_policy(Dataset.from_tensor_slices(features).batch(4), policy)
        found = [
            [part.shape for part in x.values]
            for x in mirrored(2).experimental_distribute_dataset(dataset)
        ]
        assert found == [[(2, 3), (2, 3)], [(1, 3), (0, 3)]]

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "bool", "complex64"])
    def test_R116_types(self, dtype):
        data = np.ones((3, 2)).astype(jax.numpy.dtype(dtype))
        dataset = Dataset.from_tensor_slices(data).batch(2)
        *_, last = mirrored(2).experimental_distribute_dataset(dataset)
        assert [part.dtype for part in last.values] == [dtype, dtype]
        assert [part.shape for part in last.values] == [(1, 2), (0, 2)]

    def test_R116_every_component_of_a_structure(self):
        data = {"x": np.zeros((3, 4), np.float32), "y": (np.zeros(3, np.int32),)}
        dataset = Dataset.from_tensor_slices(data).batch(2)
        *_, last = mirrored(2).experimental_distribute_dataset(dataset)
        assert [part.shape for part in last["x"].values] == [(1, 4), (0, 4)]
        assert [part.shape for part in last["y"][0].values] == [(1,), (0,)]
        assert last["y"][0].values[1].dtype == np.int32

    def test_R116_text(self):
        dataset = Dataset.from_tensor_slices(["a", "b", "c"]).batch(2)
        *_, last = mirrored(2).experimental_distribute_dataset(dataset)
        assert [part.tolist() for part in last.values] == [[b"c"], []]

    def test_R116_each_part_is_on_the_device_of_its_replica(self):
        dataset = Dataset.range(5).batch(4)
        for x in mirrored(2).experimental_distribute_dataset(dataset):
            assert [part.devices() for part in x.values] == [{d} for d in jax.devices()[:2]]


class TestDropRemainder:
    """R117: it applies before batches are divided."""

    @pytest.mark.parametrize("policy", ["AUTO", "DATA", "OFF"])
    def test_R117_a_short_batch_is_dropped(self, policy):
        dataset = with_policy(Dataset.range(9).batch(4, drop_remainder=True), policy)
        assert steps_on(2, dataset) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]

    @pytest.mark.parametrize("policy", ["AUTO", "DATA", "OFF"])
    def test_R117_a_full_batch_is_divided_unevenly(self, policy):
        dataset = with_policy(Dataset.range(10).batch(5, drop_remainder=True), policy)
        assert steps_on(2, dataset) == [[[0, 1, 2], [3, 4]], [[5, 6, 7], [8, 9]]]


class TestUnbatched:
    """R118: there must be something to divide."""

    @pytest.mark.parametrize("policy", ["AUTO", "OFF"])
    def test_R118_scalars_are_refused(self, policy):
        dataset = with_policy(Dataset.range(4), policy)
        with pytest.raises(ValueError, match=r"no batch dimension.*Call `batch`"):
            steps_on(2, dataset)

    @pytest.mark.parametrize("policy", ["AUTO", "OFF"])
    def test_R118_vectors_are_divided_along_their_own_axis(self, policy):
        dataset = with_policy(Dataset.from_tensor_slices([[1, 2, 3], [4, 5, 6]]), policy)
        assert steps_on(2, dataset) == [[[1, 2], [3]], [[4, 5], [6]]]


# --- On several workers ----------------------------------------------------------------------


class TestSeveralWorkers:
    @pytest.mark.parametrize(
        ("count", "batch_size", "first", "second"),
        [
            pytest.param(14, 8, [[0, 1, 2, 3], [8, 9, 10]], [[4, 5, 6, 7], [11, 12, 13]], id="14"),
            pytest.param(9, 4, [[0, 1], [4, 5], [8]], [[2, 3], [6, 7], []], id="9"),
            pytest.param(10, 5, [[0, 1, 2], [5, 6, 7]], [[3, 4], [8, 9]], id="10"),
        ],
    )
    @pytest.mark.parametrize("from_list", [False, True], ids=["dataset", "list"])
    def test_R119_data_on_two_workers(self, count, batch_size, first, second, from_list):
        dataset = Dataset.range(count).batch(batch_size)
        found = steps_of_workers(list(dataset) if from_list else dataset, workers=2, replicas=1)
        assert found == [[[part] for part in first], [[part] for part in second]]

    @pytest.mark.parametrize("from_list", [False, True], ids=["dataset", "list"])
    def test_R120_data_on_two_workers_with_two_replicas(self, from_list):
        dataset = Dataset.range(20).batch(8)
        found = steps_of_workers(list(dataset) if from_list else dataset, workers=2, replicas=2)
        assert found == [
            [[[0, 1], [4, 5]], [[8, 9], [12, 13]], [[16], [18]]],
            [[[2, 3], [6, 7]], [[10, 11], [14, 15]], [[17], [19]]],
        ]

    def test_R121_off_gives_everything_to_every_worker(self):
        dataset = with_policy(Dataset.range(8).batch(4), "OFF")
        expected = [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]
        assert steps_of_workers(dataset, workers=2, replicas=1) == [expected, expected]

    @pytest.mark.parametrize("policy", ["AUTO", "FILE"])
    def test_R122_file_on_two_workers_with_two_replicas(self, policy, tmp_path):
        names = [lines(tmp_path / x, [f"{x}{i}" for i in range(7)]) for x in "AB"]
        dataset = with_policy(TextLineDataset(names).batch(7), policy)
        found = steps_of_workers(dataset, workers=2, replicas=2)
        assert found == [
            [[[b"A0", b"A1"], [b"A2", b"A3"]], [[b"A4", b"A5"], [b"A6"]]],
            [[[b"B0", b"B1"], [b"B2"]], [[b"B3", b"B4"], [b"B5", b"B6"]]],
        ]
        for step in range(2):
            assert sum(len(part) for worker in found for part in worker[step]) == 7


class TestLastSteps:
    """R123: it goes on while any replica anywhere has data."""

    def test_R123_uneven_sources_take_equally_many_steps(self):
        counts = [4, 9]

        def dataset_fn(context):
            return Dataset.range(counts[context.input_pipeline_id]).batch(2)

        found = run_workers(
            2, 1, lambda own: steps(distribute_from_function(dataset_fn, own, None))
        )
        assert found == [
            [[[0, 1]], [[2, 3]], [[]], [[]], [[]]],
            [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]], [[8]]],
        ]

    def test_R123_a_worker_without_any_data_takes_part(self):
        counts = [0, 3]

        def dataset_fn(context):
            rows = np.arange(2 * counts[context.input_pipeline_id], dtype=np.int32)
            return Dataset.from_tensor_slices(rows.reshape(-1, 2)).batch(2)

        found = run_workers(
            2, 1, lambda own: steps(distribute_from_function(dataset_fn, own, None))
        )
        assert found == [[[[]], [[]]], [[[[0, 1], [2, 3]]], [[[4, 5]]]]]

    def test_R123_uneven_files(self, tmp_path):
        names = [numbered_lines(tmp_path / str(count), count) for count in (3, 8)]
        dataset = TextLineDataset(names).map(int).batch(4)
        found = run_workers(2, 1, lambda own: steps(distribute(dataset, own, None)))
        assert found == [
            [[[0, 1]], [[2]], [[]], [[]]],
            [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]],
        ]

    def test_R124_is_not_so_here_nothing_is_lost(self):
        def dataset_fn(context):
            return Dataset.range(10).batch(2, drop_remainder=True)

        dataset = mirrored(2).distribute_datasets_from_function(dataset_fn)
        assert steps(dataset) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], []]]


class TestWithoutEnd:
    """R125: a dataset without end has no last batch."""

    def test_R125_every_batch_is_full(self):
        dataset = Dataset.range(5).repeat().batch(4)
        iterator = iter(mirrored(2).experimental_distribute_dataset(dataset))
        found = [np.concatenate(next(iterator).values).tolist() for _ in range(5)]
        iterator.close()
        assert found == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1], [2, 3, 4, 0], [1, 2, 3, 4]]

    def test_R125_batches_that_repeat_keep_their_short_last_one(self):
        dataset = Dataset.range(5).batch(4).repeat()
        iterator = iter(mirrored(2).experimental_distribute_dataset(dataset))
        found = [[part.tolist() for part in next(iterator).values] for _ in range(4)]
        iterator.close()
        assert found == [[[0, 1], [2, 3]], [[4], []]] * 2

    @pytest.mark.parametrize("worker", [0, 1])
    def test_R125_on_several_workers(self, worker):
        dataset = distribute_to(Dataset.range(3).repeat().batch(2), 2, worker, 1)
        iterator = iter(dataset)
        found = [next(iterator).values[0].tolist() for _ in range(3)]
        iterator.close()
        assert found == [[[0], [2], [1]], [[1], [0], [2]]][worker]
