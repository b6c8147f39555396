"""Workers that train together: meeting, agreeing, noticing who is lost."""

from ._world import World, joined_world

__all__ = ["World", "joined_world"]
