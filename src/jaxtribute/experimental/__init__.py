"""Names that the reference keeps under `experimental`."""

from .._options import ValueContext

__all__ = ["ValueContext"]
