"""Names of older versions of the reference, for programs that still use them.

Everything here stands on the rest of the library, which knows nothing of it.
"""

from . import v1

__all__ = ["v1"]
