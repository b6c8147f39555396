"""Refusing states that were saved from something else."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ..errors import InvalidArgumentError, JaxtributeError


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
    if state["dataset"] != fingerprint:
        raise InvalidArgumentError(
            f"The state was saved from a dataset of {state['dataset']}, and this one is of "
            f"{fingerprint}. Restore it into an iterator of the same dataset."
        )


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
