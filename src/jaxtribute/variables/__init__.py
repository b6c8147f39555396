"""Variables and the copies strategies make of them."""

from ._base import Variable
from ._mirrored import MirroredVariable
from ._sync_on_read import SyncOnReadVariable

__all__ = ["MirroredVariable", "SyncOnReadVariable", "Variable"]
