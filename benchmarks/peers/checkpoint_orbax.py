"""`checkpoint` with Orbax alone: its standard way, or `--uncompressed`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial

import jax
import orbax.checkpoint as ocp

from benchmarks.peers.checkpoint_work import DECAY, Arrays, Saving
from benchmarks.peers.serve import serve

State = dict[str, jax.Array]


class Orbax:
    """Arrays of one device, which steps donate; all states share a checkpointer."""

    asynchronous = True
    checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())

    def __init__(self, arrays: Arrays) -> None:
        self.arrays: State = {str(i): jax.device_put(array) for i, array in enumerate(arrays)}

    def step(self) -> None:
        """Train."""
        self.arrays = jax.block_until_ready(_train(self.arrays))

    def save(self, directory: str) -> str:
        """Save to a directory of its own."""
        path = f"{directory}/ckpt"
        self.checkpointer.save(path, args=ocp.args.StandardSave(self.arrays))
        return path

    def wait(self) -> None:
        """Wait for the files."""
        self.checkpointer.wait_until_finished()

    def restore(self, path: str) -> None:
        """Restore to the device."""
        wanted = ocp.args.StandardRestore(_described(self.arrays))
        self.arrays = jax.block_until_ready(self.checkpointer.restore(path, args=wanted))

    def state(self) -> list[jax.Array]:
        """The arrays, which JAX may have put in another order."""
        return [self.arrays[str(index)] for index in range(len(self.arrays))]


class Uncompressed(Orbax):
    """The fastest of its settings: `StandardSave` has no option that leaves out compressing."""

    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_compression=False))

    def save(self, directory: str) -> str:
        """Save to a directory of its own."""
        path = f"{directory}/ckpt"
        self.checkpointer.save(path, args=ocp.args.PyTreeSave(self.arrays))
        return path

    def restore(self, path: str) -> None:
        """Restore to the device."""
        described = _described(self.arrays)
        to_device = ocp.checkpoint_utils.construct_restore_args(described)
        wanted = ocp.args.PyTreeRestore(described, restore_args=to_device)
        self.arrays = jax.block_until_ready(self.checkpointer.restore(path, args=wanted))


@partial(jax.jit, donate_argnums=0)
def _train(arrays: State) -> State:
    return {name: array * DECAY for name, array in arrays.items()}


def _described(arrays: State) -> Mapping[str, jax.ShapeDtypeStruct]:
    return {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
        for name, array in arrays.items()
    }


if __name__ == "__main__":
    kind = Uncompressed if "--uncompressed" in sys.argv[1:] else Orbax
    packages = ("orbax-checkpoint", "tensorstore", "jax", "jaxlib", "numpy")
    serve(lambda case: Saving(case, kind), packages)
