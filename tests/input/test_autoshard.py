"""Which worker reads what: the rules R144 to R150."""

import logging

import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.data import AutoShardPolicy, Dataset, TextLineDataset, TFRecordDataset
from jaxtribute.data.experimental import SHARD_HINT
from jaxtribute.input import distribute, distribute_from_function
from jaxtribute.input._autoshard import plan
from jaxtribute.input._rebatch import Layout
from tests.input._workers import (
    distribute_to,
    mirrored,
    run_workers,
    setting,
    steps,
    steps_of_workers,
    with_policy,
)

W0 = Layout(workers=2, worker=0, replicas=1)
W1 = Layout(workers=2, worker=1, replicas=1)


@pytest.fixture
def files(tmp_path):
    """Three files: a0 a1, b0 b1, c0 c1."""
    names = []
    for letter in "abc":
        path = tmp_path / f"{letter}.txt"
        path.write_text(f"{letter}0\n{letter}1\n")
        names.append(str(path))
    return names


def plan_of(dataset, layout=W0):
    return plan(dataset.op, layout)


def elements(dataset, layout):
    """Return what one worker reads according to the plan."""
    return [np.asarray(x).tolist() for x in Dataset(plan_of(dataset, layout).op)]


def texts(*names):
    return [name.encode() for name in names]


def flat(steps_of_worker):
    return [example for step in steps_of_worker for part in step for example in part]


# --- AUTO ------------------------------------------------------------------------------------


class TestAuto:
    """R144: by file for readers of files, otherwise by data."""

    @pytest.mark.parametrize(
        "dataset",
        [
            Dataset.range(8),
            Dataset.from_tensor_slices(np.arange(8)),
            Dataset.from_generator(lambda: iter(range(8))),
            Dataset.range(8).shuffle(8, seed=1).repeat(2),
            Dataset.zip(Dataset.range(8), Dataset.range(8)),
        ],
        ids=["range", "slices", "generator", "shuffled", "zip"],
    )
    def test_R144_data_for_what_reads_no_files(self, dataset):
        found = plan_of(dataset.batch(2))
        assert found.policy is AutoShardPolicy.DATA
        assert found.cuts_each_batch
        assert "reads no files" in found.reason

    @pytest.mark.parametrize(
        "after",
        [
            lambda names: TextLineDataset(names),
            lambda names: TFRecordDataset(names),
            lambda names: TextLineDataset(Dataset.list_files(names, shuffle=False)),
            lambda names: TextLineDataset(Dataset.list_files(names, seed=3)),
            lambda names: Dataset.list_files(names, shuffle=False).interleave(TextLineDataset),
            lambda names: Dataset.from_tensor_slices(names).interleave(TextLineDataset),
            lambda names: Dataset.from_tensor_slices(names).flat_map(TFRecordDataset),
            lambda names: TextLineDataset(names).map(len).filter(bool).shuffle(3, seed=1).repeat(2),
            lambda names: TextLineDataset(names).cache().prefetch(1),
            lambda names: TextLineDataset(names).concatenate(TextLineDataset(names)),
        ],
        ids=[
            "lines",
            "records",
            "listed",
            "listed_and_shuffled",
            "interleaved",
            "names_in_an_array",
            "flat_map",
            "transformed",
            "cached",
            "concatenated",
        ],
    )
    def test_R144_file_for_what_reads_files(self, after, files):
        found = plan_of(after(files).batch(2))
        assert found.policy is AutoShardPolicy.FILE
        assert not found.cuts_each_batch

    @pytest.mark.parametrize(
        ("after", "name"),
        [
            (lambda lines: lines.take(3), "take"),
            (lambda lines: lines.skip(3), "skip"),
            (lambda lines: lines.enumerate(), "enumerate"),
            (lambda lines: Dataset.zip(lines, lines), "zip"),
        ],
        ids=["take", "skip", "enumerate", "zip"],
    )
    def test_data_where_files_would_change_the_meaning(self, after, name, files):
        found = plan_of(after(TextLineDataset(files)).batch(2))
        assert found.policy is AutoShardPolicy.DATA
        assert name in found.reason

    def test_data_where_only_a_part_comes_from_files(self, files):
        lines = TextLineDataset(files).map(len)
        found = plan_of(lines.concatenate(Dataset.range(3)).batch(2))
        assert found.policy is AutoShardPolicy.DATA

    def test_R144_numbers_take_turns(self):
        found = steps_of_workers(Dataset.range(8).batch(2), workers=2, replicas=1)
        assert [flat(own) for own in found] == [[0, 2, 4, 6], [1, 3, 5, 7]]


# --- DATA ------------------------------------------------------------------------------------


