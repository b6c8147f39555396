"""What programs for sessions keep their settings in."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ConfigProto", "ExperimentalConfig"]


@dataclass
class ExperimentalConfig:
    """The `experimental` part of a `ConfigProto`.

    >>> jt.compat.v1.ConfigProto().experimental.collective_group_leader
    ''

    Args:
      collective_group_leader: the task that the workers of a strategy agree through, such as
        `/job:worker/replica:0/task:0`; filled in by `update_config_proto`.
    """

    collective_group_leader: str = ""


@dataclass
class ConfigProto:
    """Settings of a session, which JAX has none of: a record that strategies fill in.

    `Strategy.update_config_proto` writes into a copy what the strategy does in any case. Nothing
    here changes how a program runs; it is for programs that read or log it.

    >>> strategy = jt.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> config = jt.compat.v1.ConfigProto(intra_op_parallelism_threads=2)
    >>> strategy.update_config_proto(config).isolate_session_state
    True
    >>> config.isolate_session_state
    False

    Args:
      intra_op_parallelism_threads: kept as it is. How many threads compute on CPU devices is taken
        from the environment variable `PJRT_NPROC` when JAX starts.
      inter_op_parallelism_threads: kept as it is; XLA has one pool of threads for both.
      device_filters: the tasks on whose devices this one computes or keeps variables, such as
        `/job:worker/task:1`; filled in by strategies for several tasks.
      isolate_session_state: whether variables belong to this process alone; filled in.
      experimental: further settings.
    """

    intra_op_parallelism_threads: int = 0
    inter_op_parallelism_threads: int = 0
    device_filters: list[str] = field(default_factory=list[str])
    isolate_session_state: bool = False
    experimental: ExperimentalConfig = field(default_factory=ExperimentalConfig)
