"""Keras layers that look words up: given text of our datasets, and sent to workers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import jaxtribute as jt

WORDS = ["cat", "fïsh"]
LINES = ["cat", "dog", "cat", "fïsh"]
IDS = [1, 0, 1, 2]


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return jt.data.TextLineDataset(str(path))


@pytest.fixture
def cluster():
    with jt.testing.LocalCluster(workers=2, ps=1) as cluster:
        yield cluster


def numbers(elements):
    return [np.asarray(element).tolist() for element in elements]


class TestTextOfDatasets:
    def test_elements_are_found_whether_they_are_bytes_or_not(self, lines):
        lookup = keras.layers.StringLookup(vocabulary=WORDS)
        assert numbers(map(lookup, lines)) == numbers(lines.map(lookup)) == IDS
        assert numbers(lines.batch(3).map(lookup)) == [IDS[:3], IDS[3:]]
        encoded = [line.encode() for line in LINES]
        for batch in (np.array(encoded), np.array(encoded, object), np.array(LINES)):
            assert numbers(lookup(batch)) == IDS

    def test_words_are_learned_from_them(self, lines):
        lookup = keras.layers.StringLookup()
        lookup.adapt(lines.batch(2))
        assert lookup.get_vocabulary() == ["[UNK]", "cat", "fïsh", "dog"]

    def test_a_vocabulary_is_decoded_first(self, lines):
        words = ["", "[UNK]", *sorted({line.decode() for line in lines})]
        lookup = keras.layers.StringLookup(vocabulary=words, mask_token="")
        assert numbers(lines.map(lookup)) == [words.index(line) for line in LINES]

    def test_training_on_their_ids(self, lines):
        lookup = keras.layers.StringLookup(vocabulary=WORDS)
        with jt.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = keras.Sequential(
                [keras.Input((), dtype="int32"), keras.layers.Embedding(3, 1, "zeros")]
            )
            model.compile(keras.optimizers.SGD(1.0), "mse")
        examples = lines.batch(4).map(
            lambda batch: (np.asarray(lookup(batch)), np.ones(len(batch)))
        )
        model.fit(examples, verbose=0)
        assert np.ravel(model.layers[0].embeddings).tolist() == [0.5, 1.0, 0.5]  # twice the cat


def adapted(layer, *texts):
    layer.adapt(np.array(texts, object))
    return layer


def lookups():
    layers = keras.layers
    return {
        "words": layers.StringLookup(vocabulary=WORDS),
        "bytes": layers.StringLookup(vocabulary=[b"", b"[UNK]", b"cat"], mask_token=""),
        "masked": layers.StringLookup(vocabulary=["", "[UNK]", *WORDS], mask_token=""),
        "hashed": layers.StringLookup(vocabulary=WORDS, num_oov_indices=3),
        "learned": adapted(layers.StringLookup(), "dog", "dog", "cat"),
        "one hot": layers.StringLookup(
            vocabulary=WORDS, output_mode="one_hot", max_tokens=5, pad_to_max_tokens=True
        ),
        "weighted": layers.StringLookup(
            vocabulary=["[UNK]", *WORDS], output_mode="tf_idf", idf_weights=[9.0, 0.5, 0.25]
        ),
        "sentences": adapted(layers.TextVectorization(output_sequence_length=2), "dog cat", "cat"),
        "own function": adapted(
            layers.TextVectorization(standardize=lambda text: tf.strings.lower(text)), "CAT", "dog"
        ),
        "in a pipeline": layers.Pipeline([layers.StringLookup(vocabulary=WORDS)]),
    }


class TestOnWorkers:
    def test_closures_look_up_what_the_coordinator_would(self, cluster):
        text = np.array([[line.encode()] for line in LINES], object)
        coordinator = cluster.coordinator(cluster.strategy())
        found = lookups()
        table = keras.layers.IntegerLookup(vocabulary=[5, 7])

        def look_up():
            return {name: np.asarray(lookup(text)) for name, lookup in found.items()} | {
                "numbers": np.asarray(table(np.array([7, 1])))
            }

        here, there = look_up(), coordinator.schedule(look_up).fetch()
        assert here["numbers"].tolist() == [2, 0]
        assert {name: each.tolist() for name, each in there.items()} == {
            name: each.tolist() for name, each in here.items()
        }

    def test_datasets_of_workers(self, cluster, lines):
        coordinator = cluster.coordinator(cluster.strategy())
        lookup = keras.layers.StringLookup(vocabulary=WORDS)
        dataset = coordinator.create_per_worker_dataset(lambda: lines.batch(4).map(lookup))
        step = jt.function(lambda iterator: next(iterator) * 10)
        ids = coordinator.schedule(step, args=(iter(dataset),)).fetch()
        assert ids.tolist() == [10 * i for i in IDS]

    def test_tables_of_tensorflow_are_refused_at_once(self, cluster):
        initializer = tf.lookup.KeyValueTensorInitializer(["cat"], [1])
        table = tf.lookup.StaticHashTable(initializer, 0)
        coordinator = cluster.coordinator(cluster.strategy())
        with pytest.raises(TypeError, match=r"look_up' cannot be sent to workers.*resource"):

            def look_up():
                return table.lookup(tf.constant(LINES)).numpy()

            coordinator.schedule(look_up)
