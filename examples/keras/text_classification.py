"""Tell from the words of a review whether it is a good one, with whatever strategy.

    python examples/keras/text_classification.py --strategy mirrored
    jaxtribute launch --workers 2 examples/keras/text_classification.py --strategy workers
    jaxtribute launch --workers 2 --ps 2 examples/keras/text_classification.py --strategy ps

The strategies are `default`, `one`, `mirrored`, `workers` and `ps`; the last one starts a cluster
in its own process if it is run without the launcher. `train` is the whole program, and knows
nothing of them.

Reviews are made here, so that nothing is downloaded: sentences such as "the music was rather zute
but the ending was gado and the cast was very mepi". Of the made-up words at the end of clauses,
half are praise; a review is a good one if most of it is praise. Nobody tells the model which words
are, and many are in a few reviews only. The program ends with status 1 if it is right about less
than 95 % of the reviews it has not seen.
"""

import os
import sys
from collections import Counter

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported

import keras
import numpy as np
import strategies

import jaxtribute as jt

GOAL = 0.95
SEED = 3
VOCABULARY = 600  # words that the model knows, with those that stand for none and for others
LENGTH = 48  # of the longest review

ASPECTS = ["acting", "camera", "cast", "dialogue", "ending", "humour", "music", "pace", "plot"]
DEGREES = ["", "", "", "quite", "rather", "really", "truly", "very"]
Examples = tuple[np.ndarray, np.ndarray]  # the numbers of words, labels


def reviews(count: int, rng: np.random.Generator) -> tuple[list[str], np.ndarray]:
    """Make up reviews, of one, three or five clauses, and say whether each is a good one."""
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = [a + b for a in syllables for b in syllables]
    np.random.default_rng(SEED).shuffle(words)  # the same words in each call
    half = VOCABULARY // 2
    praise, blame = words[:half], words[half : 2 * half]
    frequency = 1 / np.arange(3, half + 3)  # as of words in any language
    frequency /= frequency.sum()
    texts, labels = [], []
    for _ in range(count):
        good = rng.random(rng.choice([1, 3, 5])) < rng.uniform()
        clauses = []
        for is_praise in good:
            opinion = rng.choice(praise if is_praise else blame, p=frequency)
            degree = rng.choice(DEGREES)
            clauses.append(f"the {rng.choice(ASPECTS)} was {degree} {opinion}")
        text = clauses[0]
        for clause in clauses[1:]:
            text += f" {rng.choice(['and', 'but'])} {clause}"
        texts.append(text)
        labels.append(good.mean() > 0.5)
    return texts, np.array(labels, np.float32)


def vocabulary_of(texts: list[str]) -> dict[str, int]:
    """Number the most frequent words. 0 is for no word, and 1 for all other ones."""
    counts = Counter(word for text in texts for word in text.split())
    return {word: i for i, (word, _) in enumerate(counts.most_common(VOCABULARY - 2), start=2)}


def numbers_of(texts: list[str], vocabulary: dict[str, int]) -> np.ndarray:
    """Return the words of each text as numbers, with zeros behind the last one."""
    numbers = np.zeros((len(texts), LENGTH), np.int32)
    for row, text in zip(numbers, texts, strict=True):
        words = [vocabulary.get(word, 1) for word in text.split()][:LENGTH]
        row[: len(words)] = words
    return numbers


def load(small: bool) -> tuple[Examples, Examples]:
    """Return what to train and what to test with."""
    rng = np.random.default_rng(SEED)
    train_texts, train_y = reviews(640 if small else 6000, rng)
    test_texts, test_y = reviews(500, rng)
    vocabulary = vocabulary_of(train_texts)
    return (
        (numbers_of(train_texts, vocabulary), train_y),
        (numbers_of(test_texts, vocabulary), test_y),
    )


def train(strategy: jt.Strategy, data: Examples, epochs: int) -> tuple[keras.Model, list[float]]:
    """Return a trained model, and its loss in each epoch."""
    keras.utils.set_random_seed(SEED)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((LENGTH,), dtype="int32"),
                keras.layers.Embedding(VOCABULARY, 16, mask_zero=True),
                keras.layers.GlobalAveragePooling1D(),  # of the words that are there
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dense(1),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(1e-2),
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy")],
        )
    history = model.fit(*data, batch_size=64, epochs=epochs, verbose=2)
    return model, history.history["loss"]


def main() -> int:
    given = strategies.arguments(__doc__.splitlines()[0], epochs=8)
    with strategies.strategy_called(given.strategy) as strategy:
        data, test = load(given.small)
        model, losses = train(strategy, data, given.epochs)
        _, accuracy = model.evaluate(*test, batch_size=64, verbose=0)
        print("loss of each epoch:", *(f"{loss:.6f}" for loss in losses))
        print(
            f"{type(strategy).__name__}: right about {accuracy:.2%} of {len(test[1])} reviews that "
            f"it has not seen (goal: {GOAL:.0%})"
        )
        if given.save:
            model.save(given.save)
    return 1 if accuracy < GOAL and not given.small else 0


if __name__ == "__main__":
    sys.exit(main())
