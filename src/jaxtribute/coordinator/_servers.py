"""What the coordinator knows of the parameter servers, and what follows from it.

Pure: it is told what happened and when, and answers whether closures may be given out, whether
everything has to stop, and which server has to be restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import PSUnavailableError
from ._failures import Decision, Limits, ServerRestarted, decide

__all__ = ["Servers"]

_SUSPICION_SECONDS = 2.0


@dataclass
class _Server:
    address: str
    incarnation: str = ""
    is_up: bool = False
    since: float = 0.0
    why: str = "it has not been reached yet"
    restoring: bool = False
    suspected_until: float = 0.0
    lost: str = ""  # why it is not waited for any longer


class Servers:
    """The parameter servers of one coordinator.

    Args:
      addresses: where each listens.
      patience: how many seconds one may be away.
      can_restore: whether one that has lost its variables can be given them again.
      limits: how often failures are overlooked.
    """

    def __init__(
        self, addresses: Mapping[str, str], patience: float, can_restore: bool, limits: Limits
    ) -> None:
        self._servers = {task: _Server(address) for task, address in addresses.items()}
        self._patience = patience
        self.can_restore = can_restore
        self._limits = limits

    def __contains__(self, task: str) -> bool:
        return task in self._servers

    def are_well(self, now: float) -> bool:
        """Tell whether closures that use variables can run."""
        return all(
            s.is_up and not s.restoring and not s.lost and now >= s.suspected_until
            for s in self._servers.values()
        )

    @property
    def error(self) -> PSUnavailableError | None:
        """Why nothing can go on, if that is so."""
        for task, server in self._servers.items():
            if server.lost:
                return PSUnavailableError(task, server.lost)
        return None

    def begin(self, now: float) -> None:
        """Note that they are expected from now on."""
        for server in self._servers.values():
            server.since = now

    def up(self, task: str, incarnation: str, now: float) -> Decision | None:
        """Note that a server is connected; a decision if it is not the one that it was."""
        server = self._servers[task]
        restarted = server.incarnation not in ("", incarnation)
        server.incarnation = incarnation
        server.is_up, server.since = True, now
        if not restarted:
            if not server.restoring:
                server.lost = ""  # it was only away
            return None
        decision = decide(ServerRestarted(self.can_restore), self._limits)
        if decision is Decision.WAIT_AND_RESTORE:
            server.restoring, server.lost = True, ""
        else:
            server.lost = "it was restarted, and has lost its variables"
        return decision

    def down(self, task: str, why: str, now: float) -> None:
        """Note that a server is no longer connected."""
        server = self._servers[task]
        server.is_up, server.since, server.why = False, now, why

    def suspect(self, task: str, now: float) -> None:
        """Note that a worker could not reach a server; if it is gone, that is soon known."""
        if task in self._servers:
            self._servers[task].suspected_until = now + _SUSPICION_SECONDS

    def restored(self, task: str, error: str = "") -> None:
        """Note that a server has its variables again, or why it has not."""
        server = self._servers[task]
        server.restoring, server.lost = False, error

    def tick(self, now: float) -> bool:
        """Tell whether a server has just been away for too long."""
        found = False
        for server in self._servers.values():
            if not server.is_up and not server.lost and now - server.since > self._patience:
                server.lost = f"it has been away for {now - server.since:.0f} s: {server.why}"
                found = True
        return found

    def describe(self, now: float) -> list[str]:
        """Return in words how each is that is not well."""
        return [
            f"{task} not connected for {now - server.since:.0f} s ({server.why})"
            if not server.is_up
            else f"{task} being restored"
            for task, server in self._servers.items()
            if not server.is_up or server.restoring
        ]

    def addresses(self) -> dict[str, tuple[str, bool]]:
        """Return where each server is, and whether it is up."""
        return {task: (s.address, s.is_up) for task, s in self._servers.items()}
