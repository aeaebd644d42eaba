"""What `top` shows and what its keys do, without a terminal: state in, state out. `paint` draws it, `top` runs it.

Two views: all keys, and one key with those who hold it and wait for it. What fails is said on the board, and the board
goes on: it is looked at when things fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from celery.exceptions import ImproperlyConfigured

from celery_limits.app.handle import Limits
from celery_limits.app.task_names import named
from celery_limits.errors import LimitError
from celery_limits.store.changes import Author
from celery_limits.store.status import Group, Party, Status

from .base import Failure
from .reading import ORDERS
from .steering import size_of

__all__ = ["Board", "Question"]

ASK_SECONDS = 0.5
"""How long the board may stand still for workers to name what they run."""
PAGE = 10
NAMED = 100


def _author() -> Author:
    return Author(via="top")


@dataclass
class Question:
    """Something that is to be answered before it is done. With `yes_or_no` one key is the answer."""

    text: str
    act: Callable[[str], str]
    answer: str = ""
    yes_or_no: bool = False


class Board:
    """`look` reads the store; `press` takes a key and says whether to go on."""

    def __init__(
        self, limits: Limits, pattern: str = "*", order: str = "waiting", explain: Any = str, *, by_group: bool = False
    ) -> None:
        self.limits, self.pattern, self.order = limits, pattern, order
        self.by_group = by_group
        """Whether a key is shown by its groups, instead of by the tasks that hold it and wait for it."""
        self.statuses: list[Status] = []
        self.opened: Status | None = None
        self.question: Question | None = None
        self.said = ""
        self.trouble = ""
        self.place = 0
        self.helping = False
        self._explain = explain
        self._chosen: str | None = None
        self._unnamed: set[str] = set()
        self._before: dict[str, Status] = {}  # what each key was when it was resized here

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
        found = [status for status in self.limits.overview(NAMED) if fnmatchcase(status.key, self.pattern)]
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
            self.place = max(0, min(self.place, len(self.rows) - 1))
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
    def rows(self) -> Sequence[Party] | Sequence[Group]:
        """What is listed of the key that is open."""
        if self.opened is not None and self.by_group:
            return self.opened.groups
        return self.parties

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
        if self.helping and key in ("q", "escape", "?"):
            self.helping = False
            return True
        if key == "q":
            return False
        action = _ACTIONS.get(key)
        if action is not None:
            action(self)
        elif key in _MOVES:
            self._move(_MOVES[key])
        return True

    def _move(self, by: int) -> None:
        count = len(self.statuses) if self.opened is None else len(self.rows)
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

    def switch(self) -> None:
        """Between the groups of a key and its tasks."""
        if (status := self.chosen) is None:
            return
        if not status.groups:
            self.by_group = False
            self.said = f"{status.key}: no groups; its tasks declare no fair_by"
            return
        self.by_group = self.opened is None or not self.by_group
        self.place = 0 if self.opened is not None else self.place
        self.open()

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
            self._do(partial(self.limits.resume, status.key, author=_author()), f"{status.key}: resumed")
        else:
            self._do(
                partial(self.limits.pause, status.key, author=_author()),
                f"{status.key}: paused; press p again to resume it",
            )

    def resize(self) -> None:
        if (status := self.chosen) is not None:
            text = f"new size of {status.key} (now {status.limit if status.limit is not None else 'as declared'}): "
            self.question = Question(text, lambda answer: self._resize(status, answer.strip()))

    def _resize(self, status: Status, answer: str) -> str:
        size = size_of(status.key, status.kind, answer)
        before = self.limits.store.status(status.key, 0)
        self.limits.resize(status.key, size, status.burst or 1, author=_author())
        self._before[status.key] = before
        return f"{status.key}: {size}; press u to undo it"

    def undo(self) -> None:
        """Gives the chosen key the size back that it had before it was resized here."""
        if (status := self.chosen) is None:
            return
        before = self._before.pop(status.key, None)
        if before is None:
            self.said = f"{status.key}: nothing to undo; it was not resized here"
        else:
            self._do(partial(self._restore, before))

    def _restore(self, before: Status) -> str:
        if before.size is None and before.rate is None:
            self.limits.reset(before.key, author=_author())
            return f"{before.key}: as declared"
        size = before.limit if before.size is None else before.size
        assert size is not None
        self.limits.resize(before.key, size, before.burst or 1, author=_author())
        return f"{before.key}: {size} again"

    def cancel(self) -> None:
        if self.opened is None or self.by_group:
            self.by_group = False
            self.open()
            self._settle()
            self.said = "choose a task, then press c"
            return
        if self.parties:
            party = self.parties[self.place]
            text = f"cancel {party.task or 'task'}[{party.task_id}]? y/n "
            self.question = Question(text, lambda _: self._cancel(party.task_id), yes_or_no=True)

    def _cancel(self, task_id: str) -> str:
        outcome = self.limits.cancel(task_id, author=_author())
        return f"{task_id}: cancelled" if outcome.ended else f"{task_id}: already running, and not stopped"

    def run(self) -> None:
        """The chosen waiter passes its limits, once that was confirmed."""
        if self.opened is None:
            self.open()
            self.said = "choose which waiter, then press x"
            return
        if self.parties:
            party = self.parties[self.place]
            text = f"let {party.task or 'task'}[{party.task_id}] pass its limits although there is no room? y/n "
            self.question = Question(text, lambda _: self._run(party.task_id), yes_or_no=True)

    def _run(self, task_id: str) -> str:
        forced = self.limits.run(task_id, author=_author())
        return f"{task_id}: let through past {', '.join(forced.keys)}" if forced.let else f"{task_id}: does not wait"

    def help(self) -> None:
        self.helping = not self.helping


_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -PAGE, "page down": PAGE, "home": -(10**9), "end": 10**9}
_ACTIONS: dict[str, Callable[[Board], None]] = {
    "enter": Board.open,
    "escape": Board.back,
    "g": Board.switch,
    "s": Board.sort,
    "p": Board.pause,
    "r": Board.resize,
    "u": Board.undo,
    "c": Board.cancel,
    "x": Board.run,
    "?": Board.help,
}
