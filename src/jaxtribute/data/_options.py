"""Options of a dataset: how it is divided between workers."""

from __future__ import annotations

import enum
from typing import Any

__all__ = ["AutoShardPolicy", "DistributeOptions", "Options"]


class AutoShardPolicy(enum.IntEnum):
    """How a dataset is divided between workers when it is distributed.

    >>> jt.data.AutoShardPolicy.DATA.name
    'DATA'

    Attributes:
      OFF: not at all; every worker reads everything.
      AUTO: FILE for a dataset that reads files, DATA for any other.
      FILE: each worker reads files of its own; there must be one for each worker at least.
      DATA: each worker takes its part of every global batch.
      HINT: where the dataset says `shard(jt.data.experimental.SHARD_HINT, ...)`.
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class DistributeOptions:
    """The part of `Options` that is about distribution.

    >>> options = jt.data.DistributeOptions()
    >>> options.auto_shard_policy.name
    'AUTO'

    Attributes:
      auto_shard_policy: an `AutoShardPolicy`.
      num_devices: accepted for compatibility; the strategy knows its devices.
    """

    __slots__ = ("_policy", "num_devices")

    def __init__(self) -> None:
        self._policy: AutoShardPolicy | None = None
        self.num_devices: int | None = None

    @property
    def auto_shard_policy(self) -> AutoShardPolicy:
        """The policy, AUTO unless another was chosen."""
        return AutoShardPolicy.AUTO if self._policy is None else self._policy

    @auto_shard_policy.setter
    def auto_shard_policy(self, policy: AutoShardPolicy) -> None:
        if not isinstance(policy, AutoShardPolicy):  # pyright: ignore[reportUnnecessaryIsInstance]
            names = ", ".join(p.name for p in AutoShardPolicy)
            raise TypeError(
                f"auto_shard_policy must be a jt.data.AutoShardPolicy ({names}), got {policy!r}."
            )
        self._policy = policy

    def merge(self, other: DistributeOptions) -> DistributeOptions:
        """Return these options, where `other` does not say something else."""
        merged = DistributeOptions()
        merged._policy = self._policy if other._policy is None else other._policy
        merged.num_devices = self.num_devices if other.num_devices is None else other.num_devices
        return merged

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DistributeOptions) and (
            (self._policy, self.num_devices) == (other._policy, other.num_devices)
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"DistributeOptions(auto_shard_policy={self.auto_shard_policy.name})"


_NO_OPTION = (
    "jt.data.Options has no option {!r}, only experimental_distribute: pipelines are deterministic "
    "and need no tuning."
)


class Options:
    """Options for `Dataset.with_options`.

    >>> options = jt.data.Options()
    >>> options.experimental_distribute.auto_shard_policy = jt.data.AutoShardPolicy.OFF
    >>> dataset = jt.data.Dataset.range(4).with_options(options)
    >>> dataset.options().experimental_distribute
    DistributeOptions(auto_shard_policy=OFF)

    Attributes:
      experimental_distribute: a `DistributeOptions`.
    """

    __slots__ = ("experimental_distribute",)

    def __init__(self) -> None:
        self.experimental_distribute = DistributeOptions()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_NO_OPTION.format(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "experimental_distribute":
            raise AttributeError(_NO_OPTION.format(name))
        if not isinstance(value, DistributeOptions):
            raise TypeError(
                f"experimental_distribute must be a jt.data.DistributeOptions, got {value!r}."
            )
        object.__setattr__(self, name, value)

    def merge(self, other: Options) -> Options:
        """Return these options, where `other` does not say something else."""
        merged = Options()
        merged.experimental_distribute = self.experimental_distribute.merge(
            other.experimental_distribute
        )
        return merged

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and (
            self.experimental_distribute == other.experimental_distribute
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"Options(experimental_distribute={self.experimental_distribute!r})"
