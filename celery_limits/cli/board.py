"""What `top` shows and what its keys do, without a terminal: state in, state out. `paint` draws it, `top` runs it.

Two views: all keys, and one key with those who hold it and wait for it. What fails is said on the board, and the board
goes on: it is looked at when things fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from celery.exceptions import ImproperlyConfigured

from celery_limits.app import Limits
from celery_limits.errors import LimitError
from celery_limits.naming import named
from celery_limits.store.reads import Party, Status

from .base import Failure
from .reading import ORDERS
from .steering import size_of

__all__ = ["Board", "Question"]

ASK_SECONDS = 0.5
"""How long the board may stand still for workers to name what they run."""
PAGE = 10
NAMED = 100


@dataclass
class Question:
    """Something that is to be answered before it is done. With `yes_or_no` one key is the answer."""

    text: str
    act: Callable[[str], str]
    answer: str = ""
    yes_or_no: bool = False


class Board:
    """`look` reads the store; `press` takes a key and says whether to go on."""

    def __init__(self, limits: Limits, pattern: str = "*", order: str = "waiting", explain: Any = str) -> None:
        self.limits, self.pattern, self.order = limits, pattern, order
        self.statuses: list[Status] = []
        self.opened: Status | None = None
        self.question: Question | None = None
        self.said = ""
        self.trouble = ""
        self.place = 0
        self._explain = explain
        self._chosen: str | None = None
        self._unnamed: set[str] = set()

    # -- what is there ---------------------------------------------------------------------------------------

    def look(self) -> None:
        """Reads the store anew, or says why that can't be done now."""
        try:
            self.read()
        except (LimitError, ImproperlyConfigured) as error:
            self.trouble = self._explain(error)
        else:
            self.trouble = ""

    def read(self) -> None:
        """The choice stays with its key, wherever that has moved."""
        found = [status for status in self.limits.overview() if fnmatchcase(status.key, self.pattern)]
        if self.opened is not None:
            self.opened = self._read_one(self.opened.key)
        self.statuses = sorted(found, key=ORDERS[self.order])
        self._settle()

    def _read_one(self, key: str) -> Status:
        """With names. A worker that did not name a ticket once is not asked about it again."""
        limits = self.limits
        status = limits.catalogue().complete(limits.store.status(key, NAMED))
        new = {party.ticket for party in status.holders if party.worker} - self._unnamed
        told = named(limits.app, limits.store, status, ASK_SECONDS if new else 0)
        self._unnamed = {party.ticket for party in told.holders if party.worker and not party.task}
        return told

    def _settle(self) -> None:
        if self.opened is not None:
            self.place = max(0, min(self.place, len(self.parties) - 1))
            return
        keys = [status.key for status in self.statuses]
        if self._chosen in keys:
            self.place = keys.index(self._chosen)
        else:
            self.place = max(0, min(self.place, len(keys) - 1))
            self._chosen = keys[self.place] if keys else None

    @property
    def parties(self) -> list[Party]:
        """Of the key that is open: holders, then waiters in turn."""
        return [] if self.opened is None else [*self.opened.holders, *self.opened.waiters]

    @property
    def chosen(self) -> Status | None:
        """The key that the keys act on."""
        if self.opened is not None:
            return self.opened
        return self.statuses[self.place] if self.statuses else None

    # -- keys ------------------------------------------------------------------------------------------------

    def press(self, key: str) -> bool:
        if self.question is not None:
            self._answer(self.question, key)
            return True
        self.said = ""
        if key == "q":
            return False
        action = _ACTIONS.get(key)
        if action is not None:
            action(self)
        elif key in _MOVES:
            self._move(_MOVES[key])
        return True

    def _move(self, by: int) -> None:
        count = len(self.statuses) if self.opened is None else len(self.parties)
        self.place = max(0, min(self.place + by, count - 1))
        if self.opened is None and self.statuses:
            self._chosen = self.statuses[self.place].key

    def _answer(self, question: Question, key: str) -> None:
        if key == "escape" or (question.yes_or_no and key not in ("y", "Y")):
            self.question, self.said = None, "left as it was"
        elif question.yes_or_no or key == "enter":
            self.question = None
            self._do(lambda: question.act(question.answer))
        elif key == "backspace":
            question.answer = question.answer[:-1]
        elif len(key) == 1 and key.isprintable():
            question.answer += key

    def _do(self, act: Callable[[], str | None], done: str = "") -> None:
        """Does it, says what was done or why not, and looks again."""
        try:
            self.said = act() or done
        except Failure as error:
            self.said = error.message
        except (LimitError, ImproperlyConfigured, ValueError) as error:
            self.said = self._explain(error)
        self.look()

    # -- what keys do ----------------------------------------------------------------------------------------

    def open(self) -> None:
        if self.opened is None and self.statuses:
            self.opened, self.place = self.statuses[self.place], 0
            self.look()

    def back(self) -> None:
        self.opened = None
        self._settle()

    def sort(self) -> None:
        orders = list(ORDERS)
        self.order = orders[(orders.index(self.order) + 1) % len(orders)]
        self.said = f"sorted by {self.order}"
        self.statuses.sort(key=ORDERS[self.order])
        self._settle()

    def pause(self) -> None:
        if (status := self.chosen) is None:
            return
        if status.paused:
            self._do(partial(self.limits.resume, status.key), f"{status.key}: resumed")
        else:
            self._do(partial(self.limits.pause, status.key), f"{status.key}: paused; press p again to resume it")

    def resize(self) -> None:
        if (status := self.chosen) is not None:
            text = f"new size of {status.key} (now {status.limit if status.limit is not None else 'as declared'}): "
            self.question = Question(text, lambda answer: self._resize(status, answer.strip()))

    def _resize(self, status: Status, answer: str) -> str:
        size = size_of(status.key, status.kind, answer)
        self.limits.resize(status.key, size, status.burst or 1)
        return f"{status.key}: {size}; press u to undo it"

    def reset(self) -> None:
        if (status := self.chosen) is not None:
            self._do(partial(self.limits.reset, status.key), f"{status.key}: as declared")

    def cancel(self) -> None:
        if self.opened is None:
            self.open()
            self.said = "choose which, then press c"
            return
        if self.parties:
            party = self.parties[self.place]
            text = f"cancel {party.task or 'task'}[{party.task_id}]? y/n "
            self.question = Question(text, lambda _: self._cancel(party.task_id), yes_or_no=True)

    def _cancel(self, task_id: str) -> str:
        outcome = self.limits.cancel(task_id)
        return f"{task_id}: ended" if outcome.ended else f"{task_id}: runs already, and runs on"


_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -PAGE, "page down": PAGE, "home": -(10**9), "end": 10**9}
_ACTIONS: dict[str, Callable[[Board], None]] = {
    "enter": Board.open,
    "escape": Board.back,
    "s": Board.sort,
    "p": Board.pause,
    "r": Board.resize,
    "u": Board.reset,
    "c": Board.cancel,
}
