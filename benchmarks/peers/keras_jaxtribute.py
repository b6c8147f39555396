"""`keras` under jaxtribute's `MirroredStrategy`."""

from __future__ import annotations

import jaxtribute as jt
from benchmarks.peers.keras_work import DEVICES, Fit
from benchmarks.peers.serve import serve

if __name__ == "__main__":
    scope = jt.MirroredStrategy(DEVICES).scope
    serve(lambda case: Fit(case, scope), ("jaxtribute", "keras", "jax", "jaxlib", "numpy"))
