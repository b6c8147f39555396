"""How a model is saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidArgumentError

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


@dataclass(frozen=True)
class SaveOptions:
    """How `jt.saved_model.save` saves a model.

    >>> jt.saved_model.SaveOptions(platforms=["cpu", "tpu"]).platforms
    ('cpu', 'tpu')

    Args:
      platforms: where the programs are to run: some of "cpu", "cuda", "rocm" and "tpu". None of
        them needs to be there when the model is saved. A function that uses something that one
        of them lacks can be saved for the others.

    Raises:
      ValueError: for no platform, or an unknown one.
    """

    platforms: Sequence[str] = PLATFORMS

    def __post_init__(self) -> None:
        given = (self.platforms,) if isinstance(self.platforms, str) else tuple(self.platforms)
        unknown = [platform for platform in given if platform not in PLATFORMS]
        if not given or unknown:
            raise InvalidArgumentError(
                f"A model is saved for some of the platforms {', '.join(map(repr, PLATFORMS))}, "
                f"got {given!r}."
            )
        object.__setattr__(self, "platforms", given)
