"""What a worker adds to the housekeeping of its lease: its gate, and the refreshes of floating limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_limits.lease.housekeeping import Chore
from celery_limits.store.outcomes import Aftermath, Refresh

from .gate import Gate

__all__ = ["DeadlockChore", "GateChore"]


class DeadlockChore(Chore):
    """Sends an event for each ticket that gave up its slots."""

    def __init__(self, send: Callable[[str, str], None]) -> None:
        self._send = send

    def gave_way(self, ticket: str, key: str) -> None:
        self._send(ticket, key)


class GateChore(Chore):
    def __init__(self, gate: Gate, refresh: Callable[[Refresh], Any], end_bodies: Callable[[], Any]) -> None:
        self._gate, self._refresh, self._end_bodies = gate, refresh, end_bodies

    def store_answered(self) -> None:
        """Requests that were deferred while the store was away ask again."""
        self._gate.deferred.come_back()

    def follow_up(self, after: Aftermath) -> None:
        for refresh in after.refreshes:
            self._refresh(refresh)

    def lease_at_risk(self) -> None:
        self._end_bodies()
