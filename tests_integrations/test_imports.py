"""Neither TensorFlow nor PyTorch nor Ray is imported, though all are installed."""

import json
import subprocess

import pytest

from tests._interpreter import STRICT_PYTHON

PROBE = """
import json, sys
import numpy as np
import jaxtribute as jt

others = ("tensorflow", "torch", "keras", "ray")
after_import = sorted(set(others) & set(sys.modules))
strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
for source in (
    jt.data.Dataset.range(8).map(lambda x: x + 1).shuffle(8).batch(4),
    (np.arange(4), np.ones(4)),
    [np.arange(4)],
):
    for element in strategy.experimental_distribute_dataset(source):
        pass
print(json.dumps([after_import, sorted(set(others) & set(sys.modules))]))
"""


@pytest.mark.processes
def test_importing_and_using_jaxtribute_imports_none_of_them():
    done = subprocess.run(
        [*STRICT_PYTHON, "-c", PROBE],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], []]
