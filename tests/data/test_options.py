"""Options of datasets, and the names under `jt.data.experimental`."""

import pytest

import jaxtribute as jt
from tests.data._support import read

Dataset, Options, Policy = jt.data.Dataset, jt.data.Options, jt.data.AutoShardPolicy


def with_policy(policy):
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return options


def policy_of(dataset):
    return dataset.options().experimental_distribute.auto_shard_policy


class TestNames:
    def test_of_experimental_are_those_of_data(self):
        experimental = jt.data.experimental
        assert experimental.AutoShardPolicy is jt.data.AutoShardPolicy
        assert experimental.DistributeOptions is jt.data.DistributeOptions
        assert experimental.INFINITE_CARDINALITY == jt.data.INFINITE_CARDINALITY
        assert experimental.UNKNOWN_CARDINALITY == jt.data.UNKNOWN_CARDINALITY
        assert experimental.SHARD_HINT == -1
        for name in experimental.__all__:
            assert hasattr(experimental, name)

    def test_policies_have_the_numbers_of_tf_data(self):
        numbers = {policy.name: policy.value for policy in Policy}
        assert numbers == {"OFF": -1, "AUTO": 0, "FILE": 1, "DATA": 2, "HINT": 3}


class TestOptions:
    def test_defaults(self):
        options = Options()
        assert options.experimental_distribute.auto_shard_policy is Policy.AUTO
        assert options.experimental_distribute.num_devices is None
        assert Dataset.range(3).options() == options

    @pytest.mark.parametrize("policy", list(Policy))
    def test_each_policy_can_be_set(self, policy):
        dataset = Dataset.range(3).with_options(with_policy(policy))
        assert policy_of(dataset) is policy
        assert policy.name in repr(dataset.options())

    def test_they_change_no_element(self):
        dataset = Dataset.range(5).with_options(with_policy(Policy.OFF)).batch(2)
        assert read(dataset) == [[0, 1], [2, 3], [4]]
        assert len(dataset) == 3

    @pytest.mark.parametrize(
        "make",
        [
            lambda d: d.map(lambda x: x),
            lambda d: d.filter(lambda x: True).shuffle(2).repeat().batch(2),
            lambda d: d.batch(2).unbatch().prefetch(1).cache(),
            lambda d: d.concatenate(Dataset.range(2)),
            lambda d: Dataset.range(2).concatenate(d),
            lambda d: Dataset.zip(Dataset.range(2), d),
            lambda d: d.interleave(lambda x: Dataset.range(2)),
            lambda d: d.enumerate().take(2).skip(1).shard(1, 0),
            lambda d: d.apply(lambda d: d),
        ],
    )
    def test_they_stay_with_what_is_made_of_the_dataset(self, make):
        assert (
            policy_of(make(Dataset.range(3).with_options(with_policy(Policy.DATA)))) is Policy.DATA
        )

    def test_they_stay_with_datasets_of_files(self):
        names = Dataset.from_tensor_slices(["a"]).with_options(with_policy(Policy.FILE))
        assert policy_of(jt.data.TextLineDataset(names)) is Policy.FILE

    def test_those_set_last_win(self):
        dataset = Dataset.range(3).with_options(with_policy(Policy.DATA))
        assert policy_of(dataset.with_options(with_policy(Policy.OFF)).batch(2)) is Policy.OFF
        assert policy_of(dataset.with_options(Options())) is Policy.DATA, "nothing is said there"
        assert policy_of(dataset.with_options(with_policy(Policy.AUTO))) is Policy.AUTO

    def test_later_changes_do_not_reach_the_dataset(self):
        options = with_policy(Policy.DATA)
        dataset = Dataset.range(3).with_options(options)
        options.experimental_distribute.auto_shard_policy = Policy.OFF
        dataset.options().experimental_distribute.auto_shard_policy = Policy.OFF
        assert policy_of(dataset) is Policy.DATA

    def test_the_part_about_distribution_can_be_replaced(self):
        distribute = jt.data.DistributeOptions()
        distribute.auto_shard_policy = Policy.HINT
        distribute.num_devices = 4
        options = Options()
        options.experimental_distribute = distribute
        dataset = Dataset.range(3).with_options(options)
        assert policy_of(dataset) is Policy.HINT
        assert dataset.options().experimental_distribute.num_devices == 4

    def test_equality(self):
        assert with_policy(Policy.DATA) == with_policy(Policy.DATA)
        assert with_policy(Policy.DATA) != with_policy(Policy.OFF)
        assert Options() != "options"


class TestRefused:
    @pytest.mark.parametrize("policy", ["DATA", 2, None, jt.ReduceOp.SUM])
    def test_a_policy_of_another_type(self, policy):
        with pytest.raises(TypeError, match="AUTO, FILE, DATA, HINT"):
            Options().experimental_distribute.auto_shard_policy = policy

    @pytest.mark.parametrize("name", ["deterministic", "experimental_deterministic", "typo"])
    def test_setting_an_unknown_option(self, name):
        with pytest.raises(AttributeError, match=name):
            setattr(Options(), name, True)

    @pytest.mark.parametrize("name", ["threading", "autotune", "experimental_optimization"])
    def test_reading_an_unknown_option_says_what_there_is(self, name):
        """`options.threading.private_threadpool_size = 1` is how tf.data programs say it."""
        with pytest.raises(AttributeError, match=f"{name}.*experimental_distribute"):
            getattr(Options(), name)

    def test_an_unknown_option_of_distribution(self):
        with pytest.raises(AttributeError, match="auto_shard"):
            Options().experimental_distribute.auto_shard = Policy.OFF

    @pytest.mark.parametrize("options", [None, {}, Policy.OFF, jt.data.DistributeOptions()])
    def test_options_of_another_type(self, options):
        with pytest.raises(TypeError, match=r"jt\.data\.Options"):
            Dataset.range(3).with_options(options)

    def test_distribute_options_of_another_type(self):
        with pytest.raises(TypeError, match="DistributeOptions"):
            Options().experimental_distribute = Policy.OFF
