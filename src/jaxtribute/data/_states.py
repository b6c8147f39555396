"""What states tell of, and refusing those that were saved from something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, JaxtributeError
from ._background import Resumable, State

if TYPE_CHECKING:
    from ._ops import Op

FUNCTION = "FUNCTION"  # the sharding of datasets that a function makes for each worker

# Reads on, in one piece, what workers divided between them: set where datasets are divided.
_open_divided: list[Callable[[Op, State], Resumable[tuple[int, Any]]]] = []


def check_is_state(state: Any) -> None:
    """Refuse what is no state.

    Raises:
      InvalidArgumentError: when it is none.
    """
    if not isinstance(state, dict) or not {"dataset", "pass", "seeds"} <= state.keys():
        raise InvalidArgumentError(f"Expected a state, as get_state returns it, got {state!r}.")


def check_is_of(state: dict[str, Any], fingerprint: str) -> None:
    """Refuse the state of another dataset.

    Raises:
      InvalidArgumentError: when it is one.
    """
    if _deciding(state["dataset"]) != _deciding(fingerprint):
        raise InvalidArgumentError(
            f"The state was saved from a dataset of {state['dataset']}, and this one is of "
            f"{fingerprint}. Restore it into an iterator of the same dataset."
        )


def refuse_of_function(state: dict[str, Any]) -> None:
    """Refuse the state of datasets that a function made, of which it alone knows which they are.

    Raises:
      InvalidArgumentError: when it is one.
    """
    if state.get("sharding") == FUNCTION:
        raise InvalidArgumentError(
            "The state was saved from datasets that a function made for each worker (FUNCTION). "
            "Restore it into an iterator of distribute_datasets_from_function with that function."
        )


def _deciding(fingerprint: str) -> str:
    """Return a fingerprint without what comes last and changes neither elements nor states."""
    return re.sub(r"^((Prefetch\([^)]*\)|WithOptions\(\)) <- )*", "", fingerprint)


def whole_position(state: State) -> State | None:
    """Return where in the batches of the whole dataset a state is, or None if it is in no such.

    The state of a plain iterator is, and that of a distributed one of which all workers go through
    the same batches, or whose only replica gets them as they are.

    Returns:
      The state of a stream, None at the start, and the number of batches before it.
    """
    if "stream" in state:
        return {"stream": state["stream"], "steps": state.get("steps", 0)}
    is_undivided = state["sharding"] != FUNCTION and state["workers"] * state["replicas"] == 1
    if state["sharding"] != "DATA" and not is_undivided:
        return None
    pipeline = state["pipeline"]
    if state["relaid"] and pipeline is not None:
        (pipeline,) = pipeline["earlier"]
    return {"stream": pipeline and pipeline["batches"], "steps": state["steps"]}


def divided_as(state: State) -> State:
    """Return what a state says of the workers whose steps are read on."""
    kept = {name: state[name] for name in ("sharding", "workers", "worker", "replicas")}
    return {**kept, "relaid": True}


def opens_divided(
    open_divided: Callable[[Op, State], Resumable[tuple[int, Any]]],
) -> Callable[[Op, State], Resumable[tuple[int, Any]]]:
    """Let a function read on, in one piece, what workers divided between them."""
    _open_divided.append(open_divided)
    return open_divided


def open_divided(op: Op, state: State) -> Resumable[tuple[int, Any]]:
    """Read on, in one piece, what workers divided between them.

    Raises:
      InvalidArgumentError: when the dataset alone does not tell how they did.
    """
    (opens,) = _open_divided
    return opens(op, state)


@contextmanager
def refusing_other_states() -> Generator[None]:
    """Say so when the parts of a state do not fit."""
    try:
        yield
    except JaxtributeError:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(
            f"The state does not fit the dataset ({type(error).__name__}: {error}). Restore it "
            "into an iterator of the dataset it was saved from."
        ) from error
