"""Programs made at random do in TensorFlow and here the same, or what the documents say."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from tests_integrations._random_programs import Machine, Maker, Ours, Step, TensorFlow

PROGRAMS = 200
_PAGE = Path(__file__).parents[1] / "docs" / "migrating-from-tf.md"


class Difference:
    """What a step of a program came to in TensorFlow and here."""

    def __init__(self, step: Step, theirs: Any, ours: Any, machine: Machine, value: Any) -> None:
        self.step = step
        self.theirs = theirs
        self.ours = ours
        self.value = value  # that `run` or `gather` was given
        self._machine = machine

    def ours_says(self, *texts: str) -> bool:
        return any(text in self.ours.get("error", "") for text in texts)

    def theirs_says(self, *texts: str) -> bool:
        return any(text in self.theirs.get("error", "") for text in texts)

    def is_of(self, *names: str) -> bool:
        return self.step[0] in names

    def by_some(self, condition: Callable[[Any], bool]) -> bool:
        """Tell whether gradients are taken by a variable of some kind."""
        if not self.is_of("gradient", "train"):
            return False
        return any(condition(self._machine.variable(index)) for index in self.step[2])

    def uses(self, *statement: str) -> bool:
        beginnings = [one[: len(statement)] for one in self.step[1]] if self.is_of("run") else []
        return statement in beginnings

    def __str__(self) -> str:
        return f"{self.step}\n  TensorFlow: {self.theirs}\n  jaxtribute: {self.ours}"


FAILED = "A step that fails changes no variable."

# What else may differ: sentences of the page, and how to tell that it is that.
STATED: dict[str, Callable[[Difference], bool]] = {
    "Gradients are taken with respect to every variable that `value_and_grad` is given, trainable "
    "or not.": lambda d: d.by_some(lambda v: not v.trainable),
    "`value_and_grad` refuses variables of whole numbers.": lambda d: d.ours_says(
        "by which nothing can be differentiated"
    ),
    "Optimizers train variables with `ON_READ`, too": lambda d: (
        "error" in d.theirs and d.by_some(lambda v: v.synchronization.name == "ON_READ")
    ),
    "With aggregation NONE, replicas can only assign what is known to be the same": lambda d: (
        d.ours_says("You must specify an aggregation method")
    ),
    "Replicas cannot assign to a variable from outside of the scope, nor can optimizers.": (
        lambda d: d.ours_says("was created outside", "were not created in the scope")
    ),
    "Variables of whole numbers cannot have aggregation MEAN.": lambda d: d.ours_says(
        "for which aggregation MEAN would lose fractions"
    ),
    "Python numbers can be reduced, gathered and broadcast like arrays.": lambda d: d.theirs_says(
        "'float' object has no attribute", "'int' object has no attribute"
    ),
    "`gather` concatenates each leaf of a structure.": lambda d: (
        d.is_of("gather") and isinstance(d.value, (dict, list, tuple))
    ),
    "A variable from outside of the scope is a destination like any other: its device.": lambda d: (
        d.is_of("broadcast_to")
        and d.theirs_says("truth value of an array", "destinations must be one of")
    ),
    "Types are promoted as in JAX.": lambda d: d.theirs_says(
        "that does not match type", "to EagerTensor of dtype", "was expected to be a"
    ),
    "Functions return variables with `ON_READ` as their value, or that of each replica where there "
    "is no aggregation.": lambda d: d.theirs_says("return value of type SyncOnReadVariable"),
    "A value for each replica cannot be assigned to a mirrored variable, nor anything else, "
    "outside of replicas.": lambda d: (
        d.is_of("assign")
        and d.ours_says("are equal at all times", "cannot be used as one array outside of them")
    ),
    "Values of a narrower type are converted; those that would lose information are refused.": (
        lambda d: d.ours_says("which would lose information")
    ),
    "`reduce` with an axis, and `batch_reduce_to`, reduce each leaf of a structure. None stays "
    "None.": lambda d: (
        d.is_of("reduce", "reduce_to", "batch_reduce_to")
        and d.theirs_says(
            *(
                f"'{kind}' object has no attribute"
                for kind in ("list", "dict", "tuple", "NoneType")
            ),
            "value None cannot be reduced",
            "None values not supported",
        )
    ),
    "`reduce` refuses an axis that values do not have.": lambda d: d.ours_says(
        "is out of range for a value of shape ()"
    ),
    "`batch_reduce_to` takes whole numbers and others together.": lambda d: d.theirs_says(
        "must be either all on the host"
    ),
    "`all_reduce` of a value that all replicas share counts it once a replica.": lambda d: (
        d.uses("all_reduce")
        and (d.theirs_says("destinations can not be empty") or isinstance(d.value, jax.Array))
    ),
    "The sum of a value that all replicas share is refused, whatever the method, except that of "
    "zero.": lambda d: d.ours_says("is the same for all 2 replicas"),
    "`batch_reduce_to` returns a value that all replicas share as it is, as `reduce_to` does.": (
        lambda d: (
            (d.is_of("batch_reduce_to") and "'mirrored'" in str(d.theirs))
            or (d.uses("merge", "batch") and "'per replica'" in str(d.theirs))
        )
    ),
}


@pytest.fixture(scope="module")
def libraries():
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    return TensorFlow(), Ours()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, PROGRAMS, 50))
def test_programs_differ_in_what_the_documents_state_only(libraries, first):
    unexplained = [
        f"program {seed}: {difference}"
        for seed in range(first, first + 50)
        if (difference := first_difference(seed, *libraries)) is not None
        and not any(applies(difference) for applies in STATED.values())
    ]
    assert not unexplained, "\n".join(unexplained)


def first_difference(seed: int, *libraries: Any) -> Difference | None:
    """Run a program in both libraries until they differ."""
    theirs, ours = map(Machine, libraries)
    for step in Maker(seed).program():
        value = ours.value({"gather": step[1], "run": step[-2]}.get(step[0], 0))
        outcomes = theirs.carry_out(step), ours.carry_out(step)
        if all("error" in outcome for outcome in outcomes):
            if theirs.state() != ours.state():  # it has changed something there; see FAILED
                return None
        elif outcomes[0] != outcomes[1]:
            return Difference(step, *outcomes, ours, value)
    return None


@pytest.mark.parametrize("sentence", [FAILED, *STATED])
def test_the_page_states_it(sentence):
    page = " ".join(_PAGE.read_text().split())
    assert sentence in page.partition("## What differs")[2].partition("## Rewriting")[0]
