"""Several verbs in one exchange. Each of them is a script of its own, as ever: between two, others may come."""

from __future__ import annotations

from typing import Any

from . import outcomes
from .errors import StoreError
from .script_runner import Arg
from .scripts import Script
from .store import Store

__all__ = ["Batch"]


class Batch(Store):
    """Stands in for a store: a verb that is called here is noted, and answered with all others by `exchange`."""

    def __init__(self, store: Store) -> None:
        self.__dict__.update(store.__dict__)
        self._noted: list[tuple[Script, tuple[Arg, ...]]] = []

    def _run(self, verb: str, *args: Arg) -> Any:
        now: Arg = self._clock() if self._clock else ""
        self._noted.append((self._scripts(verb), (now, *args)))

    def exchange(self) -> list[Any]:
        """All of it in one exchange, carried out one after the other: for each its outcome, or its `StoreError`."""
        replies = self._call.together(self._noted)
        return [reply if isinstance(reply, StoreError) else outcomes.decode(reply) for reply in replies]
