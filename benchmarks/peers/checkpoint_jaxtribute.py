"""`checkpoint` with `jt.train.Checkpoint`, written as a user would."""

from __future__ import annotations

import jax

import jaxtribute as jt
from benchmarks.peers.checkpoint_work import DECAY, Arrays, Saving
from benchmarks.peers.serve import serve


class Jaxtribute:
    """Variables of one device."""

    asynchronous = True

    def __init__(self, arrays: Arrays) -> None:
        self.variables = variables = [jt.Variable(array) for array in arrays]
        self.checkpoint = jt.train.Checkpoint(variables=variables)

        @jt.function
        def train() -> jax.Array:
            for variable in variables:
                variable.assign(variable * DECAY)
            return variables[-1] + 0.0  # a result to wait for, as a loss would be

        self.train = train

    def step(self) -> None:
        """Train."""
        self.train().block_until_ready()

    def save(self, directory: str) -> str:
        """Save under the next number."""
        return self.checkpoint.save(f"{directory}/ckpt")

    def wait(self) -> None:
        """Wait for the files."""
        self.checkpoint.wait_until_finished()

    def restore(self, path: str) -> None:
        """Restore the variables."""
        self.checkpoint.restore(path).assert_consumed()
        jax.block_until_ready(self.state())

    def state(self) -> list[jax.Array]:
        """The values."""
        return [variable.read_value() for variable in self.variables]


if __name__ == "__main__":
    serve(lambda case: Saving(case, Jaxtribute), ("jaxtribute", "jax", "jaxlib", "numpy"))
