"""Datasets whose elements can be fetched by position, many at once.

Everything that starts from arrays in memory stays here as long as positions can be computed:
shuffling, repeating and cutting work on positions, and a batch is one indexing of the arrays.
"""

# These register how each operation is found.
from . import _elementwise as _elementwise
from . import _selection as _selection
from . import _sources as _sources
from ._base import Table, table
from ._several import BatchTable

__all__ = ["BatchTable", "Table", "table"]
