"""Names of tasks, remembered: a page that is looked at every few seconds must not ask the workers each time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from celery_limits.app.task_names import names_of
from celery_limits.store import Store
from celery_limits.store.status import Party

__all__ = ["Names"]

ASK_SECONDS = 0.5
ASK_AGAIN = 20.0
MOST = 20_000


class Names:
    def __init__(self, app: Any, store: Store) -> None:
        self._app, self._store = app, store
        self._known: dict[str, str] = {}
        self._asked: dict[str, float] = {}

    def of(self, parties: Iterable[Party]) -> dict[str, str]:
        """By ticket. A worker that did not name a ticket is asked about it again only after a while."""
        parties, now = list(parties), time.monotonic()
        new = [p for p in parties if p.ticket not in self._known and now - self._asked.get(p.ticket, -1e9) > ASK_AGAIN]
        if new:
            if len(self._known) + len(self._asked) > MOST:
                self._known.clear()
                self._asked.clear()
            self._known.update(names_of(self._app, self._store, new, ASK_SECONDS))
            self._asked.update((party.ticket, now) for party in new if party.ticket not in self._known)
        return {party.ticket: self._known[party.ticket] for party in parties if party.ticket in self._known}
