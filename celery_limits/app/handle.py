"""`Limits(app)`: the handle on an app's limits, for programs; and what an app's processes share of them.

Making one, or importing the package, is enough to be active; see `install` for how. The store is connected when it is
first used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from celery.utils.functional import maybe_list

from celery_limits.declare.chain import Declared
from celery_limits.declare.deadlock import check_chains
from celery_limits.declare.limits import MAX_SIZE, parse_rate, whole
from celery_limits.declare.template import check_key
from celery_limits.dispatch.outbox import Outbox
from celery_limits.dispatch.release import Releaser
from celery_limits.dispatch.report_end import report_all
from celery_limits.errors import LimitError, Refused, shorten
from celery_limits.message.envelope import unpack
from celery_limits.message.header import MAX_TASK_ID_BYTES, can_be_limited, task_id_of, ticket_in
from celery_limits.printable import printable
from celery_limits.secret import masked
from celery_limits.store import Store
from celery_limits.store.aside import set_aside_findings
from celery_limits.store.audit import Finding, audit
from celery_limits.store.changes import Author, Change, read_changes
from celery_limits.store.lookups import has_worker
from celery_limits.store.outcomes import Cancelled, Forced
from celery_limits.store.status import Explanation, Status
from celery_limits.store.unreported import unreported_findings

from .declared import Catalogue
from .settings import Settings
from .stamp import declared_of
from .store_url import broker_url, is_broker, store_client, store_url

__all__ = ["Limits"]

logger = logging.getLogger(__name__)

LEFT_TO_WORKERS = 0.2
"""Seconds after which a worker may report an end. This process does not claim it when it works off the outbox now."""

_NOT_BEGUN = frozenset({"waiting", "granted", "away", "delayed"})
_ATTRIBUTE = "_celery_limits_handle"
"""Where an app has its handle. The handle has the app, so that a dictionary of ours, weak or not, would keep both."""


class Limits:
    """The limits of one Celery app. There is one handle per app, however often it is made."""

    app: Any

    def __new__(cls, app: Any) -> Limits:
        handle: Limits | None = getattr(app, _ATTRIBUTE, None)
        if handle is None:
            handle = super().__new__(cls)
            handle.app = app
            setattr(app, _ATTRIBUTE, handle)
        return handle

    def __repr__(self) -> str:
        return f"<Limits of {self.app.main or 'app'!r}>"

    # -- what is shared --------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> Settings:
        return Settings.of(self.app)

    def reload(self) -> None:
        """Reads the configuration again: a worker's flags have changed it."""
        for name in ("settings", "store", "outbox", "releaser"):
            self.__dict__.pop(name, None)

    @property
    def url(self) -> str:
        """Where the store is, without its password."""
        if self.on_broker:
            return masked(broker_url(self.app))
        return masked(store_url(self.app, self.settings.store_url))

    @property
    def on_broker(self) -> bool:
        """Whether store and queues are in the same Redis, behind our own transport."""
        return is_broker(self.app, self.settings.store_url)

    @cached_property
    def store(self) -> Store:
        return self.new_store()

    def new_store(self, within: float | None = None) -> Store:
        """The same store over connections of its own; with `within` a call to one that is silent takes no longer."""
        settings = self.settings
        timeout = settings.store_timeout if within is None else min(settings.store_timeout, within)
        # An idle connection may have been closed meanwhile; but whoever is in a hurry asks once.
        client = store_client(self.app, settings.store_url, timeout, retries=1 if within is None else 0)
        keyprefix = self.app.conf.broker_transport_options.get("global_keyprefix", "") if self.on_broker else ""
        trust, delays = settings.trust_headers, settings.delay_in_store and self.on_broker
        return Store(client, settings.namespace, settings.policy, keyprefix=keyprefix, trust=trust, delays=delays)

    @cached_property
    def outbox(self) -> Outbox:
        return Outbox(self.app, self.store)

    @cached_property
    def releaser(self) -> Releaser:
        return Releaser(self.store, self.outbox)

    def declared(self) -> list[Declared]:
        """The declarations of every limited task of the app."""
        found = (declared_of(task) for task in self.app.tasks.values())
        return [declared for declared in found if declared is not None]

    @property
    def in_use(self) -> bool:
        """Whether anything of this app may be limited."""
        return self.settings.store_url is not None or self.on_broker or bool(self.declared())

    def check(self) -> None:
        """Raises what is wrong with the declared chains: see `deadlock`."""
        check_chains(self.declared())

    # -- steering and reading ----------------------------------------------------------------------------------

    def status(self, key: str) -> Status:
        """Who holds the key, who waits, and what size is in force."""
        return self.store.status(key)

    def overview(self, groups: int = 0) -> list[Status]:
        """Every key there is: in use, steered, or declared by its full name. Holders and waiters are only counted; of
        the groups of each key this many are named."""
        catalogue = self.catalogue()
        keys = sorted({*self.store.keys(), *catalogue.literals})
        return [catalogue.complete(status) for status in self.store.statuses(keys, 0, groups)]

    def catalogue(self) -> Catalogue:
        """What the app declares about keys, in use or not."""
        return Catalogue(self.declared())

    def explain(self, task_id: str) -> Explanation:
        """Where a task is and why: at which link it waits, since when, its place in line, who holds."""
        return self.store.explain(task_id)

    def resize(
        self,
        key: str,
        size: int | str,
        burst: int = 1,
        *,
        seconds: float | None = None,
        reason: str = "",
        author: Author | None = None,
    ) -> None:
        """Another size (or rate, "100/m") for a key, whatever its tasks declare; it lasts until `reset`, or for
        `seconds`.

        Raises `LimitError` for a key, size, rate, burst or time that can't be used, and changes nothing then.
        """
        try:
            _check_key(key)
            if isinstance(size, str):
                size = parse_rate(size).text
            else:
                size = whole(size, "the size", 0, MAX_SIZE)
            burst = whole(burst, "burst", 1, MAX_SIZE)
        except Refused as error:
            raise LimitError(f"resize {shorten(key)} to {shorten(size)}: {error}") from None
        with _refusing(f"resize {shorten(key)}"):
            self._finish(self.store.resize(key, size, burst, seconds=seconds, author=author or Author(reason=reason)))

    def reset(self, key: str, *, reason: str = "", author: Author | None = None) -> None:
        """What the tasks declare is in force again."""
        with _refusing(f"reset {shorten(key)}"):
            self._finish(self.store.reset(key, author=author or Author(reason=reason)))

    def pause(self, key: str, *, seconds: float | None = None, reason: str = "", author: Author | None = None) -> None:
        """Nothing enters the key until `resume`, or for `seconds`; what runs, runs on."""
        with _refusing(f"pause {shorten(key)}"):
            self.store.pause(key, seconds=seconds, author=author or Author(reason=reason))

    def resume(self, key: str, *, reason: str = "", author: Author | None = None) -> None:
        with _refusing(f"resume {shorten(key)}"):
            self._finish(self.store.resume(key, author=author or Author(reason=reason)))

    def pause_queue(
        self, queue: str, *, seconds: float | None = None, reason: str = "", author: Author | None = None
    ) -> None:
        """Workers fetch nothing from the queue until `resume_queue`, or for `seconds`; what they have fetched, runs.

        Only our own transport can do that: with any other broker it raises `LimitError`.
        """
        if not self.on_broker:
            raise LimitError(
                f"queue {shorten(queue)}: only workers on limits+redis:// stop fetching a queue, and the broker of "
                f"this app is another; 'celery control cancel_consumer {shorten(queue)}' stops consumers of it"
            )
        with _refusing(f"pause the queue {shorten(queue)}"):
            self._finish(self.store.stop_queue(queue, seconds=seconds, author=author or Author(reason=reason)))

    def resume_queue(self, queue: str, *, reason: str = "", author: Author | None = None) -> None:
        with _refusing(f"resume the queue {shorten(queue)}"):
            self._finish(self.store.start_queue(queue, author=author or Author(reason=reason)))

    def run(self, task_id: str, *, reason: str = "", author: Author | None = None) -> Forced:
        """A task that waits passes all its limits now, although they have no room. It holds them like any other, so
        nobody else enters until they are below their size again. It is logged as a warning, counted, and recorded in
        the log of
        changes."""
        with _refusing(f"run {shorten(task_id)}"):
            forced = self.store.run_now(task_id, author=author or Author(reason=reason))
        if forced.let:
            keys = ", ".join(map(repr, forced.keys))
            logger.warning("limits: task %s passes %s although there is no room", printable(task_id), printable(keys))
        self._finish(forced.after)
        return forced

    def changes(self, count: int = 100, subject: str | None = None) -> list[Change]:
        """What people have changed, the newest first; of one key, "queue <name>" or "task <id>", where one is named."""
        return read_changes(self.store, count, subject)

    def cancel(self, task_id: str, *, reason: str = "", author: Author | None = None) -> Cancelled:
        """A task that waits, or whose turn has come but that has not begun, ends here as revoked."""
        if not can_be_limited(task_id):
            raise LimitError(
                f"the task id {shorten(task_id)} is longer than {MAX_TASK_ID_BYTES} bytes: no limited task has such an "
                "id, so there is nothing to cancel; for any other task use app.control.revoke"
            )
        with _refusing(f"cancel {shorten(task_id)}"):
            return self._cancel(task_id, report=True, author=author or Author(reason=reason))

    def revoke(self, task_id: str) -> Cancelled:
        """As `cancel`; but a live worker, where there is one, reports the end a moment later, since its handlers of
        `task_revoked` and those who listen to its events expect that."""
        return self._cancel(task_id, report=not has_worker(self.store))

    def _cancel(self, task_id: str, *, report: bool, author: Author | None = None) -> Cancelled:
        outcome = self._cancel_some(task_id, 0, report, author)
        while outcome.cursor:
            some = self._cancel_some(task_id, outcome.cursor, report)
            outcome = some._replace(running=outcome.running + some.running, ended=outcome.ended + some.ended)
        return outcome

    def _cancel_some(self, task_id: str, cursor: int, report: bool, author: Author | None = None) -> Cancelled:
        if report:
            outcome = self.store.cancel(task_id, cursor=cursor, author=author)
            report_all(self.app, self.store, outcome.ended, "revoked")
        else:
            outcome = self.store.cancel(task_id, settle_within=LEFT_TO_WORKERS, cursor=cursor)
        self._finish(outcome.after)
        return outcome

    def purge(self, queues: Iterable[str]) -> int:
        """Ends as revoked what came from these queues and has not begun, wherever it waits; how many tasks that was.

        The last of a line goes first, so that none is let go on by the end of another. A task id that also runs is left
        alone: its retries would be refused.
        """
        names = tuple(queues)
        found: dict[str, tuple[bool, int]] = {}
        begun: set[str] = set()
        for ticket, state, arrival in self.store.tickets():
            if state == "running":
                begun.add(task_id_of(ticket))
            elif state in _NOT_BEGUN and any(ticket_in(ticket, name) == ticket for name in names):
                found[task_id_of(ticket)] = (state == "waiting", arrival)
        waiting = sorted(found.keys() - begun, key=found.__getitem__, reverse=True)
        for task_id in waiting:
            self._cancel(task_id, report=True)
        return len(waiting)

    def waiting_with_stamps(self, stamps: Mapping[str, Any]) -> list[str]:
        """The ids of tasks in the store that carry one of these stamps, as `revoke_by_stamped_headers` matches them."""
        wanted = {name: set(maybe_list(values)) for name, values in stamps.items()}
        return [task_id for task_id, message in self.store.messages() if _has_stamp(message, wanted)]

    def audit(self, repair: bool = False) -> list[Finding]:
        """Every discrepancy in the store; empty when all is well. What was set aside, and the ends that could not be
        reported, `repair` leaves to a person."""
        found = audit(self.store, repair=repair)
        return [*found, *set_aside_findings(self.store), *unreported_findings(self.store)]

    def _finish(self, after: Any) -> None:
        """Goes on with what a script left for later, so that it is done when the call returns."""
        while after.more:
            self.releaser.follow_up(after)
            after = self.store.sweep().after
        self.releaser.follow_up(after)


def _check_key(key: str) -> None:
    if not isinstance(key, str):
        raise Refused("the key must be text")
    check_key(key)


@contextmanager
def _refusing(doing: str) -> Iterator[None]:
    """What can't be done with these arguments is said as any other error of limits."""
    try:
        yield
    except ValueError as error:
        raise LimitError(f"{doing}: {error}") from None


def _has_stamp(message: bytes, wanted: Mapping[str, set[Any]]) -> bool:
    try:
        carried = unpack(message).headers.get("stamps") or {}
        return any(
            not wanted[name].isdisjoint(maybe_list(carried[name]) or ()) for name in wanted.keys() & carried.keys()
        )
    except (ValueError, KeyError, TypeError, AttributeError):  # unreadable, which the audit tells of: it has no stamps
        return False
