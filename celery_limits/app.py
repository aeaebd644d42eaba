"""`Limits(app)`: the handle on an app's limits, for programs; and what an app's processes share of them.

Making one, or importing the package, is enough to be active; see `hooks` for how. The store is connected when it is
first used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from celery.utils.functional import maybe_list

from .catalogue import Catalogue
from .chain import Declared
from .deadlock import check_chains
from .ending import tell_all
from .errors import LimitError, Refused
from .limits import MAX_SIZE, whole
from .location import broker_url, is_broker, masked, store_client, store_url
from .publish import declared_of
from .settings import Settings
from .store import Store
from .store.audit import Finding, audit
from .store.outcomes import Cancelled
from .store.reads import Explanation, Status
from .wire import task_id_of, ticket_in
from .worker.envelope import unpack
from .worker.exits import Releaser
from .worker.outbox import Outbox

__all__ = ["Limits"]

_NOT_BEGUN = frozenset({"waiting", "granted", "away"})
_handles: WeakKeyDictionary[Any, Limits] = WeakKeyDictionary()


class Limits:
    """The limits of one Celery app. There is one handle per app, however often it is made."""

    app: Any

    def __new__(cls, app: Any) -> Limits:
        handle = _handles.get(app)
        if handle is None:
            handle = super().__new__(cls)
            handle.app = app
            _handles[app] = handle
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
        return Store(client, settings.namespace, settings.policy, keyprefix=keyprefix)

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

    def overview(self) -> list[Status]:
        """Every key there is: in use, steered, or declared by its full name. Holders and waiters are only counted."""
        catalogue = self.catalogue()
        keys = sorted({*self.store.keys(), *catalogue.literals})
        return [catalogue.complete(status) for status in self.store.statuses(keys)]

    def catalogue(self) -> Catalogue:
        """What the app declares about keys, in use or not."""
        return Catalogue(self.declared())

    def explain(self, task_id: str) -> Explanation:
        """Where a task is and why: at which link it waits, since when, its place in line, who holds."""
        return self.store.explain(task_id)

    def resize(self, key: str, size: int | str, burst: int = 1) -> None:
        """Another size (or rate, "100/m") for a key, whatever its tasks declare; it lasts until `reset`."""
        if not isinstance(size, str):
            try:
                size = whole(size, f"the size of {key!r}", 0, MAX_SIZE)
            except Refused as error:
                raise LimitError(f"{error}; or a rate like '100/m' for a rate limit") from None
        self._finish(self.store.resize(key, size, burst))

    def reset(self, key: str) -> None:
        """What the tasks declare is in force again."""
        self._finish(self.store.reset(key))

    def pause(self, key: str) -> None:
        """Nothing enters the key until `resume`; what runs, runs on."""
        self.store.pause(key)

    def resume(self, key: str) -> None:
        self._finish(self.store.resume(key))

    def cancel(self, task_id: str) -> Cancelled:
        """A task that waits, or whose turn has come but that has not begun, ends here as revoked."""
        outcome = self.store.cancel(task_id)
        tell_all(self.app, self.store, outcome.ended, "revoked")
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
            self.cancel(task_id)
        return len(waiting)

    def waiting_with_stamps(self, stamps: Mapping[str, Any]) -> list[str]:
        """The ids of tasks in the store that carry one of these stamps, as `revoke_by_stamped_headers` matches them."""
        found = []
        for task_id, message in self.store.messages():
            carried = unpack(message).headers.get("stamps") or {}
            matches = (
                set(maybe_list(carried.get(name)) or ()) & set(maybe_list(want)) for name, want in stamps.items()
            )
            if any(matches):
                found.append(task_id)
        return found

    def audit(self, repair: bool = False) -> list[Finding]:
        """Every discrepancy in the store; empty when all is well."""
        return audit(self.store, repair=repair)

    def _finish(self, after: Any) -> None:
        """Goes on with what a script left for later, so that it is done when the call returns."""
        while after.more:
            self.releaser.follow_up(after)
            after = self.store.sweep().after
        self.releaser.follow_up(after)
