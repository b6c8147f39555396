"""A program that saves until it is killed."""

from multiprocessing.connection import Connection

import numpy as np

ARRAYS = 8


def run(directory: str, progress: Connection) -> None:
    """Go on from the newest checkpoint, and save one after each step; tell of each one saved."""
    import jaxtribute as jt  # imported already by the process this one is forked from

    checkpoint = make()
    manager = jt.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
    manager.restore_or_initialize()
    while True:
        checkpoint.step += 1
        for array in checkpoint.arrays:
            array.assign(contents(checkpoint.step))
        manager.save()
        progress.send(checkpoint.step)


def make():
    import jaxtribute as jt

    arrays = [jt.Variable(np.zeros_like(contents(0))) for _ in range(ARRAYS)]
    return jt.train.Checkpoint(arrays=arrays, step=0)


def contents(step: int):
    """Return what the arrays hold after a step: noise, so that it takes some time to write."""
    return np.random.default_rng(step).standard_normal((256, 512), np.float32)
