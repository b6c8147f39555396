"""`ParameterServerStrategy`: its cluster, where its variables are, and how they are divided."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute.testing import LocalCluster

Fixed = jt.experimental.partitioners.FixedShardsPartitioner
ClusterSpec = jt.train.ClusterSpec
Resolver = jt.cluster_resolver.SimpleClusterResolver


@pytest.fixture(scope="module")
def cluster():
    """Two workers and three parameter servers, for all tests of this file."""
    gc.store(object())  # starts the thread of pyzmq that frees what was sent; it stays for ever
    with LocalCluster(workers=2, ps=3) as cluster:
        yield cluster


@pytest.fixture
def strategy(cluster):
    return cluster.strategy()


@pytest.fixture
def divided(cluster):
    """A strategy that divides what it can in two."""
    return cluster.strategy(Fixed(2))


def task_of(variable):
    """Return the number of the server that holds a variable."""
    prefix, suffix = "/job:ps/replica:0/task:", "/device:CPU:0"
    assert variable.device.startswith(prefix) and variable.device.endswith(suffix)
    return int(variable.device.removeprefix(prefix).removesuffix(suffix))


class TestCluster:
    """R163, R164: what can be checked is, before any connection."""

    @pytest.mark.parametrize(
        ("jobs", "text"),
        [
            pytest.param({}, "empty cluster", id="empty"),
            pytest.param({"chief": ["a:1"]}, "at least one ps", id="chief only"),
            pytest.param({"chief": ["a:1"], "worker": ["b:1"]}, "at least one ps", id="no ps"),
            pytest.param({"chief": ["a:1"], "ps": ["b:1"]}, "at least one worker", id="no worker"),
            pytest.param({"ps": [], "worker": ["b:1"]}, "at least one ps", id="no ps in its job"),
            pytest.param(
                {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1"], "cook": ["d:1"]},
                "cook",
                id="unknown job",
            ),
            pytest.param(
                {"chief": ["a:1", "a:2"], "ps": ["b:1"], "worker": ["c:1"]},
                "chief",
                id="two chiefs",
            ),
        ],
    )
    def test_that_cannot_work_is_refused(self, jobs, text):
        with pytest.raises(ValueError, match=text):
            jt.ParameterServerStrategy(Resolver(ClusterSpec(jobs), task_type="chief", task_id=0))

    @pytest.mark.parametrize("job", ["worker", "ps"])
    def test_is_coordinated_by_none_of_its_tasks(self, cluster, job):
        resolver = Resolver(cluster.spec, task_type=job, task_id=1)
        with pytest.raises(ValueError, match=rf"{job}:1.*jt\.Server"):
            jt.ParameterServerStrategy(resolver)

    @pytest.mark.parametrize("resolver", [None, {"ps": ["a:1"]}], ids=str)
    def test_is_told_by_a_resolver(self, resolver):
        with pytest.raises(ValueError, match="cluster resolver"):
            jt.ParameterServerStrategy(resolver)

    def test_a_partitioner_can_be_called(self, cluster):
        with pytest.raises(ValueError, match=r"variable_partitioner.*got 2"):
            cluster.strategy(2)

    def test_servers_that_do_not_come_up_are_named(self, monkeypatch):
        monkeypatch.setenv("JAXTRIBUTE_JOIN_TIMEOUT", "0.3")
        monkeypatch.setenv("JAXTRIBUTE_CLUSTER_KEY", "k" * 64)
        spec = ClusterSpec({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]})
        with pytest.raises(jt.errors.PSUnavailableError, match="ps:0"):
            jt.ParameterServerStrategy(Resolver(spec))

    def test_both_names_are_the_same(self):
        assert jt.experimental.ParameterServerStrategy is jt.ParameterServerStrategy


class TestReplicas:
    """R177."""

    def test_are_those_of_one_worker(self, strategy):
        assert strategy.num_replicas_in_sync == 1

    @pytest.mark.parametrize("gpus", [0, 2], ids=str)
    def test_are_one_for_each_gpu_of_a_worker(self, cluster, gpus):
        resolver = Resolver(
            cluster.spec, task_type="chief", task_id=0, num_accelerators={"GPU": gpus}
        )
        strategy = jt.ParameterServerStrategy(resolver)
        cluster._close_later(strategy)
        assert strategy.num_replicas_in_sync == max(1, gpus)

    def test_are_as_many_on_each_worker(self, cluster):
        class Uneven(Resolver):
            def num_accelerators(self, task_type=None, task_id=None, config_proto=None):
                return {"GPU": task_id + 1}

        with pytest.raises(ValueError, match=r"worker:0 has 1.*worker:1 has 2"):
            jt.ParameterServerStrategy(Uneven(cluster.spec, task_type="chief", task_id=0))


class TestPlacement:
    """R169, R170, R172."""

    def test_is_in_turn_in_the_order_of_creation(self, strategy):
        with strategy.scope():
            first = [jt.Variable(float(i)) for i in range(2)]
        with strategy.scope():
            second = [jt.Variable(float(i)) for i in range(3)]
        assert [task_of(v) for v in first + second] == [0, 1, 2, 0, 1]

    def test_is_on_the_coordinator_outside_the_scope(self, strategy):
        variable = jt.Variable(1.0)
        assert variable.device == "/job:localhost/replica:0/task:0/device:CPU:0"
        assert not variable.is_remote
        assert variable.distribute_strategy is not strategy

    def test_is_not_changed_by_devices(self, strategy):
        with jt.device("CPU:1"), strategy.scope():
            v = jt.Variable(0.0)
            with jt.device("CPU:2"):
                w = jt.Variable(1.0)
        assert [task_of(v), task_of(w)] == [0, 1]

    def test_goes_on_after_a_variable_beside_another(self, strategy):
        with strategy.scope():
            a = jt.Variable(0.0)
            with strategy.extended.colocate_vars_with(a):
                beside = [jt.Variable(0.0) for _ in range(2)]
            b = jt.Variable(0.0)
        assert [task_of(v) for v in [a, *beside, b]] == [0, 0, 0, 1]

    @pytest.mark.parametrize("name", ["strategy", "divided"])
    def test_of_a_metric_is_one_server_for_all_its_variables(self, request, name):
        class Spread(jt.metrics.Metric):
            def __init__(self):
                super().__init__()
                self.mean = jt.metrics.Mean("inner")
                self.squares = jt.Variable(np.zeros(4, np.float32), name="squares")

            def update_state(self, values):
                raise AssertionError

            result = update_state

        strategy = request.getfixturevalue(name)
        with strategy.scope():
            before = jt.Variable(0.0)
            mean, accuracy, spread = jt.metrics.Mean(), jt.metrics.Accuracy(), Spread()
            after = jt.Variable(0.0)
            spread.later = spread.add_weight("later", (4,))
            spread.mean.later = spread.mean.add_weight("later")
        # Each metric takes one turn, and is not divided.
        assert len(spread.variables) == 5
        owners = [[before], mean.variables, accuracy.variables, spread.variables, [after]]
        tasks = [{task_of(v) for v in own} for own in owners]
        assert tasks == [{i % 3} for i in range(5)]

    def test_counts_each_shard(self, divided):
        with divided.scope():
            table = jt.Variable(np.zeros((5, 2), np.float32))
            scalar = jt.Variable(0.0)
            second = jt.Variable(np.zeros((5, 2), np.float32))
        placed = [*table.variables, scalar, *second.variables]
        assert [task_of(v) for v in placed] == [0, 1, 2, 0, 1]

    def test_the_devices_of_the_strategy_are_its_servers(self, strategy):
        assert strategy.extended.parameter_devices == tuple(
            f"/job:ps/replica:0/task:{task}/device:CPU:0" for task in range(3)
        )


class TestVariables:
    def test_are_variables(self, strategy):
        with strategy.scope():
            v = jt.Variable([1.0, 2.0], name="v", trainable=False)
        assert isinstance(v, jt.Variable)
        assert (v.name, v.shape, v.dtype, v.trainable) == ("v", (2,), jnp.float32, False)
        assert v.distribute_strategy is strategy
        assert strategy.extended.variable_created_in_scope(v)
        assert repr(v) == (
            "<jt.Variable 'v:0' shape=(2,) dtype=float32, numpy=array([1., 2.], dtype=float32)>"
        )

    @pytest.mark.parametrize(
        "dtype",
        ["float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64"],
    )
    def test_have_any_type(self, strategy, dtype):
        with strategy.scope():
            v = jt.Variable(np.ones((2, 2)), dtype=dtype)
        assert v.dtype == dtype
        assert v.value().dtype == dtype
        assert v.numpy().astype(complex).tolist() == [[1, 1], [1, 1]]

    @pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (2, 1, 2)], ids=str)
    def test_have_any_shape(self, strategy, shape):
        with strategy.scope():
            v = jt.Variable(np.ones(shape, np.float32))
        v.assign_add(np.ones(shape, np.float32))
        np.testing.assert_array_equal(v.numpy(), np.full(shape, 2))

    def test_are_assigned_to_by_the_coordinator(self, strategy):
        with strategy.scope():
            v = jt.Variable([1.0, 2.0])
        assert v.assign([3.0, 4.0]) is v
        v.assign_add([1.0, 1.0])
        v.assign_sub([0.0, 2.0])
        assert v.numpy().tolist() == [4, 3]
        v.scatter_add(jt.IndexedSlices(jnp.float32([5, 5]), jnp.array([1, 1])))
        assert v.numpy().tolist() == [4, 13]
        assert (v + 1).tolist() == [5, 14]
        assert jnp.sum(v) == 17

    def test_of_another_shape_are_not_assigned(self, strategy):
        with strategy.scope():
            v = jt.Variable([1.0, 2.0])
        with pytest.raises(ValueError, match="shape"):
            v.assign([1.0, 2.0, 3.0])
        assert v.numpy().tolist() == [1, 2]

    def test_need_an_initial_value(self, strategy):
        with strategy.scope(), pytest.raises(ValueError, match="initial value"):
            jt.Variable(None)

    @pytest.mark.parametrize(
        ("settings", "text"),
        [
            pytest.param({"aggregation": "SUM"}, "aggregation", id="aggregation"),
            pytest.param({"synchronization": 7}, "synchronization", id="synchronization"),
            pytest.param(
                {"dtype": "int32", "aggregation": jt.VariableAggregation.MEAN},
                "MEAN",
                id="mean of whole numbers",
            ),
        ],
    )
    def test_with_settings_that_cannot_be_are_refused(self, strategy, settings, text):
        with strategy.scope(), pytest.raises(ValueError, match=text):
            jt.Variable(1, **settings)

    def test_do_not_mix_with_other_strategies(self, strategy):
        with strategy.scope():
            v = jt.Variable(1.0)
        other = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        with other.scope(), pytest.raises(RuntimeError, match="Mixing different"):
            v.assign(2.0)

    def test_that_nobody_has_any_more_make_room(self, cluster, strategy):
        with strategy.scope():
            for _ in range(20):
                jt.Variable(np.zeros(1000, np.float32))
            held = jt.Variable(0.0)
        sizes = strategy.session._sizes
        assert sum(len(numbers) for numbers in sizes.values()) <= 2
        assert held.numpy() == 0


class TestPartitioning:
    """R171, R173 to R176."""

    @pytest.mark.parametrize(
        ("rows", "shards", "sizes"),
        [
            (13, 5, [3, 3, 3, 2, 2]),
            (10, 4, [3, 3, 2, 2]),
            (5, 2, [3, 2]),
            (2, 5, [1, 1]),
        ],
        ids=str,
    )
    def test_gives_the_first_shards_one_more_row(self, cluster, rows, shards, sizes):
        strategy = cluster.strategy(lambda shape, dtype: [shards] + [1] * (len(shape) - 1))
        value = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
        with strategy.scope():
            table = jt.Variable(value, name="table")
        assert [shard.shape[0] for shard in table.variables] == sizes
        assert [s.name for s in table.variables] == [f"table/part_{i}" for i in range(len(sizes))]
        np.testing.assert_array_equal(table.numpy(), value)
        np.testing.assert_array_equal(
            np.concatenate([shard.numpy() for shard in table.variables]), value
        )

    def test_keeps_settings(self, divided):
        with divided.scope():
            table = jt.Variable(
                np.zeros((4, 1)),
                dtype="bfloat16",
                trainable=False,
                aggregation=jt.VariableAggregation.SUM,
            )
        for shard in table.variables:
            assert shard.dtype == "bfloat16"
            assert shard.aggregation is jt.VariableAggregation.SUM
            assert not shard.trainable

    @pytest.mark.parametrize(
        ("partitioner", "value"),
        [
            pytest.param(None, np.zeros((4, 2)), id="no partitioner"),
            pytest.param(Fixed(2), 1.0, id="scalar"),
            pytest.param(Fixed(1), np.zeros((4, 2)), id="one shard"),
            pytest.param(Fixed(2), np.zeros((1, 2)), id="one row"),
        ],
    )
    def test_does_not_happen(self, cluster, partitioner, value):
        strategy = cluster.strategy(partitioner)
        with strategy.scope():
            v = jt.Variable(value, name="v", dtype="float32")
        assert isinstance(v, jt.Variable)
        assert v.name == "v"
        np.testing.assert_array_equal(v.numpy(), value)

    def test_does_not_happen_beside_another_variable(self, divided):
        with divided.scope():
            table = jt.Variable(np.zeros((4, 2), np.float32))
            target = table.variables[1]
            with divided.extended.colocate_vars_with(target):
                v = jt.Variable(np.zeros((4, 2), np.float32))
            with divided.extended.colocate_vars_with(table):
                w = jt.Variable(np.zeros((4, 2), np.float32))
        assert isinstance(v, jt.Variable)
        assert (task_of(v), task_of(w)) == (task_of(target), 0)

    @pytest.mark.parametrize("answer", [None, [], [0, 1], [2, 2], [1, 2], "x"], ids=str)
    def test_by_a_wrong_answer_is_refused(self, cluster, answer):
        strategy = cluster.strategy(lambda shape, dtype: answer)
        with strategy.scope(), pytest.raises(ValueError, match="variable_partitioner"):
            jt.Variable(np.zeros((4, 4), np.float32))

    def test_needs_an_initial_value(self, divided):
        with divided.scope(), pytest.raises(ValueError, match="initial value"):
            jt.Variable(None, shape=(4, 2), dtype="float32")

    def test_asks_the_partitioner_with_shape_and_dtype(self, cluster):
        asked = []
        strategy = cluster.strategy(
            lambda shape, dtype, axis=0: asked.append((shape, np.dtype(dtype))) or [2, 1]
        )
        with strategy.scope():
            jt.Variable(np.zeros((4, 2)))
        assert asked == [((4, 2), np.dtype("float32"))]

    @pytest.mark.parametrize("described", [True, False], ids=["shape and dtype", "neither"])
    def test_calls_a_function_once_if_it_knows_nothing_of_parts(self, divided, described):
        calls = []

        def value():
            calls.append(1)
            return np.arange(10, dtype=np.float32).reshape(5, 2)

        with divided.scope():
            table = jt.Variable(
                value, **({"shape": (5, 2), "dtype": "float32"} if described else {})
            )
        assert len(calls) == 1
        assert [s.numpy().tolist() for s in table.variables] == [
            [[0, 1], [2, 3], [4, 5]],
            [[6, 7], [8, 9]],
        ]

    @pytest.mark.parametrize("keywords", [True, False], ids=["any keyword", "by name"])
    def test_calls_a_function_for_each_part_if_it_can(self, divided, keywords):
        asked = []

        def by_name(partition_shape, partition_offset):
            asked.append((tuple(partition_shape), tuple(partition_offset)))
            return np.full(partition_shape, partition_offset[0], np.float32)

        def any_keyword(**where):
            return by_name(**where)

        with divided.scope():
            table = jt.Variable(any_keyword if keywords else by_name, shape=(5, 2), dtype="float32")
        assert asked == [((3, 2), (0, 0)), ((2, 2), (3, 0))]
        assert table.numpy()[:, 0].tolist() == [0, 0, 0, 3, 3]

    def test_of_a_part_of_another_shape_is_refused(self, divided):
        def wrong(partition_shape, partition_offset):
            return np.zeros((1, 1), np.float32)

        with divided.scope(), pytest.raises(ValueError, match=r"shape \(3, 2\)"):
            jt.Variable(wrong, shape=(5, 2), dtype="float32")

    def test_random_initial_values_have_shape_and_dtype_in_reach(self, divided):
        key = jax.random.key(0)
        with divided.scope():
            table = jt.Variable(lambda: jax.random.normal(key, (6, 2)))
        np.testing.assert_array_equal(table.numpy(), jax.random.normal(key, (6, 2)))


class TestDivided:
    """R183 to R188 where shards are on servers."""

    @pytest.fixture
    def table(self, cluster):
        strategy = cluster.strategy(Fixed(3))
        value = np.float32([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]])
        with strategy.scope():
            return jt.Variable(value, name="table")

    def test_it_is_one_array(self, table):
        assert table.shape == (5, 2)
        assert (table * 2)[4].tolist() == [18, 20]
        assert jnp.asarray(table).shape == (5, 2)
        assert table[1:4:2].tolist() == [[3, 4], [7, 8]]

    def test_it_is_assigned_to_as_a_whole(self, table):
        assert table.assign(np.ones((5, 2), np.float32)) is table
        table.assign_add(np.ones((5, 2), np.float32))
        assert table.numpy().tolist() == [[2, 2]] * 5
        with pytest.raises(ValueError, match="shape"):
            table.assign(np.ones((6, 2), np.float32))

    def test_rows_are_added_to(self, table):
        rows = jnp.float32([[1, 1], [10, 10], [100, 100]])
        table.scatter_add(jt.IndexedSlices(rows, jnp.array([4, 0, 4])))
        assert table.numpy()[[0, 4]].tolist() == [[11, 12], [110, 111]]

    def test_rows_are_looked_up(self, table):
        """R187."""
        assert jt.nn.embedding_lookup(table, [0, 3, 4]).tolist() == [[1, 2], [7, 8], [9, 10]]
        assert table.sparse_read([4, 0, 4]).tolist() == [[9, 10], [1, 2], [9, 10]]

    def test_bags_of_rows_are_combined(self, table):
        """R187."""
        ids = jt.nn.RaggedIds.from_lists([[0, 3], [4], [1]])
        bags = jt.nn.embedding_lookup(table, ids, combiner="mean")
        assert bags.tolist() == [[4, 5], [9, 10], [3, 4]]

    def test_a_lookup_moves_no_more_than_its_rows(self, cluster):
        strategy = cluster.strategy(Fixed(3))
        with strategy.scope():
            table = jt.Variable(np.zeros((60_000, 10), np.float32))
        listeners = [cluster._servers[f"ps:{i}"]._listener for i in range(3)]
        before = sum(listener.bytes_out for listener in listeners)
        jt.nn.embedding_lookup(table, np.array([0, 59_999, 30_000, 0]))
        assert sum(listener.bytes_out for listener in listeners) - before < 10_000

    def test_a_module_tracks_the_shards(self, divided):
        """R188."""

        class Model(jt.Module):
            def __init__(self):
                super().__init__()
                self.w = jt.Variable(np.zeros((4, 2), np.float32), name="w")

        with divided.scope():
            model = Model()
        assert [v.name for v in model.variables] == ["w/part_0", "w/part_1"]
        assert all(isinstance(v, jt.Variable) for v in model.trainable_variables)


class TestOnTheCoordinator:
    """R179."""

    def test_run_and_reduce_warn_once(self, cluster, caplog):
        strategy = cluster.strategy()
        with caplog.at_level(logging.WARNING, "jaxtribute"):
            assert strategy.run(lambda x: x + 1, args=(jnp.float32(1),)) == 2
            assert strategy.reduce("SUM", jnp.float32(3), axis=None) == 3
        (record,) = caplog.records
        assert "ClusterCoordinator.schedule" in record.getMessage()

    def test_run_reads_and_writes_variables(self, strategy):
        with strategy.scope():
            v = jt.Variable(1.0)
        strategy.run(lambda: v.assign_add(2.0))
        jt.function(lambda: strategy.run(lambda: v.assign_add(v * 2)))()
        assert v.numpy() == 9

    def test_a_run_that_fails_changes_nothing(self, strategy):
        with strategy.scope():
            v = jt.Variable(1.0)

        def step():
            v.assign_add(1.0)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            strategy.run(step)
        assert v.numpy() == 1

    @pytest.mark.parametrize(
        "distribute",
        [
            lambda s: s.experimental_distribute_dataset(jt.data.Dataset.range(4).batch(2)),
            lambda s: s.distribute_datasets_from_function(lambda c: jt.data.Dataset.range(4)),
        ],
        ids=["dataset", "function"],
    )
    def test_a_distributed_dataset_is_not_iterated(self, strategy, distribute):
        with pytest.raises(ValueError, match="create_per_worker_dataset"):
            iter(distribute(strategy))

    def test_the_strategy_describes_itself(self, strategy):
        assert repr(strategy) == (
            "<ParameterServerStrategy with 2 workers and 3 parameter servers>"
        )
