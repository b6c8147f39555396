"""A program that saves a model again and again, until it is killed."""

import numpy as np

import jaxtribute as jt


def run(path, progress):
    """Save models of which all variables have the number of the save."""
    step = jt.Variable(0)
    v = jt.Variable(np.zeros(100_000, np.float32))
    while True:
        step.assign_add(1)
        v.assign(np.full(100_000, int(step), np.float32))
        jt.saved_model.save({"step": step, "v": v}, path)
        progress.send(int(step))
