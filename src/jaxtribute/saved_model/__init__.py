"""Models as programs and weights on disk, for serving, for other programs, and for more training.

A saved model needs neither the classes it was made with nor a cluster. Its programs are those of
`jax.export`, so a process that has only JAX can run them; see `docs/guides/saved-models.md`.
"""

from ._load import load
from ._loaded import LoadedFunction, LoadedModule
from ._options import SaveOptions
from ._save import save
from ._signatures import Signature

__all__ = ["LoadedFunction", "LoadedModule", "SaveOptions", "Signature", "load", "save"]
