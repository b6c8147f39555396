"""`checkpoint` with `torch.save` and `torch.load`."""

from __future__ import annotations

import torch

from benchmarks.peers.checkpoint_work import DECAY, Arrays, Saving
from benchmarks.peers.serve import serve


class Torch:
    """Tensors in host memory."""

    asynchronous = False

    def __init__(self, arrays: Arrays) -> None:
        self.tensors = [torch.tensor(array) for array in arrays]

    def step(self) -> None:
        """Train."""
        for tensor in self.tensors:
            tensor.mul_(DECAY)

    def save(self, directory: str) -> str:
        """Save to a file."""
        path = f"{directory}/ckpt.pt"
        torch.save(self.tensors, path)
        return path

    def wait(self) -> None:
        """Nothing is left to be done."""

    def restore(self, path: str) -> None:
        """Load, which makes new tensors."""
        self.tensors = torch.load(path)

    def state(self) -> list[torch.Tensor]:
        """The tensors."""
        return self.tensors


if __name__ == "__main__":
    serve(lambda case: Saving(case, Torch), ("torch", "numpy"))
