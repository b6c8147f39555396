"""Recommend items to users by a model of two towers, made for parameter servers.

    python examples/keras/two_tower.py --strategy ps
    jaxtribute launch --workers 2 --ps 2 examples/keras/two_tower.py --strategy ps
    jaxtribute launch --workers 2 examples/keras/two_tower.py --strategy workers

The strategies are `default`, `one`, `mirrored`, `workers` and `ps`. With `ps` the tables of users
and items are divided between the servers, and a step fetches the rows of the users and items that
are in its batch. Run without the launcher, it starts a cluster in its own process. `train` is the
whole program, and knows nothing of strategies.

One tower makes a user into a vector, the other one an item; what fits the user is where both point
the same way. The model learns from what users have chosen, each choice with seven other items of
which it is to tell which one it was. The choices are made here, from tastes that the model does not
know, so that nothing is downloaded. It ends with status 1 if it finds less than 55 % of the
choices it has not seen; guessing finds 12.5 %, and knowing the tastes would find 67 %.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported

import keras
import numpy as np
import strategies

import jaxtribute as jt

GOAL = 0.55
SEED = 5
USERS, ITEMS, CANDIDATES, WIDTH = 1000, 500, 8, 16

Examples = tuple[dict[str, np.ndarray], np.ndarray]  # users and candidates, which was chosen


def load(small: bool) -> tuple[Examples, Examples]:
    """Return what to train and what to test with."""
    rng = np.random.default_rng(SEED)
    tastes, traits = rng.normal(size=(USERS, 4)), rng.normal(size=(ITEMS, 4))
    liking = np.exp(tastes @ traits.T)
    liking /= liking.sum(axis=1, keepdims=True)

    def choices(count: int) -> Examples:
        users = rng.integers(USERS, size=count)
        # By inversion: the first item at which the probabilities add up to a random number.
        chosen = (liking[users].cumsum(axis=1) < rng.random((count, 1))).sum(axis=1)
        items = rng.integers(ITEMS, size=(count, CANDIDATES))
        places = rng.integers(CANDIDATES, size=count)
        items[np.arange(count), places] = np.minimum(chosen, ITEMS - 1)
        inputs = {"user": users.astype(np.int32), "items": items.astype(np.int32)}
        return inputs, places.astype(np.int32)

    return choices(2_001 if small else 60_000), choices(2_000)


def tower(name: str, entries: int) -> keras.Sequential:
    return keras.Sequential(
        [
            keras.layers.Embedding(
                entries, WIDTH, embeddings_initializer=keras.initializers.RandomNormal(stddev=0.3)
            ),
            keras.layers.Dense(WIDTH, use_bias=False),
        ],
        name=name,
    )


def train(strategy: jt.Strategy, data: Examples, epochs: int) -> tuple[keras.Model, list[float]]:
    """Return a trained model, and its loss in each epoch."""
    keras.utils.set_random_seed(SEED)
    with strategy.scope():
        user = keras.Input((), dtype="int32", name="user")
        items = keras.Input((CANDIDATES,), dtype="int32", name="items")
        fits = keras.layers.Dot(axes=(1, 2))(
            [tower("users", USERS)(user), tower("candidates", ITEMS)(items)]
        )
        model = keras.Model({"user": user, "items": items}, fits)
        model.compile(
            # Leaves rows that are not in a batch as they are, whether they are sent or not.
            optimizer=keras.optimizers.Adagrad(0.1, initial_accumulator_value=1e-6),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(*data, batch_size=256, epochs=epochs, verbose=2)
    return model, history.history["loss"]


def main() -> int:
    given = strategies.arguments(__doc__.splitlines()[0], epochs=6)
    with strategies.strategy_called(given.strategy) as strategy:
        data, test = load(given.small)
        model, losses = train(strategy, data, given.epochs)
        _, found = model.evaluate(*test, batch_size=256, verbose=0)
        print("loss of each epoch:", *(f"{loss:.6f}" for loss in losses))
        print(
            f"{type(strategy).__name__}: {found:.2%} of {len(test[1])} choices that it has not "
            f"seen are found among {CANDIDATES} items (goal: {GOAL:.0%})"
        )
        if given.save:
            model.save(given.save)
    return 1 if found < GOAL and not given.small else 0


if __name__ == "__main__":
    sys.exit(main())
