"""Variables on parameter servers, and the way to them."""

from ._coordinator import CoordinatorSession
from ._per_worker import PerWorkerVariable
from ._session import Session
from ._variable import RemoteVariable

__all__ = ["CoordinatorSession", "PerWorkerVariable", "RemoteVariable", "Session"]