class TestData:
    """R145, for batches as R111 has it: each worker takes its part of every batch."""

    @pytest.mark.parametrize("worker", [0, 1, 2])
    def test_R145_a_piece_each(self, worker):
        dataset = with_policy(Dataset.range(9).batch(3), "DATA")
        assert steps(distribute_to(dataset, 3, worker, 1)) == [
            [[worker]],
            [[worker + 3]],
            [[worker + 6]],
        ]

    def test_R145_the_plan_reads_everything(self):
        dataset = with_policy(Dataset.range(4).batch(2), "DATA")
        assert elements(dataset, W0) == elements(dataset, W1) == [[0, 1], [2, 3]]

    def test_R145_of_files(self, files):
        dataset = with_policy(TextLineDataset(files).batch(2), "DATA")
        found = steps_of_workers(dataset, workers=2, replicas=1)
        assert [flat(own) for own in found] == [
            texts("a0", "b0", "c0"),
            texts("a1", "b1", "c1"),
        ]

    def test_R145_with_fewer_files_than_workers(self, files):
        dataset = with_policy(TextLineDataset(files[:1]).batch(2), "DATA")
        found = steps_of_workers(dataset, workers=4, replicas=1)
        assert [flat(own) for own in found] == [texts("a0"), texts("a1"), [], []]


# --- FILE ------------------------------------------------------------------------------------


class TestFile:
    """R146: file j goes to worker j mod W."""

    @pytest.mark.parametrize("policy", ["AUTO", "FILE"])
    @pytest.mark.parametrize(
        "read",
        [
            TextLineDataset,
            lambda names: TextLineDataset(Dataset.list_files(names, shuffle=False)),
            lambda names: TextLineDataset(Dataset.from_tensor_slices(names)),
            lambda names: Dataset.from_tensor_slices(names).interleave(
                TextLineDataset, cycle_length=1
            ),
            lambda names: Dataset.list_files(names, shuffle=False).flat_map(TextLineDataset),
        ],
        ids=["names", "listed", "names_in_an_array", "interleaved", "flat_map"],
    )
    def test_R146(self, read, policy, files):
        dataset = with_policy(read(files), policy)
        assert elements(dataset, W0) == texts("a0", "a1", "c0", "c1")
        assert elements(dataset, W1) == texts("b0", "b1")

    def test_R146_distributed(self, files):
        dataset = with_policy(TextLineDataset(files).batch(2), "FILE")
        found = run_workers(2, 1, lambda own: flat(steps(distribute(dataset, own, None))))
        assert found == [texts("a0", "a1", "c0", "c1"), texts("b0", "b1")]

    def test_R146_one_worker_reads_all_files(self, files):
        assert elements(with_policy(TextLineDataset(files), "FILE"), Layout(1, 0, 2)) == texts(
            "a0", "a1", "b0", "b1", "c0", "c1"
        )

    def test_R146_shuffled_names_are_divided_before_they_are_shuffled(self, files):
        dataset = TextLineDataset(Dataset.list_files(files, seed=5))
        assert sorted(elements(dataset, W0)) == texts("a0", "a1", "c0", "c1")
        assert sorted(elements(dataset, W1)) == texts("b0", "b1")

    def test_R146_what_reads_no_files_is_refused(self):
        with pytest.raises(jt.errors.NotFoundError, match=r"unshardable source.*DATA"):
            plan_of(with_policy(Dataset.range(8).batch(2), "FILE"))

    @pytest.mark.parametrize("policy", ["AUTO", "FILE"])
    @pytest.mark.parametrize("worker", [0, 1, 2, 3])
    def test_R147_too_few_files_are_an_error_on_every_worker(self, worker, policy, files):
        dataset = with_policy(TextLineDataset(files).batch(2), policy)
        with pytest.raises(jt.errors.InvalidArgumentError, match="not enough files: 3 for 4"):
            distribute_to(dataset, workers=4, worker=worker, replicas=1)

    @pytest.mark.parametrize(
        "read",
        [
            lambda names: TextLineDataset(Dataset.list_files(names)),
            lambda names: Dataset.list_files(names).interleave(TextLineDataset),
            lambda names: Dataset.from_tensor_slices(names).interleave(TextLineDataset),
        ],
        ids=["listed", "interleaved", "names_in_an_array"],
    )
    def test_R147_however_they_are_named(self, read, files):
        with pytest.raises(jt.errors.InvalidArgumentError, match="not enough files: 3 for 4"):
            plan_of(with_policy(read(files).batch(2), "FILE"), Layout(4, 3, 1))

    def test_R147_as_many_files_as_workers_are_enough(self, files):
        dataset = TextLineDataset(files).batch(3)
        found = run_workers(3, 1, lambda own: flat(steps(distribute(dataset, own, None))))
        assert found == [texts("a0", "a1"), texts("b0", "b1"), texts("c0", "c1")]


# --- OFF and HINT ----------------------------------------------------------------------------


