"""Which modules are sent to workers, rather than imported there.

A function is sent whole if it is defined in the main script, or in a module that lies in the main
script's directory or below it and is no installed package. Functions of all other modules are sent
as names, so workers must be able to import these.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import cloudpickle

__all__ = ["missing_module", "sending_modules"]

_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages"})


class _SentModules:
    """The modules imported so far that are sent."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._known = 0
        self._modules: list[ModuleType] = []
        standard = sysconfig.get_paths()
        self._standard = [Path(standard[name]).resolve() for name in ("stdlib", "platstdlib")]

    def all(self) -> list[ModuleType]:
        if self._known != len(sys.modules):  # looking at each takes a while
            modules = dict(sys.modules)
            folder = _main_folder()
            self._modules = [m for name, m in modules.items() if self._is_sent(name, m, folder)]
            self._known = len(modules)
        return self._modules

    def _is_sent(self, name: str, module: ModuleType, folder: Path) -> bool:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name in ("__main__", "__mp_main__"):
            return False  # cloudpickle sends the main script by itself
        if name.partition(".")[0] == "jaxtribute":
            return False
        path = Path(file).resolve()
        return (
            path.is_relative_to(folder)
            and not _INSTALLED_FOLDERS.intersection(path.parts)
            and not any(path.is_relative_to(standard) for standard in self._standard)
        )


def _main_folder() -> Path:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve().parent if isinstance(file, str) else Path.cwd()


_sent = _SentModules()


@contextmanager
def sending_modules() -> Generator[None]:
    """Have cloudpickle send what is defined in modules beside the main script."""
    with _sent.lock:
        registered: list[ModuleType] = []
        try:
            for module in _sent.all():
                if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                    cloudpickle.register_pickle_by_value(module)
                    registered.append(module)
            yield
        finally:  # as others use cloudpickle too
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


def missing_module(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return an error that says what to do about a module that a worker lacks."""
    return ModuleNotFoundError(
        f"A scheduled function, or one of its arguments, needs the module {error.name!r}, which "
        "this worker cannot import. Install it on the workers, or start them where it is found. "
        "Only functions defined in the coordinator's main script, and in modules in or below the "
        "directory of that script, are sent whole.",
        name=error.name,
        path=error.path,
    )
