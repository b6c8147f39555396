"""Workers that train together: meeting, agreeing, noticing who is lost."""

from ._joined import joined_world
from ._world import World

__all__ = ["World", "joined_world"]