class TestOffAndHint:
    """R148, and an error where a hint is missing, as issue 3 asks for."""

    def test_R148_off_divides_nothing(self):
        dataset = with_policy(Dataset.range(4).batch(2), "OFF")
        assert elements(dataset, W0) == elements(dataset, W1) == [[0, 1], [2, 3]]
        assert plan_of(dataset).policy is AutoShardPolicy.OFF

    def test_R148_off_of_files(self, files):
        dataset = with_policy(TextLineDataset(files), "OFF")
        assert elements(dataset, W0) == elements(dataset, W1) == elements(dataset, Layout(1, 0, 1))

    @pytest.mark.parametrize(("layout", "own"), [(W0, [0, 2, 4]), (W1, [1, 3, 5])])
    def test_R148_a_hint_is_replaced(self, layout, own):
        dataset = with_policy(Dataset.range(6).shard(SHARD_HINT, SHARD_HINT), "HINT")
        assert elements(dataset, layout) == own

    def test_R148_every_hint_is_replaced(self):
        hinted = Dataset.range(4).shard(SHARD_HINT, SHARD_HINT)
        dataset = with_policy(hinted.concatenate(hinted), "HINT")
        assert elements(dataset, W1) == [1, 3, 1, 3]

    def test_R148_other_shards_stay(self):
        dataset = Dataset.range(8).shard(2, 1).shard(SHARD_HINT, SHARD_HINT)
        assert elements(with_policy(dataset, "HINT"), W1) == [3, 7]

    def test_R148_distributed(self):
        dataset = Dataset.range(6).shard(SHARD_HINT, SHARD_HINT).batch(2)
        found = steps_of_workers(with_policy(dataset, "HINT"), workers=2, replicas=1)
        assert [flat(own) for own in found] == [[0, 2, 4], [1, 3, 5]]

    def test_R148_one_worker_keeps_everything(self):
        dataset = Dataset.range(4).shard(SHARD_HINT, SHARD_HINT).batch(2)
        found = mirrored(2).experimental_distribute_dataset(with_policy(dataset, "HINT"))
        assert steps(found) == [[[0], [1]], [[2], [3]]]

    def test_without_a_hint_it_is_an_error(self):
        with pytest.raises(jt.errors.InvalidArgumentError, match=r"has no hint.*SHARD_HINT"):
            plan_of(with_policy(Dataset.range(4).batch(2), "HINT"))

    @pytest.mark.parametrize("policy", ["AUTO", "DATA", "OFF"])
    def test_a_hint_without_the_policy_is_an_error(self, policy):
        dataset = with_policy(Dataset.range(4).shard(SHARD_HINT, SHARD_HINT).batch(2), policy)
        with pytest.raises(jt.errors.InvalidArgumentError, match=r"AutoShardPolicy\.HINT"):
            list(distribute_to(dataset, 2, 0, 1))


# --- Which worker ----------------------------------------------------------------------------


class TestIndex:
    """R149."""

    @pytest.mark.parametrize("worker", [2, 3, -1])
    def test_R149_there_is_no_such_worker(self, worker):
        with pytest.raises(jt.errors.InvalidArgumentError, match=f"no worker {worker}"):
            Layout(2, worker, 1)
        with pytest.raises(jt.errors.InvalidArgumentError, match=f"no worker {worker}"):
            distribute_to(Dataset.range(4).batch(2), 2, worker, 1)

    @pytest.mark.parametrize(("shards", "index"), [(2, 2), (2, -2), (0, 0), (-1, 0)])
    def test_R149_there_is_no_such_shard(self, shards, index):
        with pytest.raises(jt.errors.InvalidArgumentError, match="less than"):
            Dataset.range(4).shard(shards, index)


class TestWhichMethod:
    """R150: datasets are divided, those of functions are not."""

    def test_R150_two_workers(self):
        found = steps_of_workers(Dataset.range(4).batch(2), workers=2, replicas=1)
        assert list(zip(*map(flat, found), strict=True)) == [(0, 1), (2, 3)]

    def test_R150_two_workers_with_two_replicas(self):
        found = steps_of_workers(Dataset.range(4).batch(4), workers=2, replicas=2)
        assert [*flat(found[0]), *flat(found[1])] == [0, 2, 1, 3]

    def test_R150_a_function(self):
        found = [
            steps(distribute_from_function(lambda _: Dataset.range(4), setting(2, w, 1), None))
            for w in range(2)
        ]
        assert list(zip(*found, strict=True)) == [([k], [k]) for k in range(4)]


# --- The line that says so -------------------------------------------------------------------


