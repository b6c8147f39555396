"""Everything that can be distributed, as a dataset of ours.

None of the packages whose objects are recognised here is imported: an object of a package exists
only when somebody else has imported it.
"""

from ._recognise import Distributed, as_op

__all__ = ["Distributed", "as_op"]
