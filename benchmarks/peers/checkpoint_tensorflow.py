"""`checkpoint` with `tf.train.Checkpoint`."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.peers.checkpoint_work import DECAY, Arrays, Saving
from benchmarks.peers.serve import serve


class TensorFlow:
    """Variables of one device."""

    asynchronous = False

    def __init__(self, arrays: Arrays) -> None:
        self.variables = variables = [tf.Variable(array) for array in arrays]
        self.checkpoint = tf.train.Checkpoint(variables=variables)

        @tf.function
        def train() -> None:
            for variable in variables:
                variable.assign(variable * DECAY)

        self.train = train

    def step(self) -> None:
        """Train; on a CPU this returns when it is done."""
        self.train()

    def save(self, directory: str) -> str:
        """Save under the next number."""
        return self.checkpoint.save(f"{directory}/ckpt")

    def wait(self) -> None:
        """Nothing is left to be done."""

    def restore(self, path: str) -> None:
        """Restore the variables."""
        self.checkpoint.restore(path).assert_consumed()

    def state(self) -> list[tf.Variable]:
        """The variables."""
        return self.variables


if __name__ == "__main__":
    serve(lambda case: Saving(case, TensorFlow), ("tensorflow-cpu", "numpy"))