class TestTheLine:
    """Issue 3: policy, why, examples per worker, remainder, in one line."""

    @pytest.mark.parametrize(
        ("dataset", "layout", "line"),
        [
            (
                Dataset.range(10).batch(4),
                W0,
                "Input of worker 0: DATA sharding, because it reads no files; 2 workers with "
                "1 replica each; 5 of 10 examples here, in global batches of 4; the last batch "
                "holds 2, and is used.",
            ),
            (
                Dataset.range(9).batch(4),
                W1,
                "Input of worker 1: DATA sharding, because it reads no files; 2 workers with "
                "1 replica each; 4 of 9 examples here, in global batches of 4; the last batch "
                "holds 1, and is used.",
            ),
            (
                Dataset.range(9).batch(4, drop_remainder=True),
                Layout(2, 1, 2),
                "Input of worker 1: DATA sharding, because it reads no files; 2 workers with "
                "2 replicas each; 4 of 8 examples here, in global batches of 4; the last 1 "
                "example is dropped.",
            ),
            (
                with_policy(Dataset.range(8).batch(4), "DATA"),
                Layout(1, 0, 2),
                "Input of worker 0: DATA sharding, because DATA was asked for; "
                "2 replicas; 8 of 8 examples here, in global batches of 4; nothing is left over.",
            ),
            (
                Dataset.range(10).batch(5),
                Layout(1, 0, 2),
                "Input of worker 0: DATA sharding, because it reads no files; "
                "2 replicas; 10 of 10 examples here, in global batches of 5; nothing is left over; "
                "parts differ in size, so that every step runs uncompiled.",
            ),
            (
                with_policy(Dataset.range(8).batch(4), "OFF"),
                W1,
                "Input of worker 1: OFF sharding, because OFF was asked for; 2 workers with "
                "1 replica each; every worker reads the whole dataset.",
            ),
        ],
        ids=["short_last", "uneven", "dropped", "one_worker", "uneven_parts", "off"],
    )
    def test_text(self, dataset, layout, line):
        assert str(plan_of(dataset, layout)) == line

    @pytest.mark.parametrize(
        "dataset",
        [
            Dataset.range(10).batch(4),
            Dataset.range(10).batch(4).repeat(3),
            Dataset.range(100).batch(4).take(5),
            Dataset.range(100).batch(4).skip(20),
            Dataset.range(10).batch(4).shard(2, 0),
            Dataset.range(10).batch(4).map(lambda x: x + 1).prefetch(1),
            Dataset.range(10).batch(4, drop_remainder=True).repeat(3),
            Dataset.range(10).repeat(2).batch(4),
        ],
        ids=["plain", "repeat", "take", "skip", "shard", "map", "repeat_drop", "repeat_before"],
    )
    @pytest.mark.parametrize("layout", [W0, W1], ids=["w0", "w1"])
    def test_the_examples_it_counts_are_those_that_are_delivered(self, dataset, layout):
        found = steps(distribute_to(dataset, layout.workers, layout.worker, layout.replicas))
        own, total = len(flat(found)), sum(len(batch) for batch in dataset)
        line = str(plan_of(dataset, layout))
        assert f"{own} of {total} examples here" in line or "examples here" not in line

    @pytest.mark.parametrize(
        ("dataset", "part"),
        [
            (Dataset.range(4).repeat().batch(4), "without end"),
            (Dataset.range(4).batch(4).repeat(), "without end"),
            (Dataset.range(4).filter(bool).batch(4), "counted when read"),
        ],
        ids=["repeat", "repeat_after", "filter"],
    )
    def test_what_cannot_be_counted_is_not(self, dataset, part):
        assert part in str(plan_of(dataset))

    def test_it_is_printed_for_several_workers(self, capfd):
        dataset = distribute_to(Dataset.range(4).batch(4), 2, 1, 1)
        printed = capfd.readouterr().err
        assert printed == f"{dataset.feed.plan}\n"
        assert "Input of worker 1: DATA sharding" in printed

    def test_it_is_logged_for_one(self, capfd, caplog):
        with caplog.at_level(logging.INFO, "jaxtribute"):
            dataset = mirrored(2).experimental_distribute_dataset(Dataset.range(4).batch(4))
        assert caplog.messages == [str(dataset.feed.plan)]
        assert "Input of worker" not in capfd.readouterr().out


class TestOptions:
    def test_A7_the_policies(self):
        assert {policy.name: policy.value for policy in AutoShardPolicy} == {
            "OFF": -1,
            "AUTO": 0,
            "FILE": 1,
            "DATA": 2,
            "HINT": 3,
        }

    def test_the_policy_set_last_wins(self):
        dataset = with_policy(with_policy(Dataset.range(4), "OFF").batch(2), "DATA")
        assert plan_of(dataset).policy is AutoShardPolicy.DATA

    def test_options_without_a_policy_leave_it(self):
        dataset = with_policy(Dataset.range(4), "OFF").batch(2).with_options(jt.data.Options())
        assert plan_of(dataset).policy is AutoShardPolicy.OFF
