"""What a worker believes to hold, against what the store says: no I/O, and safe between threads."""

from __future__ import annotations

import itertools
import threading

__all__ = ["LOOKS", "Ledger"]

PENDING = -1
"""In place of a fence, while the store is being asked."""

LOOKS = 6
"""At what the store believes to run here: those of two leases."""


class Ledger:
    """The tickets that this worker believes to hold, ticket -> fence."""

    def __init__(self) -> None:
        self._fences: dict[str, int] = {}
        self._asking: dict[str, set[int]] = {}
        self._ran: dict[str, int] = {}  # and has ended, though the store may not have heard of that
        self._back: dict[str, int] = {}
        self._done: dict[str, tuple[int, frozenset[int]]] = {}
        self._offers: set[int] = set()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def ask(self, ticket: str, delivery: int) -> bool:
        """The store is to be asked about this delivery, which may hold the ticket's slots from now on. Whether that is
        the first time."""
        with self._lock:
            self._fences.setdefault(ticket, PENDING)
            asking = self._asking.setdefault(ticket, set())
            first = delivery not in asking
            asking.add(delivery)
            return first

    def ask_no_more(self, ticket: str, delivery: int, *, back: bool = True) -> None:
        """It is not to run. Should the store say that this worker runs the ticket all the same, that means a delivery
        whose answer was lost: nobody ran that, so it goes back. Another one of the ticket may still be asked about."""
        with self._lock:
            if self._remove(ticket, delivery) and self._fences.get(ticket) == PENDING:
                del self._fences[ticket]
                if back:
                    self._back[ticket] = LOOKS
                else:
                    self._back.pop(ticket, None)

    def withdraw(self, ticket: str, delivery: int) -> None:
        """The store was not asked about it after all. So what is known of other deliveries of the ticket holds on: one
        whose answer was lost may still have to go back."""
        with self._lock:
            if self._remove(ticket, delivery) and self._fences.get(ticket) == PENDING:
                del self._fences[ticket]

    def _remove(self, ticket: str, delivery: int) -> bool:
        """Takes it out; whether it was the last of its ticket."""
        asking = self._asking.get(ticket, set())
        asking.discard(delivery)
        if not asking:
            self._asking.pop(ticket, None)
        return not asking

    def offer(self) -> int:
        """A release is sent that may bring a ticket along, admitted. Its number, for `offer_answered`."""
        with self._lock:
            number = next(self._numbers)
            self._offers.add(number)
            return number

    def offer_answered(self, number: int) -> None:
        """What it brought is entered, or there will be no answer."""
        with self._lock:
            self._offers.discard(number)

    def enter(self, ticket: str, fence: int, delivery: int = 0) -> None:
        """It runs; `delivery`: as whoever was asked about."""
        with self._lock:
            self._remove(ticket, delivery)
            self._fences[ticket] = fence
            self._back.pop(ticket, None)

    def close(self, ticket: str, fence: int, *, back: bool = False) -> None:
        """It has run, or is not to; `back`: its message goes back, so if the store was not told or still gets a call of
        before, nobody here has run what that says. Another delivery of the ticket may have been admitted since, and
        runs on."""
        with self._lock:
            if self._fences.get(ticket, fence) not in (fence, PENDING):
                return
            self._fences.pop(ticket, None)
            if ticket in self._asking:
                self._fences[ticket] = PENDING
            if back:
                self._ran.pop(ticket, None)
                self._back[ticket] = LOOKS
            else:
                self._ran[ticket] = fence

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._fences

    def __len__(self) -> int:
        return len(self._fences)

    @property
    def in_doubt(self) -> bool:
        """Whether the last look found something that needs a second one."""
        return bool(self._done)

    def forgotten(self, held: dict[str, int]) -> list[tuple[str, int, bool]]:
        """Of what the store says this worker runs, what the worker is done with; and whether it goes back.

        Only what it was done with at the last look too: two deliveries of one ticket may be asked about at once, and
        the one that is answered first closes what the other is about to begin. And only when every release has been
        answered that was under way when it was first seen, since one of them may bring it along. What goes back is
        remembered for some looks more: `held` may be older than the admission, or the request for it still be under
        way.
        """
        with self._lock:
            self._back = {t: LOOKS if t in held else left - 1 for t, left in self._back.items() if left or t in held}
            self._ran = {t: fence for t, fence in self._ran.items() if t in held or t in self._asking}
            before, self._done = self._done, {}
            again = []
            for ticket, fence in held.items():
                if ticket in self._fences:
                    continue
                seen, offers = before.get(ticket, (0, frozenset()))
                under_way = (offers if seen == fence else frozenset(self._offers)) & self._offers
                self._done[ticket] = fence, under_way
                if seen == fence and not under_way:
                    again.append((ticket, fence, ticket in self._back and self._ran.get(ticket) != fence))
            return again
