"""The names of the tasks behind tickets, for people to read.

The store does not keep them, since every admission would pay for it. Those that wait have their message in the store,
which has the name; of those that run, the workers that run them are asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from celery.utils.log import get_logger

from celery_limits.message.envelope import unpack
from celery_limits.store import Store
from celery_limits.store.status import Party, Status

__all__ = ["host_of", "name_in", "named", "names_of"]

logger = get_logger(__name__)


def host_of(worker: str) -> str:
    """The name that Celery knows a worker by, of the identity that it has in the store: `<hostname>/<pid>/<nonce>`."""
    return worker.rsplit("/", 2)[0]


def name_in(message: bytes) -> str | None:
    """The task's name in a parked message; None in one that is not as we write it."""
    with suppress(Exception):
        name = unpack(message).headers.get("task")
        return None if name is None else str(name)
    return None


def names_of(app: Any, store: Store, parties: Iterable[Party], timeout: float) -> dict[str, str]:
    """Ticket -> task name, as far as anyone can tell within `timeout` seconds; 0 asks no worker."""
    parties = list(parties)
    messages = store.messages_of([party.ticket for party in parties])
    found = {ticket: name for ticket, message in messages.items() if (name := name_in(message))}
    running = [party for party in parties if party.ticket not in found and party.worker]
    if not running or not timeout:
        return found
    return {**_ask_workers(app, {host_of(party.worker) for party in running}, timeout), **found}


def _ask_workers(app: Any, hosts: set[str], timeout: float) -> dict[str, str]:
    """All of them at once, and no longer than until the last has answered."""
    try:
        nodes = sorted(hosts)
        replies = app.control.broadcast("limits", destination=nodes, timeout=timeout, limit=len(nodes), reply=True)
    except Exception as error:  # the broker is away, or can't broadcast: names are a convenience
        logger.debug("limits: no worker could be asked for names: %r", error)
        return {}
    said = (said for reply in replies or () for said in reply.values())
    return {one["ticket"]: one["task"] for view in said for one in view.get("holding") or ()}


def named(app: Any, store: Store, status: Status, timeout: float) -> Status:
    """The status with the names of its tasks."""
    names = names_of(app, store, (*status.holders, *status.waiters), timeout)

    def name(parties: tuple[Party, ...]) -> tuple[Party, ...]:
        return tuple(replace(party, task=names.get(party.ticket)) for party in parties)

    return replace(status, holders=name(status.holders), waiters=name(status.waiters))
