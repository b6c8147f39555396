"""Workers that train together: meeting, agreeing, noticing who is lost."""

from ._joined import current_world, joined_world
from ._world import World

__all__ = ["World", "current_world", "joined_world"]
