"""The acknowledgements of one channel, from when they are asked for until Redis has them.

They are noted in any thread and told in batches: with a fetch, with a release, or by themselves. What is being told and
was not answered yet is told again when the channel is closed, since that does no harm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from .queue_scripts import MOST

__all__ = ["Acks"]


class Acks:
    def __init__(self) -> None:
        self._due: deque[str] = deque()
        self._fetched_with: list[str] = []
        self._done: set[str] = set()
        self._admitted: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._due)

    @property
    def known(self) -> set[str]:
        """What is not to be given back, though it is under way no more."""
        return {*self._due, *self._fetched_with}

    def add(self, fields: Iterable[str]) -> None:
        self._due.extend(fields)

    def is_done(self, field: str) -> bool:
        """Whether there is nothing to tell: it has no number (a broadcast), or a script did it when it was parked."""
        done = "." not in field or field in self._done
        self._done.discard(field)
        return done

    def was_done(self, field: str) -> None:
        self._done.add(field)

    def was_admitted(self, field: str) -> None:
        """Of one that was granted, the scripts need not look what became of it."""
        if field[0] == "g":
            self._admitted.add(field)

    # -- telling ------------------------------------------------------------------------------------------------------

    def take(self) -> list[str]:
        """Up to a batch of what is due, for whoever tells Redis."""
        fields: list[str] = []
        with suppress(IndexError):  # other threads may take them too
            while len(fields) < MOST:
                fields.append(self._due.popleft())
        return fields

    def as_told(self, fields: Iterable[str]) -> list[str]:
        """As the scripts take them: of a granted ticket that was not admitted, they look what became of it."""
        return [f"?{field}" if field[0] == "g" and field not in self._admitted else field for field in fields]

    def were_told(self, fields: Iterable[str]) -> None:
        """Redis knows, or is owed it."""
        self._admitted.difference_update(fields)

    def take_for_fetch(self) -> list[str]:
        self._fetched_with += self.take()
        return self.as_told(self._fetched_with)

    def fetch_answered(self) -> None:
        self.were_told(self._fetched_with)
        self._fetched_with.clear()

    def fetch_gone(self) -> None:
        """There will be no answer."""
        self._due.extend(self._fetched_with)
        self._fetched_with.clear()
