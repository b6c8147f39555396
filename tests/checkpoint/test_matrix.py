"""What any topology saved, any other restores, bit for bit, and goes on as if nothing had been."""

import json

import numpy as np
import pytest
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute.testing import ProcessCluster
from tests.checkpoint._matrix import Training
from tests.checkpoint._support import same_bits
from tests.processes._workers import Cluster

# One after the other, all topologies train and restore before the first test.
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(400)]

SHARDS = {"ps with 1 shard": 1, "ps with 2 shards": 2, "ps with 3 shards": 3}
SYNCHRONOUS = ["one device", "mirrored 2", "2 workers"]
TOPOLOGIES = [*SYNCHRONOUS, *SHARDS]

_WORKER = """
from tests.checkpoint._matrix import Training

training = Training(jt.MultiWorkerMirroredStrategy())
say("began", losses=training.begin("2 workers"))
hold("go")
for name in {topologies}:
    say(name, losses=training.go_on(name, f"{{name}} -> 2 workers"))
training.close()
"""


class Results:
    """Where everything was saved, and the losses of what came after, by who saved and restored."""

    def __init__(self, directory):
        self.directory = directory
        self.began = {}
        self.went_on = {}

    def begin(self, name, training):
        self.began[name] = training.begin(self.directory / name)
        training.close()

    def go_on(self, name, training):
        for saved in TOPOLOGIES:
            again = self.directory / f"{saved} -> {name}"
            self.went_on[saved, name] = training.go_on(self.directory / saved, again)
        training.close()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    gc.store(object())  # starts the thread of pyzmq that frees what was sent; it stays for ever
    results = Results(tmp_path_factory.mktemp("matrix"))
    strategies = {
        "one device": jt.OneDeviceStrategy("CPU:0"),
        "mirrored 2": jt.MirroredStrategy(["CPU:0", "CPU:1"]),
    }
    with Cluster(results.directory) as workers, ProcessCluster(workers=1, ps=3) as cluster:

        def with_servers(name):
            partitioner = jt.experimental.partitioners.FixedShardsPartitioner(SHARDS[name])
            strategy = cluster.strategy(partitioner)
            return Training(strategy, cluster.coordinator(strategy))

        workers.start(_WORKER.format(topologies=TOPOLOGIES))
        for name, strategy in strategies.items():
            results.begin(name, Training(strategy))
        for name in SHARDS:
            results.begin(name, with_servers(name))
        results.began["2 workers"] = workers.until("worker:0", "began")["losses"]
        workers.release("go")
        for name, strategy in strategies.items():
            results.go_on(name, Training(strategy))
        for name in SHARDS:
            results.go_on(name, with_servers(name))
        for name in TOPOLOGIES:
            losses = workers.until("worker:1", name)["losses"]
            results.went_on[name, "2 workers"] = losses
        workers.finish()
    return results


def contents(path):
    """Return everything a checkpoint holds."""
    reader = jt.train.load_checkpoint(path)
    arrays = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    (index,) = path.glob("data-*/index.json")
    return arrays, json.loads(index.read_text())


@pytest.mark.parametrize("restored", TOPOLOGIES)
@pytest.mark.parametrize("saved", TOPOLOGIES)
def test_what_one_saved_another_restores_bit_for_bit(results, saved, restored):
    before, index = contents(results.directory / saved)
    after, index_after = contents(results.directory / f"{saved} -> {restored}")
    assert before.keys() == after.keys()
    assert {
        "model/table",
        "optimizer/state/0/mu/model/table",
        "metric/total",
        "key",
    } < before.keys()
    for name, array in before.items():
        assert same_bits(array, after[name]), name
    assert index["scalars"] == index_after["scalars"]


@pytest.mark.parametrize("restored", TOPOLOGIES)
@pytest.mark.parametrize("saved", TOPOLOGIES)
def test_training_goes_on_as_if_nothing_had_happened(results, saved, restored):
    expected, losses = results.began[saved], results.went_on[saved, restored]
    if saved == restored and saved in SYNCHRONOUS:
        assert losses == expected
    np.testing.assert_allclose(losses, expected, rtol=2e-5)


@pytest.mark.parametrize("name", SHARDS)
def test_servers_have_written_their_own_shards(results, name):
    (data,) = (results.directory / name).glob("data-*")
    places = {path.name for path in data.iterdir() if path.is_dir()}
    assert places == {"arrays", *(f"ps-{i}" for i in range(3))}
    _, index = contents(results.directory / name)
    parts = index["arrays"]["model/table"]["parts"]
    assert [place for place, *_ in parts] == [f"ps-{i}" for i in range(SHARDS[name])]
