"""Keras models under strategies: create and compile them in a scope, and `fit` does the rest.

There is nothing to call: a strategy's scope lets Keras know of strategies once Keras is imported.

>>> import keras
>>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
>>> with strategy.scope():
...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
...     model.compile(optimizer="sgd", loss="mse")
>>> history = model.fit(np.ones((8, 4)), np.ones((8, 1)), batch_size=4, verbose=0)
>>> sorted(history.history)
['loss']
"""

from ._creator import DatasetCreator
from ._evaluator import SidecarEvaluator
from ._hooks import install

__all__ = ["DatasetCreator", "SidecarEvaluator"]

install()
