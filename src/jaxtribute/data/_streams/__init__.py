"""Datasets read one element after the other, as iterators of Grain.

Each operation is an iterator over pairs of an element's id and the element. Its state says where
the next element is found, so a saved state is small and restoring it repeats little work.

The iterators are our own subclasses of Grain's: what Grain's built-in ones record about each
element takes longer than most functions people map.
"""

# These register how each operation is read.
from . import _elementwise as _elementwise
from . import _kept as _kept
from . import _selection as _selection
from . import _several as _several
from . import _sources as _sources
from . import _windows as _windows
from ._base import Item, State, Stream, stream

__all__ = ["Item", "State", "Stream", "stream"]
