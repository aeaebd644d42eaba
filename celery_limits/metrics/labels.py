"""The name of a limit, for labels: its key as it is declared, "tenant:{tenant_id}", not as it is resolved. So there are
as many names as declarations, however many tenants."""

from __future__ import annotations

from typing import Any

from celery_limits.app.handle import Limits
from celery_limits.declare.template import name_of

__all__ = ["OTHER", "LimitNames"]

OTHER = "(other)"
"""Limits that one call was given, and keys beyond the bound."""

_KNOWN = 4096


class LimitNames:
    """The names of one app's limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._catalogue: Any = None
        self._known: dict[tuple[str, str], str] = {}

    def name(self, task: str, key: str) -> str:
        found = self._known.get((task, key))
        if found is None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            found = self._known[task, key] = self._find(task, key)
        return found

    def _find(self, task: str, key: str) -> str:
        if self._catalogue is None:
            self._catalogue = self._limits.catalogue()
        limit = self._catalogue.limit_of(key)
        if limit is not None:
            return str(limit.key)
        return self._by_function(task) or OTHER

    def _by_function(self, task: str) -> str | None:
        """A function makes any key; a task that has exactly one of them leaves no doubt."""
        declared = getattr(self._limits.app.tasks.get(task), "limits", None) or ()
        functions = {name_of(limit.key) for limit in declared if callable(limit.key)}
        return f"<{functions.pop()}>" if len(functions) == 1 else None
