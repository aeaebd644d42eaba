"""Freeing a place of the prefork pool without recursion."""

from __future__ import annotations

import threading

from .port import WorkerLike

__all__ = ["Places"]


class Places:
    """The places of a worker's pool, for requests that have taken one and do not run."""

    def __init__(self, worker: WorkerLike) -> None:
        self._worker = worker
        self._leaving = threading.local()

    def free(self) -> None:
        """Frees one. That may call the gate for the next request: only the outermost call loops. Pools that queue by
        themselves have none to free."""
        if not self._worker.forked:
            return
        local = self._leaving
        local.places = getattr(local, "places", 0) + 1
        if getattr(local, "busy", False):
            return
        local.busy = True
        try:
            while local.places:
                local.places -= 1
                self._worker.free_place()
        finally:
            local.busy = False
