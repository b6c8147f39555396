"""What the workers that train a Keras model have to have in common."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import keras
import numpy as np

from ..checkpoint._together import together
from ..collectives._gather import first_component
from ..errors import FailedPreconditionError
from ..values import PerReplica


def check_same_arguments(strategy: Any, what: str, **arguments: Any) -> None:
    """Refuse arguments that differ between workers, which would wait for each other for ever.

    Raises:
      FailedPreconditionError: naming the first that differs.
    """
    group = strategy.topology.group
    if len(group.tasks) == 1:
        return
    own = {name: repr(value) for name, value in arguments.items()}
    reports = [json.loads(text) for text in group.agree(f"calling {what}", json.dumps(own))]
    for task, report in zip(group.tasks, reports, strict=True):
        for name, value in reports[0].items():
            if report[name] != value:
                raise FailedPreconditionError(
                    f"The workers call {what} with different arguments: {group.tasks[0]} passes "
                    f"{name}={value}, {task} {name}={report[name]}. Pass the same to all: they "
                    "take each step together."
                )


def take_state_of_chief(model: keras.Model, strategy: Any) -> None:
    """Give a model's variables, and those of its optimizer, the values they have on the chief.

    Only those are sent that a worker has not got.
    """
    topology = strategy.topology
    if not topology.spans_workers:
        return
    variables = [*model.variables, *getattr(model.optimizer, "variables", ())]
    digests = together(
        topology.group, "compare the variables of a model", lambda: [_digest(v) for v in variables]
    )
    for number, variable in enumerate(variables):
        if any(report[number] != digests[0][number] for report in digests):
            copies = PerReplica([variable.value] * topology.num_local, topology)
            variable.assign(first_component(copies, topology))


def _digest(variable: Any) -> str:
    return hashlib.sha256(np.asarray(variable.value).tobytes()).hexdigest()[:32]
